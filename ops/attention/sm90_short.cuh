// Attention where keys or queries are few, small CTAs, several a multiprocessor:
// - resident: all keys of a head fit one tile; they stay, query tiles stream through a ring;
// - split: the warpgroups of a CTA and the CTAs of a cluster share one query tile, each takes a
// range
//   of key tiles, and they merge (O, maximum, sum) through distributed shared memory in key order.
#pragma once

#include "cuda/cluster.cuh"
#include "ops/attention/sm90_core.cuh"

namespace assay::attention {

inline constexpr int kShortRows = 64;

// kWarpgroups: of a CTA; more than one only in the split kernel.
template <int kHeadDim, int kKeys, int kStageCount, Visibility kSeen, int kWarpgroups = 1>
struct ShortTiling {
  static constexpr int kDim = kHeadDim, kN = kKeys, kStages = kStageCount;
  static constexpr int kGroups = kWarpgroups, kThreads = 128 * kWarpgroups;
  static constexpr Visibility kVisibility = kSeen;
  // CTAs that share a multiprocessor's registers.
  static constexpr int kResident = kGroups > 1 ? (kN == 64 ? 4 / kGroups : 1)
                                               : (kDim == 128 ? 2 : (kN == 64 ? 4 : 3));
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
  const QueryTile head = TileAt(params, first_tile, kShortRows, Visibility::kAll);
  const auto tile_at = [&](std::int32_t number) {
    return QueryTile{head.batch, head.head, number * kShortRows};
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
    Exponentiate<true>(s, rows, params, factor);
    PackWeights(s, weights);
    sm90::MbarrierWait(&shared.v_full, 0);
    AddValues(o, weights, shared.v, false);
    FinishRows<T::kVisibility>(o, rows, params, query, query.row);
  }
}

template <class T>
struct SplitShared {
  std::byte q[kShortRows * T::kDim * 2];
  union Keys {
    struct {
      std::byte k[T::kStages][T::kN * T::kDim * 2];
      std::byte v[T::kStages][T::kN * T::kDim * 2];
    } stage;
    float o[kShortRows][T::kDim];  // after the last tile: this warpgroup's share
  } keys[T::kGroups];
  float reference[T::kGroups][kShortRows], sum[T::kGroups][kShortRows];
  std::uint64_t q_full, k_full[T::kGroups][T::kStages], v_full[T::kGroups][T::kStages];
};

// A warpgroup's share into its shared memory.
template <class T>
__device__ void StoreShare(SplitShared<T>& shared, int group, const float (&o)[T::kDim / 2],
                           const RowState& rows) {
  const int lane = threadIdx.x % 32, first = threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first + 8 * h;
    const float sum = QuadSum(rows.sum[h]);
    if (lane % 4 == 0) {
      shared.reference[group][row] = rows.reference[h];
      shared.sum[group][row] = sum;
    }
#pragma unroll
    for (int j = 0; j < T::kDim / 8; ++j) {
      *reinterpret_cast<float2*>(&shared.keys[group].o[row][j * 8 + lane % 4 * 2]) =
          make_float2(o[j * 4 + 2 * h], o[j * 4 + 2 * h + 1]);
    }
  }
}

// 8 columns of a row from the shares of all warpgroups of kRanks CTAs.
template <class T, int kRanks>
struct MergedColumns {
  static constexpr int kShares = kRanks * T::kGroups;
  float value[8] = {};
  float reference = 0, sum = 0;

  __device__ MergedColumns(const SplitShared<T>& shared, int row, int column) {
    float references[kShares], sums[kShares];
#pragma unroll
    for (int i = 0; i < kShares; ++i) {
      const int group = i % T::kGroups, rank = i / T::kGroups;
      references[i] = sm90::LoadCluster1(sm90::Mapa(&shared.reference[group][row], rank));
      sums[i] = sm90::LoadCluster1(sm90::Mapa(&shared.sum[group][row], rank));
    }
    reference = MinusInfinity();
#pragma unroll
    for (int i = 0; i < kShares; ++i) reference = fmaxf(reference, references[i]);
    const float base = reference == MinusInfinity() ? 0.0f : reference;
#pragma unroll
    for (int i = 0; i < kShares; ++i) {
      const float weight = Exp2(references[i] - base);
      sum = fmaf(weight, sums[i], sum);
      const std::uint32_t o =
          sm90::Mapa(&shared.keys[i % T::kGroups].o[row][column], i / T::kGroups);
      const float4 low = sm90::LoadCluster(o), high = sm90::LoadCluster(o + 16);
      const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int c = 0; c < 8; ++c) value[c] = fmaf(weight, x[c], value[c]);
    }
  }
};

