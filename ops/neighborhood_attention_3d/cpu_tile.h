// The inner loops of the CPU kernel: one table of functions per instruction set.
//
// A tile is up to 8 queries that are neighbours in x (and y) and share the union of their windows.
// Keys come in groups of 16 lanes: 16 columns of one row of the grid, or 8 columns of two rows with
// both rows of a column in neighbouring lanes. K is packed transposed, so that a product with one
// query's channel pair covers a group; V is packed by pairs of lanes, so that a product with one
// query's two weights covers the channels.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace assay::neighborhood_attention_3d {

inline constexpr int kTileQueries = 8;
inline constexpr int kGroupKeys = 16;
inline constexpr int kGroupPairs = kGroupKeys / 2;
inline constexpr int kChannels = 64;
inline constexpr int kChannelPairs = kChannels / 2;
// Key groups of one online softmax step: the whole 3x7x7 window of a 2x2 tile is 12, and 12 groups
// divide into steps of 6, 4 and 3 (register tiles of 24 accumulators).
inline constexpr int kBlockGroups = 12;
// Tiles that go through a block together, as many as have kQueriesAtOnce queries: neighbours in x
// share most cache lines of their keys, and half a block of those stays in an L1.
inline constexpr int kTilesAtOnce = 4;
inline constexpr int kQueriesAtOnce = 16;

// A word holds two bf16, the even channel or lane in its low half.
struct KeyBlock {
  int groups = 0;
  std::int64_t k_stride = 0;  // words between channel pairs
  // [32 channel pairs][lanes]; entries behind `groups` can be read too, their scores are unused.
  const std::uint32_t* k[kBlockGroups] = {};
  const std::uint32_t* v[kBlockGroups] = {};  // [lane pairs][64 channels]
  int part[kBlockGroups] = {};                // which visibility masks apply
};

// Queries and what has been summed for them so far.
struct Tile {
  int queries = 0;
  std::int64_t lane = 0;  // of the block's rows, even: where the tile's 16 lanes start
  // [part][kTileQueries], bit i: lane i is in the query's window.
  const std::uint16_t* visible = nullptr;
  alignas(64) float q[kTileQueries * kChannels];                 // in the leaf's own form
  alignas(64) float s[kTileQueries][kBlockGroups * kGroupKeys];  // scores, then weights
  alignas(64) float o[kTileQueries][kChannels];
  alignas(64) float sum[kTileQueries][kGroupKeys];  // of weights, lane by lane
  alignas(64) float max[kGroupKeys];     // of score * log2(e), per query; the rest is padding
  alignas(64) float factor[kGroupKeys];  // of the last step: what earlier sums shrank by
  alignas(64) float largest[kTileQueries][kGroupKeys];  // visible scores of a step, lane by lane

  // The masks of key group `group` of a block, one per query.
  const std::uint16_t* VisibleOf(const KeyBlock& block, int group) const {
    return visible + block.part[group] * kTileQueries;
  }
};

// Neighbouring rows of 64 channels, `step` elements apart.
struct RowRun {
  const bf16* first = nullptr;
  std::int64_t step = 0;
  int count = 0;
};

// The source of the 16 lanes of a group: lane i is row i / fold of run i % fold; lanes behind the
// end of their run lie outside the grid.
struct GroupRows {
  int fold = 1;
  RowRun runs[2];

  const bf16* Lane(int i) const {
    const RowRun& run = runs[i % fold];
    return i / fold < run.count ? run.first + i / fold * run.step : nullptr;
  }
};

// Rows that will be needed soon. They lie a grid point apart, too far for the hardware to foresee,
// and asking for all at once would exhaust its miss buffers.
class FetchList {
 public:
  void Clear() {
    runs_.clear();
    rows_ = fetched_ = next_ = 0;
    run_ = 0;
  }
  void Add(const RowRun& run) {
    if (run.count == 0) return;
    runs_.push_back(run);
    rows_ += run.count;
  }

  int rows() const { return rows_; }
  int fetched() const { return fetched_; }
  // Asks for the rows before number `end`.
  void FetchTo(int end) {
    constexpr int kLineElements = 64 / sizeof(bf16);
    for (; fetched_ < end; ++fetched_) {
      const RowRun& run = runs_[run_];
      const bf16* row = run.first + next_ * run.step;
      __builtin_prefetch(row);
      __builtin_prefetch(row + kLineElements);
      if (++next_ == run.count) ++run_, next_ = 0;
    }
  }

 private:
  std::vector<RowRun> runs_;
  int rows_ = 0, fetched_ = 0;
  std::size_t run_ = 0;  // and row of it that is next
  int next_ = 0;
};

struct TileLeaf {
  const char* name;
  // K and V of the 16 lanes of a group, zeros outside the grid. pack_values returns false when the
  // group holds Inf or NaN: 0 times those would poison other queries.
  void (*pack_keys)(const GroupRows& rows, std::uint32_t* k, std::int64_t k_stride);
  bool (*pack_values)(const GroupRows& rows, std::uint32_t* v);
  // Starts a tile of `queries` rows; its lane and visibility are the caller's.
  void (*load)(const bf16* const* rows, int queries, Tile& tile);
  // One online softmax step over the visible keys of a block, for each of `count` tiles; fetches
  // rows up to `fetch_end` meanwhile.
  void (*attend)(const KeyBlock& block, Tile* tiles, int count, FetchList& fetch, int fetch_end);
  // rows = o / sum, rounded to nearest even.
  void (*store)(const Tile& tile, bf16* const* rows);
  // What this thread stored can now be handed to another one.
  void (*finish)();
};

const TileLeaf& BaselineLeaf();
const TileLeaf& Avx2Leaf();        // needs AVX2 and FMA
const TileLeaf& Avx512Leaf();      // needs AVX-512 F, VL, BW, DQ
const TileLeaf& Avx512Bf16Leaf();  // and AVX512-BF16

}  // namespace assay::neighborhood_attention_3d
