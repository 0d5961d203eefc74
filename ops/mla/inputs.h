// Generated inputs and input checks that both MLA rooms share.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/tensor.h"
#include "ops/family.h"

namespace assay::mla {

inline constexpr float kDefaultScale = 0.04419417382415922f;  // 1 / sqrt(512)

// --- generation: same bits on every machine ---

// q[tokens, 64, 512] ~ N(0,1) times a factor of the head between 0.75 and 3: with LatentRow's keys
// logits have a standard deviation of 1 to 4.
void GenerateQueries(std::uint64_t key, std::uint64_t tensor, std::int64_t tokens, bf16* q);

// N(0,1), but head 3 has -inf, head 17 +inf, head 29 has 20 and head 41 has 8: near the logarithm
// of a full list's sum, where a sink that is counted twice shows.
void GenerateSinks(std::uint64_t key, std::uint64_t tensor, float* sink);

// Latent row number `row` before it is encoded: N(0,1) times a gain of the row in [0.5, 2].
void LatentRow(std::uint64_t key, std::uint64_t tensor, std::int64_t row, float* x);

// --- checks; all throw kInput naming definition, tensor, position and value ---

// Every length in [0, width].
void CheckLengths(const Problem& problem, const Tensor* lengths, std::int64_t width);
// No NaN.
void CheckSinks(const Problem& problem, const Tensor* sink);
// Finite.
void CheckQueries(const Problem& problem, const Tensor& q);
// Positive and finite. A rank-0 tensor `sm_scale`; absent = 1/sqrt(512).
float ScaleOf(const Problem& problem, const Bundle& inputs);

// Index of the first element of x that is NaN or infinite, or -1.
std::int64_t FirstNonFinite(const bf16* x, std::int64_t count);

}  // namespace assay::mla
