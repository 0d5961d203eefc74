// The inner loops with AVX-512 BF16 dot products: q k straight from bf16, and P rounded to bf16 for
// P V, as engines on matrix units do. Standard headers come before the pragma, so that no inline
// function of theirs is compiled for it.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ops/qsa_sparse_gqa_decode/cpu_leaf.h"

#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,fma")
#define ASSAY_LANES 16
#include "ops/qsa_sparse_gqa_decode/cpu_leaf_lanes.h"

namespace assay::qsa_sparse_gqa_decode {
namespace {

constexpr int kPairLanes = 32;  // bf16 elements of a vector

[[gnu::always_inline]] inline __m512i LoadBits(const bf16* p) { return _mm512_loadu_si512(p); }

[[gnu::always_inline]] inline Floats DotBF16(Floats sum, __m512i a, __m512i b) {
  return reinterpret_cast<Floats>(_mm512_dpbf16_ps(
      reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)));
}

class ProductsBF16 {
 public:
  void SetQuery(int head, const bf16* q) { std::memcpy(q_ + head * kSize, q, 2 * kSize); }

  // As cpu::DotTile.
  [[gnu::always_inline]] Floats Dots(int quad, const bf16* const (&rows)[kDotRows]) const {
    const bf16* q = q_ + quad * kDotQueries * kSize;
    Floats sum[kLanes] = {};
#pragma GCC unroll 2
    for (int c = 0; c < kSize; c += kPairLanes) {
      __m512i x[kDotRows];
#pragma GCC unroll 4
      for (int r = 0; r < kDotRows; ++r) x[r] = LoadBits(rows[r] + c);
#pragma GCC unroll 4
      for (int i = 0; i < kDotQueries; ++i) {
        const __m512i y = LoadBits(q + i * kSize + c);
#pragma GCC unroll 4
        for (int r = 0; r < kDotRows; ++r) {
          sum[i * kDotRows + r] = DotBF16(sum[i * kDotRows + r], x[r], y);
        }
      }
    }
    return cpu::SumRows(sum);
  }

  static void Accumulate(const ValueTile& tile) {
    alignas(64) std::uint32_t pairs[kQuads * kSteps * kLanes / 2];
    for (int i = 0; i < kQuads * kSteps; ++i) {
      const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_load_ps(tile.weights + i * kLanes));
      std::memcpy(pairs + i * kLanes / 2, &rounded, sizeof rounded);
    }
    for (int c = 0; c < kSize; c += kPairLanes) AccumulateChannels(tile, pairs, c);
  }

  // Channels 8i..8i+3 of a vector of 32 are lanes 4i.. of `low`, 8i+4..8i+7 those of `high`.
  static void Narrow(const float* values, bf16* out) {
    for (int c = 0; c < kSize; c += kPairLanes) {
      bf16 low[kLanes], high[kLanes];
      Store(Load(values + c), low);
      Store(Load(values + c + kLanes), high);
      for (int i = 0; i < kLanes; i += 4) {
        std::memcpy(out + c + 2 * i, low + i, 8);
        std::memcpy(out + c + 2 * i + 4, high + i, 8);
      }
    }
  }

 private:
  // Values of two tokens are interleaved, so that a pair of them meets a pair of weights.
  [[gnu::noinline]] static void AccumulateChannels(const ValueTile& tile,
                                                   const std::uint32_t* pairs, int c) {
    Floats low[kQueries], high[kQueries];
    float* sums = tile.sums + c;
#pragma GCC unroll 12
    for (int i = 0; i < kQueries; ++i) {
      const Floats factor = Broadcast(tile.factor[i]);
      low[i] = Load(sums + i * kSize) * factor;
      high[i] = Load(sums + i * kSize + kLanes) * factor;
    }
    const bf16* values = tile.cache + tile.kv_head * kSize + c;
    for (int token = 0; token < tile.count; token += 2) {
      const __m512i first = LoadBits(values + tile.tokens[token]);
      const __m512i second = token + 1 < tile.count ? LoadBits(values + tile.tokens[token + 1])
                                                    : _mm512_setzero_si512();
      FetchValues(tile, c, token);
      FetchValues(tile, c, token + 1);
      const __m512i v_low = _mm512_unpacklo_epi16(first, second);
      const __m512i v_high = _mm512_unpackhi_epi16(first, second);
      const std::uint32_t* weight = pairs + WeightOffset(0, static_cast<unsigned>(token)) / 2;
#pragma GCC unroll 12
      for (unsigned i = 0; i < kQueries; ++i) {
        const __m512i p = _mm512_set1_epi32(static_cast<int>(weight[WeightOffset(i, 0) / 2]));
        low[i] = DotBF16(low[i], v_low, p);
        high[i] = DotBF16(high[i], v_high, p);
      }
    }
#pragma GCC unroll 12
    for (int i = 0; i < kQueries; ++i) {
      Store(low[i], sums + i * kSize);
      Store(high[i], sums + i * kSize + kLanes);
    }
  }

  alignas(64) bf16 q_[kQueries * kSize];
};

}  // namespace

const Leaf kLeafAvx512BF16 = {"avx512bf16", Attend<ProductsBF16>, Merge<ProductsBF16>};

}  // namespace assay::qsa_sparse_gqa_decode
#endif
