// The attention kernel for long keys: persistent, warp-specialised. One producer thread feeds rings
// of K and V tiles by TMA; each consumer warpgroup owns 64 queries, keeps scores, weights and O in
// registers, and multiplies Q K^T of the next tile before it waits for nothing but its softmax.
#pragma once

#include "cuda/fence.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/setmaxnreg.cuh"
#include "cuda/wgmma.cuh"
#include "cuda/wgmma_values.cuh"
#include "ops/attention/sm90_output.cuh"
#include "ops/attention/sm90_share.cuh"

namespace assay::attention {

// kKeys: rows of a K or V tile; kQueryStages: query tiles in shared memory.
template <int kHeadDim, int kWarpgroups, int kKeys, int kKeyStages, int kQueryStages,
          Visibility kSeen>
struct CoreTiling {
  static constexpr int kDim = kHeadDim, kConsumers = kWarpgroups, kRows = 64 * kWarpgroups;
  static constexpr int kN = kKeys, kStages = kKeyStages, kQStages = kQueryStages;
  static constexpr Visibility kVisibility = kSeen;
  // O leaves through its warpgroup's rows of the query tile.
  static constexpr bool kStaged = kVisibility == Visibility::kAll && kQStages > 1;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  // 64512 of the 64 K registers: 128 x 40 + 256 x 232, or 65536: 128 x 32 + 384 x 160.
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 232;
  static_assert(kConsumers == 2 || kConsumers == 3, "register budgets exist for 2 and 3");
  static_assert(kN % 16 == 0, "the second product takes 16 keys a step");
};

template <class T>
struct CoreShared {
  std::byte q[T::kQStages][T::kRows * T::kDim * 2];
  std::byte k[T::kStages][T::kN * T::kDim * 2];
  std::byte v[T::kStages][T::kN * T::kDim * 2];
  sm90::PipelineBarriers<T::kQStages> q_barriers;
  sm90::PipelineBarriers<T::kStages> k_barriers, v_barriers;
};

// One thread.
template <class T>
__device__ void Produce(const Params& params, CoreShared<T>& shared) {
  sm90::PipelineState<T::kQStages> q_state;
  sm90::PipelineState<T::kStages> state;
  Pieces pieces(params);
  for (Piece piece; pieces.Next(params, piece);) {
    const QueryTile query = TileAt(params, piece.tile, T::kRows, T::kVisibility);
    const std::int32_t suffix = SuffixTiles<T::kVisibility>(params, query.row, T::kRows, T::kN);
    const std::int32_t end = piece.end < 0 ? suffix + params.keys.prefix_tiles : piece.end;
    sm90::MbarrierWait(&shared.q_barriers.empty[q_state.stage], q_state.parity ^ 1);
    std::uint64_t* q_full = &shared.q_barriers.full[q_state.stage];
    sm90::MbarrierArriveExpectTx(q_full, T::kRows * T::kDim * 2);
    LoadRows<T::kDim>(shared.q[q_state.stage], T::kRows * 128, &params.q, query.row,
                      query.head * params.q_head_step, query.batch * params.q_batch_step, q_full);
    q_state.Advance();
    for (std::int32_t number = piece.begin; number < end; ++number) {
      const KeyTile tile = KeyTileAt(params.keys, suffix, number, T::kN);
      sm90::MbarrierWait(&shared.k_barriers.empty[state.stage], state.parity ^ 1);
      LoadKeys<T::kDim, T::kN>(shared.k[state.stage], params.k, params.keys, tile, query,
                               &shared.k_barriers.full[state.stage]);
      sm90::MbarrierWait(&shared.v_barriers.empty[state.stage], state.parity ^ 1);
      LoadKeys<T::kDim, T::kN>(shared.v[state.stage], params.v, params.keys, tile, query,
                               &shared.v_barriers.full[state.stage]);
      state.Advance();
    }
  }
}

// s = Q K^T of a warpgroup's 64 rows; issued, not awaited.
template <int kDim, int kFloats>
__device__ void IssueScores(float (&s)[kFloats], std::uint64_t q, int q_pitch, std::uint64_t k) {
  constexpr int kKeyPitch = kFloats * 2 * 128 / 16;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const int chunk = step / 4, unit = step % 4 * 2;
    sm90::Wgmma(s, q + chunk * (q_pitch / 16) + unit, k + chunk * kKeyPitch + unit, step > 0);
  }
}

