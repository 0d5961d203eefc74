// The end of a tile: O from accumulators to global memory, the optional LSE, and rows that must be
// computed one by one.
#pragma once

#include <cstdint>

#include "cuda/fence.cuh"
#include "cuda/ldmatrix.cuh"
#include "cuda/tma.cuh"
#include "ops/attention/sm90_softmax.cuh"

namespace assay::attention {

// Thread t of a quad holds words[j] = columns 2t, 2t + 1 of group j; afterwards all of group t.
__device__ inline void TransposeQuad(std::uint32_t (&words)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int j = 0; j < 4; j += 2) {
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? words[j] : words[j + 1], 1);
    (odd ? words[j] : words[j + 1]) = other;
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, high ? words[j] : words[j + 2], 2);
    (high ? words[j] : words[j + 2]) = other;
  }
}

// 16 bytes by one predicated instruction: a branch here would cost the shuffles around it their
// convergence, and the compiler splits a uint4 whose words come from selects.
__device__ inline void StoreWords(bf16* to, const std::uint32_t (&words)[4], bool valid) {
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.b32 p, %5, 0;\n\t"
      "@p st.global.v4.b32 [%0], {%1, %2, %3, %4};\n\t"
      "}"
      :
      : "l"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]),
        "r"(static_cast<int>(valid))
      : "memory");
}

__device__ inline bool IsFinite(float x) { return fabsf(x) < __int_as_float(0x7f800000); }

// O of this thread's two rows, times `inverse`, rounded to bf16: 16 bytes a thread and store.
// Returns bit h when row h has a value that is not finite.
template <int kFloats>
__device__ unsigned StoreRows(const float (&o)[kFloats], const float (&inverse)[2],
                              bf16* const (&row)[2], const bool (&valid)[2]) {
  unsigned bad = 0;
#pragma unroll
  for (int i = 0; i < kFloats; i += 16) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      std::uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float x = o[i + 4 * j + 2 * h] * inverse[h];
        const float y = o[i + 4 * j + 2 * h + 1] * inverse[h];
        if (!IsFinite(x) || !IsFinite(y)) bad |= 1u << h;
        words[j] = sm90::PackBf16(x, y);
      }
      TransposeQuad(words);
      StoreWords(row[h] + i * 2 + threadIdx.x % 4 * 8, words, valid[h]);
    }
  }
  return bad;
}

__device__ inline bf16* OutputRow(const Sm90Tensors& x, std::int64_t batch, std::int64_t head,
                                  std::int64_t row) {
  return x.o + batch * x.o_strides.batch + head * x.o_strides.head + row * x.o_strides.token;
}

__device__ inline void StoreLse(const Sm90Tensors& x, std::int64_t batch, std::int64_t head,
                                std::int64_t row, float reference, float sum) {
  constexpr float kLn2 = 0.693147180559945f;
  if (x.lse == nullptr) return;
  x.lse[(batch * x.heads + head) * x.queries + row] =
      sum == 0 ? MinusInfinity() : (reference + log2f(sum)) * kLn2;
}

__device__ inline float FromBf16(bf16 x) { return __int_as_float(static_cast<int>(x.bits) << 16); }

// One warp, one row, fp32 throughout: any strides, and what a row does not see has no influence,
// not even NaN in V, which a matrix product would multiply by 0.
template <Visibility kVisibility>
struct ExactRow {
  const Params& params;
  std::int32_t batch, head, row;
  std::int32_t limit;

  __device__ ExactRow(const Params& p, std::int32_t b, std::int32_t h, std::int32_t r)
      : params(p), batch(b), head(h), row(r), limit(p.blocks.Limit(r)) {}

  __device__ bool Sees(std::int64_t key) const {
    if constexpr (kVisibility == Visibility::kBlockCausal) return key < limit;
    if constexpr (kVisibility == Visibility::kMask) {
      const Sm90Mask& mask = params.tensors.mask;
      return mask.visible[batch * mask.batch + head * mask.head + row * mask.query +
                          key * mask.key] != 0;
    }
    return true;
  }

