// One token of delta attention with a decay per channel on Hopper, and several rows of a request in
// order: one launch, the state is read once and stays in registers. A warp holds some rows of V,
// lane l of it channels 4 l .. + 3 of each, so that every gate is computed once a warp.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <string>

#include "base/error.h"
#include "cuda/griddepcontrol.cuh"
#include "cuda/launch.cuh"
#include "cuda/warp_rows.cuh"
#include "ops/gdn_decode/gates.cuh"
#include "ops/kda_decode/sm90.h"

namespace assay::kda_decode {
namespace {

using sm90::Keep;

constexpr int kWidth = static_cast<int>(kHeadSize);
constexpr int kRows = 8;            // of the state, of a warp
constexpr int kShare = 16 / kRows;  // lanes that get the same sum
constexpr int kWarps = 2;           // of a CTA
constexpr unsigned kFull = 0xFFFFFFFFu;
constexpr float kQueryScale = 0.08838834764831845f;  // 1 / sqrt(128)

__device__ float Widen(bf16 x) { return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16); }

// What a lane needs of one row of a request, as it lies in memory.
struct RawToken {
  uint2 q, k, a;  // channels 4 lane .. + 3
  bf16 v, b;      // v of the state row whose sums the lane will have
};

__device__ RawToken LoadToken(const Args& args, std::int64_t token_head, int lane, int row) {
  const std::int64_t at = token_head * kWidth + 4 * lane;
  return {*reinterpret_cast<const uint2*>(args.q + at),
          *reinterpret_cast<const uint2*>(args.k + at),
          *reinterpret_cast<const uint2*>(args.a + at), args.v[token_head * kWidth + row],
          args.b[token_head]};
}

__device__ float4 Times(float4 x, float4 y) { return {x.x * y.x, x.y * y.y, x.z * y.z, x.w * y.w}; }

// Decay of one channel; `rate` = exp(A_log), at least the least normal number (infinite a). Sums
// and exponentials in fp32, exact near 1 (gates.cuh).
template <Gate kGate>
__device__ float Decay(float lower_bound, float rate, float x) {
  if constexpr (kGate == Gate::kUnbounded) return gdn_decode::Decay(rate, x);
  const float argument = kGate == Gate::kPlain ? x : rate * x;
  return gdn_decode::ExpOfDecay(lower_bound * gdn_decode::Beta(argument));
}

// What is the same for all rows of a request: the gate's parameters of a lane's four channels.
struct Channels {
  float rate, lower_bound;
  float4 dt_bias;
};

template <Gate kGate>
__device__ Channels LoadChannels(const Args& args, std::int64_t head, int lane) {
  Channels channels;
  const auto* bias = reinterpret_cast<const float2*>(args.dt_bias + head * kWidth + 4 * lane);
  const float2 low = bias[0], high = bias[1];
  channels.dt_bias = {low.x, low.y, high.x, high.y};
  channels.lower_bound = args.lower_bound;
  channels.rate = kGate == Gate::kPlain ? 1.0f : fmaxf(expf(args.a_log[head]), 0x1p-126f);
  return channels;
}

template <Gate kGate>
__device__ float4 Decays(const Channels& channels, float4 a) {
  const float4 bias = channels.dt_bias;
  const auto decay = [&](float x) { return Decay<kGate>(channels.lower_bound, channels.rate, x); };
  return {decay(a.x + bias.x), decay(a.y + bias.y), decay(a.z + bias.z), decay(a.w + bias.w)};
}

// One row of a request: state becomes state diag(g) + u k^T. Returns the output of state row
// lane % 16 / (16 / kRows) to lanes 16 .. 31. Sums of squares are taken beside the products with
// the state, so that nothing waits for the norms.
template <Gate kGate>
__device__ float Step(const RawToken& raw, const Channels& channels, bool normalise, int lane,
                      float4 (&state)[kRows]) {
  const float4 q = sm90::WidenBF16x4(raw.q), k = sm90::WidenBF16x4(raw.k);
  const float4 g = Decays<kGate>(channels, sm90::WidenBF16x4(raw.a));
  const float4 decayed_k = Times(g, k), decayed_q = Times(g, q);
  float sum[2 * kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    sum[i] = sm90::Dot(state[i], decayed_k, 0);
    sum[kRows + i] = sm90::Dot(state[i], decayed_q, 0);
  }
  float products[3] = {sm90::Dot(k, k, 0), sm90::Dot(q, q, 0), sm90::Dot(k, q, 0)};
  sm90::SumTransposed<32>(sum);
  sm90::SumOverGroup<32>(products);
  const float norm_k = normalise ? rsqrtf(products[0] + 1e-6f) : 1.0f;
  const float norm_q = kQueryScale * (normalise ? rsqrtf(products[1] + 1e-6f) : 1.0f);
  const float beta = gdn_decode::Beta(Widen(raw.b));
  // Lanes 0 .. 15 have S g k, lanes 16 .. 31 S g q of the same rows.
  const float u = beta * fmaf(-norm_k, sum[0], Widen(raw.v));
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float w = norm_k * __shfl_sync(kFull, u, kShare * i);
    float4& x = state[i];
    x = {fmaf(w, k.x, g.x * x.x), fmaf(w, k.y, g.y * x.y), fmaf(w, k.z, g.z * x.z),
         fmaf(w, k.w, g.w * x.w)};
  }
  const float own_u = __shfl_sync(kFull, u, lane % 16);
  return norm_q * fmaf(own_u * norm_k, products[2], sum[0]);
}

