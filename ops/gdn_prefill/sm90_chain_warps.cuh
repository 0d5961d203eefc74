// What one warp of the narrow chain (sm90_chain_narrow.cu) does with a chunk. With S the state as
// [V][K], and Y, U, O as [V][token] (transposed):
//   Y = beta (V - e^G S K^T)          U  = Y T^T
//   O = scale (e^G S Q^T + U P^T)     S' = e^(G_63) S + (e^(G_63 - G) U) K
// Rows of V are independent, so a group of 16 of them is an m16 tile throughout. kSplit warps carry
// the state of a group from chunk to chunk (StateWarp), each 1 / kSplit of the columns of S and of
// the tokens of Y and U; they pass S, Y and U around as fp16 left operands in shared memory. As
// many warps compute the outputs (OutputWarp), up to one chunk behind them.
#pragma once

#include <cuda_bf16.h>

#include "cuda/fence.cuh"
#include "cuda/ldmatrix.cuh"
#include "cuda/mma.cuh"
#include "ops/gdn_prefill/sm90_chain.cuh"

namespace assay::gdn_prefill {

inline constexpr int kFirstGroupBarrier = 1;  // one a group

template <int kGroupCount, int kSplitCount>
struct Config {
  static constexpr int kGroups = kGroupCount, kSplit = kSplitCount;
  static constexpr int kRoleWarps = kGroups * kSplit;         // of each role: state, output
  static constexpr int kThreads = 32 * (2 * kRoleWarps + 1);  // the last warp loads
  static constexpr int kTokenTiles = kChunk / 8 / kSplit;     // columns of 8, a warp's share
  static constexpr int kStateTiles = kHeadSize / 8 / kSplit;
};

// Left operands of a group in fp16: 16 rows, units swizzled as in sm90_chunk.cuh. Those that the
// output warps read are there twice, for even and odd chunks.
struct Exchange {
  std::uint16_t state[2][kWarpRows * kHeadSize];
  std::uint16_t u[2][kWarpRows * kChunk];
  std::uint16_t y[kWarpRows * kChunk], u_decayed[kWarpRows * kChunk];
  std::uint16_t outputs[kWarpRows * kChunk];  // bf16 on their way to memory, [token][V]
  // Phase n of number i is chunk 2 n + i: S and U are written; outputs have read them.
  std::uint64_t state_ready[2], u_ready[2], outputs_done[2];
};

// What both roles share: which part is theirs, and where fragments lie.
template <class C>
class GroupWarp {
 protected:
  using Tokens = float[C::kTokenTiles][4];  // this warp's columns of an [16, 64] result

  __device__ GroupWarp(Exchange& exchange, int warp)
      : exchange_(exchange), lane_(threadIdx.x % 32), part_(warp % C::kSplit) {
    const int row = lane_ % 8;
    rows_ = row * 128 + (lane_ / 8 ^ row) * 16;
    triangle_ = row * 128 + (lane_ / 8 ^ row) * 16;
    left_wide_ = lane_ % 16 * 256 + (lane_ / 16 ^ row) * 16;
    left_ = lane_ % 16 * 128 + (lane_ / 16 ^ row) * 16;
  }

  // The 8 tokens of this warp's tile `t`: to and fro, so that each warp has late and early ones
  // (triangles). At most (t + 1) * kSplit - 1.
  __device__ int TokenTile(int t) const {
    return t % 2 == 0 ? t * C::kSplit + part_ : (t + 1) * C::kSplit - 1 - part_;
  }

  // 16 x 128 and 16 x 64 as left operands of steps of 16 columns.
  __device__ void LoadWide(const std::uint16_t* matrix, std::uint32_t (&left)[8][4]) const {
    const std::uint32_t at = sm90::SharedAddress(matrix);
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      sm90::LdMatrixX4(left[step], at + (left_wide_ ^ step % 4 * 32) + step / 4 * 128);
    }
  }
  __device__ void LoadTokens(const std::uint16_t* matrix, std::uint32_t (&left)[4][4]) const {
    const std::uint32_t at = sm90::SharedAddress(matrix);
#pragma unroll
    for (int step = 0; step < 4; ++step) sm90::LdMatrixX4(left[step], at + (left_ ^ step * 32));
  }

