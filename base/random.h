// Counter-based element source of every generated input: any element on demand, the same bits on
// CPU and GPU. Formula and test vectors: the replay harness page; see base/README.md.
#pragma once

#include <bit>
#include <cstdint>

namespace assay {

// 64 random bits of element `index` (flat, row-major) of tensor number `tensor` (its position in
// the declared input order) of the content set named by `key`.
constexpr std::uint64_t Mix64(std::uint64_t key, std::uint64_t tensor, std::uint64_t index) {
  constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15u;
  const std::uint64_t u = key ^ std::rotl(tensor * kGolden, 32);
  std::uint64_t x = u + (index + 1) * kGolden;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Unit variance, zero mean, bell-shaped, range +-3.46: four 16-bit fields summed, one fp32
// multiply.
constexpr float UnitNormal(std::uint64_t key, std::uint64_t tensor, std::uint64_t index) {
  const std::uint64_t h = Mix64(key, tensor, index);
  const auto sum = static_cast<std::int32_t>((h & 0xFFFF) + ((h >> 16) & 0xFFFF) +
                                             ((h >> 32) & 0xFFFF) + (h >> 48));
  constexpr float kScale = 1.7320508075688772f / 65536.0f;  // sqrt(3) / 2^16
  return static_cast<float>(sum - 131070) * kScale;
}

// Uniform in [0, 1) with 53 bits.
constexpr double Uniform(std::uint64_t key, std::uint64_t tensor, std::uint64_t index) {
  return static_cast<double>(Mix64(key, tensor, index) >> 11) * 0x1.0p-53;
}

// A tensor number for random values that belong to no input (partitions, sample rows, variants).
inline constexpr std::uint64_t kAuxiliaryTensor = 1000;

}  // namespace assay
