// 64 rows of a state [V][K] between memory and the registers of a warpgroup, through tiles in
// shared memory: TMA moves whole lines, where the registers of accumulators would move 32 bytes of
// eight rows at a time, which halves the bandwidth of the chains.
#pragma once

#include "cuda/fence.cuh"
#include "cuda/tma.cuh"
#include "ops/gdn_prefill/sm90_chain.cuh"

namespace assay::gdn_prefill {

inline constexpr int kStateBoxes = kHeadSize / kStateColumns;
inline constexpr int kStateTileBytes = kStateRows * kHeadSize * 4;

// Four boxes [64 rows][32 columns] of fp32 next to each other in V, 1024-byte aligned. Unit u (16
// bytes) of row r lies at u ^ (r % 8): the 128-byte swizzle.
struct StateTiles {
  std::byte* box[kStateBoxes];
};

// Of a state's map: the row of V `row` of a (sequence or piece, head).
__device__ inline std::int32_t StateRow(std::int64_t number, int head, int row) {
  return static_cast<std::int32_t>((number * kValueHeads + head) * kHeadSize + row);
}

// One thread; `full` gets kStateTileBytes.
__device__ inline void LoadStateTiles(const CUtensorMap* map, std::int32_t row,
                                      const StateTiles& tiles, std::uint64_t* full) {
  sm90::MbarrierArriveExpectTx(full, kStateTileBytes);
#pragma unroll
  for (int i = 0; i < kStateBoxes; ++i) {
    sm90::TmaLoad(tiles.box[i], map, {kStateColumns * i, row}, full);
  }
}

// Of a thread's 64 accumulators, floats 2 i and 2 i + 1: row lane / 4 + 8 (i % 2) of the warp's 16,
// column 8 (i / 2) + 2 (lane % 4).
__device__ inline float2* StatePair(const StateTiles& tiles, int i) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * kWarpRows + lane / 4 + i % 2 * 8;
  const int unit = i / 2 % 4 * 2 + lane % 4 / 2;
  return reinterpret_cast<float2*>(tiles.box[i / 8] + Swizzled(row, unit) + lane % 2 * 8);
}

// By the four warps of a CTA's first warpgroup.
__device__ inline void TakeState(const StateTiles& tiles, float (&s)[64]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const float2 pair = *StatePair(tiles, i);
    s[2 * i] = pair.x;
    s[2 * i + 1] = pair.y;
  }
}

// By the same, when nobody reads `tiles` any more. Thread 0 has a bulk group that reads them.
__device__ inline void StoreState(const float (&s)[64], const StateTiles& tiles,
                                  const CUtensorMap* map, std::int32_t row) {
#pragma unroll
  for (int i = 0; i < 32; ++i) *StatePair(tiles, i) = make_float2(s[2 * i], s[2 * i + 1]);
  sm90::FenceProxyAsyncShared();
  sm90::BarSync(1, 128);
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int i = 0; i < kStateBoxes; ++i) {
    sm90::TmaStore(map, {kStateColumns * i, row}, tiles.box[i]);
  }
  sm90::BulkCommitGroup();
}

// By a warp, its own 16 rows: two boxes at a time through 4 KB of its own, 1024-byte aligned, that
// no bulk group reads. `map` has boxes of 16 rows. Lane 0 has a bulk group that reads `staging`.
__device__ inline void StoreStateOfWarp(const float (&s)[64], std::byte* staging,
                                        const CUtensorMap* map, std::int32_t row) {
  constexpr int kBoxBytes = kWarpRows * kStateColumns * 4;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half > 0) {
      if (lane == 0) sm90::BulkWaitGroupRead<0>();
      __syncwarp();
    }
#pragma unroll
    for (int i = 16 * half; i < 16 * half + 16; ++i) {
      const int unit = i / 2 % 4 * 2 + lane % 4 / 2;
      std::byte* to =
          staging + i / 8 % 2 * kBoxBytes + Swizzled(lane / 4 + i % 2 * 8, unit) + lane % 2 * 8;
      *reinterpret_cast<float2*>(to) = make_float2(s[2 * i], s[2 * i + 1]);
    }
    sm90::FenceProxyAsyncShared();
    __syncwarp();
    if (lane == 0) {
      for (int box = 0; box < 2; ++box) {
        sm90::TmaStore(map, {kStateColumns * (2 * half + box), row}, staging + box * kBoxBytes);
      }
      sm90::BulkCommitGroup();
    }
  }
}

}  // namespace assay::gdn_prefill
