// The two gates of a token and value head, for kernels of both gated delta-rule rooms. (References
// have their own.)
#pragma once

#include <cmath>

#include "base/dtype.h"

namespace assay::gdn_decode {

struct Gates {
  float g = 0;     // decay of the state, 0..1
  float beta = 0;  // share of the new value, 0..1
};

// In fp64, rounded once: with g near 1 the state remembers thousands of tokens, and an fp32 chain
// would lean the same way in each of them.
inline Gates ComputeGates(float a_log, bf16 a, float dt_bias, bf16 b) {
  const double x = static_cast<double>(ToFloat(a)) + dt_bias;
  const double softplus = x > 20 ? x : std::log1p(std::exp(x));
  const double g = std::exp(-std::exp(static_cast<double>(a_log)) * softplus);
  const double beta = 1 / (1 + std::exp(-static_cast<double>(ToFloat(b))));
  return {static_cast<float>(g), static_cast<float>(beta)};
}

}  // namespace assay::gdn_decode
