// Persistent, warp-specialised GEMM for sm_90a: one producer warp feeds a ring of shared-memory
// stages by TMA (multicast inside the cluster), two consumer warpgroups run wgmma and store through
// shared memory while the producer already loads the next tile. README.md has the plan and budget.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "cuda/check.h"
#include "cuda/cluster.cuh"
#include "cuda/epilogue.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/setmaxnreg.cuh"
#include "cuda/tensor_map.cuh"
#include "cuda/tile_scheduler.cuh"
#include "cuda/tma.cuh"
#include "cuda/wgmma.cuh"
#include "ops/dense_gemm_bf16_nt/sm90.h"

namespace assay::dense_gemm_bf16_nt {
namespace {

using namespace assay::sm90;

constexpr int kTileK = 64;  // 128 bytes of bf16: one row of the 128-byte swizzle
constexpr int kConsumers = 2;
constexpr int kThreads = 128 * (1 + kConsumers);
// 64512 of the 64 K registers; the accumulators take up to 192 of the consumers'.
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
constexpr int kMaxSharedBytes = 232448;  // 227 KB

enum class Sharing { kCooperative, kPingPong };

// One kernel: what a CTA computes and how CTAs share loads.
template <int kM, int kN, int kStageCount, int kClusterRows, int kClusterColumns, Sharing kSharing>
struct Tiling {
  static constexpr int kTileM = kM, kTileN = kN, kStages = kStageCount;
  static constexpr int kClusterM = kClusterRows, kClusterN = kClusterColumns;
  static constexpr int kClusterSize = kClusterM * kClusterN;
  static constexpr bool kPingPong = kSharing == Sharing::kPingPong;
  // 64-row blocks of accumulators of one consumer.
  static constexpr int kBlocks = kPingPong ? kTileM / 64 : kTileM / 64 / kConsumers;
  static constexpr int kStageBytes = (kTileM + kTileN) * kTileK * 2;
  // Arrivals on an empty barrier: every consumer that reads the stage, in each CTA that this one
  // sends slices to: those of its row and of its column.
  static constexpr int kReleases = (kClusterM + kClusterN - 1) * (kPingPong ? 1 : kConsumers);

  static constexpr int kAccumulators = kBlocks * kTileN / 2;  // a thread

