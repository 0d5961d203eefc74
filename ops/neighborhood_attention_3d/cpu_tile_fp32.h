// A tile step with fp32 multiply-adds: bf16 words are widened in registers, weights stay fp32.
// Included by the translation unit of one instruction set after cpu_tile_lanes.h.
#pragma once

#include "ops/neighborhood_attention_3d/cpu_tile_lanes.h"

namespace assay::neighborhood_attention_3d {
namespace {

void PackKeys(const GroupRows& rows, std::uint32_t* k, std::int64_t k_stride) {
  for (int lane = 0; lane < kGroupKeys; lane += kLanes) {
    for (int pair = 0; pair < kChannelPairs; pair += kLanes) {
      Floats block[kLanes];  // words, only moved
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        const bf16* row = rows.Lane(lane + i);
        block[i] = reinterpret_cast<Floats>(row == nullptr ? Words{} : LoadWords(row + 2 * pair));
      }
      cpu::Transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        StoreWords(reinterpret_cast<Words>(block[i]), k + (pair + i) * k_stride + lane);
      }
    }
  }
}

void LoadQueries(const bf16* const* rows, int queries, Tile& tile) {
  ResetSums(queries, tile);
  for (int r = 0; r < queries; ++r) {
    for (int c = 0; c < kChannels; c += kLanes)
      Store(Load(rows[r] + c), tile.q + r * kChannels + c);
  }
}

// sum[r] += a[r][2i] low(words[i]) + a[r][2i + 1] high(words[i]) over `pairs` words.
template <int kRows>
void AddProducts(const float* a, int a_stride, int pairs, const std::uint32_t* words,
                 std::int64_t stride, Floats (&sum)[kRows]) {
  for (int i = 0; i < pairs; ++i) {
    const Words word = LoadWords(words + i * stride);
    const auto low = reinterpret_cast<Floats>(word << 16);
    const auto high = reinterpret_cast<Floats>(word & 0xFFFF0000u);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sum[r] += Broadcast(a[r * a_stride + 2 * i]) * low;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sum[r] += Broadcast(a[r * a_stride + 2 * i + 1]) * high;
  }
}

template <int kRows>
void Scores(const KeyBlock& block, Tile& tile) {
  for (int group = 0; group < block.groups; ++group) {
    for (int lane = 0; lane < kGroupKeys; lane += kLanes) {
      Floats sum[kRows] = {};
      AddProducts<kRows>(tile.q, kChannels, kChannelPairs, block.k[group] + tile.lane + lane,
                         block.k_stride, sum);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) Store(sum[r], &tile.s[r][group * kGroupKeys + lane]);
    }
  }
}

// 2^x for x up to about 1, 0 below -126; NaN stays NaN. x = n + f with |f| <= 1/2; 2^f by the
// Taylor terms up to f^7, whose remainder (4e-9 relative) is far below the fp32 rounding.
Floats Exp2(Floats x) {
  // Adding 1.5 * 2^23 + 127 leaves n + 127, the exponent field of 2^n, in the low bits.
  constexpr float kShift = 12582912.0f + 127.0f;
  const Floats shifted = x + kShift;
  const Floats f = x - (shifted - kShift);
  Floats power = f * 1.52527338e-5f + 1.54035304e-4f;
  power = power * f + 1.33335581e-3f;
  power = power * f + 9.61812911e-3f;
  power = power * f + 5.55041087e-2f;
  power = power * f + 2.40226507e-1f;
  power = power * f + 6.93147181e-1f;
  power = power * f + 1.0f;
  const Words exponent = reinterpret_cast<Words>(shifted) << 23;
  return x < -126.0f ? Floats{} : power * reinterpret_cast<Floats>(exponent);
}

// `x` in the visible lanes, `other` elsewhere; `lane` is the number of the first.
Floats Select(std::uint16_t visible, int lane, Floats x, float other) {
  Words bits{};
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) bits[i] = 1u << i;
  const Words shifted = Words{} + static_cast<std::uint32_t>(visible >> lane);
  return (shifted & bits) != 0u ? x : Broadcast(other);
}

