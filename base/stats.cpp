#include "base/stats.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "base/random.h"

namespace assay {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double MedianSorted(std::span<const double> sorted) {
  const std::size_t n = sorted.size();
  if (n == 0) return kNaN;
  return n % 2 == 1 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
}

// log of the binomial probability C(n,i) q^i (1-q)^(n-i).
double LogBinomial(double n, double i, double q) {
  return std::lgamma(n + 1) - std::lgamma(i + 1) - std::lgamma(n - i + 1) + i * std::log(q) +
         (n - i) * std::log1p(-q);
}

// The largest k >= 0 with sum_{i<k} C(n,i) q^i (1-q)^(n-i) <= tail. Goes down from the mode by the
// ratio of neighbouring terms until they vanish, then sums from the small end: O(sqrt(n)) steps.
std::int64_t ComputeLowerTail(std::int64_t n, double q, double tail) {
  constexpr double kVanishing = 1e-25;
  std::int64_t i = std::min(static_cast<std::int64_t>(static_cast<double>(n + 1) * q), n);
  std::vector<double> terms = {
      std::exp(LogBinomial(static_cast<double>(n), static_cast<double>(i), q))};
  for (; i > 0 && terms.back() > kVanishing; --i) {
    terms.push_back(terms.back() * static_cast<double>(i) / static_cast<double>(n - i + 1) *
                    (1 - q) / q);
  }
  double sum = 0;
  for (; !terms.empty(); terms.pop_back(), ++i) {
    sum += terms.back();
    if (sum > tail) break;
  }
  return i;
}

// Kept by its arguments: the series of a run tend to have few different lengths.
std::int64_t LowerTail(std::int64_t n, double q, double tail) {
  constexpr std::size_t kMost = 4096;
  thread_local std::map<std::tuple<std::int64_t, double, double>, std::int64_t> known;
  const auto found = known.find({n, q, tail});
  if (found != known.end()) return found->second;
  if (known.size() >= kMost) known.clear();
  return known[{n, q, tail}] = ComputeLowerTail(n, q, tail);
}

double ResampledMedian(std::span<const double> samples, std::uint64_t seed, std::uint64_t stream,
                       std::uint64_t resample, std::vector<double>& scratch) {
  scratch.resize(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double u = Uniform(seed, stream, resample * samples.size() + i);
    scratch[i] = samples[static_cast<std::size_t>(u * static_cast<double>(samples.size()))];
  }
  std::sort(scratch.begin(), scratch.end());
  return MedianSorted(scratch);
}

}  // namespace

std::vector<double> Sorted(std::span<const double> samples) {
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

double QuantileSorted(std::span<const double> sorted, double q) {
  if (sorted.empty()) return kNaN;
  const double n = static_cast<double>(sorted.size());
  const double rank = std::clamp(std::ceil(q * n), 1.0, n);
  return sorted[static_cast<std::size_t>(rank) - 1];
}

double Median(std::span<const double> samples) { return MedianSorted(Sorted(samples)); }

double Mean(std::span<const double> samples) {
  if (samples.empty()) return kNaN;
  double sum = 0;
  for (double x : samples) sum += x;
  return sum / static_cast<double>(samples.size());
}

double MedianAbsoluteDeviation(std::span<const double> samples) {
  const double center = Median(samples);
  std::vector<double> deviations;
  for (double x : samples) deviations.push_back(std::abs(x - center));
  return Median(deviations);
}

std::optional<Interval> OrderStatisticInterval(std::span<const double> sorted, double q,
                                               double confidence) {
  const auto n = static_cast<std::int64_t>(sorted.size());
  if (n < 2 || q <= 0 || q >= 1) return std::nullopt;
  // The number of samples below the quantile is binomial(n, q). Rank l fails to lie below it with
  // P(count < l), rank u to lie above it with P(count >= u) = P(n - count <= n - u).
  const double tail = 0.5 * (1 - confidence);
  const std::int64_t low = LowerTail(n, q, tail);
  const std::int64_t high = n + 1 - LowerTail(n, 1 - q, tail);
  if (low < 1 || high > n) return std::nullopt;
  return Interval{sorted[static_cast<std::size_t>(low - 1)],
                  sorted[static_cast<std::size_t>(high - 1)]};
}

std::optional<Interval> BootstrapRatioOfMedians(std::span<const double> a,
                                                std::span<const double> b, std::uint64_t seed,
                                                int resamples, double confidence) {
  if (a.size() < 2 || b.size() < 2) return std::nullopt;
  std::vector<double> ratios, scratch;
  for (int r = 0; r < resamples; ++r) {
    const auto resample = static_cast<std::uint64_t>(r);
    const double top = ResampledMedian(a, seed, 0, resample, scratch);
    const double bottom = ResampledMedian(b, seed, 1, resample, scratch);
    ratios.push_back(top / bottom);
  }
  std::sort(ratios.begin(), ratios.end());
  const double tail = 0.5 * (1 - confidence);
  return Interval{QuantileSorted(ratios, tail), QuantileSorted(ratios, 1 - tail)};
}

double GeometricMean(std::span<const double> positive) {
  if (positive.empty()) return kNaN;
  double sum = 0;
  for (double x : positive) sum += std::log(x);
  return std::exp(sum / static_cast<double>(positive.size()));
}

}  // namespace assay
