// What one token's gates and norms come to, for kernels and wrong kernels. (The reference has its
// own.)
#pragma once

#include <cmath>
#include <cstdint>

#include "base/dtype.h"
#include "ops/kda_decode/spec.h"

namespace assay::kda_decode {

inline double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// e^(ln g) of one channel. `rate` = exp(A_log), 1 for the plain gate. In fp64, rounded once: with a
// decay near 1 the state remembers thousands of tokens, and an fp32 chain would lean the same way
// in each of them.
inline float Decay(Gate gate, double lower_bound, double rate, double a, double dt_bias) {
  const double x = a + dt_bias;
  if (gate != Gate::kUnbounded) {
    return static_cast<float>(std::exp(lower_bound * Sigmoid(rate * x)));
  }
  return static_cast<float>(std::exp(-rate * (x > 20 ? x : std::log1p(std::exp(x)))));
}

// scale * x / sqrt(sum x^2 + 1e-6), fp64 inside.
inline void Normalise(const bf16* x, double scale, float* y) {
  double squares = 1e-6;
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    const double value = ToFloat(x[i]);
    squares += value * value;
  }
  const double factor = scale / std::sqrt(squares);
  for (std::int64_t i = 0; i < kHeadSize; ++i) y[i] = static_cast<float>(ToFloat(x[i]) * factor);
}

inline const double kQueryScale = 1 / std::sqrt(128.0);

}  // namespace assay::kda_decode
