// Blocks that move data or signals among threads: ldmatrix, stmatrix, elect, clusters, named
// barriers, the stage ring, programmatic launch, the order of tiles, the epilogue.
#include <cuda_bf16.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/dtype.h"
#include "cuda/cluster.cuh"
#include "cuda/device_test.cuh"
#include "cuda/epilogue.cuh"
#include "cuda/fence.cuh"
#include "cuda/griddepcontrol.cuh"
#include "cuda/ldmatrix.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/tensor_map.cuh"
#include "cuda/tile_scheduler.cuh"

namespace assay::sm90 {
namespace {

using Warps = DeviceTest;

// Loads four 8x8 matrices (plain or transposed), checks nothing, stores them back the same way, and
// shows the words.
template <bool kTrans>
__global__ void MatrixKernel(const std::uint16_t* from, std::uint32_t* words, std::uint16_t* to) {
  __shared__ __align__(16) std::uint16_t in[4 * 64], out[4 * 64];
  const int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) in[i] = from[i];
  __syncwarp();
  std::uint32_t registers[4];
  if (kTrans) {
    LdMatrixX4Trans(registers, in + lane * 8);
    StMatrixX4Trans(out + lane * 8, registers);
  } else {
    LdMatrixX4(registers, in + lane * 8);
    StMatrixX4(out + lane * 8, registers);
  }
  __syncwarp();
  for (int i = 0; i < 4; ++i) words[i * 32 + lane] = registers[i];
  for (int i = lane; i < 256; i += 32) to[i] = out[i];
}

TEST_F(Warps, LdMatrixAndStMatrix) {
  std::vector<std::uint16_t> source(256);
  std::iota(source.begin(), source.end(), std::uint16_t{0});
  for (const bool trans : {false, true}) {
    DeviceArray<std::uint16_t> from(source), to(256);
    DeviceArray<std::uint32_t> words(128);
    (trans ? MatrixKernel<true> : MatrixKernel<false>)<<<1, 32>>>(from.data(), words.data(),
                                                                  to.data());
    CheckCuda(cudaGetLastError(), "launch of MatrixKernel");
    EXPECT_EQ(to.Get(), source);
    const std::vector<std::uint32_t> seen = words.Get();
    for (std::uint32_t i = 0; i < 4; ++i) {
      for (std::uint32_t lane = 0; lane < 32; ++lane) {
        const std::uint32_t row = lane / 4, column = lane % 4 * 2;
        const std::uint32_t low = i * 64 + (trans ? column * 8 + row : row * 8 + column);
        const std::uint32_t high = low + (trans ? 8 : 1);
        EXPECT_EQ(seen[i * 32 + lane], low | high << 16) << "matrix " << i << " lane " << lane;
      }
    }
  }
}

// Every CTA arrives on every CTA's barrier after writing to its shared memory through mapa.
__global__ void ClusterKernel(std::uint32_t* seen) {
  __shared__ std::uint32_t mailbox[4];
  __shared__ std::uint64_t barrier;
  const std::uint32_t rank = ClusterCtaRank();
  if (threadIdx.x == 0) {
    MbarrierInit(&barrier, 4);
    FenceMbarrierInit();
  }
  ClusterSync();
  if (threadIdx.x < 4) {
    const std::uint32_t address = Mapa(&mailbox[rank], threadIdx.x);
    asm volatile("st.shared::cluster.u32 [%0], %1;"
                 :
                 : "r"(address), "r"(100 * rank + threadIdx.x)
                 : "memory");
    MbarrierArriveCluster(&barrier, threadIdx.x);
  }
  MbarrierWaitCluster(&barrier, 0);
  if (threadIdx.x < 4) seen[rank * 4 + threadIdx.x] = mailbox[threadIdx.x];
  ClusterSync();
}

TEST_F(Warps, ClusterRanksRemoteWritesAndRemoteArrivals) {
  DeviceArray<std::uint32_t> seen(16);
  LaunchCluster(ClusterKernel, 4, 32, 4, 0, seen.data());
  const std::vector<std::uint32_t> values = seen.Get();
  for (std::uint32_t to = 0; to < 4; ++to) {
    for (std::uint32_t from = 0; from < 4; ++from)
      EXPECT_EQ(values[to * 4 + from], 100 * from + to);
  }
}

// Warps 0 and 1 exchange turns through named barriers: 0 arrives, 1 waits.
__global__ void ElectKernel(int* elected, int* order) {
  __shared__ int value;
  if (threadIdx.x < 32) {
    if (ElectSync()) {
      atomicAdd(elected, 1);
      value = 42;
    }
    __syncwarp();
    BarArrive(3, 64);
  } else {
    BarSync(3, 64);
    if (threadIdx.x == 32) *order = value;
  }
}

TEST_F(Warps, ElectPicksOneLaneAndNamedBarriersOrder) {
  DeviceArray<int> elected(1), order(1);
  ElectKernel<<<1, 64>>>(elected.data(), order.data());
  CheckCuda(cudaGetLastError(), "launch of ElectKernel");
  EXPECT_EQ(elected.Get()[0], 1);
  EXPECT_EQ(order.Get()[0], 42);
}

// One thread fills a ring of three stages, a warp adds them up: 32 words a stage.
__global__ void RingKernel(const std::uint32_t* from, int rounds, std::uint32_t* sums) {
  constexpr int kStages = 3;
  __shared__ __align__(128) std::uint32_t ring[kStages][32];
  __shared__ PipelineBarriers<kStages> barriers;
  if (threadIdx.x == 0) {
    barriers.Init(1);
    FenceMbarrierInit();
  }
  __syncthreads();
  PipelineState<kStages> state;
  if (threadIdx.x == 32) {
    for (int round = 0; round < rounds; ++round) {
      MbarrierWait(&barriers.empty[state.stage], state.parity ^ 1);
      MbarrierArriveExpectTx(&barriers.full[state.stage], 128);
      BulkLoad(ring[state.stage], from + round * 32, 128, &barriers.full[state.stage]);
      state.Advance();
    }
  } else if (threadIdx.x < 32) {
    std::uint32_t sum = 0;
    for (int round = 0; round < rounds; ++round) {
      MbarrierWait(&barriers.full[state.stage], state.parity);
      sum += ring[state.stage][threadIdx.x] * (round + 1);
      __syncwarp();
      if (threadIdx.x == 0) MbarrierArrive(&barriers.empty[state.stage]);
      state.Advance();
    }
    sums[threadIdx.x] = sum;
  }
}

TEST_F(Warps, RingOfStagesDeliversEveryRoundInOrder) {
  for (const int rounds : {1, 2, 3, 4, 7, 100}) {
    std::vector<std::uint32_t> source(static_cast<std::size_t>(rounds) * 32);
    std::iota(source.begin(), source.end(), 5u);
    DeviceArray<std::uint32_t> from(source), sums(32);
    RingKernel<<<1, 64>>>(from.data(), rounds, sums.data());
    CheckCuda(cudaGetLastError(), "launch of RingKernel");
    const std::vector<std::uint32_t> seen = sums.Get();
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      std::uint32_t expected = 0;
      for (int round = 0; round < rounds; ++round) {
        expected += source[static_cast<std::size_t>(round) * 32 + lane] * (round + 1);
      }
      EXPECT_EQ(seen[lane], expected) << rounds << " rounds, lane " << lane;
    }
  }
}

