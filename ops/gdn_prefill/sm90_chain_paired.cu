// The paired chain: 64 rows of V a CTA, on wgmma, two CTAs on a multiprocessor. What the computing
// warpgroup does with a chunk is in sm90_chain_paired.cuh. It walks whole sequences, or pieces of
// them (sm90_pieces.cuh).
#include "cuda/fence.cuh"
#include "cuda/setmaxnreg.cuh"
#include "ops/gdn_prefill/sm90_chain_paired.cuh"
#include "ops/gdn_prefill/sm90_pieces.cuh"
#include "ops/gdn_prefill/sm90_rows.cuh"

namespace assay::gdn_prefill {
namespace {

using namespace assay::sm90;

constexpr int kRows = 64, kWarps = 4, kConsumers = 128;
constexpr int kThreads = 256;  // one of the second warpgroup loads
// 65536 registers for two CTAs; ptxas uses at most 230 for the first warpgroup.
constexpr int kConsumerRegisters = 232, kLoaderRegisters = 24;

template <bool kOutputs>
struct Shared {
  std::uint16_t k[2][2][kChunk * 64];   // of even and odd chunks, like t, v, gates and q
  std::uint16_t t[2][kChunk * kChunk];  // then the chunk's outputs
  std::uint16_t v[2][kChunk * kRows];
  float gates[2][kGates][kChunk];
  std::uint16_t q[kOutputs ? 2 : 1][2][kOutputs ? kChunk * 64 : 8];
  std::uint16_t p[kOutputs ? kChunk * kChunk : 8];
  // The state before the first chunk lies where the second one's tiles come, the state after the
  // last where no chunk is left (TilesOfState).
  // Phase n of pairs is chunk 2 n + i, of the others chunk n: tiles are there; the chunk is
  // computed; its outputs are stored.
  std::uint64_t full[2], t_full[2], p_full, ended, stored[2], state_full, state_taken;
  Piece piece;
  int not_finite;
};
static_assert(sizeof(Shared<true>) <= 115712, "half of 228 KB, less 1 KB that CUDA keeps");

// One thread: of a chunk everything but p, and t where there are outputs.
template <bool kOutputs>
__device__ void LoadTiles(const Workspace& workspace, const CUtensorMap* v_map, const Work& work,
                          int chunk, Shared<kOutputs>& shared) {
  const int s = chunk % 2;
  std::uint64_t* full = &shared.full[s];
  const std::int64_t slot = FirstSlot(work.begin, work.sequence) + chunk;
  const KeyTile* keys = workspace.keys + slot * kKeyHeads + work.head / 2;
  const HeadTile* head = workspace.heads + slot * kValueHeads + work.head;
  MbarrierArriveExpectTx(full, sizeof(shared.k[0]) + sizeof(shared.v[0]) + sizeof(shared.gates[0]) +
                                   (kOutputs ? sizeof(shared.q[0]) : sizeof(shared.t[0])));
  BulkLoad(shared.k[s], keys->k, sizeof(shared.k[0]), full);
  const auto token = static_cast<std::int32_t>(work.begin + std::int64_t{chunk} * kChunk);
  TmaLoad(shared.v[s], v_map, {work.first_row, work.head, token}, full);
  BulkLoad(shared.gates[s], head->gates, sizeof(shared.gates[0]), full);
  if constexpr (kOutputs) {
    BulkLoad(shared.q[s], keys->q, sizeof(shared.q[0]), full);
  } else {
    BulkLoad(shared.t[s], head->t, sizeof(shared.t[0]), full);
  }
}

__device__ void LoadTriangle(std::uint16_t (&to)[kChunk * kChunk], const std::uint16_t* from,
                             std::uint64_t* full) {
  MbarrierArriveExpectTx(full, sizeof(to));
  BulkLoad(to, from, sizeof(to), full);
}

// Of a chunk.
__device__ const HeadTile& HeadOf(const Workspace& workspace, const Work& work, int chunk) {
  const std::int64_t slot = FirstSlot(work.begin, work.sequence) + chunk;
  return workspace.heads[slot * kValueHeads + work.head];
}

template <bool kOutputs>
__device__ void InitShared(Shared<kOutputs>& shared) {
  if (threadIdx.x == 0) {
    shared.not_finite = 0;
    for (int s = 0; s < 2; ++s) {
      MbarrierInit(&shared.full[s], 1);
      MbarrierInit(&shared.t_full[s], 1);
      MbarrierInit(&shared.stored[s], kConsumers);
    }
    MbarrierInit(&shared.p_full, 1);
    MbarrierInit(&shared.ended, kConsumers);
    MbarrierInit(&shared.state_full, 1);
    MbarrierInit(&shared.state_taken, kConsumers);
    FenceMbarrierInit();
  }
  __syncthreads();
}

template <bool kOutputs>
__device__ ChunkTiles TilesOf(Shared<kOutputs>& shared, int chunk) {
  const int s = chunk % 2, parity = chunk / 2 % 2;
  if constexpr (kOutputs) {
    return {shared.k[s], shared.q[s],       shared.t[s],    shared.p, shared.gates[s],
            shared.v[s], &shared.t_full[s], &shared.p_full, parity,   s};
  } else {
    return {shared.k[s], shared.k[s], shared.t[s], nullptr, shared.gates[s],
            shared.v[s], nullptr,     nullptr,     0,       0};
  }
}

template <bool kOutputs>
__device__ StateTiles TilesOfState(Shared<kOutputs>& shared) {
  StateTiles tiles;
  for (int i = 0; i < 2; ++i) tiles.box[i] = reinterpret_cast<std::byte*>(shared.k[1][i]);
  if constexpr (kOutputs) {
    for (int i = 0; i < 2; ++i) tiles.box[2 + i] = reinterpret_cast<std::byte*>(shared.q[1][i]);
  } else {
    tiles.box[2] = reinterpret_cast<std::byte*>(shared.t[1]);
    tiles.box[3] = reinterpret_cast<std::byte*>(shared.v[1]);
  }
  return tiles;
}

// The state before the first chunk.
struct InitialState {
  const CUtensorMap* map = nullptr;  // null = zeros, or the identity
  std::int32_t row = 0;              // StateRow
  bool of_kernel_before = false;     // which writes it
};

// One thread: tiles of chunk i + 1 and p of chunk i once all warps have ended chunk i - 1, t of
// chunk i + 1 once its place no longer holds the outputs of chunk i - 1.
template <bool kOutputs>
__device__ void LoadChunks(const Workspace& workspace, const CUtensorMap* v_map, const Work& work,
                           const InitialState& initial, Shared<kOutputs>& shared) {
  const int chunks = ChunksOf(work);
  const auto load_state = [&](bool of_kernel_before) {
    if (initial.map != nullptr && initial.of_kernel_before == of_kernel_before) {
      LoadStateTiles(initial.map, initial.row, TilesOfState(shared), &shared.state_full);
    }
  };
  const auto load_t = [&](int chunk) {
    if constexpr (kOutputs) {
      LoadTriangle(shared.t[chunk % 2], HeadOf(workspace, work, chunk).t,
                   &shared.t_full[chunk % 2]);
    }
  };
  const auto load_p = [&](int chunk) {
    if constexpr (kOutputs) {
      LoadTriangle(shared.p, HeadOf(workspace, work, chunk).p, &shared.p_full);
    }
  };
  load_state(false);
  GridDepControlWait();
  load_state(true);
  for (int chunk = 0; chunk < min(chunks, 2); ++chunk) {
    if (chunk == 1) MbarrierWait(&shared.state_taken, 0);
    LoadTiles(workspace, v_map, work, chunk, shared);
    load_t(chunk);
    if (chunk == 0) load_p(chunk);
  }
  for (int chunk = 1; chunk < chunks; ++chunk) {
    const int before = (chunk - 1) % 2;
    MbarrierWait(&shared.ended, before);
    load_p(chunk);
    if (chunk + 1 == chunks) break;
    LoadTiles(workspace, v_map, work, chunk + 1, shared);
    if constexpr (kOutputs) MbarrierWait(&shared.stored[before], (chunk - 1) / 2 % 2);
    load_t(chunk + 1);
  }
}

// The first warpgroup: all chunks of `work`. `values` false: as if v were 0.
template <bool kOutputs>
__device__ void WalkChunks(PairedWalker<kOutputs>& walker, const Work& work, bool values,
                           Shared<kOutputs>& shared) {
  const int chunks = ChunksOf(work);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int other = (chunk + 1) % 2;
    const ChunkTiles tiles = TilesOf(shared, chunk);
    MbarrierWait(&shared.full[chunk % 2], chunk / 2 % 2);
    walker.BeginChunk(tiles);
    if constexpr (kOutputs) {
      if (chunk > 0) {
        walker.StoreOutput(shared.t[other], chunk - 1, kChunk);
        MbarrierArrive(&shared.stored[other]);
      }
    }
    walker.EndChunk(tiles, values ? TokensOf(work, chunk) : 0);
    MbarrierArrive(&shared.ended);
  }
  if constexpr (kOutputs) {
    if (chunks > 0) {
      walker.StoreOutput(shared.t[(chunks - 1) % 2], chunks - 1, TokensOf(work, chunks - 1));
    }
  }
}

// The second warpgroup's whole life.
template <bool kOutputs>
__device__ void Load(const Workspace& workspace, const CUtensorMap* v_map, const Work& work,
                     const InitialState& initial, Shared<kOutputs>& shared) {
  SetMaxNRegDec<kLoaderRegisters>();
  if (threadIdx.x == kConsumers) LoadChunks(workspace, v_map, work, initial, shared);
}

// The first warpgroup. It waits for the kernel before instead of polling the barriers of tiles that
// cannot come earlier.
template <bool kOutputs>
__device__ void TakeState(PairedWalker<kOutputs>& walker, const InitialState& initial,
                          Shared<kOutputs>& shared) {
  if (initial.of_kernel_before) GridDepControlWait();
  if (initial.map != nullptr) {
    MbarrierWait(&shared.state_full, 0);
    walker.TakeState(TilesOfState(shared));
  } else {
    walker.ClearState();
  }
  MbarrierArrive(&shared.state_taken);
  GridDepControlWait();
}

// fp16 did not hold the numbers of some row: all rows again, with the recurrence.
__device__ void WalkAgain(const Args& args, const Work& work, float scale) {
  for (int row = threadIdx.x / 32; row < kRows; row += kWarps) {
    RecurrentRow(args, work.sequence, work.head, work.first_row + row, work.begin, work.end, scale);
  }
}

__device__ std::uint16_t* OutputAt(const Args& args, const Work& work) {
  return reinterpret_cast<std::uint16_t*>(args.output) +
         (work.begin * kValueHeads + work.head) * kHeadSize + work.first_row;
}

template <bool kOutputs>
__device__ bool AllFinite(const PairedWalker<kOutputs>& walker, Shared<kOutputs>& shared) {
  if (!walker.AllIsFinite()) shared.not_finite = 1;
  BarSync(1, kConsumers);
  return shared.not_finite == 0;
}

__global__ void __launch_bounds__(kThreads, 2)
    PairedChain(const __grid_constant__ Args args, const __grid_constant__ Workspace workspace,
                const __grid_constant__ ChainMaps maps) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared<true>*>(memory);
  const Work work = FindWork<kRows>(args, workspace);
  InitShared(shared);
  const bool zeros = args.state == nullptr || (work.begin == work.end && args.zero_empty_states);
  const std::int32_t state_row = StateRow(work.sequence, work.head, work.first_row);
  const InitialState initial{zeros ? nullptr : &maps.state, state_row};
  if (threadIdx.x >= kConsumers) return Load(workspace, &maps.v, work, initial, shared);
  SetMaxNRegInc<kConsumerRegisters>();
  const float scale = ScaleOf(args);
  PairedWalker<true> walker(OutputAt(args, work), scale);
  TakeState(walker, initial, shared);
  WalkChunks(walker, work, true, shared);
  if (AllFinite(walker, shared)) {
    walker.StoreState(TilesOfState(shared), &maps.new_state, state_row);
    if (threadIdx.x == 0) BulkWaitGroupRead<0>();
  } else {
    WalkAgain(args, work, scale);  // from the state that nobody has overwritten yet
  }
}

