// mbarrier: the barrier object in shared memory on which TMA copies and warps meet.
// A phase ends when `arrivals` threads have arrived and all expected bytes have landed.
#pragma once

#include <cstdint>
#include <cuda/ptx>

namespace assay::sm90 {

__device__ inline std::uint32_t SharedAddress(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void MbarrierInit(std::uint64_t* barrier, std::uint32_t arrivals) {
  ::cuda::ptx::mbarrier_init(barrier, arrivals);
}

// Makes initialised barriers visible to the other CTAs of the cluster and to TMA.
__device__ inline void FenceMbarrierInit() {
  ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
}

// One arrival, and `bytes` more to wait for in this phase.
__device__ inline void MbarrierArriveExpectTx(std::uint64_t* barrier, std::uint32_t bytes) {
  ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta,
                                         ::cuda::ptx::space_shared, barrier, bytes);
}

__device__ inline void MbarrierArrive(std::uint64_t* barrier) {
  ::cuda::ptx::mbarrier_arrive(barrier);
}

// Arrives on the barrier at the same offset in CTA `rank` of the cluster (which may be this one).
__device__ inline void MbarrierArriveCluster(std::uint64_t* barrier, std::uint32_t rank) {
  asm volatile(
      "{\n\t"
      ".reg .b32 remote;\n\t"
      "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n\t"
      "}"
      :
      : "r"(SharedAddress(barrier)), "r"(rank)
      : "memory");
}

// The same without ordering this thread's memory accesses: enough where the barrier says only that
// wgmma or TMA has finished with a buffer. A release at cluster scope flushes the thread's writes
// first, which costs more than the multiplication of a stage.
__device__ inline void MbarrierArriveClusterRelaxed(std::uint64_t* barrier, std::uint32_t rank) {
  asm volatile(
      "{\n\t"
      ".reg .b32 remote;\n\t"
      "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
      "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n\t"
      "}"
      :
      : "r"(SharedAddress(barrier)), "r"(rank)
      : "memory");
}

// Waits for the end of the phase of this parity (0 for the first one). On a fresh barrier a wait
// for parity 1 returns at once.
__device__ inline void MbarrierWait(std::uint64_t* barrier, std::uint32_t parity) {
  while (!::cuda::ptx::mbarrier_try_wait_parity(barrier, parity)) {
  }
}

// The same, and sees what other CTAs of the cluster wrote before they arrived.
__device__ inline void MbarrierWaitCluster(std::uint64_t* barrier, std::uint32_t parity) {
  while (!::cuda::ptx::mbarrier_try_wait_parity(::cuda::ptx::sem_acquire,
                                                ::cuda::ptx::scope_cluster, barrier, parity)) {
  }
}

}  // namespace assay::sm90
