// Attention of many heads over one list of latent rows that are keys and values at once (multi-head
// latent attention), with an attention sink. Shared by the two MLA rooms: fp32 inside, one rounding
// to bf16 at the end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "cpu/latent_leaf.h"

namespace assay::cpu {

// One query token. x_j = scale * q.row_j for every occurrence of a row in the list, and
//   out = sum_j exp(x_j) row_j / (sum_j exp(x_j) + exp(sink))
// An empty list gives zeros, whatever the sink.
struct LatentQuery {
  int heads = 0;                            // a multiple of kLatentGroup
  const bf16* q = nullptr;                  // [heads, 512]
  std::span<const bf16* const> rows;        // [list] pointers to 512 elements; or, instead,
  std::span<const float* const> wide_rows;  // the same in fp32, for what bf16 cannot hold
  float scale = 0;                          // positive
  const float* sink = nullptr;              // [heads], natural logarithms; null = none
  bf16* out = nullptr;                      // [heads, 512]
  float* max_logits = nullptr;              // [heads], max_j x_j; null = not wanted
  float* lse = nullptr;  // [heads], ln sum_j exp(x_j), without the sink; likewise
};

// Computes on the calling thread. A head's result depends on the leaf, the list and its order only,
// not on which other heads are computed with it.
void Attend(const LatentLeaf& leaf, const LatentQuery& query);

// The instruction sets that this machine can run, best first.
std::vector<const LatentLeaf*> RunnableLatentLeaves();

// Heads that one task should take, so that `tokens` query tokens of `heads` heads keep `threads`
// threads busy (0 = all cores of the process).
int LatentHeadsPerTask(std::int64_t tokens, int heads, int threads);

}  // namespace assay::cpu
