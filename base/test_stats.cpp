// Quantiles, distribution-free intervals (thresholds, brute force, coverage) and the bootstrap.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "base/stats.h"

namespace assay {
namespace {

std::vector<double> Ramp(int count) {
  std::vector<double> ranks;
  for (int i = 1; i <= count; ++i) ranks.push_back(i);
  return ranks;
}

TEST(Quantile, NearestRank) {
  const std::vector<double> five = {10, 20, 30, 40, 50};
  EXPECT_EQ(QuantileSorted(five, 0), 10);
  EXPECT_EQ(QuantileSorted(five, 0.2), 10);
  EXPECT_EQ(QuantileSorted(five, 0.21), 20);
  EXPECT_EQ(QuantileSorted(five, 0.5), 30);
  EXPECT_EQ(QuantileSorted(five, 0.99), 50);
  EXPECT_EQ(QuantileSorted(five, 1), 50);
  EXPECT_EQ(QuantileSorted(Ramp(100), 0.95), 95);
  EXPECT_TRUE(std::isnan(QuantileSorted({}, 0.5)));
}

TEST(Robust, MedianMeanAndDeviation) {
  EXPECT_EQ(Median(std::vector<double>{3, 1, 2}), 2);
  EXPECT_EQ(Median(std::vector<double>{4, 1, 3, 2}), 2.5);
  EXPECT_TRUE(std::isnan(Median({})));
  EXPECT_EQ(Mean(std::vector<double>{1, 2, 6}), 3);
  EXPECT_TRUE(std::isnan(Mean({})));
  // One wild outlier moves the mean, not these two.
  EXPECT_EQ(MedianAbsoluteDeviation(std::vector<double>{1, 2, 3, 4, 1e9}), 1);
  EXPECT_DOUBLE_EQ(GeometricMean(std::vector<double>{1, 4, 16}), 4);
  EXPECT_TRUE(std::isnan(GeometricMean({})));
  EXPECT_EQ(Sorted(std::vector<double>{2, 1}), (std::vector<double>{1, 2}));
}

TEST(OrderStatistics, ThresholdsOfThePage) {
  const auto exists = [](int n, double q) {
    return OrderStatisticInterval(Ramp(n), q).has_value();
  };
  const struct {
    double q;
    int n;
  } thresholds[] = {{0.5, 6}, {0.9, 36}, {0.95, 72}, {0.99, 368}};
  for (const auto& [q, n] : thresholds) {
    EXPECT_FALSE(exists(n - 1, q)) << q;
    EXPECT_TRUE(exists(n, q)) << q;
    // Symmetric: the lower tail needs as many samples.
    EXPECT_FALSE(exists(n - 1, 1 - q)) << q;
    EXPECT_TRUE(exists(n, 1 - q)) << q;
  }
  EXPECT_FALSE(exists(0, 0.5));
  EXPECT_FALSE(exists(1, 0.5));
  EXPECT_FALSE(exists(100, 0));
  EXPECT_FALSE(exists(100, 1));
}

// P(low <= i < high) and the two tails by the plain formula in long double.
struct Masses {
  long double below = 0, inside = 0, above = 0;
};
Masses BinomialMasses(int n, long double q, int low, int high) {
  Masses masses;
  long double coefficient = 1;
  for (int i = 0; i <= n; ++i) {
    const long double p = coefficient * std::pow(q, static_cast<long double>(i)) *
                          std::pow(1 - q, static_cast<long double>(n - i));
    (i < low ? masses.below : i < high ? masses.inside : masses.above) += p;
    coefficient = coefficient * (n - i) / (i + 1);
  }
  return masses;
}

TEST(OrderStatistics, InnermostRanksByBruteForce) {
  for (const double q : {0.5, 0.9, 0.95, 0.25}) {
    for (int n = 6; n <= 200; ++n) {
      const auto interval = OrderStatisticInterval(Ramp(n), q);
      if (!interval) continue;
      const auto low = static_cast<int>(interval->low), high = static_cast<int>(interval->high);
      const Masses masses = BinomialMasses(n, q, low, high);
      ASSERT_GE(masses.inside, 0.95L) << n << ' ' << q;
      ASSERT_LE(masses.below, 0.025L);
      ASSERT_LE(masses.above, 0.025L);
      // One rank further in, either tail would be too heavy.
      ASSERT_GT(BinomialMasses(n, q, low + 1, high).below, 0.025L) << n << ' ' << q;
      ASSERT_GT(BinomialMasses(n, q, low, high - 1).above, 0.025L) << n << ' ' << q;
    }
  }
}

TEST(OrderStatistics, LargeSamplesNearTheNormalApproximation) {
  // Ranks n/2 -+ 1.96 sqrt(n)/2.
  for (const int n : {2000, 20'000, 1'000'000}) {
    const auto interval = OrderStatisticInterval(Ramp(n), 0.5);
    ASSERT_TRUE(interval);
    const double half = 1.96 * std::sqrt(n) / 2;
    EXPECT_NEAR(interval->low, n / 2.0 - half, 2);
    EXPECT_NEAR(interval->high, n / 2.0 + 1 + half, 2);
  }
}

// Skewed samples (squared uniforms): the interval must cover the true quantile q^2 in >= 95 %.
TEST(OrderStatistics, CoversTheQuantile) {
  constexpr int kTrials = 4000;
  for (const auto& [q, n] : {std::pair{0.5, 30}, {0.5, 7}, {0.9, 60}}) {
    int covered = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      std::vector<double> samples;
      for (int i = 0; i < n; ++i) {
        const double u =
            Uniform(11, static_cast<std::uint64_t>(n), static_cast<std::uint64_t>(trial * n + i));
        samples.push_back(u * u);
      }
      const auto interval = OrderStatisticInterval(Sorted(samples), q);
      ASSERT_TRUE(interval);
      covered += interval->low <= q * q && q * q <= interval->high ? 1 : 0;
    }
    const double share = static_cast<double>(covered) / kTrials;
    EXPECT_GE(share, 0.95 - 3 * 0.0035) << n;  // three standard errors
    EXPECT_LT(share, 0.995) << n;              // and not by being absurdly wide
  }
}

std::vector<double> Noise(std::uint64_t stream, int count, double center) {
  std::vector<double> samples;
  for (int i = 0; i < count; ++i) {
    samples.push_back(center + UnitNormal(5, stream, static_cast<std::uint64_t>(i)));
  }
  return samples;
}

TEST(Bootstrap, IsDeterministicInTheSeed) {
  const std::vector<double> a = Noise(0, 40, 110), b = Noise(1, 30, 100);
  const auto first = BootstrapRatioOfMedians(a, b, 7), again = BootstrapRatioOfMedians(a, b, 7);
  const auto other = BootstrapRatioOfMedians(a, b, 8);
  ASSERT_TRUE(first && again && other);
  EXPECT_EQ(first->low, again->low);
  EXPECT_EQ(first->high, again->high);
  EXPECT_TRUE(first->low != other->low || first->high != other->high);
  EXPECT_LT(first->low, 1.1);
  EXPECT_GT(first->high, 1.1);
  EXPECT_LT(first->high - first->low, 0.02);
}

TEST(Bootstrap, NeedsTwoSamplesOnEachSide) {
  const std::vector<double> one = {1}, two = {1, 2};
  EXPECT_FALSE(BootstrapRatioOfMedians(one, two, 1));
  EXPECT_FALSE(BootstrapRatioOfMedians(two, one, 1));
  EXPECT_TRUE(BootstrapRatioOfMedians(two, two, 1));
}

TEST(Bootstrap, CoversTheRatioOfMedians) {
  constexpr int kTrials = 200;
  int covered = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const auto stream = static_cast<std::uint64_t>(2 * trial);
    const auto interval = BootstrapRatioOfMedians(Noise(stream, 40, 50), Noise(stream + 1, 40, 40),
                                                  static_cast<std::uint64_t>(trial), 400);
    covered += interval->low <= 1.25 && 1.25 <= interval->high ? 1 : 0;
  }
  EXPECT_GE(covered, 178);  // 0.95 less four standard errors of 0.0154
}

}  // namespace
}  // namespace assay
