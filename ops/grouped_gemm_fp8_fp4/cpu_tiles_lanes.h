// The tile kernel on vectors. Included by the translation unit of one instruction set (cpu/lanes.h,
// cpu/dot_tiles.h), whose `Isa` also decodes weights:
//
//   static constexpr bool kDecodesInRegisters;  one group is one vector of pairs
//   static void DecodeGroup(const std::uint8_t* bytes, std::uint8_t scale, Pairs* out);
//                                               16 bytes to 32 / kStep vectors, in natural order
#pragma once

#include <algorithm>
#include <bit>

#include "cpu/dot_tiles.h"
#include "ops/grouped_gemm_fp8_fp4/cpu_tiles.h"
#include "ops/grouped_gemm_fp8_fp4/spec.h"

namespace assay::grouped_gemm_fp8_fp4 {
namespace {

using cpu::Floats;
using cpu::Halves;
using cpu::kLanes;
using cpu::kStep;
using cpu::kTileColumns;
using cpu::Pairs;
using cpu::Words;

// 8 columns x 1280 of k in bf16 are 20 KB and stay in L1 with a tile of activations (6 x 1280 = 15
// KB) while all rows of the task pass.
constexpr std::int64_t kBlockColumns = 8;
constexpr std::int64_t kBlockK = 1280;
constexpr std::int64_t kRowPadding = 32;  // keeps rows out of the same cache sets

// fp32 bits of e4m3 codes, without their scale: exponent and fraction move into place, and 2^120
// makes up for the difference of the biases (exact, subnormal codes included).
[[gnu::always_inline]] inline Words DecodeE4M3(Words code, Floats scale) {
  const Words magnitude = code & 0x7Fu;
  const Words placed = (code & 0x80u) << 24 | magnitude << 20;
  const Floats value = reinterpret_cast<Floats>(placed) * cpu::Broadcast(0x1p120f) * scale;
  return magnitude == 0x7Fu ? Words{} + 0x7FC00000u : reinterpret_cast<Words>(value);
}

// One row to bf16 with its scales multiplied in: exact.
inline void DecodeActivations(const e4m3* a, const std::uint8_t* scales, std::int64_t k,
                              bf16* out) {
  for (std::int64_t i = 0; i < k; i += kStep) {
    const auto bits = static_cast<std::uint32_t>(scales[i / kGroup]) << 23;
    const Floats scale = cpu::Broadcast(std::bit_cast<float>(bits));
    Halves pairs;  // of codes
    std::memcpy(&pairs, a + i, sizeof pairs);
    const Words codes = __builtin_convertvector(pairs, Words);
    const Words even = DecodeE4M3(codes & 0xFFu, scale), odd = DecodeE4M3(codes >> 8, scale);
    const Pairs both = (odd & 0xFFFF0000u) | even >> 16;
    std::memcpy(static_cast<void*>(out + i), &both, sizeof both);
  }
}

// Four sums of lanes, rounded.
inline void StoreSums(const Floats* sums, bf16* d) {
  float value[kTileColumns];
  cpu::SumLanes(sums, value);
  for (int c = 0; c < kTileColumns; ++c) d[c] = ToBF16(value[c]);
}

// Columns decoded on the fly, for tasks of so few rows that weights are used once.
template <class Isa>
struct PackedColumns {
  const std::uint8_t* w = nullptr;
  std::int64_t stride = 0;
  const std::uint8_t* scales = nullptr;
  std::int64_t scale_stride = 0;

