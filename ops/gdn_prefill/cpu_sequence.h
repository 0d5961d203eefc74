// What one call of the CPU sequence kernel does, and its builds for each instruction set.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace assay::gdn_prefill {

// Rows [row_begin, row_end) of the state of one (s, h) over all tokens of s; both are multiples of
// 32. Pointers are at the sequence's first token and at the head's first element.
struct SequenceTask {
  std::int64_t tokens = 0;  // >= 1
  const bf16* q = nullptr;  // [tokens, 128], row stride 4 * 128
  const bf16* k = nullptr;  // [tokens, 128], row stride 4 * 128
  const bf16* v = nullptr;  // [tokens, 128], row stride 8 * 128
  const bf16* a = nullptr;  // [tokens], stride 8
  const bf16* b = nullptr;  // [tokens], stride 8
  float a_log = 0, dt_bias = 0, scale = 0;
  const float* state = nullptr;  // [128 (V), 128 (K)], null = zeros
  bf16* output = nullptr;        // [tokens, 128], row stride 8 * 128
  float* new_state = nullptr;    // [128 (V), 128 (K)], may be `state`
  std::int64_t row_begin = 0, row_end = 0;
};

void RunSequenceBaseline(const SequenceTask& task);
void RunSequenceAvx2(const SequenceTask& task);
void RunSequenceAvx512(const SequenceTask& task);

}  // namespace assay::gdn_prefill
