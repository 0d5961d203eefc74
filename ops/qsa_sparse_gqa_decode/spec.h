// qsa_sparse_gqa_decode: one decode token per row attends the tokens that qsa_index_topk_decode
// selected. See README.md.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "ops/family.h"
#include "ops/paged/pages.h"

namespace assay::qsa_sparse_gqa_decode {

// Constants of the captured definition.
inline constexpr std::int64_t kHeads = 24;
inline constexpr std::int64_t kKvHeads = 2;
inline constexpr std::int64_t kGroupHeads = kHeads / kKvHeads;  // query head h reads KV head h / 12
inline constexpr std::int64_t kHeadSize = 256;
inline constexpr std::int64_t kGroupTokens = 4;
inline constexpr std::int64_t kTopK = 512;                                            // groups
inline constexpr std::int64_t kMostTokens = kGroupTokens * kTopK + kGroupTokens - 1;  // 2051
inline constexpr std::int64_t kPageTokens = 64;
inline constexpr std::int64_t kTokenElements = kKvHeads * kHeadSize;
inline constexpr std::int64_t kPageBytes = kPageTokens * kTokenElements * 2;
inline constexpr float kDefaultScale = 0.0625f;  // 1 / sqrt(256)

// Inputs are never modified. Rows are independent.
struct Args {
  std::int64_t batch = 0;
  std::int64_t table_width = 0;                 // MP, logical pages of the page table
  std::int64_t pages = 0;                       // NP, pages of each cache
  const bf16* q = nullptr;                      // [batch, 24, 256], normalised and rotated
  const bf16* k_cache = nullptr;                // [pages, 64, 2, 256], 16-byte aligned
  const bf16* v_cache = nullptr;                // [pages, 64, 2, 256], 16-byte aligned
  std::int64_t page_stride_bytes = kPageBytes;  // of both caches; >= 65536, a multiple of 16
  const std::int32_t* page_table = nullptr;     // [batch, table_width]
  const std::int32_t* seq_lens = nullptr;       // [batch] tokens, the one being decoded included
  // Exactly one of the two; any order, negative entries are holes, tokens of seq_lens and beyond
  // are left out. A list must not repeat an entry: it would count twice.
  const std::int32_t* block_ids = nullptr;  // [batch, list_width] groups of 4; the incomplete group
                                            // at the end of the row is added
  const std::int32_t* token_ids = nullptr;  // [batch, list_width] tokens; nothing is added
  std::int64_t list_width = kTopK;
  float scale = 0;       // 0 = 1/16
  bf16* out = nullptr;   // [batch, 24, 256]; 0 where a row attends nothing
  float* lse = nullptr;  // [batch, 24] natural log of the softmax sum; null = not wanted
};

// Throws kInput naming tensor, position and value: what would lead outside of the tensors.
void Check(const Args& args);
// Likewise: repeated entries and negative ones other than -1, which a call takes as it finds them.
void CheckLists(const Args& args);

// The fast CPU kernel, after Check. `threads` as in ParallelRanges; results depend neither on it
// nor on the other rows.
void RunCpu(const Args& args, int threads);

// Pages that a row of `tokens` tokens needs.
std::int64_t PagesOfTokens(std::int64_t tokens);

// Pointers of a named bundle; throws kInput when a tensor's dtype or shape does not fit.
Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs);
Args BindInputs(const Problem& problem, const Bundle& inputs);

Family MakeFamily();

// Parts of MakeFamily, one file each.
void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs);
// Every token that row b attends, ascending, each once.
std::vector<std::int64_t> AttendedTokens(const Args& args, std::int64_t b);
std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order);
std::vector<Backend> Backends();
std::vector<Mutant> Mutants();

}  // namespace assay::qsa_sparse_gqa_decode
