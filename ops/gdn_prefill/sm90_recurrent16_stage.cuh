// What the warps of a recurrent CTA share: shapes, a chunk of tokens in shared memory, and numbers
// of fp32 as sums of bf16. Included by sm90_recurrent16.cu only.
#pragma once

#include <cstdint>

#include "ops/gdn_prefill/sm90_recurrent_task.cuh"
#include "ops/gdn_prefill/spec.h"

namespace assay::gdn_prefill {
namespace {

constexpr int kChunk = 16, kHalf = 8;
constexpr int kConsumerWarps = 4, kProducerWarps = 4;
constexpr int kConsumers = 32 * kConsumerWarps;
constexpr int kThreads = kConsumers + 32 * kProducerWarps;
constexpr int kStages = kProducerWarps;  // each producer has its own
constexpr int kWidth = static_cast<int>(kHeadSize);
constexpr int kColumns = kWidth / kConsumerWarps;  // of a consumer warp
constexpr int kColumnTiles = kColumns / 8;
constexpr int kParts = 3;  // bf16 numbers that make one of fp32
// Elements between rows, so that the 8 rows which are accessed together are in different banks.
constexpr int kTokenStride = kWidth + 8;
constexpr int kMatrixStride = kChunk + 4;
constexpr int kRowStride = kChunk + 8;
constexpr unsigned kFull = 0xFFFFFFFFu;
constexpr int kConsumerBarrier = 1;

// D(i,j) = g_{j+1} .. g_i within the chunk; D(i,-1) = g_0 .. g_i. a(i,j) = beta_i D(i,j) k_i.k_j
// for j < i. Of the triangular matrices only the elements that are not 0 are there.
template <int kTiles>
struct __align__(16) Stage {
  std::uint16_t k[kChunk][kTokenStride], q[kChunk][kTokenStride];
  float inverse[kChunk][kMatrixStride];   // of 1 + a; before that a[j][i]
  float p[kChunk][kMatrixStride];         // scale D(i,j) q_i.k_j, j <= i
  float beta_v[16 * kTiles][kRowStride];  // beta_t v_t of row r at [r][t]
  float beta_d[kChunk];                   // beta_i D(i,-1)
  float scale_d[kChunk];                  // scale D(i,-1)
  float tail[kChunk];                     // D(15,i)
  float all[4];                           // D(15,-1)
};

template <int kTiles>
struct Shared {
  Stage<kTiles> stage[kStages];
  float with_k[kConsumerWarps][16 * kTiles][kRowStride];  // S k of a warp's columns, [row][token]
  float with_q[2][kConsumerWarps][16 * kTiles][kRowStride];        // S q, of even and odd chunks
  __align__(16) std::uint16_t w[kParts][16 * kTiles][kRowStride];  // D(15,t) u_t, [row][token]
  std::uint64_t tokens[kStages];                                   // k, q are there
  std::uint64_t coefficients[kStages];                             // the rest is there
  std::uint64_t empty[kStages];
};

using Task = RecurrentTask<kChunk>;

__device__ void MmaBF16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                        std::uint32_t b1) {
  MmaBF16(d, a[0], a[1], a[2], a[3], b0, b1);
}

// x = its upper half + the rest, exactly; the rest goes back to x.
__device__ std::uint32_t TakeUpper(float& x) {
  const std::uint32_t bits = __float_as_uint(x);
  x -= __uint_as_float(bits & 0xFFFF0000u);
  return bits;
}

// x, y as pairs of bf16 whose kParts sum to them (truncated: 8 of the 24 bits each).
__device__ void SplitPair(float x, float y, std::uint32_t (&parts)[kParts]) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const std::uint32_t low = TakeUpper(x), high = TakeUpper(y);
    parts[part] = __byte_perm(low, high, 0x7632);
  }
}

}  // namespace
}  // namespace assay::gdn_prefill
