// The truth of nope_mla_decode in fp64, by the formulas of README.md.
#include <cstddef>

#include "ops/mla/rows.h"
#include "ops/nope_mla_decode/spec.h"

namespace assay::nope_mla_decode {
namespace {

void AppendToken(const Args& args, std::int64_t request, std::int64_t token,
                 std::vector<double>& keys) {
  const std::int64_t page = args.page_table[request * args.table_width + token / 64];
  const bf16* latent = args.latents + (page * 64 + token % 64) * 512;
  for (std::int64_t d = 0; d < 512; ++d) keys.push_back(ToFloat(latent[d]));
}

// What the row attends, as [list, 512].
std::vector<double> Keys(const Args& args, std::int64_t row) {
  const std::int64_t request = row / args.rows, i = row % args.rows;
  const std::int64_t seen = args.seq_lens[request] - (args.rows - 1 - i);
  std::vector<double> keys;
  std::int64_t open = 0;  // tokens from here on are attended whatever was selected
  if (args.pool_ids != nullptr && seen > 0) {
    open = seen / 4 * 4;
    for (std::int64_t j = 0; j < 512; ++j) {
      const std::int64_t pool = args.pool_ids[row * 512 + j];
      if (pool < 0) continue;
      for (std::int64_t t = 4 * pool; t < 4 * pool + 4; ++t) AppendToken(args, request, t, keys);
    }
  }
  for (std::int64_t t = open; t < seen; ++t) AppendToken(args, request, t, keys);
  return keys;
}

}  // namespace

std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order) {
  const Args args = BindInputs(problem, inputs);
  return {mla::ReferenceRows(rows[0], order, [&](std::int64_t row) {
    mla::TokenHeads token;
    token.q = args.q + row * kHeads * kDim;
    token.keys = Keys(args, row);
    token.scale = 1.0 / 16;
    return token;
  })};
}

}  // namespace assay::nope_mla_decode
