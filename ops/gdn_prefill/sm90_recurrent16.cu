// The recurrence on Hopper with the state in registers, one launch. A CTA advances some rows of one
// (sequence, head) in chunks of 16 tokens. As in the CPU kernel (README.md), the products of a
// chunk are taken with the state before it; decays are products of gates, never logarithms.
//
// All products are by tensor cores and as exact as fp32: q and k are bf16, and a number of fp32 is
// the sum of three of bf16. Producer warps take turns with the chunks: they copy q and k and make
// what all rows share (gates, k.k and q.k, the inverse of the triangular system). Each consumer
// warp has 32 columns of all rows of the CTA; their sums meet in shared memory.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/fence.cuh"
#include "cuda/griddepcontrol.cuh"
#include "cuda/launch.cuh"
#include "cuda/ldmatrix.cuh"
#include "cuda/mbarrier.cuh"
#include "cuda/warp_rows.cuh"
#include "ops/gdn_prefill/sm90_recurrent.h"
#include "ops/gdn_prefill/sm90_recurrent16_producer.cuh"
#include "ops/gdn_prefill/sm90_recurrent16_stage.cuh"

namespace assay::gdn_prefill {
namespace {

using namespace assay::sm90;

// ------------------------------------------------------------------ consumers

// Rows l / 4 + 16 tile and + 8, columns 8 n + 2 (l % 4) and the next of the warp's, as a matrix
// product leaves them: x[tile][n].
template <int kTiles>
using StateRows = float[kTiles][kColumnTiles][4];

// Part 0, 1, 2 of a tile of the state as left operand of 16 of the warp's columns each.
using Operand = std::uint32_t[kParts][kColumns / 16][4];

__device__ void Split(const float (&tile)[kColumnTiles][4], Operand& operand) {
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t parts[kParts];
      SplitPair(tile[n][2 * half], tile[n][2 * half + 1], parts);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        operand[part][n / 2][n % 2 * 2 + half] = parts[part];
      }
    }
  }
}

// to[row][token] = the tile's rows times the tokens, over this warp's columns. Small parts first.
__device__ void Multiply(const Operand& state, const std::uint16_t (&tokens)[kChunk][kTokenStride],
                         int warp, int lane, float (*to)[kRowStride]) {
  float d[2][kColumns / 16][4] = {};
  std::uint32_t right[2][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    LdMatrixX4(right[half], &tokens[kHalf * half + lane % 8][kColumns * warp + 8 * (lane / 8)]);
  }
#pragma unroll
  for (int part = kParts - 1; part >= 0; --part) {
#pragma unroll
    for (int step = 0; step < kColumns / 16; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        MmaBF16(d[half][step], state[part][step], right[half][2 * step], right[half][2 * step + 1]);
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      *reinterpret_cast<float2*>(&to[lane / 4 + 8 * e][kHalf * half + lane % 4 * 2]) = make_float2(
          d[half][0][2 * e] + d[half][1][2 * e], d[half][0][2 * e + 1] + d[half][1][2 * e + 1]);
    }
  }
}

// Sum over the warps for a row and token.
template <int kTiles>
__device__ float Total(const float (&parts)[kConsumerWarps][16 * kTiles][kRowStride], int row,
                       int token) {
  float sum = parts[0][row][token];
#pragma unroll
  for (int warp = 1; warp < kConsumerWarps; ++warp) sum += parts[warp][row][token];
  return sum;
}

// Rows j and j + 8 of a triangular matrix with its diagonal.
struct TriangleRows {
  float low[kHalf], high[kChunk];

  __device__ TriangleRows(const float (&matrix)[kChunk][kMatrixStride], int j) {
#pragma unroll
    for (int s = 0; s < kHalf; s += 4) {
      *reinterpret_cast<float4*>(&low[s]) = *reinterpret_cast<const float4*>(&matrix[j][s]);
    }
#pragma unroll
    for (int s = 0; s < kChunk; s += 4) {
      *reinterpret_cast<float4*>(&high[s]) =
          *reinterpret_cast<const float4*>(&matrix[j + kHalf][s]);
    }
  }

