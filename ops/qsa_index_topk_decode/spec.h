// qsa_index_topk_decode: scores every group of 4 tokens by a small index attention and picks the
// 512 best groups of each row. See README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "cpu/isa.h"
#include "ops/family.h"
#include "ops/paged/pages.h"

namespace assay::qsa_index_topk_decode {

inline constexpr std::int64_t kHeads = 4;
inline constexpr std::int64_t kHeadSize = 128;
inline constexpr std::int64_t kGroupTokens = 4;  // captured definition
inline constexpr std::int64_t kTopK = 512;       // captured definition
inline constexpr std::int64_t kPageGroups = 16;  // group keys of a page
inline constexpr std::int64_t kKeyBytes = kHeadSize * 2;
inline constexpr std::int64_t kPageBytes = kPageGroups * kKeyBytes;

// Inputs are never modified. Rows are independent.
struct Args {
  std::int64_t batch = 0;
  std::int64_t table_width = 0;                 // MP, logical pages of the page table
  std::int64_t pages = 0;                       // NP, pages of the cache
  std::int64_t q_heads = kHeads;                // 8: heads 4..7 must be zero and are left out
  const bf16* q = nullptr;                      // [batch, q_heads, 128], normalised and rotated
  const bf16* index_k_cache = nullptr;          // [pages, 16, 1, 128], 16-byte aligned
  std::int64_t page_stride_bytes = kPageBytes;  // >= 4096, a multiple of 16
  const std::int32_t* page_table = nullptr;     // [batch, table_width]
  // Exactly one of the two: tokens, the one being decoded included, or complete groups.
  const std::int32_t* seq_lens = nullptr;    // [batch]
  const std::int32_t* group_lens = nullptr;  // [batch]
  std::int64_t group_tokens = kGroupTokens;  // tokens of a group (with seq_lens)
  std::int64_t top_k = kTopK;
  std::int32_t* block_ids = nullptr;  // [batch, top_k]: ascending group numbers of the row, then -1
  // Debug output: the first n scores of each row; null = not wanted.
  float* scores = nullptr;  // [batch, scores_stride]
  std::int64_t scores_stride = 0;
};

// Complete groups of every row; [batch].
std::vector<std::int64_t> GroupCounts(const Args& args);

// Throws kInput naming tensor, position and value: negative lengths, rows longer than the page
// table, a live page outside the cache, both or none of the lengths, padding heads that are not
// zero, misaligned cache. Keys and queries may hold anything.
void Check(const Args& args);

// The fast CPU kernel, after Check. `threads` as in ParallelRanges; results do not depend on it.
void RunCpu(const Args& args, int threads);
void RunCpu(const Args& args, int threads, cpu::Isa isa);

// The selection alone: ascending positions of the top_k largest of n scores, equal ones by lower
// position, NaN last, then -1 up to top_k. Scores are >= 0, or NaN with its sign bit set.
void SelectCpu(const float* scores, std::int64_t n, std::int64_t top_k, std::int32_t* ids);

// The form that older engines return: token ids of `count` selected groups, 4 a group in the given
// order, then the incomplete tail of a row of `length` tokens, then -1 up to 4 * count + 3.
void ExpandToTokens(const std::int32_t* block_ids, std::int64_t count, std::int64_t length,
                    std::int32_t* token_ids);

// Pages of group keys that a row of `tokens` tokens needs.
std::int64_t PagesOfTokens(std::int64_t tokens);

// Pointers of a named bundle; throws kInput when a tensor's dtype or shape does not fit.
Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs);
Args BindInputs(const Problem& problem, const Bundle& inputs);

Family MakeFamily();

// Parts of MakeFamily, one file each.
void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs);
std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order);
std::vector<Finding> RowChecks(const Problem& problem, const Bundle& inputs, const Bundle& outputs,
                               const RowLists& rows, const std::vector<ExpectedRows>& expected);
std::vector<Backend> Backends();
std::vector<Mutant> Mutants();

}  // namespace assay::qsa_index_topk_decode
