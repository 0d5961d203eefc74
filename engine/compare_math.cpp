#include "engine/compare_math.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace assay::engine {
namespace {

double Magnitude(const bf16* a, const bf16* b, std::int64_t k) {
  double sum = 0;
  for (std::int64_t i = 0; i < k; ++i) sum += std::abs(ToFloat(a[i]) * ToFloat(b[i]));
  return sum;
}

// sum |w x| of output i, from the row as bf16 without its block scales.
double LinearMagnitude(const Matrix& w, std::int64_t i, const bf16* row, const bf16* x) {
  if (w.format != WeightFormat::kFP8) {
    const double unscaled = Magnitude(row, x, w.k);
    return w.format == WeightFormat::kNVFP4 ? unscaled * std::abs(w.scale) : unscaled;
  }
  double sum = 0;
  for (std::int64_t k = 0; k < w.k; k += kFP8Block) {
    sum += Magnitude(row + k, x + k, std::min(kFP8Block, w.k - k)) *
           std::abs(BlockScale(w, i, k / kFP8Block));
  }
  return sum;
}

// Additions that a product passes in a sum of 32 lanes (engine/fast_math.cpp).
std::int64_t LaneRoundings(std::int64_t k) { return (k + 31) / 32 + 5; }

}  // namespace

double ProductBound(std::int64_t k, std::int64_t fast_roundings) {
  const auto length = static_cast<double>(k);
  const double tensor_core = std::ceil(length / 16) * (17 * 0x1p-25 + 0x1p-23);
  const double fast = static_cast<double>(fast_roundings) * 0x1p-24;
  const double scales = 2 * (std::ceil(length / 128) + 1) * 0x1p-24;
  return tensor_core + fast + scales;
}

void ProductComparison::Add(const ProductComparison& other) {
  products += other.products;
  beyond += other.beyond;
  if (other.worst > worst) worst = other.worst, worst_k = other.worst_k;
  worst_proven = std::max(worst_proven, other.worst_proven);
}

void ComparedMath::Compare(float exact, float fast, double magnitude, std::int64_t k,
                           std::int64_t fast_roundings) const {
  ++found_.products;
  if (exact == fast) return;
  // The step rounds most results to bf16: that may make one ulp of any difference.
  const double unrounded = std::abs(static_cast<double>(exact) - fast);
  const double rounded =
      std::abs(static_cast<double>(ToFloat(ToBF16(exact))) - ToFloat(ToBF16(fast)));
  const double share = std::max(unrounded, rounded) / (UlpBF16(exact) + kProductShare * magnitude);
  const double proven = unrounded / (ProductBound(k, fast_roundings) * magnitude);
  found_.worst_proven = std::max(found_.worst_proven, proven);
  if (!(share <= 1)) ++found_.beyond;
  if (!(share <= found_.worst)) found_.worst = share, found_.worst_k = k;
}

void ComparedMath::Linear(const Matrix& w, std::int64_t n0, std::int64_t n1, const bf16* x,
                          std::int64_t x_stride, std::int64_t rows, float* y,
                          std::int64_t y_stride) const {
  const std::int64_t n = n1 - n0;
  std::vector<float> fast(static_cast<std::size_t>(rows * n));
  std::vector<bf16> row(static_cast<std::size_t>(w.k));
  exact_->Linear(w, n0, n1, x, x_stride, rows, y, y_stride);
  fast_->Linear(w, n0, n1, x, x_stride, rows, fast.data(), n);
  for (std::int64_t i = n0; i < n1; ++i) {
    DecodeRow(w, i, 0, w.k, row.data());
    for (std::int64_t r = 0; r < rows; ++r) {
      Compare(y[r * y_stride + i - n0], fast[static_cast<std::size_t>(r * n + i - n0)],
              LinearMagnitude(w, i, row.data(), x + r * x_stride), w.k, LaneRoundings(w.k));
    }
  }
}

void ComparedMath::Dots(const bf16* x, const bf16* const* rows, std::int64_t count, std::int64_t k,
                        float* y) const {
  std::vector<float> fast(static_cast<std::size_t>(count));
  exact_->Dots(x, rows, count, k, y);
  fast_->Dots(x, rows, count, k, fast.data());
  for (std::int64_t j = 0; j < count; ++j) {
    Compare(y[j], fast[static_cast<std::size_t>(j)], Magnitude(x, rows[j], k), k, LaneRoundings(k));
  }
}

void ComparedMath::Combine(const bf16* x, const bf16* const* rows, std::int64_t count,
                           std::int64_t n, float* y) const {
  std::vector<float> fast(static_cast<std::size_t>(n));
  exact_->Combine(x, rows, count, n, y);
  fast_->Combine(x, rows, count, n, fast.data());
  for (std::int64_t i = 0; i < n; ++i) {
    double magnitude = 0;
    for (std::int64_t j = 0; j < count; ++j) {
      magnitude += std::abs(ToFloat(x[j]) * ToFloat(rows[j][i]));
    }
    Compare(y[i], fast[static_cast<std::size_t>(i)], magnitude, count, count);
  }
}

}  // namespace assay::engine
