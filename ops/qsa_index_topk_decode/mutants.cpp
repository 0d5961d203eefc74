// Wrong index kernels that verification must reject: one plain kernel with a mistake switched on.
// Each is a mistake that a real kernel made or could make.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "ops/qsa_index_topk_decode/spec.h"

namespace assay::qsa_index_topk_decode {
namespace {

enum class Mistake {
  kNoRelu,
  kReluAfterHeadSum,
  kMaxOfHeads,
  kLastHeadDropped,
  kRanksInBF16,
  kCeilOfLength,
  kLastGroupDropped,
  kFirstPageSkipped,
  kStaleSlotsScored,
  kTableOfRowZero,
  kNextSlot,
  kNeighbourPage,
  kPageOf64Groups,
  kPhysicalIds,
  kOneTooFew,
  kInOrderOfScore,
  kForcedWindow,
  kZeroPadding,
  kHigherIdWins,
  kFullBin,
  kPageIn16Bits,
  kOffsetIn32Bits,
};

const bf16* Key(const Args& args, Mistake mistake, std::int64_t b, std::int64_t group) {
  std::int64_t slot = group % kPageGroups, page = group / kPageGroups;
  if (mistake == Mistake::kNextSlot) slot = (slot + 1) % kPageGroups;
  if (mistake == Mistake::kPageOf64Groups) page = group / 64;
  if (mistake == Mistake::kNeighbourPage && page > 0) --page;
  const std::int64_t row = mistake == Mistake::kTableOfRowZero ? 0 : b;
  const auto entry = static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(args.page_table[row * args.table_width + page], 0, args.pages - 1));
  std::int64_t byte = std::int64_t{entry} * kPageBytes;
  if (mistake == Mistake::kPageIn16Bits) byte = (entry & 0xFFFFu) * kPageBytes;
  if (mistake == Mistake::kOffsetIn32Bits) byte = static_cast<std::uint32_t>(byte);
  return args.index_k_cache + (byte + slot * kKeyBytes) / 2;
}

float Score(const Args& args, Mistake mistake, std::int64_t b, std::int64_t group) {
  const bf16* key = Key(args, mistake, b, group);
  float sum = 0, largest = 0;
  for (std::int64_t h = 0; h < kHeads; ++h) {
    const bf16* q = args.q + (b * args.q_heads + h) * kHeadSize;
    float dot = 0;
    for (std::int64_t d = 0; d < kHeadSize; ++d) dot += ToFloat(q[d]) * ToFloat(key[d]);
    if (mistake == Mistake::kLastHeadDropped && h == kHeads - 1) continue;
    const bool keep_negative = mistake == Mistake::kNoRelu || mistake == Mistake::kReluAfterHeadSum;
    if (dot < 0 && !keep_negative) dot = 0;
    sum += dot;
    largest = std::max(largest, dot);
  }
  if (mistake == Mistake::kMaxOfHeads) sum = largest;
  if (mistake == Mistake::kReluAfterHeadSum) sum = std::max(sum, 0.0f);
  if (mistake == Mistake::kRanksInBF16) sum = ToFloat(ToBF16(sum));
  return sum;
}

std::int64_t CandidatesOf(const Args& args, Mistake mistake, std::int64_t b, std::int64_t n) {
  std::int64_t count = n;
  if (mistake == Mistake::kCeilOfLength && args.seq_lens != nullptr) {
    count = (args.seq_lens[b] + kGroupTokens - 1) / kGroupTokens;
  }
  if (mistake == Mistake::kLastGroupDropped) count = n - 1;
  if (mistake == Mistake::kStaleSlotsScored)
    count = (n + kPageGroups - 1) / kPageGroups * kPageGroups;
  return std::clamp<std::int64_t>(count, 0, args.table_width * kPageGroups);
}

// Keys of the scores as a first histogram digit of 5 + 2 bits sees them: what a selector keeps of
// its threshold bin, when the bin is full, are the first 4096 entries in order of arrival.
void DropBeyondBin(const std::vector<float>& score, std::vector<std::int32_t>& ids) {
  constexpr std::size_t kBin = 4096;
  const auto digit = [&](std::int32_t id) {
    return ToF16(score[static_cast<std::size_t>(id)]).bits >> 8;
  };
  std::size_t seen = 0;
  const int first = digit(ids.front());
  std::erase_if(ids, [&](std::int32_t id) { return digit(id) == first && ++seen > kBin; });
}

void SelectRow(const Args& args, Mistake mistake, std::int64_t b, std::int64_t n,
               std::int32_t* out) {
  const std::int64_t candidates = CandidatesOf(args, mistake, b, n);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(candidates));
  std::iota(ids.begin(), ids.end(), 0);
  const std::int64_t wanted = mistake == Mistake::kOneTooFew ? kTopK - 1 : kTopK;
  if (candidates > wanted) {
    std::vector<float> score(ids.size());
    for (std::size_t j = 0; j < score.size(); ++j) {
      score[j] = Score(args, mistake, b, static_cast<std::int64_t>(j));
      if (std::isnan(score[j])) score[j] = -1;
      const auto from_end = candidates - static_cast<std::int64_t>(j);
      if (mistake == Mistake::kForcedWindow && from_end <= 64) score[j] = 1e30f;
      if (mistake == Mistake::kFirstPageSkipped && j < kPageGroups) score[j] = -1;
    }
    if (mistake == Mistake::kFullBin) DropBeyondBin(score, ids);
    std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t i, std::int32_t j) {
      const float x = score[static_cast<std::size_t>(i)], y = score[static_cast<std::size_t>(j)];
      if (x != y) return x > y;
      return mistake == Mistake::kHigherIdWins ? i > j : i < j;
    });
    ids.resize(static_cast<std::size_t>(wanted));
    if (mistake != Mistake::kInOrderOfScore) std::sort(ids.begin(), ids.end());
  }
  for (std::int64_t i = 0; i < kTopK; ++i) {
    const bool valid = i < static_cast<std::int64_t>(ids.size());
    out[i] = valid ? ids[static_cast<std::size_t>(i)] : mistake == Mistake::kZeroPadding ? 0 : -1;
    if (!valid || mistake != Mistake::kPhysicalIds) continue;
    const std::int64_t page = args.page_table[b * args.table_width + out[i] / kPageGroups];
    out[i] = static_cast<std::int32_t>(page * kPageGroups + out[i] % kPageGroups);
  }
}

