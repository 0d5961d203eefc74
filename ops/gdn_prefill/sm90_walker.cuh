// What the walkers of a warpgroup (sm90_chain_warpgroup.cuh, sm90_chain_paired.cuh) do with their
// accumulators of [64, N]: float 4 j + 2 h + i of a thread is row lane / 4 + 8 h of the warp's 16,
// column 8 j + 2 (lane % 4) + i.
#pragma once

#include "cuda/wgmma.cuh"
#include "cuda/wgmma_f16.cuh"
#include "ops/gdn_prefill/sm90_chain.cuh"

namespace assay::gdn_prefill {

// 16 columns as the left operand of a step.
__device__ inline void Pack(const float* values, std::uint32_t (&left)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) left[i] = PackHalf(values[2 * i], values[2 * i + 1]);
}

// The largest magnitude of each half.
__device__ inline __half2 Largest(const std::uint32_t (&words)[4][4]) {
  __half2 largest[4];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const __half2 value = __habs2(*reinterpret_cast<const __half2*>(&words[i / 4][i % 4]));
    largest[i % 4] = i < 4 ? value : __hmax2(largest[i % 4], value);
  }
  return __hmax2(__hmax2(largest[0], largest[1]), __hmax2(largest[2], largest[3]));
}

// sums[V, i] (+)= sum over tokens j of left[V, j] triangle[i][j]: issued as a group.
__device__ inline void TimesTriangle(float (&sums)[32], const std::uint32_t (&left)[4][4],
                                     const std::uint16_t* triangle, bool accumulate) {
  sm90::WgmmaFence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    sm90::WgmmaHalf(sums, left[step], sm90::WgmmaDescriptor(triangle) + step * 2,
                    accumulate || step > 0);
  }
  sm90::WgmmaCommitGroup();
}

// What Y takes of 16 tokens, at the places of accumulators: beta v (0 behind the sequence's
// `tokens`) and beta e^G of tokens 2 (lane % 4) and the next of each tile of 8. `words`: v of rows
// 0-7 and 8-15 of tile 2 pair, then of the next.
__device__ inline void TakeValues(std::uint32_t (&words)[4], const float (&gates)[kGates][kChunk],
                                  int pair, int tokens, int lane, float (&beta_v)[32],
                                  float2 (&decays)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int tile = 2 * pair + i / 2, token = 8 * tile + 2 * (lane % 4);
    if (token >= tokens) words[i] = 0;
    if (token + 1 >= tokens) words[i] &= 0xFFFFu;
    const float2 beta = *reinterpret_cast<const float2*>(gates[kBeta] + token);
    beta_v[4 * tile + 2 * (i % 2)] = beta.x * __uint_as_float(words[i] << 16);
    beta_v[4 * tile + 2 * (i % 2) + 1] = beta.y * __uint_as_float(words[i] & 0xFFFF0000u);
    decays[tile] = *reinterpret_cast<const float2*>(gates[kBetaDecay] + token);
  }
}

// Columns times factors[token].
__device__ inline void ScaleTokens(float (&values)[32], int lane, const float* factors) {
#pragma unroll
  for (int tile = 0; tile < 8; ++tile) {
    const float2 factor = *reinterpret_cast<const float2*>(factors + 8 * tile + 2 * (lane % 4));
    values[4 * tile] *= factor.x;
    values[4 * tile + 1] *= factor.y;
    values[4 * tile + 2] *= factor.x;
    values[4 * tile + 3] *= factor.y;
  }
}

}  // namespace assay::gdn_prefill
