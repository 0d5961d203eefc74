// From wgmma accumulators to global memory: fp32 -> bf16, stmatrix into a swizzled staging buffer,
// TMA store. Each warp works on its own 16 rows with two buffers of 16 rows x 64 columns, so that
// it waits for nobody and a store overlaps the next conversion.
#pragma once

#include <cuda_bf16.h>

#include "cuda/cluster.cuh"
#include "cuda/fence.cuh"
#include "cuda/ldmatrix.cuh"
#include "cuda/tma.cuh"

namespace assay::sm90 {

inline constexpr int kStoreRows = 16, kStoreColumns = 64;  // the box of the tensor map of C
inline constexpr int kStoreBytes = kStoreRows * kStoreColumns * 2;
inline constexpr int kWarpStagingBytes = 2 * kStoreBytes;

// Round to nearest even; `low` goes to the lower address.
__device__ inline std::uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// One warp's buffer: which half of its staging comes next.
struct WarpStaging {
  std::byte* memory = nullptr;  // kWarpStagingBytes, 1024-byte aligned
  int half = 0;
};

// kColumns (a multiple of 16, at most 64) columns of a warp's 16 rows, from `values` on, to row,
// column of `map`, whose box is kColumns x 16: with the 128-byte swizzle where a row of the box has
// 128 bytes, else plain.
template <int kColumns>
__device__ inline void StoreColumns(const float* values, WarpStaging& staging,
                                    const CUtensorMap* map, std::int32_t row, std::int32_t column) {
  const int lane = threadIdx.x % 32;
  const int staging_row = lane % 16;  // of the address that this lane gives to stmatrix
  std::byte* buffer = staging.memory + staging.half * kStoreBytes;
  staging.half ^= 1;
  if (lane == 0) BulkWaitGroupRead<1>();  // the store that used this buffer has read it
  __syncwarp();
#pragma unroll
  for (int pair = 0; pair < kColumns / 16; ++pair) {  // matrices (rows 0-7, 8-15) x 8 columns x 2
    const float* v = values + pair * 8;
    const std::uint32_t words[4] = {PackBf16(v[0], v[1]), PackBf16(v[2], v[3]),
                                    PackBf16(v[4], v[5]), PackBf16(v[6], v[7])};
    int unit = pair * 2 + lane / 16;
    if (kColumns == kStoreColumns) unit ^= staging_row % 8;
    StMatrixX4(buffer + staging_row * kColumns * 2 + unit * 16, words);
  }
  FenceProxyAsyncShared();
  __syncwarp();
  if (lane == 0) {
    TmaStore(map, {column, row}, buffer);
    BulkCommitGroup();
  }
}

// Stores 16 rows x (kFloats * 2) columns of a warp's accumulators (m64nN layout: float 4j + 2h + i
// is row l / 4 + 8h, column 8j + 2 (l % 4) + i of lane l): 64 columns at a time by `map` (box
// 64 x 16, 128-byte swizzle), the rest by `tail` (its columns x 16, no swizzle).
template <int kFloats>
__device__ inline void StoreAccumulators(const float (&values)[kFloats], WarpStaging& staging,
                                         const CUtensorMap* map, const CUtensorMap* tail,
                                         std::int32_t row, std::int32_t column) {
  constexpr int kChunks = kFloats / 32, kTail = kFloats % 32 * 2;
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    StoreColumns<kStoreColumns>(values + chunk * 32, staging, map, row,
                                column + chunk * kStoreColumns);
  }
  if constexpr (kTail > 0) {
    StoreColumns<kTail>(values + kChunks * 32, staging, tail, row,
                        column + kChunks * kStoreColumns);
  }
}

}  // namespace assay::sm90