// o (+)= P V; issued, not awaited.
template <int kSteps, int kFloats>
__device__ void IssueValues(float (&o)[kFloats], const std::uint32_t (&weights)[kSteps][4],
                            std::uint64_t v, bool accumulate) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    sm90::WgmmaValues(o, weights[step], v + step * 128, accumulate || step > 0);
  }
}

// One consumer warpgroup at work on its tiles.
template <class T>
class CoreConsumer {
 public:
  __device__ CoreConsumer(const Params& params, CoreShared<T>& shared)
      : params_(params),
        shared_(shared),
        pieces_(params),
        number_(static_cast<int>(threadIdx.x / 128) - 1) {
    if (number_ == T::kConsumers - 1) PassTurn();  // the first one begins
  }

  __device__ void Run() {
    for (Piece piece; pieces_.Next(params_, piece);) Compute(piece);
    if (T::kStaged) sm90::BulkWaitGroupRead<0>();
    // Nobody may leave with a turn that was passed but not taken.
    if (number_ == 0) TakeTurn();
  }

 private:
  static constexpr int kPitch = T::kRows * 128;

  __device__ void TakeTurn() const { sm90::BarSync(1 + number_, 256); }
  __device__ void PassTurn() const { sm90::BarArrive(1 + (number_ + 1) % T::kConsumers, 256); }
  __device__ static void Release(std::uint64_t* empty) {
    if (threadIdx.x % 128 == 0) sm90::MbarrierArrive(empty);
  }
  // Rows of O may be on their way out of the stage.
  __device__ void ReleaseQueries(int stage) {
    if (threadIdx.x % 32 != 0) return;
    if (T::kStaged) sm90::BulkWaitGroupRead<0>();
    sm90::MbarrierArrive(&shared_.q_barriers.empty[stage]);
  }
  __device__ void ReleaseKeys() {
    Release(&shared_.k_barriers.empty[k_state_.stage]);
    k_state_.Advance();
  }
  __device__ void ReleaseValues() {
    Release(&shared_.v_barriers.empty[v_state_.stage]);
    v_state_.Advance();
  }

  __device__ void Compute(const Piece& piece) {
    QueryTile query = TileAt(params_, piece.tile, T::kRows, T::kVisibility);
    const std::int32_t suffix = SuffixTiles<T::kVisibility>(params_, query.row, T::kRows, T::kN);
    const std::int32_t begin = piece.begin;
    const std::int32_t end = piece.end < 0 ? suffix + params_.keys.prefix_tiles : piece.end;
    const RowView view = ViewRows<T::kVisibility>(params_, query, query.row + number_ * 64);
    const int stage = q_state_.stage;
    const std::uint64_t q = sm90::WgmmaDescriptor(shared_.q[stage] + number_ * 64 * 128);
    float s[T::kN / 2], o[T::kDim / 2] = {};
    std::uint32_t weights[T::kN / 16][4];
    RowState state;
    float factor[2];

    sm90::MbarrierWait(&shared_.q_barriers.full[stage], q_state_.parity);
    q_state_.Advance();
    sm90::MbarrierWait(&shared_.k_barriers.full[k_state_.stage], k_state_.parity);
    TakeTurn();
    sm90::WgmmaFence();
    IssueScores<T::kDim>(s, q, kPitch, sm90::WgmmaDescriptor(shared_.k[k_state_.stage]));
    sm90::WgmmaCommitGroup();
    PassTurn();
    sm90::WgmmaWaitGroup<0>();
    sm90::WgmmaFenceOperand(s);
    ReleaseKeys();
    Hide<T::kVisibility>(s, params_, KeyTileAt(params_.keys, suffix, begin, T::kN), view);
    Exponentiate<true>(s, state, params_, factor);
    PackWeights(s, weights);
    if (T::kStaged && begun_) ReleaseQueries(stage ^ 1);
    begun_ = true;

    for (std::int32_t number = begin + 1; number < end; ++number) {
      sm90::MbarrierWait(&shared_.k_barriers.full[k_state_.stage], k_state_.parity);
      TakeTurn();
      sm90::WgmmaFenceOperand(weights);
      sm90::WgmmaFenceOperand(o);
      sm90::WgmmaFence();
      IssueScores<T::kDim>(s, q, kPitch, sm90::WgmmaDescriptor(shared_.k[k_state_.stage]));
      sm90::WgmmaCommitGroup();
      sm90::MbarrierWait(&shared_.v_barriers.full[v_state_.stage], v_state_.parity);
      sm90::WgmmaFence();  // the wait is a loop: ptxas would put one behind it
      IssueValues(o, weights, sm90::WgmmaRowMajorDescriptor(shared_.v[v_state_.stage], T::kN * 128),
                  number > begin + 1);
      sm90::WgmmaCommitGroup();
      PassTurn();
      sm90::WgmmaWaitGroup<1>();
      sm90::WgmmaFenceOperand(s);
      ReleaseKeys();
      if (T::kVisibility != Visibility::kAll || number == params_.keys.ragged) {
        Hide<T::kVisibility>(s, params_, KeyTileAt(params_.keys, suffix, number, T::kN), view);
      }
      const bool changed = Exponentiate<false>(s, state, params_, factor);
      sm90::WgmmaWaitGroup<0>();
      sm90::WgmmaFenceOperand(o);
      sm90::WgmmaFenceOperand(weights);
      ReleaseValues();
      PackWeights(s, weights);
      if (changed) MultiplyRows(o, factor);
    }

    if (!T::kStaged) ReleaseQueries(stage);
    sm90::MbarrierWait(&shared_.v_barriers.full[v_state_.stage], v_state_.parity);
    sm90::WgmmaFenceOperand(weights);
    sm90::WgmmaFenceOperand(o);
    sm90::WgmmaFence();
    IssueValues(o, weights, sm90::WgmmaRowMajorDescriptor(shared_.v[v_state_.stage], T::kN * 128),
                end - begin > 1);
    sm90::WgmmaCommitGroup();
    sm90::WgmmaWaitGroup<0>();
    sm90::WgmmaFenceOperand(o);
    ReleaseValues();
    if (T::kVisibility == Visibility::kAll && params_.shares != nullptr) {
      if (begin > 0) {
        ShareOf(blockIdx.x).Store(o, state);
        return;
      }
      if (end < KeyTilesOf(params_)) AddShares(piece.tile, o, state);
    }
    // Computed again: registers are short while the products run.
    std::int32_t tile = piece.tile;
    asm volatile("" : "+r"(tile));
    query = TileAt(params_, tile, T::kRows, T::kVisibility);
    if constexpr (T::kStaged) {
      const int row = number_ * 64 + static_cast<int>(threadIdx.x % 128 / 32 * 16);
      StoreByTma(o, state, params_, query, query.row + row, shared_.q[stage] + row * 128, kPitch);
    } else {
      FinishRows<T::kVisibility>(o, state, params_, query, query.row + number_ * 64);
    }
  }

