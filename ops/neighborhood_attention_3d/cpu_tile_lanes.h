// Packing and the fp32 form of a tile step on vectors, written once for every instruction set.
// Included by the translation unit of one set (see cpu/lanes.h).
#pragma once

#include <limits>
#include <type_traits>

#include "cpu/lanes.h"
#include "ops/neighborhood_attention_3d/cpu_tile.h"

namespace assay::neighborhood_attention_3d {
namespace {

using cpu::Broadcast;
using cpu::Floats;
using cpu::Halves;
using cpu::kLanes;
using cpu::Load;
using cpu::Store;
using cpu::Words;

constexpr float kLog2E = 1.44269504f;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

inline Words LoadWords(const void* from) {
  Words words;
  std::memcpy(&words, from, sizeof words);
  return words;
}
inline void StoreWords(Words words, std::uint32_t* to) { std::memcpy(to, &words, sizeof words); }

inline Words LoadHalves(const bf16* from) {
  if (from == nullptr) return Words{};
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  return __builtin_convertvector(halves, Words);
}

// --- packing ---

bool PackValues(const GroupRows& rows, std::uint32_t* v) {
  // Adding 1 to an exponent field of ones carries into the sign bit, which was cleared.
  constexpr std::uint32_t kExponents = 0x7F807F80u, kOnes = 0x00800080u, kCarries = 0x80008000u;
  Words carries{};
  for (int lane = 0; lane < kGroupKeys; lane += 2) {
    const bf16 *even = rows.Lane(lane), *odd = rows.Lane(lane + 1);
    for (int channel = 0; channel < kChannels; channel += kLanes) {
      const Words words = LoadHalves(even == nullptr ? nullptr : even + channel) |
                          (LoadHalves(odd == nullptr ? nullptr : odd + channel) << 16);
      carries |= (words & kExponents) + kOnes;
      StoreWords(words, v + lane / 2 * kChannels + channel);
    }
  }
  std::uint32_t any = 0;
  for (int i = 0; i < kLanes; ++i) any |= carries[i];
  return (any & kCarries) == 0;
}

// Spreads the rows of a fetch list up to number `end` over steps of equal size.
class FetchSteps {
 public:
  FetchSteps(FetchList& list, int end, int steps)
      : list_(list), begin_(list.fetched()), rows_(end - begin_), steps_(steps) {}
  void Next() { list_.FetchTo(begin_ + rows_ * ++step_ / steps_); }

 private:
  FetchList& list_;
  const int begin_, rows_, steps_;
  int step_ = 0;
};

void ResetSums(int queries, Tile& tile) {
  tile.queries = queries;
  for (int i = 0; i < kGroupKeys; ++i) tile.max[i] = kMinusInfinity;
  for (int r = 0; r < queries; ++r) {
    for (int c = 0; c < kChannels; c += kLanes) Store(Floats{}, &tile.o[r][c]);
    for (int i = 0; i < kGroupKeys; i += kLanes) Store(Floats{}, &tile.sum[r][i]);
  }
}

// body(std::integral_constant<int, queries>): row counts are compile-time in the register tiles.
template <class Body>
void WithRows(int queries, const Body& body) {
  switch (queries) {
    case 1:
      return body(std::integral_constant<int, 1>{});
    case 2:
      return body(std::integral_constant<int, 2>{});
    case 3:
      return body(std::integral_constant<int, 3>{});
    case 4:
      return body(std::integral_constant<int, 4>{});
    case 5:
      return body(std::integral_constant<int, 5>{});
    case 6:
      return body(std::integral_constant<int, 6>{});
    case 7:
      return body(std::integral_constant<int, 7>{});
    default:
      return body(std::integral_constant<int, kTileQueries>{});
  }
}

}  // namespace
}  // namespace assay::neighborhood_attention_3d
