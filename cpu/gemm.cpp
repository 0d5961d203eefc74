// The blocked loops of the bf16 GEMM, and the rule that chooses between them and oneDNN.
//
// A task is a chunk of rows times a block of columns. Per block of k it packs B once (shared by all
// rows of the chunk), expands one tile of A to fp32, and adds into an fp32 image of the task's part
// of C that is rounded to bf16 once, at the end. Each element of C is thus summed in
// increasing k whatever the blocking: threads split m and n only, and never change a bit.
#include "cpu/gemm.h"

#include <algorithm>
#include <memory>

#include "base/parallel.h"
#include "base/simd.h"
#include "cpu/gemm_onednn.h"
#include "cpu/gemm_tiles.h"

namespace assay::cpu {
namespace {

// Per thread: C 448 x 528 fp32 = 0.95 MB and B 256 x 512 bf16 = 0.25 MB fit the 2 MB L2 cache of
// current server cores; a tile of A, 14 x 272 fp32 = 15 KB, stays in L1 while the panels of B
// stream past it, one contiguous read that the prefetcher follows.
constexpr std::int64_t kChunkRows = 448;

struct Scratch {
  alignas(64) float c[kChunkRows * kCStride];
  alignas(64) float a[kMostTileRows * kAStride];
  alignas(64) std::uint32_t b[kBlockK / 2 * kBlockColumns];
};

// Kept by every thread between calls: fresh pages would cost more than a small product.
Scratch& ThreadScratch() {
  thread_local const std::unique_ptr<Scratch> scratch(new Scratch);  // left uninitialised
  return *scratch;
}

std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct Blocking {
  std::int64_t chunk_rows = 0, chunks = 0;
  std::int64_t block_columns = 0, blocks = 0;
};

Blocking ChooseBlocking(const GemmBf16Nt& args, int threads, const TileKernel& tiles) {
  Blocking blocking;
  // Equal chunks of whole tiles.
  const std::int64_t rows = CeilDiv(args.m, CeilDiv(args.m, kChunkRows));
  blocking.chunk_rows = std::min(CeilDiv(rows, tiles.rows) * tiles.rows, kChunkRows);
  blocking.chunks = CeilDiv(args.m, blocking.chunk_rows);
  // Narrower blocks when there would be too few tasks; at least two panels each.
  blocking.block_columns = kBlockColumns;
  if (threads <= 0) threads = HardwareThreads();
  while (blocking.block_columns > 2 * tiles.columns &&
         blocking.chunks * CeilDiv(args.n, blocking.block_columns) < 4 * std::int64_t{threads}) {
    blocking.block_columns /= 2;
  }
  blocking.blocks = CeilDiv(args.n, blocking.block_columns);
  return blocking;
}

// One task: rows [m0, m1) x columns [n0, n1).
struct Task {
  std::int64_t m0, m1, n0, n1;
};

void PackB(const GemmBf16Nt& args, const Task& task, std::int64_t k0, std::int64_t k_count,
           const TileKernel& tiles, Scratch& scratch) {
  std::uint32_t* panel = scratch.b;
  for (std::int64_t n = task.n0; n < task.n1; n += tiles.columns) {
    const std::int64_t valid = std::min<std::int64_t>(tiles.columns, task.n1 - n);
    tiles.pack(args.b + n * args.ldb + k0, args.ldb, valid, k_count, panel);
    panel += kBlockK / 2 * tiles.columns;
  }
}

ASSAY_VECTOR_CLONES void Expand(const bf16* from, std::int64_t count, float* to) {
  for (std::int64_t k = 0; k < count; ++k) to[k] = ToFloat(from[k]);
}

ASSAY_VECTOR_CLONES void Round(const float* from, std::int64_t count, bf16* to) {
  for (std::int64_t n = 0; n < count; ++n) to[n] = ToBF16(from[n]);
}

// fp32 copy of rows [m0, m0 + rows), with a zero behind an odd last k.
void ExpandA(const GemmBf16Nt& args, std::int64_t m0, std::int64_t rows, std::int64_t k0,
             std::int64_t k_count, Scratch& scratch) {
  for (std::int64_t r = 0; r < rows; ++r) {
    float* to = scratch.a + r * kAStride;
    Expand(args.a + (m0 + r) * args.lda + k0, k_count, to);
    if (k_count % 2 != 0) to[k_count] = 0;
  }
}

// One tile of A times all panels of the block.
void MultiplyRows(const Task& task, std::int64_t m0, int rows, std::int64_t pairs, bool first,
                  const TileKernel& tiles, Scratch& scratch) {
  const std::uint32_t* panel = scratch.b;
  float* c = scratch.c + (m0 - task.m0) * kCStride;
  for (std::int64_t n = task.n0; n < task.n1; n += tiles.columns) {
    tiles.tile(rows, pairs, scratch.a, panel, c, first);
    panel += kBlockK / 2 * tiles.columns;
    c += tiles.columns;
  }
}

void RoundC(const GemmBf16Nt& args, const Task& task, const Scratch& scratch) {
  for (std::int64_t m = task.m0; m < task.m1; ++m) {
    Round(scratch.c + (m - task.m0) * kCStride, task.n1 - task.n0, args.c + m * args.ldc + task.n0);
  }
}

void RunTask(const GemmBf16Nt& args, const Task& task, const TileKernel& tiles, Scratch& scratch) {
  for (std::int64_t k0 = 0; k0 < args.k; k0 += kBlockK) {
    const std::int64_t k_count = std::min(kBlockK, args.k - k0);
    PackB(args, task, k0, k_count, tiles, scratch);
    for (std::int64_t m0 = task.m0; m0 < task.m1; m0 += tiles.rows) {
      const auto rows = static_cast<int>(std::min<std::int64_t>(tiles.rows, task.m1 - m0));
      ExpandA(args, m0, rows, k0, k_count, scratch);
      MultiplyRows(task, m0, rows, CeilDiv(k_count, 2), k0 == 0, tiles, scratch);
    }
  }
  RoundC(args, task, scratch);
}

void FillZero(const GemmBf16Nt& args) {
  for (std::int64_t m = 0; m < args.m; ++m) std::fill_n(args.c + m * args.ldc, args.n, bf16{});
}

}  // namespace

std::vector<const TileKernel*> SupportedTiles() {
  std::vector<const TileKernel*> supported;
  for (const TileKernel* tiles : {&kTilesAvx512, &kTilesAvx2, &kTilesPlain}) {
    if (tiles->supported()) supported.push_back(tiles);
  }
  return supported;
}

void RunTiles(const GemmBf16Nt& args, int threads, const TileKernel& tiles) {
  if (args.m <= 0 || args.n <= 0) return;
  if (args.k <= 0) return FillZero(args);
  const Blocking blocking = ChooseBlocking(args, threads, tiles);
  // Consecutive tasks share a block of B rather than a chunk of A: B is the larger read.
  ParallelFor(blocking.chunks * blocking.blocks, threads, [&](std::int64_t index) {
    const std::int64_t m0 = index % blocking.chunks * blocking.chunk_rows;
    const std::int64_t n0 = index / blocking.chunks * blocking.block_columns;
    const Task task{m0, std::min(m0 + blocking.chunk_rows, args.m), n0,
                    std::min(n0 + blocking.block_columns, args.n)};
    RunTask(args, task, tiles, ThreadScratch());
  });
}

void RunOwnLoops(const GemmBf16Nt& args, int threads) {
  static const TileKernel& best = *SupportedTiles().front();
  RunTiles(args, threads, best);
}

void Run(const GemmBf16Nt& args, int threads) {
  static const bool use_onednn = OneDnnIsFaster();
  if (use_onednn) return RunOneDnn(args, threads);
  RunOwnLoops(args, threads);
}

}  // namespace assay::cpu