  [[gnu::always_inline]] Pairs operator()(int column, std::int64_t step) const {
    const std::uint8_t* bytes = w + column * stride + step * (kGroup / 2);
    // The next tile's columns follow directly: every byte is asked for one tile ahead.
    __builtin_prefetch(bytes + kTileColumns * stride);
    Pairs pairs;
    Isa::DecodeGroup(bytes, scales[column * scale_stride + step], &pairs);
    return pairs;
  }
};

template <class Isa, int kRows>
void RunFewRows(const TileTask& task, const bf16* a, std::int64_t lda) {
  const std::int64_t stride = task.k / 2;
  for (std::int64_t c = 0; c < task.columns; c += kTileColumns) {
    const PackedColumns<Isa> columns{task.w + c * stride, stride,
                                     task.w_scales + c * task.w_scale_stride, task.w_scale_stride};
    Floats sum[kRows][kTileColumns] = {};
    cpu::AddTile<Isa, kRows>(task.k / kStep, a, lda, columns, sum);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) StoreSums(sum[r], task.d[r] + c);
  }
}

template <class Isa, int... kRowsLessOne>
void RunFewRows(const TileTask& task, const bf16* a, std::int64_t lda,
                std::integer_sequence<int, kRowsLessOne...>) {
  using Function = void (*)(const TileTask&, const bf16*, std::int64_t);
  static constexpr Function kTable[] = {RunFewRows<Isa, kRowsLessOne + 1>...};
  kTable[task.rows - 1](task, a, lda);
}

template <class Isa>
void DecodeBlock(const TileTask& task, std::int64_t column, std::int64_t k0, std::int64_t k_count,
                 bf16* out) {
  for (std::int64_t c = 0; c < kBlockColumns; ++c) {
    const std::uint8_t* bytes = task.w + ((column + c) * task.k + k0) / 2;
    const std::uint8_t* scales = task.w_scales + (column + c) * task.w_scale_stride + k0 / kGroup;
    bf16* row = out + c * (kBlockK + kRowPadding);
    for (std::int64_t g = 0; g < k_count / kGroup; ++g) {
      // The block of columns behind this one: without, decoding waits for memory (20 % at M =
      // 2688).
      __builtin_prefetch(bytes + g * (kGroup / 2) + kBlockColumns * task.k / 2);
      Pairs pairs[kGroup / kStep];
      Isa::DecodeGroup(bytes + g * (kGroup / 2), scales[g], pairs);
      std::memcpy(static_cast<void*>(row + g * kGroup), pairs, sizeof pairs);
    }
  }
}

template <class Isa>
void RunManyRows(const TileTask& task, const bf16* a, std::int64_t lda, TileScratch& scratch) {
  bf16* weights = scratch.weights(kBlockColumns * (kBlockK + kRowPadding));
  auto* sums = reinterpret_cast<Floats*>(scratch.sums(task.rows * kBlockColumns * kLanes));
  for (std::int64_t c = 0; c < task.columns; c += kBlockColumns) {
    for (std::int64_t k0 = 0; k0 < task.k; k0 += kBlockK) {
      const std::int64_t k_count = std::min(kBlockK, task.k - k0);
      DecodeBlock<Isa>(task, c, k0, k_count, weights);
      cpu::AddBlock<Isa>(task.rows, kBlockColumns, k_count, a + k0, lda, weights,
                         kBlockK + kRowPadding, sums, k0 == 0);
    }
    for (std::int64_t r = 0; r < task.rows; ++r) {
      for (std::int64_t i = 0; i < kBlockColumns; i += kTileColumns) {
        StoreSums(sums + r * kBlockColumns + i, task.d[r] + c + i);
      }
    }
  }
}

template <class Isa>
void RunTiles(const TileTask& task, TileScratch& scratch) {
  const std::int64_t lda = task.k + kRowPadding;
  bf16* a = scratch.activations(task.rows * lda);
  for (std::int64_t r = 0; r < task.rows; ++r) {
    DecodeActivations(task.a[r], task.a_scales + r * (task.k / kGroup), task.k, a + r * lda);
  }
  if constexpr (Isa::kDecodesInRegisters) {
    if (task.rows <= Isa::kTileRows) {
      return RunFewRows<Isa>(task, a, lda, std::make_integer_sequence<int, Isa::kTileRows>());
    }
  }
  RunManyRows<Isa>(task, a, lda, scratch);
}

}  // namespace
}  // namespace assay::grouped_gemm_fp8_fp4
