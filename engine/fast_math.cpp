// Matrix products in ordinary fp32: 16 partial sums per output (one vector of AVX-512, two of
// AVX2), added pairwise at the end. Weights are read once for all rows of a step.
#include <algorithm>
#include <vector>

#include "engine/matrix_math.h"

namespace assay::engine {
namespace {

constexpr int kSums = 16;

float AddUp(float (&sums)[kSums]) {
  for (int step = kSums / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) sums[i] += sums[i + step];
  }
  return sums[0];
}

float Dot(const bf16* a, const bf16* b, std::int64_t k) {
  float sums[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums <= k; i += kSums) {
    for (int lane = 0; lane < kSums; ++lane) {
      sums[lane] += ToFloat(a[i + lane]) * ToFloat(b[i + lane]);
    }
  }
  for (int lane = 0; i + lane < k; ++lane)
    sums[lane] += ToFloat(a[i + lane]) * ToFloat(b[i + lane]);
  return AddUp(sums);
}

class FastMath : public MatrixMath {
 public:
  void Linear(const Matrix& w, std::int64_t n0, std::int64_t n1, const bf16* x,
              std::int64_t x_stride, std::int64_t rows, float* y,
              std::int64_t y_stride) const override {
    constexpr std::int64_t kScaleBlock = 128;
    std::vector<bf16> decoded(w.format == WeightFormat::kBF16 ? 0 : static_cast<std::size_t>(w.k));
    for (std::int64_t i = n0; i < n1; ++i) {
      const bf16* row = decoded.data();
      if (w.format == WeightFormat::kBF16) {
        row = w.row(i);
      } else {
        DecodeRow(w, i, 0, w.k, decoded.data());
      }
      for (std::int64_t r = 0; r < rows; ++r) {
        float& out = y[r * y_stride + i - n0];
        const bf16* in = x + r * x_stride;
        if (w.format == WeightFormat::kFP8) {
          out = 0;
          for (std::int64_t k = 0; k < w.k; k += kScaleBlock) {
            out += Dot(row + k, in + k, std::min(kScaleBlock, w.k - k)) *
                   BlockScale(w, i, k / kScaleBlock);
          }
        } else {
          out = Dot(row, in, w.k);
          if (w.format == WeightFormat::kNVFP4) out *= w.scale;
        }
      }
    }
  }

  void Dots(const bf16* x, const bf16* const* rows, std::int64_t count, std::int64_t k,
            float* y) const override {
    for (std::int64_t j = 0; j < count; ++j) y[j] = Dot(x, rows[j], k);
  }

  void Combine(const bf16* x, const bf16* const* rows, std::int64_t count, std::int64_t n,
               float* y) const override {
    std::fill(y, y + n, 0.0f);
    for (std::int64_t j = 0; j < count; ++j) {
      const float weight = ToFloat(x[j]);
      const bf16* row = rows[j];
      for (std::int64_t i = 0; i < n; ++i) y[i] += weight * ToFloat(row[i]);
    }
  }
};

}  // namespace

std::unique_ptr<MatrixMath> MakeFastMath() { return std::make_unique<FastMath>(); }

}  // namespace assay::engine
