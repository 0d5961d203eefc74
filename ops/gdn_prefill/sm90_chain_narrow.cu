// The narrow chain: 16 or 32 rows of V a CTA, on mma.sync, so that few sequences still fill the
// multiprocessors. What a warp does with a chunk is in sm90_chain_warps.cuh.
#include "ops/gdn_prefill/sm90_chain_warps.cuh"
#include "ops/gdn_prefill/sm90_rows.cuh"

namespace assay::gdn_prefill {
namespace {

using namespace assay::sm90;

constexpr int kStages = 3;

template <class C>
struct Shared {
  Stage<C::kGroups> stages[kStages];
  Exchange exchange[C::kGroups];
  PipelineBarriers<kStages> barriers;
  std::uint64_t walked;  // by all warps but the loader
  int not_finite;
};

// All warps but the loader: until the others are here too.
template <class C>
__device__ void WaitForAllWalks(Shared<C>& shared) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) MbarrierArrive(&shared.walked);
  MbarrierWait(&shared.walked, 0);
}

template <class C>
__device__ void WalkState(const Args& args, const Work& work, int warp, Shared<C>& shared) {
  StateWarp<C> walker(work, shared.exchange, warp);
  const bool zeros = work.begin == work.end && args.zero_empty_states;
  walker.LoadState(zeros ? nullptr : args.state);
  PipelineState<kStages> state;
  for (int chunk = 0; chunk < ChunksOf(work); ++chunk) {
    walker.ShareState(chunk);
    MbarrierWait(&shared.barriers.full[state.stage], state.parity);
    walker.Advance(shared.stages[state.stage], chunk, TokensOf(work, chunk));
    Release(shared.barriers, state.stage);
    state.Advance();
  }
  if (!walker.AllIsFinite()) shared.not_finite = 1;
  WaitForAllWalks(shared);
  if (shared.not_finite == 0) walker.StoreState(args.new_state);
}

template <class C>
__device__ void WalkOutputs(const Args& args, const Work& work, int warp, float scale,
                            Shared<C>& shared) {
  const std::int64_t first = (work.begin * kValueHeads + work.head) * kHeadSize + work.first_row +
                             kWarpRows * (warp / C::kSplit);
  OutputWarp<C> walker(shared.exchange, warp, reinterpret_cast<std::uint16_t*>(args.output) + first,
                       scale);
  PipelineState<kStages> state;
  for (int chunk = 0; chunk < ChunksOf(work); ++chunk) {
    walker.WaitForState(chunk);
    MbarrierWait(&shared.barriers.full[state.stage], state.parity);
    walker.Compute(shared.stages[state.stage], chunk);
    Release(shared.barriers, state.stage);
    walker.Store(chunk, TokensOf(work, chunk));
    state.Advance();
  }
  WaitForAllWalks(shared);
}

// All warps but the loader.
template <class C>
__device__ void Walk(const Args& args, const Work& work, int warp, Shared<C>& shared) {
  const float scale = ScaleOf(args);
  if (warp < C::kRoleWarps) {
    WalkState<C>(args, work, warp, shared);
  } else {
    WalkOutputs<C>(args, work, warp - C::kRoleWarps, scale, shared);
  }
  // fp16 did not hold the numbers of some row: all rows again, from the state that nobody has
  // overwritten yet.
  for (int row = warp; shared.not_finite != 0 && row < kWarpRows * C::kGroups;
       row += 2 * C::kRoleWarps) {
    RecurrentRow(args, work.sequence, work.head, work.first_row + row, work.begin, work.end, scale);
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    NarrowChain(const __grid_constant__ Args args, const __grid_constant__ Workspace workspace,
                const __grid_constant__ CUtensorMap v_map) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared<C>*>(memory);
  const Work work = FindWork<kWarpRows * C::kGroups>(args, workspace);
  if (threadIdx.x == 0) {
    shared.not_finite = 0;
    shared.barriers.Init(64 * C::kRoleWarps);
    MbarrierInit(&shared.walked, 2 * C::kRoleWarps);
    for (Exchange& exchange : shared.exchange) {
      for (int i = 0; i < 2; ++i) {
        MbarrierInit(&exchange.state_ready[i], 1);
        MbarrierInit(&exchange.u_ready[i], 1);
        MbarrierInit(&exchange.outputs_done[i], C::kSplit);
      }
    }
    FenceMbarrierInit();
  }
  __syncthreads();
  const int warp = threadIdx.x / 32;
  if (warp < 2 * C::kRoleWarps) {
    Walk<C>(args, work, warp, shared);
  } else if (threadIdx.x % 32 == 0) {
    PipelineState<kStages> state;
    GridDepControlWait();
    LoadChunks(workspace, &v_map, work, shared.stages, shared.barriers, state);
  }
}

template <class C>
void Launch(const Args& args, const Workspace& workspace, const CUtensorMap& v_map, Stream stream) {
  static_assert(sizeof(Shared<C>) <= 232448, "a CTA has 227 KB of shared memory at most");
  static const bool allowed = (AllowChain(NarrowChain<C>, sizeof(Shared<C>)), true);
  static_cast<void>(allowed);
  LaunchDependent(NarrowChain<C>,
                  args.sequences * kValueHeads * (kHeadSize / kWarpRows / C::kGroups), C::kThreads,
                  sizeof(Shared<C>), stream, args, workspace, v_map);
}

}  // namespace

void LaunchNarrowChain(const Args& args, const Workspace& workspace, const CUtensorMap& v_map,
                       int rows, Stream stream) {
  (rows == 16 ? Launch<Config<1, 2>> : Launch<Config<2, 2>>)(args, workspace, v_map, stream);
}

}  // namespace assay::gdn_prefill
