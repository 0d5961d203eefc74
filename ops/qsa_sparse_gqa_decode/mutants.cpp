// Wrong attention kernels that verification must reject: one plain online softmax with a mistake
// switched on. Each is a mistake that a real kernel made or could make.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/qsa_sparse_gqa_decode/spec.h"

namespace assay::qsa_sparse_gqa_decode {
namespace {

enum class Mistake {
  kTailOmitted,
  kKvHeadsSwapped,
  kHeadsModulo,
  kGroupOf8,
  kGroupOf16,
  kNeighbourPage,
  kTableOfRowZero,
  kScaleOfHalf,
  kScaleOmitted,
  kExp2OfNatural,
  kValueOfNextToken,
  kLastGroupDropped,
  kFirstGroupDropped,
  kTokenOfGroupDropped,
  kSelectionIgnored,
  kMinusOneIsZero,
  kStopsAtHole,
  kInfiniteStart,
  kMaskMissing,
  kTailTwice,
  kNoRescale,
  kSplitsUnweighted,
  kPageIn16Bits,
  kOffsetIn32Bits,
};

constexpr std::int64_t kHole = -1;

// Entries of the row's list, holes included, then the tail.
std::vector<std::int64_t> EntriesOf(const Args& args, Mistake mistake, std::int64_t b) {
  const std::int64_t length = args.seq_lens[b], tail = length / kGroupTokens;
  std::vector<std::int64_t> groups(args.block_ids + b * kTopK, args.block_ids + (b + 1) * kTopK);
  if (mistake == Mistake::kStopsAtHole) {
    groups.erase(std::find(groups.begin(), groups.end(), kHole), groups.end());
  }
  if (mistake == Mistake::kLastGroupDropped || mistake == Mistake::kFirstGroupDropped) {
    const auto used = [](std::int64_t group) { return group != kHole; };
    const auto first = std::find_if(groups.begin(), groups.end(), used);
    const auto last = std::find_if(groups.rbegin(), groups.rend(), used);
    if (first != groups.end()) (mistake == Mistake::kFirstGroupDropped ? *first : *last) = kHole;
  }
  bool tail_listed = false;
  std::vector<std::int64_t> tokens;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    std::int64_t group = groups[i];
    if (mistake == Mistake::kMinusOneIsZero && group == kHole) group = 0;
    if (mistake == Mistake::kSelectionIgnored && group != kHole) {
      group = static_cast<std::int64_t>(i);  // the oldest groups
    }
    tail_listed = tail_listed || group == tail;
    const std::int64_t dropped = mistake == Mistake::kTokenOfGroupDropped ? 1 : 0;
    for (std::int64_t r = 0; r < kGroupTokens - dropped; ++r) {
      const std::int64_t token = kGroupTokens * group + r;
      const bool beyond = token >= length && mistake != Mistake::kMaskMissing;
      tokens.push_back(group == kHole || beyond ? kHole : token);
    }
  }
  if (mistake == Mistake::kTailOmitted) return tokens;
  if (tail_listed && mistake != Mistake::kTailTwice) return tokens;
  for (std::int64_t token = kGroupTokens * tail; token < length; ++token) tokens.push_back(token);
  return tokens;
}

std::int64_t KvHeadOf(Mistake mistake, std::int64_t h) {
  if (mistake == Mistake::kHeadsModulo) return h % kKvHeads;
  if (mistake == Mistake::kGroupOf8) return h / 8 % kKvHeads;
  if (mistake == Mistake::kGroupOf16) return h / 16;
  const std::int64_t kv_head = h / kGroupHeads;
  return mistake == Mistake::kKvHeadsSwapped ? 1 - kv_head : kv_head;
}

// First element of (token, KV head) in a cache.
std::int64_t ElementOf(const Args& args, Mistake mistake, std::int64_t b, std::int64_t token,
                       std::int64_t kv_head) {
  std::int64_t page = std::min(token / kPageTokens, args.table_width - 1);
  if (mistake == Mistake::kNeighbourPage && page > 0) --page;
  const std::int64_t row = mistake == Mistake::kTableOfRowZero ? 0 : b;
  std::int64_t entry =
      std::clamp<std::int64_t>(args.page_table[row * args.table_width + page], 0, args.pages - 1);
  if (mistake == Mistake::kPageIn16Bits) entry &= 0xFFFF;
  std::int64_t byte = entry * kPageBytes;
  if (mistake == Mistake::kOffsetIn32Bits) byte = static_cast<std::uint32_t>(byte);
  return byte / 2 + (token % kPageTokens * kKvHeads + kv_head) * kHeadSize;
}

float ScaleOf(const Args& args, Mistake mistake) {
  if (mistake == Mistake::kScaleOfHalf) return 0.08838834764831845f;  // 1 / sqrt(128)
  if (mistake == Mistake::kScaleOmitted) return 1;
  const float scale = args.scale == 0 ? kDefaultScale : args.scale;
  return mistake == Mistake::kExp2OfNatural ? scale * 0.69314718f : scale;
}

// A running softmax over tiles of 64 entries.
struct Softmax {
  float largest = std::numeric_limits<float>::lowest(), sum = 0;
  float values[kHeadSize] = {};

