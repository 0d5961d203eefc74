// Scoring and selection on vectors. Included by the translation unit of one instruction set (see
// cpu/lanes.h).
#pragma once

#include <algorithm>
#include <limits>

#include "cpu/dot_tile.h"
#include "ops/qsa_index_topk_decode/cpu_leaf.h"
#include "ops/qsa_index_topk_decode/spec.h"

namespace assay::qsa_index_topk_decode {
namespace {

using cpu::Floats;
using cpu::kDotRows;
using cpu::kLanes;

// --- scoring ---

// ReLU of every head's product, summed over the heads: the first kDotRows lanes hold the keys'
// scores. Zeros become +0; a NaN stays one, with its sign bit set.
[[gnu::always_inline]] inline Floats SumOfHeads(Floats dots) {
  const Floats zero = {};
  const Floats x = dots <= zero ? zero : dots;
  const Floats pairs = cpu::AddPartners<kDotRows>(x, std::make_index_sequence<kLanes>());
  const Floats sums = cpu::AddPartners<2 * kDotRows>(pairs, std::make_index_sequence<kLanes>());
  return sums == sums ? sums : cpu::Broadcast(-std::numeric_limits<float>::quiet_NaN());
}

// Pages lie anywhere, so the hardware's prefetchers stop at each page's end. Their lines are
// fetched kFetchAhead pages ahead. Addresses of kPagesAtOnce pages are looked up together before
// that: one after the other, the walks through the page tables would take as long as the scoring.
constexpr std::int64_t kFetchAhead = 2, kPagesAtOnce = 4;

class PagePrefetcher {
 public:
  explicit PagePrefetcher(const ScoreTask& task)
      : task_(task), first_(task.begin / kPageGroups), last_((task.end - 1) / kPageGroups) {}

  const std::byte* PageOf(std::int64_t page) const {
    return task_.cache + task_.pages[page] * task_.page_stride_bytes;
  }

  // Before page `page` is scored: looks later pages up, and remembers which one to fetch.
  [[gnu::always_inline]] void Enter(std::int64_t page) {
    if ((page - first_) % kPagesAtOnce == 0) {
      const std::int64_t begin = page + kPagesAtOnce;
      for (std::int64_t p = begin; p < begin + kPagesAtOnce && p <= last_; ++p) {
        __builtin_prefetch(PageOf(p));
      }
    }
    ahead_ = PageOf(std::min(page + kFetchAhead, last_));
  }

  // The lines of the page ahead that correspond to `count` slots from `slot`.
  [[gnu::always_inline]] void Fetch(int slot, int count) const {
    for (int byte = 0; byte < count * kKeyBytes; byte += 64) {
      __builtin_prefetch(ahead_ + slot * kKeyBytes + byte);
    }
  }

