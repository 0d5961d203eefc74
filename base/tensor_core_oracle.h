// A second implementation of tensor-core arithmetic, in doubles and with mistakes to choose from.
// Test code only: it shares nothing with tensor_core.cpp but the table of rules.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/tensor_core.h"

namespace assay {

// What people believe the hardware does, and what a careless model would do.
enum class Mistake {
  kNone,
  kFinerGrid,         // F + 1
  kCoarserGrid,       // F - 1
  kOneBitMore,        // S + 1; nothing changes where S is already all of fp32
  kOneBitLess,        // S - 1
  kRoundedSum,        // the sum rounded to nearest even instead of truncated
  kRoundedTerms,      // the terms rounded to the grid instead of truncated
  kRenormalised,      // exponents of the products' values, in [1, 2)
  kAccumulatorAfter,  // products added without the accumulator, which is added at the end
  kHalfBlocks,        // two chained blocks of half the size
  kPlainFloat,        // fp32 additions one after the other
};

inline constexpr Mistake kMistakes[] = {Mistake::kFinerGrid,    Mistake::kCoarserGrid,
                                        Mistake::kOneBitMore,   Mistake::kOneBitLess,
                                        Mistake::kRoundedSum,   Mistake::kRoundedTerms,
                                        Mistake::kRenormalised, Mistake::kAccumulatorAfter,
                                        Mistake::kHalfBlocks,   Mistake::kPlainFloat};

namespace oracle {

struct Value {
  double value;
  int exponent;  // of the encoding: subnormal numbers have that of the smallest normal one
};

inline Value Make(double x, int smallest_exponent) {
  const bool ordinary = x != 0 && std::isfinite(x);
  return {x, ordinary ? std::max(std::ilogb(x), smallest_exponent) : 0};
}

inline Value Element(Operand operand, const void* data, int index) {
  switch (operand) {
    case Operand::kBF16:
      return Make(ToFloat(static_cast<const bf16*>(data)[index]), -126);
    case Operand::kF16:
      return Make(ToFloat(static_cast<const f16*>(data)[index]), -14);
    case Operand::kTF32: {
      std::uint32_t bits = 0;
      std::memcpy(&bits, static_cast<const char*>(data) + index * 4, sizeof bits);
      return Make(std::bit_cast<float>(bits & 0xFFFFE000u), -126);
    }
    case Operand::kE4M3:
      return Make(ToFloat(static_cast<const e4m3*>(data)[index]), -6);
    case Operand::kE5M2:
      return Make(ToFloat(static_cast<const e5m2*>(data)[index]), -14);
  }
  return {};
}

// x with its bits below 2^quantum cut off, or rounded to nearest even.
inline double OnGrid(double x, int quantum, bool rounded) {
  const double steps = std::ldexp(x, -quantum);
  return std::ldexp(rounded ? std::nearbyint(steps) : std::trunc(steps), quantum);
}

inline float ToFp32(double sum, int significant, bool rounded) {
  if (sum == 0) return 0;
  const int quantum = std::max(std::ilogb(sum) + 1 - significant, -149);
  const double kept = OnGrid(sum, quantum, rounded);
  if (kept == 0) return 0;  // never -0
  if (std::abs(kept) >= 0x1p128) return kept < 0 ? -INFINITY : INFINITY;
  return static_cast<float>(kept);  // exact
}

// `terms` on their common grid, summed. Doubles hold the sum exactly: at most 33 terms below 2^28.
inline double Sum(const std::vector<Value>& terms, int grid_bits, bool rounded) {
  int largest = std::numeric_limits<int>::min();
  for (const Value& term : terms) {
    if (term.value != 0) largest = std::max(largest, term.exponent);
  }
  double sum = 0;
  for (const Value& term : terms) {
    if (term.value != 0) sum += OnGrid(term.value, largest - grid_bits, rounded);
  }
  return sum;
}

}  // namespace oracle

// One block of `rule`, as TensorCoreBlock, with a mistake.
inline float OracleBlock(TensorCoreRule rule, const void* a, const void* b, float c,
                         Mistake mistake = Mistake::kNone) {
  using oracle::Value;
  if (rule.emulated) {
    const TensorCoreRule half{Operand::kF16, Operand::kF16, 16, rule.grid_bits,
                              rule.significant_bits};
    std::vector<f16> halves[2][2];  // [which half][operand]
    for (int k = 0; k < rule.block; ++k) {
      auto& to = halves[k / 2 % 2];
      to[0].push_back(ToF16(oracle::Element(rule.a, a, k).value));
      to[1].push_back(ToF16(oracle::Element(rule.b, b, k).value));
    }
    float sum = OracleBlock(half, halves[0][0].data(), halves[0][1].data(), 0, mistake);
    sum = OracleBlock(half, halves[1][0].data(), halves[1][1].data(), sum, mistake);
    if (std::isnan(sum + c)) return std::bit_cast<float>(0x7FFFFFFFu);
    return sum + c;
  }
  if (mistake == Mistake::kHalfBlocks) {
    rule.block /= 2;
    const int skip_a = rule.block * OperandBytes(rule.a),
              skip_b = rule.block * OperandBytes(rule.b);
    const float half = OracleBlock(rule, a, b, c);
    return OracleBlock(rule, static_cast<const char*>(a) + skip_a,
                       static_cast<const char*>(b) + skip_b, half);
  }
  if (mistake == Mistake::kFinerGrid) ++rule.grid_bits;
  if (mistake == Mistake::kCoarserGrid) --rule.grid_bits;
  if (mistake == Mistake::kOneBitMore)
    rule.significant_bits = std::min(24, rule.significant_bits + 1);
  if (mistake == Mistake::kOneBitLess) --rule.significant_bits;
  std::vector<Value> terms;
  float plain = c;
  double all = c;
  for (int k = 0; k < rule.block; ++k) {
    const Value x = oracle::Element(rule.a, a, k), y = oracle::Element(rule.b, b, k);
    Value product{x.value * y.value, x.exponent + y.exponent};
    all += product.value;
    plain += static_cast<float>(product.value);
    if (mistake == Mistake::kRenormalised && product.value != 0 && std::isfinite(product.value)) {
      product.exponent = std::ilogb(product.value);
    }
    terms.push_back(product);
  }
  if (!std::isfinite(all)) {
    return std::isnan(all) ? std::bit_cast<float>(0x7FFFFFFFu) : static_cast<float>(all);
  }
  if (mistake == Mistake::kPlainFloat) return plain;
  const bool rounded_sum = mistake == Mistake::kRoundedSum;
  const bool rounded_terms = mistake == Mistake::kRoundedTerms;
  if (mistake == Mistake::kAccumulatorAfter) {
    const double products = oracle::Sum(terms, rule.grid_bits, false);
    return oracle::ToFp32(products + static_cast<double>(c), rule.significant_bits, false);
  }
  terms.push_back(oracle::Make(c, -126));
  return oracle::ToFp32(oracle::Sum(terms, rule.grid_bits, rounded_terms), rule.significant_bits,
                        rounded_sum);
}

}  // namespace assay
