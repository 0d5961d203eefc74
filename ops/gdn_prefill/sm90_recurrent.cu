// The recurrence on Hopper with the state in registers, one launch. A CTA advances some rows of one
// (sequence, head) in chunks of 8 tokens. As the CPU kernel does (README.md), the products of a
// chunk are taken with the state before it, so that only 8 fused multiply-adds a chunk depend on
// each other; decays are products of gates, never logarithms.
//
// Producer warps take turns with the chunks: they widen q and k once for all rows, and make the
// coefficients that all rows share (gates, k.k and q.k by tensor cores: products of bf16 are
// exact). In consumer warps 16 lanes hold a row of the state.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <string>

#include "base/error.h"
#include "cuda/griddepcontrol.cuh"
#include "cuda/launch.cuh"
#include "cuda/mbarrier.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/warp_rows.cuh"
#include "ops/gdn_decode/gates.cuh"
#include "ops/gdn_prefill/sm90_recurrent.h"
#include "ops/gdn_prefill/sm90_recurrent_task.cuh"

namespace assay::gdn_prefill {
namespace {

using namespace assay::sm90;

constexpr int kChunk = 8;
constexpr int kConsumerWarps = 4, kProducerWarps = 4;
constexpr int kThreads = 32 * (kConsumerWarps + kProducerWarps);
constexpr int kStages = kProducerWarps;  // each producer has its own
constexpr int kLanes = 16;               // of a row
constexpr int kWidth = static_cast<int>(kHeadSize);
// Floats between tokens: 64 bytes past a multiple of 128, so that two tokens are in different
// banks.
constexpr int kStride = kWidth + 16;
constexpr unsigned kFull = 0xFFFFFFFFu;

// D(i,j) = g_{j+1} .. g_i within the chunk; D(i,-1) = g_0 .. g_i.
template <int kRows>
struct __align__(16) Stage {
  float k[kChunk][kStride], q[kChunk][kStride];
  float beta_v[kChunk][8 * kRows];  // beta_i v_i of the CTA's rows
  float a[kChunk][kChunk];          // beta_i D(i,j) k_i.k_j for j < i, else 0
  float p[kChunk][kChunk];          // scale D(i,j) q_i.k_j for j <= i, else 0
  float beta_d[kChunk];             // beta_i D(i,-1)
  float scale_d[kChunk];            // scale D(i,-1)
  float tail[kChunk];               // D(7,i)
  float all[4];                     // D(7,-1)
};

template <int kRows>
struct Shared {
  Stage<kRows> stage[kStages];
  std::uint64_t tokens[kStages];        // k, q are there
  std::uint64_t coefficients[kStages];  // the rest is there
  std::uint64_t empty[kStages];
};

using Task = RecurrentTask<kChunk>;

// ------------------------------------------------------------------ producers

// A chunk as a producer lane holds it. Lane 4 i + p has of token i the columns 4 p + 16 m .. + 3,
// which are fragments of a matrix product (any order of columns will do, if both operands have it).
template <int kRows>
struct RawChunk {
  static constexpr int kValues = kRows > 2 ? kRows / 2 : 1;  // 4 rows of one token each
  uint2 k[8], q[8], v[kValues];
  float a, b;  // of token lane % 8
};

template <int kRows>
__device__ RawChunk<kRows> LoadChunk(const Args& args, const Task& task, std::int64_t chunk,
                                     int lane) {
  RawChunk<kRows> raw = {};
  const std::int64_t first = task.begin + chunk * kChunk;
  const std::int64_t left = task.tokens - chunk * kChunk;  // 0 or less behind the last chunk
  if (lane / 4 < left) {
    const std::int64_t at =
        ((first + lane / 4) * kKeyHeads + task.head / 2) * kWidth + lane % 4 * 4;
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      raw.k[m] = *reinterpret_cast<const uint2*>(args.k + at + 16 * m);
      raw.q[m] = *reinterpret_cast<const uint2*>(args.q + at + 16 * m);
    }
  }
  if (lane % 8 < left) {
    const std::int64_t at = (first + lane % 8) * kValueHeads + task.head;
    raw.a = Widen(args.a[at]);
    raw.b = Widen(args.b[at]);
  }
#pragma unroll
  for (int e = 0; e < RawChunk<kRows>::kValues; ++e) {
    const int piece = lane + 32 * e, token = piece / (2 * kRows), part = piece % (2 * kRows);
    if (token < left && token < kChunk) {
      raw.v[e] = *reinterpret_cast<const uint2*>(
          args.v + ((first + token) * kValueHeads + task.head) * kWidth + task.row + 4 * part);
    }
  }
  return raw;
}

template <int kRows>
__device__ void StoreTokens(const RawChunk<kRows>& raw, Stage<kRows>& stage, int lane) {
#pragma unroll
  for (int m = 0; m < 8; ++m) {
    const int column = lane % 4 * 4 + 16 * m;
    const uint2 k = raw.k[m], q = raw.q[m];
    *reinterpret_cast<float4*>(&stage.k[lane / 4][column]) =
        make_float4(Low(k.x), High(k.x), Low(k.y), High(k.y));
    *reinterpret_cast<float4*>(&stage.q[lane / 4][column]) =
        make_float4(Low(q.x), High(q.x), Low(q.y), High(q.y));
  }
}

// k_i.k_j and q_i.k_j of the chunk. Lane 4 i + p gets j = 2 p and 2 p + 1: {kk, kk, qk, qk}.
template <int kRows>
__device__ void Products(const RawChunk<kRows>& raw, float (&product)[4]) {
  float odd[4] = {};
#pragma unroll
  for (int m = 0; m < 8; ++m) {
    const uint2 k = raw.k[m], q = raw.q[m];
    MmaBF16(m % 2 == 0 ? product : odd, k.x, q.x, k.y, q.y, k.x, k.y);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) product[i] += odd[i];
}

// `valid`: this lane's token, lane % 8, exists. Others keep the state: g = 1, beta = 0.
template <int kRows>
__device__ void StoreCoefficients(const RawChunk<kRows>& raw, Stage<kRows>& stage, int lane,
                                  bool valid, float exp_a_log, float dt_bias, float scale) {
  const float gate = valid ? gdn_decode::Decay(exp_a_log, raw.a + dt_bias) : 1.0f;
  const float own_beta = valid ? gdn_decode::Beta(raw.b) : 0.0f;
#pragma unroll
  for (int e = 0; e < RawChunk<kRows>::kValues; ++e) {
    const int piece = lane + 32 * e, token = piece / (2 * kRows), part = piece % (2 * kRows);
    const float beta = __shfl_sync(kFull, own_beta, token % kChunk);
    const uint2 v = raw.v[e];
    if (token < kChunk) {
      *reinterpret_cast<float4*>(&stage.beta_v[token][4 * part]) =
          make_float4(beta * Low(v.x), beta * High(v.x), beta * Low(v.y), beta * High(v.y));
    }
  }
  float product[4] = {};
  Products(raw, product);
  const int i = lane / 4, j = lane % 4 * 2;
  float d0 = 1, d1 = 1, from_start = 1, tail = 1;  // D(i,j), D(i,j+1), D(i,-1), D(7,i)
#pragma unroll
  for (int m = 0; m < kChunk; ++m) {
    const float g = __shfl_sync(kFull, gate, m);
    d0 *= m > j && m <= i ? g : 1.0f;
    d1 *= m > j + 1 && m <= i ? g : 1.0f;
    from_start *= m <= i ? g : 1.0f;
    tail *= m > i ? g : 1.0f;
  }
  const float beta = __shfl_sync(kFull, own_beta, i);
  *reinterpret_cast<float2*>(&stage.a[i][j]) =
      make_float2(j < i ? beta * d0 * product[0] : 0.0f, j + 1 < i ? beta * d1 * product[1] : 0.0f);
  *reinterpret_cast<float2*>(&stage.p[i][j]) = make_float2(
      j <= i ? scale * d0 * product[2] : 0.0f, j + 1 <= i ? scale * d1 * product[3] : 0.0f);
  if (j == 0) {
    stage.beta_d[i] = beta * from_start;
    stage.scale_d[i] = scale * from_start;
    stage.tail[i] = tail;
    if (i == kChunk - 1) stage.all[0] = from_start;
  }
}

template <int kRows>
__device__ void Produce(const Args& args, const Task& task, Shared<kRows>& shared, int producer,
                        int lane) {
  RawChunk<kRows> next = LoadChunk<kRows>(args, task, producer, lane);
  const float exp_a_log = expf(args.a_log[task.head]), dt_bias = args.dt_bias[task.head];
  const float given = args.scale_at != nullptr ? *args.scale_at : args.scale;
  const float scale = given == 0 ? kDefaultScale : given;
  std::uint32_t parity = 1;  // the stage starts empty
  for (std::int64_t chunk = producer; chunk < task.chunks(); chunk += kProducerWarps) {
    const RawChunk<kRows> raw = next;
    next = LoadChunk<kRows>(args, task, chunk + kProducerWarps, lane);
    MbarrierWait(&shared.empty[producer], parity);
    parity ^= 1;
    Stage<kRows>& stage = shared.stage[producer];
    StoreTokens(raw, stage, lane);
    MbarrierArrive(&shared.tokens[producer]);
    const bool valid = lane % 8 < task.tokens - chunk * kChunk;
    StoreCoefficients(raw, stage, lane, valid, exp_a_log, dt_bias, scale);
    MbarrierArrive(&shared.coefficients[producer]);
  }
}

// ------------------------------------------------------------------ consumers

// Lane l of a row's 16 holds columns 4 l + 64 m .. + 3, m = 0, 1, of kRows rows.
template <int kRows>
using StateRows = float4[kRows][2];

// x[kRows t + i] = row i of the state times token t, this lane's columns.
template <int kRows>
__device__ void Multiply(const StateRows<kRows>& state, const float (&tokens)[kChunk][kStride],
                         int lane, float (&x)[kChunk * kRows]) {
#pragma unroll
  for (int t = 0; t < kChunk; ++t) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const float4 token = *reinterpret_cast<const float4*>(&tokens[t][4 * lane + 64 * m]);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        x[kRows * t + i] = Dot(state[i][m], token, m == 0 ? 0.0f : x[kRows * t + i]);
      }
    }
  }
}

