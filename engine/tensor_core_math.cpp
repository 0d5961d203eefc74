// Matrix products by the tensor core's rule (base/tensor_core.h): K in ascending blocks of 16,
// every block truncated as the hardware does.
#include <algorithm>
#include <vector>

#include "base/tensor_core.h"
#include "engine/matrix_math.h"

namespace assay::engine {
namespace {

float Chain(const bf16* a, const bf16* b, std::int64_t k) {
  static const TensorCoreRule rule = RuleOf(*FindMatrixInstruction("mma.m16n8k16.bf16.bf16"));
  return TensorCoreDot(rule, a, b, k);
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
    if (w.format == WeightFormat::kNVFP4) return Chain(row, x, w.k) * w.scale;
    if (w.format != WeightFormat::kFP8) return Chain(row, x, w.k);
    float sum = 0;
    for (std::int64_t k = 0; k < w.k; k += kFP8Block) {
      const float part = Chain(row + k, x + k, std::min(kFP8Block, w.k - k));
      sum = __builtin_fmaf(part, BlockScale(w, i, k / kFP8Block), sum);
    }
    return sum;
  }
};

}  // namespace

std::unique_ptr<MatrixMath> MakeTensorCoreMath() { return std::make_unique<TensorCoreMath>(); }

}  // namespace assay::engine
