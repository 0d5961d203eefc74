// The structure of a decode batch: which pages its rows' windows lie in, which compressed pages
// hold the tokens they pick, and where in the caches those pages are.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/family.h"

namespace assay::mixed_mla_decode {

// Pages of one cache as a row sees them: logical page p, of positions p * page tokens and on, is
// number[p - first] of the referenced pages; -1 = not referenced.
struct PageMap {
  std::int64_t first = 0;
  std::vector<std::int64_t> number;
};

struct Row {
  std::int64_t window_begin = 0, window_end = 0;  // positions, the newest is window_end - 1
  PageMap window_pages;
  std::int64_t compressed = 0;  // compressed positions that exist
  std::int64_t picks = 0;       // how many of them the row picks
  PageMap compressed_pages;
  std::vector<std::int64_t> owned;  // logical pages of which the row must pick a token
};

struct Batch {
  std::vector<Row> rows;
};

// From the attribute sequence_lengths (the decoded token included) and the axes B, N8, N4. Windows
// have pages of their own. Compressed pages: leading ones are shared by all rows as far as N4 asks
// for, N4 pages of all are referenced, a random choice that keeps the newest page of each row, and
// each of them is picked by some row. Without sequence_lengths windows and picks may lie anywhere
// in the N8 and N4 pages. Throws kInput when lengths and axes do not fit together.
Batch BatchOf(const Problem& problem, std::uint64_t key);

// Compressed positions that row number `row` picks, ascending and distinct: one on each owned page,
// the rest 70 % single ones, 25 % short runs of 4 to 8, 5 % from the newest twentieth of its pages.
std::vector<std::int64_t> Picks(const Row& row, std::uint64_t number, std::uint64_t key);

// Pages that the cache tensors have: N8 and N4, or in the variant original_address those of the
// engine's pools (allocated_cache_8[0] and allocated_cache_4[0], default as captured).
std::int64_t CachePages8(const Problem& problem);
std::int64_t CachePages4(const Problem& problem);

}  // namespace assay::mixed_mla_decode
