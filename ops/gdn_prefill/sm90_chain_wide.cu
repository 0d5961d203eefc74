// The wide chain: 64 rows of V a CTA, on wgmma, one CTA on a multiprocessor for the whole call: it
// walks one (sequence, value head, half of V) after the other from a list that the host balanced,
// and the tiles and the state of the next one are on their way while the last chunks of this one
// are computed. What the warpgroup does with a chunk is in sm90_chain_warpgroup.cuh.
#include "cuda/fence.cuh"
#include "ops/gdn_prefill/sm90_chain_warpgroup.cuh"
#include "ops/gdn_prefill/sm90_rows.cuh"

namespace assay::gdn_prefill {
namespace {

using namespace assay::sm90;

constexpr int kStages = 3, kWarps = 4, kRows = 64, kConsumers = 32 * kWarps;

struct Shared {
  Stage<kWarps> stages[kStages];
  std::byte state[kStateBoxes][kRows * kStateColumns * 4];  // before the first chunk
  std::byte staging[kWarps][4096];  // what goes to memory: outputs, the state after the last chunk
  PipelineBarriers<kStages> barriers;
  // Phase n: of this CTA's work number n. `work` is there with its state, and read with it.
  std::uint64_t state_full, state_taken;
  Work work;
  int not_finite[2];  // of even and odd numbers of work
};

__device__ StateTiles TilesOfState(Shared& shared) {
  StateTiles tiles;
  for (int i = 0; i < kStateBoxes; ++i) tiles.box[i] = shared.state[i];
  return tiles;
}

// Number n of what this CTA works on, of Count().
struct WorkList {
  const Args& args;
  const std::int32_t *items, *end;

  __device__ WorkList(const Args& arguments, const Workspace& workspace)
      : args(arguments),
        items(workspace.items + workspace.first_item[blockIdx.x]),
        end(workspace.items + workspace.first_item[blockIdx.x + 1]) {}

  __device__ int Count() const { return static_cast<int>(end - items); }
  __device__ Work operator[](int n) const {
    const int item = items[n];
    Work work;
    work.first_row = item % 2 * kRows;
    work.head = item / 2 % kValueHeads;
    work.sequence = item / (2 * kValueHeads);
    work.begin = args.sequences == 1 ? 0 : args.cu_seqlens[work.sequence];
    work.end = args.sequences == 1 ? args.tokens : args.cu_seqlens[work.sequence + 1];
    return work;
  }
};

__device__ bool StartsFromZeros(const Args& args, const Work& work) {
  return args.state == nullptr || (work.begin == work.end && args.zero_empty_states);
}
__device__ std::int32_t StateRowOf(const Work& work) {
  return StateRow(work.sequence, work.head, work.first_row);
}

// The warpgroup: number `n` of its work. The outputs of a chunk are stored while the next one's
// first product runs.
__device__ void Walk(const Args& args, const ChainMaps& maps, int n, PipelineState<kStages>& state,
                     Shared& shared) {
  MbarrierWait(&shared.state_full, n % 2);
  const Work work = shared.work;
  const int warp = threadIdx.x / 32, chunks = ChunksOf(work);
  const float scale = ScaleOf(args);
  auto* output = reinterpret_cast<std::uint16_t*>(args.output) +
                 (work.begin * kValueHeads + work.head) * kHeadSize + work.first_row +
                 kWarpRows * warp;
  Walker walker(reinterpret_cast<std::uint16_t*>(shared.staging[warp]), output, scale);
  if (StartsFromZeros(args, work)) {
    walker.ClearState();
  } else {
    walker.TakeState(TilesOfState(shared));
  }
  MbarrierArrive(&shared.state_taken);
  if (threadIdx.x % 32 == 0) BulkWaitGroupRead<0>();  // `staging`, the state of the work before
  __syncwarp();
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
  if (!walker.AllIsFinite()) shared.not_finite[n % 2] = 1;
  if (threadIdx.x == 0) shared.not_finite[(n + 1) % 2] = 0;
  BarSync(1, kConsumers);
  if (shared.not_finite[n % 2] == 0) {
    walker.StoreState(shared.staging[warp], &maps.new_state, StateRowOf(work) + kWarpRows * warp);
    return;
  }
  // fp16 did not hold the numbers of some row: all rows again, from the state that nobody has
  // overwritten yet.
  for (int row = warp; row < kRows; row += kWarps) {
    RecurrentRow(args, work.sequence, work.head, work.first_row + row, work.begin, work.end, scale);
  }
  BarSync(1, kConsumers);
}

__device__ void WalkAll(const Args& args, const ChainMaps& maps, int count, Shared& shared) {
  PipelineState<kStages> state;
  for (int n = 0; n < count; ++n) Walk(args, maps, n, state, shared);
  if (threadIdx.x % 32 == 0) BulkWaitGroupRead<0>();
}

// One thread.
__device__ void LoadAll(const Args& args, const Workspace& workspace, const ChainMaps& maps,
                        const WorkList& list, Shared& shared) {
  PipelineState<kStages> state;
  for (int n = 0; n < list.Count(); ++n) {
    const Work work = list[n];
    if (n > 0) MbarrierWait(&shared.state_taken, (n - 1) % 2);
    shared.work = work;
    if (StartsFromZeros(args, work)) {
      MbarrierArrive(&shared.state_full);
    } else {
      LoadStateTiles(&maps.state, StateRowOf(work), TilesOfState(shared), &shared.state_full);
    }
    if (n == 0) GridDepControlWait();
    LoadChunks(workspace, &maps.v, work, shared.stages, shared.barriers, state);
  }
}

// The second warpgroup loads.
__global__ void __launch_bounds__(256, 1)
    WideChain(const __grid_constant__ Args args, const __grid_constant__ Workspace workspace,
              const __grid_constant__ ChainMaps maps) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    shared.not_finite[0] = 0;
    shared.barriers.Init(kConsumers);
    MbarrierInit(&shared.state_full, 1);
    MbarrierInit(&shared.state_taken, kConsumers);
    FenceMbarrierInit();
  }
  const WorkList list(args, workspace);
  __syncthreads();
  if (threadIdx.x < kConsumers) {
    WalkAll(args, maps, list.Count(), shared);
  } else if (threadIdx.x == kConsumers) {
    LoadAll(args, workspace, maps, list, shared);
  }
}

}  // namespace

void LaunchWideChain(const Args& args, const Workspace& workspace, const ChainMaps& maps,
                     Stream stream) {
  static_assert(sizeof(Shared) <= 232448, "a CTA has 227 KB of shared memory at most");
  static const bool allowed = (AllowChain(WideChain, sizeof(Shared)), true);
  static_cast<void>(allowed);
  LaunchDependent(WideChain, workspace.ctas, 256, sizeof(Shared), stream, args, workspace, maps);
}

}  // namespace assay::gdn_prefill
