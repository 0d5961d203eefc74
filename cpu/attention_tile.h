// Templates behind attention_leaf.h, written with GCC vector types so that one text serves every
// width. Everything is in an unnamed namespace: each instruction set must keep its own copy, never
// share one through the linker.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>

#include "cpu/attention_leaf.h"

namespace assay::cpu {
namespace {

// `Isa` names the vector types of one instruction set (attention_avx512.cpp and siblings): kLanes
// floats a vector, kVectors vectors a panel. The register tile is kRowStep x kVectors accumulators
// plus kVectors panel values plus one broadcast: 6 x 4 of 32 registers with AVX-512, 6 x 2 of 16
// otherwise; 12 or more accumulators hide the FMA latency (4 cycles, 2 a cycle).
template <class Isa>
struct Tile {
  static constexpr int kLanes = Isa::kLanes, kVectors = Isa::kVectors, kPanel = kLanes * kVectors;
  using Floats = typename Isa::Floats;
  using Words = typename Isa::Words;

  static_assert(kKeyBlock % kPanel == 0 && 64 % kPanel == 0,
                "a key block and a head are whole panels");

  static Floats Load(const float* from) { return *reinterpret_cast<const Floats*>(from); }
  static void Store(float* to, Floats x) { *reinterpret_cast<Floats*>(to) = x; }
  static Floats Splat(float x) { return x - Floats{}; }

  // --- conversions and packing ---

  static Words LoadHalves(const std::uint16_t* from) {
    const auto halves = *reinterpret_cast<const typename Isa::UnalignedHalves*>(from);
    return __builtin_convertvector(halves, Words);
  }

  static void Widen(const std::uint16_t* from, int count, float* to) {
    for (int i = 0; i < count; i += kLanes) {
      *reinterpret_cast<Words*>(to + i) = LoadHalves(from + i) << 16;
    }
  }

  static void Narrow(const float* from, float factor, int count, std::uint16_t* to) {
    for (int i = 0; i < count; i += kLanes) {
      const Words bits = reinterpret_cast<Words>(Load(from + i) * factor);
      const Words rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
      const Words nan = (bits >> 16) | 0x40u;
      const Words chosen = (bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded;
      *reinterpret_cast<typename Isa::UnalignedHalves*>(to + i) =
          __builtin_convertvector(chosen, typename Isa::Halves);
    }
  }

  template <int kStep, bool kHigh, int... kLane>
  static Words Swap(Words a, Words b, std::integer_sequence<int, kLane...>) {
    if constexpr (kHigh) {
      return __builtin_shuffle(a, b, Words{((kLane & kStep) ? kLanes + kLane : kLane + kStep)...});
    } else {
      return __builtin_shuffle(a, b, Words{((kLane & kStep) ? kLanes + kLane - kStep : kLane)...});
    }
  }

  // One level of the transpose of a kLanes x kLanes block: exchanges the off-diagonal blocks.
  template <int kStep>
  static void TransposeFrom(Words* block) {
    if constexpr (kStep < kLanes) {
      constexpr auto kAll = std::make_integer_sequence<int, kLanes>{};
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        if ((i & kStep) != 0) continue;
        const Words a = block[i], b = block[i + kStep];
        block[i] = Swap<kStep, false>(a, b, kAll);
        block[i + kStep] = Swap<kStep, true>(a, b, kAll);
      }
      TransposeFrom<2 * kStep>(block);
    }
  }

  static void PackKeys(const std::uint16_t* const* rows, int keys, int head_dim, float* packed) {
    const int panels = (keys + kPanel - 1) / kPanel;
    for (int key = 0; key < panels * kPanel; key += kLanes) {
      float* panel = packed + key / kPanel * kPanel * head_dim + key % kPanel;
      // A 32-bit word holds channels 2i (low half) and 2i + 1; both are split after the transpose.
      for (int channel = 0; channel < head_dim; channel += 2 * kLanes) {
        Words block[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
          block[i] =
              key + i < keys
                  ? *reinterpret_cast<const typename Isa::UnalignedWords*>(rows[key + i] + channel)
                  : Words{};
        }
        TransposeFrom<1>(block);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
          float* to = panel + (channel + 2 * i) * kPanel;
          *reinterpret_cast<Words*>(to) = block[i] << 16;
          *reinterpret_cast<Words*>(to + kPanel) = block[i] & 0xFFFF0000u;
        }
      }
    }
  }

  static int ValueOffset(int key, int channel) {
    return (channel / kPanel * kKeyBlock + key) * kPanel + channel % kPanel;
  }

  static bool PackValues(const std::uint16_t* const* rows, int keys, int head_dim, float* packed) {
    constexpr std::uint32_t kExponent = 0x7F800000u;
    typename Isa::Signed special{};
    for (int key = 0; key < keys; ++key) {
      for (int channel = 0; channel < head_dim; channel += kLanes) {
        const Words bits = LoadHalves(rows[key] + channel) << 16;
        special |= (bits & kExponent) == kExponent;
        *reinterpret_cast<Words*>(packed + ValueOffset(key, channel)) = bits;
      }
    }
    std::int32_t any = 0;
    for (int i = 0; i < kLanes; ++i) any |= special[i];
    return any == 0;
  }

