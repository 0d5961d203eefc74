#include "ops/mla/codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/simd.h"

namespace assay::mla {
namespace {

std::uint32_t Bits(float x) { return std::bit_cast<std::uint32_t>(x); }
float FromBits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// The element conversions are written without branches, so that loops over them vectorise.

// |x| <= 448 to nearest even.
inline std::uint32_t E4M3Code(float x) {
  const std::uint32_t magnitude = Bits(x) & 0x7FFFFFFFu;
  // fp32 keeps 23 fraction bits and bias 127, e4m3 3 and 7.
  const std::uint32_t normal =
      ((magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u)) >> 20) - ((127 - 7) << 3);
  // 1.5 * 2^14 has an ulp of 2^-9, the step of subnormal codes.
  constexpr float kStep = 24576.0f;
  const std::uint32_t subnormal = Bits(FromBits(magnitude) + kStep) - Bits(kStep);
  return (magnitude < Bits(0x1p-6f) ? subnormal : normal) | (Bits(x) >> 24 & 0x80u);
}

// To nearest even, saturating: counts the midpoints below, ties go to the even code.
inline std::uint32_t E2M1Code(float x) {
  const float a = std::abs(x);
  const std::uint32_t code = std::uint32_t{a > 0.25f} + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) +
                             (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return code | (Bits(x) >> 28 & 8u);
}

// Code 0..15 as fp32.
inline float E2M1Value(std::uint32_t code) {
  const std::uint32_t m = code & 7u;
  // From code 2 on: exponent field m / 2 - 1 + 127, top fraction bit m % 2. Codes 0 and 1: 0, 0.5.
  const std::uint32_t magnitude = m >= 2 ? (m << 22) + (126u << 23) : m * Bits(0.5f);
  return FromBits(magnitude | (code & 8u) << 28);
}

inline float E4M3Value(std::uint32_t code) {
  const std::uint32_t m = code & 0x7Fu;
  // The code's fields in the places of fp32 are the value times 2^-120.
  const float value = FromBits((code & 0x80u) << 24 | m << 20) * 0x1p120f;
  return m == 0x7Fu ? std::numeric_limits<float>::quiet_NaN() : value;
}

const std::array<float, 256>& E4M3Values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> table{};
    for (unsigned code = 0; code < 256; ++code) {
      table[code] = ToFloat(e4m3{static_cast<std::uint8_t>(code)});
    }
    return table;
  }();
  return values;
}

float UE8M0Value(std::uint8_t byte) {
  if (byte == 0) return 0x1p-127f;
  return byte == 255 ? std::numeric_limits<float>::quiet_NaN()
                     : FromBits(std::uint32_t{byte} << 23);
}

float LargestMagnitude(const float* x, int count) {
  float largest = 0;
#pragma omp simd reduction(max : largest)
  for (int i = 0; i < count; ++i) largest = std::max(largest, std::abs(x[i]));
  return largest;
}

// Smallest k with amax <= 448 * 2^k, 448 = 1.75 * 2^8.
int ScaleExponent(float amax) {
  const std::uint32_t bits = Bits(std::max(amax, 1e-4f));
  const int exponent = static_cast<int>(bits >> 23) - 127;
  return (bits & 0x7FFFFFu) <= 0x600000u ? exponent - 8 : exponent - 7;
}

}  // namespace

ASSAY_VECTOR_CLONES void EncodeV41(const float* x, std::uint8_t* data, std::uint8_t* scales) {
  for (int group = 0; group < kV41.scale_bytes; ++group, x += 32, data += 32) {
    const int k = std::clamp(ScaleExponent(LargestMagnitude(x, 32)), -126, 127);
    scales[group] = static_cast<std::uint8_t>(k + 127);
    const float inverse = FromBits(static_cast<std::uint32_t>(127 - k) << 23);
    for (int i = 0; i < 32; ++i) data[i] = static_cast<std::uint8_t>(E4M3Code(x[i] * inverse));
  }
}

// Flat loops over all 512 elements, not one per group: groups of 16 are too short for wide vectors.
ASSAY_VECTOR_CLONES void EncodeV41Fp4(const float* x, std::uint8_t* data, std::uint8_t* scales) {
  float divisor[kDim];
  for (int group = 0; group < kV41Fp4.scale_bytes; ++group) {
    const float wanted = std::clamp(LargestMagnitude(x + 16 * group, 16) / 6.0f, 0x1p-9f, 448.0f);
    const std::uint32_t scale = E4M3Code(wanted);
    scales[group] = static_cast<std::uint8_t>(scale);
    std::fill_n(divisor + 16 * group, 16, E4M3Value(scale));
  }
  std::uint8_t codes[kDim];
  for (int i = 0; i < kDim; ++i) codes[i] = static_cast<std::uint8_t>(E2M1Code(x[i] / divisor[i]));
  for (int i = 0; i < kV41Fp4.data_bytes; ++i) {
    data[i] = static_cast<std::uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
  }
}

ASSAY_VECTOR_CLONES void DecodeV41(const std::uint8_t* data, const std::uint8_t* scales,
                                   float* out) {
  float scale[kDim];
  for (int group = 0; group < kV41.scale_bytes; ++group) {
    std::fill_n(scale + 32 * group, 32, UE8M0Value(scales[group]));
  }
  for (int i = 0; i < kDim; ++i) out[i] = E4M3Value(data[i]) * scale[i];
}

ASSAY_VECTOR_CLONES void DecodeV41(const std::uint8_t* data, const std::uint8_t* scales,
                                   bf16* out) {
  float scale[kDim];
  for (int group = 0; group < kV41.scale_bytes; ++group) {
    std::fill_n(scale + 32 * group, 32, UE8M0Value(scales[group]));
  }
  for (int i = 0; i < kDim; ++i) {
    out[i].bits = static_cast<std::uint16_t>(Bits(E4M3Value(data[i]) * scale[i]) >> 16);
  }
}

ASSAY_VECTOR_CLONES void DecodeV41Fp4(const std::uint8_t* data, const std::uint8_t* scales,
                                      bf16* out) {
  const std::array<float, 256>& scale_of_code = E4M3Values();
  float scale[256];  // of every byte of codes
  for (int group = 0; group < kV41Fp4.scale_bytes; ++group) {
    for (int i = 0; i < 8; ++i) scale[8 * group + i] = scale_of_code[scales[group]];
  }
  std::uint32_t pairs[256];
  for (int i = 0; i < kV41Fp4.data_bytes; ++i) {
    const std::uint32_t low = Bits(E2M1Value(data[i]) * scale[i]);
    const std::uint32_t high = Bits(E2M1Value(data[i] >> 4u) * scale[i]);
    pairs[i] = low >> 16 | (high & 0xFFFF0000u);
  }
  for (int i = 0; i < 256; ++i) {
    out[2 * i].bits = static_cast<std::uint16_t>(pairs[i]);
    out[2 * i + 1].bits = static_cast<std::uint16_t>(pairs[i] >> 16);
  }
}

bool FitsBF16(const std::uint8_t* scales) {
  return std::all_of(scales, scales + kV41.scale_bytes,
                     [](std::uint8_t byte) { return byte >= 10 && byte <= 246; });
}

}  // namespace assay::mla
