// Distribution-free statistics on ranks: Hodges-Lehmann with Wilcoxon's interval, Mann-Whitney,
// order-statistic intervals of quantiles, multiplicity, autocorrelation, warm-up detection.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/stats.h"

namespace assay::serving {

// Hodges-Lehmann centre of paired differences: median of the Walsh averages (d_i + d_j)/2, i <= j,
// with the interval that inverts Wilcoxon's signed-rank test (Hollander and Wolfe, Nonparametric
// Statistical Methods, 3.2 and 3.3). O(n log n): averages are counted, not listed.
struct HodgesLehmann {
  double median = 0;  // of the differences
  double center = 0;  // median of Walsh averages
  Interval interval;  // 95 %
  std::int64_t positive = 0, count = 0;
};
std::optional<HodgesLehmann> PairedShift(std::span<const double> differences);

// Two independent samples: U of the second against the first with ties counted half, superiority
// U/(nm) = P(y > x) + P(y = x)/2, the two-sided p value (normal, tie-corrected; Mann and Whitney
// 1947, Lehmann 1975) and the Hodges-Lehmann shift, the median of all y_j - x_i.
struct MannWhitney {
  double u = 0, superiority = 0.5, p = 1, shift = 0;
};
std::optional<MannWhitney> CompareUnpaired(std::span<const double> x, std::span<const double> y);

// Ranks l < u (1-based) of the distribution-free interval of quantile q for n samples; the same
// rule as OrderStatisticInterval. Empty when n is too small.
struct Ranks {
  std::int64_t low = 0, high = 0;
};
std::optional<Ranks> QuantileRanks(std::int64_t n, double q, double confidence = 0.95);
// Smallest n with a two-sided interval: 36 / 72 / 368 / 3688 for p90 / p95 / p99 / p99.9.
std::int64_t SmallestCount(double q, double confidence = 0.95);
// One-sided upper bound: smallest n with 1 - q^n >= confidence: 29 / 59 / 299 / 2995.
std::int64_t SmallestCountOneSided(double q, double confidence = 0.95);

// Benjamini and Hochberg (1995): adjusted p values in the order given.
std::vector<double> BenjaminiHochberg(std::span<const double> p);

// Lag-k sample autocorrelation of a series in time order.
double Autocorrelation(std::span<const double> series, std::int64_t lag);
// 1 + 2 sum rho_k up to the first pair of lags with a non-positive sum (Geyer 1992, initial
// positive sequence), at least 1.
double IntegratedAutocorrelationTime(std::span<const double> series);

// MSER-5 (White 1997): number of leading samples whose removal minimises the standard error of the
// mean of batches of five; at most half. A hint only.
std::int64_t MserTruncation(std::span<const double> series);

}  // namespace assay::serving
