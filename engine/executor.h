// Executors run a step program. They differ in arithmetic and in order, never in what is computed.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/step.h"

namespace assay::engine {

// What a step cost, by op, and what it touched.
struct StepStats {
  std::array<double, static_cast<std::size_t>(Op::kCount)> seconds = {};  // summed over threads
  std::array<std::int64_t, static_cast<std::size_t>(Op::kCount)> tasks = {};
  std::int64_t distinct_experts = 0;  // summed over layers
  void Add(const StepStats& other);
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual std::string name() const = 0;
  // Runs every task of step.program once. Throws kInput when the step does not fit (CheckStep);
  // committed state is untouched in any case.
  virtual StepStats Run(const Step& step) = 0;
  // One task alone, for checks that replay a step task by task. False: this executor has no tasks.
  virtual bool RunTask(const Step& step, const Task& task) = 0;
};

enum class Arithmetic : std::uint8_t {
  kTensorCore,  // every rounding as on the GPU: "cpu-bit"
  kFast,        // fp32 vectors: "cpu"
};

struct CpuOptions {
  Arithmetic arithmetic = Arithmetic::kFast;
  int threads = 1;  // 0 = all cores
  // Tasks are taken in a random legal order; without, in program order as far as they are ready.
  std::optional<std::uint64_t> order_seed = {};
  // Proves while running that every access was ordered: each task's conflicting predecessors have
  // finished before it starts. Throws kInternal naming both tasks otherwise.
  bool check_order = false;
  Bodies bodies = EngineBodies();
};
std::unique_ptr<Executor> MakeCpuExecutor(const CpuOptions& options);

// "cpu-ref64": the fp64 formulas, row by row, no tasks. Between steps it keeps what the engine
// keeps, in the engine's formats. Throws kUnsupported for a state with replay commit (it has no
// logs).
std::unique_ptr<Executor> MakeReferenceExecutor();

}  // namespace assay::engine