  static_assert(kBlocks >= 1 && kAccumulators <= 192, "accumulators must leave registers to work");
  static_assert(kTileM / kClusterN <= 256 && kTileN / kClusterM <= 256,
                "a TMA box has <= 256 rows");
  static_assert(kTileM / kClusterN % 8 == 0 && kTileN / kClusterM % 8 == 0,
                "slices must keep the swizzle's groups of 8 rows");
};

template <class T>
struct SharedMemory {
  std::byte a[T::kStages][T::kTileM * kTileK * 2];
  std::byte b[T::kStages][T::kTileN * kTileK * 2];
  std::byte staging[kConsumers * 4][kWarpStagingBytes];
  PipelineBarriers<T::kStages> barriers;
  std::uint64_t turn[kConsumers];  // ping-pong: whose turn to multiply; one arrival per warp
};

struct Params {
  CUtensorMap a, b, c;
  CUtensorMap c_tail;  // the columns of a tile beyond a multiple of 64
  TileOrder order;     // of tile clusters
  std::int32_t k_blocks;
};
static_assert(alignof(Params) >= 64, "TMA faults on tensor maps that are not 64-byte aligned");

// This CTA's tile of cluster tile `index`.
template <class T>
__device__ TileCoordinates CtaTile(const TileOrder& order, std::int64_t index, int rank) {
  const TileCoordinates tile = order.At(index);
  return {tile.m * T::kClusterM + rank / T::kClusterN, tile.n * T::kClusterN + rank % T::kClusterN};
}

// One thread. Each CTA loads its slice of A for the CTAs that share its rows, and of B for those
// that share its columns.
template <class T>
__device__ void Produce(const Params& params, SharedMemory<T>& shared, int rank) {
  constexpr int kSliceA = T::kTileM / T::kClusterN, kSliceB = T::kTileN / T::kClusterM;
  const int rank_m = rank / T::kClusterN, rank_n = rank % T::kClusterN;
  // Ranks count along N first: a row is kClusterN neighbours, a column every kClusterN-th CTA.
  constexpr std::uint32_t kRow = (1u << T::kClusterN) - 1;
  constexpr std::uint32_t kColumn = ((1u << T::kClusterSize) - 1) / kRow;
  const auto row_mask = static_cast<std::uint16_t>(kRow << (rank_m * T::kClusterN));
  const auto column_mask = static_cast<std::uint16_t>(kColumn << rank_n);
  PipelineState<T::kStages> state;
  const std::int64_t step = gridDim.x / T::kClusterSize;
  for (std::int64_t index = blockIdx.x / T::kClusterSize; index < params.order.tiles();
       index += step) {
    const TileCoordinates tile = CtaTile<T>(params.order, index, rank);
    const int row_a = tile.m * T::kTileM + rank_n * kSliceA;
    const int row_b = tile.n * T::kTileN + rank_m * kSliceB;
    for (int block = 0; block < params.k_blocks; ++block) {
      MbarrierWait(&shared.barriers.empty[state.stage], state.parity ^ 1);
      std::uint64_t* full = &shared.barriers.full[state.stage];
      MbarrierArriveExpectTx(full, T::kStageBytes);
      std::byte* a = shared.a[state.stage] + rank_n * kSliceA * kTileK * 2;
      std::byte* b = shared.b[state.stage] + rank_m * kSliceB * kTileK * 2;
      if constexpr (T::kClusterN > 1) {
        TmaLoadMulticast(a, &params.a, {block * kTileK, row_a}, full, row_mask);
      } else {
        TmaLoad(a, &params.a, {block * kTileK, row_a}, full);
      }
      if constexpr (T::kClusterM > 1) {
        TmaLoadMulticast(b, &params.b, {block * kTileK, row_b}, full, column_mask);
      } else {
        TmaLoad(b, &params.b, {block * kTileK, row_b}, full);
      }
      state.Advance();
    }
  }
}

// Tells every CTA that fills this stage that this warpgroup has read it; one thread per CTA.
template <class T>
__device__ void Release(SharedMemory<T>& shared, int stage, int rank) {
  const int to = threadIdx.x % 128;
  if (to >= T::kClusterSize) return;
  if (to / T::kClusterN == rank / T::kClusterN || to % T::kClusterN == rank % T::kClusterN) {
    MbarrierArriveClusterRelaxed(&shared.barriers.empty[stage], to);
  }
}

// The whole K of one tile, in steps of 16 in increasing k and one chain of accumulation per
// element: this order fixes the bits of the result. One wgmma group stays in flight.
template <class T>
__device__ void MultiplyTile(float (&sums)[T::kBlocks][T::kTileN / 2], SharedMemory<T>& shared,
                             PipelineState<T::kStages>& state, int k_blocks, int first_row,
                             int rank, int consumer) {
  int previous = 0;
  for (int block = 0; block < k_blocks; ++block) {
    MbarrierWait(&shared.barriers.full[state.stage], state.parity);
    const std::uint64_t a = WgmmaDescriptor(shared.a[state.stage] + first_row * kTileK * 2);
    const std::uint64_t b = WgmmaDescriptor(shared.b[state.stage]);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < kTileK / 16; ++k) {
#pragma unroll
      for (int rows = 0; rows < T::kBlocks; ++rows) {
        // 64 rows are 64 x 128 bytes, 512 units of 16; 16 elements of k are 2 units.
        Wgmma(sums[rows], a + rows * 512 + k * 2, b + k * 2, block > 0 || k > 0);
      }
    }
    WgmmaCommitGroup();
    WgmmaWaitGroup<1>();  // the group before this one has read its stage
    if (block > 0) Release<T>(shared, previous, rank);
    previous = state.stage;
    state.Advance();
  }
  // The other consumer may wait for its stages now: all of this tile's have been seen.
  if (T::kPingPong && threadIdx.x % 32 == 0) MbarrierArrive(&shared.turn[1 - consumer]);
  WgmmaWaitGroup<0>();
  Release<T>(shared, previous, rank);
}

template <class T>
__device__ void Consume(const Params& params, SharedMemory<T>& shared, int rank) {
  const int consumer = threadIdx.x / 128 - 1;
  const int warp = threadIdx.x / 32 % 4;
  const int first_row = T::kPingPong ? 0 : consumer * T::kBlocks * 64;
  WarpStaging staging{shared.staging[consumer * 4 + warp]};
  float sums[T::kBlocks][T::kTileN / 2] = {};
  PipelineState<T::kStages> state;
  const std::int64_t step = gridDim.x / T::kClusterSize;
  std::int64_t index = blockIdx.x / T::kClusterSize;
  if (T::kPingPong && consumer == 1) {  // the other consumer takes this tile
    index += step;
    state.Advance(params.k_blocks);
  }
  std::uint32_t turn_parity = consumer == 0 ? 1 : 0;  // consumer 0 begins
  for (; index < params.order.tiles(); index += T::kPingPong ? 2 * step : step) {
    if constexpr (T::kPingPong) {
      // Waiting by parity works one phase ahead only: the stages of this tile may be waited for
      // once the other consumer has seen all of the tile before it.
      MbarrierWait(&shared.turn[consumer], turn_parity);
      turn_parity ^= 1;
    }
    MultiplyTile<T>(sums, shared, state, params.k_blocks, first_row, rank, consumer);
    if constexpr (T::kPingPong) state.Advance(params.k_blocks);
    const TileCoordinates tile = CtaTile<T>(params.order, index, rank);
#pragma unroll
    for (int rows = 0; rows < T::kBlocks; ++rows) {
      StoreAccumulators(sums[rows], staging, &params.c, &params.c_tail,
                        tile.m * T::kTileM + first_row + rows * 64 + warp * kStoreRows,
                        tile.n * T::kTileN);
    }
  }
  if (threadIdx.x % 32 == 0) BulkWaitGroup<0>();
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    DenseGemmKernel(const __grid_constant__ Params params) {
  extern __shared__ std::byte raw[];
  // 128-byte swizzle repeats every 1024 bytes.
  auto& shared =
      *reinterpret_cast<SharedMemory<T>*>(raw + ((1024 - SharedAddress(raw) % 1024) % 1024));
  const int rank = T::kClusterSize > 1 ? static_cast<int>(ClusterCtaRank()) : 0;
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&params.a);
    PrefetchTensorMap(&params.b);
    PrefetchTensorMap(&params.c);
    PrefetchTensorMap(&params.c_tail);
    shared.barriers.Init(T::kReleases);
    for (std::uint64_t& turn : shared.turn) MbarrierInit(&turn, 4);
    FenceMbarrierInit();
  }
  ClusterSync();
  if (threadIdx.x < 128) {
    SetMaxNRegDec<kProducerRegisters>();
    if (threadIdx.x == 0) Produce<T>(params, shared, rank);
  } else {
    SetMaxNRegInc<kConsumerRegisters>();
    Consume<T>(params, shared, rank);
  }
  ClusterSync();  // nobody's shared memory goes while others still signal it
}