  __device__ Share<T::kDim / 2> ShareOf(std::int32_t cta) const {
    return {params_.shares, static_cast<std::int32_t>(gridDim.x) * T::kConsumers,
            cta * T::kConsumers + number_, 1 + T::kConsumers + number_};
  }

  // The shares of the CTAs that follow: those that start inside the tile.
  __device__ void AddShares(std::int32_t tile, float (&o)[T::kDim / 2], RowState& state) const {
    const std::int32_t behind = (tile + 1 - params_.whole_tiles) * KeyTilesOf(params_);
    for (auto cta = static_cast<std::int32_t>(blockIdx.x) + 1; FirstUnit(params_, cta) < behind;
         ++cta) {
      ShareOf(cta).AddTo(o, state);
    }
  }

  const Params& params_;
  CoreShared<T>& shared_;
  Pieces pieces_;
  int number_;
  bool begun_ = false;  // the other query stage holds the tile before
  sm90::PipelineState<T::kQStages> q_state_;
  sm90::PipelineState<T::kStages> k_state_, v_state_;
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    CoreKernel(const __grid_constant__ Params params) {
  extern __shared__ std::byte raw[];
  // 128-byte swizzle repeats every 1024 bytes.
  auto& shared =
      *reinterpret_cast<CoreShared<T>*>(raw + ((1024 - sm90::SharedAddress(raw) % 1024) % 1024));
  if (threadIdx.x == 0) {
    sm90::PrefetchTensorMap(&params.q);
    sm90::PrefetchTensorMap(&params.k[0].whole);
    sm90::PrefetchTensorMap(&params.v[0].whole);
    shared.q_barriers.Init(4 * T::kConsumers);  // every warp
    shared.k_barriers.Init(T::kConsumers);
    shared.v_barriers.Init(T::kConsumers);
    sm90::FenceMbarrierInit();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    sm90::SetMaxNRegDec<T::kProducerRegisters>();
    if (threadIdx.x == 0) Produce<T>(params, shared);
  } else {
    sm90::SetMaxNRegInc<T::kConsumerRegisters>();
    CoreConsumer<T>(params, shared).Run();
  }
}

}  // namespace assay::attention
