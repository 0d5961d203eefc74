// What the computing warpgroup of the paired chain (sm90_chain_paired.cu) does with a chunk, for 64
// rows of V.
// With S the state as [V][K], and Y, U, O as [V][token] (transposed):
//   Y = beta (V - e^G S K^T)          U  = Y T^T
//   O = scale (e^G S Q^T + U P^T)     S' = e^(G_63) S + (e^(G_63 - G) U) K
// Rows of V are independent, so results of wgmma, as they lie in registers, are the left operand of
// the next product; right operands are tiles in shared memory. S never leaves the registers.
#pragma once

#include <cuda_bf16.h>

#include "cuda/fence.cuh"
#include "cuda/ldmatrix.cuh"
#include "cuda/wgmma.cuh"
#include "cuda/wgmma_f16.cuh"
#include "ops/gdn_prefill/sm90_chain.cuh"
#include "ops/gdn_prefill/sm90_state_rows.cuh"
#include "ops/gdn_prefill/sm90_state_tiles.cuh"
#include "ops/gdn_prefill/sm90_walker.cuh"

namespace assay::gdn_prefill {

// The tiles of a chunk in shared memory: parts of KeyTile and HeadTile, and v; q and p only for
// outputs. t and p may arrive on their own.
struct ChunkTiles {
  const std::uint16_t (&k)[2][kChunk * 64], (&q)[2][kChunk * 64];
  const std::uint16_t *t, *p;
  const float (&gates)[kGates][kChunk];
  const std::uint16_t* v;  // bf16, [token][64 rows of V], swizzled as the others
  std::uint64_t *t_full, *p_full;
  int t_parity, p_parity;
};

// One thread's part of a warpgroup. Accumulators of [64, N]: float 4 j + 2 h + i is row lane / 4 +
// 8 h of the warp's 16, column 8 j + 2 (lane % 4) + i.
template <bool kOutputs>
class PairedWalker {
 public:
  // `output`: of the first token, the warpgroup's first row.
  __device__ PairedWalker(std::uint16_t* output, float scale)
      : lane_(threadIdx.x % 32), output_(output), scale_(scale) {}

  __device__ void ClearState() {
#pragma unroll
    for (float& s : s_) s = 0;
  }
  __device__ void TakeState(const StateTiles& tiles) { gdn_prefill::TakeState(tiles, s_); }
  __device__ void StoreState(const StateTiles& tiles, const CUtensorMap* map,
                             std::int32_t row) const {
    gdn_prefill::StoreState(s_, tiles, map, row);
  }

  // The identity, `first_row` being this warp's first one.
  __device__ void SetIdentity(int first_row) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const int at = StateRowsAt(i / 2) + i % 2;
      s_[i] = at / kHeadSize + first_row == at % kHeadSize ? 1.0f : 0.0f;
    }
  }

  // As fp16 in tiles of [2][64 rows][64 columns], each row of 64 swizzled as in sm90_chunk.cuh.
  __device__ void PutTransition(std::uint16_t (&tiles)[2][kChunk * 64]) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int row = threadIdx.x / 32 * kWarpRows + lane_ / 4 + i % 2 * 8, unit = i / 2;
      auto* to =
          reinterpret_cast<std::byte*>(tiles[unit / 8]) + Swizzled(row, unit % 8) + lane_ % 4 * 4;
      *reinterpret_cast<std::uint32_t*>(to) = PackHalf(s_[2 * i], s_[2 * i + 1]);
    }
  }

  // Whether fp16 held everything. Infinities and NaN of any earlier step are still in the state:
  // nothing turns them finite again. But U reaches it decayed, and the outputs as it is.
  __device__ bool AllIsFinite() const {
    const __half2 infinity = __half2half2(__ushort_as_half(0x7C00));
    bool finite = __hblt2(largest_u_, infinity);
#pragma unroll
    for (int i = 0; i < 64; ++i) finite = finite && isfinite(s_[i]);
    return finite;
  }

  // X = S K^T: issued, not finished.
  __device__ void BeginChunk(const ChunkTiles& tiles) {
#pragma unroll
    for (int step = 0; step < 8; ++step) Pack(s_ + 8 * step, s_left_[step]);
    sm90::WgmmaFenceOperand(x_);
    sm90::WgmmaFence();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const std::uint64_t rows = sm90::WgmmaDescriptor(tiles.k[step / 4]);
      sm90::WgmmaHalf(x_, s_left_[step], rows + step % 4 * 2, step > 0);
    }
    sm90::WgmmaCommitGroup();
  }

  __device__ void IssueQueries(const ChunkTiles& tiles) {
    sm90::WgmmaFence();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const std::uint64_t rows = sm90::WgmmaDescriptor(tiles.q[step / 4]);
      sm90::WgmmaHalf(out_, s_left_[step], rows + step % 4 * 2, step > 0);
    }
    sm90::WgmmaCommitGroup();
  }

  // The rest of the chunk, of which `tokens` belong to the sequence.
  __device__ void EndChunk(const ChunkTiles& tiles, int tokens) {
    if constexpr (kOutputs) IssueQueries(tiles);
    float beta_v[32];
    float2 decays[8];  // beta e^G
    LoadValues(tiles, tokens, beta_v, decays);
    if constexpr (kOutputs) sm90::MbarrierWait(tiles.t_full, tiles.t_parity);

    sm90::WgmmaWaitGroup<kOutputs ? 1 : 0>();  // X
    sm90::WgmmaFenceOperand(x_);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      x_[i] = fmaf(i % 2 == 0 ? -decays[i / 4].x : -decays[i / 4].y, x_[i], beta_v[i]);
    }
    std::uint32_t y_left[4][4];