  // sums[V, token] = left[V, 128] rows[token, 128]^T for this warp's tokens; `rows` as k of
  // KeyTile.
  __device__ void TimesRows(Tokens& sums, const std::uint32_t (&left)[8][4],
                            const std::uint16_t* rows) const {
    const std::uint32_t at = sm90::SharedAddress(rows);
    for (int i = 0; i < 4 * C::kTokenTiles; ++i) sums[i / 4][i % 4] = 0;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {  // of steps of 16
#pragma unroll
      for (int t = 0; t < C::kTokenTiles; ++t) {
        std::uint32_t right[4];
        sm90::LdMatrixX4(right, at + TokenTile(t) * 1024 + (rows_ ^ pair % 2 * 64) +
                                    pair / 2 * sizeof(KeyTile::k[0]));
        sm90::MmaF16(sums[t], left[2 * pair], right[0], right[1]);
        sm90::MmaF16(sums[t], left[2 * pair + 1], right[2], right[3]);
      }
    }
  }

  // The last step of 16 tokens j that matters to the tokens i of any warp's tile `t`.
  __device__ static constexpr int LastStep(int t) { return ((t + 1) * C::kSplit - 1) / 2; }

  // Right operands triangle[i][j] of this warp's tokens i; what lies above the diagonal blocks is
  // not looked at, or zero.
  using Triangle = std::uint32_t[2][C::kTokenTiles][4];
  __device__ void LoadTriangle(const std::uint16_t* triangle, Triangle& right) const {
    const std::uint32_t at = sm90::SharedAddress(triangle);
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
#pragma unroll
      for (int t = 0; t < C::kTokenTiles; ++t) {
        if (LastStep(t) < 2 * pair) continue;
        sm90::LdMatrixX4(right[pair][t], at + TokenTile(t) * 1024 + (triangle_ ^ pair * 64));
      }
    }
  }

  // sums[V, i] += sum over tokens j of left[V, j] triangle[i][j].
  __device__ static void TimesTriangle(Tokens& sums, const std::uint32_t (&left)[4][4],
                                       const Triangle& right) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
#pragma unroll
      for (int t = 0; t < C::kTokenTiles; ++t) {
        if (LastStep(t) >= 2 * pair) {
          sm90::MmaF16(sums[t], left[2 * pair], right[pair][t][0], right[pair][t][1]);
        }
        if (LastStep(t) >= 2 * pair + 1) {
          sm90::MmaF16(sums[t], left[2 * pair + 1], right[pair][t][2], right[pair][t][3]);
        }
      }
    }
  }

  // Columns of this warp's tokens times factors[token].
  __device__ void ScaleTokens(Tokens& values, const float* factors) const {
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
      const float2 factor =
          *reinterpret_cast<const float2*>(factors + 8 * TokenTile(t) + 2 * (lane_ % 4));
      values[t][0] *= factor.x;
      values[t][1] *= factor.y;
      values[t][2] *= factor.x;
      values[t][3] *= factor.y;
    }
  }

  Exchange& exchange_;
  const int lane_, part_;
  // Bytes from the start of a matrix for this lane's row and its first unit: [.. rows][128] and
  // [.. rows][64] as right operands, then as left ones.
  int rows_, triangle_, left_wide_, left_;
};

// Carries 1 / kSplit of the columns of S.
template <class C>
class StateWarp : GroupWarp<C> {
  using Base = GroupWarp<C>;
  using Base::exchange_, Base::lane_, Base::part_;
  using typename Base::Tokens;

