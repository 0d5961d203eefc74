// Thread block clusters: ranks, the cluster barrier, one elected lane of a warp.
#pragma once

#include <cstdint>
#include <cuda/ptx>

namespace assay::sm90 {

__device__ inline std::uint32_t ClusterCtaRank() { return ::cuda::ptx::get_sreg_cluster_ctarank(); }

__device__ inline void ClusterArrive() { ::cuda::ptx::barrier_cluster_arrive(); }

__device__ inline void ClusterWait() { ::cuda::ptx::barrier_cluster_wait(); }

// All threads of all CTAs of the cluster that have not exited. Orders shared memory across them.
__device__ inline void ClusterSync() {
  ClusterArrive();
  ClusterWait();
}

// mapa: the address of `pointer`'s counterpart in the shared memory of CTA `rank`.
__device__ inline std::uint32_t Mapa(const void* pointer, std::uint32_t rank) {
  std::uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(remote)
      : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer))), "r"(rank));
  return remote;
}

// A float at an address that Mapa gave.
__device__ inline float LoadCluster1(std::uint32_t address) {
  float x;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}

// Four floats at an address that Mapa gave (16-byte aligned).
__device__ inline float4 LoadCluster(std::uint32_t address) {
  float4 x;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(address)
               : "memory");
  return x;
}

// elect.sync: true in one lane of the (whole) warp.
__device__ inline bool ElectSync() {
  std::uint32_t elected;
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "elect.sync _|p, 0xffffffff;\n\t"
      "selp.u32 %0, 1, 0, p;\n\t"
      "}"
      : "=r"(elected));
  return elected != 0;
}

}  // namespace assay::sm90
