// nope_mla_decode: the rows of a decode or verify step attend latents without positions. Keys and
// values are the same cached vectors; a row reads the tokens of selected pools of 4 and the open
// tail, or all tokens. See README.md.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "ops/family.h"
#include "ops/mla/codec.h"
#include "ops/paged/pages.h"

namespace assay::nope_mla_decode {

using mla::kDim;
using mla::kHeads;

inline constexpr std::int64_t kPageTokens = 64;
inline constexpr std::int64_t kPoolTokens = 4;
inline constexpr std::int64_t kTopPools = 512;   // columns of pool_ids
inline constexpr float kDefaultScale = 0.0625f;  // 1 / sqrt(256), the size of a head before K^T q

// Inputs are never modified. Rows are independent.
struct Args {
  std::int64_t requests = 0;
  std::int64_t rows = 1;         // of each request: 1 = decode, drafts + 1 = verify
  std::int64_t table_width = 0;  // logical pages of the page table
  std::int64_t pages = 0;
  const bf16* q = nullptr;                   // [requests, rows, 64, 512], 16-byte aligned
  const bf16* latents = nullptr;             // [pages, 64, 512], 16-byte aligned
  const std::int32_t* page_table = nullptr;  // [requests, table_width]
  const std::int32_t* seq_lens = nullptr;    // [requests] tokens, those of all rows included
  const std::int32_t* pool_ids = nullptr;    // [requests, rows, 512] any order, -1 = none; null =
                                             // all tokens
  bf16* out = nullptr;  // [requests, rows, 64, 512]; 0 where a row sees nothing

  std::int64_t total_rows() const { return requests * rows; }
  // Tokens that a row sees, itself included; never negative. `row` counts over all requests.
  std::int64_t TokensOf(std::int64_t row) const {
    const std::int64_t later = rows - 1 - row % rows;
    return seq_lens[row / rows] > later ? seq_lens[row / rows] - later : 0;
  }
};

// Throws kInput naming tensor, position and value: what would lead outside of the tensors, pools
// that are not closed for their row, repeated pools.
void Check(const Args& args);

// The fast CPU kernel, after Check. `threads` as in ParallelRanges; results depend neither on it
// nor on the other rows.
void RunCpu(const Args& args, int threads);

std::int64_t PagesOfTokens(std::int64_t tokens);

// Pointers of a named bundle; throws kInput when a tensor's dtype or shape does not fit.
Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs);
Args BindInputs(const Problem& problem, const Bundle& inputs);

Family MakeFamily();

// Parts of MakeFamily, one file each.
void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs);
// Every token that a row attends: selected pools in their order, then the tail; or all.
std::vector<std::int64_t> AttendedTokens(const Args& args, std::int64_t row);
std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order);
std::vector<Backend> Backends();
std::vector<Mutant> Mutants();

}  // namespace assay::nope_mla_decode