 public:
  __device__ StateWarp(const Work& work, Exchange* exchange, int warp)
      : Base(exchange[warp / C::kSplit], warp), group_(warp / C::kSplit) {
    constexpr int kTiles = C::kStateTiles;
    state_units_ = (this->left_wide_ ^ kTiles * part_ % 8 * 16) + kTiles * part_ / 8 * 128;
    const std::int64_t row = (work.sequence * kValueHeads + work.head) * kHeadSize +
                             work.first_row + kWarpRows * group_ + lane_ / 4;
    state_at_ = row * kHeadSize + 8 * kTiles * part_ + 2 * (lane_ % 4);
  }

  // `state` null = zeros.
  __device__ void LoadState(const float* state) {
#pragma unroll
    for (int i = 0; i < 2 * C::kStateTiles; ++i) {
      float2 pair = make_float2(0, 0);
      if (state != nullptr) {
        pair = *reinterpret_cast<const float2*>(state + state_at_ + Offset(i));
      }
      s_[i / 2][i % 2 * 2] = pair.x;
      s_[i / 2][i % 2 * 2 + 1] = pair.y;
    }
  }
  __device__ void StoreState(float* state) const {
#pragma unroll
    for (int i = 0; i < 2 * C::kStateTiles; ++i) {
      *reinterpret_cast<float2*>(state + state_at_ + Offset(i)) =
          make_float2(s_[i / 2][i % 2 * 2], s_[i / 2][i % 2 * 2 + 1]);
    }
  }

  // Whether fp16 held everything. Infinities and NaN of any earlier step are still in the state:
  // nothing turns them finite again. But U reaches it decayed, and the outputs as it is.
  __device__ bool AllIsFinite() const {
    bool finite = largest_u_ < kHalfOverflow;
#pragma unroll
    for (int i = 0; i < 4 * C::kStateTiles; ++i) finite = finite && isfinite(s_[i / 4][i % 4]);
    return finite;
  }

  // Shares S as it is before chunk number `chunk`.
  __device__ void ShareState(int chunk) {
    const int buffer = chunk % 2;
    if (chunk >= 2) sm90::MbarrierWait(&exchange_.outputs_done[buffer], chunk / 2 % 2 ^ 1);
    const std::uint32_t at = sm90::SharedAddress(exchange_.state[buffer]);
#pragma unroll
    for (int t = 0; t < C::kStateTiles; t += 2) {
      std::uint32_t words[4];
      Pack(s_, t, words);
      sm90::StMatrixX4(at + StateUnits(t), words);
    }
    GroupSync();
    if (part_ == 0 && lane_ == 0) sm90::MbarrierArrive(&exchange_.state_ready[buffer]);
  }

  // The rest of the chunk, of which `tokens` belong to the sequence.
  __device__ void Advance(const Stage<C::kGroups>& stage, int chunk, int tokens) {
    const int buffer = chunk % 2;
    std::uint32_t tokens_left[4][4];
    typename Base::Triangle triangle;
    {
      std::uint32_t left[8][4];
      this->LoadWide(exchange_.state[buffer], left);
      Tokens y;
      this->TimesRows(y, left, stage.key.k[0]);
      CorrectValues(y, stage, tokens);
      PutTokens(y, exchange_.y);
      this->LoadTriangle(stage.head.t, triangle);
    }
    GroupSync();
    this->LoadTokens(exchange_.y, tokens_left);
    Tokens u = {};
    Base::TimesTriangle(u, tokens_left, triangle);
#pragma unroll
    for (int i = 0; i < 4 * C::kTokenTiles; ++i) {
      largest_u_ = fmaxf(largest_u_, fabsf(u[i / 4][i % 4]));
    }
    PutTokens(u, exchange_.u[buffer]);
    this->ScaleTokens(u, stage.head.gates[kToEnd]);
    PutTokens(u, exchange_.u_decayed);
    Columns columns[2];
    LoadColumns(stage, 0, columns[0]);
    GroupSync();
    if (part_ == 0 && lane_ == 0) sm90::MbarrierArrive(&exchange_.u_ready[buffer]);
    this->LoadTokens(exchange_.u_decayed, tokens_left);
    UpdateState(tokens_left, columns, stage);
  }

