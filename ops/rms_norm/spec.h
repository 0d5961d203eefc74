// rms_norm: y = x / sqrt(mean(x^2) + eps) * weight, row by row. See README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "ops/family.h"

namespace assay::rms_norm {

inline constexpr float kDefaultEps = 1e-5f;

// Inputs are never modified, except `x` by a call in place (y == x). Rows are independent.
struct Args {
  std::int64_t m = 0, n = 0;
  float eps = kDefaultEps;       // positive
  const bf16* x = nullptr;       // [m, n]
  const bf16* weight = nullptr;  // [n]
  bf16* y = nullptr;             // [m, n], may be x, never a partial overlap
};

// Why a call is illegal (sizes, eps, missing pointers, overlap), one sentence; "" when it is legal.
std::string Refusal(const Args& args);

// The fast CPU kernel. `threads` as in ParallelRanges; results do not depend on it. Throws kInput
// with the text of Refusal.
void RunCpu(const Args& args, int threads);

// The attribute `eps` of the workload, else 1e-5.
float EpsOf(const Problem& problem);

// Pointers of a named bundle.
Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs);

Family MakeFamily();

// Parts of MakeFamily, one file each.
std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order);
std::vector<Backend> Backends();
std::vector<Mutant> Mutants();

}  // namespace assay::rms_norm
