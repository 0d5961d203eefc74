// Matrix products by the tensor core's rule: in each block of 16 products the terms, accumulator
// included, are truncated to a grid of 2^(emax - 25), added exactly, and truncated to 24 bits.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/matrix_math.h"

namespace assay::engine {
namespace {

constexpr int kBlock = 16;       // K of one instruction
constexpr int kGridBits = 25;    // F of the rule
constexpr int kResultBits = 24;  // S of the rule
constexpr int kZeroExponent = -100000;

// value = significand * 2^(exponent - fraction bits), 1.m or 0.m as encoded; exponent as encoded,
// where zero has none.
struct Term {
  bool negative = false;
  std::int64_t significand = 0;
  int exponent = kZeroExponent;
};

Term Product(bf16 a, bf16 b) {
  const int ea = (a.bits >> 7) & 255, eb = (b.bits >> 7) & 255;
  const std::int64_t ma = (a.bits & 127) | (ea > 0 ? 128 : 0),
                     mb = (b.bits & 127) | (eb > 0 ? 128 : 0);
  if (ma == 0 || mb == 0) return {};
  return {((a.bits ^ b.bits) & 0x8000) != 0, ma * mb,
          std::max(ea, 1) - 127 + std::max(eb, 1) - 127};  // 14 fraction bits
}

Term Accumulator(float c) {
  const auto bits = std::bit_cast<std::uint32_t>(c);
  const int e = static_cast<int>((bits >> 23) & 255);
  const std::int64_t m = (bits & 0x7FFFFF) | (e > 0 ? 0x800000 : 0);
  if (m == 0) return {};
  return {(bits >> 31) != 0, m, std::max(e, 1) - 127};  // 23 fraction bits
}

std::int64_t Align(const Term& term, int fraction_bits, int emax) {
  if (term.significand == 0) return 0;
  const int shift = term.exponent - emax + kGridBits - fraction_bits;
  const std::int64_t size = shift >= 0    ? term.significand << shift
                            : shift > -63 ? term.significand >> -shift
                                          : 0;
  return term.negative ? -size : size;
}

// sum * 2^exponent truncated toward zero to 24 bits, and to fp32's smallest exponent.
float Normalise(std::int64_t sum, int exponent) {
  if (sum == 0) return 0;
  const bool negative = sum < 0;
  auto size = static_cast<std::uint64_t>(negative ? -sum : sum);
  const int bits = std::bit_width(size);
  int drop = std::max(bits - kResultBits, 0);
  drop = std::max(drop, -149 - exponent);  // subnormal results keep the bits that fit
  if (drop > 63) return negative ? -0.0f : 0.0f;
  size = size >> drop << drop;
  const double value = std::ldexp(static_cast<double>(size), exponent);
  if (value > std::numeric_limits<float>::max()) {
    return negative ? -std::numeric_limits<float>::infinity()
                    : std::numeric_limits<float>::infinity();
  }
  return static_cast<float>(negative ? -value : value);
}

float StepExact(const bf16* a, const bf16* b, int count, float c) {
  Term terms[kBlock];
  const Term start = Accumulator(c);
  int emax = start.exponent;
  float non_finite = std::isfinite(c) ? 0.0f : c;
  for (int i = 0; i < count; ++i) {
    const float x = ToFloat(a[i]), y = ToFloat(b[i]);
    if (!std::isfinite(x) || !std::isfinite(y)) non_finite += x * y;
    terms[i] = Product(a[i], b[i]);
    emax = std::max(emax, terms[i].exponent);
  }
  if (non_finite != 0) return non_finite;  // NaN or an infinity; NaN != 0
  std::int64_t sum = Align(start, 23, emax);
  for (int i = 0; i < count; ++i) sum += Align(terms[i], 14, emax);
  return Normalise(sum, emax - kGridBits);
}

// The same for 16 products whose largest exponent is moderate: fp32 products are exact, and scaling
// to the grid makes conversion to integers the truncation. 16 terms below 2^27 fit 32 bits.
float StepFast(const bf16* a, const bf16* b, float c) {
  constexpr int kLow = -80, kHigh = 90;
  std::int32_t exponents[kBlock];
  float products[kBlock];
  for (int i = 0; i < kBlock; ++i) {
    const std::int32_t ea = (a[i].bits >> 7) & 255, eb = (b[i].bits >> 7) & 255;
    products[i] = ToFloat(a[i]) * ToFloat(b[i]);
    // A zero term must not raise emax, whatever the other operand's exponent.
    const bool zero = (a[i].bits & 0x7FFF) == 0 || (b[i].bits & 0x7FFF) == 0;
    exponents[i] = zero ? kZeroExponent : std::max(ea, 1) + std::max(eb, 1) - 254;
  }
  const Term start = Accumulator(c);
  std::int32_t emax = start.exponent;
  for (int i = 0; i < kBlock; ++i) emax = std::max(emax, exponents[i]);
  if (emax == kZeroExponent) return 0;
  // Outside, products or the scale may leave fp32.
  if (emax < kLow || emax > kHigh) return StepExact(a, b, kBlock, c);
  const float scale =
      std::bit_cast<float>(static_cast<std::uint32_t>(kGridBits - emax + 127) << 23);
  std::int32_t sum = 0;
  for (int i = 0; i < kBlock; ++i) sum += static_cast<std::int32_t>(products[i] * scale);
  return Normalise(sum + Align(start, 23, emax), emax - kGridBits);
}

float Chain(const bf16* a, const bf16* b, std::int64_t k) {
  float c = 0;
  std::int64_t i = 0;
  for (; i + kBlock <= k; i += kBlock) c = StepFast(a + i, b + i, c);
  if (i < k) c = StepExact(a + i, b + i, static_cast<int>(k - i), c);
  return c;
}

class TensorCoreMath : public MatrixMath {
 public:
  void Linear(const Matrix& w, std::int64_t n0, std::int64_t n1, const bf16* x,
              std::int64_t x_stride, std::int64_t rows, float* y,
              std::int64_t y_stride) const override {
    std::vector<bf16> decoded(static_cast<std::size_t>(w.k));
    for (std::int64_t i = n0; i < n1; ++i) {
      DecodeRow(w, i, 0, w.k, decoded.data());
      for (std::int64_t r = 0; r < rows; ++r) {
        y[r * y_stride + i - n0] = ScaledDot(w, i, decoded.data(), x + r * x_stride);
      }
    }
  }

