// Philox4x32-10 (Salmon et al. 2011), the engine's only source of randomness: weights, prompts,
// sampling. Counter-based: any word on demand, the same on every machine.
#pragma once

#include <array>
#include <cstdint>

namespace assay::engine {

using PhiloxWords = std::array<std::uint32_t, 4>;

constexpr PhiloxWords Philox(std::uint64_t key, const PhiloxWords& counter) {
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  PhiloxWords x = counter;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * x[0], p1 = 0xCD9E8D57ull * x[2];
    x = {static_cast<std::uint32_t>(p1 >> 32) ^ x[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ x[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return x;
}

// Words 4 * block .. 4 * block + 3 of a tensor.
constexpr PhiloxWords TensorWords(std::uint64_t seed, std::uint32_t tensor_id,
                                  std::uint64_t block) {
  return Philox(seed, {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                       tensor_id, 0});
}

// Uniform in [0, 1) with 24 bits, for (seed, position, purpose).
constexpr float PhiloxUniform(std::uint64_t seed, std::uint64_t position, std::uint32_t purpose) {
  const PhiloxWords words = Philox(seed, {static_cast<std::uint32_t>(position),
                                          static_cast<std::uint32_t>(position >> 32), purpose, 0});
  return static_cast<float>(words[0] >> 8) * 0x1p-24f;
}

}  // namespace assay::engine