 private:
  // Part i of the elements that this thread holds: tile i / 2, 8 rows below for odd i.
  __device__ static int Offset(int i) { return i / 2 * 8 + i % 2 * 8 * kHeadSize; }

  // Units of this warp's tiles t and t + 1 in a row of 128.
  __device__ int StateUnits(int t) const { return (state_units_ ^ t % 8 * 16) + t / 8 * 128; }

  __device__ void GroupSync() const { sm90::BarSync(kFirstGroupBarrier + group_, 32 * C::kSplit); }

  // Tiles t and t + 1 of fp32 results as words of four 8 x 8 matrices: rows 0-7 and 8-15 of t, then
  // of t + 1.
  template <int kTiles>
  __device__ static void Pack(const float (&values)[kTiles][4], int t, std::uint32_t (&words)[4]) {
    for (int i = 0; i < 4; ++i) {
      words[i] = PackHalf(values[t + i / 2][i % 2 * 2], values[t + i / 2][i % 2 * 2 + 1]);
    }
  }

  __device__ void PutTokens(const Tokens& values, std::uint16_t* matrix) const {
    const std::uint32_t at = sm90::SharedAddress(matrix) + lane_ % 16 * 128;
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; t += 2) {
      std::uint32_t words[4];
      Pack(values, t, words);
      const int tile = lane_ < 16 ? this->TokenTile(t) : this->TokenTile(t + 1);
      sm90::StMatrixX4(at + (tile ^ lane_ % 8) * 16, words);
    }
  }

  // x = beta v - beta e^G x; tokens behind the sequence count as v = 0.
  __device__ void CorrectValues(Tokens& x, const Stage<C::kGroups>& stage, int tokens) const {
    this->ScaleTokens(x, stage.head.gates[kBetaDecay]);
    const std::uint32_t at =
        sm90::SharedAddress(stage.v[group_]) + lane_ % 8 * 32 + lane_ / 8 % 2 * 16;
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; t += 2) {
      const int tile = lane_ < 16 ? this->TokenTile(t) : this->TokenTile(t + 1);
      std::uint32_t words[4];  // rows 0-7 and 8-15 of V of tile t, then of t + 1; pairs of tokens
      sm90::LdMatrixX4Trans(words, at + tile * 256);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = 8 * this->TokenTile(t + i / 2) + 2 * (lane_ % 4);
        const float2 beta = *reinterpret_cast<const float2*>(stage.head.gates[kBeta] + token);
        const float low = token < tokens ? __uint_as_float(words[i] << 16) : 0;
        const float high = token + 1 < tokens ? __uint_as_float(words[i] & 0xFFFF0000u) : 0;
        float(&pair)[4] = x[t + i / 2];
        pair[i % 2 * 2] = beta.x * low - pair[i % 2 * 2];
        pair[i % 2 * 2 + 1] = beta.y * high - pair[i % 2 * 2 + 1];
      }
    }
  }

  // Right operands of a step of 16 tokens for this warp's columns of S.
  using Columns = std::uint32_t[C::kStateTiles / 2][4];
  __device__ void LoadColumns(const Stage<C::kGroups>& stage, int step, Columns& columns) const {
    const std::uint32_t at = sm90::SharedAddress(stage.key.k[0]) + step * 2048 + lane_ % 16 * 128;
#pragma unroll
    for (int t = 0; t < C::kStateTiles; t += 2) {
      const int unit = C::kStateTiles * part_ + t;
      sm90::LdMatrixX4Trans(columns[t / 2], at + ((unit % 8 + lane_ / 16) ^ lane_ % 8) * 16 +
                                                unit / 8 * sizeof(KeyTile::k[0]));
    }
  }

  // S = e^(G_63) S + U K for this warp's columns; columns[0]: those of step 0.
  __device__ void UpdateState(const std::uint32_t (&left)[4][4], Columns (&columns)[2],
                              const Stage<C::kGroups>& stage) {
    const float decay = stage.head.gates[kFromStart][kChunk - 1];
#pragma unroll
    for (int i = 0; i < 4 * C::kStateTiles; ++i) s_[i / 4][i % 4] *= decay;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if (step + 1 < 4) LoadColumns(stage, step + 1, columns[(step + 1) % 2]);
      const Columns& right = columns[step % 2];
#pragma unroll
      for (int t = 0; t < C::kStateTiles; t += 2) {
        sm90::MmaF16(s_[t], left[step], right[t / 2][0], right[t / 2][1]);
        sm90::MmaF16(s_[t + 1], left[step], right[t / 2][2], right[t / 2][3]);
      }
    }
  }

  const int group_;
  int state_units_;
  std::int64_t state_at_;
  float s_[C::kStateTiles][4];
  float largest_u_ = 0;
};