template <Gate kGate>
__global__ void __launch_bounds__(32 * kWarps) StepKernel(const __grid_constant__ Args args) {
  constexpr int kHeadWarps = kWidth / kRows;
  const unsigned warp = blockIdx.x * kWarps + threadIdx.x / 32;
  const std::int64_t request_head = warp / kHeadWarps;  // n * heads + h
  const std::int64_t n = request_head / args.heads, h = request_head % args.heads;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first = static_cast<int>(warp % kHeadWarps) * kRows;  // row of the head
  const int row = first + lane % 16 / kShare;                     // whose sums this lane gets
  const bool stores = lane >= 16 && lane % kShare == 0;
  auto* output = reinterpret_cast<__nv_bfloat16*>(args.output) + row;
  sm90::GridDepControlWait();
  sm90::GridDepControlLaunchDependents();
  const std::int64_t slot = args.slot != nullptr ? args.slot[n] : n;
  std::int64_t token_head = n * args.rows * args.heads + h;
  if (args.slot != nullptr && (slot < 0 || slot >= args.slots)) {
    for (std::int64_t r = 0; r < args.rows; ++r, token_head += args.heads) {
      if (stores) output[token_head * kWidth] = __nv_bfloat16(0.0f);
    }
    return;
  }
  RawToken raw = LoadToken(args, token_head, lane, row);
  const Channels channels = LoadChannels<kGate>(args, h, lane);
  const std::int64_t row_at = std::int64_t{first} * kWidth + 4 * lane;
  const std::int64_t state_at = (slot * args.heads + h) * kStateElements + row_at;
  float4 state[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    state[i] = args.state == nullptr
                   ? float4{}
                   : sm90::LoadFloat4<Keep::kNormal>(args.state + state_at + kWidth * i);
  }
  for (std::int64_t r = 0; r < args.rows; ++r, token_head += args.heads) {
    const RawToken now = raw;
    if (r + 1 < args.rows) raw = LoadToken(args, token_head + args.heads, lane, row);
    const float out = Step<kGate>(now, channels, args.qk_norm, lane, state);
    float* target = args.scratch != nullptr ? args.scratch + token_head * kStateElements + row_at
                                            : args.new_state + state_at;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      sm90::StoreFloat4<Keep::kNormal>(target + kWidth * i, state[i]);
    }
    if (stores) output[token_head * kWidth] = __float2bfloat16_rn(out);
  }
}

template <Gate kGate>
void Launch(const Args& args, bool overlap_launch, Stream stream) {
  LaunchKernel(StepKernel<kGate>, "launch of StepKernel",
               args.batch * args.heads * (kWidth / kRows / kWarps), 32 * kWarps, overlap_launch,
               stream, args);
}

}  // namespace

std::function<void(Stream)> PrepareCuda(const Args& args, bool overlap_launch) {
  if (const std::string refusal = PointerRefusal(args); !refusal.empty()) {
    BadInput("kda_decode: " + refusal);
  }
  if (args.batch == 0) return [](Stream) {};
  auto* const launch = args.gate == Gate::kBounded     ? Launch<Gate::kBounded>
                       : args.gate == Gate::kUnbounded ? Launch<Gate::kUnbounded>
                                                       : Launch<Gate::kPlain>;
  return [args, overlap_launch, launch](Stream stream) { launch(args, overlap_launch, stream); };
}

void RunCuda(const Args& args, Stream stream) { PrepareCuda(args)(stream); }

}  // namespace assay::kda_decode
