// What one call of the CPU logits kernel does, and its builds for each instruction set.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace assay::moe_router_gemm_topk {

inline constexpr std::int64_t kMostTaskRows = 60;

// Rows of x times rows of W.
struct LogitsTask {
  std::int64_t k = 0;       // a multiple of 64
  std::int64_t rows = 0;    // 1 .. kMostTaskRows
  const bf16* x = nullptr;  // [rows, k], row stride ldx
  std::int64_t ldx = 0;
  std::int64_t experts = 0;  // a multiple of 4
  const bf16* w = nullptr;   // [experts, k]
  float* logits = nullptr;   // [rows, experts], row stride ldl
  std::int64_t ldl = 0;
};

void LogitsBaseline(const LogitsTask& task);
void LogitsAvx2(const LogitsTask& task);
void LogitsAvx512(const LogitsTask& task);
void LogitsAvx512Bf16(const LogitsTask& task);

}  // namespace assay::moe_router_gemm_topk