template <class T>
constexpr std::size_t SharedBytes() {
  constexpr std::size_t kBytes = sizeof(SharedMemory<T>) + 1024;
  static_assert(kBytes <= kMaxSharedBytes, "stages and staging pass 227 KB");
  return kBytes;
}

std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// A launch of `clusters` clusters. `attribute` must outlive the result.
template <class T>
cudaLaunchConfig_t LaunchConfig(std::int64_t clusters, cudaLaunchAttribute& attribute) {
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {T::kClusterSize, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(clusters * T::kClusterSize));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = SharedBytes<T>();
  config.attrs = &attribute;
  config.numAttrs = 1;
  return config;
}

// How many clusters run at once on the current device: one CTA takes a whole multiprocessor, and
// not every multiprocessor has neighbours for a large cluster.
template <class T>
int ActiveClusters() {
  CheckCuda(cudaFuncSetAttribute(DenseGemmKernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(SharedBytes<T>())),
            "cudaFuncSetAttribute of shared memory");
  cudaLaunchAttribute attribute;
  const cudaLaunchConfig_t config = LaunchConfig<T>(1, attribute);
  int clusters = 0;
  CheckCuda(cudaOccupancyMaxActiveClusters(&clusters, DenseGemmKernel<T>, &config),
            "cudaOccupancyMaxActiveClusters");
  if (clusters < 1) throw Error(Fault::kDevice, "dense_gemm_bf16_nt: no cluster fits the device");
  return clusters;
}

