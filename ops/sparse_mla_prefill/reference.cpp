// The truth of sparse_mla_prefill in fp64, and which rows a verdict looks at.
#include <algorithm>

#include "base/random.h"
#include "ops/mla/rows.h"
#include "ops/sparse_mla_prefill/chunk.h"
#include "ops/sparse_mla_prefill/lists.h"
#include "ops/sparse_mla_prefill/spec.h"

namespace assay::sparse_mla_prefill {
namespace {

constexpr std::int64_t kAllTokensUpTo = 192;  // 16 GFLOP at the full width
constexpr std::int64_t kFirstTokens = 130;  // of every request: short lists, the window filling up
constexpr std::int64_t kRandomTokens = 64;
constexpr std::size_t kMostOddTokens = 64;
constexpr std::uint64_t kSampledTokens = kAuxiliaryTensor + 220;

// An empty list, or a hole before its last key.
bool IsOdd(const Lists& lists, std::int64_t row) {
  const std::int32_t* list = lists.indices + row * lists.width;
  std::int64_t keys = 0, last = -1;
  for (std::int64_t j = 0; j < lists.Length(row); ++j) {
    if (!lists.Valid(list[j])) continue;
    ++keys;
    last = j;
  }
  return keys != last + 1 || keys == 0;
}

}  // namespace

RowLists SampleRows(const Problem& problem, const Bundle& inputs, std::uint64_t seed) {
  const Lists lists = ListsOf(problem, inputs);
  std::vector<std::int64_t> tokens;
  if (lists.m <= kAllTokensUpTo) {
    for (std::int64_t token = 0; token < lists.m; ++token) tokens.push_back(token);
    return {mla::RowsOfTokens(tokens)};
  }
  for (std::int64_t token = 0; token < lists.m && tokens.size() < kMostOddTokens; ++token) {
    if (IsOdd(lists, token)) tokens.push_back(token);
  }
  for (const Request& request : ChunkOf(problem).requests) {
    for (std::int64_t n = 0; n < std::min(request.rows, kFirstTokens); ++n) {
      tokens.push_back(request.first_row + n);
    }
    if (request.rows > 0) tokens.push_back(request.first_row + request.rows - 1);
  }
  for (std::uint64_t n = 0; n < kRandomTokens; ++n) {
    tokens.push_back(static_cast<std::int64_t>(Mix64(seed, kSampledTokens, n) %
                                               static_cast<std::uint64_t>(lists.m)));
  }
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return {mla::RowsOfTokens(tokens)};
}

std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order) {
  const Lists lists = ListsOf(problem, inputs);
  const bf16* q = inputs["q"].as<bf16>();
  const bf16* kv = inputs["kv"].as<bf16>();
  const Tensor* sink = inputs.find("attn_sink");
  return {mla::ReferenceRows(rows[0], order, [&](std::int64_t row) {
    mla::TokenHeads token;
    token.q = q + row * kHeads * kDim;
    lists.ForEach(row, [&](std::int32_t index) {
      for (std::int64_t d = 0; d < kDim; ++d) token.keys.push_back(ToFloat(kv[index * kDim + d]));
    });
    token.scale = static_cast<double>(mla::ScaleOf(problem, inputs));
    if (sink != nullptr) token.sink = sink->as<float>();
    return token;
  })};
}

}  // namespace assay::sparse_mla_prefill