// u = b - a u, token after token, for every row. `b` holds what SumTransposed left to the lanes.
template <int kRows, int kCount>
__device__ void Solve(const Stage<kRows>& stage, const float (&b)[kCount], int group,
                      float (&u)[kRows][kChunk]) {
  constexpr int kLaneRows = kRows > 1 ? kRows / 2 : 1;
#pragma unroll
  for (int t = 0; t < kChunk; ++t) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      u[i][t] = __shfl_sync(kFull, b[i % kLaneRows], kLanes * group + 2 * t + i / kLaneRows);
    }
  }
#pragma unroll
  for (int t = 1; t < kChunk; ++t) {
#pragma unroll
    for (int s = 0; s < t; ++s) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) u[i][t] = fmaf(-stage.a[t][s], u[i][s], u[i][t]);
    }
  }
}

// state = D(7,-1) state + sum over t of D(7,t) u_t k_t.
template <int kRows>
__device__ void Update(const Stage<kRows>& stage, const float (&u)[kRows][kChunk], int lane,
                       StateRows<kRows>& state) {
  const float all = stage.all[0];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      float4& x = state[i][m];
      x = {all * x.x, all * x.y, all * x.z, all * x.w};
    }
  }
#pragma unroll
  for (int t = 0; t < kChunk; ++t) {
    const float tail = stage.tail[t];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const float4 k = *reinterpret_cast<const float4*>(&stage.k[t][4 * lane + 64 * m]);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const float w = tail * u[i][t];
        float4& x = state[i][m];
        x = {fmaf(w, k.x, x.x), fmaf(w, k.y, x.y), fmaf(w, k.z, x.z), fmaf(w, k.w, x.w)};
      }
    }
  }
}

