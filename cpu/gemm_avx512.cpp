// AVX-512 tiles: 14 rows x 32 columns. 28 of the 32 registers accumulate; per k two registers hold
// B and one a broadcast of A, so 28 fused multiply-adds need 16 loads, well under two per cycle.
#include <immintrin.h>

#include "cpu/gemm_tiles.h"

namespace assay::cpu {
namespace {

constexpr int kRows = 14;
constexpr int kColumns = 32;
constexpr __mmask32 kOddHalves = 0xAAAAAAAAu;

template <int kTileRows>
__attribute__((target("avx512f,avx512bw"))) void Tile(std::int64_t pairs, const float* a,
                                                      const std::uint32_t* panel, float* c,
                                                      bool first) {
  __m512 sum[kTileRows][2];
#pragma GCC unroll 14
  for (int r = 0; r < kTileRows; ++r) {
    sum[r][0] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(c + r * kCStride);
    sum[r][1] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(c + r * kCStride + 16);
  }
  for (std::int64_t p = 0; p < pairs; ++p, a += 2, panel += kColumns) {
    const __m512 even0 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(panel), 16));
    const __m512 even1 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(panel + 16), 16));
#pragma GCC unroll 14
    for (int r = 0; r < kTileRows; ++r) {
      const __m512 x = _mm512_set1_ps(a[r * kAStride]);
      sum[r][0] = _mm512_fmadd_ps(x, even0, sum[r][0]);
      sum[r][1] = _mm512_fmadd_ps(x, even1, sum[r][1]);
    }
    // A masked load instead of an AND: the mask then costs no vector register.
    const __m512 odd0 = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(kOddHalves, panel));
    const __m512 odd1 = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(kOddHalves, panel + 16));
#pragma GCC unroll 14
    for (int r = 0; r < kTileRows; ++r) {
      const __m512 x = _mm512_set1_ps(a[r * kAStride + 1]);
      sum[r][0] = _mm512_fmadd_ps(x, odd0, sum[r][0]);
      sum[r][1] = _mm512_fmadd_ps(x, odd1, sum[r][1]);
    }
  }
#pragma GCC unroll 14
  for (int r = 0; r < kTileRows; ++r) {
    _mm512_storeu_ps(c + r * kCStride, sum[r][0]);
    _mm512_storeu_ps(c + r * kCStride + 16, sum[r][1]);
  }
}

void AnyTile(int tile_rows, std::int64_t pairs, const float* a, const std::uint32_t* panel,
             float* c, bool first) {
  using Function = void (*)(std::int64_t, const float*, const std::uint32_t*, float*, bool);
  static constexpr Function kTable[kRows] = {Tile<1>,  Tile<2>,  Tile<3>,  Tile<4>, Tile<5>,
                                             Tile<6>,  Tile<7>,  Tile<8>,  Tile<9>, Tile<10>,
                                             Tile<11>, Tile<12>, Tile<13>, Tile<14>};
  kTable[tile_rows - 1](pairs, a, panel, c, first);
}

// Transposes 16 rows of 16 words: b rows (stride ldb elements) become columns of the panel.
__attribute__((target("avx512f"))) void Transpose16(const bf16* b, std::int64_t ldb,
                                                    std::uint32_t* panel) {
  __m512i r[16], t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(b + i * ldb);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // r[4i + c]: word c of each 128-bit lane, rows 4i..4i+3
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {  // gather lane l of the four row groups: word 4l + c of all rows
    const __m512i low01 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
    const __m512i low23 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
    const __m512i high01 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xDD);
    const __m512i high23 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xDD);
    _mm512_storeu_si512(panel + c * kColumns, _mm512_shuffle_i32x4(low01, low23, 0x88));
    _mm512_storeu_si512(panel + (8 + c) * kColumns, _mm512_shuffle_i32x4(low01, low23, 0xDD));
    _mm512_storeu_si512(panel + (4 + c) * kColumns, _mm512_shuffle_i32x4(high01, high23, 0x88));
    _mm512_storeu_si512(panel + (12 + c) * kColumns, _mm512_shuffle_i32x4(high01, high23, 0xDD));
  }
}

void Pack(const bf16* b, std::int64_t ldb, std::int64_t valid, std::int64_t k,
          std::uint32_t* panel) {
  std::int64_t done = 0;  // elements of k
  if (valid == kColumns) {
    for (; done + 32 <= k; done += 32) {
      Transpose16(b + done, ldb, panel + done / 2 * kColumns);
      Transpose16(b + 16 * ldb + done, ldb, panel + done / 2 * kColumns + 16);
    }
  }
  if (done < k) {
    PackPlain(b + done, ldb, valid, k - done, kColumns, panel + done / 2 * kColumns);
  }
}

bool Supported() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0;
}

}  // namespace

const TileKernel kTilesAvx512 = {"avx512", kRows, kColumns, Supported, Pack, AnyTile};

}  // namespace assay::cpu
