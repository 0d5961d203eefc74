// The first kernel of the chunk path, one CTA per chunk and key head: q and k as fp16, the Gram
// matrices K K^T and Q K^T, and for both value heads of the key head the gates' prefix sums, the
// inverse of I + A and the decayed Q K^T.
#include <cuda_runtime.h>

#include "cuda/check.h"
#include "cuda/fence.cuh"
#include "cuda/griddepcontrol.cuh"
#include "cuda/ldmatrix.cuh"
#include "cuda/mma.cuh"
#include "cuda/tma.cuh"
#include "ops/gdn_decode/gates.cuh"
#include "ops/gdn_prefill/sm90_chunk.cuh"

namespace assay::gdn_prefill {
namespace {

using namespace assay::sm90;

constexpr int kBlock = 16;  // of the blockwise inverse
constexpr int kBlocks = kChunk / kBlock;
constexpr int kWarps = kBlocks * (kBlocks + 1) / 2;  // one per block of the lower triangle
constexpr int kThreads = 32 * kWarps;
constexpr int kLoadingThreads = 256;  // the last two warps compute gates meanwhile
constexpr int kGroupHeads = 2;        // value heads of a key head

// e^-120 is 0 in fp32: a stronger decay changes nothing, but would cost the sums their accuracy.
constexpr float kLeastLogDecay = -120;

// Of A, fp32, by columns; padded so that a warp's stores and both halves' loads miss no bank.
struct DiagonalBlocks {
  float column[kBlocks][kBlock][kBlock + 4];
  float pad[16];
};

struct LowerTriangle {
  std::uint16_t a[kGroupHeads][kChunk * kChunk];  // A below its diagonal blocks, as `t`
  DiagonalBlocks diagonal[kGroupHeads];
};

struct Shared {
  union {
    KeyTile key;
    LowerTriangle lower;  // once the Gram matrices are in registers
  };
  HeadTile head[kGroupHeads];
  float sum_high[kGroupHeads][kChunk], sum_low[kGroupHeads][kChunk];  // G in two terms
  float to_block_end[kGroupHeads][kChunk];  // e^(G_r - G_j), r the last token of j's block
  std::int64_t begin, end, first_slot;      // of the sequence
};
struct ChunkRange {
  std::int64_t begin = 0;  // first token
  int tokens = 0;          // 0 = the slot is unused
};

// The sequence of a slot: one look at all of cu_seqlens by the whole CTA.
__device__ ChunkRange FindChunk(const Args& args, std::int64_t slot, Shared& shared) {
  std::int64_t begin = 0, end = args.tokens, first_slot = 0;
  if (args.sequences > 1) {
    for (std::int64_t s = threadIdx.x; s < args.sequences; s += kThreads) {
      begin = args.cu_seqlens[s];
      end = args.cu_seqlens[s + 1];
      if (FirstSlot(begin, s) <= slot && slot < FirstSlot(end, s + 1)) {
        shared.begin = begin;
        shared.end = end;
        shared.first_slot = FirstSlot(begin, s);
      }
    }
    __syncthreads();
    begin = shared.begin;
    end = shared.end;
    first_slot = shared.first_slot;
  }
  ChunkRange range;
  range.begin = begin + (slot - first_slot) * kChunk;
  if (range.begin < end) {
    range.tokens = static_cast<int>(min(end - range.begin, std::int64_t{kChunk}));
  }
  return range;
}

// Two bf16 to two fp16: exact between 2^-14 and 65504 in magnitude.
__device__ std::uint32_t HalfOfBf16(std::uint32_t pair) {
  return PackHalf(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
}

// Zeros for the six blocks above the diagonal of T and P, 32 units each; the kernel writes the
// others.
__device__ void ClearUpperBlocks(Shared& shared) {
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const int block = threadIdx.x / 32 + 8 * i, upper = block % 6;  // of four matrices
    const int row = (upper >= 3) + (upper >= 5),
              column = upper + 1 - 2 * (upper >= 3) - (upper >= 5);
    HeadTile& head = shared.head[block / 12];
    auto* tile = reinterpret_cast<std::byte*>(block / 6 % 2 == 0 ? head.t : head.p);
    const int lane = threadIdx.x % 32;
    *reinterpret_cast<uint4*>(tile + Swizzled(kBlock * row + lane / 2, 2 * column + lane % 2)) =
        make_uint4(0, 0, 0, 0);
  }
}

// q and k of the chunk to shared memory as fp16; clears what stays zero while they are on the way.
// Returns whether all of this thread's are finite.
__device__ bool LoadKeys(const Args& args, const ChunkRange& range, int key_head, Shared& shared) {
  const int unit = threadIdx.x % 16;
  uint4 words[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = threadIdx.x / 16 + 16 * i;
    words[2 * i] = words[2 * i + 1] = make_uint4(0, 0, 0, 0);
    if (row >= range.tokens) continue;
    const std::int64_t at = ((range.begin + row) * kKeyHeads + key_head) * (kHeadSize / 8) + unit;
    words[2 * i] = __ldg(reinterpret_cast<const uint4*>(args.k) + at);
    words[2 * i + 1] = __ldg(reinterpret_cast<const uint4*>(args.q) + at);
  }
  ClearUpperBlocks(shared);
  __half2 largest = __half2{};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = threadIdx.x / 16 + 16 * (i / 2);
    uint4 w = words[i];
    w = make_uint4(HalfOfBf16(w.x), HalfOfBf16(w.y), HalfOfBf16(w.z), HalfOfBf16(w.w));
    for (const std::uint32_t pair : {w.x, w.y, w.z, w.w}) {
      largest = __hmax2_nan(largest, __habs2(*reinterpret_cast<const __half2*>(&pair)));
    }
    auto* tile = reinterpret_cast<std::byte*>(i % 2 == 0 ? shared.key.k : shared.key.q);
    *reinterpret_cast<uint4*>(tile + SwizzledKey(row, unit)) = w;
  }
  return __hlt(__hmax_nan(largest.x, largest.y), __ushort_as_half(0x7C00));  // below infinity
}

struct TokenGates {
  double log_decay = 0;
  float beta = 0;
};

__device__ TokenGates GatesOf(bf16 a, bf16 b, float exp_a_log, float dt_bias) {
  const float x = __uint_as_float(std::uint32_t{a.bits} << 16) + dt_bias;
  TokenGates gates;
  gates.beta = gdn_decode::Beta(__uint_as_float(std::uint32_t{b.bits} << 16));
  const float log_decay = x == INFINITY ? kLeastLogDecay : -exp_a_log * gdn_decode::Softplus(x);
  gates.log_decay = log_decay < kLeastLogDecay ? kLeastLogDecay : log_decay;  // NaN stays
  return gates;
}

// One warp: the gates of 64 tokens and a value head, two tokens per lane, sums in fp64.
__device__ void ComputeGates(const Args& args, const ChunkRange& range, int head, int local,
                             Shared& shared) {
  const int lane = threadIdx.x % 32;
  bf16 a[2], b[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::int64_t at = (range.begin + 2 * lane + i) * kValueHeads + head;
    if (2 * lane + i < range.tokens) {
      a[i] = args.a[at];
      b[i] = args.b[at];
    }
  }
  const float exp_a_log = expf(args.a_log[head]), dt_bias = args.dt_bias[head];
  TokenGates gates[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (2 * lane + i < range.tokens) gates[i] = GatesOf(a[i], b[i], exp_a_log, dt_bias);
  }
  double sums[2];  // up to and with this lane's tokens
  sums[1] = gates[0].log_decay + gates[1].log_decay;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const double other = __shfl_up_sync(0xFFFFFFFFu, sums[1], distance);
    if (lane >= distance) sums[1] += other;
  }
  sums[0] = __shfl_up_sync(0xFFFFFFFFu, sums[1], 1);
  sums[0] = (lane == 0 ? 0 : sums[0]) + gates[0].log_decay;
  const double total = __shfl_sync(0xFFFFFFFFu, sums[1], 31);
  const double block_end = __shfl_sync(0xFFFFFFFFu, sums[1], lane | (kBlock / 2 - 1));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = 2 * lane + i;
    const auto high = static_cast<float>(sums[i]);
    shared.sum_high[local][token] = high;
    shared.sum_low[local][token] = static_cast<float>(sums[i] - high);
    shared.to_block_end[local][token] = __expf(static_cast<float>(block_end - sums[i]));
    const float from_start = expf(high);
    auto& out = shared.head[local].gates;
    out[kBeta][token] = gates[i].beta;
    out[kBetaDecay][token] = gates[i].beta * from_start;
    out[kFromStart][token] = from_start;
    out[kToEnd][token] = expf(static_cast<float>(total - sums[i]));
  }
}

