// Verification judged: deliberately wrong kernels that it must reject.
#pragma once

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

// Runs every mutant of the workload's family, and the mutants that fit any operator (zeros, output
// scaled by 1.01, rows rotated, output of the previous content set), under the verification that
// `assay run` uses by default. Throws kInput when the workload is not runnable.
std::vector<MutantOutcome> TryMutants(const Family& family, const Workload& workload);

// The cheapest workload of every definition that the suite has and the registry knows.
std::vector<const Workload*> CheapestPerDefinition(const Registry& registry, const Suite& suite);

}  // namespace assay
