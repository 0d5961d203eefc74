// Which kernels a batch gets: the cheapest by a model of their times, fitted to measurements on one
// H200 (README.md).
#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>

#include "ops/gdn_prefill/sm90.h"
#include "ops/gdn_prefill/spec.h"

namespace assay::gdn_prefill {
namespace {

// Up to here the recurrence's time per token costs less than the chunk path's two launches.
constexpr std::int64_t kRecurrentTokens = 64;
// Up to here chunks of 8 tokens on fp32 units are quicker than one or two of 16 on tensor cores.
constexpr std::int64_t kChunksOf8Tokens = 24;
constexpr std::int64_t kChunkTokens = 64;

// Up to these the launch of CTAs decides: more of them only while each finds a place of its own.
constexpr std::int64_t kShortTokens = 450, kFewSequences = 9;

struct Batch {
  std::int64_t sequences, tokens = 0;    // tokens of the longest sequence
  std::int64_t chunks = 0, longest = 0;  // of all, of the longest
};

// A chain kernel: microseconds of a chunk of the longest sequence and where all places are taken,
// and of what (sequence, head, rows) costs besides; rows of V, and CTAs that the GPU holds.
struct Chain {
  double longest_chunk, chunk, cta;
  int rows, places;
};
constexpr Chain kNarrow16{0.975, 0.975, 2.0, 16, 132}, kNarrow32{1.39, 1.39, 2.8, 32, 132},
    kWide{1.4, 1.4, 2.8, 64, 132}, kPaired{2.0, 2.3, 5.6, 64, 264};

// The longest sequence, or all of them on all places.
double Microseconds(const Chain& chain, const Batch& batch) {
  const double ctas = static_cast<double>(kValueHeads * kHeadSize / chain.rows) / chain.places;
  return std::max(static_cast<double>(batch.longest) * chain.longest_chunk + chain.cta,
                  (static_cast<double>(batch.chunks) * chain.chunk +
                   static_cast<double>(batch.sequences) * chain.cta) *
                      ctas);
}

// About 12 pieces of a batch's chunks are best; then it costs this.
std::int64_t PieceChunks(const Batch& batch) {
  return std::max<std::int64_t>(8, (batch.chunks + 11) / 12);
}
double MicrosecondsInPieces(const Batch& batch) {
  return 35 + 0.34 * static_cast<double>(batch.chunks);
}

Plan ChooseChain(const Batch& batch) {
  if (batch.tokens <= kShortTokens && batch.sequences <= kFewSequences) {
    return {false, batch.sequences <= 2 ? 16 : 32};
  }
  Plan best{false, 16};
  double least = Microseconds(kNarrow16, batch);
  const auto consider = [&](double microseconds, const Plan& plan) {
    if (microseconds >= least) return;
    least = microseconds;
    best = plan;
  };
  consider(Microseconds(kNarrow32, batch), {false, 32});
  consider(Microseconds(kWide, batch), {false, 64});
  consider(Microseconds(kPaired, batch), {false, 64, true});
  consider(MicrosecondsInPieces(batch), {false, 64, true, static_cast<int>(PieceChunks(batch))});
  return best;
}

}  // namespace

WideSchedule ScheduleWide(const std::int64_t* cu_seqlens, std::int64_t sequences, int places) {
  const auto cost = [&](std::int64_t s) {
    const std::int64_t tokens = cu_seqlens[s + 1] - cu_seqlens[s];
    return static_cast<double>((tokens + kChunkTokens - 1) / kChunkTokens) * kWide.chunk +
           kWide.cta;
  };
  std::vector<std::int64_t> order(static_cast<std::size_t>(sequences));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t x, std::int64_t y) { return cost(x) > cost(y); });
  // The longest first, each to the CTA that would be free first.
  constexpr std::int64_t kItems = 2 * kValueHeads;  // of a sequence
  const auto ctas = static_cast<std::size_t>(std::min<std::int64_t>(places, sequences * kItems));
  std::vector<std::vector<std::int32_t>> lists(ctas);
  std::priority_queue<std::pair<double, std::size_t>, std::vector<std::pair<double, std::size_t>>,
                      std::greater<>>
      free_at;
  for (std::size_t c = 0; c < ctas; ++c) free_at.emplace(0, c);
  for (const std::int64_t s : order) {
    for (std::int64_t i = 0; i < kItems; ++i) {
      const auto [when, c] = free_at.top();
      free_at.pop();
      lists[c].push_back(static_cast<std::int32_t>(s * kItems + i));
      free_at.emplace(when + cost(s), c);
    }
  }
  WideSchedule schedule;
  for (const std::vector<std::int32_t>& list : lists) {
    schedule.items.insert(schedule.items.end(), list.begin(), list.end());
    schedule.first_item.push_back(static_cast<std::int32_t>(schedule.items.size()));
  }
  return schedule;
}

Plan ChoosePlan(const std::int64_t* cu_seqlens, std::int64_t sequences) {
  Batch batch{sequences};
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::int64_t tokens = cu_seqlens[s + 1] - cu_seqlens[s];
    batch.tokens = std::max(batch.tokens, tokens);
    batch.chunks += (tokens + kChunkTokens - 1) / kChunkTokens;
  }
  batch.longest = (batch.tokens + kChunkTokens - 1) / kChunkTokens;
  if (batch.tokens > kRecurrentTokens) return ChooseChain(batch);
  Plan plan{true};
  plan.recurrent16 = batch.tokens > kChunksOf8Tokens;
  return plan;
}

}  // namespace assay::gdn_prefill
