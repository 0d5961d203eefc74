// Row formats of the latent cache: every code with every scale, against the scalar conversions of
// base/dtype.h; encoders at every midpoint and at the ends of the ranges.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "ops/mla/codec.h"

namespace assay::mla {
namespace {

bool SameNumber(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

// 512 codes that cover all 256, and 16 scale bytes from `first` on.
struct Row8 {
  std::array<std::uint8_t, 512> data;
  std::array<std::uint8_t, 16> scales;
  explicit Row8(unsigned first) {
    for (unsigned d = 0; d < 512; ++d) data[d] = static_cast<std::uint8_t>(d * 7 + first);
    for (unsigned g = 0; g < 16; ++g) scales[g] = static_cast<std::uint8_t>(first + g);
  }
};

TEST(V41, DecodesEveryCodeWithEveryScale) {
  for (unsigned first = 0; first < 256; ++first) {
    const Row8 row(first);
    float wide[512];
    bf16 narrow[512];
    DecodeV41(row.data.data(), row.scales.data(), wide);
    DecodeV41(row.data.data(), row.scales.data(), narrow);
    for (unsigned d = 0; d < 512; ++d) {
      const float code = ToFloat(e4m3{row.data[d]}), scale = ToFloat(ue8m0{row.scales[d / 32]});
      ASSERT_TRUE(SameNumber(wide[d], code * scale))
          << wide[d] << " for " << code << " * " << scale;
      const unsigned byte = row.scales[d / 32];
      if (byte >= 3 && byte <= 246) {
        ASSERT_TRUE(SameNumber(ToFloat(narrow[d]), wide[d])) << narrow[d].bits;
      }
    }
  }
}

TEST(V41, FitsBF16MeansNormalNumbers) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::array<std::uint8_t, 16> scales;
    scales.fill(127);
    scales[11] = static_cast<std::uint8_t>(byte);
    const double least = std::ldexp(1.0, static_cast<int>(byte) - 127 - 9);
    const double most = std::ldexp(448.0, static_cast<int>(byte) - 127);
    EXPECT_EQ(FitsBF16(scales.data()), least >= 0x1p-126 && most <= 0x1.FEp127) << byte;
  }
}

TEST(V41Fp4, DecodesEveryByteWithEveryScale) {
  for (unsigned first = 0; first < 256; ++first) {
    std::uint8_t data[256], scales[32];
    for (unsigned i = 0; i < 256; ++i) data[i] = static_cast<std::uint8_t>(i + first);
    for (unsigned g = 0; g < 32; ++g) scales[g] = static_cast<std::uint8_t>(first + g);
    bf16 x[512];
    DecodeV41Fp4(data, scales, x);
    for (unsigned d = 0; d < 512; ++d) {
      const unsigned code = d % 2 == 0 ? data[d / 2] & 15u : data[d / 2] >> 4;
      const float expected = E2M1ToFloat(code) * ToFloat(e4m3{scales[d / 16]});
      ASSERT_TRUE(SameNumber(ToFloat(x[d]), expected)) << ToFloat(x[d]) << " for " << expected;
    }
  }
}

// The page's vectors: byte 0x72 with scale 0x38 is (1, 6), 0x9D with 0x30 is (-1.5, -0.25); code
// 0x7E with scale byte 130 is 3584.
TEST(V41Fp4, ReferenceVectors) {
  std::uint8_t data[256] = {}, scales[32] = {};
  data[0] = 0x72;
  scales[0] = 0x38;
  data[8] = 0x9D;
  scales[1] = 0x30;
  bf16 x[512];
  DecodeV41Fp4(data, scales, x);
  EXPECT_EQ(ToFloat(x[0]), 1.0f);
  EXPECT_EQ(ToFloat(x[1]), 6.0f);
  EXPECT_EQ(ToFloat(x[16]), -1.5f);
  EXPECT_EQ(ToFloat(x[17]), -0.25f);
  Row8 row(0);
  row.data[40] = 0x7E;
  row.scales[1] = 130;
  DecodeV41(row.data.data(), row.scales.data(), x);
  EXPECT_EQ(ToFloat(x[40]), 3584.0f);
}

// `special` values in group 0, whose largest magnitude is `amax`; the rest random.
std::vector<float> Latent(std::uint64_t key, float amax, const std::vector<float>& special) {
  std::vector<float> x(512);
  for (std::size_t d = 0; d < 512; ++d) x[d] = UnitNormal(key, 1, d);
  x[0] = amax;
  for (std::size_t i = 1; i < 16; ++i) x[i] = i <= special.size() ? special[i - 1] : 0;
  for (std::size_t i = 16; i < 32; ++i) x[i] = 0;
  return x;
}

float LargestOf(const std::vector<float>& x, std::size_t first, std::size_t count) {
  float largest = 0;
  for (std::size_t i = first; i < first + count; ++i) largest = std::max(largest, std::abs(x[i]));
  return largest;
}

void ExpectEncodes8(const std::vector<float>& x) {
  std::uint8_t data[512], scales[16];
  EncodeV41(x.data(), data, scales);
  for (std::size_t g = 0; g < 16; ++g) {
    const ue8m0 scale = ScaleForE4M3(LargestOf(x, 32 * g, 32));
    ASSERT_EQ(scales[g], scale.bits);
    for (std::size_t d = 32 * g; d < 32 * g + 32; ++d) {
      const double quotient = static_cast<double>(x[d]) / ToFloat(scale);
      ASSERT_EQ(data[d], ToE4M3(quotient).bits) << x[d];
    }
  }
}

void ExpectEncodes4(const std::vector<float>& x) {
  std::uint8_t data[256], scales[32];
  EncodeV41Fp4(x.data(), data, scales);
  for (std::size_t g = 0; g < 32; ++g) {
    const float wanted = std::clamp(LargestOf(x, 16 * g, 16) / 6.0f, 0x1p-9f, 448.0f);
    const e4m3 scale = ToE4M3(wanted);
    ASSERT_EQ(scales[g], scale.bits);
    for (std::size_t d = 16 * g; d < 16 * g + 16; ++d) {
      const unsigned code = d % 2 == 0 ? data[d / 2] & 15u : data[d / 2] >> 4;
      ASSERT_EQ(code, ToE2M1(x[d] / ToFloat(scale))) << x[d];
    }
  }
}

TEST(Encoders, AgreeWithTheScalarConversions) {
  for (std::uint64_t key = 0; key < 200; ++key) {
    std::vector<float> x = Latent(key, 3, {});
    const float gain = std::ldexp(1.0f, static_cast<int>(key % 40) - 20);
    for (float& each : x) each *= gain;
    ExpectEncodes8(x);
    ExpectEncodes4(x);
  }
}

// With amax 6 the 4-bit scale is 1: the midpoints of e2m1. With amax 448 the 8-bit scale is 1.
TEST(Encoders, Midpoints) {
  ExpectEncodes4(Latent(1, 6,
                        {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, -0.25f, -0.75f, -1.25f, -1.75f,
                         -2.5f, -3.5f, -5, -0.0f}));
  std::vector<float> midpoints;
  for (unsigned code = 0; code < 0x7E; ++code) {
    midpoints.push_back(0.5f * (ToFloat(e4m3{static_cast<std::uint8_t>(code)}) +
                                ToFloat(e4m3{static_cast<std::uint8_t>(code + 1)})));
  }
  for (std::size_t first = 0; first < midpoints.size(); first += 15) {
    const auto end = std::min(first + 15, midpoints.size());
    std::vector<float> some(midpoints.begin() + static_cast<std::ptrdiff_t>(first),
                            midpoints.begin() + static_cast<std::ptrdiff_t>(end));
    ExpectEncodes8(Latent(2, 448, some));
    for (float& each : some) each = -each;
    ExpectEncodes8(Latent(3, 448, some));
  }
}

// amax exactly at 1.75 * 2^E and one ulp beyond; nothing but zeros; tiny and huge groups.
TEST(Encoders, ScaleBorders) {
  for (int exponent = -12; exponent <= 12; ++exponent) {
    const float border = std::ldexp(1.75f, exponent);
    for (float amax : {border, std::nextafter(border, 1e9f), std::nextafter(border, 0.0f)}) {
      ExpectEncodes8(Latent(5, amax, {}));
      ExpectEncodes4(Latent(5, amax, {}));
    }
  }
  for (float amax : {0.0f, 1e-5f, 1e-4f, 2688.0f, 1e6f, 1e30f}) {
    ExpectEncodes8(Latent(6, amax, {}));
    ExpectEncodes4(Latent(6, amax, {}));
  }
}

TEST(Encoders, DecodedRowsEncodeToTheSameValues) {
  for (std::uint64_t key = 0; key < 50; ++key) {
    const std::vector<float> x = Latent(key, 2, {});
    std::uint8_t data[512], scales[32];
    float once[512], twice[512];
    EncodeV41(x.data(), data, scales);
    DecodeV41(data, scales, once);
    EncodeV41(once, data, scales);
    DecodeV41(data, scales, twice);
    for (int d = 0; d < 512; ++d) ASSERT_EQ(once[d], twice[d]);
  }
}

}  // namespace
}  // namespace assay::mla
