// The statistics against closed forms, exhaustive enumeration and published tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/random.h"
#include "serving/bootstrap.h"
#include "serving/distributions.h"
#include "serving/metrics.h"
#include "serving/rank_tests.h"

namespace assay::serving {
namespace {

std::vector<double> Draws(std::size_t n, std::uint64_t seed, double grid = 0) {
  std::vector<double> values;
  for (std::size_t i = 0; i < n; ++i) {
    double x = UnitNormal(seed, 0, i);
    if (grid > 0) x = std::round(x / grid) * grid;  // many ties
    values.push_back(x);
  }
  return values;
}

TEST(Distributions, TablesOfNormalAndStudent) {
  EXPECT_NEAR(NormalQuantile(0.975), 1.959963984540054, 1e-12);
  EXPECT_NEAR(NormalCdf(-1.0), 0.15865525393145707, 1e-15);
  const double table[] = {12.7062047364, 4.30265272975, 3.18244630528, 2.7764451052};
  for (int k = 2; k <= 5; ++k) {
    EXPECT_NEAR(StudentQuantile(0.975, k - 1), table[k - 2], 1e-8) << k;
  }
  for (const double df : {1.0, 2.0, 5.0, 30.0, 1e5}) {
    for (const double p : {1e-4, 0.025, 0.3, 0.5, 0.9, 0.999}) {
      EXPECT_NEAR(StudentCdf(StudentQuantile(p, df), df), p, 1e-10);
    }
  }
  EXPECT_NEAR(StudentQuantile(0.975, 1e7), 1.959964, 1e-5);
}

TEST(Quantiles, TypeSevenAndRanks) {
  const double x[] = {1, 2, 4, 8};
  EXPECT_DOUBLE_EQ(QuantileType7(x, 0.5), 3);
  EXPECT_DOUBLE_EQ(QuantileType7(x, 0.9), 4 + 0.7 * 4);
  EXPECT_DOUBLE_EQ(QuantileType7(x, 0), 1);
  EXPECT_DOUBLE_EQ(QuantileType7(x, 1), 8);
  EXPECT_TRUE(std::isnan(QuantileType7({}, 0.5)));
  const std::pair<double, std::array<std::int64_t, 2>> smallest[] = {
      {0.9, {36, 29}}, {0.95, {72, 59}}, {0.99, {368, 299}}, {0.999, {3688, 2995}}};
  for (const auto& [q, n] : smallest) {
    EXPECT_EQ(SmallestCount(q), n[0]) << q;
    EXPECT_EQ(SmallestCountOneSided(q), n[1]) << q;
    EXPECT_TRUE(QuantileRanks(n[0], q).has_value()) << q;
    EXPECT_FALSE(QuantileRanks(n[0] - 1, q).has_value()) << q;
  }
}

// Counting Walsh averages must select exactly what listing and sorting them selects.
TEST(RankTests, HodgesLehmannMatchesEnumeration) {
  for (const std::size_t n : {1u, 2u, 3u, 7u, 24u, 25u, 26u, 101u}) {
    for (const double grid : {0.0, 0.5}) {
      const std::vector<double> d = Draws(n, 17 + n, grid);
      std::vector<double> walsh;
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = i; j < n; ++j) walsh.push_back(0.5 * (d[i] + d[j]));
      }
      std::sort(walsh.begin(), walsh.end());
      const auto result = PairedShift(d);
      ASSERT_TRUE(result.has_value());
      EXPECT_DOUBLE_EQ(result->center, Median(walsh)) << n;
      if (std::isfinite(result->interval.low)) {
        EXPECT_TRUE(std::binary_search(walsh.begin(), walsh.end(), result->interval.low));
        EXPECT_TRUE(std::binary_search(walsh.begin(), walsh.end(), result->interval.high));
      } else {
        EXPECT_LT(n, 6u);  // no 95 % interval below six pairs
      }
    }
  }
}

// Hollander and Wolfe, table A.4: n = 10 has its 95 % interval between the 9th smallest and the 9th
// largest Walsh average.
TEST(RankTests, WilcoxonCutOfTheTable) {
  std::vector<double> d;
  for (int i = 0; i < 10; ++i) d.push_back(std::pow(2.0, i));
  std::vector<double> walsh;
  for (std::size_t i = 0; i < 10; ++i) {
    for (std::size_t j = i; j < 10; ++j) walsh.push_back(0.5 * (d[i] + d[j]));
  }
  std::sort(walsh.begin(), walsh.end());
  const auto result = PairedShift(d);
  EXPECT_EQ(result->interval.low, walsh[8]);
  EXPECT_EQ(result->interval.high, walsh[55 - 9]);
}

