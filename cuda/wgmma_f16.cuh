// wgmma on fp16 with the first operand in registers: D[64, N] += A[64, 16] B, fp32 sums. Rules of
// use and accumulators as in wgmma.cuh.
#pragma once

#include "cuda/wgmma.cuh"
#include "cuda/wgmma_operands.cuh"

namespace assay::sm90 {

// A: fragment of 16 rows per warp as in mma.cuh. B as WgmmaDescriptor says, [N, K].
__device__ inline void WgmmaHalf(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b,
                                 bool accumulate) {
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.b32 p, %37, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16\n\t"
      "{" ASSAY_WGMMA_NUMBERS_32
      "},\n\t"
      "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n\t"
      "}"
      : ASSAY_WGMMA_FLOATS_32(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

// B as WgmmaRowMajorDescriptor says, [K, N].
__device__ inline void WgmmaHalfRowMajor(float (&d)[64], const std::uint32_t (&a)[4],
                                         std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.b32 p, %69, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16\n\t"
      "{" ASSAY_WGMMA_NUMBERS_64
      "},\n\t"
      "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n\t"
      "}"
      : ASSAY_WGMMA_FLOATS_64(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

}  // namespace assay::sm90
