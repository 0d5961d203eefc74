// Robust statistics of timing samples. All functions take unsorted samples unless they say
// "sorted".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace assay {

struct Interval {
  double low = 0, high = 0;
};

std::vector<double> Sorted(std::span<const double> samples);

// Nearest-rank quantile of sorted samples, 0 <= q <= 1: element ceil(q n), counted from 1.
double QuantileSorted(std::span<const double> sorted, double q);
// Middle element, or the mean of the two middle ones. NaN when empty.
double Median(std::span<const double> samples);
double Mean(std::span<const double> samples);
// Median of absolute deviations from the median (not scaled).
double MedianAbsoluteDeviation(std::span<const double> samples);

// Distribution-free interval of quantile q: the innermost ranks l < u of which each misses the
// quantile with probability <= (1 - confidence) / 2, so that sum_{i=l}^{u-1} C(n,i) q^i (1-q)^(n-i)
// >= confidence (replay page, section 4). Empty when n is too small for a two-sided interval
// (q = 0.5: n < 6; 0.9: 36; 0.95: 72; 0.99: 368).
std::optional<Interval> OrderStatisticInterval(std::span<const double> sorted, double q,
                                               double confidence = 0.95);

// Percentile-bootstrap interval of median(a) / median(b) for independent samples; deterministic in
// `seed`. Empty when either side has fewer than 2 samples.
std::optional<Interval> BootstrapRatioOfMedians(std::span<const double> a,
                                                std::span<const double> b, std::uint64_t seed,
                                                int resamples = 2000, double confidence = 0.95);

double GeometricMean(std::span<const double> positive);

}  // namespace assay
