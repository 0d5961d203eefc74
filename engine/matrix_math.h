// The matrix products of a step, behind one interface with two arithmetics. In both, the bits of an
// output depend on its own operands alone: not on how many rows, outputs or tasks there are.
#pragma once

#include <cstdint>
#include <memory>

#include "base/dtype.h"
#include "engine/model.h"

namespace assay::engine {

class MatrixMath {
 public:
  virtual ~MatrixMath() = default;

  // y[r * y_stride + i - n0] = sum_k W[i, k] x[r * x_stride + k] for rows r < rows and n0 <= i <
  // n1. Scaled formats: fp32 partial sums per 128-wide block times the block's scale, blocks
  // ascending (FP8); one multiplication at the end (NVFP4).
  virtual void Linear(const Matrix& w, std::int64_t n0, std::int64_t n1, const bf16* x,
                      std::int64_t x_stride, std::int64_t rows, float* y,
                      std::int64_t y_stride) const = 0;

  // y[j] = sum_k x[k] rows[j][k] for j < count.
  virtual void Dots(const bf16* x, const bf16* const* rows, std::int64_t count, std::int64_t k,
                    float* y) const = 0;

  // y[i] = sum_j x[j] rows[j][i] for i < n: j is the summed dimension, `count` long.
  virtual void Combine(const bf16* x, const bf16* const* rows, std::int64_t count, std::int64_t n,
                       float* y) const = 0;
};

// Bit for bit what a Hopper tensor core computes when K is walked in ascending blocks of 16 through
// one accumulator (kv and value sums: one accumulator per chunk of tokens).
std::unique_ptr<MatrixMath> MakeTensorCoreMath();
// Ordinary fp32 multiply-adds in vector lanes: fast, and as accurate.
std::unique_ptr<MatrixMath> MakeFastMath();

}  // namespace assay::engine
