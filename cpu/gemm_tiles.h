// The innermost pieces of the blocked GEMM, one set per instruction set. gemm.cpp owns the loops
// around them. Private to cpu/ and its tests.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/gemm.h"

namespace assay::cpu {

// k elements of one block: a tile of 14 rows of A is then 15 KB in fp32 and a panel of 32 columns
// of B 16 KB.
inline constexpr std::int64_t kBlockK = 256;
// Row stride, in floats, of the fp32 copy of A. A compile-time constant, so that all rows of a tile
// are displacements off one register; the 16 extra floats keep the rows in different cache sets.
inline constexpr std::int64_t kAStride = kBlockK + 16;

inline constexpr int kMostTileRows = 14;
// Columns of one block, and the row stride of the fp32 image of C, padded likewise.
inline constexpr std::int64_t kBlockColumns = 512;
inline constexpr std::int64_t kCStride = kBlockColumns + 16;

// One instruction set. A panel holds `columns` columns of B (rows of the [n, k] matrix) for up to
// kBlockK of k as [k / 2][columns] words; a word is a pair of bf16, the even k in the low half. So
// an fp32 operand is one shift (even k) or one mask (odd k) away.
struct TileKernel {
  const char* name;
  int rows;     // most rows of a tile, at most kMostTileRows
  int columns;  // two vectors
  bool (*supported)();
  // Fills a panel from b [valid, k] with row stride ldb; columns >= valid and an odd last k are 0.
  void (*pack)(const bf16* b, std::int64_t ldb, std::int64_t valid, std::int64_t k,
               std::uint32_t* panel);
  // c[r, 0..columns) (+)= sum over 2 * pairs of k in increasing k, r < `tile_rows`; starts from 0
  // when `first`. Row strides: kAStride and kCStride.
  void (*tile)(int tile_rows, std::int64_t pairs, const float* a, const std::uint32_t* panel,
               float* c, bool first);
};

extern const TileKernel kTilesAvx512;  // 14 x 32: 28 accumulators, 2 of B, 1 of A in 32 registers
extern const TileKernel kTilesAvx2;    // 6 x 16: 12 accumulators in 16 registers
extern const TileKernel kTilesPlain;   // 4 x 8, no intrinsics, no fused multiply-add

// Those this CPU can run, best first.
std::vector<const TileKernel*> SupportedTiles();
void RunTiles(const GemmBf16Nt& args, int threads, const TileKernel& tiles);

// Packing without intrinsics, for any panel width.
void PackPlain(const bf16* b, std::int64_t ldb, std::int64_t valid, std::int64_t k, int columns,
               std::uint32_t* panel);

}  // namespace assay::cpu
