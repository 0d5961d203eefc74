#include "ops/neighborhood_attention_3d/cpu_worker.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace assay::neighborhood_attention_3d {
namespace {

constexpr std::int64_t kNoRow = -1;

std::size_t At(std::int64_t index) { return static_cast<std::size_t>(index); }

}  // namespace

Worker::Worker(const Args& args, const Windows& windows, const TileLeaf& leaf, const Plan& plan)
    : a_(args), w_(windows), leaf_(leaf), plan_(plan) {}

void Worker::Run(const Item& item) {
  item_ = item;
  planes_ = Span{w_.t[At(item.first_t)].begin, w_.t[At(item.last_t)].end};
  stride_ = Plan::KeyStride(item.block.lanes);
  row_words_ = Plan::RowWords(item.block.lanes);
  const std::int64_t slots = (planes_.end - planes_.begin) * (plan_.row_slots + 1);
  ring_.resize(std::max(ring_.size(), At(slots * row_words_ / 16)));
  finite_.assign(At(slots), 1);
  const std::int64_t packed_rows = (a_.y + plan_.fold - 1) / plan_.fold;
  std::int64_t packed = 0;  // packed rows below this one are done
  for (const QueryGroup& row : plan_.rows) {
    const std::int64_t end = (row.end + plan_.fold - 1) / plan_.fold;
    for (; packed < end; ++packed) {
      PackCursor cursor{packed, planes_.begin, 0};
      Pack(cursor, GroupsOfRow());
    }
    // A tile sees at most row_slots rows, so that the slot of the row behind them is free.
    const bool more = packed == end && end < packed_rows;
    RunRow(row, more ? packed : kNoRow);
    if (more) ++packed;
  }
  leaf_.finish();
}

// --- keys ---

// Key groups of one packed row in all planes.
std::int64_t Worker::GroupsOfRow() const {
  return (planes_.end - planes_.begin) * (item_.block.lanes / kGroupKeys);
}

GroupRows Worker::RowsOf(const bf16* tensor, const Strides& strides, const PackCursor& at) const {
  const std::int64_t fold = plan_.fold, x = item_.block.origin + at.lane / fold;
  GroupRows rows;
  rows.fold = plan_.fold;
  for (std::int64_t f = 0; f < fold; ++f) {
    const std::int64_t y = at.row * fold + f;
    if (y >= a_.y || x >= a_.x) continue;
    rows.runs[f] = {tensor + Offset(strides, at.plane, y, x), strides.x,
                    static_cast<int>(std::min(kGroupKeys / fold, a_.x - x))};
  }
  return rows;
}

void Worker::Advance(PackCursor& cursor) const {
  cursor.lane += kGroupKeys;
  if (cursor.lane < item_.block.lanes) return;
  cursor.lane = 0;
  ++cursor.plane;
}

void Worker::Fetch(PackCursor& cursor, std::int64_t groups) {
  for (; groups > 0; --groups) {
    const GroupRows k = RowsOf(a_.k, a_.k_strides, cursor), v = RowsOf(a_.v, a_.v_strides, cursor);
    for (int f = 0; f < plan_.fold; ++f) {
      fetch_.Add(k.runs[f]);
      fetch_.Add(v.runs[f]);
    }
    Advance(cursor);
  }
}

void Worker::Pack(PackCursor& cursor, std::int64_t groups) {
  for (; groups > 0; --groups) {
    const std::int64_t slot = SlotOf(cursor.plane, cursor.row);
    leaf_.pack_keys(RowsOf(a_.k, a_.k_strides, cursor), KeyWords(slot) + cursor.lane, stride_);
    const bool finite = leaf_.pack_values(RowsOf(a_.v, a_.v_strides, cursor),
                                          ValueWords(slot) + cursor.lane / 2 * kChannels);
    char& all_finite = finite_[At(slot)];
    all_finite = finite && (cursor.lane == 0 || all_finite != 0) ? 1 : 0;
    Advance(cursor);
  }
}

// --- tiles ---

