// dense_gemm_bf16_nt: the bf16 linear layers of an image diffusion transformer.
// C = A * B^T, fp32 accumulation over the whole k, one rounding to bf16. See README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/stream.h"
#include "ops/family.h"

namespace assay::dense_gemm_bf16_nt {

// c[m,n] = round_bf16(sum over k of a[m,k] * b[n,k]). Row strides count elements; rows need not be
// contiguous or aligned beyond 2 bytes. m, n, k may be 0 (k = 0 writes zeros).
struct Args {
  std::int64_t m = 0, n = 0, k = 0;
  const bf16* a = nullptr;  // [m, k], row stride lda >= k
  std::int64_t lda = 0;
  const bf16* b = nullptr;  // [n, k], row stride ldb >= k
  std::int64_t ldb = 0;
  bf16* c = nullptr;  // [m, n], row stride ldc >= n; every element overwritten
  std::int64_t ldc = 0;
};

// Throws kInput naming the tensor and the value: negative sizes, strides below the row length, null
// or odd pointers of non-empty tensors, memory of c that overlaps a or b.
void Validate(const Args& args);

// `threads` = 0: all cores of the process. The bits of c do not depend on it.
void RunCpu(const Args& args, int threads = 0);

// The same on the current CUDA device: device pointers, enqueued on `stream`, bits that depend on
// nothing else. Validates likewise; throws kDevice when driver or device fails. (sm90.cu; builds
// with CUDA only.)
void RunCuda(const Args& args, Stream stream);

Family MakeFamily();

// The pieces of MakeFamily, one file each.
// inputs.cpp
std::vector<Definition> Definitions();
std::vector<std::string> Variants();
void ValidateInputs(const Problem& problem, const Bundle& inputs);
void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs);
Cost CostOf(const Problem& problem, const Bundle& inputs);
// The generator kind of a problem: its variant, else its layer (`module_path`), else the
// definition's most frequent layer.
std::string KindOf(const Problem& problem);
// reference.cpp
RowLists SampleRows(const Problem& problem, const Bundle& inputs, std::uint64_t seed);
std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order);
std::vector<OutputPolicy> Policies(const Problem& problem);
std::vector<Finding> WholeChecks(const Problem& problem, const Bundle& inputs,
                                 const Bundle& outputs, std::uint64_t seed);
// args.cpp
Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs);
// cpu.cpp
Backend CpuBackend();
// bitwise.cpp: for kernels that walk k in steps of 16 with one chain of accumulators per element.
BitwiseOrder StepsOf16();
// cuda.cpp, with CUDA only
Backend CudaBackend();
// mutants.cpp
std::vector<Mutant> Mutants();

}  // namespace assay::dense_gemm_bf16_nt
