// The truth of both MLA rooms, and how their outputs are judged: 64 heads over one list of latent
// rows in fp64.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/dtype.h"
#include "ops/family.h"

namespace assay::mla {

// One query token and some of its heads.
struct TokenHeads {
  const bf16* q = nullptr;          // [64, 512]
  std::vector<std::int64_t> heads;  // which of them
  std::vector<double> keys;         // [list, 512], decoded, one entry per occurrence
  double scale = 0;
  const float* sink = nullptr;         // [64], null = none
  std::vector<double*> value, weight;  // one per head: where 512 results go
};

// value = sum_j exp(x_j) k_j / (sum_j exp(x_j) + exp(sink)), x_j = scale * q.k_j, and weight the
// same with |k_j|. Zeros for an empty list. Sums over the list run in the given order.
void AttendToken(const TokenHeads& token, SumOrder order);

// Rows of the output [tokens, 64, 512] are numbered token * 64 + head. Calls
// body(token, heads, positions in `rows` of these heads) for each token; in parallel.
void ForEachToken(const std::vector<std::int64_t>& rows,
                  const std::function<void(std::int64_t token, const std::vector<std::int64_t>&,
                                           const std::vector<std::size_t>&)>& body);

// The truth of these rows of an output [tokens, 64, 512]: `token_of` gives each token's query,
// keys, scale and sink; heads and places are filled in.
ExpectedRows ReferenceRows(const std::vector<std::int64_t>& rows, SumOrder order,
                           const std::function<TokenHeads(std::int64_t token)>& token_of);

// All heads of the given sorted tokens.
std::vector<std::int64_t> RowsOfTokens(const std::vector<std::int64_t>& tokens);

// "strict" (what our own kernels should meet: one rounding of the result and P in bf16), then
// "captured"; relative L2 error per head.
OutputPolicy Policy();

}  // namespace assay::mla