  // --- matrix products ---

  // c[kRowStep, kPanel] = (kScaled ? factor * c : 0) + a[kRowStep, depth] b[depth, kPanel].
  template <bool kScaled>
  static void Multiply(const float* a, std::int64_t a_stride, const float* b, int depth, float* c,
                       std::int64_t c_stride, const float* factor) {
    Floats sum[kRowStep][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRowStep; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = Floats{};
        if constexpr (kScaled) sum[r][v] = factor[r] * Load(c + r * c_stride + v * kLanes);
      }
    }
    for (int k = 0; k < depth; ++k) {
      Floats x[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) x[v] = Load(b + k * kPanel + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRowStep; ++r) {
        const float y = a[r * a_stride + k];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[r][v] += y * x[v];
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRowStep; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) Store(c + r * c_stride + v * kLanes, sum[r][v]);
    }
  }

  static void Scores(const float* q, int rows, const float* packed_k, int keys, int head_dim,
                     float* s) {
    for (int key = 0; key < keys; key += kPanel) {
      for (int row = 0; row < rows; row += kRowStep) {
        Multiply<false>(q + row * head_dim, head_dim, packed_k + key * head_dim, head_dim,
                        s + row * kKeyBlock + key, kKeyBlock, nullptr);
      }
    }
  }

  static void Accumulate(const float* p, int rows, const float* packed_v, int keys, int head_dim,
                         const float* factor, float* o) {
    for (int channel = 0; channel < head_dim; channel += kPanel) {
      for (int row = 0; row < rows; row += kRowStep) {
        Multiply<true>(p + row * kKeyBlock, kKeyBlock, packed_v + channel * kKeyBlock, keys,
                       o + row * head_dim + channel, head_dim, factor + row);
      }
    }
  }

  // --- softmax ---

  // 2^x for x <= 0, 0 below -126; NaN stays NaN. x = n + f, |f| <= 1/2; 2^f = exp(f ln 2) by the
  // Taylor terms up to f^7, whose remainder (4e-9 relative) is far below the fp32 rounding.
  static Floats Exp2(Floats x) {
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
    const Floats result = power * reinterpret_cast<Floats>(exponent);
    return x < -126.0f ? Floats{} : result;
  }

  static Floats Max(Floats a, Floats b) { return a > b ? a : b; }

  template <int kStep, int... kLane>
  static Floats Rotate(Floats x, std::integer_sequence<int, kLane...>) {
    return __builtin_shuffle(x, Words{(kLane ^ kStep)...});
  }
  template <int kStep = kLanes / 2>
  static float HorizontalMax(Floats x) {
    x = Max(x, Rotate<kStep>(x, std::make_integer_sequence<int, kLanes>{}));
    if constexpr (kStep > 1) return HorizontalMax<kStep / 2>(x);
    return x[0];
  }
  template <int kStep = kLanes / 2>
  static float HorizontalSum(Floats x) {
    x += Rotate<kStep>(x, std::make_integer_sequence<int, kLanes>{});
    if constexpr (kStep > 1) return HorizontalSum<kStep / 2>(x);
    return x[0];
  }

  template <int... kLane>
  static typename Isa::Signed LaneNumbers(std::integer_sequence<int, kLane...>) {
    return typename Isa::Signed{kLane...};
  }

  static void Softmax(float* s, int rows, int keys, float scale_log2e, float* row_max,
                      float* row_sum, float* factor) {
    constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
    const int columns = (keys + kLanes - 1) / kLanes * kLanes;
    const auto beyond =
        LaneNumbers(std::make_integer_sequence<int, kLanes>{}) >= keys - (columns - kLanes);
    for (int row = 0; row < rows; ++row) {
      float* line = s + row * kKeyBlock;
      float* last = line + columns - kLanes;
      Store(last, beyond ? Floats{} + kMinusInfinity : Load(last));
      Floats largest = Load(line);
      for (int key = kLanes; key < columns; key += kLanes) largest = Max(largest, Load(line + key));
      const float block_max = HorizontalMax(largest);
      const float old_max = row_max[row];
      const float new_max = block_max > old_max ? block_max : old_max;
      row_max[row] = new_max;
      // A row without a visible key so far: (-inf) - (-inf) must not arise.
      const float base = new_max == kMinusInfinity ? 0.0f : new_max;
      // Subtracting before scaling keeps logits of 1e4 exact to one rounding of the score.
      const float rescale = Exp2(Splat((old_max - base) * scale_log2e))[0];
      Floats sum{};
      for (int key = 0; key < columns; key += kLanes) {
        const Floats p = Exp2((Load(line + key) - base) * scale_log2e);
        Store(line + key, p);
        sum += p;
      }
      factor[row] = rescale;
      row_sum[row] = row_sum[row] * rescale + HorizontalSum(sum);
    }
  }

  static constexpr AttentionLeaf Leaf(const char* name) {
    return {name, Widen, Narrow, PackKeys, PackValues, Scores, Softmax, Accumulate, ValueOffset};
  }
};

}  // namespace
}  // namespace assay::cpu