TEST(RankTests, MannWhitneyMatchesEnumeration) {
  for (const double grid : {0.0, 0.7}) {
    const std::vector<double> x = Draws(23, 5, grid);
    std::vector<double> y = Draws(31, 6, grid);
    for (double& v : y) v += 0.4;
    double u = 0;
    std::vector<double> differences;
    for (const double a : x) {
      for (const double b : y) {
        u += b > a ? 1 : b == a ? 0.5 : 0;
        differences.push_back(b - a);
      }
    }
    const auto result = CompareUnpaired(x, y);
    EXPECT_DOUBLE_EQ(result->u, u);
    EXPECT_DOUBLE_EQ(result->superiority, u / (23 * 31));
    EXPECT_NEAR(result->shift, Median(differences), 1e-12);
  }
  const std::vector<double> same(20, 3.0);
  EXPECT_EQ(CompareUnpaired(same, same)->p, 1);
  EXPECT_FALSE(CompareUnpaired(same, {}).has_value());
}

TEST(RankTests, BenjaminiHochbergExample) {
  // Benjamini and Hochberg (1995), section 4: four of fifteen are rejected at 5 %.
  const double p[] = {.0001, .0004, .0019, .0095, .0201, .0278, .0298, .0344,
                      .0459, .3240, .4262, .5719, .6528, .7590, 1.000};
  const std::vector<double> adjusted = BenjaminiHochberg(p);
  EXPECT_EQ(std::count_if(adjusted.begin(), adjusted.end(), [](double q) { return q <= 0.05; }), 4);
  EXPECT_NEAR(adjusted[0], 0.0015, 1e-12);
  EXPECT_TRUE(std::is_sorted(adjusted.begin(), adjusted.end()));
}

TEST(RankTests, AutocorrelationOfAr1) {
  std::vector<double> series{0};
  for (std::size_t i = 1; i < 20000; ++i) {
    series.push_back(0.6 * series.back() + UnitNormal(3, 0, i));
  }
  EXPECT_NEAR(Autocorrelation(series, 1), 0.6, 0.02);
  // (1 + rho) / (1 - rho) = 4.
  EXPECT_NEAR(IntegratedAutocorrelationTime(series), 4, 0.5);
}

TEST(RankTests, MserFindsASlowStart) {
  std::vector<double> series = Draws(400, 9);
  for (std::size_t i = 0; i < 40; ++i) series[i] += 12;
  EXPECT_EQ(MserTruncation(series), 40);
}

ArmValues Arm(const std::vector<double>& values, int per_unit) {
  ArmValues arm;
  arm.value = values;
  for (std::size_t i = 0; i < values.size(); ++i) {
    arm.unit.push_back(static_cast<std::int32_t>(i) / per_unit);
  }
  return arm;
}

UnitPlan Clusters(std::int32_t count) {
  UnitPlan plan;
  plan.strata = {0, count};
  plan.effective = count;
  plan.clusters = count;
  return plan;
}

std::vector<double> Exponentials(std::size_t n, std::uint64_t seed) {
  std::vector<double> values;
  for (std::size_t i = 0; i < n; ++i) values.push_back(std::exp(UnitNormal(seed, 1, i)));
  return values;
}

