// Walks the token lists of a call: generator, checks, cost and reference; the kernel has its own.
#pragma once

#include <cstdint>

#include "ops/mixed_mla_decode/spec.h"

namespace assay::mixed_mla_decode {

// Calls body(index) for every used column of a row, in column order.
template <class Body>
void ForEachToken(const TokenLists& lists, std::int64_t width, std::int64_t row, const Body& body) {
  const std::int64_t length = lists.length == nullptr ? width : lists.length[row];
  for (std::int64_t j = 0; j < length; ++j) {
    const std::int64_t index = lists.indices[row * width + j];
    if (index >= 0) body(index);
  }
}

// Where a token's codes and scales are.
struct TokenBytes {
  const std::uint8_t* data = nullptr;
  const std::uint8_t* scales = nullptr;
};

inline TokenBytes Locate(const Cache& cache, const mla::RowFormat& format, std::int64_t page_tokens,
                         std::int64_t index) {
  const std::uint8_t* page = cache.bytes + index / page_tokens * cache.page_stride;
  const std::int64_t token = index % page_tokens;
  return {page + format.data_at(token), page + format.scale_at(token, page_tokens)};
}

}  // namespace assay::mixed_mla_decode
