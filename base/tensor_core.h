// What one Hopper matrix instruction computes, bit for bit, on the CPU.
// docs/tensor-core-arithmetic.md states the rule, how it was measured and what it means for
// kernels.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"

namespace assay {

// Operand formats of matrix instructions. tf32 is stored as fp32; its low 13 bits are ignored.
enum class Operand : std::uint8_t { kBF16, kF16, kTF32, kE4M3, kE5M2 };

int OperandBytes(Operand operand);

// D[m, n] = A[m, k] * B[n, k]^T + C[m, n] with fp32 C and D; both operands run along k in memory.
// Every one of them takes 32 bytes of k.
struct MatrixInstruction {
  std::string_view name;  // as in PTX, without the qualifiers that are always the same
  Operand a, b;
  bool warpgroup;  // wgmma (m = 64), else mma.sync (m = 16)

  static constexpr int kBytes = 32;
  static constexpr int n = 8;
  int m() const { return warpgroup ? 64 : 16; }
  int k() const { return kBytes / OperandBytes(a); }
};

// All instructions that the model covers.
std::span<const MatrixInstruction> MatrixInstructions();
const MatrixInstruction* FindMatrixInstruction(std::string_view name);  // null when not covered

// The hardware adds blocks of terms: products are exact, terms are truncated to a grid of
// 2^(largest exponent - grid_bits), added exactly, and the sum is truncated to `significant_bits`.
struct TensorCoreRule {
  Operand a, b;
  int block = 16;  // products of one block
  int grid_bits = 25;
  int significant_bits = 24;
  // mma.sync of 8-bit formats, which Hopper does not have: the compiler makes it two f16 blocks,
  // first the elements 0 and 1 of every four, then 2 and 3, starting from zero, and adds the
  // accumulator with an ordinary fp32 addition.
  bool emulated = false;

  bool operator==(const TensorCoreRule&) const = default;
};

TensorCoreRule RuleOf(const MatrixInstruction& instruction);

// One block: `rule.block` elements of A and of B (storage codes, contiguous) and the accumulator.
float TensorCoreBlock(const TensorCoreRule& rule, const void* a, const void* b, float c);

// A chain of blocks over `k` elements in increasing order: a kernel whose accumulator walks k
// without splitting it. The last block is filled with zeros when `k` is no multiple.
float TensorCoreDot(const TensorCoreRule& rule, const void* a, const void* b, std::int64_t k,
                    float c = 0);

}  // namespace assay
