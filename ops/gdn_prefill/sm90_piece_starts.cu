// The states between the pieces of sequences (sm90_pieces.cuh), one after the other: S' = S M + E,
// on wgmma. One CTA per sequence, value head and 64 rows of V.
#include "cuda/fence.cuh"
#include "cuda/wgmma.cuh"
#include "cuda/wgmma_f16.cuh"
#include "ops/gdn_prefill/sm90_pieces.cuh"
#include "ops/gdn_prefill/sm90_state_rows.cuh"

namespace assay::gdn_prefill {
namespace {

using namespace assay::sm90;

constexpr int kRows = 64, kThreads = 128;

struct Shared {
  std::uint16_t m[2][2][kHeadSize * 64];  // of odd and even pieces; [half of the columns][row]
  std::uint64_t full[2];
};

// s = S M for the S in `s`, plus what `sums` holds.
__device__ void Multiply(const float (&s)[64], const std::uint16_t (&m)[2][kHeadSize * 64],
                         float (&sums)[64]) {
  std::uint32_t left[8][4];
#pragma unroll
  for (int i = 0; i < 32; ++i) left[i / 4][i % 4] = PackHalf(s[2 * i], s[2 * i + 1]);
  WgmmaFenceOperand(sums);
  WgmmaFence();
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    WgmmaHalfRowMajor(sums, left[step], WgmmaRowMajorDescriptor(m, sizeof(m[0])) + step * 128,
                      true);
  }
  WgmmaCommitGroup();
  WgmmaWaitGroup<0>();
  WgmmaFenceOperand(sums);
  WgmmaFenceOperand(left);
}

__global__ void __launch_bounds__(kThreads, 1)
    PieceStarts(const Args args, const Workspace workspace) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  GridDepControlLaunchDependents();
  const int warp_row = blockIdx.x % 2 * kRows + threadIdx.x / 32 * kWarpRows;
  const int head = blockIdx.x / 2 % kValueHeads;
  const std::int64_t sequence = blockIdx.x / (2 * kValueHeads);
  const std::int64_t begin = args.sequences == 1 ? 0 : args.cu_seqlens[sequence];
  const std::int64_t end = args.sequences == 1 ? args.tokens : args.cu_seqlens[sequence + 1];
  const std::int64_t first = FirstPiece(begin, sequence, workspace.piece_chunks);
  const int count = PiecesOf(end - begin, workspace.piece_chunks);
  const auto at = [&](std::int64_t number) {
    return ((number * kValueHeads + head) * kHeadSize + warp_row) * kHeadSize;
  };
  const auto load = [&](int piece) {  // its M; one thread
    std::uint64_t* full = &shared.full[piece % 2];
    MbarrierArriveExpectTx(full, sizeof(shared.m[0]));
    BulkLoad(shared.m[piece % 2],
             workspace.transitions + ((first + piece) * kValueHeads + head) * kStateElements,
             sizeof(shared.m[0]), full);
  };
  float s[64], next[64];
  const bool zeros = args.state == nullptr || (begin == end && args.zero_empty_states);
  LoadStateRows(zeros ? nullptr : args.state + at(sequence), s);
  StoreStateRows(s, workspace.starts + at(first));
  if (threadIdx.x == 0) {
    for (std::uint64_t& full : shared.full) MbarrierInit(&full, 1);
    FenceMbarrierInit();
  }
  __syncthreads();
  GridDepControlWait();
  if (count == 1) return;
  if (threadIdx.x == 0) {
    for (int piece = 1; piece < min(count - 1, 3); ++piece) load(piece);
  }
  __syncwarp();
  LoadStateRows(workspace.ends + at(first), s);
  StoreStateRows(s, workspace.starts + at(first + 1));
  if (count > 2) LoadStateRows(workspace.ends + at(first + 1), next);
  for (int piece = 1; piece < count - 1; ++piece) {
    float sums[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) sums[i] = next[i];
    if (piece + 1 < count - 1) LoadStateRows(workspace.ends + at(first + piece + 1), next);
    MbarrierWait(&shared.full[piece % 2], (piece - 1) / 2 % 2);
    Multiply(s, shared.m[piece % 2], sums);
    StoreStateRows(sums, workspace.starts + at(first + piece + 1));
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] = sums[i];
    __syncthreads();
    if (threadIdx.x == 0 && piece + 2 < count - 1) load(piece + 2);
    __syncwarp();
  }
}

}  // namespace

void LaunchPieceStarts(const Args& args, const Workspace& workspace, Stream stream) {
  static const bool allowed = (AllowChain(PieceStarts, sizeof(Shared)), true);
  static_cast<void>(allowed);
  LaunchDependent(PieceStarts, args.sequences * kValueHeads * 2, kThreads, sizeof(Shared), stream,
                  args, workspace);
}

}  // namespace assay::gdn_prefill
