// The wide chain: 64 rows of V a CTA, on wgmma, one CTA on a multiprocessor. The faster one where
// there are sequences for all of them. What the warpgroup does with a chunk is in
// sm90_chain_warpgroup.cuh.
#include "cuda/fence.cuh"
#include "ops/gdn_prefill/sm90_chain_warpgroup.cuh"
#include "ops/gdn_prefill/sm90_rows.cuh"

namespace assay::gdn_prefill {
namespace {

using namespace assay::sm90;

constexpr int kStages = 3, kWarps = 4, kRows = 64;

struct Shared {
  Stage<kWarps> stages[kStages];
  // Before the first chunk, after the last.
  float state[kStateBoxes][kRows * kStateColumns];
  std::uint16_t outputs[kWarps][kChunk][kWarpRows];  // bf16 on their way to memory
  PipelineBarriers<kStages> barriers;
  std::uint64_t state_full;
  int not_finite;
};

__device__ StateTiles TilesOfState(Shared& shared) {
  StateTiles tiles;
  for (int i = 0; i < kStateBoxes; ++i) {
    tiles.box[i] = reinterpret_cast<std::byte*>(shared.state[i]);
  }
  return tiles;
}

__device__ bool StartsFromZeros(const Args& args, const Work& work) {
  return args.state == nullptr || (work.begin == work.end && args.zero_empty_states);
}
__device__ std::int32_t StateRowOf(const Work& work) {
  return StateRow(work.sequence, work.head, work.first_row);
}

// One warpgroup; the outputs of a chunk are stored while the next one's first product runs.
__device__ void Walk(const Args& args, const ChainMaps& maps, const Work& work, int warp,
                     Shared& shared) {
  const float scale = ScaleOf(args);
  const int first_row = work.first_row + kWarpRows * warp, chunks = ChunksOf(work);
  auto* output = reinterpret_cast<std::uint16_t*>(args.output) +
                 (work.begin * kValueHeads + work.head) * kHeadSize + first_row;
  Walker walker(shared.outputs[warp][0], output, scale);
  if (StartsFromZeros(args, work)) {
    walker.ClearState();
  } else {
    MbarrierWait(&shared.state_full, 0);
    walker.TakeState(TilesOfState(shared));
  }
  PipelineState<kStages> state;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const auto& stage = shared.stages[state.stage];
    MbarrierWait(&shared.barriers.full[state.stage], state.parity);
    walker.BeginChunk(stage.key);
    walker.StoreOutput(chunk - 1, chunk > 0 ? kChunk : 0);
    walker.EndChunk(stage.key, stage.head, stage.v[warp], TokensOf(work, chunk));
    Release(shared.barriers, state.stage);
    state.Advance();
  }
  walker.StoreOutput(chunks - 1, chunks > 0 ? TokensOf(work, chunks - 1) : 0);
  if (!walker.AllIsFinite()) shared.not_finite = 1;
  BarSync(1, 32 * kWarps);
  if (shared.not_finite == 0) {
    walker.StoreState(TilesOfState(shared), &maps.new_state, StateRowOf(work));
    return;
  }
  // fp16 did not hold the numbers of some row: all rows again, from the state that nobody has
  // overwritten yet.
  for (int row = warp; row < kWarpRows * kWarps; row += kWarps) {
    RecurrentRow(args, work.sequence, work.head, work.first_row + row, work.begin, work.end, scale);
  }
}

// The second warpgroup loads.
__global__ void __launch_bounds__(256, 1)
    WideChain(const __grid_constant__ Args args, const __grid_constant__ Workspace workspace,
              const __grid_constant__ ChainMaps maps) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const Work work = FindWork<kRows>(args, workspace);
  if (threadIdx.x == 0) {
    shared.not_finite = 0;
    shared.barriers.Init(32 * kWarps);
    MbarrierInit(&shared.state_full, 1);
    FenceMbarrierInit();
  }
  __syncthreads();
  const int warp = threadIdx.x / 32;
  if (warp < kWarps) {
    Walk(args, maps, work, warp, shared);
  } else {
    if (threadIdx.x == 32 * kWarps) {
      if (!StartsFromZeros(args, work)) {
        LoadStateTiles(&maps.state, StateRowOf(work), TilesOfState(shared), &shared.state_full);
      }
      LoadChunks(workspace, &maps.v, work, shared.stages, shared.barriers);
    }
  }
}

}  // namespace

void LaunchWideChain(const Args& args, const Workspace& workspace, const ChainMaps& maps,
                     Stream stream) {
  static_assert(sizeof(Shared) <= 232448, "a CTA has 227 KB of shared memory at most");
  static const bool allowed = (AllowChain(WideChain, sizeof(Shared)), true);
  static_cast<void>(allowed);
  LaunchDependent(WideChain, args.sequences * kValueHeads * (kHeadSize / kRows), 256,
                  sizeof(Shared), stream, args, workspace, maps);
}

}  // namespace assay::gdn_prefill
