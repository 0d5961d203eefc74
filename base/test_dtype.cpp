// Every code of every format against tables that are built here by other means, and the encoders at
// all midpoints between neighbouring codes and one step beside them.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/dtype.h"

namespace assay {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Values of the codes 0, 1, 2, ... of a format, by counting: subnormals in equal steps, then every
// binade in 2^mantissa steps of twice the size. One value past the largest finite one is included:
// its midpoint with the largest is where rounding overflows.
std::vector<double> CountUp(int mantissa, double smallest, unsigned codes) {
  std::vector<double> values;
  double value = 0, step = smallest;
  const unsigned per_binade = 1u << mantissa;
  for (unsigned code = 0; code < codes; ++code) {
    values.push_back(value);
    if (code >= 2 * per_binade && code % per_binade == 0) step *= 2;
    value += step;
  }
  return values;
}

std::vector<double> BF16Values() { return CountUp(7, 0x1p-133, 0x7F80 + 1); }
std::vector<double> F16Values() { return CountUp(10, 0x1p-24, 0x7C00 + 1); }
std::vector<double> E5M2Values() { return CountUp(2, 0x1p-16, 0x7C + 1); }
std::vector<double> E4M3Values() { return CountUp(3, 0x1p-9, 0x7F + 1); }  // 0x7F stands for 480
const std::vector<double> kE2M1Values = {0, 0.5, 1, 1.5, 2, 3, 4, 6, 8};   // 8: one past the end

std::uint32_t Bits(float x) { return std::bit_cast<std::uint32_t>(x); }

// The code of the value nearest to |x|, ties to the even code.
unsigned Nearest(const std::vector<double>& values, double magnitude) {
  const auto above = std::upper_bound(values.begin(), values.end(), magnitude);
  if (above == values.end()) return static_cast<unsigned>(values.size() - 1);
  const auto high = static_cast<unsigned>(above - values.begin());
  const unsigned low = high - 1;
  const double to_low = magnitude - values[low], to_high = values[high] - magnitude;
  if (to_low != to_high) return to_low < to_high ? low : high;
  return low % 2 == 0 ? low : high;
}

// Calls `visit(x)` for every value, every midpoint and the doubles right beside those.
template <class Visit>
void ForTrickyMagnitudes(const std::vector<double>& values, const Visit& visit) {
  for (std::size_t code = 0; code + 1 < values.size(); ++code) {
    const double middle = 0.5 * (values[code] + values[code + 1]);
    for (const double x : {values[code], middle}) {
      visit(x);
      visit(std::nextafter(x, kInf));
      if (x > 0) visit(std::nextafter(x, 0));
    }
  }
}

// Encoder against the table, both signs. `overflow` is the code of the one-past-the-end value.
template <class Encode>
void ExpectNearestEven(const std::vector<double>& values, unsigned sign_bit, unsigned overflow,
                       const Encode& encode) {
  int failures = 0;
  ForTrickyMagnitudes(values, [&](double x) {
    unsigned code = Nearest(values, x);
    if (code + 1 == values.size()) code = overflow;
    if (encode(x) != code || encode(-x) != (code | sign_bit)) {
      if (++failures < 5) {
        ADD_FAILURE() << std::hexfloat << x << " -> " << encode(x) << ", expected " << code;
      }
    }
  });
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(encode(kInf), overflow);
  EXPECT_EQ(encode(-kInf), overflow | sign_bit);
  EXPECT_EQ(encode(std::numeric_limits<double>::max()), overflow);
  EXPECT_EQ(encode(std::numeric_limits<double>::denorm_min()), 0u);
  EXPECT_EQ(encode(-0.0), sign_bit);
}

// Decoder against the table, bit by bit so that -0 counts; NaN and infinity codes are the caller's.
template <class Decode>
void ExpectDecodes(const std::vector<double>& values, unsigned count, unsigned sign_bit,
                   const Decode& decode) {
  for (unsigned code = 0; code < count; ++code) {
    const auto value = static_cast<float>(values[code]);
    ASSERT_EQ(static_cast<double>(value), values[code]);
    ASSERT_EQ(Bits(decode(code)), Bits(value)) << code;
    ASSERT_EQ(Bits(decode(code | sign_bit)), Bits(-value)) << code;
  }
}

TEST(BF16, DecodesEveryCode) {
  const auto decode = [](unsigned c) { return ToFloat(bf16{static_cast<std::uint16_t>(c)}); };
  ExpectDecodes(BF16Values(), 0x7F80, 0x8000, decode);
  EXPECT_EQ(decode(0x7F80), kInf);
  EXPECT_EQ(decode(0xFF80), -kInf);
  for (unsigned code = 0x7F81; code < 0x8000; ++code) {
    EXPECT_TRUE(std::isnan(decode(code)) && std::isnan(decode(code | 0x8000)));
  }
}

TEST(BF16, EncodesDoublesNearestEven) {
  ExpectNearestEven(BF16Values(), 0x8000, 0x7F80, [](double x) { return ToBF16(x).bits; });
  EXPECT_TRUE(std::isnan(ToFloat(ToBF16(kNaN))));
}

// All upper halves of fp32 with every kind of lower half, and a strided sweep over all bits.
TEST(BF16, EncodesFloatsNearestEven) {
  const std::vector<double> values = BF16Values();
  const auto check = [&](std::uint32_t bits) {
    const float x = std::bit_cast<float>(bits);
    const unsigned got = ToBF16(x).bits;
    if (std::isnan(x)) return std::isnan(ToFloat(bf16{static_cast<std::uint16_t>(got)}));
    const unsigned sign = std::signbit(x) ? 0x8000u : 0u;
    const double magnitude = std::abs(static_cast<double>(x));
    const unsigned wanted = std::isinf(x) ? 0x7F80u : Nearest(values, magnitude);
    return got == (sign | wanted) && ToBF16(static_cast<double>(x)).bits == got;
  };
  int failures = 0;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const std::uint32_t lower : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      failures += check(upper << 16 | lower) ? 0 : 1;
    }
  }
  constexpr std::uint64_t kStride = 20011;  // a prime: all lower halves come up
  for (std::uint64_t bits = 0; bits < 1ULL << 32; bits += kStride) {
    failures += check(static_cast<std::uint32_t>(bits)) ? 0 : 1;
  }
  EXPECT_EQ(failures, 0);
}

