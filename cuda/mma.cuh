// mma.sync: matrix instructions of one warp with operands in registers. Fragments as ldmatrix loads
// them: lane l holds, in a[0..3], elements k = 2 (l % 4) and the next of rows l / 4, l / 4 + 8 (k),
// then the same rows at k + 8; in b0 and b1 elements k = 2 (l % 4) and the next, and those at k +
// 8, of column l / 4; in d[0..1] columns 2 (l % 4) and the next of row l / 4, in d[2..3] of row l /
// 4 + 8.
#pragma once

#include <cstdint>

namespace assay::sm90 {

// D[16, 8] += A[16, 16] B[16, 8]: fp16 operands, fp32 sums.
__device__ inline void MmaF16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                              std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace assay::sm90
