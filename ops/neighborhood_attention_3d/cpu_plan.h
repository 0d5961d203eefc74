// How the CPU kernel cuts a grid into tiles and work items; private to this room. Depends on the
// windows only, never on the number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/neighborhood_attention_3d/cpu_kernel.h"

namespace assay::neighborhood_attention_3d {

// Neighbouring queries of one axis whose windows together are keys [origin, end).
struct QueryGroup {
  std::int64_t first = 0, count = 0;
  std::int64_t origin = 0, end = 0;
  // Bit i of visible[query * parts + part]: does the query see lane i of that part? Parts are the
  // key groups of a row along x, the rows of groups along y (there all lanes of a row are alike).
  std::vector<std::uint16_t> visible;
};

// Column groups [first, end) that share packed rows.
struct ColumnBlock {
  std::int64_t first = 0, end = 0;
  std::int64_t origin = 0;  // first key
  std::int64_t lanes = 0;   // packed lanes, a multiple of 16
};

struct Plan {
  explicit Plan(const Windows& windows);

  // Grid rows of one packed row: 2 when 8 columns hold a window, else 1.
  int fold = 1;
  int row_groups = 1;                     // key groups that a packed row of a tile takes
  std::int64_t row_slots = 0;             // packed rows that a tile sees at most
  std::vector<QueryGroup> rows, columns;  // along y and x
  std::vector<ColumnBlock> blocks;
  std::int64_t time_steps = 1;  // of one work item, the last may have fewer

  // Words of one packed row: K [32][stride], then V [lanes / 2][64].
  static std::int64_t KeyStride(std::int64_t lanes);
  static std::int64_t RowWords(std::int64_t lanes);
};

}  // namespace assay::neighborhood_attention_3d
