// Attention of 24 query heads over scattered tokens, on vectors. Included by the translation unit
// of one instruction set (see cpu/lanes.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/dot_tile.h"
#include "ops/qsa_sparse_gqa_decode/cpu_leaf.h"

namespace assay::qsa_sparse_gqa_decode {
namespace {

using cpu::Broadcast;
using cpu::Floats;
using cpu::kDotQueries;
using cpu::kDotRows;
using cpu::kLanes;
using cpu::Load;
using cpu::Store;
using cpu::Words;

constexpr int kSize = static_cast<int>(kHeadSize);
constexpr int kQueries = static_cast<int>(kGroupHeads);  // of one KV head
constexpr int kQuads = kQueries / kDotQueries;
constexpr int kLine = 32;  // bf16 elements of a cache line

// Tokens of one step of the online softmax. Their K and V are 128 KB, which L2 holds twice: for
// this tile and for the next one. The last tile of a part may be a little longer, so that the tail
// of a row is none of its own.
constexpr int kTile = static_cast<int>(kTokensAhead);
constexpr int kLongestTile = kTile + 8;
constexpr int kSteps = kLongestTile / kDotRows;
static_assert(kLongestTile % kDotRows == 0 && kQueries % kDotQueries == 0,
              "tiles are whole dot tiles");

// Weights of a tile and a KV head as DotTile leaves them, [quad][step][query * kDotRows + row].
using Weights = float[kQuads * kSteps * kLanes];

constexpr unsigned StepOffset(unsigned quad, unsigned step) {
  return (quad * kSteps + step) * kLanes;
}
constexpr unsigned WeightOffset(unsigned head, unsigned token) {
  return StepOffset(head / kDotQueries, token / kDotRows) + head % kDotQueries * kDotRows +
         token % kDotRows;
}

// The values of a tile for the heads of a KV head, and what becomes of them.
struct ValueTile {
  const bf16* cache = nullptr;
  int kv_head = 0;
  const std::int64_t* tokens = nullptr;
  int count = 0;                   // of tokens
  const float* weights = nullptr;  // Weights
  const float* factor = nullptr;   // [12], of the sums so far
  float* sums = nullptr;           // [12, 256]: becomes factor * sums + weights V
};

// A group of 4 tokens is a run of 64 cache lines, a memory page of its own. While a tile is worked
// on, the runs of the next one are fetched into L2, each line after line: that is the pattern which
// the hardware's own prefetcher joins, and only with it are enough requests in flight. (Inline: a
// function that only prefetches looks like one that does nothing.)
constexpr int kRunLines = static_cast<int>(kGroupTokens * kTokenElements) / kLine;

[[gnu::always_inline]] inline void FetchLine(const bf16* cache, const std::int64_t* tile, int run,
                                             int line) {
  constexpr int kIntoL2 = 2;
  __builtin_prefetch(cache + tile[kTile + run * kGroupTokens] + line * kLine, 0, kIntoL2);
}

// One of the kTile / 4 runs of V, spread over the work on one line of channels of all tokens. And
// the line that the token needs after this one, from L2.
[[gnu::always_inline]] inline void FetchValues(const ValueTile& tile, int c, int token) {
  constexpr int kVectors = kLine / (2 * kLanes);  // of pairs in a line
  const int turn = c % kLine / (2 * kLanes) * kTile + token;
  if (turn % kVectors != 0 || token >= kTile) return;
  FetchLine(tile.cache, tile.tokens, tile.kv_head * (kSize / kLine) + c / kLine, turn / kVectors);
  __builtin_prefetch(tile.cache + tile.tokens[token] + tile.kv_head * kSize + c + kLine);
}
static_assert(kTile / kGroupTokens == kKvHeads * kSize / kLine && kRunLines == kTile,
              "as many runs as lines of channels, as many lines as tokens");

// 2^x for x <= 0 and NaN, 0 below -126. x = n + f, |f| <= 1/2; 2^f by its Taylor series, relative
// error 2e-8.
[[gnu::always_inline]] inline Floats Exp2(Floats x) {
  const Floats magic = Broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Floats shifted = x + magic;
  const Floats f = x - (shifted - magic);
  Floats sum = Broadcast(1.5403530e-4f);
  sum = sum * f + 1.3333558e-3f;
  sum = sum * f + 9.6181291e-3f;
  sum = sum * f + 5.5504109e-2f;
  sum = sum * f + 2.4022651e-1f;
  sum = sum * f + 6.9314718e-1f;
  sum = sum * f + 1.0f;
  const Words power = (reinterpret_cast<Words>(shifted) + 127u) << 23;
  return x < Broadcast(-126.0f) ? Floats{} : sum * reinterpret_cast<Floats>(power);
}

[[gnu::always_inline]] inline Floats Larger(Floats a, Floats b) { return a > b ? a : b; }

template <int kStep, std::size_t... kLane>
[[gnu::always_inline]] inline Floats Partners(Floats x, std::index_sequence<kLane...>) {
  return __builtin_shufflevector(x, x, static_cast<int>(kLane ^ kStep)...);
}

// The largest of the kDotRows lanes of every query, in all of them.
template <int kStep = kDotRows / 2>
[[gnu::always_inline]] inline Floats LargestOfRows(Floats x) {
  if constexpr (kStep == 0) {
    return x;
  } else {
    return LargestOfRows<kStep / 2>(
        Larger(x, Partners<kStep>(x, std::make_index_sequence<kLanes>())));
  }
}

template <int kStep = kDotRows / 2>
[[gnu::always_inline]] inline Floats SumOfRows(Floats x) {
  if constexpr (kStep == 0) {
    return x;
  } else {
    return SumOfRows<kStep / 2>(cpu::AddPartners<kStep>(x, std::make_index_sequence<kLanes>()));
  }
}

// --- the two products in fp32 ---

class ProductsF32 {
 public:
  void SetQuery(int head, const bf16* q) { cpu::WidenPairs(q, kSize, q_ + head * kSize); }