__global__ void AdvanceKernel(int* mismatches) {
  for (int steps = 0; steps < 20; ++steps) {
    PipelineState<3> one, many;
    one.Advance();
    many.Advance();
    for (int i = 0; i < steps; ++i) one.Advance();
    many.Advance(steps);
    if (one.stage != many.stage || one.parity != many.parity) ++*mismatches;
  }
}

TEST_F(Warps, AdvanceByManyStepsIsThatManySteps) {
  DeviceArray<int> mismatches(1);
  AdvanceKernel<<<1, 1>>>(mismatches.data());
  CheckCuda(cudaGetLastError(), "launch of AdvanceKernel");
  EXPECT_EQ(mismatches.Get()[0], 0);
}

// The first kernel lets the second start early, then takes its time to write.
__global__ void EarlyKernel(int* value) {
  GridDepControlLaunchDependents();
  const long long start = clock64();
  while (clock64() - start < 200000) {
  }
  *value = 7;
}

__global__ void LateKernel(const int* value, int* seen) {
  GridDepControlWait();
  *seen = *value;
}

TEST_F(Warps, DependentKernelWaitsForTheOneBefore) {
  DeviceArray<int> value(1), seen(1);
  EarlyKernel<<<1, 1>>>(value.data());
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  config.attrs = &attribute;
  config.numAttrs = 1;
  CheckCuda(
      cudaLaunchKernelEx(&config, LateKernel, static_cast<const int*>(value.data()), seen.data()),
      "launch of LateKernel");
  EXPECT_EQ(seen.Get()[0], 7);
}

