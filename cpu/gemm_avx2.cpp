// AVX2 tiles: 6 rows x 16 columns, 12 accumulators, as 16 registers allow.
#include <immintrin.h>

#include "cpu/gemm_tiles.h"

namespace assay::cpu {
namespace {

constexpr int kRows = 6;
constexpr int kColumns = 16;

template <int kTileRows>
__attribute__((target("avx2,fma"))) void Tile(std::int64_t pairs, const float* a,
                                              const std::uint32_t* panel, float* c, bool first) {
  __m256 sum[kTileRows][2];
#pragma GCC unroll 6
  for (int r = 0; r < kTileRows; ++r) {
    sum[r][0] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(c + r * kCStride);
    sum[r][1] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(c + r * kCStride + 8);
  }
  const __m256i zero = _mm256_setzero_si256();
  for (std::int64_t p = 0; p < pairs; ++p, a += 2, panel += kColumns) {
    const auto* words = reinterpret_cast<const __m256i*>(panel);
    const __m256i word0 = _mm256_loadu_si256(words), word1 = _mm256_loadu_si256(words + 1);
    const __m256 even0 = _mm256_castsi256_ps(_mm256_slli_epi32(word0, 16));
    const __m256 even1 = _mm256_castsi256_ps(_mm256_slli_epi32(word1, 16));
#pragma GCC unroll 6
    for (int r = 0; r < kTileRows; ++r) {
      const __m256 x = _mm256_broadcast_ss(a + r * kAStride);
      sum[r][0] = _mm256_fmadd_ps(x, even0, sum[r][0]);
      sum[r][1] = _mm256_fmadd_ps(x, even1, sum[r][1]);
    }
    const __m256 odd0 = _mm256_castsi256_ps(_mm256_blend_epi16(zero, word0, 0xAA));
    const __m256 odd1 = _mm256_castsi256_ps(_mm256_blend_epi16(zero, word1, 0xAA));
#pragma GCC unroll 6
    for (int r = 0; r < kTileRows; ++r) {
      const __m256 x = _mm256_broadcast_ss(a + r * kAStride + 1);
      sum[r][0] = _mm256_fmadd_ps(x, odd0, sum[r][0]);
      sum[r][1] = _mm256_fmadd_ps(x, odd1, sum[r][1]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kTileRows; ++r) {
    _mm256_storeu_ps(c + r * kCStride, sum[r][0]);
    _mm256_storeu_ps(c + r * kCStride + 8, sum[r][1]);
  }
}

void AnyTile(int tile_rows, std::int64_t pairs, const float* a, const std::uint32_t* panel,
             float* c, bool first) {
  using Function = void (*)(std::int64_t, const float*, const std::uint32_t*, float*, bool);
  static constexpr Function kTable[kRows] = {Tile<1>, Tile<2>, Tile<3>, Tile<4>, Tile<5>, Tile<6>};
  kTable[tile_rows - 1](pairs, a, panel, c, first);
}

void Pack(const bf16* b, std::int64_t ldb, std::int64_t valid, std::int64_t k,
          std::uint32_t* panel) {
  PackPlain(b, ldb, valid, k, kColumns, panel);
}

bool Supported() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
}

}  // namespace

const TileKernel kTilesAvx2 = {"avx2", kRows, kColumns, Supported, Pack, AnyTile};

}  // namespace assay::cpu