  [[gnu::always_inline]] Floats Dots(int quad, const bf16* const (&rows)[kDotRows]) const {
    return cpu::DotTile<kSize>(q_ + quad * kDotQueries * kSize, rows);
  }

  // As many heads at once as registers hold two vectors of sums.
  static void Accumulate(const ValueTile& tile) {
    constexpr int kAtOnce = kLanes == 16 ? kQueries : kDotQueries;
    for (int c = 0; c < kSize; c += 2 * kLanes) {
      for (int head = 0; head < kQueries; head += kAtOnce) AccumulateHeads<kAtOnce>(tile, c, head);
    }
  }

  static void Narrow(const float* values, bf16* out) { cpu::NarrowPairs(values, kSize, out); }

 private:
  // A function of its own: constants of other loops would push sums out of the registers.
  template <int kAtOnce>
  [[gnu::noinline]] static void AccumulateHeads(const ValueTile& tile, int c, int head) {
    Floats even[kAtOnce], odd[kAtOnce];
    float* sums = tile.sums + head * kSize + c;
#pragma GCC unroll 12
    for (int i = 0; i < kAtOnce; ++i) {
      const Floats factor = Broadcast(tile.factor[head + i]);
      even[i] = Load(sums + i * kSize) * factor;
      odd[i] = Load(sums + i * kSize + kLanes) * factor;
    }
    const bf16* values = tile.cache + tile.kv_head * kSize + c;
    const float* weights = tile.weights + WeightOffset(static_cast<unsigned>(head), 0);
    for (int token = 0; token < tile.count; ++token) {
      const cpu::Pairs v = cpu::LoadPairs(values + tile.tokens[token]);
      if (head == 0) FetchValues(tile, c, token);
      const float* weight = weights + WeightOffset(0, static_cast<unsigned>(token));
#pragma GCC unroll 12
      for (int i = 0; i < kAtOnce; ++i) {
        const Floats p = Broadcast(weight[WeightOffset(static_cast<unsigned>(i), 0)]);
        even[i] += p * v.even;
        odd[i] += p * v.odd;
      }
    }
#pragma GCC unroll 12
    for (int i = 0; i < kAtOnce; ++i) {
      Store(even[i], sums + i * kSize);
      Store(odd[i], sums + i * kSize + kLanes);
    }
  }

  alignas(64) float q_[kQueries * kSize];
};

// --- the softmax around them ---

template <class Products>
class Attention {
 public:
  explicit Attention(const AttendTask& task) : task_(task) {
    for (int g = 0; g < kKvHeads; ++g) {
      for (int h = 0; h < kQueries; ++h) {
        products_[g].SetQuery(h, task.q + (g * kQueries + h) * kSize);
      }
      for (int quad = 0; quad < kQuads; ++quad) {
        // Finite, so that no infinity is subtracted from another.
        largest_[g][quad] = Broadcast(std::numeric_limits<float>::lowest());
        sum_[g][quad] = Floats{};
      }
    }
    std::fill(task.to->values, task.to->values + kHeads * kSize, 0.0f);
  }

  void Run() {
    LookUp(task_.tokens);
    for (first_ = 0; first_ < task_.count; first_ += tile_) {
      const std::int64_t left = task_.count - first_;
      tile_ = left <= kLongestTile ? static_cast<int>(left) : kTile;
      LookUp(task_.tokens + first_ + kTile);
      for (int g = 0; g < kKvHeads; ++g) {
        Scores(g);
        for (int quad = 0; quad < kQuads; ++quad) Softmax(g, quad);
        Products::Accumulate({task_.v_cache, g, task_.tokens + first_, tile_, weights_, factor_,
                              task_.to->values + g * kQueries * kSize});
      }
    }
    for (int g = 0; g < kKvHeads; ++g) {
      for (int quad = 0; quad < kQuads; ++quad) StoreSums(g, quad);
    }
  }

 private:
  int steps() const { return (tile_ + kDotRows - 1) / kDotRows; }

  float* StepWeights(int quad, int step) {
    return weights_ + StepOffset(static_cast<unsigned>(quad), static_cast<unsigned>(step));
  }