// 1 + 2^-8 + 2^-40 lies above the midpoint of 1 and 1 + 2^-7, but fp32 rounds it onto the midpoint.
TEST(BF16, DoublesAreNotRoundedTwice) {
  const double x = 1 + 0x1p-8 + 0x1p-40;
  EXPECT_EQ(ToBF16(x).bits, 0x3F81);
  EXPECT_EQ(ToBF16(static_cast<float>(x)).bits, 0x3F80);
  EXPECT_EQ(ToBF16(-x).bits, 0xBF81);
  EXPECT_EQ(ToF16(1 + 0x1p-11 + 0x1p-40).bits, 0x3C01);
}

TEST(F16, DecodesEveryCode) {
  const auto decode = [](unsigned c) { return ToFloat(f16{static_cast<std::uint16_t>(c)}); };
  ExpectDecodes(F16Values(), 0x7C00, 0x8000, decode);
  EXPECT_EQ(decode(0x7C00), kInf);
  EXPECT_EQ(decode(0xFC00), -kInf);
  for (unsigned code = 0x7C01; code < 0x8000; ++code) EXPECT_TRUE(std::isnan(decode(code)));
}

TEST(F16, EncodesNearestEven) {
  ExpectNearestEven(F16Values(), 0x8000, 0x7C00, [](double x) { return ToF16(x).bits; });
  EXPECT_EQ(ToF16(65504.0f).bits, 0x7BFF);
  EXPECT_EQ(ToF16(65520.0f).bits, 0x7C00);
  EXPECT_TRUE(std::isnan(ToFloat(ToF16(kNaN))));
}

#ifdef __FLT16_MANT_DIG__
// The compiler's own half type as a second opinion.
__extension__ using CompilerHalf = _Float16;
TEST(F16, AgreesWithTheCompiler) {
  for (unsigned code = 0; code < 0x10000; ++code) {
    const auto half = std::bit_cast<CompilerHalf>(static_cast<std::uint16_t>(code));
    const float ours = ToFloat(f16{static_cast<std::uint16_t>(code)});
    if (std::isnan(ours)) continue;
    ASSERT_EQ(Bits(ours), Bits(static_cast<float>(half))) << code;
  }
  for (std::uint64_t bits = 0; bits < 1ULL << 32; bits += 10007) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(x)) continue;
    ASSERT_EQ(ToF16(x).bits, std::bit_cast<std::uint16_t>(static_cast<CompilerHalf>(x))) << x;
  }
}
#endif