 private:
  const ScoreTask& task_;
  const std::int64_t first_, last_;
  const std::byte* ahead_ = nullptr;
};

void ScoreGroups(const ScoreTask& task) {
  constexpr int kSize = static_cast<int>(kHeadSize), kSlots = static_cast<int>(kPageGroups);
  alignas(64) float q[kHeads * kSize];
  for (int h = 0; h < kHeads; ++h) cpu::WidenPairs(task.q + h * kSize, kSize, q + h * kSize);
  PagePrefetcher prefetcher(task);
  for (std::int64_t group = task.begin; group < task.end; group += kSlots) {
    const int count = static_cast<int>(std::min<std::int64_t>(task.end - group, kSlots));
    const auto* keys = reinterpret_cast<const bf16*>(prefetcher.PageOf(group / kSlots));
    prefetcher.Enter(group / kSlots);
    alignas(64) float sums[kSlots + kLanes];
    for (int slot = 0; slot < count; slot += kDotRows) {
      const bf16* rows[kDotRows];
      for (int r = 0; r < kDotRows; ++r) rows[r] = keys + std::min(slot + r, count - 1) * kSize;
      prefetcher.Fetch(slot, kDotRows);
      cpu::Store(SumOfHeads(cpu::DotTile<kSize>(q, rows)), sums + slot);
    }
    std::memcpy(task.scores + (group - task.begin), sums,
                sizeof(float) * static_cast<std::size_t>(count));
  }
}

// --- selection ---

// Scores are ordered as the integers that their bits are: none is negative, and NaN, whose sign bit
// is set, comes last.
using Ints = std::int32_t __attribute__((vector_size(4 * kLanes)));

constexpr int kBlockVectors = 4;
constexpr int kBlock = kBlockVectors * kLanes;
static_assert(kBlock <= kSelectSlack, "padding of candidates fits the scratch");
constexpr std::int32_t kNothing = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kNanKey = -1;  // what a NaN counts as among candidates

[[gnu::always_inline]] inline Ints BroadcastInt(std::int32_t x) { return x - Ints{}; }

[[gnu::always_inline]] inline Ints LoadInts(const void* p) {
  Ints x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

[[gnu::always_inline]] inline Ints Larger(Ints a, Ints b) { return a > b ? a : b; }
[[gnu::always_inline]] inline Ints Smaller(Ints a, Ints b) { return a < b ? a : b; }

// Bit i of the result: lane i of `keys` is >= that of `limit`.
[[gnu::always_inline]] inline std::uint64_t AtLeast(Ints keys, Ints limit) {
#if ASSAY_LANES == 16
  return _mm512_cmpge_epi32_mask(reinterpret_cast<__m512i>(keys), reinterpret_cast<__m512i>(limit));
#elif ASSAY_LANES == 8
  const Ints mask = keys >= limit;
  return static_cast<unsigned>(_mm256_movemask_ps(reinterpret_cast<__m256>(mask)));
#else
  const Ints mask = keys >= limit;
  std::uint64_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane)
    bits |= static_cast<std::uint64_t>(mask[lane] & 1 << lane);
  return bits;
#endif
}

// f(scores of a block, position): scores beyond n appear as NaN.
template <class F>
[[gnu::always_inline]] inline void ForEachBlock(const float* scores, std::int64_t n, const F& f) {
  std::int64_t at = 0;
  for (; at + kBlock <= n; at += kBlock) f(scores + at, at);
  if (at == n) return;
  std::int32_t tail[kBlock];
  std::fill(tail, tail + kBlock, kNothing);
  std::memcpy(tail, scores + at, static_cast<std::size_t>(n - at) * sizeof(float));
  f(tail, at);
}

// How many of `count` keys, whole blocks, are >= limit.
std::int64_t CountAtLeast(const std::int32_t* keys, std::int64_t count, std::int32_t limit) {
  const Ints wanted = BroadcastInt(limit);
  Ints found[kBlockVectors] = {};
  for (std::int64_t i = 0; i < count; i += kBlock) {
    for (int v = 0; v < kBlockVectors; ++v) found[v] -= LoadInts(keys + i + v * kLanes) >= wanted;
  }
  const Ints all = (found[0] + found[1]) + (found[2] + found[3]);
  std::int64_t sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += all[lane];
  return sum;
}

// The top_k-th largest of `count` keys, whole blocks; kNanKey when fewer than top_k of them are
// numbers. Bisection between `low`, or the least of the keys, and the largest: some 25 counts.
std::int32_t KthLargest(const std::int32_t* keys, std::int64_t count, std::int64_t top_k) {
  Ints least = BroadcastInt(std::numeric_limits<std::int32_t>::max()),
       most = BroadcastInt(kNothing);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    least = Smaller(least, LoadInts(keys + i));
    most = Larger(most, LoadInts(keys + i));
  }
  std::int64_t low = least[0], high = most[0];
  for (int lane = 1; lane < kLanes; ++lane) {
    low = std::min<std::int64_t>(low, least[lane]);
    high = std::max<std::int64_t>(high, most[lane]);
  }
  low = std::max<std::int64_t>(low, 0);
  if (CountAtLeast(keys, count, static_cast<std::int32_t>(low)) < top_k) return kNanKey;
  ++high;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (CountAtLeast(keys, count, static_cast<std::int32_t>(middle)) >= top_k ? low : high) = middle;
  }
  return static_cast<std::int32_t>(low);
}
// Maxima of the columns i mod SelectColumns. A few columns at a time stay in registers.
void ColumnMaxima(const SelectTask& task, std::int64_t columns) {
  const std::int64_t whole = task.n / columns * columns;
  for (std::int64_t column = 0; column < columns; column += kBlock) {
    Ints most[kBlockVectors];
    for (Ints& x : most) x = BroadcastInt(kNothing);
    for (std::int64_t at = column; at < whole; at += columns) {
      for (int v = 0; v < kBlockVectors; ++v) {
        most[v] = Larger(most[v], LoadInts(task.scores + at + v * kLanes));
      }
    }
    std::memcpy(task.columns + column, most, sizeof most);
  }
  std::int32_t* column = task.columns;
  ForEachBlock(task.scores + whole, task.n - whole, [&](const void* scores, std::int64_t at) {
    for (int v = 0; v < kBlockVectors; ++v) {
      std::int32_t* most = column + at + v * kLanes;
      const Ints larger =
          Larger(LoadInts(most), LoadInts(static_cast<const std::int32_t*>(scores) + v * kLanes));
      std::memcpy(most, &larger, sizeof larger);
    }
  });
}

// Keys >= limit (all, when it is kNanKey) and their positions, in order; returns how many. Hits are
// rare, so blocks without one are passed over.
std::int64_t Collect(const SelectTask& task, std::int32_t limit) {
  const Ints wanted = BroadcastInt(limit == kNanKey ? kNothing : limit);
  std::int64_t count = 0;
  ForEachBlock(task.scores, task.n, [&](const void* scores, std::int64_t at) {
    const auto* keys = static_cast<const std::int32_t*>(scores);
    std::uint64_t hits = 0;
    for (int v = 0; v < kBlockVectors; ++v) {
      hits |= AtLeast(LoadInts(keys + v * kLanes), wanted) << (v * kLanes);
    }
    for (; hits != 0; hits &= hits - 1) {
      const int lane = __builtin_ctzll(hits);
      task.keys[count] = std::max(keys[lane], kNanKey);
      task.candidates[count] = static_cast<std::int32_t>(at + lane);
      count += at + lane < task.n;
    }
  });
  return count;
}

// The top_k-th largest column maximum is a lower bound of the answer; the few scores above it are
// candidates, in order of position, and the exact cut is found among them. In the worst case all
// scores are candidates.
void SelectTop(const SelectTask& task) {
  const std::int64_t columns = SelectColumns(task.top_k);
  ColumnMaxima(task, columns);
  const std::int64_t count = Collect(task, KthLargest(task.columns, columns, task.top_k));
  const std::int64_t padded = (count + kBlock - 1) / kBlock * kBlock;
  std::fill(task.keys + count, task.keys + padded, kNothing);
  const std::int32_t cut = KthLargest(task.keys, padded, task.top_k);
  std::int64_t equals_left = task.top_k - CountAtLeast(task.keys, padded, cut + 1);
  std::int32_t* id = task.ids;
  for (std::int64_t i = 0; i < count; ++i) {
    const bool taken = task.keys[i] > cut || (task.keys[i] == cut && equals_left-- > 0);
    if (taken) *id++ = task.candidates[i];
  }
}

constexpr Leaf kThisLeaf = {ScoreGroups, SelectTop};

}  // namespace
}  // namespace assay::qsa_index_topk_decode
