// The two block-scaled row formats of the latent cache (512 dims each) and their bytes in a page.
//
//   V41      512 e4m3 codes, 16 ue8m0 scales of 32 dims each
//   V41_FP4  512 e2m1 codes, two a byte, low nibble = even dim; 32 e4m3 scales of 16 dims each
//
// A page is planar: the codes of all its tokens, then the scales of all its tokens. Encoders are
// for generators, decoders for kernels and generators; the reference decodes on its own.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace assay::mla {

inline constexpr std::int64_t kHeads = 64;
inline constexpr std::int64_t kDim = 512;  // of a query, of a latent row and of an output

struct RowFormat {
  const char* tag;
  std::int64_t data_bytes, scale_bytes;  // of one token

  constexpr std::int64_t token_bytes() const { return data_bytes + scale_bytes; }
  constexpr std::int64_t data_at(std::int64_t token) const { return token * data_bytes; }
  constexpr std::int64_t scale_at(std::int64_t token, std::int64_t page_tokens) const {
    return page_tokens * data_bytes + token * scale_bytes;
  }
};
inline constexpr RowFormat kV41{"V41", 512, 16};
inline constexpr RowFormat kV41Fp4{"V41_FP4", 256, 32};

// x[512] -> codes and scales; smallest scale that holds the group's largest magnitude, codes to
// nearest even. Same bits on every machine.
void EncodeV41(const float* x, std::uint8_t* data, std::uint8_t* scales);
void EncodeV41Fp4(const float* x, std::uint8_t* data, std::uint8_t* scales);

// Exact in bf16 for V41_FP4, and for V41 when FitsBF16. NaN codes give NaN.
void DecodeV41(const std::uint8_t* data, const std::uint8_t* scales, bf16* out);
void DecodeV41Fp4(const std::uint8_t* data, const std::uint8_t* scales, bf16* out);
// Exact for every scale byte, unless the product is beyond fp32.
void DecodeV41(const std::uint8_t* data, const std::uint8_t* scales, float* out);

// True when all 16 scale bytes are 10..246: then every code times its scale is a normal bf16 number
// or 0. (Below 10 some products are subnormal, which hardware bf16 products flush; above 246 the
// largest code overflows.)
bool FitsBF16(const std::uint8_t* scales);

}  // namespace assay::mla
