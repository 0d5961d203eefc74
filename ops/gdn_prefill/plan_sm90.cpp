// Which kernels a batch gets. From measurements on one H200 (README.md).
#include <algorithm>

#include "ops/gdn_prefill/sm90.h"

namespace assay::gdn_prefill {
namespace {

// Up to here the recurrence's time per token costs less than the chunk path's two launches.
constexpr std::int64_t kRecurrentTokens = 48;

// A CTA with few rows of V is quick with a chunk, but every CTA reads the whole tiles of k and q.
int ChainRows(std::int64_t sequences, std::int64_t longest) {
  if (sequences <= 2) return 16;
  if (sequences <= 6) return longest <= 450 ? 32 : 16;  // 16: more CTAs than multiprocessors
  if (sequences <= 9) return 32;
  return sequences <= 44 ? 64 : 128;
}

}  // namespace

Plan ChoosePlan(const std::int64_t* cu_seqlens, std::int64_t sequences) {
  std::int64_t longest = 0;
  for (std::int64_t s = 0; s < sequences; ++s) {
    longest = std::max(longest, cu_seqlens[s + 1] - cu_seqlens[s]);
  }
  return {longest <= kRecurrentTokens, ChainRows(sequences, longest)};
}

}  // namespace assay::gdn_prefill
