// The recurrence in fp64 on the device, for tests and benches: one warp per row of V, plain steps
// that share nothing with the kernels. Judged by the rules of the room's policies.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/check.h"
#include "ops/gdn_prefill/spec.h"

namespace assay::gdn_prefill {

struct Truth {
  std::vector<double> output, magnitude;  // [tokens, 8, 128]; scale sum |S q|
  std::vector<double> state;              // [sequences, 8, 128, 128]
};

__device__ inline double WarpSum64(double x) {
  for (int distance = 16; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(0xFFFFFFFFu, x, distance);
  }
  return x;
}

__device__ inline double Wide(const bf16* x) {
  return static_cast<double>(__bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(x)));
}

// Lane l holds columns l, l + 32, l + 64, l + 96 of row blockIdx.x * 4 + warp.
__global__ void TruthKernel(const Args args, double* output, double* magnitude, double* state) {
  const int lane = threadIdx.x % 32;
  const std::int64_t row = std::int64_t{blockIdx.x} * 4 + threadIdx.x / 32;  // of all states
  const std::int64_t sequence = row / (kValueHeads * kHeadSize);
  const std::int64_t head = row / kHeadSize % kValueHeads;
  const std::int64_t begin = args.cu_seqlens[sequence], end = args.cu_seqlens[sequence + 1];
  const double scale = args.scale == 0 ? 1 / sqrt(128.0) : static_cast<double>(args.scale);
  const double decay = exp(static_cast<double>(args.a_log[head]));
  const bool zeros = args.state == nullptr || (begin == end && args.zero_empty_states);
  double s[4];
  for (int i = 0; i < 4; ++i) s[i] = zeros ? 0 : args.state[row * kHeadSize + lane + 32 * i];
  for (std::int64_t t = begin; t < end; ++t) {
    const std::int64_t at = t * kValueHeads + head;
    const double x = Wide(args.a + at) + args.dt_bias[head];
    const double g = exp(-decay * (x > 20 ? x : log1p(exp(x))));
    const double beta = 1 / (1 + exp(-Wide(args.b + at)));
    const bf16* key = args.k + (t * kKeyHeads + head / 2) * kHeadSize + lane;
    const bf16* query = args.q + (t * kKeyHeads + head / 2) * kHeadSize + lane;
    double old = 0, out = 0, sum = 0;
    for (int i = 0; i < 4; ++i) old += (s[i] *= g) * Wide(key + 32 * i);
    const std::int64_t element = at * kHeadSize + row % kHeadSize;
    const double update = beta * (Wide(args.v + element) - WarpSum64(old));
    for (int i = 0; i < 4; ++i) {
      s[i] += update * Wide(key + 32 * i);
      out += s[i] * Wide(query + 32 * i);
      sum += fabs(s[i] * Wide(query + 32 * i));
    }
    out = WarpSum64(out);
    sum = WarpSum64(sum);
    if (lane == 0) {
      output[element] = scale * out;
      magnitude[element] = fabs(scale) * sum;
    }
  }
  for (int i = 0; i < 4; ++i) state[row * kHeadSize + lane + 32 * i] = s[i];
}

inline std::vector<double> Download(const double* from, std::size_t count) {
  std::vector<double> to(count);
  CheckCuda(cudaMemcpy(to.data(), from, count * sizeof(double), cudaMemcpyDeviceToHost),
            "cudaMemcpy of the truth");
  return to;
}

// Pointers are device memory; waits.
inline Truth ComputeTruth(const Args& args) {
  const auto elements = static_cast<std::size_t>(args.tokens * kValueHeads * kHeadSize);
  const auto rows = static_cast<std::size_t>(args.sequences * kValueHeads * kHeadSize);
  double* memory = nullptr;
  CheckCuda(cudaMalloc(&memory, (2 * elements + rows * kHeadSize) * sizeof(double)),
            "cudaMalloc of the truth");
  TruthKernel<<<static_cast<unsigned>(rows / 4), 128>>>(args, memory, memory + elements,
                                                        memory + 2 * elements);
  CheckCuda(cudaGetLastError(), "launch of TruthKernel");
  Truth truth{Download(memory, elements), Download(memory + elements, elements),
              Download(memory + 2 * elements, rows * kHeadSize)};
  CheckCuda(cudaFree(memory), "cudaFree of the truth");
  return truth;
}

struct Judgement {
  std::int64_t outside_strict = 0, outside_chunk = 0;  // elements of the output
  std::int64_t first = -1;                             // outside chunk: flat index
  double got = 0, expected = 0;                        // there
  double worst_output = 0;  // relative rms of a (sequence, head); limit 0.01
  double state = 0, worst_state = 0, max_state = 0;  // limits 0.01, 0.02, 0.015
  bool passed() const {
    return outside_chunk == 0 && worst_output <= 0.01 && state <= 0.01 && worst_state <= 0.02 &&
           max_state <= 0.015;
  }
};

// Sums of squares of differences and of the truth.
struct Ratio {
  double difference = 0, truth = 0;
  void Add(double got, double expected) {
    difference += (got - expected) * (got - expected);
    truth += expected * expected;
  }
  // NaN counts as 1e9; tiny truths are judged by the element rules alone.
  double Value(double count) const {
    if (std::sqrt(truth) <= 1e-6 * std::sqrt(count)) return std::sqrt(difference) <= 1e-4 ? 0 : 1e9;
    const double ratio = std::sqrt(difference / truth);
    return std::isfinite(ratio) ? ratio : 1e9;
  }
};

inline Judgement Judge(const Truth& truth, const std::int64_t* cu_seqlens, std::int64_t sequences,
                       const std::vector<std::uint16_t>& output, const std::vector<float>& state) {
  Judgement result;
  Ratio whole;
  double max_difference = 0, max_truth = 0;
  for (std::int64_t s = 0; s < sequences; ++s) {
    for (std::int64_t h = 0; h < kValueHeads; ++h) {
      Ratio outputs, states;
      for (std::int64_t t = cu_seqlens[s]; t < cu_seqlens[s + 1]; ++t) {
        for (std::int64_t v = 0; v < kHeadSize; ++v) {
          const auto i = static_cast<std::size_t>((t * kValueHeads + h) * kHeadSize + v);
          const double got = ToFloat(bf16{output[i]}), r = truth.output[i];
          const double strict = 0.005 + 0.016 * std::abs(r), error = std::abs(got - r);
          outputs.Add(got, r);
          result.outside_strict += !(error <= strict);
          if (error <= strict + 0x1p-7 * truth.magnitude[i]) continue;
          if (result.outside_chunk++ == 0) {
            result.first = static_cast<std::int64_t>(i);
            result.got = got;
            result.expected = r;
          }
        }
      }
      for (std::int64_t e = 0; e < kStateElements; ++e) {
        const auto i = static_cast<std::size_t>((s * kValueHeads + h) * kStateElements + e);
        states.Add(state[i], truth.state[i]);
        whole.Add(state[i], truth.state[i]);
        max_difference = std::max(max_difference, std::abs(state[i] - truth.state[i]));
        max_truth = std::max(max_truth, std::abs(truth.state[i]));
      }
      const auto count = static_cast<double>((cu_seqlens[s + 1] - cu_seqlens[s]) * kHeadSize);
      result.worst_output = std::max(result.worst_output, outputs.Value(count));
      result.worst_state = std::max(result.worst_state, states.Value(kStateElements));
    }
  }
  result.state = whole.Value(static_cast<double>(sequences * kValueHeads * kStateElements));
  result.max_state = max_truth > 0 ? max_difference / max_truth : max_difference;
  return result;
}

}  // namespace assay::gdn_prefill
