// Every (or every n-th) output row against fp64 on the device: plain loops that share nothing with
// the kernels. Used by tests and the bench. The rules are the grades of rows.h.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "cuda/check.h"
#include "ops/attention/sm90.h"

namespace assay::attention {

struct CheckResult {
  unsigned long long rows = 0;      // looked at
  unsigned long long outside = 0;   // elements beyond the flash grade, or NaN where the truth isn't
  unsigned long long captured = 0;  // elements beyond the captured grade
  unsigned long long wrong_lse = 0;  // rows
  unsigned long long first = ~0ull;  // least ((b * H + h) * Nq + q) * D + d outside
  double worst_slice = 0;            // relative L2 error of the worst (b, h)
};

// Query q sees suffix keys below limits[q]; null = all.
struct CheckRows {
  const std::int32_t* limits = nullptr;
  std::int64_t step = 1;
};

__device__ inline double CheckScore(const Sm90Tensors& x, const double* q, const bf16* k) {
  double sum = 0;
  for (int d = 0; d < x.head_dim; ++d) {
    sum += q[d] * __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(k)[d]);
  }
  return sum / sqrt(static_cast<double>(x.head_dim));
}

// One row a block of 128 threads; slices: squared error and squared truth of each (b, h).
__global__ void __launch_bounds__(128)
    CheckKernel(const Sm90Tensors x, const CheckRows which, CheckResult* result, double* slices) {
  __shared__ double q[128], weights[128], shared_max[128];
  const int thread = threadIdx.x;
  const std::int64_t rows = x.batch * x.heads * x.queries;
  const std::int64_t keys = x.prefix.count + x.suffix.count;
  for (std::int64_t index = std::int64_t{blockIdx.x} * which.step; index < rows;
       index += std::int64_t{gridDim.x} * which.step) {
    const std::int64_t row = index % x.queries, pair = index / x.queries;
    const std::int64_t head = pair % x.heads, batch = pair / x.heads;
    const auto at = [&](const bf16* base, const Strides& s, std::int64_t token) {
      return base + batch * s.batch + head * s.head + token * s.token;
    };
    const auto sees = [&](std::int64_t key) {
      if (key < x.prefix.count) return true;
      const std::int64_t j = key - x.prefix.count;
      if (which.limits != nullptr && j >= which.limits[row]) return false;
      return x.mask.visible == nullptr || x.mask.visible[batch * x.mask.batch + head * x.mask.head +
                                                         row * x.mask.query + j * x.mask.key] != 0;
    };
    const auto key_of = [&](std::int64_t key, bool value) {
      const bool prefix = key < x.prefix.count;
      const Sm90Keys& piece = prefix ? x.prefix : x.suffix;
      const std::int64_t j = prefix ? key : key - x.prefix.count;
      return value ? at(piece.v, piece.v_strides, j) : at(piece.k, piece.k_strides, j);
    };
    __syncthreads();
    if (thread < x.head_dim) {
      q[thread] = __bfloat162float(
          reinterpret_cast<const __nv_bfloat16*>(at(x.q, x.q_strides, row))[thread]);
    }
    __syncthreads();
    double largest = -INFINITY;
    for (std::int64_t j = thread; j < keys; j += 128) {
      if (sees(j)) largest = fmax(largest, CheckScore(x, q, key_of(j, false)));
    }
    shared_max[thread] = largest;
    __syncthreads();
    for (int i = 0; i < 128; ++i) largest = fmax(largest, shared_max[i]);
    double sum = 0, value = 0, magnitude = 0;
    for (std::int64_t first = 0; first < keys; first += 128) {
      const std::int64_t j = first + thread;
      __syncthreads();
      weights[thread] =
          j < keys && sees(j) ? exp(CheckScore(x, q, key_of(j, false)) - largest) : -1;
      __syncthreads();
      for (int i = 0; i < 128 && first + i < keys; ++i) {
        if (weights[i] == -1) continue;  // not seen
        sum += weights[i];
        if (thread >= x.head_dim) continue;
        const double v = __bfloat162float(
            reinterpret_cast<const __nv_bfloat16*>(key_of(first + i, true))[thread]);
        value += weights[i] * v;
        magnitude += weights[i] * fabs(v);
      }
    }
    if (thread == 0) atomicAdd(&result->rows, 1ull);
    if (thread == 0 && x.lse != nullptr) {
      const double lse = x.lse[pair * x.queries + row], truth = largest + log(sum);
      const bool right =
          sum == 0 ? lse == -INFINITY : fabs(lse - truth) <= 1e-4 + 1e-5 * fabs(truth);
      if (!right && !isnan(truth)) atomicAdd(&result->wrong_lse, 1ull);
    }
    if (thread >= x.head_dim) continue;
    const double r = sum == 0 ? 0 : value / sum, scale = sum == 0 ? 0 : magnitude / sum;
    const double o =
        __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(at(x.o, x.o_strides, row))[thread]);
    if (isnan(r)) {
      if (!isnan(o)) atomicAdd(&result->outside, 1ull);
      continue;
    }
    const double error = fabs(o - r), captured = 0.005 + 0.016 * fabs(r);
    if (!(error <= captured)) atomicAdd(&result->captured, 1ull);
    if (!(error <= captured + scale / 256)) {
      atomicAdd(&result->outside, 1ull);
      atomicMin(&result->first,
                static_cast<unsigned long long>((pair * x.queries + row) * x.head_dim + thread));
    }
    if (isfinite(error)) {
      atomicAdd(&slices[2 * pair], error * error);
      atomicAdd(&slices[2 * pair + 1], r * r);
    }
  }
}