  // y += matrix x, where lane j of 8 has elements j and j + 8 of both. What is 0 is never
  // multiplied: a NaN in a later token must not come back.
  __device__ void MultiplyAdd(const float (&x)[2], int j, float (&y)[2]) const {
    float more = 0;
#pragma unroll
    for (int s = 0; s < kHalf; ++s) {
      const float x0 = __shfl_sync(kFull, x[0], s, kHalf), x1 = __shfl_sync(kFull, x[1], s, kHalf);
      y[0] = s <= j ? fmaf(low[s], x0, y[0]) : y[0];
      y[1] = fmaf(high[s], x0, y[1]);
      more = s <= j ? fmaf(high[s + kHalf], x1, more) : more;
    }
    y[1] += more;
  }
};

// state = D(15,-1) state + sum over t of w_t k_t, whose sum starts from 0: tensor cores truncate.
template <int kTiles>
__device__ void Update(const Shared<kTiles>& shared, const Stage<kTiles>& stage, int warp, int lane,
                       StateRows<kTiles>& state) {
  std::uint32_t right[kColumnTiles / 2][4];
#pragma unroll
  for (int c = 0; c < kColumnTiles / 2; ++c) {
    LdMatrixX4Trans(right[c], &stage.k[lane % 16][kColumns * warp + 16 * c + 8 * (lane / 16)]);
  }
  const float all = stage.all[0];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    float d[kColumnTiles][4] = {};
#pragma unroll
    for (int part = kParts - 1; part >= 0; --part) {
      std::uint32_t left[4];
      LdMatrixX4(left, &shared.w[part][16 * tile + lane % 16][8 * (lane / 16)]);
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        MmaBF16(d[n], left, right[n / 2][n % 2 * 2], right[n / 2][n % 2 * 2 + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) state[tile][n][e] = fmaf(all, state[tile][n][e], d[n][e]);
    }
  }
}

template <int kTiles>
__device__ void Advance(const Args& args, const Task& task, std::int64_t chunk, int warp, int lane,
                        Shared<kTiles>& shared, StateRows<kTiles>& state) {
  const int index = static_cast<int>(chunk % kStages);
  const auto parity = static_cast<std::uint32_t>(chunk / kStages % 2);
  const int row = 4 * warp + lane / 8, j = lane % 8;  // of this thread's sums, tokens j and j + 8
  Stage<kTiles>& stage = shared.stage[index];
  auto& with_q = shared.with_q[chunk % 2];
  MbarrierWait(&shared.tokens[index], parity);
  __syncwarp();
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    Operand operand;
    Split(state[tile], operand);
    Multiply(operand, stage.k, warp, lane, shared.with_k[warp] + 16 * tile);
    Multiply(operand, stage.q, warp, lane, with_q[warp] + 16 * tile);
  }
  MbarrierWait(&shared.coefficients[index], parity);
  __syncwarp();
  const TriangleRows inverse(stage.inverse, j);
  float u[kTiles][2];
  BarSync(kConsumerBarrier, kConsumers);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    float b[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int r = row + 16 * tile, token = j + kHalf * e;
      b[e] = fmaf(-stage.beta_d[token], Total<kTiles>(shared.with_k, r, token),
                  stage.beta_v[r][token]);
      u[tile][e] = 0;
    }
    inverse.MultiplyAdd(b, j, u[tile]);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float w = stage.tail[j + kHalf * e] * u[tile][e];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        shared.w[part][row + 16 * tile][j + kHalf * e] =
            static_cast<std::uint16_t>(TakeUpper(w) >> 16);
      }
    }
  }
  BarSync(kConsumerBarrier, kConsumers);
  Update<kTiles>(shared, stage, warp, lane, state);

  const TriangleRows p(stage.p, j);
  const std::int64_t left = task.tokens - chunk * kChunk;
  const std::int64_t first = (task.begin + chunk * kChunk) * kValueHeads + task.head;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int r = row + 16 * tile;
    float output[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int token = j + kHalf * e;
      output[e] = stage.scale_d[token] * Total<kTiles>(with_q, r, token);
    }
    p.MultiplyAdd(u[tile], j, output);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int token = j + kHalf * e;
      if (token >= left) continue;
      reinterpret_cast<__nv_bfloat16*>(
          args.output)[(first + token * kValueHeads) * kWidth + task.row + r] =
          __float2bfloat16_rn(output[e]);
    }
  }
  __syncwarp();
  if (lane == 0) MbarrierArrive(&shared.empty[index]);
}

