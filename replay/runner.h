// Replays workloads: inputs, reference, workers, verdicts, timing, one result per (workload,
// backend).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "replay/ledger.h"
#include "replay/suite.h"

namespace assay {

struct RunOptions {
  std::vector<std::string> backends;  // names to run; empty = every backend of each family
  std::uint64_t seed = 0;             // number of the first content set
  int threads = 0;                    // per worker; 0 = all cores
  // Workloads side by side, their workers pinned to shares of the cores; without timing only.
  int jobs = 1;
  int repeats = 3;  // timing in fresh processes
  bool timing = true;
  bool bitwise = false;  // hold backends to their documented order of sums (replay/bitwise.h)
  bool flush_by_write = false;  // devices: how the L2 cache is emptied before cold calls
  bool cross_check = false;     // devices: spans by CUPTI beside the cold time (replay/spans.h)
  // Why no GPU can be used; device backends then run only when they are named. "" = there is one.
  std::string why_no_gpu;
  double timeout_s = 300;  // per request to a worker
  double budget_s = 12;    // timing of one case: repeats x modes x 2 s
  // Memory that tensors of one case may take; 0 = four fifths of what is available.
  std::int64_t memory_limit_bytes = 0;
  double worker_leave_s = 0.2;  // how long a worker may take to end; checkers report at the end
  std::vector<std::string> worker_command;  // program and arguments before --fd
  std::map<std::string, std::vector<std::string>> backend_commands;  // backends of other programs
  std::string build;                                                 // for `done`
  std::set<CaseKey> done;                                            // cases that --resume skips
};

// A case to run. `family` is null when no room knows the definition.
struct PlannedCase {
  const Workload* workload = nullptr;
  const Family* family = nullptr;
  std::string backend;
};

// Every (workload, backend) of the suite that `options.done` does not hold, in suite order. Throws
// kInput when a named backend exists in no family.
std::vector<PlannedCase> PlanCases(const Registry& registry, const Suite& suite,
                                   const RunOptions& options);

struct RunCallbacks {
  std::function<void(const PlannedCase&, std::size_t index)> on_start;
  std::function<void(const CaseResult&)> on_result;  // an exception from here ends the run
};

// Runs the plan in order. Of one workload the CPU backends come first, then those on devices; each
// of the two groups is checked (devices side by side), timed interleaved and shown new content.
// Returns early, between cases, once `stop` is true; the case in flight is dropped.
void RunCases(const std::vector<PlannedCase>& plan, const RunOptions& options,
              const MachineCeilings& ceilings, const RunCallbacks& callbacks,
              const std::atomic<bool>& stop);

}  // namespace assay
