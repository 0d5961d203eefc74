// The logits kernel for AVX-512 with bf16 dot products. Standard headers come before the pragma, so
// that no inline function of theirs is compiled for it.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "ops/moe_router_gemm_topk/cpu_logits.h"

#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,fma")
#define ASSAY_LANES 16
#include "cpu/bf16_dots.h"
#include "ops/moe_router_gemm_topk/cpu_logits_lanes.h"

namespace assay::moe_router_gemm_topk {

void LogitsAvx512Bf16(const LogitsTask& task) { ComputeLogits<cpu::Bf16Dots>(task); }

}  // namespace assay::moe_router_gemm_topk
#endif
