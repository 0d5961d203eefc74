// The recurrence itself for some rows of V of one (sequence, head): what the chain falls back to
// where fp16 does not hold its numbers. Correct, not fast.
#pragma once

#include <cuda_bf16.h>

#include "ops/gdn_decode/gates.cuh"
#include "ops/gdn_prefill/sm90_chunk.cuh"

namespace assay::gdn_prefill {

// Four bf16 to fp32.
__device__ inline void LoadFour(const bf16* from, float (&to)[4]) {
  const uint2 words = __ldg(reinterpret_cast<const uint2*>(from));
  to[0] = __uint_as_float(words.x << 16);
  to[1] = __uint_as_float(words.x & 0xFFFF0000u);
  to[2] = __uint_as_float(words.y << 16);
  to[3] = __uint_as_float(words.y & 0xFFFF0000u);
}

// The same bits in all lanes.
__device__ inline float WarpSum(float x) {
  for (int distance = 16; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(0xFFFFFFFFu, x, distance);
  }
  return x;
}

__device__ inline float BitsToFloat(const bf16* from) {
  return __uint_as_float(std::uint32_t{*reinterpret_cast<const std::uint16_t*>(from)} << 16);
}

// `scale` of a call; 0 = 1 / sqrt(128).
__device__ inline float ScaleOf(const Args& args) {
  const float scale = args.scale_at != nullptr ? *args.scale_at : args.scale;
  return scale == 0 ? kDefaultScale : scale;
}

// One warp, one row of V; tokens begin .. end - 1. Lane l holds columns 4 l .. 4 l + 3.
static __device__ __noinline__ void RecurrentRow(const Args& args, std::int64_t sequence, int head,
                                                 int row, std::int64_t begin, std::int64_t end,
                                                 float scale) {
  const int lane = threadIdx.x % 32;
  const std::int64_t state_at =
      ((sequence * kValueHeads + head) * kHeadSize + row) * kHeadSize + 4 * lane;
  float s[4] = {};
  for (int i = 0; i < 4 && args.state != nullptr; ++i) s[i] = args.state[state_at + i];
  const float exp_a_log = expf(args.a_log[head]), dt_bias = args.dt_bias[head];
  for (std::int64_t t = begin; t < end; ++t) {
    float q[4], k[4];
    LoadFour(args.q + (t * kKeyHeads + head / 2) * kHeadSize + 4 * lane, q);
    LoadFour(args.k + (t * kKeyHeads + head / 2) * kHeadSize + 4 * lane, k);
    const std::int64_t at = t * kValueHeads + head;
    const float g = gdn_decode::Decay(exp_a_log, BitsToFloat(args.a + at) + dt_bias);
    const float beta = gdn_decode::Beta(BitsToFloat(args.b + at));
    float old = 0;
    for (int i = 0; i < 4; ++i) {
      s[i] *= g;
      old += s[i] * k[i];
    }
    const float update = beta * (BitsToFloat(args.v + at * kHeadSize + row) - WarpSum(old));
    float out = 0;
    for (int i = 0; i < 4; ++i) {
      s[i] += update * k[i];
      out += s[i] * q[i];
    }
    out = WarpSum(out);
    if (lane == 0) {
      const __nv_bfloat16 rounded = __float2bfloat16_rn(scale * out);
      reinterpret_cast<__nv_bfloat16*>(args.output)[at * kHeadSize + row] = rounded;
    }
  }
  for (int i = 0; i < 4; ++i) args.new_state[state_at + i] = s[i];
}

}  // namespace assay::gdn_prefill
