// Seeded weights that keep a model's activations in a healthy range, and plant a permutation of the
// vocabulary in trunk and MTP layer, so that drafts are really accepted. Bit-portable: the same
// values on every machine, any element on demand.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model.h"

namespace assay::engine {

struct SyntheticOptions {
  std::uint64_t seed = 1;
  double plant = 0;  // strength of the planted permutation t -> t + 7919 mod vocab; 0 = none
  WeightFormat format = WeightFormat::kBF16;  // of DSA, dense and expert matrices
  bool noise_mtp = false;  // the MTP layer's own weights from another seed: drafts are worthless
};

// 5.0 for tiny, 2.6 for larger models: mean accepted length near 3 with 3 drafts.
double DefaultPlant(const ModelConfig& config);

// Throws kInput when the weights do not fit into memory.
Model MakeSyntheticModel(const ModelConfig& config, const SyntheticOptions& options);

// Prompt token i of this seed.
std::vector<std::int32_t> SyntheticPrompt(const ModelConfig& config, std::uint64_t seed,
                                          std::int64_t count);

// Sum of (1-based index x fp32 bits) mod 2^32: names the bits of a tensor in golden values.
std::uint32_t TensorChecksum(const std::vector<float>& values);
std::uint32_t TensorChecksum(const Matrix& matrix);  // kBF16 only

}  // namespace assay::engine
