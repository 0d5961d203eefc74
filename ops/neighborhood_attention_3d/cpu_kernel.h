// The CPU kernel behind RunCpu, with the windows written out as intervals: the room's mutants and
// benchmarks call it with others. Private to this room.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/neighborhood_attention_3d/cpu_tile.h"
#include "ops/neighborhood_attention_3d/spec.h"

namespace assay::neighborhood_attention_3d {

// Keys [begin, end) of one axis that the query at one position sees; never empty.
struct Span {
  std::int64_t begin = 0, end = 0;
};

// One Span per position; begins and ends never decrease along an axis.
struct Windows {
  std::vector<Span> t, y, x;
};

// Windows of `window` keys around every position, shifted inwards at both borders.
std::vector<Span> ShiftedWindows(std::int64_t length, std::int64_t window);
Windows ShiftedWindows(const Args& args);

// O = softmax over the product of the three spans. `args` as Check allows; its kt, ky, kx are not
// looked at.
void RunWindows(const Args& args, const Windows& windows, const TileLeaf& leaf, int threads);

// The leaves that this processor can run, best first.
std::vector<const TileLeaf*> RunnableLeaves();

// (query, key) pairs for which scores are computed, over the pairs that the result needs.
double ExecutedOverUseful(const Windows& windows);

}  // namespace assay::neighborhood_attention_3d
