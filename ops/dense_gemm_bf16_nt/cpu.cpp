// The `cpu` backend: checks the arguments and hands them to the CPU GEMM (cpu/gemm.h).
#include <string>

#include "cpu/gemm.h"
#include "ops/dense_gemm_bf16_nt/spec.h"

namespace assay::dense_gemm_bf16_nt {

void RunCpu(const Args& args, int threads) {
  Validate(args);
  cpu::Run({args.m, args.n, args.k, args.a, args.lda, args.b, args.ldb, args.c, args.ldc}, threads);
}

Backend CpuBackend() {
  Backend backend;
  backend.name = "cpu";
  backend.summary = "fp32 accumulation in increasing k; oneDNN where the CPU has AVX512-BF16";
  backend.supports = [](const Problem&, const Bundle&) { return std::string(); };
  backend.run = [](const Problem& problem, const Bundle& inputs, Bundle& outputs,
                   const RunContext& context) {
    RunCpu(Bind(problem, inputs, outputs), context.threads);
  };
  return backend;
}

}  // namespace assay::dense_gemm_bf16_nt