// The weighted search must equal sorting a written-out resample. With two units the four possible
// resamples can be listed.
TEST(Bootstrap, EqualsWrittenOutResamples) {
  const std::vector<double> x = Exponentials(40, 1), y = Exponentials(40, 2);
  for (const double q : {0.0, 0.1, 0.5, 0.9, 0.975}) {
    std::vector<double> possible;
    for (const auto& [w0, w1] : {std::pair(2, 0), {1, 1}, {0, 2}}) {
      std::vector<double> a, b;
      for (int unit = 0; unit < 2; ++unit) {
        for (int copy = 0; copy < (unit == 0 ? w0 : w1); ++copy) {
          a.insert(a.end(), x.begin() + 20 * unit, x.begin() + 20 * unit + 20);
          b.insert(b.end(), y.begin() + 20 * unit, y.begin() + 20 * unit + 20);
        }
      }
      possible.push_back(std::log(CostStatistic(b, q) / CostStatistic(a, q)));
    }
    const double statistics[] = {q};
    const RatioDraws draws =
        BootstrapLogRatios(Arm(x, 20), Arm(y, 20), Clusters(2), statistics, 5, 200);
    std::set<int> seen;
    for (const double draw : draws.draw[0]) {
      int match = -1;
      for (int i = 0; i < 3; ++i) {
        if (std::abs(draw - possible[static_cast<std::size_t>(i)]) < 1e-12) match = i;
      }
      ASSERT_GE(match, 0) << q << " " << draw;
      seen.insert(match);
    }
    EXPECT_EQ(seen.size(), 3u);
  }
}

TEST(Bootstrap, IdenticalArmsGiveRatioOne) {
  const std::vector<double> x = Exponentials(300, 4);
  const double statistics[] = {0.0, 0.5, 0.9};
  const RatioDraws draws =
      BootstrapLogRatios(Arm(x, 10), Arm(x, 10), Clusters(30), statistics, 5, 500);
  for (const auto& list : draws.draw) {
    EXPECT_THAT(list, testing::Each(0.0));
    EXPECT_EQ(BootstrapP(list, 30), 1);
  }
}

TEST(Bootstrap, SwappingArmsInvertsExactly) {
  const std::vector<double> x = Exponentials(300, 4), y = Exponentials(300, 5);
  const double statistics[] = {0.5, 0.9};
  const RatioDraws ab = BootstrapLogRatios(Arm(x, 10), Arm(y, 10), Clusters(30), statistics, 5, 99);
  const RatioDraws ba = BootstrapLogRatios(Arm(y, 10), Arm(x, 10), Clusters(30), statistics, 5, 99);
  for (std::size_t s = 0; s < 2; ++s) {
    for (std::size_t r = 0; r < 99; ++r) EXPECT_NEAR(ab.draw[s][r], -ba.draw[s][r], 1e-13);
  }
}

// Moving blocks: every resample is made of runs of consecutive cells.
TEST(Bootstrap, MovingBlocksStayTogether) {
  UnitPlan plan = Clusters(100);
  plan.block = 10;
  std::vector<double> x(100, 1.0), y(100, 1.0);
  for (int i = 0; i < 100; ++i) y[static_cast<std::size_t>(i)] = i < 50 ? 1 : 2;
  const double statistics[] = {0.0};
  const RatioDraws draws = BootstrapLogRatios(Arm(x, 1), Arm(y, 1), plan, statistics, 3, 2000);
  const UnitPlan single = Clusters(100);
  const RatioDraws iid = BootstrapLogRatios(Arm(x, 1), Arm(y, 1), single, statistics, 3, 2000);
  // Blocks of ten equal neighbours: the variance is about ten times that of single cells.
  const double ratio = std::pow(draws.standard_error[0] / iid.standard_error[0], 2);
  EXPECT_NEAR(ratio, 9, 2);
}

TEST(Bootstrap, StandardErrorOfTheMedianRatio) {
  // Two independent arms of n log-normal values: var(ln median) = pi/2 / n.
  const std::size_t n = 4000;
  UnitPlan plan;
  plan.strata = {0, static_cast<std::int32_t>(n), static_cast<std::int32_t>(2 * n)};
  plan.effective = n;
  ArmValues off = Arm(Exponentials(n, 8), 1), on = Arm(Exponentials(n, 9), 1);
  for (std::int32_t& unit : on.unit) unit += static_cast<std::int32_t>(n);
  const double statistics[] = {0.5};
  const RatioDraws draws = BootstrapLogRatios(off, on, plan, statistics, 3, 600);
  EXPECT_NEAR(draws.standard_error[0] / std::sqrt(2 * 1.5708 / static_cast<double>(n)), 1, 0.12);
}

TEST(Bootstrap, CriticalValues) {
  EXPECT_NEAR(CriticalValue(1e6), 1.96, 1e-3);
  EXPECT_NEAR(CriticalValue(10), std::sqrt(10.0 / 9) * 2.26215716, 1e-6);
  EXPECT_GT(CriticalValue(1), 1e5);
}

}  // namespace
}  // namespace assay::serving