// One warp: block (row, column) of K K^T and Q K^T.
struct GramBlock {
  float kk[2][4] = {}, qk[2][4] = {};  // two tiles of 8 columns each

  __device__ GramBlock(const KeyTile& key, int row, int column) {
    const int lane = threadIdx.x % 32;
    const std::uint32_t k = SharedAddress(key.k), q = SharedAddress(key.q);
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      std::uint32_t left_k[4], left_q[4], right[4];
      const int at = SwizzledKey(kBlock * row + lane % 16, 2 * step + lane / 16);
      LdMatrixX4(left_k, k + at);
      LdMatrixX4(left_q, q + at);
      if (row == column) {  // the same 16 x 16 elements
        right[0] = left_k[0];
        right[1] = left_k[2];
        right[2] = left_k[1];
        right[3] = left_k[3];
      } else {
        LdMatrixX4(right, k + SwizzledKey(kBlock * column + lane / 16 * 8 + lane % 8,
                                          2 * step + lane / 8 % 2));
      }
      MmaF16(kk[0], left_k, right[0], right[1]);
      MmaF16(kk[1], left_k, right[2], right[3]);
      MmaF16(qk[0], left_q, right[0], right[1]);
      MmaF16(qk[1], left_q, right[2], right[3]);
    }
  }
};