std::int64_t LongestRow(const Problem& problem) {
  const paged::Batch batch = paged::MakeBatch(problem, PagesOfTokens);
  std::int64_t longest = 0;
  for (std::int64_t length : batch.lengths) longest = std::max(longest, length / kGroupTokens);
  return longest;
}

// Some row drops groups; otherwise scores do not matter.
bool Selects(const Problem& problem) { return LongestRow(problem) > kTopK; }

bool ShortRow(const Problem& problem) {
  const paged::Batch batch = paged::MakeBatch(problem, PagesOfTokens);
  return std::any_of(batch.lengths.begin(), batch.lengths.end(),
                     [](std::int64_t length) { return length / kGroupTokens < kTopK; });
}

bool SelectsWithTail(const Problem& problem) {
  const paged::Batch batch = paged::MakeBatch(problem, PagesOfTokens);
  return std::any_of(batch.lengths.begin(), batch.lengths.end(), [](std::int64_t length) {
    return length / kGroupTokens > kTopK && length % kGroupTokens != 0 &&
           length / kGroupTokens % kPageGroups != 0;
  });
}

bool SelectsInSecondRow(const Problem& problem) {
  const paged::Batch batch = paged::MakeBatch(problem, PagesOfTokens);
  return batch.rows() > 1 && batch.lengths[1] / kGroupTokens > kTopK;
}

// Long enough that a bin overflows, and that scores lie close together at the cut.
bool IsLong(const Problem& problem) { return LongestRow(problem) > 8192; }

bool OffsetsPass32Bits(const Problem& problem) {
  return Selects(problem) && paged::CachePages(problem) * kPageBytes > (1LL << 32);
}

Mutant Make(const char* name, const char* text, Mistake mistake,
            bool (*applies)(const Problem&) = Selects, const char* variant = "") {
  return {name, text,
          [mistake](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
            const Args args = Bind(problem, inputs, outputs);
            const std::vector<std::int64_t> counts = GroupCounts(args);
            for (std::int64_t b = 0; b < args.batch; ++b) {
              SelectRow(args, mistake, b, counts[static_cast<std::size_t>(b)],
                        args.block_ids + b * kTopK);
            }
          },
          applies, variant};
}

}  // namespace

std::vector<Mutant> Mutants() {
  return {
      Make("relu_missing", "adds negative head products", Mistake::kNoRelu),
      Make("relu_after_head_sum", "applies ReLU to the sum of the heads",
           Mistake::kReluAfterHeadSum),
      Make("max_of_heads", "takes the largest head instead of the sum", Mistake::kMaxOfHeads),
      Make("last_head_dropped", "sums three heads", Mistake::kLastHeadDropped),
      Make("ranks_in_bf16", "ranks scores rounded to bf16", Mistake::kRanksInBF16, IsLong),
      Make("length_rounded_up", "counts the incomplete tail as a group", Mistake::kCeilOfLength,
           SelectsWithTail),
      Make("last_group_dropped", "never selects the newest group", Mistake::kLastGroupDropped),
      Make("first_page_skipped", "leaves the first page out", Mistake::kFirstPageSkipped),
      Make("stale_slots_scored", "scores the slots behind the last group of its page",
           Mistake::kStaleSlotsScored, SelectsWithTail),
      Make("table_of_row_zero", "every row uses the page table of row 0", Mistake::kTableOfRowZero,
           SelectsInSecondRow),
      Make("next_slot", "reads the neighbouring group of the page", Mistake::kNextSlot),
      Make("neighbour_page", "reads the page before the right one", Mistake::kNeighbourPage),
      Make("page_of_64_groups", "divides the group by 64, as if pages held groups like tokens",
           Mistake::kPageOf64Groups),
      Make("physical_ids", "returns positions in the cache instead of logical groups",
           Mistake::kPhysicalIds),
      Make("one_too_few", "selects 511 groups", Mistake::kOneTooFew),
      Make("in_order_of_score", "leaves the ids in order of score", Mistake::kInOrderOfScore),
      Make("forced_window", "always takes the newest 64 groups", Mistake::kForcedWindow),
      Make("zero_padding", "fills unused outputs with 0", Mistake::kZeroPadding, ShortRow),
      Make("higher_id_wins", "prefers the higher id among equal scores", Mistake::kHigherIdWins,
           Selects, "ties"),
      Make("full_bin", "keeps 4096 entries of a histogram bin and drops the rest",
           Mistake::kFullBin, IsLong, "one_top_byte"),
      Make("page_in_16_bits", "keeps page numbers in 16 bits", Mistake::kPageIn16Bits, Selects,
           "original_address"),
      Make("offset_in_32_bits", "computes byte offsets in 32 bits", Mistake::kOffsetIn32Bits,
           OffsetsPass32Bits, "original_address"),
  };
}

}  // namespace assay::qsa_index_topk_decode