template <class T>
std::function<void(Stream)> PrepareTiling(const Args& args, const Plan& plan) {
  Params params;
  params.a = EncodeTensorMap(
      MatrixMap("A", args.a, args.m, args.k, args.lda, T::kTileM / T::kClusterN, kTileK));
  params.b = EncodeTensorMap(
      MatrixMap("B", args.b, args.n, args.k, args.ldb, T::kTileN / T::kClusterM, kTileK));
  params.c =
      EncodeTensorMap(MatrixMap("C", args.c, args.m, args.n, args.ldc, kStoreRows, kStoreColumns));
  params.c_tail = params.c;
  if constexpr (constexpr int kTail = T::kTileN % kStoreColumns; kTail > 0) {
    TensorMapSpec tail = MatrixMap("C", args.c, args.m, args.n, args.ldc, kStoreRows, kTail);
    tail.swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
    params.c_tail = EncodeTensorMap(tail);
  }
  params.order.tiles_m = static_cast<std::int32_t>(CeilDiv(args.m, T::kTileM * T::kClusterM));
  params.order.tiles_n = static_cast<std::int32_t>(CeilDiv(args.n, T::kTileN * T::kClusterN));
  params.order.band = plan.band;
  params.order.by_columns = plan.by_columns;
  params.k_blocks = static_cast<std::int32_t>(CeilDiv(args.k, kTileK));
  const std::int64_t clusters = std::min<std::int64_t>(ActiveClusters<T>(), params.order.tiles());
  return [params, clusters](Stream stream) {
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = LaunchConfig<T>(clusters, attribute);
    config.stream = stream;
    CheckCuda(cudaLaunchKernelEx(&config, DenseGemmKernel<T>, params), "launch of DenseGemmKernel");
  };
}

struct Kernel {
  std::string_view name;
  std::function<void(Stream)> (*prepare)(const Args&, const Plan&);
};

using enum Sharing;
constexpr std::array kKernels = {
    Kernel{"coop_128x256_2x1", PrepareTiling<Tiling<128, 256, 4, 2, 1, kCooperative>>},
    Kernel{"coop_128x256_1x2", PrepareTiling<Tiling<128, 256, 4, 1, 2, kCooperative>>},
    Kernel{"coop_256x192_2x1", PrepareTiling<Tiling<256, 192, 3, 2, 1, kCooperative>>},
    Kernel{"ping_128x128_2x1", PrepareTiling<Tiling<128, 128, 6, 2, 1, kPingPong>>},
    Kernel{"ping_128x128_1x2", PrepareTiling<Tiling<128, 128, 6, 1, 2, kPingPong>>},
    Kernel{"ping_128x160_2x1", PrepareTiling<Tiling<128, 160, 5, 2, 1, kPingPong>>},
    Kernel{"ping_128x160_1x2", PrepareTiling<Tiling<128, 160, 5, 1, 2, kPingPong>>},
    Kernel{"ping_128x176_2x1", PrepareTiling<Tiling<128, 176, 5, 2, 1, kPingPong>>},
    Kernel{"ping_128x176_1x2", PrepareTiling<Tiling<128, 176, 5, 1, 2, kPingPong>>},
    Kernel{"ping_128x192_2x1", PrepareTiling<Tiling<128, 192, 4, 2, 1, kPingPong>>},
};

}  // namespace

std::vector<std::string_view> Sm90Kernels() {
  std::vector<std::string_view> names;
  for (const Kernel& kernel : kKernels) names.push_back(kernel.name);
  names.push_back("generic");
  return names;
}

std::function<void(Stream)> PrepareCuda(const Args& args, const Plan& plan) {
  Validate(args);
  if (args.m == 0 || args.n == 0) return [](Stream) {};
  if (plan.kernel == "generic") return [args](Stream stream) { LaunchGeneric(args, stream); };
  if (const std::string reason = WhyNotTma(args); !reason.empty()) {
    BadInput("dense_gemm_bf16_nt: kernel " + std::string(plan.kernel) + " cannot run: " + reason);
  }
  if (plan.band < 1) {
    BadInput("dense_gemm_bf16_nt: band = " + std::to_string(plan.band) + " is not positive");
  }
  for (const Kernel& kernel : kKernels) {
    if (kernel.name == plan.kernel) return kernel.prepare(args, plan);
  }
  BadInput("dense_gemm_bf16_nt: no kernel named " + std::string(plan.kernel));
}

void RunCuda(const Args& args, Stream stream) { PrepareCuda(args, ChoosePlan(args))(stream); }

}  // namespace assay::dense_gemm_bf16_nt
