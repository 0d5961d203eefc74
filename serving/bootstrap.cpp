#include "serving/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/parallel.h"
#include "base/random.h"
#include "serving/distributions.h"
#include "serving/metrics.h"

namespace assay::serving {
namespace {

constexpr std::uint64_t kDrawStream = 41, kRoundStream = 42;

// Weights of one resample.
void DrawWeights(const UnitPlan& plan, std::uint64_t seed, std::uint64_t resample,
                 std::vector<std::int32_t>& weight) {
  std::fill(weight.begin(), weight.end(), 0);
  std::int32_t rounds = 0;
  for (const std::int32_t round : plan.round_of_stratum) rounds = std::max(rounds, round + 1);
  std::vector<std::int32_t> times(static_cast<std::size_t>(rounds), 0);
  for (std::int32_t k = 0; k < rounds; ++k) {
    const double u = Uniform(seed, kRoundStream, resample * 64 + static_cast<std::uint64_t>(k));
    ++times[static_cast<std::size_t>(u * rounds)];
  }
  std::uint64_t counter = resample * (static_cast<std::uint64_t>(plan.units()) + 1);
  for (std::size_t s = 0; s + 1 < plan.strata.size(); ++s) {
    const std::int32_t begin = plan.strata[s], size = plan.strata[s + 1] - begin;
    if (size == 0) continue;
    const std::int32_t block = std::min(plan.block, size);
    const std::int32_t draws = (size + block - 1) / block;
    const double positions = size - block + 1;
    for (std::int32_t k = 0; k < draws; ++k) {
      const double u = Uniform(seed, kDrawStream, counter++);
      const std::int32_t first = begin + static_cast<std::int32_t>(u * positions);
      for (std::int32_t j = 0; j < block; ++j) ++weight[static_cast<std::size_t>(first + j)];
    }
    if (rounds > 0) {
      const std::int32_t factor = times[static_cast<std::size_t>(plan.round_of_stratum[s])];
      for (std::int32_t j = 0; j < size; ++j) weight[static_cast<std::size_t>(begin + j)] *= factor;
    }
  }
}

// One statistic of one arm, prepared: counts per unit below a window around the quantile's rank, so
// that a resample needs one dot product and a scan of the window.
struct Prepared {
  double q = 0;
  std::size_t window_begin = 0, window_end = 0;
  std::vector<std::int32_t> below;  // per unit: values before window_begin
};

class Arm {
 public:
  Arm(const ArmValues& values, const UnitPlan& plan, std::span<const double> statistics) {
    const std::size_t n = values.value.size();
    std::vector<std::uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(),
              [&](std::uint32_t a, std::uint32_t b) { return values.value[a] < values.value[b]; });
    const auto units = static_cast<std::size_t>(plan.units());
    total_.assign(units, 0);
    sum_.assign(units, 0);
    for (const std::uint32_t i : order) {
      value_.push_back(values.value[i]);
      unit_.push_back(values.unit[i]);
      ++total_[static_cast<std::size_t>(values.unit[i])];
      sum_[static_cast<std::size_t>(values.unit[i])] += values.value[i];
    }
    for (const double q : statistics) prepared_.push_back(Prepare(q, plan));
  }

  std::size_t count() const { return value_.size(); }

  double Estimate(double q) const { return q == 0 ? Mean(value_) : QuantileType7(value_, q); }

  // Total weight of a resample; 0 when it holds nothing of this arm.
  std::int64_t Total(std::span<const std::int32_t> weight) const { return Dot(total_, weight); }

  double Resampled(std::size_t statistic, std::span<const std::int32_t> weight,
                   std::int64_t total) const {
    const Prepared& p = prepared_[statistic];
    if (p.q == 0) {
      double sum = 0;
      for (std::size_t u = 0; u < sum_.size(); ++u) sum += weight[u] * sum_[u];
      return sum / static_cast<double>(total);
    }
    // Type 7 on the weighted sample: elements k and k + 1 (0-based) of `total`.
    const double h = static_cast<double>(total - 1) * p.q;
    const auto k = static_cast<std::int64_t>(std::floor(h));
    const std::int64_t last = std::min(k + 1, total - 1);
    double low = 0, high = 0;
    const std::int64_t below = Dot(p.below, weight);
    if (below > k || !Scan(p.window_begin, p.window_end, below, k, last, weight, low, high)) {
      Scan(0, value_.size(), 0, k, last, weight, low, high);
    }
    return low + (h - static_cast<double>(k)) * (high - low);
  }

