// AVX512-BF16 for cpu/dot_tiles.h: a pair of products a lane and instruction, exact products, fp32
// sums. The instruction takes subnormal operands as 0. Included like cpu/dot_tiles.h, where the
// target has avx512bf16 and ASSAY_LANES is 16, after <immintrin.h>.
#pragma once

#include "cpu/dot_tiles.h"

namespace assay::cpu {
namespace {

struct Bf16Dots {
  static constexpr int kTileRows = 6;
  static constexpr int kParts = 1;
  [[gnu::always_inline]] static Pairs Part(int, Pairs x) { return x; }
  [[gnu::always_inline]] static Floats MultiplyAdd(Floats sum, Pairs a, Pairs b) {
    return reinterpret_cast<Floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum),
                                                     reinterpret_cast<__m512bh>(a),
                                                     reinterpret_cast<__m512bh>(b)));
  }
};

}  // namespace
}  // namespace assay::cpu
