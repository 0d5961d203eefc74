// One token of gated delta-rule attention on Hopper: one launch, every state element is read once
// and written once by the same thread, all reads of a warp in flight before its first sum.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/error.h"
#include "cuda/griddepcontrol.cuh"
#include "cuda/launch.cuh"
#include "cuda/warp_rows.cuh"
#include "ops/gdn_decode/gates.cuh"
#include "ops/gdn_decode/sm90.h"

namespace assay::gdn_decode {
namespace {

using sm90::Keep;

constexpr int kLanes = 16;   // hold a row of the state
constexpr int kGroups = 2;   // rows side by side in a warp
constexpr int kWarps = 4;    // of a CTA
constexpr int kVectors = 2;  // of 16 bytes, of a lane and row

// A lane holds kRows rows. With kCtas above 0, that many CTAs of every multiprocessor share all
// work, and a warp asks for its next rows before it finishes those that it has.
template <int kRows_, int kCtas_ = 0>
struct Shape {
  static constexpr int kRows = kRows_, kCtas = kCtas_;
  static constexpr int kWarpRows = kGroups * kRows;
  static constexpr int kHeadWarps = static_cast<int>(kHeadSize) / kWarpRows;
};

__device__ float Widen(bf16 x) { return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16); }

__device__ void StoreBF16(bf16* to, float x) {
  *reinterpret_cast<__nv_bfloat16*>(to) = __float2bfloat16_rn(x);
}

// Some rows of a head, as a lane reads them. Row i is row + kGroups i of the head; vector j holds
// columns 4 (lane + kLanes j) .. + 3, where lane counts in the group of a row.
template <class S>
struct Rows {
  std::int64_t head;      // n * 8 + h
  std::int64_t state_at;  // of row 0, vector 0; negative = padding
  int lane, row;
  float a_log, dt_bias, scale;
  bf16 a, b, v[S::kRows];
  uint2 q[kVectors], k[kVectors];
  float4 state[S::kRows][kVectors];

  __device__ std::int64_t StateAt(int i, int j) const {
    return state_at + kGroups * kHeadSize * i + 4 * kLanes * j;
  }
  __device__ std::int64_t ValueAt(int i) const { return head * kHeadSize + row + kGroups * i; }
};

// What the gates need is asked for first: their arithmetic runs while the state is on its way.
template <class S>
__device__ Rows<S> Load(const Args& args, std::int64_t warp) {
  Rows<S> rows;
  rows.head = warp / S::kHeadWarps;
  rows.lane = static_cast<int>(threadIdx.x % kLanes);
  rows.row = static_cast<int>(warp % S::kHeadWarps) * S::kWarpRows +
             static_cast<int>(threadIdx.x % 32 / kLanes);
  const std::int64_t n = rows.head / kValueHeads, h = rows.head % kValueHeads;
  const std::int64_t slot = args.slot != nullptr ? args.slot[n] : n;
  const bool padding = args.slot != nullptr && (slot < 0 || slot >= args.slots);
  rows.state_at =
      padding ? -1
              : (slot * kValueHeads + h) * kStateElements + rows.row * kHeadSize + 4 * rows.lane;
  rows.a = args.a[rows.head];
  rows.dt_bias = args.dt_bias[h];
  rows.a_log = args.a_log[h];
  rows.b = args.b[rows.head];
  rows.scale = args.scale_at != nullptr ? *args.scale_at : args.scale;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const std::int64_t at = rows.head / 2 * kHeadSize + 4 * (rows.lane + kLanes * j);
    rows.q[j] = *reinterpret_cast<const uint2*>(args.q + at);
    rows.k[j] = *reinterpret_cast<const uint2*>(args.k + at);
  }
#pragma unroll
  for (int i = 0; i < S::kRows; ++i) rows.v[i] = args.v[rows.ValueAt(i)];
  const bool zeros = args.state == nullptr || padding;
#pragma unroll
  for (int i = 0; i < S::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      rows.state[i][j] =
          zeros ? float4{} : sm90::LoadFloat4<Keep::kNormal>(args.state + rows.StateAt(i, j));
    }
  }
  return rows;
}