  // Each group of tokens is a memory page of its own. The addresses of a tile's groups are looked
  // up together: one after the other, the walks through the page tables would take longer than the
  // attention.
  [[gnu::always_inline]] void LookUp(const std::int64_t* tokens) const {
    for (int i = 0; i < kTile; i += static_cast<int>(kGroupTokens)) {
      __builtin_prefetch(task_.k_cache + tokens[i]);
      __builtin_prefetch(task_.v_cache + tokens[i]);
    }
  }

  // Half a run of K with each KV head.
  [[gnu::always_inline]] void FetchKeys(int g, int step) const {
    constexpr int kLines = kRunLines / kKvHeads * kDotRows / static_cast<int>(kGroupTokens);
    const int token = step * kDotRows, run = token / static_cast<int>(kGroupTokens);
    if (token >= kTile) return;
    const int first = g * kRunLines / static_cast<int>(kKvHeads) +
                      token % static_cast<int>(kGroupTokens) / kDotRows * kLines;
    for (int line = first; line < first + kLines; ++line) {
      FetchLine(task_.k_cache, task_.tokens + first_, run, line);
    }
  }

  [[gnu::noinline]] void Scores(int g) {
    const Floats scale = Broadcast(task_.scale_log2e);
    const bf16* k_cache = task_.k_cache + g * kSize;
    for (int step = 0; step < steps(); ++step) {
      const std::int64_t* tokens = task_.tokens + first_ + step * kDotRows;
      const bf16* rows[kDotRows];
      for (int r = 0; r < kDotRows; ++r) {
        rows[r] = k_cache + tokens[std::min(r, tile_ - 1 - step * kDotRows)];
      }
      FetchKeys(g, step);
      for (int quad = 0; quad < kQuads; ++quad) {
        Store(products_[g].Dots(quad, rows) * scale, StepWeights(quad, step));
      }
    }
    // Rows that only fill the last step up.
    for (int token = tile_; token < steps() * kDotRows; ++token) {
      for (unsigned h = 0; h < kQueries; ++h) {
        weights_[WeightOffset(h, static_cast<unsigned>(token))] =
            -std::numeric_limits<float>::infinity();
      }
    }
  }

  // Scores become weights; factor_ is what earlier sums must be multiplied by.
  void Softmax(int g, int quad) {
    Floats largest = largest_[g][quad];
    for (int step = 0; step < steps(); ++step) {
      largest = Larger(largest, Load(StepWeights(quad, step)));
    }
    largest = LargestOfRows(largest);
    const Floats factor = Exp2(largest_[g][quad] - largest);
    Floats sum = sum_[g][quad] * factor;
    for (int step = 0; step < steps(); ++step) {
      const Floats p = Exp2(Load(StepWeights(quad, step)) - largest);
      Store(p, StepWeights(quad, step));
      sum += p;
    }
    largest_[g][quad] = largest;
    sum_[g][quad] = sum;
    alignas(64) float lanes[kLanes];
    Store(factor, lanes);
    for (int i = 0; i < kDotQueries; ++i) factor_[quad * kDotQueries + i] = lanes[i * kDotRows];
  }

  void StoreSums(int g, int quad) {
    alignas(64) float largest[kLanes], sum[kLanes];
    Store(largest_[g][quad], largest);
    Store(SumOfRows(sum_[g][quad]), sum);
    for (int i = 0; i < kDotQueries; ++i) {
      const int head = g * kQueries + quad * kDotQueries + i;
      task_.to->largest[head] = largest[i * kDotRows];
      task_.to->sum[head] = sum[i * kDotRows];
    }
  }

  const AttendTask& task_;
  std::int64_t first_ = 0;  // token of the tile
  int tile_ = 0;            // tokens in it
  Products products_[kKvHeads];
  alignas(64) Weights weights_;
  alignas(64) Floats largest_[kKvHeads][kQuads], sum_[kKvHeads][kQuads];
  float factor_[kQueries] = {};
};

template <class Products>
void Attend(const AttendTask& task) {
  Attention<Products>(task).Run();
}

// Joins the parts of one head in their order.
template <class Products>
void Merge(const MergeTask& task) {
  float largest = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < task.count; ++i) {
    largest = std::max(largest, task.parts[i].largest[task.head]);
  }
  alignas(64) float values[kSize] = {};
  float sum = 0;
  for (std::int64_t i = 0; i < task.count; ++i) {
    const float* part = task.parts[i].values + task.head * kSize;
    const float factor = std::exp2(task.parts[i].largest[task.head] - largest);
    sum += factor * task.parts[i].sum[task.head];
    for (int c = 0; c < kSize; c += kLanes) {
      Store(Load(values + c) + Load(part + c) * factor, values + c);
    }
  }
  if (task.count > 0) {
    for (int c = 0; c < kSize; c += kLanes) Store(Load(values + c) / sum, values + c);
  }
  Products::Narrow(values, task.out);
  if (task.lse != nullptr) *task.lse = (largest + std::log2(sum)) * 0.69314718f;
}

}  // namespace
}  // namespace assay::qsa_sparse_gqa_decode