// e^(G_i - G_j) for i >= j at this lane's places in block (row, column); anything elsewhere. Below
// the diagonal e^(G_i - G_r) e^(G_r - G_j) with r the last token of the block column: neither
// exponent is positive.
__device__ void DecaysOfBlock(const Shared& shared, int local, int row, int column,
                              float (&decay)[2][4]) {
  const int lane = threadIdx.x % 32, i0 = kBlock * row + lane / 4;
  const float *high = shared.sum_high[local], *low = shared.sum_low[local];
  const int last = kBlock * column + kBlock - 1;
  float from_last[2];
  for (int half = 0; half < 2; ++half) {
    const int i = i0 + 8 * half;
    from_last[half] = __expf((high[i] - high[last]) + (low[i] - low[last]));
  }
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const int j = kBlock * column + 8 * tile + 2 * (lane % 4);
    if (row != column) {
      const float2 to = *reinterpret_cast<const float2*>(&shared.to_block_end[local][j]);
      for (int half = 0; half < 2; ++half) {
        decay[tile][2 * half] = from_last[half] * to.x;
        decay[tile][2 * half + 1] = from_last[half] * to.y;
      }
    } else {
      const float2 high_j = *reinterpret_cast<const float2*>(high + j);
      const float2 low_j = *reinterpret_cast<const float2*>(low + j);
      for (int half = 0; half < 2; ++half) {
        const int i = i0 + 8 * half;
        decay[tile][2 * half] = __expf((high[i] - high_j.x) + (low[i] - low_j.x));
        decay[tile][2 * half + 1] = __expf((high[i] - high_j.y) + (low[i] - low_j.y));
      }
    }
  }
}

