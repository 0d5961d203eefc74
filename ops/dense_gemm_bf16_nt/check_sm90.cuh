// Every element of C against fp64 on the device: plain loops that share nothing with the kernels.
// Used by tests and benches. The bound is the `strict` grade of reference.cpp.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/check.h"
#include "ops/dense_gemm_bf16_nt/spec.h"

namespace assay::dense_gemm_bf16_nt {

struct CheckResult {
  unsigned long long outside = 0;         // elements outside the bound (NaN included)
  unsigned long long first = ~0ull;       // the least index m * N + n of those
  unsigned long long beyond_one_ulp = 0;  // elements more than 1 ulp_bf16(r) from r
  unsigned long long elements = 0;        // looked at
};

// ulp_bf16(r) = 2^(max(floor(log2 |r|), -126) - 7).
__device__ inline double UlpBf16(double r) {
  const int exponent = r == 0 ? -126 : max(ilogb(r), -126);
  return scalbn(1.0, exponent - 7);
}

// 64 x 64 elements a block, 4 x 4 a thread, K in steps of 16.
__global__ void __launch_bounds__(256) CheckKernel(const Args args, CheckResult* result) {
  constexpr int kTile = 64, kStep = 16;
  __shared__ double a[kStep][kTile + 1], b[kStep][kTile + 1];
  const int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16;  // columns: + 0, 16, 32, 48
  const auto* source_a = reinterpret_cast<const __nv_bfloat16*>(args.a);
  const auto* source_b = reinterpret_cast<const __nv_bfloat16*>(args.b);
  const auto* c = reinterpret_cast<const __nv_bfloat16*>(args.c);
  const std::int64_t row0 = std::int64_t{blockIdx.y} * kTile;
  const std::int64_t column0 = std::int64_t{blockIdx.x} * kTile;
  double sum[4][4] = {}, magnitude[4][4] = {};
  for (std::int64_t k0 = 0; k0 < args.k; k0 += kStep) {
    __syncthreads();
    for (int i = threadIdx.x; i < kTile * kStep; i += 256) {
      const int r = i / kStep, k = i % kStep;
      const bool in_k = k0 + k < args.k;
      a[k][r] =
          in_k && row0 + r < args.m
              ? static_cast<double>(__bfloat162float(source_a[(row0 + r) * args.lda + k0 + k]))
              : 0.0;
      b[k][r] =
          in_k && column0 + r < args.n
              ? static_cast<double>(__bfloat162float(source_b[(column0 + r) * args.ldb + k0 + k]))
              : 0.0;
    }
    __syncthreads();
    for (int k = 0; k < kStep; ++k) {
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) {
          const double x = a[k][row + i], y = b[k][column + 16 * j];
          sum[i][j] += x * y;
          magnitude[i][j] += fabs(x) * fabs(y);
        }
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      const std::int64_t m = row0 + row + i, n = column0 + column + 16 * j;
      if (m >= args.m || n >= args.n) continue;
      const double r = sum[i][j], ulp = UlpBf16(r);
      const double error = fabs(static_cast<double>(__bfloat162float(c[m * args.ldc + n])) - r);
      const double steps = static_cast<double>(args.k) / 16;
      const double bound = 0.5 * ulp + steps * 0x1p-23 * magnitude[i][j];
      if (!(error <= ulp)) atomicAdd(&result->beyond_one_ulp, 1ull);
      if (!(error <= bound)) {
        atomicAdd(&result->outside, 1ull);
        atomicMin(&result->first, static_cast<unsigned long long>(m * args.n + n));
      }
    }
  }
}

// Pointers are device memory; waits.
inline CheckResult CheckOnDevice(const Args& args) {
  CheckResult result;
  if (args.m == 0 || args.n == 0) return result;
  CheckResult* device = nullptr;
  CheckCuda(cudaMalloc(&device, sizeof(CheckResult)), "cudaMalloc of a check result");
  CheckCuda(cudaMemcpy(device, &result, sizeof(result), cudaMemcpyHostToDevice), "cudaMemcpy");
  const dim3 grid(static_cast<unsigned>((args.n + 63) / 64),
                  static_cast<unsigned>((args.m + 63) / 64));
  CheckKernel<<<grid, 256>>>(args, device);
  CheckCuda(cudaGetLastError(), "launch of CheckKernel");
  CheckCuda(cudaMemcpy(&result, device, sizeof(result), cudaMemcpyDeviceToHost), "CheckKernel");
  CheckCuda(cudaFree(device), "cudaFree");
  result.elements = static_cast<unsigned long long>(args.m) * args.n;
  return result;
}

// Elements of two [m, n] results that differ in any bit.
__global__ void DifferenceKernel(const std::uint16_t* x, std::int64_t stride_x,
                                 const std::uint16_t* y, std::int64_t stride_y, std::int64_t m,
                                 std::int64_t n, unsigned long long* differences) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  unsigned long long mine = 0;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < m * n; i += step) {
    mine += x[i / n * stride_x + i % n] != y[i / n * stride_y + i % n];
  }
  if (mine != 0) atomicAdd(differences, mine);
}

inline unsigned long long CountDifferences(const Args& x, const Args& y) {
  unsigned long long* device = nullptr;
  unsigned long long host = 0;
  CheckCuda(cudaMalloc(&device, sizeof(host)), "cudaMalloc of a counter");
  CheckCuda(cudaMemset(device, 0, sizeof(host)), "cudaMemset");
  DifferenceKernel<<<1056, 256>>>(reinterpret_cast<const std::uint16_t*>(x.c), x.ldc,
                                  reinterpret_cast<const std::uint16_t*>(y.c), y.ldc, x.m, x.n,
                                  device);
  CheckCuda(cudaGetLastError(), "launch of DifferenceKernel");
  CheckCuda(cudaMemcpy(&host, device, sizeof(host), cudaMemcpyDeviceToHost), "DifferenceKernel");
  CheckCuda(cudaFree(device), "cudaFree");
  return host;
}

}  // namespace assay::dense_gemm_bf16_nt
