// Wrong index kernels that verification must reject: one plain kernel with a mistake switched on.
// Each is a mistake that a real kernel made or could make.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/parallel.h"
#include "ops/kpool_index_decode/spec.h"

namespace assay::kpool_index_decode {
namespace {

enum class Mistake {
  kNoRelu,
  kReluAfterWeight,
  kReluAfterHeadSum,
  kWeightsOmitted,
  kWeightsAbsolute,
  kScaleOmitted,
  kLastHeadDropped,
  kScalesInterleaved,
  kSignlessKeys,
  kCeilOfLength,
  kLastPoolDropped,
  kSiblingsSeen,
  kTableOfRequestZero,
  kNeighbourPage,
  kPageOf16Pools,
  kNextSlot,
  kOneTooFew,
  kPhysicalIds,
  kInOrderOfScore,
  kZeroPadding,
  kHigherIdWins,
  kNaNFirst,
};

// The key and the scale that the mistaken kernel reads for a pool.
struct Found {
  const std::uint8_t* key = nullptr;
  float scale = 0;
};

Found Find(const Args& args, Mistake mistake, std::int64_t b, std::int64_t pool) {
  std::int64_t page = pool / kPagePools, slot = pool % kPagePools;
  if (mistake == Mistake::kNextSlot) slot = (slot + 1) % kPagePools;
  if (mistake == Mistake::kNeighbourPage && page > 0) --page;
  if (mistake == Mistake::kPageOf16Pools) {
    page = std::min(pool / 16, args.table_width - 1);
    slot = pool % 16;
  }
  const std::int64_t request = mistake == Mistake::kTableOfRequestZero ? 0 : b;
  const std::int64_t entry = std::clamp<std::int64_t>(
      args.page_table[request * args.table_width + page], 0, args.pages - 1);
  const std::uint8_t* bytes = args.pool_cache + entry * kPageBytes;
  Found found{bytes + slot * kHeadSize, 1};
  const std::uint8_t* scale = bytes + kScalesOffset + slot * 4;
  if (mistake == Mistake::kScalesInterleaved) {  // records of 132 bytes instead of two planes
    found.key = bytes + slot * (kHeadSize + 4);
    scale = found.key + kHeadSize;
  }
  if (mistake != Mistake::kScaleOmitted) std::memcpy(&found.scale, scale, 4);
  return found;
}

float Score(const Args& args, Mistake mistake, std::int64_t row, std::int64_t pool) {
  const Found found = Find(args, mistake, row / args.rows, pool);
  float key[kHeadSize], sum = 0;
  for (std::int64_t d = 0; d < kHeadSize; ++d) {
    key[d] = ToFloat(e4m3{found.key[d]});
    if (mistake == Mistake::kSignlessKeys) key[d] = std::abs(key[d]);
  }
  const std::int64_t heads = mistake == Mistake::kLastHeadDropped ? kHeads - 1 : kHeads;
  for (std::int64_t h = 0; h < heads; ++h) {
    const e4m3* q = args.q + (row * kHeads + h) * kHeadSize;
    float dot = 0, weight = args.weights[row * kHeads + h];
    for (std::int64_t d = 0; d < kHeadSize; ++d) dot += ToFloat(q[d]) * key[d];
    if (mistake == Mistake::kWeightsOmitted) weight = 1;
    if (mistake == Mistake::kWeightsAbsolute) weight = std::abs(weight);
    const bool keep = mistake == Mistake::kNoRelu || mistake == Mistake::kReluAfterHeadSum;
    if (mistake == Mistake::kReluAfterWeight) {
      sum += std::max(0.0f, weight * dot);
    } else {
      sum += weight * (dot < 0 && !keep ? 0.0f : dot);
    }
  }
  if (mistake == Mistake::kReluAfterHeadSum) sum = std::max(0.0f, sum);
  return sum * found.scale;
}

std::int64_t PoolsSeen(const Args& args, Mistake mistake, std::int64_t row) {
  std::int64_t n = VisiblePools(args, row);
  const std::int64_t last = VisiblePools(args, row / args.rows * args.rows + args.rows - 1);
  const std::int64_t covered = args.table_width * kPagePools;
  if (mistake == Mistake::kCeilOfLength) n = std::min(n + 1, covered);
  if (mistake == Mistake::kSiblingsSeen) n = last;
  if (mistake == Mistake::kLastPoolDropped) n = std::max<std::int64_t>(n - 1, 0);
  return n;
}

void SelectRow(const Args& args, Mistake mistake, std::int64_t row) {
  const std::int64_t n = PoolsSeen(args, mistake, row);
  std::vector<float> scores(static_cast<std::size_t>(n));
  for (std::int64_t pool = 0; pool < n; ++pool) {
    scores[static_cast<std::size_t>(pool)] = Score(args, mistake, row, pool);
  }
  std::vector<std::int32_t> ids(scores.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto before = [&](std::int32_t i, std::int32_t j) {
    const float a = scores[static_cast<std::size_t>(i)], b = scores[static_cast<std::size_t>(j)];
    if (std::isnan(a) != std::isnan(b)) return std::isnan(mistake == Mistake::kNaNFirst ? a : b);
    if (!std::isnan(a) && a != b) return a > b;
    return mistake == Mistake::kHigherIdWins ? i > j : i < j;
  };
  std::sort(ids.begin(), ids.end(), before);
  const std::int64_t wanted = mistake == Mistake::kOneTooFew ? args.top_k - 1 : args.top_k;
  ids.resize(static_cast<std::size_t>(std::min(n, wanted)));
  if (mistake != Mistake::kInOrderOfScore) std::sort(ids.begin(), ids.end());
  std::int32_t* out = args.pool_ids + row * args.top_k;
  std::fill(out, out + args.top_k, mistake == Mistake::kZeroPadding ? 0 : -1);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    out[i] = ids[i];
    if (mistake == Mistake::kPhysicalIds) {
      const std::int64_t page = args.page_table[row / args.rows * args.table_width + ids[i] / 64];
      out[i] = static_cast<std::int32_t>(page * kPagePools + ids[i] % 64);
    }
  }
}

Mutant Make(const char* name, const char* what, Mistake mistake,
            bool (*applies)(const Problem&) = nullptr, const char* variant = "") {
  Mutant mutant;
  mutant.name = name;
  mutant.mistake = what;
  mutant.run = [mistake](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
    const Args args = Bind(problem, inputs, outputs);
    ParallelFor(args.batch * args.rows, 0,
                [&](std::int64_t row) { SelectRow(args, mistake, row); });
  };
  mutant.applies = applies;
  mutant.variant = variant;
  return mutant;
}

// Of the lengths of a problem: all are given, because pages of 256 tokens are no default.
std::vector<std::int64_t> Lengths(const Problem& problem) {
  const std::vector<std::int64_t>* lengths = problem.integers("sequence_lengths");
  return lengths != nullptr ? *lengths : std::vector<std::int64_t>{};
}

// Some row has more pools than it may keep.
bool Selects(const Problem& problem) {
  for (const std::int64_t length : Lengths(problem)) {
    if ((length - problem.axis("V")) / kPoolTokens > kTopK) return true;
  }
  return false;
}

// As does a row of a request other than the first.
bool SelectsElsewhere(const Problem& problem) {
  const std::vector<std::int64_t> lengths = Lengths(problem);
  for (std::size_t b = 1; b < lengths.size(); ++b) {
    if ((lengths[b] - problem.axis("V")) / kPoolTokens > kTopK) return true;
  }
  return false;
}

// Some row keeps all of its pools and has room for more.
bool Pads(const Problem& problem) {
  for (const std::int64_t length : Lengths(problem)) {
    if (length / kPoolTokens < kTopK) return true;
  }
  return false;
}

// A later row of the step closes a pool, and rows keep all they see.
bool ClosesAPool(const Problem& problem) {
  for (const std::int64_t length : Lengths(problem)) {
    if (length / kPoolTokens > kTopK) continue;
    if (length / kPoolTokens > (length - problem.axis("V") + 1) / kPoolTokens) return true;
  }
  return false;
}

// Few pages may lie in order.
bool HasManyPages(const Problem& problem) { return problem.axis("NP") >= 8; }

// The pool behind the last whole one lies in a page that exists.
bool HasAnOpenPool(const Problem& problem) {
  for (const std::int64_t length : Lengths(problem)) {
    if (length % (kPoolTokens * kPagePools) >= kPoolTokens) return true;
  }
  return false;
}

}  // namespace

std::vector<Mutant> Mutants() {
  using M = Mistake;
  return {
      Make("no_relu", "sums negative products as well", M::kNoRelu, Selects),
      Make("relu_after_weight", "cuts weighted products at 0", M::kReluAfterWeight, Selects),
      Make("relu_after_head_sum", "cuts the sum over heads at 0", M::kReluAfterHeadSum, Selects),
      Make("weights_omitted", "gives every head the weight 1", M::kWeightsOmitted, Selects),
      Make("weights_absolute", "drops the sign of the weights", M::kWeightsAbsolute, Selects),
      Make("scale_omitted", "leaves the pools' scales out", M::kScaleOmitted, Selects),
      Make("last_head_dropped", "scores 31 heads", M::kLastHeadDropped, Selects),
      Make("scales_interleaved", "reads records of 132 bytes instead of two planes",
           M::kScalesInterleaved, Selects),
      Make("signless_keys", "drops the sign of the keys", M::kSignlessKeys, Selects),
      Make("ceil_of_length", "scores the pool that is still open", M::kCeilOfLength, HasAnOpenPool),
      Make("last_pool_dropped", "leaves the newest closed pool out", M::kLastPoolDropped, Pads),
      Make("siblings_seen", "lets a row see pools that later rows of the step close",
           M::kSiblingsSeen, ClosesAPool),
      Make("table_of_request_zero", "reads all keys through the first request's page table",
           M::kTableOfRequestZero, SelectsElsewhere),
      Make("neighbour_page", "reads keys from the page before", M::kNeighbourPage, Selects),
      Make("page_of_16_pools", "takes pages for 16 pools long", M::kPageOf16Pools, Selects),
      Make("next_slot", "reads each key from the next place", M::kNextSlot, Selects),
      Make("one_too_few", "keeps 511 pools", M::kOneTooFew, Selects),
      Make("physical_ids", "returns places in the cache", M::kPhysicalIds, HasManyPages),
      Make("in_order_of_score", "returns the best pool first", M::kInOrderOfScore, Selects),
      Make("zero_padding", "pads with 0 instead of -1", M::kZeroPadding, Pads),
      Make("higher_id_wins", "prefers the newer of equal pools", M::kHigherIdWins, Selects, "ties"),
      Make("nan_first", "ranks NaN scores first", M::kNaNFirst, Selects, "nan_keys"),
  };
}

}  // namespace assay::kpool_index_decode