  void Add(const Args& args, Mistake mistake, std::int64_t b, std::int64_t h,
           const std::int64_t* tokens, std::int64_t count) {
    const std::int64_t kv_head = KvHeadOf(mistake, h);
    const bf16* q = args.q + (b * kHeads + h) * kHeadSize;
    std::vector<float> score(static_cast<std::size_t>(count),
                             -std::numeric_limits<float>::infinity());
    float top = largest;
    for (std::int64_t i = 0; i < count; ++i) {
      if (tokens[i] == kHole) continue;
      const bf16* k = args.k_cache + ElementOf(args, mistake, b, tokens[i], kv_head);
      float dot = 0;
      for (std::int64_t d = 0; d < kHeadSize; ++d) dot += ToFloat(q[d]) * ToFloat(k[d]);
      score[static_cast<std::size_t>(i)] = dot * ScaleOf(args, mistake);
      top = std::max(top, score[static_cast<std::size_t>(i)]);
    }
    const float factor = mistake == Mistake::kNoRescale ? 1 : std::exp(largest - top);
    sum *= factor;
    for (float& x : values) x *= factor;
    for (std::int64_t i = 0; i < count; ++i) {
      const float p = std::exp(score[static_cast<std::size_t>(i)] - top);
      sum += p;
      if (tokens[i] == kHole) continue;
      std::int64_t token = tokens[i];
      if (mistake == Mistake::kValueOfNextToken) token ^= 1;
      const bf16* v = args.v_cache + ElementOf(args, mistake, b, token, kv_head);
      for (std::int64_t d = 0; d < kHeadSize; ++d) values[d] += p * ToFloat(v[d]);
    }
    largest = top;
  }
};

Softmax Attend(const Args& args, Mistake mistake, std::int64_t b, std::int64_t h,
               const std::vector<std::int64_t>& tokens, std::size_t begin, std::size_t end) {
  constexpr std::size_t kTile = 64;
  Softmax softmax;
  if (mistake == Mistake::kInfiniteStart) {
    softmax.largest = -std::numeric_limits<float>::infinity();
  }
  for (std::size_t first = begin; first < end; first += kTile) {
    softmax.Add(args, mistake, b, h, tokens.data() + first,
                static_cast<std::int64_t>(std::min(kTile, end - first)));
  }
  return softmax;
}

void RunRow(const Args& args, Mistake mistake, std::int64_t b) {
  const std::vector<std::int64_t> tokens = EntriesOf(args, mistake, b);
  for (std::int64_t h = 0; h < kHeads; ++h) {
    bf16* out = args.out + (b * kHeads + h) * kHeadSize;
    const Softmax all = Attend(args, mistake, b, h, tokens, 0, tokens.size());
    if (mistake != Mistake::kSplitsUnweighted) {
      for (std::int64_t d = 0; d < kHeadSize; ++d) {
        out[d] = ToBF16(all.sum == 0 ? 0 : all.values[d] / all.sum);
      }
      continue;
    }
    const std::size_t half = tokens.size() / 2;
    const Softmax first = Attend(args, mistake, b, h, tokens, 0, half);
    const Softmax second = Attend(args, mistake, b, h, tokens, half, tokens.size());
    for (std::int64_t d = 0; d < kHeadSize; ++d) {
      out[d] = ToBF16(0.5f * (first.values[d] / std::max(first.sum, 1e-30f) +
                              second.values[d] / std::max(second.sum, 1e-30f)));
    }
  }
}

bool AnyLength(const Problem& problem, bool (*wanted)(std::int64_t length)) {
  const paged::Batch batch = paged::MakeBatch(problem, PagesOfTokens);
  return std::any_of(batch.lengths.begin(), batch.lengths.end(), wanted);
}

bool HasTail(const Problem& problem) {
  return AnyLength(problem, [](std::int64_t length) { return length % kGroupTokens != 0; });
}
bool HasGroups(const Problem& problem) {
  return AnyLength(problem, [](std::int64_t length) { return length >= 2 * kGroupTokens; });
}
bool HasShortRow(const Problem& problem) {
  return AnyLength(problem, [](std::int64_t length) {
    return length >= kGroupTokens && length / kGroupTokens < kTopK;
  });
}
bool Selects(const Problem& problem) {
  return AnyLength(problem, [](std::int64_t length) { return length / kGroupTokens > kTopK + 64; });
}
bool HasSecondPage(const Problem& problem) {
  return AnyLength(problem, [](std::int64_t length) { return length > kPageTokens; });
}
bool HasSecondRow(const Problem& problem) {
  const paged::Batch batch = paged::MakeBatch(problem, PagesOfTokens);
  return batch.rows() > 1 && batch.lengths[1] > kPageTokens;
}

Mutant Make(const char* name, const char* text, Mistake mistake,
            bool (*applies)(const Problem&) = HasGroups, const char* variant = "") {
  return {name, text,
          [mistake](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
            const Args args = Bind(problem, inputs, outputs);
            for (std::int64_t b = 0; b < args.batch; ++b) RunRow(args, mistake, b);
          },
          applies, variant};
}

}  // namespace

