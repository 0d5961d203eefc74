// The element source: the vectors of the replay page, golden values from an independent program,
// and the moments that generators rely on.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <set>

#include "base/random.h"

namespace assay {
namespace {

// Key of "f627f3ce-06ab-52e0-b919-0882bb98ba87/1/0" in the replay page.
constexpr std::uint64_t kKey = 0x6ae517a0963eba55u;

TEST(Mix64, VectorsOfTheReplayPage) {
  static_assert(Mix64(0, 0, 0) == 0xe220a8397b1dcdafu);
  EXPECT_EQ(Mix64(0, 0, 0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(Mix64(0, 0, 1), 0x6e789e6aa1b965f4u);
  EXPECT_EQ(Mix64(0, 1, 0), 0x669d2519adab1d2bu);
  EXPECT_EQ(Mix64(0x0123456789abcdefu, 2, 1000003), 0x733035214cd102f3u);
}

TEST(Mix64, IndicesTensorsAndKeysDoNotCollide) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t key = 0; key < 20; ++key) {
    for (std::uint64_t tensor = 0; tensor < 20; ++tensor) {
      for (std::uint64_t index = 0; index < 20; ++index) seen.insert(Mix64(key, tensor, index));
    }
  }
  EXPECT_EQ(seen.size(), 8000u);
}

// Computed by a Python program from the formulas, with one rounding to fp32 at the end.
TEST(UnitNormal, GoldenValues) {
  const auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
  EXPECT_EQ(bits(UnitNormal(0, 0, 0)), 0x3fb6dd01u);
  EXPECT_EQ(bits(UnitNormal(kKey, 0, 0)), 0xbfcdc165u);
  EXPECT_EQ(bits(UnitNormal(kKey, 1, 12345)), 0x3ff323d8u);
  EXPECT_EQ(bits(UnitNormal(~0ULL, 7, 1ULL << 40)), 0xbf149ff6u);
}

TEST(Uniform, GoldenValues) {
  EXPECT_EQ(Uniform(0, 0, 0), 0.8833108082136426);
  EXPECT_EQ(Uniform(kKey, 0, 0), 0.18418356991183416);
  EXPECT_EQ(Uniform(~0ULL, 7, 1ULL << 40), 0.5440406173233461);
}

// Moments of n samples: their own standard errors are about 1/sqrt(n), 1.1/sqrt(n), ...; limits
// are five of them.
TEST(UnitNormal, Moments) {
  constexpr int kSamples = 1'000'000;
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, largest = 0, lag = 0, previous = 0;
  for (int i = 0; i < kSamples; ++i) {
    const double x = UnitNormal(kKey, 3, static_cast<std::uint64_t>(i));
    m1 += x;
    m2 += x * x;
    m3 += x * x * x;
    m4 += x * x * x * x;
    lag += x * previous;
    previous = x;
    largest = std::max(largest, std::abs(x));
  }
  const double n = kSamples;
  EXPECT_NEAR(m1 / n, 0, 0.005);
  EXPECT_NEAR(m2 / n, 1, 0.0065);
  EXPECT_NEAR(m3 / n, 0, 0.015);
  // Kurtosis of a sum of four uniforms: 3 - 6/5 / 4 = 2.7.
  EXPECT_NEAR(m4 / n, 2.7, 0.025);
  EXPECT_NEAR(lag / n, 0, 0.005);
  EXPECT_LE(largest, 3.4642);
  EXPECT_GT(largest, 3.2);
}

TEST(Uniform, CoversTheUnitIntervalEvenly) {
  constexpr int kBins = 64, kSamples = 640'000;
  int counts[kBins] = {};
  for (int i = 0; i < kSamples; ++i) {
    const double u = Uniform(kKey, 4, static_cast<std::uint64_t>(i));
    ASSERT_TRUE(0 <= u && u < 1);
    ++counts[static_cast<int>(u * kBins)];
  }
  double chi2 = 0;
  for (const int count : counts) chi2 += std::pow(count - kSamples / kBins, 2) * kBins / kSamples;
  EXPECT_LT(chi2, 120);  // 63 degrees of freedom: mean 63, p < 2e-5
  EXPECT_GT(chi2, 25);
}

}  // namespace
}  // namespace assay
