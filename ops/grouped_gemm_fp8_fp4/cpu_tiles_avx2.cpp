// The tile kernel for AVX2 and FMA. Standard headers come before the pragma, so that no inline
// function of theirs is compiled for it.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ops/grouped_gemm_fp8_fp4/cpu_tiles.h"
#include "ops/grouped_gemm_fp8_fp4/spec.h"

#pragma GCC target("avx2,fma")
#define ASSAY_LANES 8
#include "ops/grouped_gemm_fp8_fp4/cpu_tiles_lanes.h"

namespace assay::grouped_gemm_fp8_fp4 {
namespace {

// Magnitudes by a permutation of eight table entries, which looks at three index bits; signs by
// shifts.
struct Avx2 : cpu::WidenedPairs {
  static constexpr bool kDecodesInRegisters = false;
  [[gnu::always_inline]] static void DecodeGroup(const std::uint8_t* bytes, std::uint8_t scale,
                                                 Pairs* out) {
    const auto load = [](const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); };
    const __m256i table = _mm256_cvtepu16_epi32(load(scaled_codes.bits[scale]));
    const __m128i both = load(bytes);
    for (int half = 0; half < 2; ++half) {
      const __m256i codes = _mm256_cvtepu8_epi32(half == 0 ? both : _mm_srli_si128(both, 8));
      const __m256i even = _mm256_permutevar8x32_epi32(table, codes);
      const __m256i odd = _mm256_permutevar8x32_epi32(table, _mm256_srli_epi32(codes, 4));
      const __m256i even_sign =
          _mm256_and_si256(_mm256_slli_epi32(codes, 12), _mm256_set1_epi32(0x8000));
      const __m256i odd_sign =
          _mm256_slli_epi32(_mm256_srli_epi32(codes, 7), 31);  // bit 7 of the byte
      out[half] = reinterpret_cast<Pairs>(_mm256_or_si256(
          _mm256_or_si256(even, _mm256_slli_epi32(odd, 16)), _mm256_or_si256(even_sign, odd_sign)));
    }
  }
};

}  // namespace

void RunTilesAvx2(const TileTask& task, TileScratch& scratch) { RunTiles<Avx2>(task, scratch); }

}  // namespace assay::grouped_gemm_fp8_fp4
#endif
