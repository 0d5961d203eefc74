// The interval, p value and standard error of a ratio of means or quantiles: from swapped clusters
// where the arms can be swapped, from resampled clusters elsewhere.
#pragma once

#include <cstdint>
#include <vector>

#include "serving/bootstrap.h"

namespace assay::serving {

struct RatioInterval {
  double estimate = 0;        // ln(on / off)
  Interval interval;          // 95 %, ln
  Interval interval_90;       // for equivalence
  double standard_error = 0;  // half of the 95 % interval over CriticalValue(units)
  double p = 1;               // two-sided, of "no effect"; agrees with the interval
  bool from_swaps = false;    // else from the bootstrap
};

// [question][statistic]. `paired`: both arms of every question hold the same pairs in the same
// order. Swaps answer paired questions with ten units or more and without a level of rounds, for
// means always, for quantiles where the arms differ by no more than a factor (ShiftIsFlat).
// Deterministic in `seed`; the thread count does not matter.
std::vector<std::vector<RatioInterval>> RatioIntervals(const std::vector<RatioQuestion>& questions,
                                                       const UnitPlan& plan, bool paired,
                                                       std::uint64_t seed, int draws);

// Whether the ratio is the same at all deciles and at `quantiles`, as far as a swap test at 2 % can
// tell: then the arms are exchangeable up to a factor.
bool ShiftIsFlat(const ArmValues& off, const ArmValues& on, const UnitPlan& plan,
                 const std::vector<double>& quantiles, std::uint64_t seed, int draws);

}  // namespace assay::serving