  void Dots(const bf16* x, const bf16* const* rows, std::int64_t count, std::int64_t k,
            float* y) const override {
    for (std::int64_t j = 0; j < count; ++j) y[j] = Chain(x, rows[j], k);
  }

  void Combine(const bf16* x, const bf16* const* rows, std::int64_t count, std::int64_t n,
               float* y) const override {
    std::vector<bf16> column(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < count; ++j) column[static_cast<std::size_t>(j)] = rows[j][i];
      y[i] = Chain(x, column.data(), count);
    }
  }

 private:
  static float ScaledDot(const Matrix& w, std::int64_t i, const bf16* row, const bf16* x) {
    constexpr std::int64_t kScaleBlock = 128;
    if (w.format == WeightFormat::kNVFP4) return Chain(row, x, w.k) * w.scale;
    if (w.format != WeightFormat::kFP8) return Chain(row, x, w.k);
    float sum = 0;
    for (std::int64_t k = 0; k < w.k; k += kScaleBlock) {
      const float part = Chain(row + k, x + k, std::min(kScaleBlock, w.k - k));
      sum = __builtin_fmaf(part, BlockScale(w, i, k / kScaleBlock), sum);
    }
    return sum;
  }
};

}  // namespace

std::unique_ptr<MatrixMath> MakeTensorCoreMath() { return std::make_unique<TensorCoreMath>(); }

}  // namespace assay::engine
