// Dot products of bf16 rows with four fp32 queries, for decode kernels whose rows come one by one
// from pages. For translation units of one instruction set, like cpu/lanes.h which it builds on.
#pragma once

#include "cpu/lanes.h"

namespace assay::cpu {
namespace {

constexpr int kDotQueries = 4;
constexpr int kDotRows = kLanes / kDotQueries;  // 4, 2 or 1 rows at a time fill one vector of sums

// Channels 2i and 2i + 1 of bf16 as two vectors. Widening pairs in place costs a shift and a mask;
// widening in channel order would need lane crossings.
struct Pairs {
  Floats even, odd;
};

[[gnu::always_inline]] inline Pairs LoadPairs(const bf16* p) {
  Words words;
  std::memcpy(&words, p, sizeof words);
  return {reinterpret_cast<Floats>(words << 16), reinterpret_cast<Floats>(words & 0xFFFF0000u)};
}

// fp32 copy of a row in the channel order of LoadPairs; `channels` is a multiple of 2 * kLanes.
inline void WidenPairs(const bf16* row, int channels, float* to) {
  for (int c = 0; c < channels; c += 2 * kLanes) {
    const Pairs pairs = LoadPairs(row + c);
    Store(pairs.even, to + c);
    Store(pairs.odd, to + c + kLanes);
  }
}

// The way back: `from` in the order of LoadPairs, rounded to nearest even; NaN kept quiet.
inline void NarrowPairs(const float* from, int channels, bf16* row) {
  for (int c = 0; c < channels; c += 2 * kLanes) {
    bf16 even[kLanes], odd[kLanes];
    Store(Load(from + c), even);
    Store(Load(from + c + kLanes), odd);
    for (int i = 0; i < kLanes; ++i) {
      row[c + 2 * i] = even[i];
      row[c + 2 * i + 1] = odd[i];
    }
  }
}

// Lane i of the result is the sum of rows[i], in a fixed tree order. Destroys `rows`.
template <int kStep = 1>
[[gnu::always_inline]] inline Floats SumRows(Floats (&rows)[kLanes]) {
  if constexpr (kStep == kLanes) {
    return rows[0];
  } else {
#pragma GCC unroll 16
    for (int row = 0; row < kLanes; row += 2 * kStep) {
      ExchangeBlocks<kStep>(rows[row], rows[row + kStep], std::make_index_sequence<kLanes>());
      rows[row] += rows[row + kStep];
    }
    return SumRows<2 * kStep>(rows);
  }
}

// Lane query * kDotRows + row of the result is the dot product of q[query] and rows[row].
// q [4, kChannels] is in the order of LoadPairs.
template <int kChannels>
[[gnu::always_inline]] inline Floats DotTile(const float* q, const bf16* const (&rows)[kDotRows]) {
  static_assert(kChannels % (2 * kLanes) == 0, "a row is whole vectors of pairs");
  Floats sum[kLanes] = {};
#pragma GCC unroll 4
  for (int c = 0; c < kChannels; c += 2 * kLanes) {
    Pairs x[kDotRows];
#pragma GCC unroll 4
    for (int r = 0; r < kDotRows; ++r) x[r] = LoadPairs(rows[r] + c);
#pragma GCC unroll 4
    for (int i = 0; i < kDotQueries; ++i) {
      const Floats even = Load(q + i * kChannels + c), odd = Load(q + i * kChannels + c + kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < kDotRows; ++r) {
        sum[i * kDotRows + r] += x[r].even * even;
        sum[i * kDotRows + r] += x[r].odd * odd;
      }
    }
  }
  return SumRows(sum);
}

}  // namespace
}  // namespace assay::cpu
