// TMA: bulk copies between global and shared memory, whole boxes of a tensor map (2 to 5
// dimensions) or plain bytes. One thread issues them; loads end on an mbarrier, stores in a bulk
// group. Coordinates count elements, innermost dimension first; what lies outside the tensor loads
// as zeros and is not stored, with two limits of the hardware (seen on an H200): a store that
// begins before the tensor is an illegal instruction, and a store clips its innermost dimension at
// units of 16 bytes, so that zeros may land behind an extent that is not a multiple. Shared memory
// is 128-byte aligned (1024 with the 128-byte swizzle).
#pragma once

#include <cuda.h>

#include <cstdint>
#include <cuda/ptx>

namespace assay::sm90 {

// Fetches the tensor map itself, so that the first copy does not wait for it.
__device__ inline void PrefetchTensorMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" : : "l"(map) : "memory");
}

template <int kRank>
__device__ inline void TmaLoad(void* shared, const CUtensorMap* map,
                               const std::int32_t (&coordinates)[kRank], std::uint64_t* barrier) {
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, shared,
                                    map, coordinates, barrier);
}

// Writes the box to the same offset in every CTA of `cta_mask` and signals the barrier at the same
// offset there: each of those CTAs must expect the bytes of the whole box.
template <int kRank>
__device__ inline void TmaLoadMulticast(void* shared, const CUtensorMap* map,
                                        const std::int32_t (&coordinates)[kRank],
                                        std::uint64_t* barrier, std::uint16_t cta_mask) {
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, shared,
                                    map, coordinates, barrier, cta_mask);
}

template <int kRank>
__device__ inline void TmaStore(const CUtensorMap* map, const std::int32_t (&coordinates)[kRank],
                                const void* shared) {
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_global, ::cuda::ptx::space_shared, map,
                                    coordinates, shared);
}

// Plain bytes: a multiple of 16, both addresses 16-byte aligned.
__device__ inline void BulkLoad(void* shared, const void* global, std::uint32_t bytes,
                                std::uint64_t* barrier) {
  ::cuda::ptx::cp_async_bulk(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, shared, global,
                             bytes, barrier);
}

__device__ inline void BulkStore(void* global, const void* shared, std::uint32_t bytes) {
  ::cuda::ptx::cp_async_bulk(::cuda::ptx::space_global, ::cuda::ptx::space_shared, global, shared,
                             bytes);
}

// Closes a group of this thread's stores.
__device__ inline void BulkCommitGroup() { ::cuda::ptx::cp_async_bulk_commit_group(); }

// Until at most kPending groups of this thread still read their shared memory.
template <int kPending>
__device__ inline void BulkWaitGroupRead() {
  ::cuda::ptx::cp_async_bulk_wait_group_read(::cuda::ptx::n32_t<kPending>());
}

// Until at most kPending groups of this thread are incomplete.
template <int kPending>
__device__ inline void BulkWaitGroup() {
  ::cuda::ptx::cp_async_bulk_wait_group(::cuda::ptx::n32_t<kPending>());
}

}  // namespace assay::sm90
