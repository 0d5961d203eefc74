// swiglu: y = silu(min(gate, limit)) * clamp(up, -limit, limit). See README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "ops/family.h"

namespace assay::swiglu {

inline constexpr float kDefaultLimit = 10;

// Inputs are never modified, except `gate` or `up` by a call in place (y equals one of them).
struct Args {
  std::int64_t m = 0, n = 0;
  float limit = kDefaultLimit;  // positive; infinity = no clamp
  const bf16* gate = nullptr;   // [m, n]
  const bf16* up = nullptr;     // [m, n]
  bf16* y = nullptr;            // [m, n], may be gate or up, never a partial overlap
};

// Why a call is illegal (sizes, limit, missing pointers, overlap), one sentence; "" when it is
// legal.
std::string Refusal(const Args& args);

// The fast CPU kernel. `threads` as in ParallelRanges; results do not depend on it. Throws kInput
// with the text of Refusal.
void RunCpu(const Args& args, int threads);

// The attribute `swiglu_limit` of the workload, else 10.
float LimitOf(const Problem& problem);

// Pointers of a named bundle.
Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs);

Family MakeFamily();

// Parts of MakeFamily, one file each.
std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order);
std::vector<Backend> Backends();
std::vector<Mutant> Mutants();

}  // namespace assay::swiglu
