// Swapped arms against written-out swaps, and the intervals made from them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/random.h"
#include "serving/metrics.h"
#include "serving/ratio_interval.h"
#include "serving/swaps.h"

namespace assay::serving {
namespace {

UnitPlan Clusters(std::int32_t count) {
  UnitPlan plan;
  plan.strata = {0, count};
  plan.effective = count;
  plan.clusters = count;
  return plan;
}

struct Pairs {
  ArmValues off, on;
};

// Two arms that share the difficulty of a conversation.
Pairs RandomPairs(int units, int per_unit, std::uint64_t seed, double speedup = 1) {
  Pairs pairs;
  for (int i = 0; i < units * per_unit; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    const std::int32_t unit = i / per_unit;
    const double shared = 0.3 * UnitNormal(seed, 1, static_cast<std::uint64_t>(unit));
    pairs.off.value.push_back(std::exp(shared + 0.1 * UnitNormal(seed, 2, index)));
    pairs.on.value.push_back(std::exp(shared + 0.1 * UnitNormal(seed, 3, index)) / speedup);
    pairs.off.unit.push_back(unit);
  }
  pairs.on.unit = pairs.off.unit;
  return pairs;
}

RatioInterval IntervalOf(const Pairs& pairs, const UnitPlan& plan, double q, bool paired = true,
                         int draws = 1000) {
  return RatioIntervals({{&pairs.off, &pairs.on, {q}}}, plan, paired, 7, draws)[0][0];
}

// The ratio of arms whose swaps are written out: bit u of `swapped` for unit u < 32, the others
// stay.
double WrittenOut(const Pairs& pairs, unsigned swapped, double q, double theta) {
  std::vector<double> arms[2];
  for (std::size_t i = 0; i < pairs.off.value.size(); ++i) {
    const auto unit = pairs.off.unit[i];
    const unsigned swap = unit < 32 ? swapped >> unit & 1 : 0;
    arms[swap].push_back(pairs.off.value[i]);
    arms[1 - swap].push_back(pairs.on.value[i] * std::exp(-theta));
  }
  return std::log(CostStatistic(arms[1], q) / CostStatistic(arms[0], q));
}

// Every draw must be one of the possible swaps, and all of them must occur.
void ExpectWrittenOutSwaps(const Pairs& pairs, int units, double q, double theta) {
  const UnitPlan plan = Clusters(units);
  const PairedArms arms(pairs.off, pairs.on, plan);
  std::vector<double> possible;
  for (unsigned swapped = 0; swapped < 1u << units; ++swapped) {
    possible.push_back(WrittenOut(pairs, swapped, q, theta));
  }
  const std::vector<SwappedRatio> ratio{{arms, plan, q, theta}};
  // Different swaps may give the same ratio: what occurs is counted by value.
  std::sort(possible.begin(), possible.end());
  const auto same = [](double x, double y) { return std::abs(x - y) < 1e-12; };
  possible.erase(std::unique(possible.begin(), possible.end(), same), possible.end());
  const std::vector<std::vector<double>> draws = SwapDraws(ratio, plan, 3, 400);
  std::set<std::size_t> seen;
  for (const double draw : draws[0]) {
    const auto match = std::find_if(possible.begin(), possible.end(),
                                    [&](double value) { return same(value, draw); });
    ASSERT_NE(match, possible.end()) << q << " " << theta << " " << draw;
    seen.insert(static_cast<std::size_t>(match - possible.begin()));
  }
  EXPECT_EQ(seen.size(), possible.size()) << q << " " << theta;
}

TEST(Swaps, EqualWrittenOutSwaps) {
  const Pairs pairs = RandomPairs(4, 25, 1);
  for (const double q : {0.0, 0.1, 0.5, 0.9, 0.975}) {
    for (const double theta : {0.0, 0.4, -1.5}) ExpectWrittenOutSwaps(pairs, 4, q, theta);
  }
}

// Each arm has the same number of values of both units below its median, in opposite order:
// swapping one unit moves the median far outside the window that those numbers suggest.
TEST(Swaps, QuantilesOutsideTheWindow) {
  Pairs pairs;
  for (int i = 0; i < 200; ++i) {
    const int unit = i / 100, j = i % 100;
    const double low = j < 50 ? j : 100 + j;  // unit 0 in the off arm, unit 1 in the on arm
    const double high = j < 50 ? 50 + j : 150 + j;
    pairs.off.value.push_back(1 + (unit == 0 ? low : high));
    pairs.on.value.push_back(1.25 + (unit == 0 ? high : low));
    pairs.off.unit.push_back(unit);
  }
  pairs.on.unit = pairs.off.unit;
  ExpectWrittenOutSwaps(pairs, 2, 0.5, 0);
}

TEST(Swaps, BlocksAreSwappedWhole) {
  UnitPlan plan = Clusters(95);
  plan.strata = {0, 40, 95};  // two rounds
  plan.block = 10;
  std::vector<std::int32_t> swapped;
  std::set<int> phases;
  int ones = 0;
  for (std::uint64_t draw = 0; draw < 500; ++draw) {
    DrawSwaps(plan, 1, draw, swapped);
    for (const auto& [begin, end] : {std::pair(0, 40), {40, 95}}) {
      std::set<int> cuts;  // positions modulo the block where the value changes
      for (int u = begin; u < end; ++u) {
        ones += swapped[static_cast<std::size_t>(u)];
        if (u > begin &&
            swapped[static_cast<std::size_t>(u)] != swapped[static_cast<std::size_t>(u - 1)]) {
          cuts.insert((u - begin) % 10);
        }
      }
      ASSERT_LE(cuts.size(), 1u);
      phases.insert(cuts.begin(), cuts.end());
    }
  }
  EXPECT_EQ(phases.size(), 10u);
  // 500 draws of about 10.5 blocks: the share has a standard deviation of 0.007.
  EXPECT_NEAR(ones / (500.0 * 95), 0.5, 0.03);
}

// Both ends are where the test turns: 5 % of the swaps move the ratio further than the estimate.
TEST(RatioInterval, EndsAreWhereTheTestTurns) {
  const Pairs pairs = RandomPairs(30, 20, 2, 1.2);
  const UnitPlan plan = Clusters(30);
  const PairedArms arms(pairs.off, pairs.on, plan);
  for (const double q : {0.0, 0.5, 0.9}) {
    const RatioInterval r = IntervalOf(pairs, plan, q, true, 4000);
    ASSERT_TRUE(r.from_swaps);
    EXPECT_NEAR(r.estimate, WrittenOut(pairs, 0, q, 0), 1e-13);
    const std::vector<SwappedRatio> ratios{{arms, plan, q, r.interval.low},
                                           {arms, plan, q, r.interval.high}};
    const double reach[2] = {r.estimate - r.interval.low, r.interval.high - r.estimate};
    const auto draws = SwapDraws(ratios, plan, 99, 4000);  // other swaps than the interval's
    for (std::size_t side = 0; side < 2; ++side) {
      const auto further = std::count_if(draws[side].begin(), draws[side].end(),
                                         [&](double d) { return std::abs(d) >= reach[side]; });
      EXPECT_NEAR(static_cast<double>(further) / 4000, 0.05, 0.015) << q;
    }
    EXPECT_GT(r.interval_90.low, r.interval.low);
    EXPECT_LT(r.interval_90.high, r.interval.high);
    // What plan and the minimum detectable effect are made of is this interval.
    EXPECT_NEAR(CriticalValue(30) * r.standard_error, 0.5 * (reach[0] + reach[1]), 1e-12);
  }
}

// A mean of many units: the swap test is the t test.
TEST(RatioInterval, MeansAgreeWithStudent) {
  const Pairs pairs = RandomPairs(200, 5, 3);
  const RatioInterval r = IntervalOf(pairs, Clusters(200), 0, true, 20000);
  const PairedArms arms(pairs.off, pairs.on, Clusters(200));
  const double ratio = std::exp(r.estimate), mean = 0.5 * (1 + ratio);
  double squares = 0, total = 0;
  for (std::size_t u = 0; u < 200; ++u) {
    squares += std::pow(arms.sum[1][u] - ratio * arms.sum[0][u], 2);
    total += arms.sum[0][u];
  }
  const double standard_error = std::sqrt(squares * 200 / 199) / (total * mean);
  EXPECT_NEAR(r.standard_error / standard_error, 1, 0.04);
}

TEST(RatioInterval, PAgreesWithTheInterval) {
  int significant = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Pairs pairs = RandomPairs(20, 15, 100 + seed, 1.03);
    for (const double q : {0.0, 0.5, 0.9}) {
      const RatioInterval r = IntervalOf(pairs, Clusters(20), q, true, 400);
      if (!r.from_swaps) continue;
      const bool excluded = r.interval.low > 0 || r.interval.high < 0;
      significant += excluded ? 1 : 0;
      EXPECT_EQ(excluded, r.p < 0.05) << seed << " " << q << " " << r.p;
    }
  }
  EXPECT_GT(significant, 20);
  EXPECT_LT(significant, 160);
}

TEST(RatioInterval, IdenticalArms) {
  Pairs pairs = RandomPairs(30, 20, 4);
  pairs.on = pairs.off;
  for (const double q : {0.0, 0.5, 0.9}) {
    const RatioInterval r = IntervalOf(pairs, Clusters(30), q);
    EXPECT_TRUE(r.from_swaps);
    for (const double end : {r.estimate, r.interval.low, r.interval.high, r.interval_90.low,
                             r.interval_90.high, r.standard_error}) {
      EXPECT_EQ(end, 0);
    }
    EXPECT_EQ(r.p, 1);
  }
}

TEST(RatioInterval, MirrorAndScale) {
  const Pairs pairs = RandomPairs(30, 20, 5, 1.1);
  Pairs mirror{pairs.on, pairs.off}, scaled = pairs;
  for (double& v : scaled.off.value) v *= 8;
  for (double& v : scaled.on.value) v *= 8;
  for (const double q : {0.0, 0.5, 0.9}) {
    const RatioInterval r = IntervalOf(pairs, Clusters(30), q);
    const RatioInterval m = IntervalOf(mirror, Clusters(30), q);
    EXPECT_NEAR(r.interval.low, -m.interval.high, 1e-12);
    EXPECT_NEAR(r.interval.high, -m.interval.low, 1e-12);
    EXPECT_EQ(r.p, m.p);
    const RatioInterval s = IntervalOf(scaled, Clusters(30), q);
    EXPECT_EQ(s.interval.low, r.interval.low);
    EXPECT_EQ(s.interval.high, r.interval.high);
  }
}

// Arms that differ by more than a factor are no copies of each other: quantiles are resampled.
TEST(RatioInterval, WhereSwapsDoNotAnswer) {
  const Pairs pairs = RandomPairs(40, 20, 6, 1.3);
  const UnitPlan plan = Clusters(40);
  EXPECT_TRUE(ShiftIsFlat(pairs.off, pairs.on, plan, {0.9, 0.99}, 1, 500));
  EXPECT_TRUE(IntervalOf(pairs, plan, 0.9).from_swaps);
  EXPECT_FALSE(IntervalOf(pairs, plan, 0.9, false).from_swaps);
  UnitPlan rounds = plan;
  rounds.round_of_stratum = {0};
  EXPECT_FALSE(IntervalOf(pairs, rounds, 0.9).from_swaps);
  UnitPlan few = plan;
  few.effective = 9;
  EXPECT_FALSE(IntervalOf(pairs, few, 0.9).from_swaps);

  Pairs tail = pairs;  // values above the third quartile fall back to the old time
  const double bound = CostStatistic(tail.on.value, 0.75);
  for (double& v : tail.on.value) v *= v > bound ? 1.3 : 1;
  EXPECT_FALSE(ShiftIsFlat(tail.off, tail.on, plan, {0.9}, 1, 500));
  EXPECT_FALSE(IntervalOf(tail, plan, 0.9).from_swaps);
  EXPECT_FALSE(IntervalOf(tail, plan, 0.5).from_swaps);
  EXPECT_TRUE(IntervalOf(tail, plan, 0).from_swaps);  // a mean needs no shape
  // Resampled and swapped statistics of one question keep their places.
  const std::vector<RatioInterval> mixed =
      RatioIntervals({{&tail.off, &tail.on, {0.9, 0, 0.5}}}, plan, true, 7, 400)[0];
  for (const auto& [index, q] : {std::pair(0, 0.9), {1, 0.0}, {2, 0.5}}) {
    EXPECT_NEAR(mixed[static_cast<std::size_t>(index)].estimate, WrittenOut(tail, 0, q, 0), 1e-12);
  }
}

TEST(RatioInterval, FlatShiftsAreRejectedAtTheNominalLevel) {
  constexpr int kTrials = 400;
  int rejected = 0;
  for (std::uint64_t seed = 0; seed < kTrials; ++seed) {
    const Pairs pairs = RandomPairs(20, 15, 1000 + seed, 1.5);
    rejected += ShiftIsFlat(pairs.off, pairs.on, Clusters(20), {0.9}, seed, 200) ? 0 : 1;
  }
  EXPECT_NEAR(rejected / static_cast<double>(kTrials), 0.02, 2 * std::sqrt(0.02 * 0.98 / kTrials));
}

}  // namespace
}  // namespace assay::serving
