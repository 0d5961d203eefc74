#include "base/tensor_core.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/simd.h"

namespace assay {
namespace {

struct Format {
  int bytes;
  int ignored_bits;  // low bits of the storage that do not count
  int exponent_bits, fraction_bits;
  int bias;
  bool infinities;  // the largest exponent field means infinity and NaN; e4m3 has one NaN code
};

constexpr std::array kFormats = {
    Format{2, 0, 8, 7, 127, true},    // bf16
    Format{2, 0, 5, 10, 15, true},    // f16
    Format{4, 13, 8, 10, 127, true},  // tf32
    Format{1, 0, 4, 3, 7, false},     // e4m3
    Format{1, 0, 5, 2, 15, true},     // e5m2
};
constexpr Format kF32{4, 0, 8, 23, 127, true};

const Format& FormatOf(Operand operand) { return kFormats[static_cast<std::size_t>(operand)]; }

enum class Kind : std::uint8_t { kZero, kFinite, kInfinite, kNaN };

// (-1)^negative * significand * 2^(exponent - fraction bits of the format)
struct Number {
  Kind kind;
  bool negative;
  int exponent;
  std::int64_t significand;
};

Number Decode(const Format& format, std::uint32_t code) {
  code >>= format.ignored_bits;
  const std::uint32_t fraction_mask = (1u << format.fraction_bits) - 1;
  const std::uint32_t field_mask = (1u << format.exponent_bits) - 1;
  const std::uint32_t fraction = code & fraction_mask;
  const std::uint32_t field = (code >> format.fraction_bits) & field_mask;
  Number number{};
  number.negative = (code >> (format.fraction_bits + format.exponent_bits) & 1u) != 0;
  if (field == field_mask && (format.infinities || fraction == fraction_mask)) {
    number.kind = format.infinities && fraction == 0 ? Kind::kInfinite : Kind::kNaN;
    return number;
  }
  // Subnormal numbers have the exponent of the smallest normal one.
  number.exponent = static_cast<int>(std::max(field, 1u)) - format.bias;
  number.significand = fraction | (field == 0 ? 0u : fraction_mask + 1);
  number.kind = number.significand == 0 ? Kind::kZero : Kind::kFinite;
  return number;
}

std::uint32_t Load(const Format& format, const void* data, int index) {
  const auto* bytes = static_cast<const unsigned char*>(data) + index * format.bytes;
  std::uint32_t code = 0;
  std::memcpy(&code, bytes, static_cast<std::size_t>(format.bytes));  // little endian
  return code;
}

// Exact: exponents and significands are those of the operands, 1.m * 1.m is not renormalised.
Number Product(const Number& a, const Number& b) {
  Number product{};
  product.negative = a.negative != b.negative;
  const bool infinite = a.kind == Kind::kInfinite || b.kind == Kind::kInfinite;
  const bool zero = a.kind == Kind::kZero || b.kind == Kind::kZero;
  if (a.kind == Kind::kNaN || b.kind == Kind::kNaN || (infinite && zero)) {
    product.kind = Kind::kNaN;
  } else if (infinite) {
    product.kind = Kind::kInfinite;
  } else if (zero) {
    product.kind = Kind::kZero;
  } else {
    product.kind = Kind::kFinite;
    product.exponent = a.exponent + b.exponent;
    product.significand = a.significand * b.significand;
  }
  return product;
}

// The one NaN that matrix instructions give.
constexpr std::uint32_t kNaNBits = 0x7FFFFFFFu;

float FromBits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

float Infinity(bool negative) { return FromBits(negative ? 0xFF800000u : 0x7F800000u); }

// sum * 2^quantum, truncated toward zero to `significant` bits and to what fp32 can hold. No sum is
// -0, not even that of negative zeros.
float Truncate(std::int64_t sum, int quantum, int significant) {
  if (sum == 0) return 0.0f;
  const bool negative = sum < 0;
  auto magnitude = static_cast<std::uint64_t>(negative ? -sum : sum);
  int width = std::bit_width(magnitude);
  if (width + quantum - 1 > 127) return Infinity(negative);
  // Bits below the last significant one, or below the fp32 subnormal grid, are dropped.
  const int drop = std::max(width - significant, -149 - quantum);
  if (drop >= width) return 0.0f;  // a sum that vanishes is +0, whatever its sign
  if (drop > 0) magnitude = magnitude >> drop << drop;
  const int exponent = width - 1 + quantum;
  std::uint32_t bits = negative ? 0x80000000u : 0u;
  if (exponent < -126) {
    const int shift = quantum + 149;
    bits |= static_cast<std::uint32_t>(shift >= 0 ? magnitude << shift : magnitude >> -shift);
  } else {
    const int shift = 24 - width;
    const auto significand =
        static_cast<std::uint32_t>(shift >= 0 ? magnitude << shift : magnitude >> -shift);
    bits |= static_cast<std::uint32_t>(exponent + 127) << 23 | (significand & 0x7FFFFFu);
  }
  return FromBits(bits);
}

// bf16 in blocks of 16, as plain loops over 16 lanes that the compiler turns into vectors. Blocks
// with an infinity or a NaN are left to TensorCoreBlock.
constexpr int kLanes = 16;
constexpr TensorCoreRule kBF16Rule{Operand::kBF16, Operand::kBF16, kLanes, 25, 24};

// Products of one block as sign, significand and exponent biased by 254; 0 = a zero product.
struct BF16Products {
  std::int32_t significand[kLanes], exponent[kLanes], sign[kLanes];
  std::int32_t largest;  // exponent
  std::int32_t special;  // not 0 when an operand is infinite or NaN
};

[[gnu::always_inline]] inline void MultiplyBF16(const std::uint16_t* a, const std::uint16_t* b,
                                                BF16Products& products) {
  std::int32_t largest = 0, special = 0;
  for (int i = 0; i < kLanes; ++i) {
    const std::int32_t field_a = a[i] >> 7 & 255, field_b = b[i] >> 7 & 255;
    const std::int32_t significand_a = (a[i] & 127) | (field_a != 0 ? 128 : 0);
    const std::int32_t significand_b = (b[i] & 127) | (field_b != 0 ? 128 : 0);
    const std::int32_t product = significand_a * significand_b;
    const std::int32_t exponent = std::max(field_a, 1) + std::max(field_b, 1);
    products.significand[i] = product;
    products.exponent[i] = product != 0 ? exponent : 0;
    products.sign[i] = (a[i] ^ b[i]) >> 15;
    largest = std::max(largest, products.exponent[i]);
    special |= field_a == 255 || field_b == 255 ? 1 : 0;
  }
  products.largest = largest;
  products.special = special;
}

// The sum on the grid of `largest`; 16 products of less than 2^16 shifted by 11 fit in 31 bits.
[[gnu::always_inline]] inline std::int32_t AddBF16(const BF16Products& products,
                                                   std::int32_t largest) {
  constexpr int kShift = kBF16Rule.grid_bits - 14;  // a product has 14 fraction bits
  std::int32_t sum = 0;
  for (int i = 0; i < kLanes; ++i) {
    const std::int32_t shift = std::min(largest - products.exponent[i], 31);
    const std::int32_t aligned = products.significand[i] << kShift >> shift;
    const std::int32_t minus = -products.sign[i];
    sum += (aligned ^ minus) - minus;
  }
  return sum;
}

ASSAY_VECTOR_CLONES float DotBF16(const std::uint16_t* a, const std::uint16_t* b,
                                  std::int64_t blocks, float c) {
  BF16Products products;
  for (std::int64_t block = 0; block < blocks; ++block, a += kLanes, b += kLanes) {
    MultiplyBF16(a, b, products);
    const auto bits = std::bit_cast<std::uint32_t>(c);
    const auto field = static_cast<std::int32_t>(bits >> 23 & 255);
    if (products.special != 0 || field == 255) {
      c = TensorCoreBlock(kBF16Rule, a, b, c);
      continue;
    }
    const auto significand = static_cast<std::int64_t>(bits & 0x7FFFFF) | (field != 0) << 23;
    const std::int32_t exponent = significand != 0 ? std::max(field, 1) + 127 : 0;
    const std::int32_t largest = std::max(products.largest, exponent);
    const std::int64_t aligned = significand << 2 >> std::min(largest - exponent, 63);
    const std::int64_t sum = AddBF16(products, largest) + (bits >> 31 != 0 ? -aligned : aligned);
    c = Truncate(sum, largest - 254 - kBF16Rule.grid_bits, kBF16Rule.significant_bits);
  }
  return c;
}

constexpr std::array kInstructions = {
    MatrixInstruction{"mma.m16n8k16.bf16.bf16", Operand::kBF16, Operand::kBF16, false},
    MatrixInstruction{"mma.m16n8k16.f16.f16", Operand::kF16, Operand::kF16, false},
    MatrixInstruction{"mma.m16n8k8.tf32.tf32", Operand::kTF32, Operand::kTF32, false},
    MatrixInstruction{"mma.m16n8k32.e4m3.e4m3", Operand::kE4M3, Operand::kE4M3, false},
    MatrixInstruction{"mma.m16n8k32.e5m2.e5m2", Operand::kE5M2, Operand::kE5M2, false},
    MatrixInstruction{"mma.m16n8k32.e4m3.e5m2", Operand::kE4M3, Operand::kE5M2, false},
    MatrixInstruction{"wgmma.m64n8k16.bf16.bf16", Operand::kBF16, Operand::kBF16, true},
    MatrixInstruction{"wgmma.m64n8k16.f16.f16", Operand::kF16, Operand::kF16, true},
    MatrixInstruction{"wgmma.m64n8k8.tf32.tf32", Operand::kTF32, Operand::kTF32, true},
    MatrixInstruction{"wgmma.m64n8k32.e4m3.e4m3", Operand::kE4M3, Operand::kE4M3, true},
    MatrixInstruction{"wgmma.m64n8k32.e5m2.e5m2", Operand::kE5M2, Operand::kE5M2, true},
    MatrixInstruction{"wgmma.m64n8k32.e4m3.e5m2", Operand::kE4M3, Operand::kE5M2, true},
};

}  // namespace

int OperandBytes(Operand operand) { return FormatOf(operand).bytes; }

std::span<const MatrixInstruction> MatrixInstructions() { return kInstructions; }

const MatrixInstruction* FindMatrixInstruction(std::string_view name) {
  for (const MatrixInstruction& instruction : kInstructions) {
    if (instruction.name == name) return &instruction;
  }
  return nullptr;
}

TensorCoreRule RuleOf(const MatrixInstruction& instruction) {
  const bool eight_bits = OperandBytes(instruction.a) == 1;
  if (eight_bits && instruction.warpgroup) return {instruction.a, instruction.b, 32, 13, 14};
  if (eight_bits) return {instruction.a, instruction.b, 32, 25, 24, true};
  return {instruction.a, instruction.b, instruction.k(), 25, 24};
}

namespace {

// Element k of an 8-bit operand as f16, which holds every value of both formats.
f16 AsF16(Operand operand, const void* data, int k) {
  const std::uint8_t code = static_cast<const std::uint8_t*>(data)[k];
  return ToF16(operand == Operand::kE4M3 ? ToFloat(e4m3{code}) : ToFloat(e5m2{code}));
}

float EmulatedBlock(const TensorCoreRule& rule, const void* a, const void* b, float c) {
  constexpr TensorCoreRule kF16{Operand::kF16, Operand::kF16, 16, 25, 24};
  float sum = 0;
  for (const int first : {0, 2}) {
    std::array<f16, 16> half_a, half_b;
    for (int i = 0; i < 16; ++i) {
      const int k = i / 2 * 4 + first + i % 2;
      half_a[static_cast<std::size_t>(i)] = AsF16(rule.a, a, k);
      half_b[static_cast<std::size_t>(i)] = AsF16(rule.b, b, k);
    }
    sum = TensorCoreBlock(kF16, half_a.data(), half_b.data(), sum);
  }
  sum += c;
  return std::isnan(sum) ? FromBits(kNaNBits) : sum;
}

}  // namespace

float TensorCoreBlock(const TensorCoreRule& rule, const void* a, const void* b, float c) {
  if (rule.emulated) return EmulatedBlock(rule, a, b, c);
  constexpr int kMaxBlock = 32;
  assert(rule.block <= kMaxBlock);
  const Format& format_a = FormatOf(rule.a);
  const Format& format_b = FormatOf(rule.b);
  std::array<Number, kMaxBlock + 1> terms;
  const int count = rule.block + 1;
  for (int k = 0; k < rule.block; ++k) {
    terms[static_cast<std::size_t>(k)] =
        Product(Decode(format_a, Load(format_a, a, k)), Decode(format_b, Load(format_b, b, k)));
  }
  terms[static_cast<std::size_t>(rule.block)] = Decode(kF32, std::bit_cast<std::uint32_t>(c));

  bool nan = false, plus = false, minus = false;
  int largest = std::numeric_limits<int>::min();
  for (int t = 0; t < count; ++t) {
    const Number& term = terms[static_cast<std::size_t>(t)];
    nan = nan || term.kind == Kind::kNaN;
    if (term.kind == Kind::kInfinite) (term.negative ? minus : plus) = true;
    if (term.kind == Kind::kFinite) largest = std::max(largest, term.exponent);
  }
  if (nan || (plus && minus)) return FromBits(kNaNBits);
  if (plus || minus) return Infinity(minus);
  if (largest == std::numeric_limits<int>::min())
    return 0;  // nothing but zeros, whatever their sign

  std::int64_t sum = 0;
  for (int t = 0; t < count; ++t) {
    const Number& term = terms[static_cast<std::size_t>(t)];
    if (term.kind != Kind::kFinite) continue;
    const int fraction_bits =
        t == rule.block ? kF32.fraction_bits : format_a.fraction_bits + format_b.fraction_bits;
    const int shift = rule.grid_bits - fraction_bits - (largest - term.exponent);
    const std::int64_t aligned =
        shift >= 0 ? term.significand << shift : term.significand >> std::min(-shift, 63);
    sum += term.negative ? -aligned : aligned;
  }
  return Truncate(sum, largest - rule.grid_bits, rule.significant_bits);
}

float TensorCoreDot(const TensorCoreRule& rule, const void* a, const void* b, std::int64_t k,
                    float c) {
  const auto* row_a = static_cast<const unsigned char*>(a);
  const auto* row_b = static_cast<const unsigned char*>(b);
  const int bytes_a = FormatOf(rule.a).bytes, bytes_b = FormatOf(rule.b).bytes;
  std::int64_t at = 0;
  if (rule == kBF16Rule) {
    at = k / kLanes * kLanes;
    c = DotBF16(static_cast<const std::uint16_t*>(a), static_cast<const std::uint16_t*>(b),
                k / kLanes, c);
  }
  for (; at + rule.block <= k; at += rule.block) {
    c = TensorCoreBlock(rule, row_a + at * bytes_a, row_b + at * bytes_b, c);
  }
  if (at == k) return c;
  std::array<unsigned char, 64> last_a{}, last_b{};
  std::memcpy(last_a.data(), row_a + at * bytes_a, static_cast<std::size_t>((k - at) * bytes_a));
  std::memcpy(last_b.data(), row_b + at * bytes_b, static_cast<std::size_t>((k - at) * bytes_b));
  return TensorCoreBlock(rule, last_a.data(), last_b.data(), c);
}

}  // namespace assay
