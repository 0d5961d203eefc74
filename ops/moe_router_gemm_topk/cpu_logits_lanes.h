// The logits kernel on vectors. Included by the translation unit of one instruction set
// (cpu/lanes.h, cpu/dot_tiles.h).
#pragma once

#include <algorithm>

#include "cpu/dot_tiles.h"
#include "ops/moe_router_gemm_topk/cpu_logits.h"

namespace assay::moe_router_gemm_topk {
namespace {

// 8 rows of W x 1280 of k in bf16 are 20 KB and stay in L1 with a tile of x (6 x 1280 = 15 KB)
// while all rows of the task pass. Few rows pass once: their sums then cover the whole k.
constexpr std::int64_t kBlockExperts = 8;
constexpr std::int64_t kBlockK = 1280;

template <class Isa>
void ComputeLogits(const LogitsTask& task) {
  alignas(64) thread_local cpu::Floats sums[kMostTaskRows * kBlockExperts];
  const std::int64_t block_k = task.rows <= Isa::kTileRows ? task.k : kBlockK;
  for (std::int64_t e = 0; e < task.experts; e += kBlockExperts) {
    const std::int64_t experts = std::min(kBlockExperts, task.experts - e);
    for (std::int64_t k0 = 0; k0 < task.k; k0 += block_k) {
      cpu::AddBlock<Isa>(task.rows, experts, std::min(block_k, task.k - k0), task.x + k0, task.ldx,
                         task.w + e * task.k + k0, task.k, sums, k0 == 0);
    }
    for (std::int64_t r = 0; r < task.rows; ++r) {
      for (std::int64_t i = 0; i < experts; i += cpu::kTileColumns) {
        cpu::SumLanes(sums + r * experts + i, task.logits + r * task.ldl + e + i);
      }
    }
  }
}

}  // namespace
}  // namespace assay::moe_router_gemm_topk