float LargestVisible(const KeyBlock& block, const Tile& tile, int r) {
  Floats largest = Broadcast(kMinusInfinity);
  for (int group = 0; group < block.groups; ++group) {
    for (int lane = 0; lane < kGroupKeys; lane += kLanes) {
      const Floats s = Select(tile.VisibleOf(block, group)[r], lane,
                              Load(&tile.s[r][group * kGroupKeys + lane]), kMinusInfinity);
      largest = s > largest ? s : largest;
    }
  }
  float result = largest[0];
  for (int i = 1; i < kLanes; ++i) result = largest[i] > result ? largest[i] : result;
  return result;
}

// Scores become weights 2^(score log2(e) - max); earlier sums are to be multiplied by `factor`.
void Softmax(const KeyBlock& block, Tile& tile) {
  for (int r = 0; r < tile.queries; ++r) {
    const float largest = LargestVisible(block, tile, r) * kLog2E;
    const float old_max = tile.max[r];
    const float new_max = largest > old_max ? largest : old_max;
    tile.max[r] = new_max;
    // Nothing visible so far, or scores of -inf only: (-inf) - (-inf) must not arise.
    const float base = new_max == kMinusInfinity ? 0.0f : new_max;
    tile.factor[r] = Exp2(Broadcast(old_max - base))[0];
    for (int lane = 0; lane < kGroupKeys; lane += kLanes) {
      Floats sum = Load(&tile.sum[r][lane]) * tile.factor[r];
      for (int group = 0; group < block.groups; ++group) {
        float* s = &tile.s[r][group * kGroupKeys + lane];
        const Floats p =
            Select(tile.VisibleOf(block, group)[r], lane, Exp2(Load(s) * kLog2E - base), 0);
        Store(p, s);
        sum += p;
      }
      Store(sum, &tile.sum[r][lane]);
    }
  }
}

template <int kRows>
void Accumulate(const KeyBlock& block, Tile& tile) {
  for (int channel = 0; channel < kChannels; channel += kLanes) {
    Floats sum[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sum[r] = Load(&tile.o[r][channel]) * tile.factor[r];
    for (int group = 0; group < block.groups; ++group) {
      AddProducts<kRows>(&tile.s[0][group * kGroupKeys], kBlockGroups * kGroupKeys, kGroupPairs,
                         block.v[group] + tile.lane / 2 * kChannels + channel, kChannels, sum);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) Store(sum[r], &tile.o[r][channel]);
  }
}

void StoreRows(const Tile& tile, bf16* const* rows) {
  for (int r = 0; r < tile.queries; ++r) {
    Floats sum{};
    for (int i = 0; i < kGroupKeys; i += kLanes) sum += Load(&tile.sum[r][i]);
    const Floats factor = Broadcast(1 / cpu::Sum(sum));
    for (int c = 0; c < kChannels; c += kLanes) {
      Store(Load(&tile.o[r][c]) * factor, rows[r] + c);
    }
  }
}

void Attend(const KeyBlock& block, Tile* tiles, int count, FetchList& fetch, int fetch_end) {
  FetchSteps fetch_steps(fetch, fetch_end, 2 * count);
  for (Tile* tile = tiles; tile < tiles + count; ++tile) {
    fetch_steps.Next();
    WithRows(tile->queries, [&](auto rows) { Scores<rows>(block, *tile); });
    Softmax(block, *tile);
    fetch_steps.Next();
    WithRows(tile->queries, [&](auto rows) { Accumulate<rows>(block, *tile); });
  }
}

constexpr TileLeaf Fp32Leaf(const char* name) {
  return {name, PackKeys, PackValues, LoadQueries, Attend, StoreRows, [] {}};
}

}  // namespace
}  // namespace assay::neighborhood_attention_3d
