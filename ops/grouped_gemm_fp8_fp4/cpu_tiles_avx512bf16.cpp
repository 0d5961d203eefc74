// The tile kernel for AVX-512 with bf16 dot products: 64 flops an instruction instead of 32.
// Standard headers come before the pragma, so that no inline function of theirs is compiled for it.
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

#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,fma")
#define ASSAY_LANES 16
#include "cpu/bf16_dots.h"
#include "ops/grouped_gemm_fp8_fp4/cpu_tiles_lanes.h"
#include "ops/grouped_gemm_fp8_fp4/cpu_tiles_vpermw.h"

namespace assay::grouped_gemm_fp8_fp4 {
namespace {

struct Avx512Bf16 : cpu::Bf16Dots, PermutedCodes {};

}  // namespace

void RunTilesAvx512Bf16(const TileTask& task, TileScratch& scratch) {
  RunTiles<Avx512Bf16>(task, scratch);
}

}  // namespace assay::grouped_gemm_fp8_fp4
#endif