// The epilogue of one warpgroup: 64 x 112 floats (64 columns and a tail of 48) to bf16 at row 32 of
// a matrix with 70 rows and 104 columns.
__global__ void EpilogueKernel(const __grid_constant__ CUtensorMap map,
                               const __grid_constant__ CUtensorMap tail, std::int32_t row) {
  extern __shared__ __align__(1024) std::byte memory[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float values[56];
#pragma unroll
  for (int i = 0; i < 56; ++i) {
    const int m = warp * 16 + lane / 4 + i / 2 % 2 * 8, n = i / 4 * 8 + lane % 4 * 2 + i % 2;
    values[i] = static_cast<float>(m * 256 + n) * 1.001f;
  }
  WarpStaging staging{memory + warp * kWarpStagingBytes};
  StoreAccumulators(values, staging, &map, &tail, row + warp * kStoreRows, 0);
  if (lane == 0) BulkWaitGroup<0>();
}

TEST_F(Warps, EpilogueRoundsToNearestAndClips) {
  constexpr int kRows = 70, kColumns = 104, kStride = 112, kRow = 32;
  DeviceArray<std::uint16_t> to(kRows * kStride);
  TensorMapSpec tail = MatrixMap("c", to.data(), kRows, kColumns, kStride, kStoreRows, 48);
  tail.swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
  LaunchCluster(EpilogueKernel, 1, 128, 1, 4 * kWarpStagingBytes,
                EncodeTensorMap(
                    MatrixMap("c", to.data(), kRows, kColumns, kStride, kStoreRows, kStoreColumns)),
                EncodeTensorMap(tail), kRow);
  const std::vector<std::uint16_t> seen = to.Get();
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kStride; ++n) {
      const bool inside = m >= kRow && n < kColumns;
      const float value = static_cast<float>((m - kRow) * 256 + n) * 1.001f;
      ASSERT_EQ(seen[m * kStride + n], inside ? ToBF16(value).bits : 0) << m << " " << n;
    }
  }
}

TEST(TileOrder, VisitsEveryTileOnce) {
  for (const int tiles_m : {1, 2, 7, 33}) {
    for (const int tiles_n : {1, 3, 16}) {
      for (const int band : {1, 4, 8, 100}) {
        for (const bool by_columns : {false, true}) {
          const TileOrder order{tiles_m, tiles_n, band, by_columns};
          std::set<std::pair<int, int>> seen;
          for (std::int64_t i = 0; i < order.tiles(); ++i) {
            const TileCoordinates tile = order.At(i);
            ASSERT_TRUE(tile.m >= 0 && tile.m < tiles_m && tile.n >= 0 && tile.n < tiles_n);
            seen.insert({tile.m, tile.n});
          }
          EXPECT_EQ(seen.size(), static_cast<std::size_t>(tiles_m) * tiles_n);
        }
      }
    }
  }
}

// 64 tiles that run together touch 8 rows and 8 columns; the second band starts where the first
// ended.
TEST(TileOrder, NeighboursShareRowsAndColumns) {
  const TileOrder order{16, 24, 8, false};
  std::set<int> rows, columns;
  for (int i = 64; i < 128; ++i) {
    rows.insert(order.At(i).m);
    columns.insert(order.At(i).n);
  }
  EXPECT_EQ(rows.size(), 8u);
  EXPECT_EQ(columns.size(), 8u);
  EXPECT_EQ(order.At(8 * 24 - 1).n, order.At(8 * 24).n);
}

}  // namespace
}  // namespace assay::sm90
