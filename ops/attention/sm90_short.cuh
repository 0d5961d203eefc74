// Attention where keys or queries are few, one warpgroup a CTA and several CTAs a multiprocessor:
// - resident: all keys of a head fit one tile; they stay, query tiles stream through a ring;
// - split: the CTAs of a cluster share one query tile, each takes a range of key tiles, and they
//   merge (O, maximum, sum) through distributed shared memory in the order of their ranks.
#pragma once

#include "cuda/cluster.cuh"
#include "ops/attention/sm90_core.cuh"

namespace assay::attention {

inline constexpr int kShortRows = 64;

template <int kHeadDim, int kKeys, int kStageCount, Visibility kSeen>
struct ShortTiling {
  static constexpr int kDim = kHeadDim, kN = kKeys, kStages = kStageCount;
  static constexpr Visibility kVisibility = kSeen;
  // CTAs that share a multiprocessor's registers.
  static constexpr int kResident = kDim == 64 && kN == 64 ? 4 : (kDim == 64 ? 3 : 2);
};

template <class T>
struct ResidentShared {
  std::byte q[T::kStages][kShortRows * T::kDim * 2];
  std::byte k[T::kN * T::kDim * 2];
  std::byte v[T::kN * T::kDim * 2];
  std::uint64_t q_full[T::kStages], k_full, v_full;
};

template <class T>
__device__ T& SharedAs(std::byte* raw) {
  return *reinterpret_cast<T*>(raw + ((1024 - sm90::SharedAddress(raw) % 1024) % 1024));
}

// One thread: the queries of a tile.
template <int kDim>
__device__ void LoadQueries(std::byte* stage, const Params& params, const QueryTile& query,
                            std::uint64_t* full) {
  sm90::MbarrierArriveExpectTx(full, kShortRows * kDim * 2);
  LoadRows<kDim>(stage, kShortRows * 128, &params.q, query.row, query.head * params.q_head_step,
                 query.batch * params.q_batch_step, full);
}

// s = Q K^T, awaited.
template <int kDim, int kFloats>
__device__ void Scores(float (&s)[kFloats], const std::byte* q, const std::byte* k) {
  sm90::WgmmaFence();
  IssueScores<kDim>(s, sm90::WgmmaDescriptor(q), kShortRows * 128, sm90::WgmmaDescriptor(k));
  sm90::WgmmaCommitGroup();
  sm90::WgmmaWaitGroup<0>();
  sm90::WgmmaFenceOperand(s);
}

// o (+)= weights V, awaited.
template <int kSteps, int kFloats>
__device__ void AddValues(float (&o)[kFloats], std::uint32_t (&weights)[kSteps][4],
                          const std::byte* v, bool accumulate) {
  sm90::WgmmaFenceOperand(weights);
  sm90::WgmmaFenceOperand(o);
  sm90::WgmmaFence();
  IssueValues(o, weights, sm90::WgmmaRowMajorDescriptor(v, kSteps * 16 * 128), accumulate);
  sm90::WgmmaCommitGroup();
  sm90::WgmmaWaitGroup<0>();
  sm90::WgmmaFenceOperand(o);
}

// Grid: `split` CTAs a head, each with a contiguous range of its query tiles.
template <class T>
__global__ void __launch_bounds__(128, T::kResident)
    ResidentKernel(const __grid_constant__ Params params) {
  extern __shared__ std::byte raw[];
  auto& shared = SharedAs<ResidentShared<T>>(raw);
  const std::int32_t part = static_cast<std::int32_t>(blockIdx.x) % params.split;
  const std::int32_t first_tile =
      static_cast<std::int32_t>(blockIdx.x) / params.split * params.query_tiles;
  const std::int32_t begin = part * params.query_tiles / params.split;
  const std::int32_t end = (part + 1) * params.query_tiles / params.split;
  const auto tile_at = [&](std::int32_t number) {
    return TileAt(params, first_tile + number, kShortRows, Visibility::kAll);
  };
  const KeyTile keys = KeyTileAt(params.keys, 1, 0, T::kN);
  if (threadIdx.x == 0) {
    for (std::uint64_t& full : shared.q_full) sm90::MbarrierInit(&full, 1);
    sm90::MbarrierInit(&shared.k_full, 1);
    sm90::MbarrierInit(&shared.v_full, 1);
    sm90::FenceMbarrierInit();
    for (std::int32_t i = begin; i < min(end, begin + T::kStages); ++i) {
      LoadQueries<T::kDim>(shared.q[i - begin], params, tile_at(i), &shared.q_full[i - begin]);
      if (i > begin) continue;
      LoadKeys<T::kDim, T::kN>(shared.k, params.k, params.keys, keys, tile_at(i), &shared.k_full);
      LoadKeys<T::kDim, T::kN>(shared.v, params.v, params.keys, keys, tile_at(i), &shared.v_full);
    }
  }
  __syncthreads();
  sm90::PipelineState<T::kStages> state;
  for (std::int32_t i = begin; i < end; ++i) {
    const QueryTile query = tile_at(i);
    const RowView view = ViewRows<T::kVisibility>(params, query, query.row);
    float s[T::kN / 2], o[T::kDim / 2] = {};
    std::uint32_t weights[T::kN / 16][4];
    RowState rows;
    float factor[2];
    sm90::MbarrierWait(&shared.q_full[state.stage], state.parity);
    sm90::MbarrierWait(&shared.k_full, 0);
    Scores<T::kDim>(s, shared.q[state.stage], shared.k);
    if (threadIdx.x == 0 && i + T::kStages < end) {
      LoadQueries<T::kDim>(shared.q[state.stage], params, tile_at(i + T::kStages),
                           &shared.q_full[state.stage]);
    }
    state.Advance();
    Hide<T::kVisibility>(s, params, keys, view);
    Exponentiate<true>(s, rows, params.scale_log2, factor);
    PackWeights(s, weights);
    sm90::MbarrierWait(&shared.v_full, 0);
    AddValues(o, weights, shared.v, false);
    FinishRows<T::kVisibility>(o, rows, params, query, query.row);
  }
}

template <class T>
struct SplitShared {
  std::byte q[kShortRows * T::kDim * 2];
  union {
    struct {
      std::byte k[T::kStages][T::kN * T::kDim * 2];
      std::byte v[T::kStages][T::kN * T::kDim * 2];
    } stage;
    float o[kShortRows][T::kDim];  // after the last tile: this CTA's share
  };
  float reference[kShortRows], sum[kShortRows];
  std::uint64_t q_full, k_full[T::kStages], v_full[T::kStages];
};

// This CTA's share into its shared memory.
template <class T>
__device__ void StoreShare(SplitShared<T>& shared, const float (&o)[T::kDim / 2],
                           const RowState& rows) {
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first + 8 * h;
    const float sum = QuadSum(rows.sum[h]);
    if (lane % 4 == 0) {
      shared.reference[row] = rows.reference[h];
      shared.sum[row] = sum;
    }
#pragma unroll
    for (int j = 0; j < T::kDim / 8; ++j) {
      *reinterpret_cast<float2*>(&shared.o[row][j * 8 + lane % 4 * 2]) =
          make_float2(o[j * 4 + 2 * h], o[j * 4 + 2 * h + 1]);
    }
  }
}

