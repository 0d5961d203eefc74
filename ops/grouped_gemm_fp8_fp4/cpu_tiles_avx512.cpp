// The tile kernel for AVX-512. Standard headers come before the pragma, so that no inline function
// of theirs is compiled for it.
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

#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma")
#define ASSAY_LANES 16
#include "ops/grouped_gemm_fp8_fp4/cpu_tiles_lanes.h"
#include "ops/grouped_gemm_fp8_fp4/cpu_tiles_vpermw.h"

namespace assay::grouped_gemm_fp8_fp4 {
namespace {

struct Avx512 : cpu::WidenedPairs, PermutedCodes {};

}  // namespace

void RunTilesAvx512(const TileTask& task, TileScratch& scratch) { RunTiles<Avx512>(task, scratch); }

}  // namespace assay::grouped_gemm_fp8_fp4
#endif