TEST(E4M3, DecodesEveryCode) {
  const auto decode = [](unsigned c) { return ToFloat(e4m3{static_cast<std::uint8_t>(c)}); };
  ExpectDecodes(E4M3Values(), 0x7F, 0x80, decode);
  // Public bugs: 0x7F decoded as 480 (mlx #4376), subnormals and NaN wrong (tilelang #2702).
  EXPECT_TRUE(std::isnan(decode(0x7F)) && std::isnan(decode(0xFF)));
  EXPECT_EQ(decode(0x38), 1.0f);
  EXPECT_EQ(decode(0x01), 0.001953125f);
  EXPECT_EQ(decode(0x08), 0x1p-6f);
  EXPECT_EQ(decode(0x7E), 448.0f);
}

TEST(E4M3, EncodesNearestEvenAndSaturates) {
  // 464 is the midpoint of 448 and 480; NaN has the code of 480, so everything above is 448.
  ExpectNearestEven(E4M3Values(), 0x80, 0x7E, [](double x) { return ToE4M3(x).bits; });
  EXPECT_EQ(ToE4M3(464.0).bits, 0x7E);
  EXPECT_EQ(ToE4M3(1e30).bits, 0x7E);
  EXPECT_EQ(ToE4M3(-1e30).bits, 0xFE);
  EXPECT_EQ(ToE4M3(kNaN).bits, 0x7F);
  EXPECT_EQ(ToE4M3(-kNaN).bits, 0x7F);
}

TEST(E5M2, DecodesEveryCode) {
  const auto decode = [](unsigned c) { return ToFloat(e5m2{static_cast<std::uint8_t>(c)}); };
  ExpectDecodes(E5M2Values(), 0x7C, 0x80, decode);
  EXPECT_EQ(decode(0x7C), kInf);
  EXPECT_EQ(decode(0xFC), -kInf);
  for (const unsigned code : {0x7Du, 0x7Eu, 0x7Fu, 0xFDu, 0xFEu, 0xFFu}) {
    EXPECT_TRUE(std::isnan(decode(code)));
  }
}

TEST(E5M2, EncodesNearestEvenAndOverflows) {
  ExpectNearestEven(E5M2Values(), 0x80, 0x7C, [](double x) { return ToE5M2(x).bits; });
  EXPECT_TRUE(std::isnan(ToFloat(ToE5M2(kNaN))));
}

TEST(E2M1, DecodesEveryCode) {
  // Codes 0, 1, 8 and 9 are what decoders without subnormals get wrong (tilelang #2704).
  ExpectDecodes(kE2M1Values, 8, 8, E2M1ToFloat);
}

TEST(E2M1, EncodesNearestEvenAndSaturates) {
  ExpectNearestEven(kE2M1Values, 8, 7, ToE2M1);
  const double midpoints[] = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5};
  const double rounded[] = {0, 1, 1, 2, 2, 4, 4};
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(E2M1ToFloat(ToE2M1(midpoints[i])), rounded[i]);
    EXPECT_EQ(E2M1ToFloat(ToE2M1(-midpoints[i])), -rounded[i]);
  }
  EXPECT_EQ(ToE2M1(1e30), 7u);
  EXPECT_EQ(ToE2M1(-7.0), 15u);
}

TEST(UE8M0, DecodesEveryByte) {
  // Byte 0 is 2^-127, an fp32 subnormal, and 255 is NaN: a plain shift gets both wrong
  // (TransformerEngine #3262).
  double value = 0x1p-127;
  for (unsigned code = 0; code < 255; ++code, value *= 2) {
    EXPECT_EQ(static_cast<double>(ToFloat(ue8m0{static_cast<std::uint8_t>(code)})), value);
  }
  EXPECT_EQ(Bits(ToFloat(ue8m0{0})), 0x00400000u);
  EXPECT_EQ(Bits(ToFloat(ue8m0{1})), 0x00800000u);
  EXPECT_TRUE(std::isnan(ToFloat(ue8m0{255})));
}

// The scale must be the smallest power of two whose largest code reaches amax.
void ExpectSmallestScale(ue8m0 (*scale_for)(float), double largest, float amax) {
  const double clamped = std::max<double>(amax, 1e-4);
  const auto byte = scale_for(amax).bits;
  const double scale = std::ldexp(1.0, byte - 127);
  EXPECT_GE(largest * scale, clamped) << amax;
  EXPECT_LT(largest * scale / 2, clamped) << amax;
}

TEST(UE8M0, ScaleIsTheSmallestThatReachesAmax) {
  for (int exponent = -20; exponent < 128; ++exponent) {
    for (const float m : {1.0f, 1.25f, 1.5f, 1.75f, 1.999f}) {
      const float amax = std::ldexp(m, exponent);
      for (const float x : {amax, std::nextafter(amax, 1e38f), std::nextafter(amax, 0.0f)}) {
        ExpectSmallestScale(ScaleForE4M3, 448, x);
        ExpectSmallestScale(ScaleForE2M1, 6, x);
      }
    }
  }
}

