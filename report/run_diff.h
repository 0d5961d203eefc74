// Two runs compared case by case: what fails now, what got slower or faster, and whether the two
// were made in the same environment.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/stats.h"
#include "replay/ledger.h"

namespace assay {

// One (workload, backend) that both runs have.
struct CaseDiff {
  const CaseRow* before = nullptr;
  const CaseRow* after = nullptr;
  // after / before of the headline medians, when both passed and share the mode; above 1 = slower.
  std::optional<double> ratio;
  Interval interval;  // 95 %, of the ratio; meaningful with `ratio`
};

struct GroupDiff {
  std::string definition, backend;
  std::int64_t cases = 0;  // with a ratio
  double median = 1;       // of the ratios
};

struct RunDiff {
  std::vector<std::string> environment;  // "threads: 2 -> 16", one a difference
  std::vector<CaseDiff> cases;           // in the order of `after`
  std::vector<const CaseRow*> only_before, only_after;
  std::vector<const CaseDiff*> new_failures, mended;  // into `cases`
  std::vector<const CaseDiff*> slower, faster;        // beyond margin and interval
  std::vector<GroupDiff> groups;                      // by definition, then backend
};

// Rows must outlive the result. A change counts when the ratio is beyond `margin` (0.02 = 2 %) and
// its interval excludes 1.
RunDiff CompareRuns(const RunInfo& before, const std::vector<CaseRow>& rows_before,
                    const RunInfo& after, const std::vector<CaseRow>& rows_after, double margin);

// Interval of after / before from the intervals of both medians (MOVER on logarithms; Donner and
// Zou 2012, Statistical Methods in Medical Research 21(4), section 2). Samples of one process are
// not independent of each other, so this is a lower bound of the uncertainty.
Interval RatioInterval(const TimingSummary& before, const TimingSummary& after);

}  // namespace assay
