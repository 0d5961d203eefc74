#include "base/dtype.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace assay {
namespace {

struct NameRow {
  DType dtype;
  std::string_view name;
  int bits;
};

// Names of FlashInfer-Trace files where that format has one.
constexpr std::array kNames = {
    NameRow{DType::kBF16, "bfloat16", 16},     NameRow{DType::kF16, "float16", 16},
    NameRow{DType::kE4M3, "float8_e4m3fn", 8}, NameRow{DType::kE5M2, "float8_e5m2", 8},
    NameRow{DType::kE2M1, "float4_e2m1", 4},   NameRow{DType::kUE8M0, "float8_e8m0fnu", 8},
    NameRow{DType::kF32, "float32", 32},       NameRow{DType::kF64, "float64", 64},
    NameRow{DType::kI32, "int32", 32},         NameRow{DType::kI64, "int64", 64},
    NameRow{DType::kU8, "uint8", 8},           NameRow{DType::kBool, "bool", 8},
    NameRow{DType::kI16, "int16", 16},         NameRow{DType::kI8, "int8", 8},
};

const NameRow& RowOf(DType dtype) { return kNames[static_cast<std::size_t>(dtype)]; }

// A small binary format: `mantissa` fraction bits, exponent bias, largest finite magnitude.
struct Format {
  int mantissa, bias;
  double largest;
  int min_exponent() const { return 1 - bias; }
};
constexpr Format kF16Format{10, 15, 65504.0};
constexpr Format kE4M3Format{3, 7, 448.0};
constexpr Format kE5M2Format{2, 15, 57344.0};
constexpr Format kE2M1Format{1, 1, 6.0};
constexpr Format kBF16Format{7, 127, 0x1.FEp127};

// |x| rounded to nearest even on the format's grid, as code without sign; finite x only. The code
// runs past the largest finite code when rounding overflows.
unsigned RoundMagnitude(double x, const Format& format) {
  if (x == 0) return 0;  // frexp gives zero the exponent of 0.5
  int exponent = 0;
  std::frexp(x, &exponent);
  --exponent;  // x = 1.m * 2^exponent
  exponent = std::max(exponent, format.min_exponent());
  const double steps = std::nearbyint(std::ldexp(x, format.mantissa - exponent));
  // `steps` has the implicit bit for normal numbers; adding it to the biased exponent makes
  // subnormals (no implicit bit) and carries into the next binade come out right.
  return (static_cast<unsigned>(exponent + format.bias - 1) << format.mantissa) +
         static_cast<unsigned>(steps);
}

float DecodeMagnitude(unsigned code, const Format& format) {
  const int field = static_cast<int>(code >> format.mantissa);
  const auto fraction = static_cast<double>(code & ((1u << format.mantissa) - 1));
  if (field == 0) {
    return static_cast<float>(std::ldexp(fraction, format.min_exponent() - format.mantissa));
  }
  const double significand = 1 + std::ldexp(fraction, -format.mantissa);
  return static_cast<float>(std::ldexp(significand, field - format.bias));
}

unsigned MagnitudeCode(double largest, const Format& format) {
  return RoundMagnitude(largest, format);
}

// Sign-magnitude code of `width` bits; `overflow` is the code that results above the largest value.
unsigned Encode(double x, const Format& format, int width, unsigned overflow, unsigned nan) {
  const unsigned sign = std::signbit(x) ? 1u << (width - 1) : 0u;
  if (std::isnan(x)) return nan;
  const double magnitude = std::abs(x);
  if (std::isinf(magnitude)) return sign | overflow;
  const unsigned code = RoundMagnitude(magnitude, format);
  return sign | (code > MagnitudeCode(format.largest, format) ? overflow : code);
}

float WithSign(bool negative, float magnitude) { return negative ? -magnitude : magnitude; }

// Smallest k with amax <= largest * 2^k, as ue8m0 byte.
ue8m0 ScaleFor(float amax, double largest) {
  if (std::isnan(amax)) return {255};
  if (std::isinf(amax)) return {254};
  const double clamped = std::max<double>(amax, 1e-4);
  int k = 0;
  std::frexp(clamped / largest, &k);  // clamped / largest = f * 2^k, f in [0.5, 1)
  if (std::ldexp(largest, k - 1) >= clamped) --k;
  return {static_cast<std::uint8_t>(std::clamp(k + 127, 0, 254))};
}

}  // namespace

