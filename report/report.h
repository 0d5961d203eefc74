// The input of every report: one run, as plain data. Nothing under report/ opens a ledger.
#pragma once

#include <vector>

#include "replay/result.h"

namespace assay {

struct RunReport {
  RunInfo run;
  Ceilings ceilings;              // all zeros when the machine was never measured
  std::vector<CaseResult> cases;  // in the order they ended
  Ceilings gpu = {};              // of the run's GPU; all zeros without one
};

// What a run is named after: its GPU, else its CPU.
inline const std::string& MachineOf(const RunInfo& run) {
  return run.accelerator.empty() ? run.device : run.accelerator;
}

}  // namespace assay