// Pointers are device memory; waits.
inline CheckResult CheckOnDevice(const Sm90Call& call, std::int64_t step = 1) {
  const Sm90Tensors& x = call.tensors;
  CheckResult result;
  const std::int64_t rows = x.batch * x.heads * x.queries;
  if (rows == 0) return result;
  CheckRows which;
  which.step = step;
  std::int32_t* limits = nullptr;
  if (call.block_causal) {
    std::vector<std::int32_t> host(static_cast<std::size_t>(x.queries));
    for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::int32_t>(i) + 1;
    for (const ImageBlock& block : call.blocks) {
      for (std::int32_t i = block.start; i < block.end; ++i)
        host[static_cast<std::size_t>(i)] = block.end;
    }
    CheckCuda(cudaMalloc(&limits, host.size() * 4), "cudaMalloc of limits");
    CheckCuda(cudaMemcpy(limits, host.data(), host.size() * 4, cudaMemcpyHostToDevice), "limits");
    which.limits = limits;
  }
  CheckResult* device = nullptr;
  double* slices = nullptr;
  const auto pairs = static_cast<std::size_t>(x.batch * x.heads);
  CheckCuda(cudaMalloc(&device, sizeof(CheckResult)), "cudaMalloc of a check result");
  CheckCuda(cudaMemcpy(device, &result, sizeof(result), cudaMemcpyHostToDevice), "cudaMemcpy");
  CheckCuda(cudaMalloc(&slices, pairs * 16), "cudaMalloc of slices");
  CheckCuda(cudaMemset(slices, 0, pairs * 16), "cudaMemset of slices");
  const std::int64_t blocks = (rows + step - 1) / step;
  CheckKernel<<<static_cast<unsigned>(blocks < 16384 ? blocks : 16384), 128>>>(x, which, device,
                                                                               slices);
  CheckCuda(cudaGetLastError(), "launch of CheckKernel");
  CheckCuda(cudaMemcpy(&result, device, sizeof(result), cudaMemcpyDeviceToHost), "CheckKernel");
  std::vector<double> sums(pairs * 2);
  CheckCuda(cudaMemcpy(sums.data(), slices, pairs * 16, cudaMemcpyDeviceToHost), "slices");
  for (std::size_t i = 0; i < pairs; ++i) {
    if (sums[2 * i + 1] == 0) continue;
    const double relative = std::sqrt(sums[2 * i] / sums[2 * i + 1]);
    if (relative > result.worst_slice) result.worst_slice = relative;
  }
  CheckCuda(cudaFree(device), "cudaFree");
  CheckCuda(cudaFree(slices), "cudaFree");
  if (limits != nullptr) CheckCuda(cudaFree(limits), "cudaFree");
  return result;
}

}  // namespace assay::attention
