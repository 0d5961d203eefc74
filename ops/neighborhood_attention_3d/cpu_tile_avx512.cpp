// The tile step compiled for AVX-512 without bf16 products. Standard headers come before the
// pragma, so that no inline function of theirs is compiled for it.
#if defined(__x86_64__)
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "ops/neighborhood_attention_3d/cpu_tile.h"

#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma")
#define ASSAY_LANES 16
#include "ops/neighborhood_attention_3d/cpu_tile_fp32.h"

namespace assay::neighborhood_attention_3d {

const TileLeaf& Avx512Leaf() {
  static constexpr TileLeaf kLeaf = Fp32Leaf("avx512");
  return kLeaf;
}

}  // namespace assay::neighborhood_attention_3d
#endif
