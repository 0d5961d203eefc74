// Names the first task of a step whose result is not what the fp64 reference has there.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "engine/executor.h"
#include "engine/reference.h"

namespace assay::engine {

// Every value that the reference showed of one row, by layer, site and name.
using RowTruth = std::map<std::tuple<std::int64_t, int, reference::Value>, reference::Vec>;

struct TaskError {
  std::size_t task = 0;
  double error = 0;  // root mean square of a task's difference over that of the whole value
};

// What a task may be off by before it is the first wrong one. With bf16 activations single values
// of a row differ by more than its streams do: 0.19 at most in 256 rows of tiny.
inline constexpr double kTaskBound = 0.5;

struct TaskErrors {
  std::optional<TaskError> first;  // in program order, of those beyond kTaskBound
  TaskError worst;
};

// Replays the step task by task on `checked`, and compares what each one gives every row that has a
// truth (null: none); by row. Outputs of the step are the same afterwards. Index scores and
// attention chunks have no counterpart in the reference: their mistakes show in the task that reads
// them.
std::vector<TaskErrors> ErrorsOfTasks(const Step& step, Executor& checked,
                                      const std::vector<const RowTruth*>& truth);

}  // namespace assay::engine
