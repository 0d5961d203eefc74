// The bf16 GEMM seam of the CPU backends: oneDNN when it was found at build time, own loops
// otherwise.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace assay::cpu {

// C[m,n] = round_bf16(sum_k A[m,k] * B[n,k]), fp32 accumulation over the whole K, row strides in
// elements, `threads` as in ParallelRanges. Results do not depend on the thread count.
struct GemmBf16Nt {
  std::int64_t m = 0, n = 0, k = 0;
  const bf16* a = nullptr;  // [m, k], row stride lda
  std::int64_t lda = 0;
  const bf16* b = nullptr;  // [n, k], row stride ldb
  std::int64_t ldb = 0;
  bf16* c = nullptr;  // [m, n], row stride ldc, overwritten
  std::int64_t ldc = 0;
};

void Run(const GemmBf16Nt& args, int threads);          // the faster of the two below
void RunOwnLoops(const GemmBf16Nt& args, int threads);  // always built and tested

}  // namespace assay::cpu
