// The number formats of captured operators and their exact conversions (docs: ops pages, dtypes).
// Storage types are plain bit holders: no arithmetic operators, so every rounding is written out.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace assay {

enum class DType : std::uint8_t {
  kBF16,
  kF16,
  kE4M3,   // "fn": no infinity, NaN = 0x7F / 0xFF
  kE5M2,   // IEEE-like: infinities and NaNs
  kE2M1,   // two codes a byte, low nibble first; shapes count elements, not bytes
  kUE8M0,  // power-of-two scale, 255 = NaN
  kF32,
  kF64,
  kI32,
  kI64,
  kU8,
  kBool,
  kI16,
  kI8,
};

// "bfloat16", "float8_e4m3fn", ...: the names of FlashInfer-Trace files.
std::string_view DTypeName(DType dtype);
std::optional<DType> ParseDType(std::string_view name);

// Bytes of `elements` consecutive elements; e2m1 rounds up to a whole byte.
std::size_t DTypeBytes(DType dtype, std::int64_t elements);

constexpr bool IsFloat(DType dtype) {
  return dtype <= DType::kE2M1 || dtype == DType::kF32 || dtype == DType::kF64;
}

struct bf16 {
  std::uint16_t bits = 0;
  friend bool operator==(bf16, bf16) = default;
};
struct f16 {
  std::uint16_t bits = 0;
  friend bool operator==(f16, f16) = default;
};
struct e4m3 {
  std::uint8_t bits = 0;
  friend bool operator==(e4m3, e4m3) = default;
};
struct e5m2 {
  std::uint8_t bits = 0;
  friend bool operator==(e5m2, e5m2) = default;
};
struct ue8m0 {
  std::uint8_t bits = 0;
  friend bool operator==(ue8m0, ue8m0) = default;
};

// Widening: exact for every code.
constexpr float ToFloat(bf16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
float ToFloat(f16 x);
float ToFloat(e4m3 x);
float ToFloat(e5m2 x);
float ToFloat(ue8m0 x);
float E2M1ToFloat(unsigned code);  // code 0..15

// Narrowing: round to nearest even, directly from the given type (fp64 never goes through fp32).
constexpr bf16 ToBF16(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16)};
}
bf16 ToBF16(double x);
f16 ToF16(float x);
f16 ToF16(double x);
e4m3 ToE4M3(double x);      // saturates to +-448, NaN -> 0x7F
e5m2 ToE5M2(double x);      // overflows to infinity
unsigned ToE2M1(double x);  // saturates to +-6, NaN -> +6; code 0..15
// Smallest 2^k with amax <= 448 * 2^k (for e2m1: 6 * 2^k); amax is first raised to 1e-4. Infinity
// gives the largest scale, NaN gives NaN.
ue8m0 ScaleForE4M3(float amax);
ue8m0 ScaleForE2M1(float amax);

// One unit in the last place of bf16 at magnitude |r|: 2^(max(floor(log2 |r|), -126) - 7).
double UlpBF16(double r);

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<f16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<e4m3> {
  static constexpr DType value = DType::kE4M3;
};
template <>
struct DTypeOf<e5m2> {
  static constexpr DType value = DType::kE5M2;
};
template <>
struct DTypeOf<ue8m0> {
  static constexpr DType value = DType::kUE8M0;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::kBool;
};
template <>
struct DTypeOf<std::int16_t> {
  static constexpr DType value = DType::kI16;
};
template <>
struct DTypeOf<std::int8_t> {
  static constexpr DType value = DType::kI8;
};

}  // namespace assay