// Where a consumer lane is: rows first + 2 i of the CTA, i = 0 .. kRows - 1, belong to its group.
struct Place {
  int lane;   // of the row
  int group;  // 0 or 1
  int first;  // row of the CTA
};

template <int kRows>
__device__ void Advance(const Args& args, const Task& task, std::int64_t chunk, Place place,
                        Shared<kRows>& shared, StateRows<kRows>& state) {
  constexpr int kLaneRows = kRows > 1 ? kRows / 2 : 1;
  const int index = static_cast<int>(chunk % kStages);
  const auto parity = static_cast<std::uint32_t>(chunk / kStages % 2);
  Stage<kRows>& stage = shared.stage[index];
  float with_k[kChunk * kRows], with_q[kChunk * kRows];
  MbarrierWait(&shared.tokens[index], parity);
  Multiply<kRows>(state, stage.k, place.lane, with_k);
  // Lane l of the row gets the sums of token l / 2, in [0] .. : rows (l % 2) kRows / 2 and on; with
  // one row both lanes of a token have it.
  SumTransposed<kLanes>(with_k);
  Multiply<kRows>(state, stage.q, place.lane, with_q);
  SumTransposed<kLanes>(with_q);

  MbarrierWait(&shared.coefficients[index], parity);
  const int token = place.lane / 2;  // whose sums this lane has
  const int row = place.first + place.lane % 2 * (kRows / 2) * 2;
  float b[kLaneRows];
#pragma unroll
  for (int e = 0; e < kLaneRows; ++e) {
    b[e] = fmaf(-stage.beta_d[token], with_k[e], stage.beta_v[token][row + 2 * e]);
  }
  float u[kRows][kChunk];
  Solve<kRows>(stage, b, place.group, u);
  Update<kRows>(stage, u, place.lane, state);

  float output[kLaneRows];
#pragma unroll
  for (int e = 0; e < kLaneRows; ++e) output[e] = stage.scale_d[token] * with_q[e];
#pragma unroll
  for (int t = 0; t < kChunk; ++t) {
    const float p = stage.p[token][t];
#pragma unroll
    for (int e = 0; e < kLaneRows; ++e) {
      const float mine = place.lane % 2 == 0 ? u[e][t] : u[kRows - kLaneRows + e][t];
      // No zero coefficient: a NaN in a later token must not come back.
      output[e] = t <= token ? fmaf(p, mine, output[e]) : output[e];
    }
  }
  __syncwarp();
  if (threadIdx.x % 32 == 0) MbarrierArrive(&shared.empty[index]);
  if (token >= task.tokens - chunk * kChunk || (kRows == 1 && place.lane % 2 == 1)) return;
  const std::int64_t at = (task.begin + chunk * kChunk + token) * kValueHeads + task.head;
#pragma unroll
  for (int e = 0; e < kLaneRows; ++e) {
    reinterpret_cast<__nv_bfloat16*>(args.output)[at * kWidth + task.row + row + 2 * e] =
        __float2bfloat16_rn(output[e]);
  }
}

