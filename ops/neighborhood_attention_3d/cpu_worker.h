// Computes work items of the CPU kernel; private to this room.
//
// An item is one (batch, head), a few time steps and a block of columns. The worker walks down the
// rows of the grid and keeps the packed K and V rows of all planes that the item sees in a ring: a
// row is packed once per item, and read from an L2 by every tile that sees it. While one row of
// tiles is computed, the packed row that the next one needs is fetched and packed bit by bit.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/neighborhood_attention_3d/cpu_kernel.h"
#include "ops/neighborhood_attention_3d/cpu_plan.h"

namespace assay::neighborhood_attention_3d {

struct Item {
  std::int64_t batch = 0, head = 0;
  std::int64_t first_t = 0, last_t = 0;  // inclusive
  ColumnBlock block;
};

class Worker {
 public:
  // All four outlive the worker.
  Worker(const Args& args, const Windows& windows, const TileLeaf& leaf, const Plan& plan);

  void Run(const Item& item);

 private:
  struct alignas(64) Line {
    std::uint32_t words[16];
  };
  // The Q and O rows of a tile.
  struct Rows {
    int count = 0;
    const bf16* q[kTileQueries] = {};
    bf16* o[kTileQueries] = {};
  };
  // Tiles of neighbouring columns that are computed together.
  struct Batch {
    std::int64_t first = 0, end = 0;  // columns of the plan
    Rows rows[kTilesAtOnce];
  };
  // A key group of packed row `row`, which is being packed plane by plane.
  struct PackCursor {
    std::int64_t row = 0, plane = 0, lane = 0;
  };

  std::int64_t Offset(const Strides& s, std::int64_t t, std::int64_t y, std::int64_t x) const {
    return item_.batch * s.batch + t * s.t + y * s.y + x * s.x + item_.head * s.head;
  }
  std::int64_t SlotOf(std::int64_t plane, std::int64_t packed_row) const {
    const std::int64_t slots = plan_.row_slots + 1;
    return (plane - planes_.begin) * slots + packed_row % slots;
  }
  std::uint32_t* KeyWords(std::int64_t slot) { return ring_[0].words + slot * row_words_; }
  std::uint32_t* ValueWords(std::int64_t slot) { return KeyWords(slot) + kChannelPairs * stride_; }

  std::int64_t GroupsOfRow() const;
  GroupRows RowsOf(const bf16* tensor, const Strides& strides, const PackCursor& at) const;
  void Advance(PackCursor& cursor) const;
  void Fetch(PackCursor& cursor, std::int64_t groups);
  void Pack(PackCursor& cursor, std::int64_t groups);

  void RunRow(const QueryGroup& row, std::int64_t next_packed);
  void FetchQueries(const Batch& batch);
  void FillBatch(std::int64_t t, const QueryGroup& row, std::int64_t first, Batch& batch) const;
  void MarkVisible(const QueryGroup& row);
  bool ListKeys(std::int64_t t, const QueryGroup& row);
  void RunBatch(const Batch& batch);
  void RunExactly(std::int64_t t, const QueryGroup& row, const Batch& batch);
  void RunQuery(std::int64_t t, std::int64_t y, std::int64_t x, const bf16* q, bf16* o);

  const Args& a_;
  const Windows& w_;
  const TileLeaf& leaf_;
  const Plan& plan_;

  Item item_;
  Span planes_;  // that any time step of the item sees
  std::int64_t stride_ = 0, row_words_ = 0;
  std::vector<Line> ring_;
  std::vector<char> finite_;  // of the V rows in the ring

  std::vector<std::uint16_t> visible_;  // [column of the block][part][query]
  std::vector<KeyBlock> blocks_;        // the keys of one row of tiles
  Tile tiles_[kTilesAtOnce];
  FetchList fetch_;  // during a batch
  std::vector<float> scores_;
};

}  // namespace assay::neighborhood_attention_3d
