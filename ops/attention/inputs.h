// Generated queries, keys and values of the attention rooms: statistics like those of captured
// tensors, every element a pure function of (key, tensor, index).
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace assay::attention {

struct TokenShape {
  std::int64_t batch = 0, tokens = 0, heads = 0, dim = 0;

  std::int64_t inner() const { return heads * dim; }
  std::int64_t elements() const { return batch * tokens * inner(); }
};

// How a normalised and rotated projection (Q or K) is made.
struct ProjectionRecipe {
  std::uint64_t key = 0, tensor = 0;
  std::uint64_t channel_tensor = 0;  // number of the per-channel weights (K and K_prefix share it)
  bool norm_per_head = false;        // RMS over dim, else over heads * dim
  float weight_spread = 0;           // per-channel weight 1 + spread * z
  float temp = 1;                    // multiplies everything: the logits' standard deviation
  std::int64_t first_position = 0;   // position of token 0 for the rotation
};

// x [batch, tokens, heads, dim]: z, RMS-normalised, weighted, pairs (i, i + dim/2) rotated by an
// angle that depends on (key, position, pair) only.
void GenerateProjection(const ProjectionRecipe& recipe, const TokenShape& shape, bf16* x);

struct ValueRecipe {
  std::uint64_t key = 0, tensor = 0;
  std::uint64_t channel_tensor = 0;  // number of the per-channel scales and means
  float extra_mean = 0;              // added to every element
};

// v [batch, tokens, heads, dim] = z c + mean + extra_mean with c = exp(0.7 z'), mean = 0.5 z'' c
// per channel; one element in 2000 is 10 times as large. Without channel means, averages over many
// keys shrink to nothing and a test could not tell a wrong kernel from a right one.
void GenerateValues(const ValueRecipe& recipe, const TokenShape& shape, bf16* v);

// Direction of head `head` with unit mean square, element `channel`; the same for Q and K.
float HeadDirection(std::uint64_t key, std::int64_t head, std::int64_t dim, std::int64_t channel);

// Makes key `sink` of one (batch, head) win 6 units of logit (scale 1/sqrt(dim)) with every query:
// all queries gain a common direction and that key a multiple of it, as text tokens do in practice.
void AddSinkDirection(std::uint64_t key, const TokenShape& shape, bf16* q);
void AddSinkKey(std::uint64_t key, const TokenShape& shape, std::int64_t batch, std::int64_t head,
                std::int64_t sink, bf16* k);

// Lowers every logit of heads 1, 5, 9, ... by about 16 (scale 1/sqrt(dim)): queries gain the
// common direction of their head, keys its negative. The softmax does not notice, but a kernel that
// scores padding or missing keys as 0 does: their weight becomes nearly 1.
inline constexpr float kLoweredLogit = -16.0f;
void LowerLogitsOfQueries(std::uint64_t key, const TokenShape& shape, bf16* q);
void LowerLogitsOfKeys(std::uint64_t key, const TokenShape& shape, bf16* k);

}  // namespace assay::attention