template <int kRows>
__device__ void Consume(const Args& args, const Task& task, Shared<kRows>& shared, int warp,
                        int lane_of_warp) {
  const Place place{lane_of_warp % kLanes, lane_of_warp / kLanes,
                    warp * 2 * kRows + lane_of_warp / kLanes};
  const std::int64_t at = task.state_head * kStateElements +
                          std::int64_t{task.row + place.first} * kWidth + 4 * place.lane;
  const bool zeros = args.state == nullptr || (task.tokens == 0 && args.zero_empty_states);
  StateRows<kRows> state;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      state[i][m] =
          zeros ? float4{} : LoadFloat4<Keep::kNormal>(args.state + at + 2 * kWidth * i + 64 * m);
    }
  }
  for (std::int64_t chunk = 0; chunk < task.chunks(); ++chunk) {
    Advance<kRows>(args, task, chunk, place, shared, state);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      StoreFloat4<Keep::kNormal>(args.new_state + at + 2 * kWidth * i + 64 * m, state[i][m]);
    }
  }
}

// ------------------------------------------------------------------ the kernel

template <int kRows>
__global__ void __launch_bounds__(kThreads)
    RecurrentKernel(const __grid_constant__ Args args,
                    const __grid_constant__ RecurrentOptions options) {
  __shared__ Shared<kRows> shared;
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
  const Task task = FindTask<8 * kRows, kChunk>(args);
  if (options.selected != nullptr && options.selected[task.state_head] == 0) return;
  if (task.tokens < options.min_tokens || task.tokens > options.max_tokens) return;
  __syncthreads();
  if (warp < kConsumerWarps) {
    Consume<kRows>(args, task, shared, warp, lane);
  } else {
    Produce<kRows>(args, task, shared, warp - kConsumerWarps, lane);
  }
}

template <int kRows>
void Launch(const Args& args, const RecurrentOptions& options, Stream stream) {
  constexpr std::int64_t kParts = kHeadSize / (8 * kRows);
  LaunchKernel(RecurrentKernel<kRows>, "launch of RecurrentKernel",
               args.sequences * kValueHeads * kParts, kThreads, options.overlap_launch, stream,
               args, options);
}

// Measured (README.md): few sequences want many CTAs, many want fewer reads of shared memory.
int ChooseRows(std::int64_t sequences) {
  if (sequences == 1) return 8;
  return sequences <= 4 ? 16 : 32;
}

}  // namespace

void RunRecurrent(const Args& args, const RecurrentOptions& options, Stream stream) {
  if (args.sequences == 0) return;
  const int rows = options.rows_per_cta == 0 ? ChooseRows(args.sequences) : options.rows_per_cta;
  if (rows == 8) return Launch<1>(args, options, stream);
  if (rows == 16) return Launch<2>(args, options, stream);
  if (rows == 32) return Launch<4>(args, options, stream);
  BadInput("gdn_prefill: rows_per_cta = " + std::to_string(rows) + " is not 8, 16 or 32");
}

}  // namespace assay::gdn_prefill
