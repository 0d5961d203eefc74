// Wrong kernels, each with a mistake that GEMM kernels really make. Verification must reject all.
#include <algorithm>
#include <functional>
#include <vector>

#include "cpu/gemm.h"
#include "ops/dense_gemm_bf16_nt/spec.h"

namespace assay::dense_gemm_bf16_nt {
namespace {

constexpr std::int64_t kTileM = 128, kTileN = 256, kBlockK = 64;

// The seam below RunCpu.
void Multiply(const Args& g) { cpu::Run({g.m, g.n, g.k, g.a, g.lda, g.b, g.ldb, g.c, g.ldc}, 0); }

std::int64_t LastTileRow(const Args& g) { return g.m <= 0 ? 0 : (g.m - 1) / kTileM * kTileM; }

void DropLastBlockOfK(Args g) {
  g.k -= kBlockK;
  Multiply(g);
}

// A prologue that starts the pipeline at the second block and wraps around to it again.
void SecondBlockForFirst(const Args& g) {
  Multiply(g);
  std::vector<bf16> a(static_cast<std::size_t>(g.m * g.k));
  for (std::int64_t m = 0; m < g.m; ++m) {
    bf16* row = a.data() + m * g.k;
    std::copy_n(g.a + m * g.lda, g.k, row);
    std::copy_n(g.a + m * g.lda + kBlockK, kBlockK, row);
  }
  Args wrong = g;
  wrong.a = a.data();
  wrong.lda = g.k;
  Multiply(wrong);
}

void SwapRowTiles(const Args& g) {
  Multiply(g);
  const std::int64_t rows = std::min(kTileM, g.m / 2);
  for (std::int64_t m = 0; m < rows; ++m) {
    std::swap_ranges(g.c + m * g.ldc, g.c + m * g.ldc + g.n, g.c + (m + rows) * g.ldc);
  }
}

// Split-K whose partial tiles are stored as bf16.
void RoundPartialSums(const Args& g) {
  std::vector<bf16> second(static_cast<std::size_t>(g.m * g.n));
  Args half = g;
  half.k = g.k / 2;
  Multiply(half);
  half.a += half.k;
  half.b += half.k;
  half.k = g.k - half.k;
  half.c = second.data();
  half.ldc = g.n;
  Multiply(half);
  for (std::int64_t m = 0; m < g.m; ++m) {
    for (std::int64_t n = 0; n < g.n; ++n) {
      bf16& c = g.c[m * g.ldc + n];
      c = ToBF16(ToFloat(c) + ToFloat(second[static_cast<std::size_t>(m * g.n + n)]));
    }
  }
}

void ScaleByOnePercent(const Args& g) {
  Multiply(g);
  for (std::int64_t m = 0; m < g.m; ++m) {
    for (std::int64_t n = 0; n < g.n; ++n) {
      bf16& c = g.c[m * g.ldc + n];
      c = ToBF16(ToFloat(c) * 1.01f);
    }
  }
}

void NeighbourColumn(const Args& g) {
  Multiply(g);
  const std::int64_t n = g.n / 3;
  for (std::int64_t m = 0; m < g.m; ++m) g.c[m * g.ldc + n] = g.c[m * g.ldc + n + 1];
}

void SkipRaggedRows(Args g) {
  g.m = LastTileRow(g);
  Multiply(g);
}

void StrideOfBShort(const Args& g) {
  const std::int64_t ldb = g.ldb - kBlockK;  // RunCpu and oneDNN refuse it
  cpu::RunOwnLoops({g.m, g.n, g.k, g.a, g.lda, g.b, ldb, g.c, g.ldc}, 0);
}

// Out-of-range guard off by one: the last row reads the row before it.
void ClampLastRowOfA(Args g) {
  Multiply(g);
  if (g.m < 2) return;
  std::copy_n(g.c + (g.m - 2) * g.ldc, g.n, g.c + (g.m - 1) * g.ldc);
}

// One 128 x 256 tile in the middle is computed with the coordinates of its neighbour.
void RepeatOneTile(const Args& g) {
  Multiply(g);
  const std::int64_t m0 = g.m / 2 / kTileM * kTileM;
  const std::int64_t n0 = g.n / 2 / kTileN * kTileN;
  for (std::int64_t m = m0; m < std::min(m0 + kTileM, g.m); ++m) {
    std::copy_n(g.c + m * g.ldc + n0 - kTileN, kTileN, g.c + m * g.ldc + n0);
  }
}

// The same tile lost one k block only.
void OneTileDropsBlockOfK(const Args& g) {
  Multiply(g);
  Args tile = g;
  const std::int64_t m0 = g.m / 2 / kTileM * kTileM;
  const std::int64_t n0 = g.n / 2 / kTileN * kTileN;
  tile.m = std::min(kTileM, g.m - m0);
  tile.n = kTileN;
  tile.k -= kBlockK;
  tile.a += m0 * g.lda;
  tile.b += n0 * g.ldb;
  tile.c += m0 * g.ldc + n0;
  Multiply(tile);
}

void WriteZeros(const Args& g) {
  for (std::int64_t m = 0; m < g.m; ++m) std::fill_n(g.c + m * g.ldc, g.n, bf16{});
}

Mutant MakeMutant(const char* name, const char* mistake, std::function<void(const Args&)> kernel) {
  return {
      name, mistake,
      [kernel = std::move(kernel)](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
        kernel(Bind(problem, inputs, outputs));
      }};
}

}  // namespace

std::vector<Mutant> Mutants() {
  return {
      MakeMutant("zeros", "writes zeros", WriteZeros),
      MakeMutant("last_k_block_dropped", "leaves out the last 64 of k", DropLastBlockOfK),
      MakeMutant("first_k_block_of_a_wrong", "reads the second k block of A for the first",
                 SecondBlockForFirst),
      MakeMutant("row_tiles_swapped", "exchanges two 128-row tiles", SwapRowTiles),
      MakeMutant("bf16_partial_sums", "rounds the sums of two K halves to bf16", RoundPartialSums),
      MakeMutant("scaled", "multiplies the output by 1.01", ScaleByOnePercent),
      MakeMutant("neighbour_column", "takes one column from its neighbour", NeighbourColumn),
      MakeMutant("ragged_rows_skipped", "never writes the last, ragged row tile", SkipRaggedRows),
      MakeMutant("b_stride_short", "walks B with a row stride 64 too small", StrideOfBShort),
      MakeMutant("a_row_clamped", "computes the last row from the row before it", ClampLastRowOfA),
      MakeMutant("tile_repeated", "one 128x256 tile holds its neighbour's values", RepeatOneTile),
      MakeMutant("tile_drops_k_block", "one 128x256 tile leaves out the last 64 of k",
                 OneTileDropsBlockOfK),
  };
}

}  // namespace assay::dense_gemm_bf16_nt
