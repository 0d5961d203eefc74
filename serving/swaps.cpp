#include "serving/swaps.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/parallel.h"
#include "base/random.h"
#include "serving/metrics.h"

namespace assay::serving {
namespace {

constexpr std::uint64_t kSwapStream = 43, kPhaseStream = 44;

}  // namespace

PairedArms::PairedArms(const ArmValues& off, const ArmValues& on, const UnitPlan& plan) {
  const ArmValues* const arms[2] = {&off, &on};
  for (int arm = 0; arm < 2; ++arm) {
    std::vector<std::pair<double, std::int32_t>> order;
    order.reserve(arms[arm]->value.size());
    sum[arm].assign(static_cast<std::size_t>(plan.units()), 0);
    for (std::size_t i = 0; i < arms[arm]->value.size(); ++i) {
      order.emplace_back(arms[arm]->value[i], arms[arm]->unit[i]);
    }
    std::sort(order.begin(), order.end());
    for (const auto& [v, u] : order) {
      value[arm].push_back(v);
      unit[arm].push_back(u);
      sum[arm][static_cast<std::size_t>(u)] += v;
    }
  }
}

double PairedArms::LogRatio(double q) const {
  if (q == 0) return std::log(Mean(value[1]) / Mean(value[0]));
  return std::log(QuantileType7(value[1], q) / QuantileType7(value[0], q));
}

void DrawSwaps(const UnitPlan& plan, std::uint64_t seed, std::uint64_t draw,
               std::vector<std::int32_t>& swapped) {
  const auto units = static_cast<std::uint64_t>(plan.units());
  swapped.resize(units);
  // One bit per block; with single units blocks are units and the phase is 0.
  const auto block = static_cast<std::uint64_t>(std::max(plan.block, 1));
  const std::uint64_t words = (units + 63) / 64 + 1;
  for (std::size_t s = 0; s + 1 < plan.strata.size(); ++s) {
    const auto begin = static_cast<std::uint64_t>(plan.strata[s]);
    const auto end = static_cast<std::uint64_t>(plan.strata[s + 1]);
    std::uint64_t left = block;  // units of the current block still to come
    if (block > 1) {
      left = 1 + Mix64(seed, kPhaseStream, draw * plan.strata.size() + s) % block;
    }
    std::uint64_t bit = begin;  // no bit is used twice: blocks are no more than units
    std::uint64_t word = Mix64(seed, kSwapStream, draw * words + bit / 64);
    for (std::uint64_t u = begin; u < end; ++u) {
      swapped[u] = static_cast<std::int32_t>(word >> (bit % 64) & 1);
      if (--left > 0) continue;
      left = block;
      if (++bit % 64 == 0) word = Mix64(seed, kSwapStream, draw * words + bit / 64);
    }
  }
}

SwappedRatio::SwappedRatio(const PairedArms& arms, const UnitPlan& plan, double q, double theta)
    : arms_(&arms), q_(q), scale_(std::exp(-theta)) {
  if (q == 0) {
    for (std::size_t u = 0; u < arms.sum[0].size(); ++u) {
      const double off = arms.sum[0][u], on = arms.sum[1][u] * scale_;
      sum_gain_.push_back(on - off);
      sum_off_ += off;
      sum_both_ += on;
    }
    sum_both_ += sum_off_;
    return;
  }
  rank_ = static_cast<std::int64_t>(std::floor(q * static_cast<double>(arms.count() - 1)));
  // Spread of the number of values below the quantile under swaps: half of each unit's difference
  // of counts, in quadrature; blocks of equal sign widen it at most by sqrt(block). Six of them
  // hold nearly all draws; At falls back to everything for the rest.
  std::vector<std::int32_t> difference(arms.sum[0].size(), 0);
  for (std::size_t i = 0; i < static_cast<std::size_t>(rank_); ++i) {
    --difference[static_cast<std::size_t>(arms.unit[0][i])];
    ++difference[static_cast<std::size_t>(arms.unit[1][i])];
  }
  double squares = 1;
  for (const double d : difference) squares += d * d;
  window_ = MakeWindow(static_cast<std::int64_t>(4 + 3 * std::sqrt(squares * plan.block)));
}

// `reach` values of each arm beyond the quantiles of both arms.
SwappedRatio::Window SwappedRatio::MakeWindow(std::int64_t reach) const {
  const std::vector<double>*value = arms_->value, &off = value[0], &on = value[1];
  const std::int64_t last_index = arms_->count() - 1;
  const auto low_index = static_cast<std::size_t>(std::max<std::int64_t>(0, rank_ - reach));
  const auto high_index =
      static_cast<std::size_t>(std::min<std::int64_t>(last_index, rank_ + 1 + reach));
  const double low = std::min(off[low_index], on[low_index] * scale_);
  const double high = std::max(off[high_index], on[high_index] * scale_);
  Window w;
  w.gain.assign(arms_->sum[0].size(), 0);
  std::size_t at[2], end[2];
  for (int arm = 0; arm < 2; ++arm) {
    const double scale = arm == 0 ? 1 : scale_;
    const auto below = [scale](double v, double bound) { return v * scale < bound; };
    const auto above = [scale](double bound, double v) { return bound < v * scale; };
    at[arm] = static_cast<std::size_t>(
        std::lower_bound(value[arm].begin(), value[arm].end(), low, below) - value[arm].begin());
    end[arm] = static_cast<std::size_t>(
        std::upper_bound(value[arm].begin(), value[arm].end(), high, above) - value[arm].begin());
    w.below[arm] = static_cast<std::int64_t>(at[arm]);
    for (std::size_t i = 0; i < at[arm]; ++i) {
      w.gain[static_cast<std::size_t>(arms_->unit[arm][i])] += arm == 0 ? -1 : 1;
    }
  }
  while (at[0] < end[0] || at[1] < end[1]) {
    const bool take_on = at[0] >= end[0] || (at[1] < end[1] && on[at[1]] * scale_ < off[at[0]]);
    const std::size_t i = at[take_on ? 1 : 0]++;
    w.value.push_back(take_on ? on[i] * scale_ : off[i]);
    w.unit.push_back(arms_->unit[take_on ? 1 : 0][i]);
    w.arm.push_back(take_on ? 1 : 0);
  }
  return w;
}

// False when a quantile of the swapped arms lies outside the window.
bool SwappedRatio::Scan(const Window& w, std::span<const std::int32_t> swapped,
                        double& log_ratio) const {
  std::int32_t gain = 0;
#pragma omp simd reduction(+ : gain)
  for (std::size_t u = 0; u < w.gain.size(); ++u) gain += w.gain[u] * swapped[u];
  // Values below the current position, by the arm they belong to after the swaps.
  std::int64_t below[2] = {w.below[0] + gain, w.below[1] - gain};
  if (below[0] > rank_ || below[1] > rank_) return false;
  const auto arm_of = [&](std::size_t i) {
    return w.arm[i] ^ swapped[static_cast<std::size_t>(w.unit[i])];
  };
  std::size_t i = 0;
  // Four at a time while both targets are far.
  for (; i + 4 <= w.value.size(); i += 4) {
    const std::int64_t on = arm_of(i) + arm_of(i + 1) + arm_of(i + 2) + arm_of(i + 3);
    if (below[1] + on > rank_ || below[0] + 4 - on > rank_) break;
    below[1] += on;
    below[0] += 4 - on;
  }
  // Type 7: elements rank_ and rank_ + 1 (0-based) of each arm.
  double low[2] = {0, 0}, high[2] = {0, 0};
  for (int found = 0; found < 2; ++i) {
    if (i >= w.value.size()) return false;
    const auto arm = static_cast<std::size_t>(arm_of(i));
    const std::int64_t position = below[arm]++;
    if (position == rank_) low[arm] = w.value[i];
    if (position == rank_ + 1) {
      high[arm] = w.value[i];
      ++found;
    }
  }
  const double fraction = q_ * static_cast<double>(arms_->count() - 1) - static_cast<double>(rank_);
  log_ratio =
      std::log((low[1] + fraction * (high[1] - low[1])) / (low[0] + fraction * (high[0] - low[0])));
  return true;
}

double SwappedRatio::At(std::span<const std::int32_t> swapped) const {
  if (q_ == 0) {
    double off = sum_off_;
    for (std::size_t u = 0; u < sum_gain_.size(); ++u) off += swapped[u] * sum_gain_[u];
    return std::log((sum_both_ - off) / off);
  }
  double log_ratio = 0;
  if (!Scan(window_, swapped, log_ratio)) Scan(MakeWindow(arms_->count()), swapped, log_ratio);
  return log_ratio;
}

std::vector<std::vector<double>> SwapDraws(const std::vector<SwappedRatio>& ratios,
                                           const UnitPlan& plan, std::uint64_t seed, int draws) {
  std::vector<std::vector<double>> result(ratios.size(),
                                          std::vector<double>(static_cast<std::size_t>(draws)));
  constexpr std::int64_t kGrain = 64;
  ParallelRanges(draws, kGrain, 0, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int32_t> swapped;
    for (std::int64_t draw = begin; draw < end; ++draw) {
      DrawSwaps(plan, seed, static_cast<std::uint64_t>(draw), swapped);
      for (std::size_t i = 0; i < ratios.size(); ++i) {
        result[i][static_cast<std::size_t>(draw)] = ratios[i].At(swapped);
      }
    }
  });
  return result;
}

}  // namespace assay::serving
