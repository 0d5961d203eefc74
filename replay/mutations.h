// Verification judged: deliberately wrong kernels that it must reject.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "replay/suite.h"

namespace assay {

struct MutantOutcome {
  std::string definition, uuid, mutant, mistake;
  bool killed = false;
  std::string reason;  // why it was rejected; for survivors "" or what went wrong
  double share_checked = 0;
};

// Runs every mutant of the family, and the mutants that fit any operator (zeros, output scaled by
// 1.01, rows rotated, output of the previous content set), under the verification that `assay run`
// uses by default. `workloads` are of one definition, cheapest first: a mutant runs on the first
// one where its mistake changes anything, with the generator variant that the mutant asks for; one
// that applies nowhere is left out. Throws kInput when a workload is not runnable or the unmutated
// backend is rejected on it.
std::vector<MutantOutcome> TryMutants(const Family& family,
                                      std::span<const Workload* const> workloads);

// The suite's workloads of every definition that the registry knows, cheapest first.
std::map<std::string, std::vector<const Workload*>> WorkloadsByDefinition(const Registry& registry,
                                                                          const Suite& suite);

}  // namespace assay
