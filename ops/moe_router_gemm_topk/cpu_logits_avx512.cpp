// The logits kernel for AVX-512. Standard headers come before the pragma, so that no inline
// function of theirs is compiled for it.
#if defined(__x86_64__)
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "ops/moe_router_gemm_topk/cpu_logits.h"

#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma")
#define ASSAY_LANES 16
#include "ops/moe_router_gemm_topk/cpu_logits_lanes.h"

namespace assay::moe_router_gemm_topk {

void LogitsAvx512(const LogitsTask& task) { ComputeLogits<cpu::WidenedPairs>(task); }

}  // namespace assay::moe_router_gemm_topk
#endif
