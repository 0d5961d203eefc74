// What a Hopper kernel that walks k in steps of 16, from the first to the last, with one chain of
// accumulators per element gives bit for bit: the tile sizes and the choice between wgmma and
// mma.sync do not matter (docs/tensor-core-arithmetic.md).
#include "base/error.h"
#include "base/parallel.h"
#include "base/tensor_core.h"
#include "ops/dense_gemm_bf16_nt/spec.h"

namespace assay::dense_gemm_bf16_nt {
namespace {

std::vector<std::uint64_t> ExpectedBits(const Problem& problem, const Bundle& inputs,
                                        std::size_t output,
                                        const std::vector<std::int64_t>& elements) {
  if (output != 0) throw Error(Fault::kInternal, "dense_gemm_bf16_nt has one output");
  const TensorCoreRule rule = RuleOf(*FindMatrixInstruction("wgmma.m64n8k16.bf16.bf16"));
  const std::int64_t n = problem.axis("N"), k = problem.axis("K");
  const bf16* a = inputs["A"].as<bf16>();
  const bf16* b = inputs["B"].as<bf16>();
  std::vector<std::uint64_t> bits(elements.size());
  ParallelFor(static_cast<std::int64_t>(elements.size()), 0, [&](std::int64_t i) {
    const std::int64_t element = elements[static_cast<std::size_t>(i)];
    const bf16* row_a = a + element / n * k;
    const bf16* row_b = b + element % n * k;
    bits[static_cast<std::size_t>(i)] = ToBF16(TensorCoreDot(rule, row_a, row_b, k)).bits;
  });
  return bits;
}

}  // namespace

BitwiseOrder StepsOf16() {
  return {"k in steps of 16 from 0 up, one chain of fp32 accumulators, one rounding to bf16",
          ExpectedBits};
}

}  // namespace assay::dense_gemm_bf16_nt