// 64 rows of M, [2][128 rows][64] in memory, from tiles that this warpgroup wrote.
__device__ void StoreTransition(const std::uint16_t (&tiles)[2][kChunk * 64], std::uint16_t* m,
                                int first_row) {
  FenceProxyAsyncShared();
  BarSync(1, kConsumers);
  if (threadIdx.x != 0) return;
  for (int half = 0; half < 2; ++half) {
    BulkStore(m + (half * kHeadSize + first_row) * 64, tiles[half], sizeof(tiles[half]));
  }
  BulkCommitGroup();
}

// E and M of a piece (blockIdx / 2 % 2), 64 rows a CTA; of the first piece of a sequence the state
// at its end instead, and nothing of the last.
__global__ void __launch_bounds__(kThreads, 2)
    PieceEnds(const __grid_constant__ Args args, const __grid_constant__ Workspace workspace,
              const __grid_constant__ ChainMaps maps) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared<false>*>(memory);
  GridDepControlLaunchDependents();
  const bool transition = blockIdx.x / 2 % 2 != 0;
  const int head = blockIdx.x / 4 % kValueHeads, first_row = blockIdx.x % 2 * kRows;
  const Piece piece =
      FindPiece(args, workspace.piece_chunks, blockIdx.x / (4 * kValueHeads), shared.piece);
  if (piece.index + 1 >= piece.count || (transition && piece.index == 0)) {
    GridDepControlWait();  // what waits for this kernel relies on the first kernel's end
    return;
  }
  InitShared(shared);
  const Work work{piece.sequence, piece.begin, piece.end, head, first_row};
  const bool zeros = piece.index > 0 || args.state == nullptr;
  const InitialState initial{zeros ? nullptr : &maps.state,
                             StateRow(piece.sequence, head, first_row)};
  if (threadIdx.x >= kConsumers) return Load(workspace, &maps.v, work, initial, shared);
  SetMaxNRegInc<kConsumerRegisters>();
  PairedWalker<false> walker(nullptr, 0);
  TakeState(walker, initial, shared);
  if (transition) walker.SetIdentity(first_row + threadIdx.x / 32 * kWarpRows);
  WalkChunks(walker, work, !transition, shared);
  BarSync(1, kConsumers);  // all warps have done with the tiles
  if (transition) {
    walker.PutTransition(shared.k[1]);
    StoreTransition(shared.k[1],
                    workspace.transitions + (piece.number * kValueHeads + head) * kStateElements,
                    first_row);
  } else {
    walker.StoreState(TilesOfState(shared), &maps.ends, StateRow(piece.number, head, first_row));
  }
  if (threadIdx.x == 0) BulkWaitGroupRead<0>();
}

