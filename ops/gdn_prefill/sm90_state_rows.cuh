// 16 rows of a state [V][K] in the registers of a warp, as the accumulators of wgmma: float
// 4 j + 2 h + i of lane l is row l / 4 + 8 h, column 8 j + 2 (l % 4) + i.
#pragma once

#include "ops/gdn_prefill/spec.h"

namespace assay::gdn_prefill {

// Floats 2 i and 2 i + 1, from the warp's first row.
__device__ inline int StateRowsAt(int i) {
  const int lane = threadIdx.x % 32;
  return (lane / 4 + i % 2 * 8) * static_cast<int>(kHeadSize) + i / 2 * 8 + 2 * (lane % 4);
}

// `state` of the warp's first row; null = zeros.
__device__ inline void LoadStateRows(const float* state, float (&s)[64]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    float2 pair = make_float2(0, 0);
    if (state != nullptr) pair = *reinterpret_cast<const float2*>(state + StateRowsAt(i));
    s[2 * i] = pair.x;
    s[2 * i + 1] = pair.y;
  }
}

__device__ inline void StoreStateRows(const float (&s)[64], float* state) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    *reinterpret_cast<float2*>(state + StateRowsAt(i)) = make_float2(s[2 * i], s[2 * i + 1]);
  }
}

}  // namespace assay::gdn_prefill
