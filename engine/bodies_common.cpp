// What task bodies share: norms, rounded products, quantisation of index vectors.
#include <vector>

#include "base/simd.h"
#include "engine/scalar_math.h"
#include "engine/step.h"

namespace assay::engine {

ASSAY_VECTOR_CLONES void RmsNormRow(const bf16* x, const float* weight, std::int64_t n, double eps,
                                    bf16* y) {
  const auto value = [&](std::int64_t i) { return ToFloat(x[i]); };
  const float mean = exact::Div(exact::DotTree(n, value, value), static_cast<float>(n));
  const float rstd = exact::InverseSqrt(exact::Add(mean, static_cast<float>(eps)));
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = ToBF16(exact::Mul(exact::Mul(ToFloat(x[i]), rstd), weight[i]));
  }
}

void LinearToBF16(const Step& step, const Matrix& w, std::int64_t n0, std::int64_t n1,
                  const bf16* x, std::int64_t x_stride, int count, bf16* y, std::int64_t y_stride) {
  const std::int64_t n = n1 - n0;
  std::vector<float> sums(static_cast<std::size_t>(n * count));
  step.math->Linear(w, n0, n1, x, x_stride, count, sums.data(), n);
  for (int row = 0; row < count; ++row) {
    for (std::int64_t i = 0; i < n; ++i) {
      y[row * y_stride + i] = ToBF16(sums[static_cast<std::size_t>(row * n + i)]);
    }
  }
}

float RotateAndQuantise(const bf16* x, std::int64_t n, e4m3* target) {
  std::vector<float> rotated(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) rotated[static_cast<std::size_t>(i)] = ToFloat(x[i]);
  exact::Hadamard(rotated.data(), static_cast<int>(n));
  float amax = 0;
  for (float& value : rotated) {
    value = ToFloat(ToBF16(value));
    amax = exact::Max(amax, exact::Abs(value));
  }
  const float scale = ToFloat(ScaleForE4M3(amax));  // power of two: the division is exact
  for (std::int64_t i = 0; i < n; ++i) {
    target[i] = ToE4M3(exact::Div(rotated[static_cast<std::size_t>(i)], scale));
  }
  return scale;
}

}  // namespace assay::engine