 private:
  static std::int64_t Dot(const std::vector<std::int32_t>& a,
                          std::span<const std::int32_t> weight) {
    std::int32_t sum = 0;  // at most the number of values times the largest weight: < 2^31
#pragma omp simd reduction(+ : sum)
    for (std::size_t u = 0; u < a.size(); ++u) sum += a[u] * weight[u];
    return sum;
  }

  // Finds the values at weighted positions k and last; false when the window ends before.
  bool Scan(std::size_t begin, std::size_t end, std::int64_t cumulative, std::int64_t k,
            std::int64_t last, std::span<const std::int32_t> weight, double& low,
            double& high) const {
    std::size_t i = begin;
    // Four at a time while the target is far.
    while (i + 4 <= end) {
      const std::int64_t next = weight[static_cast<std::size_t>(unit_[i])] +
                                weight[static_cast<std::size_t>(unit_[i + 1])] +
                                weight[static_cast<std::size_t>(unit_[i + 2])] +
                                weight[static_cast<std::size_t>(unit_[i + 3])];
      if (cumulative + next > k) break;
      cumulative += next;
      i += 4;
    }
    for (; i < end; ++i) {
      cumulative += weight[static_cast<std::size_t>(unit_[i])];
      if (cumulative > k) break;
    }
    if (i >= end) return false;
    low = value_[i];
    while (cumulative <= last && ++i < end) {
      cumulative += weight[static_cast<std::size_t>(unit_[i])];
    }
    if (i >= end) return false;
    high = value_[i];
    return true;
  }

  Prepared Prepare(double q, const UnitPlan& plan) const {
    Prepared p;
    p.q = q;
    if (q == 0 || value_.empty()) return p;
    const auto n = static_cast<double>(value_.size());
    const auto rank = static_cast<std::size_t>(q * (n - 1));
    // Spread of the resampled rank: sqrt(sum over units of (below - q total)^2); blocks of
    // `plan.block` correlated units widen it at most by sqrt(block). Six of them hold nearly all
    // resamples; Resampled falls back to a full scan for the rest.
    std::vector<std::int32_t> below(total_.size(), 0);
    for (std::size_t i = 0; i < rank; ++i) ++below[static_cast<std::size_t>(unit_[i])];
    double variance = 1;
    for (std::size_t u = 0; u < total_.size(); ++u) {
      const double excess = below[u] - q * total_[u];
      variance += excess * excess;
    }
    const double reach = 4 + 6 * std::sqrt(variance * plan.block);
    p.window_begin = static_cast<std::size_t>(std::max(0.0, static_cast<double>(rank) - reach));
    p.window_end = static_cast<std::size_t>(std::min(n, static_cast<double>(rank) + reach));
    p.below.assign(total_.size(), 0);
    for (std::size_t i = 0; i < p.window_begin; ++i) ++p.below[static_cast<std::size_t>(unit_[i])];
    return p;
  }

