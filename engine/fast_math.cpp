// Matrix products in ordinary fp32: 32 partial sums per output, multiply-adds, added pairwise at
// the end. A weight row comes from memory once for all rows of a step, and is decoded once.
#include <algorithm>
#include <vector>

#include "base/simd.h"
#include "engine/matrix_math.h"

namespace assay::engine {
namespace {

constexpr int kSums = 32;  // two vectors of AVX-512: enough chains to hide a multiply-add's latency

// Weights stream from memory: fetched this many elements ahead, across the end of a row (a prefetch
// of an address that does not exist does nothing).
constexpr std::int64_t kPrefetch = 2048;

[[gnu::always_inline]] inline float AddUp(float (&sums)[kSums]) {
  for (int step = kSums / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) sums[i] += sums[i + step];
  }
  return sums[0];
}

// out[r] = w . x_r for `rows` rows; the order of additions does not depend on `rows`.
ASSAY_VECTOR_CLONES void DotRows(const bf16* w, const bf16* x, std::int64_t x_stride,
                                 std::int64_t rows, std::int64_t k, float* out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const bf16* in = x + r * x_stride;
    float sums[kSums] = {};
    std::int64_t i = 0;
    for (; i + kSums <= k; i += kSums) {
      __builtin_prefetch(w + i + kPrefetch);
      for (int lane = 0; lane < kSums; ++lane) {
        sums[lane] = __builtin_fmaf(ToFloat(w[i + lane]), ToFloat(in[i + lane]), sums[lane]);
      }
    }
    for (int lane = 0; i + lane < k; ++lane) {
      sums[lane] = __builtin_fmaf(ToFloat(w[i + lane]), ToFloat(in[i + lane]), sums[lane]);
    }
    out[r] = AddUp(sums);
  }
}

ASSAY_VECTOR_CLONES void AddScaled(float weight, const bf16* row, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = __builtin_fmaf(weight, ToFloat(row[i]), y[i]);
}

class FastMath : public MatrixMath {
 public:
  void Linear(const Matrix& w, std::int64_t n0, std::int64_t n1, const bf16* x,
              std::int64_t x_stride, std::int64_t rows, float* y,
              std::int64_t y_stride) const override {
    std::vector<float> dots(static_cast<std::size_t>(rows));
    std::vector<bf16> decoded(w.format == WeightFormat::kBF16 ? 0 : static_cast<std::size_t>(w.k));
    for (std::int64_t i = n0; i < n1; ++i) {
      if (w.format == WeightFormat::kFP8) {
        BlockScaled(w, i, decoded, x, x_stride, rows, dots);
      } else {
        const bf16* row = w.format == WeightFormat::kBF16 ? w.row(i) : decoded.data();
        if (w.format != WeightFormat::kBF16) DecodeRow(w, i, 0, w.k, decoded.data());
        DotRows(row, x, x_stride, rows, w.k, dots.data());
      }
      const float scale = w.format == WeightFormat::kNVFP4 ? w.scale : 1.0f;
      for (std::int64_t r = 0; r < rows; ++r) {
        y[r * y_stride + i - n0] = dots[static_cast<std::size_t>(r)] * scale;
      }
    }
  }

  void Dots(const bf16* x, const bf16* const* rows, std::int64_t count, std::int64_t k,
            float* y) const override {
    for (std::int64_t j = 0; j < count; ++j) DotRows(x, rows[j], k, 1, k, y + j);
  }

  void Combine(const bf16* x, const bf16* const* rows, std::int64_t count, std::int64_t n,
               float* y) const override {
    std::fill(y, y + n, 0.0f);
    for (std::int64_t j = 0; j < count; ++j) AddScaled(ToFloat(x[j]), rows[j], n, y);
  }

 private:
  static void BlockScaled(const Matrix& w, std::int64_t i, std::vector<bf16>& decoded,
                          const bf16* x, std::int64_t x_stride, std::int64_t rows,
                          std::vector<float>& dots) {
    DecodeRow(w, i, 0, w.k, decoded.data());
    std::fill(dots.begin(), dots.end(), 0.0f);
    std::vector<float> part(dots.size());
    for (std::int64_t k = 0; k < w.k; k += kFP8Block) {
      DotRows(decoded.data() + k, x + k, x_stride, rows, std::min(kFP8Block, w.k - k), part.data());
      const float scale = BlockScale(w, i, k / kFP8Block);
      for (std::size_t r = 0; r < dots.size(); ++r)
        dots[r] = __builtin_fmaf(part[r], scale, dots[r]);
    }
  }
};

}  // namespace

std::unique_ptr<MatrixMath> MakeFastMath() { return std::make_unique<FastMath>(); }

}  // namespace assay::engine
