// mhc: one site of manifold-constrained hyper-connections. Four residual streams are mixed into one
// normalised input, and the weights that will put the sublayer's output back are computed. See
// README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "ops/family.h"

namespace assay::mhc {

inline constexpr std::int64_t kStreams = 4;
inline constexpr std::int64_t kMixes = 24;  // 4 pre, 4 post, 16 of the stream matrix
inline constexpr int kSinkhornRounds = 20;
inline constexpr float kMixEps = 1e-6f;     // of pre and of every Sinkhorn denominator
inline constexpr float kNormEps = 1e-5f;    // of both root mean squares
inline constexpr std::int64_t kSlice = 64;  // columns of a task; N is a multiple of it

// Inputs are never modified. Rows are independent.
struct Args {
  std::int64_t m = 0, n = 0;      // rows, hidden size
  const bf16* streams = nullptr;  // [m, 4, n]
  const float* fn = nullptr;      // [24, 4, n]: pre 0..3, post 4..7, stream matrix 8..23
  const float* base = nullptr;    // [24]
  const float* scale = nullptr;   // [3]: pre, post, stream matrix
  const bf16* weight = nullptr;   // [n], of the norm
  bf16* u = nullptr;              // [m, n]: the sublayer's input
  float* post = nullptr;          // [m, 4]
  float* comb = nullptr;          // [m, 4 (source), 4 (destination)]
};

// Why a call is illegal (sizes, missing pointers), one sentence; "" when it is legal.
std::string Refusal(const Args& args);

// The fast CPU kernel. `threads` as in ParallelRanges; results do not depend on it, and a row's
// bits do not depend on the other rows. Throws kInput with the text of Refusal.
void RunCpu(const Args& args, int threads);

// Pointers of a named bundle.
Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs);

Family MakeFamily();

// Parts of MakeFamily, one file each.
std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order);
std::vector<Backend> Backends();
std::vector<Mutant> Mutants();

}  // namespace assay::mhc
