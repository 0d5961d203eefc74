// The fastest verified backend of every call shape, as a table and as code that an engine can use.
#pragma once

#include <string>
#include <vector>

#include "replay/ledger.h"

namespace assay {

struct Best {
  std::string definition, axes_text;  // "B=1 Nk=51 Nq=51"
  Axes axes;
  std::string backend;
  double median_ns = 0;
  std::string second;       // the next backend; "" = there was only one
  double second_ratio = 0;  // its median / the best one
  std::int64_t cases = 0;   // workloads of this shape that the median is over
};

// By definition and axes. Only `passed` cases with a time count; a backend must have run every
// workload of the shape that any backend has run, or it is no candidate.
std::vector<Best> BestBackends(const std::vector<CaseRow>& rows);

std::string BestToJson(const std::vector<Best>& best);
// A header of constants, sorted for binary search, with the run and device named.
std::string BestToCpp(const std::vector<Best>& best, const RunInfo& run);

}  // namespace assay
