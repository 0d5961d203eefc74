// fp32 vectors for kernels that are compiled once per instruction set. The including translation
// unit says `#pragma GCC target(...)` and defines ASSAY_LANES (16 for AVX-512, 8 for AVX2, 4
// otherwise) before it. (Not derived from __AVX512F__: compiled from preprocessed text, as ccache
// does, the pragma does not define it.) Everything is in an unnamed namespace, so that no linker
// mixes two sets up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/dtype.h"

namespace assay::cpu {
namespace {

constexpr int kLanes = ASSAY_LANES;

using Floats = float __attribute__((vector_size(4 * kLanes)));
using Words = std::uint32_t __attribute__((vector_size(4 * kLanes)));
using Halves = std::uint16_t __attribute__((vector_size(2 * kLanes)));

[[gnu::always_inline]] inline Floats Broadcast(float x) { return x - Floats{}; }

// Any alignment; compiles to one unaligned vector move.
[[gnu::always_inline]] inline Floats Load(const float* p) {
  Floats x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
[[gnu::always_inline]] inline void Store(Floats x, float* p) { std::memcpy(p, &x, sizeof x); }

[[gnu::always_inline]] inline Floats Load(const bf16* p) {
  Halves half;
  std::memcpy(&half, p, sizeof half);
  const Words bits = __builtin_convertvector(half, Words) << 16;
  return reinterpret_cast<Floats>(bits);
}

// Round to nearest even, NaN kept quiet: as ToBF16(float).
[[gnu::always_inline]] inline void Store(Floats x, bf16* p) {
  const Words bits = reinterpret_cast<Words>(x);
  const Words rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const Words nan = (bits >> 16) | 0x40u;
  const Words chosen = (bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded;
  const Halves half = __builtin_convertvector(chosen, Halves);
  std::memcpy(static_cast<void*>(p), &half, sizeof half);
}

template <int kStep, std::size_t... kLane>
[[gnu::always_inline]] inline Floats AddPartners(Floats x, std::index_sequence<kLane...>) {
  return x + __builtin_shufflevector(x, x, static_cast<int>(kLane ^ kStep)...);
}

// Sum of the lanes in a fixed tree order.
template <int kStep = kLanes / 2>
[[gnu::always_inline]] inline float Sum(Floats x) {
  if constexpr (kStep == 0) {
    return x[0];
  } else {
    return Sum<kStep / 2>(AddPartners<kStep>(x, std::make_index_sequence<kLanes>()));
  }
}

// Exchanges the off-diagonal kStep x kStep blocks of two rows of a transposition.
template <int kStep, std::size_t... kLane>
[[gnu::always_inline]] inline void ExchangeBlocks(Floats& low, Floats& high,
                                                  std::index_sequence<kLane...>) {
  const Floats a = low, b = high;
  low = __builtin_shufflevector(
      a, b, static_cast<int>(kLane & kStep ? kLanes + kLane - kStep : kLane)...);
  high = __builtin_shufflevector(
      a, b, static_cast<int>(kLane & kStep ? kLanes + kLane : kLane + kStep)...);
}

// Transposes a kLanes x kLanes tile held in kLanes vectors: log2(kLanes) rounds of exchanges.
template <int kStep = 1>
[[gnu::always_inline]] inline void Transpose(Floats (&rows)[kLanes]) {
  if constexpr (kStep < kLanes) {
#pragma GCC unroll 16
    for (int row = 0; row < kLanes; ++row) {
      if ((row & kStep) == 0) {
        ExchangeBlocks<kStep>(rows[row], rows[row + kStep], std::make_index_sequence<kLanes>());
      }
    }
    Transpose<2 * kStep>(rows);
  }
}

}  // namespace
}  // namespace assay::cpu
