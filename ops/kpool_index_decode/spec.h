// kpool_index_decode: scores every closed pool of 4 tokens by a small index attention over e4m3
// keys and picks the 512 best pools of each row. See README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "ops/family.h"

namespace assay::kpool_index_decode {

inline constexpr std::int64_t kHeads = 32;
inline constexpr std::int64_t kHeadSize = 128;
inline constexpr std::int64_t kPoolTokens = 4;
inline constexpr std::int64_t kTopK = 512;
inline constexpr std::int64_t kPagePools = 64;
inline constexpr std::int64_t kScalesOffset = kPagePools * kHeadSize;  // bytes into a page
inline constexpr std::int64_t kPageBytes = kScalesOffset + kPagePools * 4;

// Inputs are never modified. Row v of a request sees the tokens up to itself: the last row all
// seq_lens[b], each earlier one a token less.
struct Args {
  std::int64_t batch = 0;                    // requests
  std::int64_t rows = 1;                     // per request: 1 decodes, more verify a draft
  std::int64_t table_width = 0;              // MP, logical pages of the page table
  std::int64_t pages = 0;                    // NP, pages of the cache
  const e4m3* q = nullptr;                   // [batch, rows, 32, 128], rotated
  const float* weights = nullptr;            // [batch, rows, 32], the query's scale folded in
  const std::uint8_t* pool_cache = nullptr;  // [pages, 8448]: 64 keys e4m3, then 64 scales fp32
  const std::int32_t* page_table = nullptr;  // [batch, table_width]
  const std::int32_t* seq_lens = nullptr;    // [batch]; 0 = padding
  std::int64_t top_k = kTopK;
  std::int32_t* pool_ids = nullptr;  // [batch, rows, top_k]: ascending pools, then -1
};

// Closed pools that row `row` = b * rows + v sees.
std::int64_t VisiblePools(const Args& args, std::int64_t row);

// The key of a pool and its scale.
const std::uint8_t* KeyOf(const Args& args, std::int64_t b, std::int64_t pool);
float ScaleOf(const Args& args, std::int64_t b, std::int64_t pool);

// Throws kInput naming tensor, position and value: lengths that are negative or shorter than the
// rows, requests longer than the page table, a live page outside the cache, no rows, a misaligned
// cache. Keys, scales, queries and weights may hold anything.
void Check(const Args& args);

// The fast CPU kernel, after Check. `threads` as in ParallelRanges; results do not depend on it,
// and a row's bits do not depend on the other rows.
void RunCpu(const Args& args, int threads);

// Pointers of a named bundle.
Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs);
Args BindInputs(const Problem& problem, const Bundle& inputs);

Family MakeFamily();

// Parts of MakeFamily, one file each.
void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs);
std::int64_t PagesOfTokens(std::int64_t tokens);
std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order);
std::vector<Finding> RowChecks(const Problem& problem, const Bundle& inputs, const Bundle& outputs,
                               const RowLists& rows, const std::vector<ExpectedRows>& expected);
std::vector<Backend> Backends();
std::vector<Mutant> Mutants();

}  // namespace assay::kpool_index_decode