// For one value head: A = beta_i e^(G_i - G_j) k_i.k_j for j < i (diagonal blocks to `diagonal`,
// the rest to `a`), and P = e^(G_i - G_j) q_i.k_j for j <= i. Returns whether fp16 holds P.
__device__ bool StoreBlock(const GramBlock& gram, int row, int column, int local, Shared& shared) {
  const int lane = threadIdx.x % 32;
  float decay[2][4];
  DecaysOfBlock(shared, local, row, column, decay);
  const float* betas = shared.head[local].gates[kBeta] + kBlock * row + lane / 4;
  const float beta[2] = {betas[0], betas[8]};
  std::uint32_t a_words[4], p_words[4];
  float largest_p = 0;
#pragma unroll
  for (int word = 0; word < 4; ++word) {  // rows 0-7 and 8-15 of tile 0, then of tile 1
    const int tile = word / 2, half = word % 2;
    float a[2], p[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      // Places in the block: the masks matter in diagonal blocks alone.
      const int i = lane / 4 + 8 * half, j = 8 * tile + 2 * (lane % 4) + e;
      const bool below = row != column || j < i, on_or_below = row != column || j <= i;
      const float factor = decay[tile][2 * half + e];
      a[e] = below ? beta[half] * factor * gram.kk[tile][2 * half + e] : 0.0f;
      p[e] = on_or_below ? factor * gram.qk[tile][2 * half + e] : 0.0f;
      largest_p = fmaxf(largest_p, fabsf(p[e]));
      if (row == column) shared.lower.diagonal[local].column[row][j][i] = a[e];
    }
    a_words[word] = PackHalf(a[0], a[1]);
    p_words[word] = PackHalf(p[0], p[1]);
  }
  const int at = Swizzled(kBlock * row + lane % 16, 2 * column + lane / 16);
  StMatrixX4(SharedAddress(shared.head[local].p) + at, p_words);
  if (row != column) StMatrixX4(SharedAddress(shared.lower.a[local]) + at, a_words);
  return largest_p < kHalfOverflow;
}

// One warp inverts a diagonal block of I + A of both value heads: lane 16 h + c holds column c.
__device__ void InvertDiagonal(int block, Shared& shared) {
  const int local = threadIdx.x % 32 / kBlock, column = threadIdx.x % kBlock;
  const auto& a = shared.lower.diagonal[local].column[block];
  float x[kBlock];
#pragma unroll
  for (int i = 0; i < kBlock; ++i) x[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
  for (int k = 0; k < kBlock - 1; ++k) {
#pragma unroll
    for (int i4 = (k + 1) / 4 * 4; i4 < kBlock; i4 += 4) {
      const float4 rows = *reinterpret_cast<const float4*>(&a[k][i4]);
      const float below[4] = {rows.x, rows.y, rows.z, rows.w};
#pragma unroll
      for (int i = i4; i < i4 + 4; ++i) {
        if (i > k) x[i] -= below[i - i4] * x[k];
      }
    }
  }
  auto* t = reinterpret_cast<std::byte*>(shared.head[local].t);
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    const int row = kBlock * block + i, j = kBlock * block + column;
    *reinterpret_cast<__half*>(t + Swizzled(row, j / 8) + j % 8 * 2) = __float2half_rn(x[i]);
  }
}

// D += X[16, 16] Y^T with Y the block (row, column) of a tile.
__device__ void MultiplyByBlock(float (&d)[2][4], const std::uint32_t (&x)[4],
                                const std::byte* tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  std::uint32_t b[4];
  LdMatrixX4(b,
             tile + Swizzled(kBlock * row + lane / 16 * 8 + lane % 8, 2 * column + lane / 8 % 2));
  MmaF16(d[0], x, b[0], b[1]);
  MmaF16(d[1], x, b[2], b[3]);
}

// -d as the left operand of a product.
__device__ void Negate(const float (&d)[2][4], std::uint32_t (&x)[4]) {
  for (int i = 0; i < 4; ++i) x[i] = PackHalf(-d[i / 2][i % 2 * 2], -d[i / 2][i % 2 * 2 + 1]);
}

// One warp: the blocks below the diagonal in one block column of T, from top to bottom:
// T_ij = -T_ii sum_k A_ik T_kj, computed transposed so that each result, as it lies in registers,
// is the left operand of the next product.
__device__ void InvertColumn(int local, int column, Shared& shared) {
  const int lane = threadIdx.x % 32;
  auto* t = reinterpret_cast<std::byte*>(shared.head[local].t);
  const auto* a = reinterpret_cast<const std::byte*>(shared.lower.a[local]);
  const int row_in_block = lane / 16 * 8 + lane % 8, unit_in_block = lane / 8 % 2;
  std::uint32_t done[kBlocks][4];  // T_kj^T of blocks column, column + 1, ..
  LdMatrixX4Trans(done[0],
                  t + Swizzled(kBlock * column + row_in_block, 2 * column + unit_in_block));
#pragma unroll
  for (int step = 1; step < kBlocks; ++step) {
    const int row = column + step;
    if (row >= kBlocks) break;
    float sum[2][4] = {}, product[2][4] = {};
#pragma unroll
    for (int k = 0; k < step; ++k) MultiplyByBlock(sum, done[k], a, row, column + k);
    std::uint32_t x[4];
    Negate(sum, x);
    MultiplyByBlock(product, x, t, row, row);
    for (int i = 0; i < 4; ++i) {
      done[step][i] = PackHalf(product[i / 2][i % 2 * 2], product[i / 2][i % 2 * 2 + 1]);
    }
    StMatrixX4Trans(t + Swizzled(kBlock * row + row_in_block, 2 * column + unit_in_block),
                    done[step]);
  }
}