template <class S>
__device__ void Finish(const Args& args, const Rows<S>& rows) {
  if (rows.state_at < 0) {
    for (int i = rows.lane; i < S::kRows; i += kLanes) StoreBF16(args.output + rows.ValueAt(i), 0);
    return;
  }
  const float g = Decay(expf(rows.a_log), Widen(rows.a) + rows.dt_bias);
  const float beta = Beta(Widen(rows.b));
  const float scale = rows.scale == 0 ? kDefaultScale : rows.scale;
  float4 k[kVectors];
  float sum[2 * S::kRows + 1] = {};  // S k of each row, S q of each row, k.q
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const float4 q = sm90::WidenBF16x4(rows.q[j]);
    k[j] = sm90::WidenBF16x4(rows.k[j]);
#pragma unroll
    for (int i = 0; i < S::kRows; ++i) {
      sum[i] = sm90::Dot(rows.state[i][j], k[j], sum[i]);
      sum[S::kRows + i] = sm90::Dot(rows.state[i][j], q, sum[S::kRows + i]);
    }
    sum[2 * S::kRows] = sm90::Dot(k[j], q, sum[2 * S::kRows]);
  }
  sm90::SumOverGroup<kLanes>(sum);
#pragma unroll
  for (int i = 0; i < S::kRows; ++i) {
    const float u = beta * fmaf(-g, sum[i], Widen(rows.v[i]));
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      sm90::StoreFloat4<Keep::kNormal>(args.new_state + rows.StateAt(i, j),
                                       sm90::DecayAndAdd(g, rows.state[i][j], u, k[j]));
    }
    const float output = scale * fmaf(g, sum[S::kRows + i], u * sum[2 * S::kRows]);
    if (rows.lane == 0) StoreBF16(args.output + rows.ValueAt(i), output);
  }
}

template <class S>
__global__ void __launch_bounds__(32 * kWarps, S::kCtas == 0 ? 1 : S::kCtas)
    StepKernel(const __grid_constant__ Args args) {
  sm90::GridDepControlWait();
  sm90::GridDepControlLaunchDependents();
  std::int64_t warp = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  Rows<S> rows = Load<S>(args, warp);
  if constexpr (S::kCtas > 0) {
    const std::int64_t warps = args.batch * kValueHeads * S::kHeadWarps;
    const std::int64_t step = std::int64_t{gridDim.x} * kWarps;
    for (warp += step; warp < warps; warp += step) {
      const Rows<S> next = Load<S>(args, warp);
      Finish(args, rows);
      rows = next;
    }
  }
  Finish(args, rows);
}

template <class S>
void Launch(const Args& args, bool overlap_launch, Stream stream) {
  std::int64_t blocks = args.batch * kValueHeads * S::kHeadWarps / kWarps;
  if constexpr (S::kCtas > 0) {
    blocks = std::min<std::int64_t>(blocks, S::kCtas * Multiprocessors());
  }
  LaunchKernel(StepKernel<S>, "launch of StepKernel", blocks, 32 * kWarps, overlap_launch, stream,
               args);
}

struct Kernel {
  std::string_view name;
  void (*launch)(const Args&, bool overlap_launch, Stream);
};

constexpr std::array kKernels = {
    Kernel{"r2", Launch<Shape<2>>},
    Kernel{"r4_loop", Launch<Shape<4, 4>>},
};

}  // namespace

std::vector<std::string_view> Sm90Kernels() {
  std::vector<std::string_view> names;
  for (const Kernel& kernel : kKernels) names.push_back(kernel.name);
  return names;
}

Plan ChoosePlan(const Args& args) { return {args.batch < 16 ? "r2" : "r4_loop"}; }

std::function<void(Stream)> PrepareCuda(const Args& args, const Plan& plan) {
  if (const std::string refusal = PointerRefusal(args); !refusal.empty()) {
    BadInput("gdn_decode: " + refusal);
  }
  for (const Kernel& kernel : kKernels) {
    if (kernel.name != plan.kernel) continue;
    if (args.batch == 0) return [](Stream) {};
    return [args, launch = kernel.launch, overlap = plan.overlap_launch](Stream stream) {
      launch(args, overlap, stream);
    };
  }
  BadInput("gdn_decode: no kernel named " + std::string(plan.kernel));
}

void RunCuda(const Args& args, Stream stream) { PrepareCuda(args, ChoosePlan(args))(stream); }

}  // namespace assay::gdn_decode
