// The inner loops of the CPU kernel and their builds for each instruction set.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "ops/qsa_sparse_gqa_decode/spec.h"

namespace assay::qsa_sparse_gqa_decode {

// What the 24 heads have summed over some tokens of a row. Scores are in units of ln 2; the order
// of channels is the leaf's own.
struct Partial {
  float largest[kHeads];                         // score
  float sum[kHeads];                             // of 2^(score - largest)
  alignas(64) float values[kHeads * kHeadSize];  // of 2^(score - largest) v
};

// A leaf fetches this many tokens ahead: what lies behind a task's tokens in the list must be
// there, but it is a hint only.
inline constexpr std::int64_t kTokensAhead = 64;

struct AttendTask {
  const bf16* q = nullptr;  // [24, 256]
  const bf16* k_cache = nullptr;
  const bf16* v_cache = nullptr;
  // [count + 2 * kTokensAhead]: first element of each in the caches.
  const std::int64_t* tokens = nullptr;
  std::int64_t count = 0;  // > 0
  float scale_log2e = 0;
  Partial* to = nullptr;
};

struct MergeTask {
  const Partial* parts = nullptr;
  std::int64_t count = 0;  // of parts; 0: no token is attended
  int head = 0;
  bf16* out = nullptr;   // [256]
  float* lse = nullptr;  // [1], may be null
};

struct Leaf {
  const char* name;
  void (*attend)(const AttendTask& task);
  void (*merge)(const MergeTask& task);
};

extern const Leaf kLeafBaseline;
extern const Leaf kLeafAvx2;
extern const Leaf kLeafAvx512;
extern const Leaf kLeafAvx512BF16;  // P is rounded to bf16

// The leaves that this machine can run, best first; RunCpu takes the first.
std::vector<const Leaf*> RunnableLeaves();
void RunWith(const Leaf& leaf, const Args& args, int threads);

}  // namespace assay::qsa_sparse_gqa_decode