__global__ void __launch_bounds__(kThreads, 3)
    FactorsKernel(const Args args, const Workspace workspace) {
  extern __shared__ __align__(128) std::byte memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  GridDepControlLaunchDependents();
  const std::int64_t slot = blockIdx.x / kKeyHeads;
  const int key_head = blockIdx.x % kKeyHeads, warp = threadIdx.x / 32;
  const ChunkRange range = FindChunk(args, slot, shared);
  if (range.tokens == 0) return;
  bool finite = true;
  if (threadIdx.x < kLoadingThreads) {
    finite = LoadKeys(args, range, key_head, shared);
  } else {
    const int local = warp - kLoadingThreads / 32;
    ComputeGates(args, range, kGroupHeads * key_head + local, local, shared);
  }
  FenceProxyAsyncShared();
  finite = __syncthreads_and(finite);
  if (threadIdx.x == 0) {
    BulkStore(workspace.keys + slot * kKeyHeads + key_head, &shared.key, sizeof(KeyTile));
    BulkCommitGroup();
  }
  {
    // Warps 0-3 have the diagonal blocks, the others (1,0), (2,0), (2,1), (3,0), (3,1), (3,2).
    const int below = warp - kBlocks;
    const int row = below < 0 ? warp : 1 + (below >= 1) + (below >= 3);
    const int column = below < 0 ? warp : below - (row - 1) * row / 2;
    const GramBlock gram(shared.key, row, column);
    if (threadIdx.x == 0) BulkWaitGroupRead<0>();
    __syncthreads();  // `lower` takes the place of `key`
    for (int local = 0; local < kGroupHeads; ++local) {
      finite &= StoreBlock(gram, row, column, local, shared);
    }
    __syncwarp();
    if (row == column) InvertDiagonal(row, shared);
  }
  FenceProxyAsyncShared();
  finite = __syncthreads_and(finite);
  HeadTile* heads = workspace.heads + slot * kValueHeads + kGroupHeads * key_head;
  if (threadIdx.x == 0) {
    for (int local = 0; local < kGroupHeads; ++local) {
      HeadTile& head = shared.head[local];
      if (!finite) {
        head.gates[kFromStart][kChunk - 1] = NAN;
        FenceProxyAsyncShared();
      }
      BulkStore(heads[local].p, head.p, sizeof(head.p) + sizeof(head.gates));  // neighbours
    }
    BulkCommitGroup();
  }
  if (warp >= kBlocks) InvertColumn((warp - kBlocks) % 2, (warp - kBlocks) / 2, shared);
  FenceProxyAsyncShared();
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int local = 0; local < kGroupHeads; ++local) {
      BulkStore(heads[local].t, shared.head[local].t, sizeof(HeadTile::t));
    }
    BulkCommitGroup();
    BulkWaitGroupRead<0>();
  }
}

}  // namespace

void LaunchFactors(const Args& args, const Workspace& workspace, Stream stream) {
  static const bool allowed = [] {
    CheckCuda(cudaFuncSetAttribute(FactorsKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   sizeof(Shared)),
              "cudaFuncSetAttribute of FactorsKernel");
    // The same split of L1 for all kernels: an SM changes it only when it is idle.
    CheckCuda(cudaFuncSetAttribute(FactorsKernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared),
              "cudaFuncSetAttribute of the L1 split");
    return true;
  }();
  static_cast<void>(allowed);
  const std::int64_t slots = FirstSlot(args.tokens, args.sequences);
  FactorsKernel<<<static_cast<unsigned>(slots * kKeyHeads), kThreads, sizeof(Shared), stream>>>(
      args, workspace);
  CheckCuda(cudaGetLastError(), "launch of FactorsKernel");
}

}  // namespace assay::gdn_prefill