  __device__ const bf16* KeyRow(const bf16* base, const Strides& s, std::int64_t key) const {
    return base + batch * s.batch + head * s.head + key * s.token;
  }

  // q . k in this lane; 8 channels a load where addresses allow is not worth it here.
  __device__ float Score(const bf16* q, const bf16* k) const {
    float sum = 0;
    for (int d = 0; d < params.tensors.head_dim; ++d) {
      sum = fmaf(FromBf16(q[d]), FromBf16(k[d]), sum);
    }
    return sum;
  }

  __device__ float LargestScore(const bf16* q, const Sm90Keys& keys) const {
    float largest = MinusInfinity();
    for (std::int64_t j = threadIdx.x % 32; j < keys.count; j += 32) {
      if (Sees(j)) largest = fmaxf(largest, Score(q, KeyRow(keys.k, keys.k_strides, j)));
    }
    return largest;
  }

  // Adds what the keys give to this lane's channels (lane, lane + 32, ...) and share of the sum.
  __device__ void Accumulate(const bf16* q, const Sm90Keys& keys, float largest, float& sum,
                             float (&o)[4]) const {
    const int lane = threadIdx.x % 32;
    for (std::int64_t first = 0; first < keys.count; first += 32) {
      const std::int64_t j = first + lane;
      const bool sees = j < keys.count && Sees(j);
      float weight = 0;
      if (sees) {
        const float score = Score(q, KeyRow(keys.k, keys.k_strides, j));
        weight = Exp2((score - largest) * params.scale_log2);
        sum += weight;
      }
      unsigned seen = __ballot_sync(0xffffffffu, sees);
      while (seen != 0) {
        const int source = __ffs(static_cast<int>(seen)) - 1;
        seen &= seen - 1;
        const float w = __shfl_sync(0xffffffffu, weight, source);
        const bf16* v = KeyRow(keys.v, keys.v_strides, first + source);
        for (int c = 0; c < 4; ++c) {
          if (c * 32 < params.tensors.head_dim) o[c] = fmaf(w, FromBf16(v[c * 32 + lane]), o[c]);
        }
      }
    }
  }

  __device__ void Run() const {
    const Sm90Tensors& x = params.tensors;
    const bf16* q =
        x.q + batch * x.q_strides.batch + head * x.q_strides.head + row * x.q_strides.token;
    float largest = fmaxf(LargestScore(q, x.prefix), LargestScore(q, x.suffix));
    for (int distance = 16; distance > 0; distance /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
    }
    float sum = 0, o[4] = {};
    Accumulate(q, x.prefix, largest, sum, o);
    Accumulate(q, x.suffix, largest, sum, o);
    for (int distance = 16; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    }
    const int lane = threadIdx.x % 32;
    bf16* out = OutputRow(x, batch, head, row);
    for (int c = 0; c < 4; ++c) {
      if (c * 32 >= x.head_dim) break;
      const float value = sum == 0 ? 0 : o[c] / sum;
      out[c * 32 + lane].bits = static_cast<std::uint16_t>(sm90::PackBf16(value, 0) & 0xFFFFu);
    }
    if (lane == 0) StoreLse(x, batch, head, row, largest * params.scale_log2, sum);
  }
};

// Rows of this warp (16, the first is `row`) of which some lane found values that are not finite:
// bit h of `bad` stands for row lane / 4 + 8 h.
template <Visibility kVisibility>
__device__ void RepairRows(const Params& params, const QueryTile& query, std::int32_t row,
                           unsigned bad) {
  for (int h = 0; h < 2; ++h) {
    unsigned lanes = __ballot_sync(0xffffffffu, (bad >> h & 1) != 0);
    while (lanes != 0) {
      const int quad = (__ffs(static_cast<int>(lanes)) - 1) / 4;
      lanes &= ~(0xFu << (quad * 4));
      const std::int32_t number = row + quad + 8 * h;
      if (number < params.tensors.queries) {
        ExactRow<kVisibility>(params, query.batch, query.head, number).Run();
      }
    }
  }
}