// Where this lane's part of the state begins, and elements from there.
__device__ std::int64_t StateAt(const Task& task, int warp, int lane) {
  return task.state_head * kStateElements + std::int64_t{task.row + lane / 4} * kWidth +
         kColumns * warp + lane % 4 * 2;
}
__device__ constexpr int Offset(int tile, int n, int half) {
  return (16 * tile + 8 * half) * kWidth + 8 * n;
}

// Not through the read-only path: the call may be in place.
template <int kTiles>
__device__ void LoadState(const Args& args, const Task& task, int warp, int lane,
                          StateRows<kTiles>& state) {
  const float* from = args.state + StateAt(task, warp, lane);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float2 x = {};
        if (args.state != nullptr) {
          x = __ldcg(reinterpret_cast<const float2*>(from + Offset(tile, n, half)));
        }
        state[tile][n][2 * half] = x.x;
        state[tile][n][2 * half + 1] = x.y;
      }
    }
  }
}

template <int kTiles>
__device__ void Consume(const Args& args, const Task& task, Shared<kTiles>& shared, int warp,
                        int lane, StateRows<kTiles>& state) {
  for (std::int64_t chunk = 0; chunk < task.chunks(); ++chunk) {
    Advance<kTiles>(args, task, chunk, warp, lane, shared, state);
  }
  const bool zeros = task.tokens == 0 && args.zero_empty_states;
  float* to = args.new_state + StateAt(task, warp, lane);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 x = {state[tile][n][2 * half], state[tile][n][2 * half + 1]};
        *reinterpret_cast<float2*>(to + Offset(tile, n, half)) = zeros ? float2{} : x;
      }
    }
  }
}

// ------------------------------------------------------------------ the kernel

template <int kTiles>
__global__ void __launch_bounds__(kThreads, 2)
    RecurrentKernel(const __grid_constant__ Args args,
                    const __grid_constant__ RecurrentOptions options) {
  extern __shared__ __align__(16) std::byte memory[];
  Shared<kTiles>& shared = *reinterpret_cast<Shared<kTiles>*>(memory);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      MbarrierInit(&shared.tokens[stage], 32);
      MbarrierInit(&shared.coefficients[stage], 32);
      MbarrierInit(&shared.empty[stage], kConsumerWarps);
    }
  }
  GridDepControlWait();
  GridDepControlLaunchDependents();
  const Task task = FindTask<16 * kTiles, kChunk>(args);
  const bool consumes = warp < kConsumerWarps;
  StateRows<kTiles> state;  // on its way while the sequence is looked up
  if (consumes) LoadState<kTiles>(args, task, warp, lane, state);
  if (options.selected != nullptr && options.selected[task.state_head] == 0) return;
  if (task.tokens < options.min_tokens || task.tokens > options.max_tokens) return;
  __syncthreads();
  if (consumes) {
    Consume<kTiles>(args, task, shared, warp, lane, state);
  } else {
    Produce<kTiles>(args, task, shared, warp - kConsumerWarps, lane);
  }
}

template <int kTiles>
void Launch(const Args& args, const RecurrentOptions& options, Stream stream) {
  constexpr std::int64_t kCtas = kHeadSize / (16 * kTiles);
  constexpr std::size_t kShared = sizeof(Shared<kTiles>);
  CheckCuda(
      cudaFuncSetAttribute(RecurrentKernel<kTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(kShared)),
      "cudaFuncSetAttribute of RecurrentKernel");
  LaunchKernelWithShared(RecurrentKernel<kTiles>, "launch of RecurrentKernel",
                         args.sequences * kValueHeads * kCtas, kThreads, kShared,
                         options.overlap_launch, stream, args, options);
}

}  // namespace

void RunRecurrent16(const Args& args, const RecurrentOptions& options, Stream stream) {
  if (args.sequences == 0) return;
  (args.sequences <= 4 ? Launch<1> : Launch<2>)(args, options, stream);
}

}  // namespace assay::gdn_prefill
