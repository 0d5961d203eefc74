// Tiles without intrinsics: what runs on a CPU older than 2013 or not from the x86 family.
#include <algorithm>
#include <cstring>

#include "cpu/gemm_tiles.h"

namespace assay::cpu {
namespace {

constexpr int kRows = 4;
constexpr int kColumns = 8;

// No fused multiply-add here, yet the same bits as the vector tiles: a product of two bf16 has 16
// significant bits and is exact in fp32 (unless it underflows).
void Tile(int tile_rows, std::int64_t pairs, const float* a, const std::uint32_t* panel, float* c,
          bool first) {
  float sum[kRows][kColumns] = {};
  for (int r = 0; r < tile_rows && !first; ++r) std::copy_n(c + r * kCStride, kColumns, sum[r]);
  for (std::int64_t p = 0; p < pairs; ++p, a += 2, panel += kColumns) {
    float even[kColumns], odd[kColumns];
    for (int j = 0; j < kColumns; ++j) {
      even[j] = std::bit_cast<float>(panel[j] << 16);
      odd[j] = std::bit_cast<float>(panel[j] & 0xFFFF0000u);
    }
    for (int r = 0; r < tile_rows; ++r) {
      for (int j = 0; j < kColumns; ++j) sum[r][j] += a[r * kAStride] * even[j];
      for (int j = 0; j < kColumns; ++j) sum[r][j] += a[r * kAStride + 1] * odd[j];
    }
  }
  for (int r = 0; r < tile_rows; ++r) std::copy_n(sum[r], kColumns, c + r * kCStride);
}

void Pack(const bf16* b, std::int64_t ldb, std::int64_t valid, std::int64_t k,
          std::uint32_t* panel) {
  PackPlain(b, ldb, valid, k, kColumns, panel);
}

bool Supported() { return true; }

}  // namespace

const TileKernel kTilesPlain = {"plain", kRows, kColumns, Supported, Pack, Tile};

void PackPlain(const bf16* b, std::int64_t ldb, std::int64_t valid, std::int64_t k, int columns,
               std::uint32_t* panel) {
  constexpr std::int64_t kPairs = 32;  // 32 pairs of a column, then the next: writes stay in L1
  const std::int64_t whole_pairs = k / 2;
  for (std::int64_t first = 0; first < whole_pairs; first += kPairs) {
    const std::int64_t last = std::min(first + kPairs, whole_pairs);
    for (std::int64_t j = 0; j < columns; ++j) {
      for (std::int64_t p = first; p < last; ++p) {
        std::uint32_t pair = 0;
        if (j < valid) std::memcpy(&pair, b + j * ldb + 2 * p, sizeof pair);
        panel[p * columns + j] = pair;
      }
    }
  }
  if (k % 2 == 0) return;
  for (std::int64_t j = 0; j < columns; ++j) {
    panel[whole_pairs * columns + j] = j < valid ? b[j * ldb + k - 1].bits : 0u;
  }
}

}  // namespace assay::cpu