// Computes 1 / kSplit of the outputs of each chunk.
template <class C>
class OutputWarp : GroupWarp<C> {
  using Base = GroupWarp<C>;
  using Base::exchange_, Base::lane_, Base::part_;
  using typename Base::Tokens;

 public:
  // `output`: of the sequence's first token, this head, this group's first row.
  __device__ OutputWarp(Exchange* exchange, int warp, std::uint16_t* output, float scale)
      : Base(exchange[warp / C::kSplit], warp), output_(output), scale_(scale) {}

  __device__ void WaitForState(int chunk) {
    sm90::MbarrierWait(&exchange_.state_ready[chunk % 2], chunk / 2 % 2);
  }

  // What must happen before the stage is given back.
  __device__ void Compute(const Stage<C::kGroups>& stage, int chunk) {
    const int buffer = chunk % 2;
    std::uint32_t left[8][4], u[4][4];
    this->LoadWide(exchange_.state[buffer], left);
    typename Base::Triangle triangle;
    this->TimesRows(out_, left, stage.key.q[0]);
    this->ScaleTokens(out_, stage.head.gates[kFromStart]);
    this->LoadTriangle(stage.head.p, triangle);
    sm90::MbarrierWait(&exchange_.u_ready[buffer], chunk / 2 % 2);
    this->LoadTokens(exchange_.u[buffer], u);
    __syncwarp();
    if (lane_ == 0) sm90::MbarrierArrive(&exchange_.outputs_done[buffer]);
    Base::TimesTriangle(out_, u, triangle);
  }

  // Rounds to bf16, turns to [token][V] and stores 16 bytes of a token at a time.
  __device__ void Store(int chunk, int tokens) const {
    std::byte* staging = reinterpret_cast<std::byte*>(exchange_.outputs) +
                         part_ * static_cast<int>(sizeof(exchange_.outputs)) / C::kSplit;
    const std::uint32_t at =
        sm90::SharedAddress(staging) + (lane_ / 16 * 8 + lane_ % 8) * 32 + lane_ / 8 % 2 * 16;
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; t += 2) {
      std::uint32_t words[4];
      for (int i = 0; i < 4; ++i) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(scale_ * out_[t + i / 2][i % 2 * 2],
                                                          scale_ * out_[t + i / 2][i % 2 * 2 + 1]);
        words[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
      }
      sm90::StMatrixX4Trans(at + t * 256, words);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < C::kTokenTiles / 2; ++i) {  // two tiles of 8 tokens x 2 units at a time
      const int tile = lane_ < 16 ? this->TokenTile(2 * i) : this->TokenTile(2 * i + 1);
      const int token = 8 * tile + lane_ / 2 % 8;
      const std::int64_t at =
          (std::int64_t{chunk} * kChunk + token) * kValueHeads * kHeadSize + lane_ % 2 * 8;
      if (token < tokens) {
        *reinterpret_cast<uint4*>(output_ + at) =
            *reinterpret_cast<const uint4*>(staging + i * 512 + lane_ * 16);
      }
    }
    __syncwarp();
  }

 private:
  std::uint16_t* const output_;
  const float scale_;
  Tokens out_;
};

}  // namespace assay::gdn_prefill
