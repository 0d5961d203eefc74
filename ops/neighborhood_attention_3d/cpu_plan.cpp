#include "ops/neighborhood_attention_3d/cpu_plan.h"

#include <algorithm>

namespace assay::neighborhood_attention_3d {
namespace {

// Packed rows of an item should stay in an L2 of 1 MB beside the streams that pass through it.
constexpr std::int64_t kRingBytes = 768 << 10;
// More steps pack fewer planes twice, fewer leave room for wider blocks of columns. 4 and 8 are
// 2 to 7 % slower.
constexpr std::int64_t kMostTimeSteps = 6;
constexpr std::uint16_t kEvenLanes = 0x5555, kOddLanes = 0xAAAA;

std::int64_t LongestSpan(const std::vector<Span>& spans) {
  std::int64_t longest = 0;
  for (const Span& span : spans) longest = std::max(longest, span.end - span.begin);
  return longest;
}

// The longest groups whose keys fit in `most_keys` from an origin that is a multiple of `align`.
std::vector<QueryGroup> GroupQueries(const std::vector<Span>& spans, std::int64_t align,
                                     std::int64_t most_keys, std::int64_t most_queries) {
  std::vector<QueryGroup> groups;
  const auto count = static_cast<std::int64_t>(spans.size());
  for (std::int64_t first = 0; first < count;) {
    QueryGroup group;
    group.first = first;
    group.origin = spans[static_cast<std::size_t>(first)].begin / align * align;
    while (first + group.count < count && group.count < most_queries) {
      const std::int64_t end = spans[static_cast<std::size_t>(first + group.count)].end;
      if (end - group.origin > most_keys) break;
      group.end = end;
      ++group.count;
    }
    first += group.count;
    groups.push_back(std::move(group));
  }
  return groups;
}

// Bits of lanes [begin, end) of the 16 that start at `lane`.
std::uint16_t LaneBits(std::int64_t begin, std::int64_t end, std::int64_t lane) {
  const auto below = [lane](std::int64_t bound) {
    const auto bits = std::clamp<std::int64_t>(bound - lane, 0, kGroupKeys);
    return (1u << bits) - 1;
  };
  return static_cast<std::uint16_t>(below(end) & ~below(begin));
}

void MarkColumns(const std::vector<Span>& spans, int fold, int row_groups, QueryGroup& group) {
  for (std::int64_t i = 0; i < group.count; ++i) {
    const Span& span = spans[static_cast<std::size_t>(group.first + i)];
    for (int part = 0; part < row_groups; ++part) {
      group.visible.push_back(LaneBits((span.begin - group.origin) * fold,
                                       (span.end - group.origin) * fold, part * kGroupKeys));
    }
  }
}

void MarkRows(const std::vector<Span>& spans, int fold, std::int64_t row_slots, QueryGroup& group) {
  for (std::int64_t i = 0; i < group.count; ++i) {
    const Span& span = spans[static_cast<std::size_t>(group.first + i)];
    const auto sees = [&](std::int64_t row) { return row >= span.begin && row < span.end; };
    for (std::int64_t part = 0; part < row_slots; ++part) {
      const std::int64_t row = group.origin + part * fold;
      unsigned bits = 0;
      if (sees(row)) bits |= fold == 1 ? kEvenLanes | kOddLanes : kEvenLanes;
      if (fold == 2 && sees(row + 1)) bits |= kOddLanes;
      group.visible.push_back(static_cast<std::uint16_t>(bits));
    }
  }
}

}  // namespace

std::int64_t Plan::KeyStride(std::int64_t lanes) {
  // An odd number of cache lines, so that the 32 channel pairs of a group fall into different sets.
  return lanes / kGroupKeys % 2 == 1 ? lanes : lanes + kGroupKeys;
}

std::int64_t Plan::RowWords(std::int64_t lanes) {
  return kChannelPairs * KeyStride(lanes) + lanes / 2 * kChannels;
}

Plan::Plan(const Windows& windows) {
  const std::int64_t wide = LongestSpan(windows.x), high = LongestSpan(windows.y);
  fold = wide <= kGroupKeys / 2 ? 2 : 1;
  // A row of single lanes starts at an even column, because V is packed in pairs.
  row_groups = fold == 2 ? 1 : static_cast<int>((wide + 1 + kGroupKeys - 1) / kGroupKeys);
  row_slots = (high + 2 * (fold - 1)) / fold;
  // 2 x 4 queries or 1 x 6: what register tiles hold.
  columns =
      GroupQueries(windows.x, fold == 2 ? 1 : 2, row_groups * kGroupKeys / fold, fold == 2 ? 4 : 6);
  rows = GroupQueries(windows.y, fold, row_slots * fold, fold);
  for (QueryGroup& group : columns) MarkColumns(windows.x, fold, row_groups, group);
  for (QueryGroup& group : rows) MarkRows(windows.y, fold, row_slots, group);

  time_steps = std::min<std::int64_t>(kMostTimeSteps, static_cast<std::int64_t>(windows.t.size()));
  const std::int64_t planes = LongestSpan(windows.t) + time_steps - 1;
  const auto ring_bytes = [&](std::int64_t lanes) {
    return planes * (row_slots + 1) * RowWords(lanes) *
           static_cast<std::int64_t>(sizeof(std::uint32_t));
  };
  for (std::int64_t first = 0; first < static_cast<std::int64_t>(columns.size());) {
    ColumnBlock block{first, first, columns[static_cast<std::size_t>(first)].origin, 0};
    for (; block.end < static_cast<std::int64_t>(columns.size()); ++block.end) {
      const std::int64_t origin = columns[static_cast<std::size_t>(block.end)].origin;
      const std::int64_t needed = (origin - block.origin) * fold + row_groups * kGroupKeys;
      const std::int64_t lanes = (needed + kGroupKeys - 1) / kGroupKeys * kGroupKeys;
      if (block.end > block.first && ring_bytes(lanes) > kRingBytes) break;
      block.lanes = lanes;
    }
    first = block.end;
    blocks.push_back(block);
  }
}

double ExecutedOverUseful(const Windows& windows) {
  const Plan plan(windows);
  double executed = 0, useful = 0;
  for (const QueryGroup& row : plan.rows) {
    for (const QueryGroup& column : plan.columns) {
      executed += static_cast<double>(row.count * column.count * plan.row_slots * plan.row_groups *
                                      kGroupKeys);
      for (std::int64_t i = 0; i < row.count; ++i) {
        const Span& y = windows.y[static_cast<std::size_t>(row.first + i)];
        for (std::int64_t j = 0; j < column.count; ++j) {
          const Span& x = windows.x[static_cast<std::size_t>(column.first + j)];
          useful += static_cast<double>((y.end - y.begin) * (x.end - x.begin));
        }
      }
    }
  }
  return executed / useful;
}

}  // namespace assay::neighborhood_attention_3d
