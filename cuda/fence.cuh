// Proxy fences and barriers among some warps of a CTA.
#pragma once

#include <cuda/ptx>

namespace assay::sm90 {

// Ordinary writes to shared memory (st, stmatrix) that TMA or wgmma reads next: every writing
// thread fences, then the threads synchronise.
__device__ inline void FenceProxyAsyncShared() {
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
}

// bar.sync: waits until `threads` threads (a multiple of 32) have come to barrier `id`.
// Barrier 0 is __syncthreads.
__device__ inline void BarSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

// bar.arrive: counts for barrier `id`, but does not wait.
__device__ inline void BarArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

}  // namespace assay::sm90
