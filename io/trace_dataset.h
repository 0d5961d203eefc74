// FlashInfer-Trace folders as they lie on disk: definitions/**.json, workloads/**.jsonl,
// solutions/**.json, traces/**.jsonl, blob/. What our own records need is read; files are never
// rewritten, so what we do not interpret cannot get lost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"

namespace assay {

struct TraceAxis {
  std::string name;
  std::optional<std::int64_t> value;  // of a const axis
};

struct TraceTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::string> shape;  // axis names; empty for a scalar (shape null)
  bool optional = false;
};

struct TraceDefinition {
  std::string name, op_type;
  std::vector<TraceAxis> axes;
  std::vector<TraceTensor> inputs, outputs;  // in argument order
  std::vector<std::string> constraints;      // see io/axis_expression.h
};

struct TraceSolution {
  std::string name, definition, author, language, entry_point, binding;
  std::vector<std::string> dependencies;
  std::vector<std::pair<std::string, std::string>> sources;  // path, content

  // SHA-1 over definition, language, entry point, binding, dependencies, then each path and
  // content.
  std::string Identity() const;
};

// A line with an evaluation. `definition` and `uuid` say of what.
struct TraceLine {
  std::string definition, uuid, solution;
  std::string status, hardware, timestamp, log;
  bool has_correctness = false, has_performance = false;
  double max_relative_error = 0, max_absolute_error = 0;
  double latency_ms = 0;
};

// Each throws kInput with one sentence: what is missing, unknown or against the format's own rules.
TraceDefinition ParseTraceDefinition(std::string_view json);
TraceSolution ParseTraceSolution(std::string_view json);
// Empty for a line that is a workload only (no solution, no evaluation).
std::optional<TraceLine> ParseTraceLine(std::string_view json);

// What could not be used; loading goes on behind it.
struct TraceProblem {
  std::string file;       // below the root
  std::int64_t line = 0;  // from 1; 0 = the whole file
  std::string message;
};

// Regular files below `root`/`folder` (`folder` may be "") whose name ends in `ending`, as sorted
// paths relative to `root`. Empty when there is no such folder. Throws kInput when `root` is no
// folder.
std::vector<std::string> TraceFiles(const std::string& root, const std::string& folder,
                                    const std::string& ending);

// A duplicate name is a problem; so is everything that the parsers refuse.
std::vector<TraceDefinition> LoadTraceDefinitions(const std::string& root,
                                                  std::vector<TraceProblem>& problems);
std::vector<TraceSolution> LoadTraceSolutions(const std::string& root,
                                              std::vector<TraceProblem>& problems);
std::vector<TraceLine> LoadTraceLines(const std::string& root, std::vector<TraceProblem>& problems);

// Where a path inside a record lies. Throws kInput when it is empty, absolute, leads out of the
// folder (by ".." or a link) or names nothing.
std::string TraceBlobPath(const std::string& root, const std::string& path);

}  // namespace assay
