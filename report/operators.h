// The README's table: which operators, how fast, against whom.
#pragma once

#include <string>
#include <vector>

#include "report/report.h"

namespace assay {

// One row per definition: workloads passed and CPU median from runs without a GPU; from the device
// backends of the others, the backend with the smallest median over the workloads that all timed
// backends of the definition share, and our own kernel (`cuda`) against the best of the others,
// workload by workload. Runs of one kind follow each other: a later one adds definitions, and
// replaces those that it has in common with an earlier one.
std::string OperatorTable(const std::vector<RunReport>& runs);

}  // namespace assay
