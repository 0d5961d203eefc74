// Cluster and moving-block bootstrap of log ratios of quantiles and means. A resample is one
// integer weight per unit (cluster or time cell); quantiles are found in presorted arrays with
// those weights, so a resample costs O(units + window), not a sort.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/stats.h"

namespace assay::serving {

// Values of one arm and the unit each belongs to.
struct ArmValues {
  std::vector<double> value;
  std::vector<std::int32_t> unit;
};

// How units are drawn. A stratum is resampled within itself: one stratum for pairs (both arms share
// the weights), one per arm when arms are independent, one per round and arm for several rounds.
struct UnitPlan {
  std::vector<std::int32_t> strata{0};  // begin of each stratum, then the number of units
  // Units are consecutive time cells and are drawn as runs of this many (moving blocks, Kuensch
  // 1989); 1 draws single units.
  std::int32_t block = 1;
  // Strata of one round are drawn together first (hierarchical bootstrap): round of each stratum;
  // empty = no round level.
  std::vector<std::int32_t> round_of_stratum;
  // Number of independent units behind the spread: smallest stratum, in blocks.
  double effective = 0;
  bool few_clusters = false;
  std::string name = "clusters";  // "clusters", "moving blocks", ...

  std::int32_t units() const { return strata.back(); }
  std::int32_t clusters = 0;  // for display
};

struct RatioDraws {
  std::vector<double> estimate;           // ln(on / off) per statistic
  std::vector<std::vector<double>> draw;  // [statistic][resample], ln ratios; NaN-free
  std::vector<double> standard_error;     // standard deviation of the draws
};

// Quantile q in (0, 1) or mean (q = 0) for each entry of `statistics`; both arms positive.
// Deterministic in `seed`; the thread count does not matter.
RatioDraws BootstrapLogRatios(const ArmValues& off, const ArmValues& on, const UnitPlan& plan,
                              std::span<const double> statistics, std::uint64_t seed,
                              int resamples);

// The same for several pairs of arms on one plan: every resample's weights are drawn once.
struct RatioQuestion {
  const ArmValues* off = nullptr;
  const ArmValues* on = nullptr;
  std::vector<double> statistics;
};
std::vector<RatioDraws> BootstrapLogRatios(const std::vector<RatioQuestion>& questions,
                                           const UnitPlan& plan, std::uint64_t seed, int resamples);

// Expanded percentile interval (Hesterberg 2015, The American Statistician 69(4), 3.3 and 5.3): the
// percentile levels Phi(-sqrt(k/(k-1)) t_{k-1}) correct the narrowness with k units.
Interval ExpandedPercentileInterval(std::span<const double> draws, double units,
                                    double confidence = 0.95);
// Two-sided p value of "no effect" that agrees with the interval above.
double BootstrapP(std::span<const double> draws, double units);
// Half-width factor in standard errors of that interval: 1.96 for many units.
double CriticalValue(double units, double confidence = 0.95);

// Simultaneous band over statistics: estimate +- c * se with c the 95 % quantile of the largest
// |draw - estimate| / se (max-T; Westfall and Young 1993), expanded like single intervals.
std::vector<Interval> SimultaneousBand(const RatioDraws& draws, double units);

}  // namespace assay::serving
