// cuBLASLt as a contender of the GPU benches: opened at run time, its own heuristic's candidates
// for C = A B^T in bf16 with fp32 accumulation.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/stream.h"
#include "ops/dense_gemm_bf16_nt/spec.h"

namespace assay {

class CublasLtGemm {
 public:
  // Throws kUnsupported with the reason when the library does not load.
  CublasLtGemm();
  ~CublasLtGemm();

  // Fixes the shape and asks for candidates, best guess first; returns how many (at most eight).
  int Plan(const dense_gemm_bf16_nt::Args& shape);
  // Enqueues candidate `index` for operands of the planned shape.
  void Run(const dense_gemm_bf16_nt::Args& args, int index, Stream stream);
  // "algo 66 tile 24 stages 35 cluster 0 split-K 1 swizzle 0" in the library's own numbers.
  std::string Describe(int index) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace assay
