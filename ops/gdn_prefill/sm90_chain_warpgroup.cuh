// What one warpgroup of the wide chain (sm90_chain_wide.cu) does with a chunk, for 64 rows of V.
// With S the state as [V][K], and Y, U, O as [V][token] (transposed):
//   Y = beta (V - e^G S K^T)          U  = Y T^T
//   O = scale (e^G S Q^T + U P^T)     S' = e^(G_63) S + (e^(G_63 - G) U) K
// Rows of V are independent, so results of wgmma, as they lie in registers, are the left operand of
// the next product; right operands are tiles in shared memory. S never leaves the registers.
#pragma once

#include <cuda_bf16.h>

#include "cuda/ldmatrix.cuh"
#include "cuda/wgmma.cuh"
#include "cuda/wgmma_f16.cuh"
#include "ops/gdn_prefill/sm90_state_tiles.cuh"
#include "ops/gdn_prefill/sm90_walker.cuh"

namespace assay::gdn_prefill {

// One thread's part of a warpgroup. Accumulators of [64, N]: float 4 j + 2 h + i is row lane / 4 +
// 8 h of the warp's 16, column 8 j + 2 (lane % 4) + i.
class Walker {
 public:
  // `outputs`: this warp's staging buffer. `output`: of the sequence's first token, this warp's
  // first row.
  __device__ Walker(std::uint16_t* outputs, std::uint16_t* output, float scale)
      : lane_(threadIdx.x % 32), outputs_(outputs), output_(output), scale_(scale) {}

  __device__ void ClearState() {
#pragma unroll
    for (float& s : s_) s = 0;
  }
  __device__ void TakeState(const StateTiles& tiles) { gdn_prefill::TakeState(tiles, s_); }
  __device__ void StoreState(std::byte* staging, const CUtensorMap* map, std::int32_t row) const {
    StoreStateOfWarp(s_, staging, map, row);
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
  __device__ void BeginChunk(const KeyTile& key) {
#pragma unroll
    for (int step = 0; step < 8; ++step) Pack(s_ + 8 * step, s_left_[step]);
    sm90::WgmmaFenceOperand(x_);
    sm90::WgmmaFence();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const std::uint64_t rows = sm90::WgmmaDescriptor(key.k[step / 4]);
      sm90::WgmmaHalf(x_, s_left_[step], rows + step % 4 * 2, step > 0);
    }
    sm90::WgmmaCommitGroup();
  }

  // The rest of the chunk, of which `tokens` belong to the sequence.
  __device__ void EndChunk(const KeyTile& key, const HeadTile& head,
                           const std::uint16_t (*v)[kWarpRows], int tokens) {
    sm90::WgmmaFence();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const std::uint64_t rows = sm90::WgmmaDescriptor(key.q[step / 4]);
      sm90::WgmmaHalf(out_, s_left_[step], rows + step % 4 * 2, step > 0);
    }
    sm90::WgmmaCommitGroup();
    float beta_v[32];
    float2 decays[8];  // beta e^G
    LoadValues(v, head, tokens, beta_v, decays);

    sm90::WgmmaWaitGroup<1>();  // X
    sm90::WgmmaFenceOperand(x_);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      x_[i] = fmaf(i % 2 == 0 ? -decays[i / 4].x : -decays[i / 4].y, x_[i], beta_v[i]);
    }
    std::uint32_t y_left[4][4];
#pragma unroll
    for (int step = 0; step < 4; ++step) Pack(x_ + 8 * step, y_left[step]);
    sm90::WgmmaFenceOperand(x_);
    TimesTriangle(x_, y_left, head.t, false);

    sm90::WgmmaWaitGroup<1>();  // S Q^T
    sm90::WgmmaFenceOperand(out_);
    sm90::WgmmaFenceOperand(s_left_);
    ScaleTokens(out_, lane_, head.gates[kFromStart]);
    const float decay = head.gates[kFromStart][kChunk - 1];
#pragma unroll
    for (int i = 0; i < 64; ++i) s_[i] *= decay;