// 8 columns of a row from the shares of all CTAs of the cluster.
template <class T>
struct MergedColumns {
  float value[8] = {};
  float reference = 0, sum = 0;

  __device__ MergedColumns(const SplitShared<T>& shared, int row, int column, int ranks) {
    reference = MinusInfinity();
    for (int rank = 0; rank < ranks; ++rank) {
      reference = fmaxf(reference, sm90::LoadCluster1(sm90::Mapa(&shared.reference[row], rank)));
    }
    const float base = reference == MinusInfinity() ? 0.0f : reference;
    for (int rank = 0; rank < ranks; ++rank) {
      const float weight =
          Exp2(sm90::LoadCluster1(sm90::Mapa(&shared.reference[row], rank)) - base);
      sum = fmaf(weight, sm90::LoadCluster1(sm90::Mapa(&shared.sum[row], rank)), sum);
      const std::uint32_t o = sm90::Mapa(&shared.o[row][column], rank);
      const float4 low = sm90::LoadCluster(o), high = sm90::LoadCluster(o + 16);
      const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) value[i] = fmaf(weight, x[i], value[i]);
    }
  }
};

// This rank's rows of the tile: kShortRows / ranks.
template <class T>
__device__ void MergeShares(const SplitShared<T>& shared, const Params& params,
                            const QueryTile& query, int rank, int ranks) {
  constexpr int kUnits = T::kDim / 8;  // of a row
  const int rows = kShortRows / ranks;
  for (int unit = threadIdx.x; unit < rows * kUnits; unit += 128) {
    const int row = rank * rows + unit / kUnits, column = unit % kUnits * 8;
    const std::int32_t number = query.row + row;
    const bool valid = number < params.tensors.queries;
    const MergedColumns<T> merged(shared, row, column, ranks);
    const float inverse = merged.sum == 0 ? 0 : 1 / merged.sum;
    std::uint32_t words[4];
    bool finite = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = merged.value[2 * i] * inverse, y = merged.value[2 * i + 1] * inverse;
      finite = finite && IsFinite(x) && IsFinite(y);
      words[i] = sm90::PackBf16(x, y);
    }
    if (valid) {
      *reinterpret_cast<uint4*>(OutputRow(params.tensors, query.batch, query.head, number) +
                                column) = make_uint4(words[0], words[1], words[2], words[3]);
      if (column == 0) {
        StoreLse(params.tensors, query.batch, query.head, number, merged.reference, merged.sum);
      }
    }
    if constexpr (T::kVisibility != Visibility::kAll) {
      __syncwarp();
      unsigned bad = __ballot_sync(0xffffffffu, valid && !finite);
      while (bad != 0) {
        const int lane = __ffs(static_cast<int>(bad)) - 1;
        bad &= ~(((1u << kUnits) - 1) << (lane / kUnits * kUnits));  // the lanes of its row
        ExactRow<T::kVisibility>(params, query.batch, query.head,
                                 __shfl_sync(0xffffffffu, number, lane))
            .Run();
      }
    }
  }
}