#pragma unroll
    for (int step = 0; step < 4; ++step) Pack(x_ + 8 * step, y_left[step]);
    sm90::WgmmaFenceOperand(x_);
    TimesTriangle(x_, y_left, tiles.t, false);

    if constexpr (kOutputs) {
      sm90::WgmmaWaitGroup<1>();  // S Q^T
      sm90::WgmmaFenceOperand(out_);
      ScaleTokens(out_, lane_, tiles.gates[kFromStart]);
    }
    sm90::WgmmaFenceOperand(s_left_);
    const float decay = tiles.gates[kFromStart][kChunk - 1];
#pragma unroll
    for (int i = 0; i < 64; ++i) s_[i] *= decay;

    sm90::WgmmaWaitGroup<0>();  // U
    sm90::WgmmaFenceOperand(x_);
    sm90::WgmmaFenceOperand(y_left);
    std::uint32_t u_left[4][4], decayed_left[4][4];
    if constexpr (kOutputs) {
#pragma unroll
      for (int step = 0; step < 4; ++step) Pack(x_ + 8 * step, u_left[step]);
      largest_u_ = __hmax2(largest_u_, Largest(u_left));
    }
    ScaleTokens(x_, lane_, tiles.gates[kToEnd]);
#pragma unroll
    for (int step = 0; step < 4; ++step) Pack(x_ + 8 * step, decayed_left[step]);
    sm90::WgmmaFenceOperand(s_);
    sm90::WgmmaFence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const std::uint64_t keys = sm90::WgmmaRowMajorDescriptor(tiles.k, sizeof(tiles.k[0]));
      sm90::WgmmaHalfRowMajor(s_, decayed_left[step], keys + step * 128, true);
    }
    sm90::WgmmaCommitGroup();
    if constexpr (kOutputs) {
      sm90::WgmmaFenceOperand(out_);
      sm90::MbarrierWait(tiles.p_full, tiles.p_parity);
      TimesTriangle(out_, u_left, tiles.p, true);
    }
    sm90::WgmmaWaitGroup<0>();  // S, O
    sm90::WgmmaFenceOperand(s_);
    sm90::WgmmaFenceOperand(decayed_left);
    if constexpr (kOutputs) {
      sm90::WgmmaFenceOperand(out_);
      sm90::WgmmaFenceOperand(u_left);
      RoundOutputs();
    }
  }

  // By all four warps: turns the outputs to [token][64 rows] in `tile` and stores 128 bytes of a
  // token at a time.
  __device__ void StoreOutput(std::uint16_t* tile, int chunk, int tokens) const {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {  // of tiles of 8 tokens
      sm90::StMatrixX4Trans(RowsOfTokens(tile) + pair * 2048, rounded_[pair]);
    }
    sm90::FenceProxyAsyncShared();
    sm90::BarSync(1, 128);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = 16 * (threadIdx.x / 32) + 4 * i + lane_ / 8;
      const std::int64_t to =
          (std::int64_t{chunk} * kChunk + token) * kValueHeads * kHeadSize + lane_ % 8 * 8;
      const auto* from = reinterpret_cast<const std::byte*>(tile) + Swizzled(token, lane_ % 8);
      if (token < tokens) {
        *reinterpret_cast<uint4*>(output_ + to) = *reinterpret_cast<const uint4*>(from);
      }
    }
  }

 private:
  // Right after the chunk: ptxas would wait for the next chunk's first product before it lets
  // accumulators of this one be read.
  __device__ void RoundOutputs() {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const __nv_bfloat162 pair =
          __floats2bfloat162_rn(scale_ * out_[2 * i], scale_ * out_[2 * i + 1]);
      rounded_[i / 4][i % 4] = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
  }

  // Where this lane's row of this warp's four 8 x 8 matrices lies in a tile [token][64 rows]:
  // tokens 0-7 and 8-15, rows 0-7 and 8-15 of the warp. The next 16 tokens are 2048 bytes on.
  __device__ std::uint32_t RowsOfTokens(const std::uint16_t* tile) const {
    const int unit = threadIdx.x / 32 * 2 + lane_ / 8 % 2;
    return sm90::SharedAddress(tile) + Swizzled(lane_ / 16 * 8 + lane_ % 8, unit);
  }

  // What Y takes from the stage, at the places of accumulators: beta v (0 behind the sequence), and
  // beta e^G of tokens 2 (lane % 4) and the next of each tile of 8.
  __device__ void LoadValues(const ChunkTiles& tiles, int tokens, float (&beta_v)[32],
                             float2 (&decays)[8]) const {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      std::uint32_t words[4];  // rows 0-7 and 8-15 of tile 2 pair, then of the next
      sm90::LdMatrixX4Trans(words, RowsOfTokens(tiles.v) + pair * 2048);
      TakeValues(words, tiles.gates, pair, tokens, lane_, beta_v, decays);
    }
  }

  const int lane_;
  std::uint16_t* const output_;
  const float scale_;
  float s_[64], x_[32] = {}, out_[32] = {};  // x: X, then Y, then U
  __half2 largest_u_ = {};
  std::uint32_t s_left_[8][4], rounded_[4][4] = {};  // rounded: outputs of the last chunk, bf16
};

}  // namespace assay::gdn_prefill
