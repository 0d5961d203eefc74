// wgmma whose first operand is in registers and whose second is row-major in shared memory, as the
// product P V of attention needs it: D[64, N] += A[64, 16] B[16, N]. Rules of use as in wgmma.cuh.
#pragma once

#include "cuda/wgmma.cuh"
#include "cuda/wgmma_operands.cuh"

namespace assay::sm90 {

// A: words {row l / 4, row l / 4 + 8} x {columns 2 (l % 4) and the next, the same + 8} of lane l,
// in the order (0, 0), (1, 0), (0, 1), (1, 1): accumulators 8 s .. 8 s + 7 of a wgmma, packed in
// pairs, are the operand of step s. B as WgmmaRowMajorDescriptor says.
__device__ inline void WgmmaValues(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b,
                                   bool accumulate) {
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.b32 p, %37, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n\t"
      "{" ASSAY_WGMMA_NUMBERS_32
      "},\n\t"
      "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n\t"
      "}"
      : ASSAY_WGMMA_FLOATS_32(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

__device__ inline void WgmmaValues(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b,
                                   bool accumulate) {
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.b32 p, %69, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n\t"
      "{" ASSAY_WGMMA_NUMBERS_64
      "},\n\t"
      "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n\t"
      "}"
      : ASSAY_WGMMA_FLOATS_64(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

}  // namespace assay::sm90