// All CTAs of the pieces of a sequence come here with the same head and rows: true for the last
// one, if a state of any was not finite. What they wrote is visible to it.
__device__ bool LastOfNotFinite(const Workspace& workspace, const Piece& piece, const Work& work,
                                Shared<true>& shared) {
  constexpr int kNotFinite = 1 << 16;
  __threadfence();
  BarSync(1, kConsumers);
  if (threadIdx.x == 0) {
    int* arrivals =
        workspace.arrivals + (work.sequence * kValueHeads + work.head) * 2 + work.first_row / kRows;
    const int added = 1 + (shared.not_finite != 0 ? kNotFinite : 0);
    const int sum = atomicAdd(arrivals, added) + added;
    const bool last = sum % kNotFinite == piece.count;
    if (last) *arrivals = 0;  // for the next call
    __threadfence();
    shared.not_finite = last && sum >= kNotFinite;
  }
  BarSync(1, kConsumers);
  return shared.not_finite != 0;
}

// The pieces from their starts.
__global__ void __launch_bounds__(kThreads, 2)
    PieceChain(const __grid_constant__ Args args, const __grid_constant__ Workspace workspace,
               const __grid_constant__ ChainMaps maps) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared<true>*>(memory);
  const int head = blockIdx.x / 2 % kValueHeads, first_row = blockIdx.x % 2 * kRows;
  const Piece piece =
      FindPiece(args, workspace.piece_chunks, blockIdx.x / (2 * kValueHeads), shared.piece);
  if (piece.count == 0) return;
  InitShared(shared);
  Work work{piece.sequence, piece.begin, piece.end, head, first_row};
  const InitialState initial{&maps.starts, StateRow(piece.number, head, first_row), true};
  if (threadIdx.x >= kConsumers) return Load(workspace, &maps.v, work, initial, shared);
  SetMaxNRegInc<kConsumerRegisters>();
  const float scale = ScaleOf(args);
  PairedWalker<true> walker(OutputAt(args, work), scale);
  TakeState(walker, initial, shared);
  WalkChunks(walker, work, true, shared);
  AllFinite(walker, shared);
  if (piece.index + 1 == piece.count) {
    walker.StoreState(TilesOfState(shared), &maps.new_state,
                      StateRow(piece.sequence, head, first_row));
    if (threadIdx.x == 0) BulkWaitGroup<0>();  // before anybody may store it again
  }
  if (LastOfNotFinite(workspace, piece, work, shared)) {
    // `state` may be overwritten by now; the start of the first piece is a copy of it.
    Args again = args;
    const std::int64_t first = piece.number - piece.index;
    again.state = workspace.starts + (first - piece.sequence) * kValueHeads * kStateElements;
    work.begin = args.sequences == 1 ? 0 : args.cu_seqlens[work.sequence];
    work.end = args.sequences == 1 ? args.tokens : args.cu_seqlens[work.sequence + 1];
    WalkAgain(again, work, scale);
  }
}

}  // namespace

void LaunchPairedChain(const Args& args, const Workspace& workspace, const ChainMaps& maps,
                       Stream stream) {
  static const bool allowed =
      (AllowChain(PairedChain, sizeof(Shared<true>)), AllowChain(PieceEnds, sizeof(Shared<false>)),
       AllowChain(PieceChain, sizeof(Shared<true>)), true);
  static_cast<void>(allowed);
  if (workspace.piece_chunks == 0) {
    LaunchDependent(PairedChain, args.sequences * kValueHeads * 2, kThreads, sizeof(Shared<true>),
                    stream, args, workspace, maps);
    return;
  }
  const std::int64_t pieces = FirstPiece(args.tokens, args.sequences, workspace.piece_chunks);
  LaunchDependent(PieceEnds, pieces * kValueHeads * 4, kThreads, sizeof(Shared<false>), stream,
                  args, workspace, maps);
  LaunchPieceStarts(args, workspace, stream);
  LaunchDependent(PieceChain, pieces * kValueHeads * 2, kThreads, sizeof(Shared<true>), stream,
                  args, workspace, maps);
}

}  // namespace assay::gdn_prefill
