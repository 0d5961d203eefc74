// Result tables for documents: README, docs/results.md.
#pragma once

#include <string>

#include "report/report.h"

namespace assay {

// One table with a row per definition and backend (workloads, passed, median time, share of the
// floor, speed-up over the baseline with its interval), the failures, and where the numbers come
// from. Sorted by name: the same results give the same text, in whatever order cases ended.
std::string MarkdownReport(const RunReport& report);

}  // namespace assay