// LSE of the two rows of a quad, the first is `row`.
__device__ inline void StoreLseOfQuad(const Params& params, const QueryTile& query,
                                      std::int32_t row, const RowState& state,
                                      const float (&sum)[2]) {
  if (params.tensors.lse == nullptr || threadIdx.x % 4 != 0) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (row + 8 * h >= params.tensors.queries) continue;
    StoreLse(params.tensors, query.batch, query.head, row + 8 * h, state.reference[h], sum[h]);
  }
}

// A warp's 16 rows, the first is `row`, through `staging` and TMA, where every key reaches every
// row: chunks of 64 columns `pitch` bytes apart, 1024-byte aligned. The store reads them after the
// call: BulkWaitGroupRead in lane 0 says when it has.
template <int kFloats>
__device__ void StoreByTma(const float (&o)[kFloats], const RowState& state, const Params& params,
                           const QueryTile& query, std::int32_t row, std::byte* staging,
                           int pitch) {
  const int lane = threadIdx.x % 32, staging_row = lane % 16;  // of the address a lane gives
  const float sum[2] = {QuadSum(state.sum[0]), QuadSum(state.sum[1])};
  const float inverse[2] = {InverseSum(sum[0]), InverseSum(sum[1])};
#pragma unroll
  for (int pair = 0; pair < kFloats / 8; ++pair) {  // 16 columns
    const float* x = o + pair * 8;
    const std::uint32_t words[4] = {sm90::PackBf16(x[0] * inverse[0], x[1] * inverse[0]),
                                    sm90::PackBf16(x[2] * inverse[1], x[3] * inverse[1]),
                                    sm90::PackBf16(x[4] * inverse[0], x[5] * inverse[0]),
                                    sm90::PackBf16(x[6] * inverse[1], x[7] * inverse[1])};
    const int unit = (pair % 4 * 2 + lane / 16) ^ (staging_row % 8);
    sm90::StMatrixX4(staging + pair / 4 * pitch + staging_row * 128 + unit * 16, words);
  }
  sm90::FenceProxyAsyncShared();
  __syncwarp();
  if (lane == 0) {
#pragma unroll
    for (int chunk = 0; chunk < kFloats / 32; ++chunk) {
      sm90::TmaStore(
          &params.o,
          {chunk * 64, row, query.head * params.o_head_step, query.batch * params.o_batch_step},
          staging + chunk * pitch);
    }
    sm90::BulkCommitGroup();
  }
  StoreLseOfQuad(params, query, row + lane / 4, state, sum);
}

// A warpgroup's 64 rows, the first is `row`: everything that follows the last product.
template <Visibility kVisibility, int kFloats>
__device__ void FinishRows(const float (&o)[kFloats], const RowState& state, const Params& params,
                           const QueryTile& query, std::int32_t row) {
  const std::int32_t warp_row = row + threadIdx.x % 128 / 32 * 16;
  float sum[2], inverse[2];
  bf16* out[2];
  bool valid[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const std::int32_t number = warp_row + threadIdx.x % 32 / 4 + 8 * h;
    sum[h] = QuadSum(state.sum[h]);
    inverse[h] = InverseSum(sum[h]);
    valid[h] = number < params.tensors.queries;
    out[h] = OutputRow(params.tensors, query.batch, query.head, number);
  }
  const unsigned bad = StoreRows(o, inverse, out, valid);
  StoreLseOfQuad(params, query, warp_row + threadIdx.x % 32 / 4, state, sum);
  if constexpr (kVisibility != Visibility::kAll) {  // else all keys reach all rows
    if (__any_sync(0xffffffffu, bad != 0)) {
      __syncwarp();  // other lanes overwrite what was stored
      RepairRows<kVisibility>(params, query, warp_row, bad);
    }
  }
}

}  // namespace assay::attention
