// How AVX-512 decodes weights. Included like cpu_tiles_lanes.h.
#pragma once

namespace assay::grouped_gemm_fp8_fp4 {
namespace {

// A byte hl becomes the word pair (l, h) of table indices: hl | hl << 12 holds l in the low five
// bits of its low half (under one bit of h, which the doubled table ignores) and h in the high
// half.
struct PermutedCodes {
  static constexpr bool kDecodesInRegisters = true;
  [[gnu::always_inline]] static void DecodeGroup(const std::uint8_t* bytes, std::uint8_t scale,
                                                 Pairs* out) {
    const __m512i codes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    const __m512i indices = _mm512_or_si512(codes, _mm512_slli_epi32(codes, 12));
    const __m512i table = _mm512_load_si512(scaled_codes.bits[scale]);
    *out = reinterpret_cast<Pairs>(_mm512_permutexvar_epi16(indices, table));
  }
};

}  // namespace
}  // namespace assay::grouped_gemm_fp8_fp4
