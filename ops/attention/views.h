// Checked access to the tensors of the attention rooms, for their typed APIs and for bundles.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/tensor.h"
#include "cpu/attention.h"

namespace assay::attention {

// Distances in elements between neighbours of one axis of [batch, tokens, heads, dim].
struct Strides {
  std::int64_t batch = 0, token = 0, head = 0, channel = 1;

  static Strides Contiguous(std::int64_t tokens, std::int64_t heads, std::int64_t dim) {
    return {tokens * heads * dim, heads * dim, dim, 1};
  }
  cpu::AttentionStrides kernel() const { return {batch, token, head}; }
};

// A token tensor as the checks see it.
struct View {
  std::string_view name;
  const bf16* data = nullptr;  // [batch, tokens, heads, dim]
  std::int64_t batch = 0, tokens = 0, heads = 0, dim = 0;
  Strides strides;
};

// Throws kInput unless the channel stride is 1, the others are multiples of 16 bytes and not
// negative, and data is not null where there are elements. `operation` starts the sentence.
void CheckView(std::string_view operation, const View& view);
// Throws kInput when the memory ranges of `output` and `input` meet, or when two elements of
// `output` share an address.
void CheckNoOverlap(std::string_view operation, const View& output, const View& input);
void CheckOutputStrides(std::string_view operation, const View& output);
// Throws kInput unless dim is 64 or 128.
void CheckHeadDim(std::string_view operation, std::int64_t dim);

// The bf16 tensor `name` of `bundle`, which must have exactly this shape; throws kInput naming the
// tensor, what it has and what is supported.
const Tensor& RequireTokens(std::string_view operation, const Bundle& bundle, std::string_view name,
                            const Shape& shape);

}  // namespace assay::attention
