// What one call of the CPU row kernel does, and its builds for each instruction set.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace assay::gdn_decode {

// Rows [row_begin, row_end) of one (n, h); both are multiples of 32.
struct RowTask {
  const bf16* q = nullptr;       // [128]
  const bf16* k = nullptr;       // [128]
  const bf16* v = nullptr;       // [128]
  const float* state = nullptr;  // [128 (V), 128 (K)], null = zeros
  float g = 0, beta = 0, scale = 0;
  bf16* output = nullptr;      // [128]
  float* new_state = nullptr;  // [128 (V), 128 (K)], may be `state`
  std::int64_t row_begin = 0, row_end = 0;
};

void StepRowsBaseline(const RowTask& task);
void StepRowsAvx2(const RowTask& task);
void StepRowsAvx512(const RowTask& task);

}  // namespace assay::gdn_decode
