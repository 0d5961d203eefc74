// Register tiles of dot products: sums over k of products of bf16 rows, lanes along k. Both
// operands are read as they lie in memory (no packing), which suits products of a few rows with
// many.
//
// Included by the translation unit of one instruction set (see cpu/lanes.h; they need
// -ffp-contract=fast). `Isa` there says how two vectors of bf16 pairs are multiplied:
//
//   static constexpr int kTileRows;                 rows of a tile; kTileRows * 4 accumulators
//   static constexpr int kParts;                    1: pairs are multiplied as they are; 2: widened
//   static Operand Part(int part, Pairs x);         what MultiplyAdd takes
//   static Floats MultiplyAdd(Floats sum, Operand a, Operand b);
//
// The order of a sum depends on nothing but the lanes: not on the tile, the blocks of k or where a
// row stands.
#pragma once

#include <cstdint>
#include <utility>

#include "cpu/lanes.h"

namespace assay::cpu {
namespace {

using Pairs = Words;  // kLanes pairs of bf16, the even k in the low half

constexpr int kTileColumns = 4;
constexpr std::int64_t kStep = 2 * kLanes;  // k of one vector of pairs

[[gnu::always_inline]] inline Pairs LoadPairs(const bf16* p) {
  Pairs x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

// Without bf16 instructions: a pair is two fp32 operands, one shift and one mask away.
struct WidenedPairs {
  static constexpr int kTileRows = kLanes == 16 ? 6 : 2;
  static constexpr int kParts = 2;
  [[gnu::always_inline]] static Floats Part(int part, Pairs x) {
    return reinterpret_cast<Floats>(part == 0 ? x << 16 : x & 0xFFFF0000u);
  }
  [[gnu::always_inline]] static Floats MultiplyAdd(Floats sum, Floats a, Floats b) {
    return sum + a * b;
  }
};

// One operand of kTileColumns rows with stride `ldb`, read from memory.
struct PlainColumns {
  const bf16* b = nullptr;
  std::int64_t ldb = 0;
  [[gnu::always_inline]] Pairs operator()(int column, std::int64_t step) const {
    return LoadPairs(b + column * ldb + step * kStep);
  }
};

// sum[r][c] += over `steps` vectors of row r of `a` times column(c, step).
template <class Isa, int kRows, class Columns>
[[gnu::always_inline]] inline void AddTile(std::int64_t steps, const bf16* a, std::int64_t lda,
                                           const Columns& column,
                                           Floats (&sum)[kRows][kTileColumns]) {
  for (std::int64_t step = 0; step < steps; ++step) {
    Pairs b[kTileColumns];
#pragma GCC unroll 4
    for (int c = 0; c < kTileColumns; ++c) b[c] = column(c, step);
#pragma GCC unroll 2
    for (int part = 0; part < Isa::kParts; ++part) {
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const auto x = Isa::Part(part, LoadPairs(a + r * lda + step * kStep));
#pragma GCC unroll 4
        for (int c = 0; c < kTileColumns; ++c) {
          sum[r][c] = Isa::MultiplyAdd(sum[r][c], x, Isa::Part(part, b[c]));
        }
      }
    }
  }
}

// A tile of a block: loads and stores its sums, [row][sum_stride] vectors.
template <class Isa, int kRows>
void AddStoredTile(std::int64_t steps, const bf16* a, std::int64_t lda, const PlainColumns& column,
                   Floats* sums, std::int64_t sum_stride, bool first) {
  Floats sum[kRows][kTileColumns];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kTileColumns; ++c) sum[r][c] = first ? Floats{} : sums[r * sum_stride + c];
  }
  AddTile<Isa, kRows>(steps, a, lda, column, sum);
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kTileColumns; ++c) sums[r * sum_stride + c] = sum[r][c];
  }
}

template <class Isa, int... kRowsLessOne>
[[gnu::always_inline]] inline auto StoredTile(int rows,
                                              std::integer_sequence<int, kRowsLessOne...>) {
  using Function = void (*)(std::int64_t, const bf16*, std::int64_t, const PlainColumns&, Floats*,
                            std::int64_t, bool);
  static constexpr Function kTable[] = {AddStoredTile<Isa, kRowsLessOne + 1>...};
  return kTable[rows - 1];
}

// sums[r][c] (+)= over k of a[r, k] * b[c, k], r < rows, c < columns; from 0 when `first`.
// `columns` is a multiple of kTileColumns, k one of kStep. The columns' part of `b` should fit L1:
// it is read once per tile of rows.
template <class Isa>
void AddBlock(std::int64_t rows, std::int64_t columns, std::int64_t k, const bf16* a,
              std::int64_t lda, const bf16* b, std::int64_t ldb, Floats* sums, bool first) {
  const std::int64_t tiles = (rows + Isa::kTileRows - 1) / Isa::kTileRows;  // of equal height
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const std::int64_t r0 = rows * tile / tiles, r1 = rows * (tile + 1) / tiles;
    const auto add = StoredTile<Isa>(static_cast<int>(r1 - r0),
                                     std::make_integer_sequence<int, Isa::kTileRows>());
    for (std::int64_t c = 0; c < columns; c += kTileColumns) {
      add(k / kStep, a + r0 * lda, lda, PlainColumns{b + c * ldb, ldb}, sums + r0 * columns + c,
          columns, first);
    }
  }
}

template <int kOffset, int kGroup, std::size_t... kLane>
[[gnu::always_inline]] inline Floats Interleave(Floats a, Floats b, std::index_sequence<kLane...>) {
  // In every 128-bit lane: kGroup elements of `a`, then of `b`, from kOffset on, alternating.
  return __builtin_shufflevector(
      a, b,
      static_cast<int>(kLane / 4 * 4 + kOffset + kLane % 4 / (2 * kGroup) * kGroup +
                       kLane % kGroup + (kLane / kGroup % 2) * kLanes)...);
}

// out[c] = sum of the lanes of x[c], all four in the same fixed tree order.
[[gnu::always_inline]] inline void SumLanes(const Floats* x, float* out) {
  constexpr auto kAll = std::make_index_sequence<kLanes>();
  const Floats x01 = Interleave<0, 1>(x[0], x[1], kAll) + Interleave<2, 1>(x[0], x[1], kAll);
  const Floats x23 = Interleave<0, 1>(x[2], x[3], kAll) + Interleave<2, 1>(x[2], x[3], kAll);
  Floats sum = Interleave<0, 2>(x01, x23, kAll) + Interleave<2, 2>(x01, x23, kAll);
  if constexpr (kLanes >= 16) sum = AddPartners<8>(sum, kAll);
  if constexpr (kLanes >= 8) sum = AddPartners<4>(sum, kAll);
  std::memcpy(out, &sum, 4 * sizeof(float));
}

}  // namespace
}  // namespace assay::cpu