// The largest batch of columns from `first` on.
void Worker::FillBatch(std::int64_t t, const QueryGroup& row, std::int64_t first,
                       Batch& batch) const {
  batch.first = batch.end = first;
  for (std::int64_t queries = 0; batch.end < item_.block.end; ++batch.end) {
    const QueryGroup& column = plan_.columns[At(batch.end)];
    queries += row.count * column.count;
    if (batch.end > first && (batch.end - first == kTilesAtOnce || queries > kQueriesAtOnce)) break;
    Rows& rows = batch.rows[batch.end - first];
    const bf16* q = a_.q + Offset(a_.q_strides, t, row.first, column.first);
    bf16* o = a_.o + Offset(a_.o_strides, t, row.first, column.first);
    rows.count = 0;
    for (std::int64_t j = 0; j < column.count; ++j) {
      for (std::int64_t i = 0; i < row.count; ++i, ++rows.count) {
        rows.q[rows.count] = q + i * a_.q_strides.y + j * a_.q_strides.x;
        rows.o[rows.count] = o + i * a_.o_strides.y + j * a_.o_strides.x;
      }
    }
  }
}

void Worker::FetchQueries(const Batch& batch) {
  for (std::int64_t i = 0; i < batch.end - batch.first; ++i) {
    const Rows& rows = batch.rows[i];
    for (int r = 0; r < rows.count; ++r) fetch_.Add({rows.q[r], 0, 1});
  }
}

// All time steps and columns of a row. Meanwhile packed row `next` is made (unless kNoRow): the
// groups that a batch fetches are packed behind it.
void Worker::RunRow(const QueryGroup& row, std::int64_t next) {
  MarkVisible(row);
  const std::int64_t columns = item_.block.end - item_.block.first;
  const std::int64_t tiles = (item_.last_t - item_.first_t + 1) * columns;
  const std::int64_t groups = next == kNoRow ? 0 : GroupsOfRow();
  PackCursor fetched{next, planes_.begin, 0}, packed = fetched;
  Batch batches[2];
  Batch *batch = &batches[0], *ahead = &batches[1];
  FillBatch(item_.first_t, row, item_.block.first, *ahead);
  std::int64_t done = 0;  // tiles
  for (std::int64_t t = item_.first_t; t <= item_.last_t; ++t) {
    const bool finite = ListKeys(t, row);
    do {
      std::swap(batch, ahead);
      fetch_.Clear();
      const bool last = batch->end == item_.block.end;
      if (!last || t < item_.last_t) {
        FillBatch(last ? t + 1 : t, row, last ? item_.block.first : batch->end, *ahead);
        FetchQueries(*ahead);
      }
      const std::int64_t before = groups * done / tiles;
      done += batch->end - batch->first;
      const std::int64_t share = groups * done / tiles - before;
      Fetch(fetched, share);
      if (finite) {
        RunBatch(*batch);
      } else {
        RunExactly(t, row, *batch);
      }
      Pack(packed, share);
    } while (batch->end != item_.block.end);
  }
}

// visible_[column][packed row, group][query] of all tiles of a row.
void Worker::MarkVisible(const QueryGroup& row) {
  const std::int64_t parts = plan_.row_slots * plan_.row_groups;
  visible_.resize(At((item_.block.end - item_.block.first) * parts * kTileQueries));
  std::uint16_t* visible = visible_.data();
  for (std::int64_t c = item_.block.first; c < item_.block.end; ++c) {
    const QueryGroup& column = plan_.columns[At(c)];
    for (std::int64_t part = 0; part < parts; ++part, visible += kTileQueries) {
      std::uint16_t* bits = visible;
      for (std::int64_t j = 0; j < column.count; ++j) {
        const std::uint16_t lanes =
            column.visible[At(j * plan_.row_groups + part % plan_.row_groups)];
        for (std::int64_t i = 0; i < row.count; ++i) {
          *bits++ = lanes & row.visible[At(i * plan_.row_slots + part / plan_.row_groups)];
        }
      }
    }
  }
}