std::string_view DTypeName(DType dtype) { return RowOf(dtype).name; }

std::optional<DType> ParseDType(std::string_view name) {
  for (const NameRow& row : kNames) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::size_t DTypeBytes(DType dtype, std::int64_t elements) {
  const auto count = static_cast<std::size_t>(elements);
  const auto bits = static_cast<std::size_t>(RowOf(dtype).bits);
  return bits >= 8 ? count * (bits / 8) : (count + 1) / 2;
}

float ToFloat(f16 x) {
  const unsigned magnitude = x.bits & 0x7FFFu;
  const bool negative = (x.bits & 0x8000u) != 0;
  if (magnitude > 0x7C00u) return std::numeric_limits<float>::quiet_NaN();
  if (magnitude == 0x7C00u) return WithSign(negative, std::numeric_limits<float>::infinity());
  return WithSign(negative, DecodeMagnitude(magnitude, kF16Format));
}

float ToFloat(e4m3 x) {
  const unsigned magnitude = x.bits & 0x7Fu;
  if (magnitude == 0x7Fu) return std::numeric_limits<float>::quiet_NaN();
  return WithSign((x.bits & 0x80u) != 0, DecodeMagnitude(magnitude, kE4M3Format));
}

float ToFloat(e5m2 x) {
  const unsigned magnitude = x.bits & 0x7Fu;
  const bool negative = (x.bits & 0x80u) != 0;
  if (magnitude > 0x7Cu) return std::numeric_limits<float>::quiet_NaN();
  if (magnitude == 0x7Cu) return WithSign(negative, std::numeric_limits<float>::infinity());
  return WithSign(negative, DecodeMagnitude(magnitude, kE5M2Format));
}

float ToFloat(ue8m0 x) {
  if (x.bits == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0f, x.bits - 127);
}

float E2M1ToFloat(unsigned code) {
  return WithSign((code & 8u) != 0, DecodeMagnitude(code & 7u, kE2M1Format));
}

bf16 ToBF16(double x) {
  return {static_cast<std::uint16_t>(Encode(x, kBF16Format, 16, 0x7F80, 0x7FC0))};
}
f16 ToF16(float x) { return ToF16(static_cast<double>(x)); }
f16 ToF16(double x) {
  return {static_cast<std::uint16_t>(Encode(x, kF16Format, 16, 0x7C00, 0x7E00))};
}
e4m3 ToE4M3(double x) { return {static_cast<std::uint8_t>(Encode(x, kE4M3Format, 8, 0x7E, 0x7F))}; }
e5m2 ToE5M2(double x) { return {static_cast<std::uint8_t>(Encode(x, kE5M2Format, 8, 0x7C, 0x7F))}; }
// The format has no NaN; hardware conversions give the largest value for one.
unsigned ToE2M1(double x) { return Encode(x, kE2M1Format, 4, 7, 7); }

ue8m0 ScaleForE4M3(float amax) { return ScaleFor(amax, 448.0); }
ue8m0 ScaleForE2M1(float amax) { return ScaleFor(amax, 6.0); }

double UlpBF16(double r) {
  const double magnitude = std::abs(r);
  const int exponent = magnitude == 0 || !std::isfinite(magnitude) ? -126 : std::ilogb(magnitude);
  return std::ldexp(1.0, std::max(exponent, -126) - 7);
}

}  // namespace assay