    sm90::WgmmaWaitGroup<0>();  // U
    sm90::WgmmaFenceOperand(x_);
    sm90::WgmmaFenceOperand(y_left);
    std::uint32_t u_left[4][4], decayed_left[4][4];
#pragma unroll
    for (int step = 0; step < 4; ++step) Pack(x_ + 8 * step, u_left[step]);
    largest_u_ = __hmax2(largest_u_, Largest(u_left));
    ScaleTokens(x_, lane_, head.gates[kToEnd]);
#pragma unroll
    for (int step = 0; step < 4; ++step) Pack(x_ + 8 * step, decayed_left[step]);
    sm90::WgmmaFenceOperand(s_);
    sm90::WgmmaFence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const std::uint64_t keys = sm90::WgmmaRowMajorDescriptor(key.k, sizeof(key.k[0]));
      sm90::WgmmaHalfRowMajor(s_, decayed_left[step], keys + step * 128, true);
    }
    sm90::WgmmaCommitGroup();
    sm90::WgmmaFenceOperand(out_);
    TimesTriangle(out_, u_left, head.p, true);

    sm90::WgmmaWaitGroup<0>();  // S, O
    sm90::WgmmaFenceOperand(s_);
    sm90::WgmmaFenceOperand(out_);
    sm90::WgmmaFenceOperand(decayed_left);
    sm90::WgmmaFenceOperand(u_left);
    // Rounded here: ptxas would wait for the next chunk's first product before it lets accumulators
    // of this one be read.
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const __nv_bfloat162 pair =
          __floats2bfloat162_rn(scale_ * out_[2 * i], scale_ * out_[2 * i + 1]);
      rounded_[i / 4][i % 4] = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
  }

  // Turns the outputs to [token][V] and stores 16 bytes of a token at a time.
  __device__ void StoreOutput(int chunk, int tokens) const {
    const std::uint32_t at =
        sm90::SharedAddress(outputs_) + (lane_ / 16 * 8 + lane_ % 8) * 32 + lane_ / 8 % 2 * 16;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {  // of tiles of 8 tokens
      sm90::StMatrixX4Trans(at + pair * 512, rounded_[pair]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = 16 * i + lane_ / 2;
      const std::int64_t to =
          (std::int64_t{chunk} * kChunk + token) * kValueHeads * kHeadSize + lane_ % 2 * 8;
      if (token < tokens) {
        *reinterpret_cast<uint4*>(output_ + to) =
            *reinterpret_cast<const uint4*>(outputs_ + i * 256 + lane_ * 8);
      }
    }
    __syncwarp();
  }

 private:
  // What Y takes from the stage, at the places of accumulators: beta v (0 behind the sequence), and
  // beta e^G of tokens 2 (lane % 4) and the next of each tile of 8.
  __device__ void LoadValues(const std::uint16_t (*v)[kWarpRows], const HeadTile& head, int tokens,
                             float (&beta_v)[32], float2 (&decays)[8]) const {
    const std::uint32_t at =
        sm90::SharedAddress(v) + (lane_ / 16 * 8 + lane_ % 8) * 32 + lane_ / 8 % 2 * 16;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      std::uint32_t words[4];  // rows 0-7 and 8-15 of tile 2 pair, then of the next
      sm90::LdMatrixX4Trans(words, at + pair * 512);
      TakeValues(words, head.gates, pair, tokens, lane_, beta_v, decays);
    }
  }

  const int lane_;
  std::uint16_t* const outputs_;
  std::uint16_t* const output_;
  const float scale_;
  float s_[64], x_[32] = {}, out_[32] = {};  // x: X, then Y, then U
  __half2 largest_u_ = {};
  std::uint32_t s_left_[8][4], rounded_[4][4] = {};  // rounded: outputs of the last chunk, bf16
};

}  // namespace assay::gdn_prefill