  std::vector<double> value_;        // sorted
  std::vector<std::int32_t> unit_;   // of the sorted values
  std::vector<std::int32_t> total_;  // values per unit
  std::vector<double> sum_;          // sum of values per unit
  std::vector<Prepared> prepared_;
};

double StandardDeviation(std::span<const double> values) {
  const double mean = Mean(values);
  double sum = 0;
  for (const double v : values) sum += (v - mean) * (v - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

}  // namespace

RatioDraws BootstrapLogRatios(const ArmValues& off, const ArmValues& on, const UnitPlan& plan,
                              std::span<const double> statistics, std::uint64_t seed,
                              int resamples) {
  RatioQuestion question{&off, &on, {statistics.begin(), statistics.end()}};
  return std::move(BootstrapLogRatios({question}, plan, seed, resamples)[0]);
}

std::vector<RatioDraws> BootstrapLogRatios(const std::vector<RatioQuestion>& questions,
                                           const UnitPlan& plan, std::uint64_t seed,
                                           int resamples) {
  std::vector<Arm> off, on;
  std::vector<RatioDraws> results(questions.size());
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const RatioQuestion& question = questions[i];
    off.emplace_back(*question.off, plan, question.statistics);
    on.emplace_back(*question.on, plan, question.statistics);
    results[i].draw.assign(question.statistics.size(),
                           std::vector<double>(static_cast<std::size_t>(resamples)));
    for (const double q : question.statistics) {
      results[i].estimate.push_back(std::log(on[i].Estimate(q) / off[i].Estimate(q)));
    }
  }
  constexpr std::int64_t kGrain = 64;
  ParallelRanges(resamples, kGrain, 0, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int32_t> weight(static_cast<std::size_t>(plan.units()));
    for (std::int64_t r = begin; r < end; ++r) {
      DrawWeights(plan, seed, static_cast<std::uint64_t>(r), weight);
      for (std::size_t i = 0; i < questions.size(); ++i) {
        const std::int64_t total_off = off[i].Total(weight), total_on = on[i].Total(weight);
        for (std::size_t s = 0; s < results[i].draw.size(); ++s) {
          // A resample without any value of one arm (tiny inputs) says nothing: the estimate
          // stands.
          results[i].draw[s][static_cast<std::size_t>(r)] =
              total_off == 0 || total_on == 0 ? results[i].estimate[s]
                                              : std::log(on[i].Resampled(s, weight, total_on) /
                                                         off[i].Resampled(s, weight, total_off));
        }
      }
    }
  });
  for (RatioDraws& result : results) {
    for (const std::vector<double>& draws : result.draw) {
      result.standard_error.push_back(StandardDeviation(draws));
    }
  }
  return results;
}

double CriticalValue(double units, double confidence) {
  const double tail = 0.5 * (1 + confidence);
  if (units < 2) return 1e6;
  return std::sqrt(units / (units - 1)) * StudentQuantile(tail, units - 1);
}

Interval ExpandedPercentileInterval(std::span<const double> draws, double units,
                                    double confidence) {
  const std::vector<double> sorted = Sorted(draws);
  const double level = NormalCdf(-CriticalValue(units, confidence));
  return {QuantileType7(sorted, level), QuantileType7(sorted, 1 - level)};
}

double BootstrapP(std::span<const double> draws, double units) {
  double below = 0, equal = 0;
  for (const double d : draws) {
    below += d < 0 ? 1 : 0;
    equal += d == 0 ? 1 : 0;
  }
  const double n = static_cast<double>(draws.size());
  if (equal == n) return 1;
  // Smaller tail, kept off 0 by one pseudo-draw, back through the expansion of the interval.
  const double tail = (std::min(below, n - below - equal) + 0.5 * equal + 1) / (n + 2);
  const double z = NormalQuantile(std::min(tail, 0.5));
  return 2 * StudentCdf(z / std::sqrt(units / (units - 1)), units - 1);
}

std::vector<Interval> SimultaneousBand(const RatioDraws& draws, double units) {
  const std::size_t resamples = draws.draw.empty() ? 0 : draws.draw[0].size();
  std::vector<double> largest(resamples, 0.0);
  for (std::size_t s = 0; s < draws.draw.size(); ++s) {
    if (draws.standard_error[s] <= 0) continue;
    for (std::size_t r = 0; r < resamples; ++r) {
      largest[r] = std::max(
          largest[r], std::abs(draws.draw[s][r] - draws.estimate[s]) / draws.standard_error[s]);
    }
  }
  const double expansion = CriticalValue(units) / NormalQuantile(0.975);
  const double critical = expansion * QuantileType7(Sorted(largest), 0.95);
  std::vector<Interval> band;
  for (std::size_t s = 0; s < draws.draw.size(); ++s) {
    const double half = critical * draws.standard_error[s];
    band.push_back({draws.estimate[s] - half, draws.estimate[s] + half});
  }
  return band;
}

}  // namespace assay::serving