std::vector<Mutant> Mutants() {
  return {
      Make("tail_omitted", "leaves the incomplete group out", Mistake::kTailOmitted, HasTail),
      Make("kv_heads_swapped", "reads the other KV head", Mistake::kKvHeadsSwapped),
      Make("heads_modulo", "pairs query head h with KV head h mod 2", Mistake::kHeadsModulo),
      Make("group_of_8", "lets 8 query heads share a KV head", Mistake::kGroupOf8),
      Make("group_of_16", "lets 16 query heads share a KV head", Mistake::kGroupOf16),
      Make("neighbour_page", "reads the page before the right one", Mistake::kNeighbourPage,
           HasSecondPage),
      Make("table_of_row_zero", "every row uses the page table of row 0", Mistake::kTableOfRowZero,
           HasSecondRow),
      Make("scale_of_128", "scales by 1 / sqrt(128)", Mistake::kScaleOfHalf),
      Make("scale_omitted", "does not scale the scores", Mistake::kScaleOmitted),
      Make("exp2_of_natural", "takes powers of 2 without the factor log2(e)",
           Mistake::kExp2OfNatural),
      Make("value_of_next_token", "pairs every weight with the neighbour's value",
           Mistake::kValueOfNextToken),
      Make("last_group_dropped", "leaves the last listed group out", Mistake::kLastGroupDropped),
      Make("first_group_dropped", "leaves the first listed group out", Mistake::kFirstGroupDropped),
      Make("token_of_group_dropped", "attends three tokens of every group",
           Mistake::kTokenOfGroupDropped),
      Make("selection_ignored", "attends the oldest groups, as many as were listed",
           Mistake::kSelectionIgnored, Selects),
      Make("minus_one_is_zero", "takes -1 for group 0", Mistake::kMinusOneIsZero, HasShortRow),
      Make("stops_at_hole", "takes the first -1 for the end of the list", Mistake::kStopsAtHole,
           HasGroups, "shuffled"),
      Make("infinite_start", "starts the maximum at -infinity, so that a tile of holes gives NaN",
           Mistake::kInfiniteStart, HasGroups, "shuffled"),
      Make("mask_missing", "attends listed tokens behind the end of the row", Mistake::kMaskMissing,
           HasTail, "beyond_length"),
      Make("tail_twice", "counts tokens twice that a listed group and the tail name",
           Mistake::kTailTwice, HasTail, "beyond_length"),
      Make("no_rescale", "keeps earlier sums when the maximum rises", Mistake::kNoRescale,
           HasSecondPage),
      Make("splits_unweighted", "averages two halves of the list as if they weighed the same",
           Mistake::kSplitsUnweighted),
      Make("page_in_16_bits", "keeps page numbers in 16 bits", Mistake::kPageIn16Bits, HasGroups,
           "original_address"),
      Make("offset_in_32_bits", "computes byte offsets in 32 bits", Mistake::kOffsetIn32Bits,
           HasGroups, "original_address"),
  };
}

}  // namespace assay::qsa_sparse_gqa_decode