// This rank's rows of the tile: kShortRows / kRanks.
template <class T, int kRanks>
__device__ void MergeShares(const SplitShared<T>& shared, const Params& params,
                            const QueryTile& query, int rank) {
  constexpr int kUnits = T::kDim / 8;  // of a row
  constexpr int kRows = kShortRows / kRanks;
  for (int unit = threadIdx.x; unit < kRows * kUnits; unit += T::kThreads) {
    const int row = rank * kRows + unit / kUnits, column = unit % kUnits * 8;
    const std::int32_t number = query.row + row;
    const bool valid = number < params.tensors.queries;
    const MergedColumns<T, kRanks> merged(shared, row, column);
    const float inverse = InverseSum(merged.sum);
    std::uint32_t words[4];
    bool finite = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = merged.value[2 * i] * inverse, y = merged.value[2 * i + 1] * inverse;
      finite = finite && IsFinite(x) && IsFinite(y);
      words[i] = sm90::PackBf16(x, y);
    }
    StoreWords(OutputRow(params.tensors, query.batch, query.head, number) + column, words, valid);
    if (valid && column == 0) {
      StoreLse(params.tensors, query.batch, query.head, number, merged.reference, merged.sum);
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
__global__ void __launch_bounds__(T::kThreads, T::kResident)
    SplitKernel(const __grid_constant__ Params params) {
  extern __shared__ std::byte raw[];
  auto& shared = SharedAs<SplitShared<T>>(raw);
  const int ranks = params.split, rank = static_cast<int>(blockIdx.x) % ranks;
  const int group = T::kGroups == 1 ? 0 : static_cast<int>(threadIdx.x) / 128;
  const QueryTile query =
      TileAt(params, static_cast<std::int32_t>(blockIdx.x) / ranks, kShortRows, T::kVisibility);
  const std::int32_t suffix = SuffixTiles<T::kVisibility>(params, query.row, kShortRows, T::kN);
  const std::int32_t tiles = suffix + params.keys.prefix_tiles;
  const int shares = ranks * T::kGroups, share = rank * T::kGroups + group;
  const std::int32_t begin = tiles * share / shares, end = tiles * (share + 1) / shares;
  auto& stages = shared.keys[group].stage;
  std::uint64_t *k_full = shared.k_full[group], *v_full = shared.v_full[group];
  const auto load = [&](std::int32_t number, int stage) {
    const KeyTile tile = KeyTileAt(params.keys, suffix, number, T::kN);
    LoadKeys<T::kDim, T::kN>(stages.k[stage], params.k, params.keys, tile, query, &k_full[stage]);
    LoadKeys<T::kDim, T::kN>(stages.v[stage], params.v, params.keys, tile, query, &v_full[stage]);
  };
  const bool leader = threadIdx.x % 128 == 0;
  if (leader) {
    if (threadIdx.x == 0) sm90::MbarrierInit(&shared.q_full, 1);
    for (int stage = 0; stage < T::kStages; ++stage) {
      sm90::MbarrierInit(&k_full[stage], 1);
      sm90::MbarrierInit(&v_full[stage], 1);
    }
    sm90::FenceMbarrierInit();
    if (threadIdx.x == 0) LoadQueries<T::kDim>(shared.q, params, query, &shared.q_full);
    for (int i = 0; i < T::kStages && begin + i < end; ++i) load(begin + i, i);
  }
  __syncthreads();
  const RowView view = ViewRows<T::kVisibility>(params, query, query.row);
  float s[T::kN / 2], o[T::kDim / 2] = {};
  std::uint32_t weights[T::kN / 16][4];
  RowState rows = {{MinusInfinity(), MinusInfinity()}, {0, 0}};
  float factor[2];
  sm90::PipelineState<T::kStages> state;
  sm90::MbarrierWait(&shared.q_full, 0);
  for (std::int32_t number = begin; number < end; ++number) {
    sm90::MbarrierWait(&k_full[state.stage], state.parity);
    Scores<T::kDim>(s, shared.q, stages.k[state.stage]);
    Hide<T::kVisibility>(s, params, KeyTileAt(params.keys, suffix, number, T::kN), view);
    const bool changed = Exponentiate<false>(s, rows, params, factor);
    PackWeights(s, weights);
    if (changed) MultiplyRows(o, factor);
    sm90::MbarrierWait(&v_full[state.stage], state.parity);
    AddValues(o, weights, stages.v[state.stage], true);
    if (leader && number + T::kStages < end) load(number + T::kStages, state.stage);
    state.Advance();
  }
  if (T::kGroups == 1 && ranks == 1) {
    FinishRows<T::kVisibility>(o, rows, params, query, query.row);
    return;
  }
  __syncthreads();  // the stages have been read by all warps
  StoreShare<T>(shared, group, o, rows);
  sm90::ClusterSync();
  switch (ranks) {
    case 1:
      MergeShares<T, 1>(shared, params, query, rank);
      break;
    case 2:
      MergeShares<T, 2>(shared, params, query, rank);
      break;
    case 4:
      MergeShares<T, 4>(shared, params, query, rank);
      break;
    default:
      MergeShares<T, 8>(shared, params, query, rank);
  }
  if (ranks > 1) sm90::ClusterSync();  // nobody's shared memory goes while others read it
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