TEST(UE8M0, ScaleAtTheBorderOfTheRule) {
  // amax = m 2^E: k = E-8 for m <= 1.75, else E-7 (e4m3); k = E-2 for m <= 1.5, else E-1 (e2m1).
  for (const int e : {-3, 0, 5, 100}) {
    const float border8 = std::ldexp(1.75f, e), border4 = std::ldexp(1.5f, e);
    EXPECT_EQ(ScaleForE4M3(border8).bits, e - 8 + 127);
    EXPECT_EQ(ScaleForE4M3(std::nextafter(border8, 1e38f)).bits, e - 7 + 127);
    EXPECT_EQ(ScaleForE2M1(border4).bits, e - 2 + 127);
    EXPECT_EQ(ScaleForE2M1(std::nextafter(border4, 1e38f)).bits, e - 1 + 127);
  }
  EXPECT_EQ(ScaleForE4M3(448.0f).bits, 127);
  EXPECT_EQ(ScaleForE2M1(6.0f).bits, 127);
}

TEST(UE8M0, ScaleOfNothingAndOfTooMuch) {
  // 1e-4 = 1.64 * 2^-14, so k = -22.
  EXPECT_EQ(ScaleForE4M3(0.0f).bits, 105);
  EXPECT_EQ(ScaleForE4M3(0.0f), ScaleForE4M3(1e-4f));
  EXPECT_EQ(ScaleForE2M1(0.0f).bits, 112);  // 1.64 > 1.5: k = -14 - 1
  EXPECT_EQ(ScaleForE4M3(std::numeric_limits<float>::max()).bits, 127 + 127 - 7);
  EXPECT_EQ(ScaleForE4M3(std::numeric_limits<float>::infinity()).bits, 254);
  EXPECT_EQ(ScaleForE4M3(std::numeric_limits<float>::quiet_NaN()).bits, 255);
}

// Dequantisation to bf16 is exact in the byte ranges of the dtypes page, and not beyond them.
TEST(Exactness, ScaledCodesAreBF16Numbers) {
  const auto all_exact = [](const std::vector<double>& magnitudes, std::size_t count, int byte) {
    for (std::size_t code = 0; code < count; ++code) {
      const double product = magnitudes[code] * std::ldexp(1.0, byte - 127);
      if (static_cast<double>(ToFloat(ToBF16(product))) != product) return false;
    }
    return true;
  };
  const std::vector<double> e4m3_values = E4M3Values();
  for (int byte = 0; byte < 255; ++byte) {
    EXPECT_EQ(all_exact(e4m3_values, 0x7F, byte), 3 <= byte && byte <= 246) << byte;
    EXPECT_EQ(all_exact(kE2M1Values, 8, byte), byte <= 252) << byte;
  }
}

TEST(UlpBF16, IsTheGapBetweenNeighbours) {
  const std::vector<double> values = BF16Values();
  for (std::size_t code = 0; code + 1 < values.size(); ++code) {
    ASSERT_EQ(UlpBF16(values[code]), values[code + 1] - values[code]) << code;
    ASSERT_EQ(UlpBF16(-values[code]), values[code + 1] - values[code]) << code;
  }
  EXPECT_EQ(UlpBF16(0), 0x1p-133);
  EXPECT_EQ(UlpBF16(std::numeric_limits<double>::denorm_min()), 0x1p-133);
}

TEST(DType, NamesAndSizes) {
  for (int d = 0; d <= static_cast<int>(DType::kI8); ++d) {
    const auto dtype = static_cast<DType>(d);
    EXPECT_EQ(ParseDType(DTypeName(dtype)), dtype);
  }
  EXPECT_EQ(ParseDType("float8_e4m3fn"), DType::kE4M3);
  EXPECT_EQ(ParseDType("int4"), std::nullopt);
  EXPECT_EQ(DTypeBytes(DType::kE2M1, 5), 3u);
  EXPECT_EQ(DTypeBytes(DType::kE2M1, 0), 0u);
  EXPECT_EQ(DTypeBytes(DType::kF64, 1LL << 60), 1ULL << 63);
  EXPECT_TRUE(IsFloat(DType::kBF16) && IsFloat(DType::kE2M1) && IsFloat(DType::kF64));
  EXPECT_FALSE(IsFloat(DType::kUE8M0) || IsFloat(DType::kI32) || IsFloat(DType::kBool));
}

}  // namespace
}  // namespace assay
