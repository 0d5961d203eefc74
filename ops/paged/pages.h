// What the rooms of paged caches share: which rows of a decode batch use which pages, where in the
// pool those pages lie, and the page table that says so. Generators and checks only.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ops/family.h"

namespace assay::paged {

// The generator variant that keeps the engine's whole pool, with pages where an allocator leaves
// them, in memory that is mostly holes. The same content as the default, at other addresses.
inline constexpr std::string_view kOriginalAddress = "original_address";

// Page numbers of a pool of `pool` pages as an engine's allocator hands them out, in the order of
// the logical pages that they hold: `count` distinct ones of [1, pool) (page 0 is the engine's
// padding). The first are pool - 1, 65536 and 65535, where 16-bit page numbers and 32-bit offsets
// end; then prompts, in runs of 64 to 512 consecutive pages; the last eighth is scattered, like
// pages taken while decoding. Throws kInput when the pool is too small.
std::vector<std::int32_t> PlacePages(std::int64_t count, std::int64_t pool, std::uint64_t key);

// A random permutation of [0, count).
std::vector<std::int32_t> PermutePages(std::int64_t count, std::uint64_t key);

// The pages of a decode batch. Rows that start with the same prompt share leading pages, which
// belong to row `leader`; every other page belongs to one row. Distinct pages are numbered row by
// row.
struct Batch {
  std::vector<std::int64_t> lengths;    // tokens of each row, the one being decoded included
  std::vector<std::int64_t> live;       // pages that hold something of each row
  std::vector<std::int64_t> shared;     // how many leading ones belong to `leader`
  std::vector<std::int64_t> first_own;  // number of the first page that is the row's own
  std::int64_t leader = 0;
  std::int64_t distinct = 0;

  std::int64_t rows() const { return static_cast<std::int64_t>(lengths.size()); }
  // Number of the page that holds logical page `page` < live[row] of `row`, in [0, distinct).
  std::int64_t PageNumber(std::int64_t row, std::int64_t page) const;
};

// The batch of a problem with axes B, MP (page-table width) and NP (distinct pages). Lengths are
// the attribute `sequence_lengths`, else all rows fill their MP pages of 64 tokens but for one
// token. When NP is less than the rows need, pages are shared: by the rows that reused a cached
// prefix (member_reusable_tokens) where that explains NP, else by the longest rows. NP may exceed
// the need. `pages_of` = pages that a row of that many tokens needs. Throws kInput naming the row
// when lengths and axes do not fit together.
Batch MakeBatch(const Problem& problem, std::int64_t (*pages_of)(std::int64_t tokens));

// What these functions read of a workload: lengths, what is alive and shared, the engine's pool.
std::vector<std::string> AttributesRead();

// Pages of the cache tensors: NP, or those of the engine's pool (allocated_cache_shape[0], default
// 83743 as captured) in the variant original_address.
std::int64_t CachePages(const Problem& problem);

// Place in the cache of each of the batch's distinct pages, in [0, CachePages). In compact caches
// the list has NP entries: the pages behind `batch.distinct` belong to nobody.
std::vector<std::int32_t> PhysicalPages(const Problem& problem, const Batch& batch,
                                        std::uint64_t key);

// Fills page_table [B, MP]. Entries behind a row's live pages must never be used: they are -1, 0,
// the largest integer or a page of another row, at random.
void FillPageTable(const Batch& batch, const std::vector<std::int32_t>& physical, std::uint64_t key,
                   Tensor& page_table);

// Throws kInput naming row, position and value when one of the first live[b] entries of a row of
// page_table [rows, width] is not in [0, pages).
void CheckPageTable(std::string_view operation, const std::int32_t* page_table, std::int64_t width,
                    const std::vector<std::int64_t>& live, std::int64_t pages);

}  // namespace assay::paged
