// wgmma: matrix instructions of a warpgroup (128 threads, first warp a multiple of 4), bf16
// operands in shared memory, fp32 accumulators in registers: D[64, N] += A[64, 16] B[N, 16]^T.
// Order of use: WgmmaFence, any number of Wgmma, WgmmaCommitGroup, WgmmaWaitGroup; the accumulators
// may not be touched between the first and the last.
#pragma once

#include <cstdint>

#include "cuda/mbarrier.cuh"
#include "cuda/wgmma_operands.cuh"

namespace assay::sm90 {

// wgmma.fence: before the first wgmma, and whenever registers or (after a proxy fence) shared
// memory were written by ordinary instructions.
__device__ inline void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }

__device__ inline void WgmmaCommitGroup() {
  asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}

// Until at most kPending groups are in flight.
template <int kPending>
__device__ inline void WgmmaWaitGroup() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kPending) : "memory");
}

// Matrix descriptor of a K-major operand (rows of 64 bf16 = 128 bytes, one after the other) with
// 128-byte swizzle, as TMA writes it: bits 0-13 address / 16, 16-29 leading offset / 16 (unused
// with swizzle), 32-45 stride between groups of 8 rows / 16 (1024 bytes), 62-63 swizzle mode (1 =
// 128 B). `tile` is 1024-byte aligned. The k-th step of 16 elements is descriptor + 2 k (32 bytes).
__device__ inline std::uint64_t WgmmaDescriptor(const void* tile) {
  return ((SharedAddress(tile) & 0x3FFFFu) >> 4) | (std::uint64_t{1} << 16) |
         (std::uint64_t{1024 >> 4} << 32) | (std::uint64_t{1} << 62);
}

// Keeps the compiler from moving uses of accumulators or operands across a fence or a wait: the
// asynchronous instructions read and write them behind its back.
template <int kCount>
__device__ inline void WgmmaFenceOperand(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int kCount>
__device__ inline void WgmmaFenceOperand(std::uint32_t (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(values[i])::"memory");
}
template <int kRows, int kCount>
__device__ inline void WgmmaFenceOperand(std::uint32_t (&values)[kRows][kCount]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) WgmmaFenceOperand(values[i]);
}

// Matrix descriptor of a row-major B: rows (k) of 64 columns = 128 bytes with the 128-byte swizzle,
// further columns in chunks of 64 that lie `chunk_bytes` apart. Bits 16-29: distance of chunks /
// 16, 32-45: distance of groups of 8 rows / 16. The k-th step of 16 rows is descriptor + 128 k.
__device__ inline std::uint64_t WgmmaRowMajorDescriptor(const void* tile,
                                                        std::uint32_t chunk_bytes) {
  return ((SharedAddress(tile) & 0x3FFFFu) >> 4) |
         (static_cast<std::uint64_t>(chunk_bytes >> 4) << 16) | (std::uint64_t{1024 >> 4} << 32) |
         (std::uint64_t{1} << 62);
}

// wgmma.mma_async m64nNk16, N = twice the array's length. Accumulators: float 4j + 2h + i of lane l
// of warp w is row 16 w + l / 4 + 8 h, column 8 j + 2 (l % 4) + i. `accumulate` false: D = A B^T.
__device__ inline void Wgmma(float (&d)[32], std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.b32 p, %34, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16\n\t"
      "{" ASSAY_WGMMA_NUMBERS_32
      "},\n\t"
      "%32, %33, p, 1, 1, 0, 0;\n\t"
      "}"
      : ASSAY_WGMMA_FLOATS_32(d, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

__device__ inline void Wgmma(float (&d)[64], std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.b32 p, %66, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16\n\t"
      "{" ASSAY_WGMMA_NUMBERS_64
      "},\n\t"
      "%64, %65, p, 1, 1, 0, 0;\n\t"
      "}"
      : ASSAY_WGMMA_FLOATS_64(d, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

__device__ inline void Wgmma(float (&d)[80], std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.b32 p, %82, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16\n\t"
      "{" ASSAY_WGMMA_NUMBERS_80
      "},\n\t"
      "%80, %81, p, 1, 1, 0, 0;\n\t"
      "}"
      : ASSAY_WGMMA_FLOATS_64(d, 0), ASSAY_WGMMA_FLOATS_16(d, 64)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

__device__ inline void Wgmma(float (&d)[88], std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.b32 p, %90, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n176k16.f32.bf16.bf16\n\t"
      "{" ASSAY_WGMMA_NUMBERS_88
      "},\n\t"
      "%88, %89, p, 1, 1, 0, 0;\n\t"
      "}"
      : ASSAY_WGMMA_FLOATS_64(d, 0), ASSAY_WGMMA_FLOATS_16(d, 64), ASSAY_WGMMA_FLOATS_8(d, 80)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

__device__ inline void Wgmma(float (&d)[96], std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.b32 p, %98, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16\n\t"
      "{" ASSAY_WGMMA_NUMBERS_96
      "},\n\t"
      "%96, %97, p, 1, 1, 0, 0;\n\t"
      "}"
      : ASSAY_WGMMA_FLOATS_64(d, 0), ASSAY_WGMMA_FLOATS_32(d, 64)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

__device__ inline void Wgmma(float (&d)[128], std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.b32 p, %130, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16\n\t"
      "{" ASSAY_WGMMA_NUMBERS_128
      "},\n\t"
      "%128, %129, p, 1, 1, 0, 0;\n\t"
      "}"
      : ASSAY_WGMMA_FLOATS_64(d, 0), ASSAY_WGMMA_FLOATS_64(d, 64)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

}  // namespace assay::sm90
