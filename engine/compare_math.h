// Both arithmetics of matrix products on the same operands, output by output: what the fast one may
// differ by from the tensor core's, and where it differs most.
#pragma once

#include <cstdint>

#include "engine/matrix_math.h"

namespace assay::engine {

// What outputs may differ by: one ulp of bf16 of the tensor core's output plus this share of
// sum |w x|. It holds for the products of a model, not for any operands whatever: see
// ProductBound.
inline constexpr double kProductShare = 0x1p-16;

// Share of sum |w x| within which both agree for any finite operands of length k (no overflow, no
// underflow). A block of 16 products and the accumulator loses at most 17 steps of a grid of 2^-25
// and one of 2^-23 of its largest magnitude; every addition of the fast sum that an operand passes
// (`fast_roundings`) loses 2^-24; scaled formats multiply and add once more per block of 128.
double ProductBound(std::int64_t k, std::int64_t fast_roundings);

struct ProductComparison {
  std::int64_t products = 0;  // outputs compared
  std::int64_t beyond = 0;    // of them beyond the first bound above
  double worst = 0;           // largest difference as a share of that bound
  double worst_proven = 0;    // and as a share of ProductBound
  std::int64_t worst_k = 0;   // length of the product of `worst`
  void Add(const ProductComparison& other);
};

// Gives the tensor core's results, and computes the fast ones beside them. One thread at a time.
class ComparedMath : public MatrixMath {
 public:
  ComparedMath() : exact_(MakeTensorCoreMath()), fast_(MakeFastMath()) {}
  void Linear(const Matrix& w, std::int64_t n0, std::int64_t n1, const bf16* x,
              std::int64_t x_stride, std::int64_t rows, float* y,
              std::int64_t y_stride) const override;
  void Dots(const bf16* x, const bf16* const* rows, std::int64_t count, std::int64_t k,
            float* y) const override;
  void Combine(const bf16* x, const bf16* const* rows, std::int64_t count, std::int64_t n,
               float* y) const override;
  const ProductComparison& found() const { return found_; }

 private:
  // `magnitude` = sum |w x|.
  void Compare(float exact, float fast, double magnitude, std::int64_t k,
               std::int64_t fast_roundings) const;
  std::unique_ptr<MatrixMath> exact_, fast_;
  mutable ProductComparison found_;
};

}  // namespace assay::engine