// Grid: `split` CTAs, a cluster, for each query tile.
template <class T>
__global__ void __launch_bounds__(128, T::kResident)
    SplitKernel(const __grid_constant__ Params params) {
  extern __shared__ std::byte raw[];
  auto& shared = SharedAs<SplitShared<T>>(raw);
  const int ranks = params.split, rank = static_cast<int>(blockIdx.x) % ranks;
  const QueryTile query =
      TileAt(params, static_cast<std::int32_t>(blockIdx.x) / ranks, kShortRows, T::kVisibility);
  const std::int32_t suffix = SuffixTiles<T::kVisibility>(params, query.row, kShortRows, T::kN);
  const std::int32_t tiles = suffix + params.keys.prefix_tiles;
  const std::int32_t begin = tiles * rank / ranks, end = tiles * (rank + 1) / ranks;
  const auto load = [&](std::int32_t number, int stage) {
    const KeyTile tile = KeyTileAt(params.keys, suffix, number, T::kN);
    LoadKeys<T::kDim, T::kN>(shared.stage.k[stage], params.k, params.keys, tile, query,
                             &shared.k_full[stage]);
    LoadKeys<T::kDim, T::kN>(shared.stage.v[stage], params.v, params.keys, tile, query,
                             &shared.v_full[stage]);
  };
  if (threadIdx.x == 0) {
    sm90::MbarrierInit(&shared.q_full, 1);
    for (int stage = 0; stage < T::kStages; ++stage) {
      sm90::MbarrierInit(&shared.k_full[stage], 1);
      sm90::MbarrierInit(&shared.v_full[stage], 1);
    }
    sm90::FenceMbarrierInit();
    if (begin < end) LoadQueries<T::kDim>(shared.q, params, query, &shared.q_full);
    for (int i = 0; i < T::kStages && begin + i < end; ++i) load(begin + i, i);
  }
  __syncthreads();
  const RowView view = ViewRows<T::kVisibility>(params, query, query.row);
  float s[T::kN / 2], o[T::kDim / 2] = {};
  std::uint32_t weights[T::kN / 16][4];
  RowState rows = {{MinusInfinity(), MinusInfinity()}, {0, 0}};
  float factor[2];
  sm90::PipelineState<T::kStages> state;
  if (begin < end) sm90::MbarrierWait(&shared.q_full, 0);
  for (std::int32_t number = begin; number < end; ++number) {
    sm90::MbarrierWait(&shared.k_full[state.stage], state.parity);
    Scores<T::kDim>(s, shared.q, shared.stage.k[state.stage]);
    Hide<T::kVisibility>(s, params, KeyTileAt(params.keys, suffix, number, T::kN), view);
    const bool changed = Exponentiate<false>(s, rows, params.scale_log2, factor);
    PackWeights(s, weights);
    if (changed) MultiplyRows(o, factor);
    sm90::MbarrierWait(&shared.v_full[state.stage], state.parity);
    AddValues(o, weights, shared.stage.v[state.stage], true);
    if (threadIdx.x == 0 && number + T::kStages < end) load(number + T::kStages, state.stage);
    state.Advance();
  }
  if (ranks == 1) {
    FinishRows<T::kVisibility>(o, rows, params, query, query.row);
    return;
  }
  __syncthreads();  // the stages have been read by all warps
  StoreShare<T>(shared, o, rows);
  sm90::ClusterSync();
  MergeShares<T>(shared, params, query, rank, ranks);
  sm90::ClusterSync();  // nobody's shared memory goes while others read it
}

// Any strides, any lengths: one warp a row.
template <Visibility kVisibility>
__global__ void __launch_bounds__(128) GenericKernel(const __grid_constant__ Params params) {
  const Sm90Tensors& x = params.tensors;
  const std::int64_t rows = x.batch * x.heads * x.queries;
  for (std::int64_t index = std::int64_t{blockIdx.x} * 4 + threadIdx.x / 32; index < rows;
       index += std::int64_t{gridDim.x} * 4) {
    const auto row = static_cast<std::int32_t>(index % x.queries);
    const std::int64_t pair = index / x.queries;
    ExactRow<kVisibility>(params, static_cast<std::int32_t>(pair / x.heads),
                          static_cast<std::int32_t>(pair % x.heads), row)
        .Run();
  }
}

}  // namespace assay::attention
