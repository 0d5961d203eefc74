// kda_decode: one token of delta attention with one decay per key channel. See README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "cuda/stream.h"
#include "ops/family.h"

namespace assay::kda_decode {

inline constexpr std::int64_t kHeadSize = 128;                         // of keys and of values
inline constexpr std::int64_t kStateElements = kHeadSize * kHeadSize;  // of one head
inline constexpr float kDefaultLowerBound = -5;

// How the raw gate a becomes the logarithm of a decay. Weights trained for one kind give plausible
// garbage with another, so the kind is part of a definition's name.
enum class Gate : std::uint8_t {
  kBounded,    // lower_bound * sigmoid(exp(A_log) * (a + dt_bias)): a factor, not a clamp
  kUnbounded,  // -exp(A_log) * softplus(a + dt_bias)
  kPlain,      // lower_bound * sigmoid(a + dt_bias), without A_log
};

// Inputs are never modified, except `state` by a call in place. (Request, head) pairs are
// independent; the rows of a request are processed in order.
struct Args {
  Gate gate = Gate::kBounded;
  float lower_bound = kDefaultLowerBound;  // negative; not read by the unbounded gate
  bool qk_norm = true;                     // false: q and k arrive normalised
  std::int64_t batch = 0;                  // requests
  std::int64_t rows = 1;                   // per request; above 1 they verify a draft
  std::int64_t heads = 0;
  const bf16* q = nullptr;         // [batch, rows, heads, 128], not normalised
  const bf16* k = nullptr;         // [batch, rows, heads, 128], likewise
  const bf16* v = nullptr;         // [batch, rows, heads, 128]
  const bf16* a = nullptr;         // [batch, rows, heads, 128], raw gate
  const bf16* b = nullptr;         // [batch, rows, heads]
  const float* a_log = nullptr;    // [heads]; null for the plain gate
  const float* dt_bias = nullptr;  // [heads, 128]
  const float* state = nullptr;    // [slots, heads, 128 (V), 128 (K)]; null = zeros
  bf16* output = nullptr;          // [batch, rows, heads, 128]

  // Exactly one of these. Decode (rows = 1): the state after the token, as `state`; may be the same
  // memory, never a partial overlap. Verify: the state after every row,
  // [batch, rows, heads, 128 (V), 128 (K)], while `state` stays as it was.
  float* new_state = nullptr;
  float* scratch = nullptr;

  // A pool of states: request n uses slot slot[n]; negative = padding, its output is 0 and neither
  // a state nor its scratch is touched. Null = request n uses slot n, and slots is batch.
  const std::int64_t* slot = nullptr;  // [batch]
  std::int64_t slots = 0;              // read only with `slot`
};

// Why a call is illegal (alignment, overlap, slots, missing pointers), one sentence; "" when it is
// legal. The contents of floating-point tensors are not looked at.
std::string Refusal(const Args& args);
// The same without the contents of `slot`, which a device call cannot read.
std::string PointerRefusal(const Args& args);

// The fast CPU kernel. `threads` as in ParallelRanges; results do not depend on it, and row i of a
// request has the bits of i + 1 calls with one row each. Throws kInput with the text of Refusal.
void RunCpu(const Args& args, int threads);

// The same on the current CUDA device: device pointers, enqueued on `stream`, no allocation. A slot
// outside the pool counts as padding. Throws kInput with the text of PointerRefusal, kDevice when
// the launch fails. (sm90.cu; builds with CUDA only.)
void RunCuda(const Args& args, Stream stream);

// The gate kind that a definition's name says; lower_bound of the workload, else -5.
Gate GateOf(const Problem& problem);
float LowerBoundOf(const Problem& problem);
// The attribute `qk_norm`, else true.
bool QkNormOf(const Problem& problem);

// Rows of each request: the axis `rows` of a verify definition, 1 of a decode definition.
std::int64_t RowsOf(const Problem& problem);

// Pointers of a named bundle.
Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs);

Family MakeFamily();        // kda_decode
Family MakeVerifyFamily();  // kda_verify: several rows a request, the state after each

// Parts of both, one file each.
void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs);
std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order);
std::vector<Backend> Backends();
std::vector<Mutant> Mutants();
// cuda.cpp, with CUDA only; of both
Backend CudaBackend();

}  // namespace assay::kda_decode