// blocks_ = all key groups that a row of tiles sees at time t. False when one of them holds Inf or
// NaN in V.
bool Worker::ListKeys(std::int64_t t, const QueryGroup& row) {
  bool finite = true;
  std::size_t used = 0;
  const auto next = [&]() -> KeyBlock& {
    if (used == blocks_.size()) blocks_.emplace_back();
    KeyBlock& block = blocks_[used++];
    block.groups = 0;
    block.k_stride = stride_;
    return block;
  };
  KeyBlock* block = &next();
  for (std::int64_t plane = w_.t[At(t)].begin; plane < w_.t[At(t)].end; ++plane) {
    int part = 0;
    for (std::int64_t packed = row.origin / plan_.fold; packed * plan_.fold < row.end; ++packed) {
      const std::int64_t slot = SlotOf(plane, packed);
      finite &= finite_[At(slot)] != 0;
      for (int group = 0; group < plan_.row_groups; ++group) {
        if (block->groups == kBlockGroups) block = &next();
        block->k[block->groups] = KeyWords(slot) + group * kGroupKeys;
        block->v[block->groups] = ValueWords(slot) + group * kGroupPairs * kChannels;
        block->part[block->groups++] = part++;
      }
    }
  }
  std::fill(block->k + block->groups, block->k + kBlockGroups, block->k[0]);
  blocks_.resize(used);
  return finite;
}

void Worker::RunBatch(const Batch& batch) {
  const std::int64_t tile_masks = plan_.row_slots * plan_.row_groups * kTileQueries;
  const int count = static_cast<int>(batch.end - batch.first);
  for (int i = 0; i < count; ++i) {
    const std::int64_t c = batch.first + i;
    tiles_[i].lane = (plan_.columns[At(c)].origin - item_.block.origin) * plan_.fold;
    tiles_[i].visible = visible_.data() + (c - item_.block.first) * tile_masks;
    leaf_.load(batch.rows[i].q, batch.rows[i].count, tiles_[i]);
  }
  const auto steps = static_cast<int>(blocks_.size());
  for (int step = 0; step < steps; ++step) {
    leaf_.attend(blocks_[At(step)], tiles_, count, fetch_, fetch_.rows() * (step + 1) / steps);
  }
  for (int i = 0; i < count; ++i) leaf_.store(tiles_[i], batch.rows[i].o);
}

// --- where V holds Inf or NaN ---

// A weight of 0 for another query's key would turn them into NaN: query by query instead.
void Worker::RunExactly(std::int64_t t, const QueryGroup& row, const Batch& batch) {
  for (std::int64_t c = batch.first; c < batch.end; ++c) {
    const Rows& rows = batch.rows[c - batch.first];
    for (int r = 0; r < rows.count; ++r) {
      RunQuery(t, row.first + r % row.count, plan_.columns[At(c)].first + r / row.count, rows.q[r],
               rows.o[r]);
    }
  }
}

// Plain loops over exactly the window of a query.
void Worker::RunQuery(std::int64_t t, std::int64_t y, std::int64_t x, const bf16* q, bf16* o) {
  const auto for_window = [&](const Strides& strides, const auto& body) {
    for (std::int64_t kt = w_.t[At(t)].begin; kt < w_.t[At(t)].end; ++kt) {
      for (std::int64_t ky = w_.y[At(y)].begin; ky < w_.y[At(y)].end; ++ky) {
        for (std::int64_t kx = w_.x[At(x)].begin; kx < w_.x[At(x)].end; ++kx) {
          body(Offset(strides, kt, ky, kx));
        }
      }
    }
  };
  scores_.clear();
  float largest = -std::numeric_limits<float>::infinity();
  for_window(a_.k_strides, [&](std::int64_t at) {
    float dot = 0;
    for (int c = 0; c < kChannels; ++c) dot += ToFloat(q[c]) * ToFloat(a_.k[at + c]);
    scores_.push_back(dot);
    largest = std::max(largest, dot);
  });
  float sum = 0, value[kChannels] = {};
  std::size_t key = 0;
  for_window(a_.v_strides, [&](std::int64_t at) {
    const float p = std::exp(scores_[key++] - largest);
    sum += p;
    for (int c = 0; c < kChannels; ++c) value[c] += p * ToFloat(a_.v[at + c]);
  });
  for (int c = 0; c < kChannels; ++c) o[c] = ToBF16(value[c] / sum);
}

}  // namespace assay::neighborhood_attention_3d
