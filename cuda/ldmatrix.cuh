// ldmatrix and stmatrix: four 8x8 matrices of 16-bit elements between shared memory and a warp.
// Lane l gives the address of row l % 8 of matrix l / 8 (16 bytes, 16-byte aligned) and holds, in
// word i, elements 2 * (l % 4) and the next of row l / 4 of matrix i. Addresses as pointers, or as
// SharedAddress gives them: inner loops count in 32 bits.
#pragma once

#include <cstdint>

#include "cuda/mbarrier.cuh"

namespace assay::sm90 {

__device__ inline void LdMatrixX4(std::uint32_t (&words)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}
__device__ inline void LdMatrixX4(std::uint32_t (&words)[4], const void* row) {
  LdMatrixX4(words, SharedAddress(row));
}

// Each matrix transposed on the way.
__device__ inline void LdMatrixX4Trans(std::uint32_t (&words)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}
__device__ inline void LdMatrixX4Trans(std::uint32_t (&words)[4], const void* row) {
  LdMatrixX4Trans(words, SharedAddress(row));
}

__device__ inline void StMatrixX4(std::uint32_t row, const std::uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(row), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
__device__ inline void StMatrixX4(void* row, const std::uint32_t (&words)[4]) {
  StMatrixX4(SharedAddress(row), words);
}

__device__ inline void StMatrixX4Trans(std::uint32_t row, const std::uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(row), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
__device__ inline void StMatrixX4Trans(void* row, const std::uint32_t (&words)[4]) {
  StMatrixX4Trans(SharedAddress(row), words);
}

}  // namespace assay::sm90
