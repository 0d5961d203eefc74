// The tile step with products of bf16 pairs (AVX512-BF16): scores and O are fp32 sums, weights are
// rounded to bf16 for the second product while their sum stays fp32.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "ops/neighborhood_attention_3d/cpu_tile.h"

#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,fma")
#define ASSAY_LANES 16
#include "ops/neighborhood_attention_3d/cpu_tile_lanes.h"

namespace assay::neighborhood_attention_3d {
namespace {

constexpr int kChannelVectors = kChannels / kLanes;

// sum += a.even * b.even + a.odd * b.odd per lane.
[[gnu::always_inline]] inline __m512 Dot(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

// The queries' and weights' pairs as words, in the memory of the fp32 forms.
std::uint32_t* QueryWords(Tile& tile, int r) {
  return reinterpret_cast<std::uint32_t*>(tile.q) + r * kChannelPairs;
}
std::uint32_t* WeightWords(Tile& tile, int r) {
  return reinterpret_cast<std::uint32_t*>(tile.s[r]);
}
[[gnu::always_inline]] inline __m512i BroadcastWord(const std::uint32_t* word) {
  std::int32_t bits;
  std::memcpy(&bits, word, sizeof bits);
  return _mm512_set1_epi32(bits);
}

// --- packing ---

// words [16 lanes][16 channel pairs] become k [16 channel pairs][16 lanes].
void TransposeWords(__m512i (&r)[16], std::uint32_t* k, std::int64_t k_stride) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // r[i + c]: word c of each 128 bits, lanes i .. i + 3
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {  // word 4 q + c of all lanes lies in quarter q of r[c], r[4 + c] ..
    const __m512i even01 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
    const __m512i even23 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
    const __m512i odd01 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xDD);
    const __m512i odd23 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xDD);
    _mm512_storeu_si512(k + c * k_stride, _mm512_shuffle_i32x4(even01, even23, 0x88));
    _mm512_storeu_si512(k + (4 + c) * k_stride, _mm512_shuffle_i32x4(odd01, odd23, 0x88));
    _mm512_storeu_si512(k + (8 + c) * k_stride, _mm512_shuffle_i32x4(even01, even23, 0xDD));
    _mm512_storeu_si512(k + (12 + c) * k_stride, _mm512_shuffle_i32x4(odd01, odd23, 0xDD));
  }
}

void PackKeys(const GroupRows& rows, std::uint32_t* k, std::int64_t k_stride) {
  for (int half = 0; half < kChannels; half += 2 * kLanes) {
    __m512i words[16];
#pragma GCC unroll 16
    for (int i = 0; i < kGroupKeys; ++i) {
      const bf16* row = rows.Lane(i);
      words[i] = row == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(row + half);
    }
    TransposeWords(words, k + half / 2 * k_stride, k_stride);
  }
}

void LoadQueries(const bf16* const* rows, int queries, Tile& tile) {
  ResetSums(queries, tile);
  for (int r = 0; r < queries; ++r) {
    std::memcpy(QueryWords(tile, r), rows[r], kChannels * sizeof(bf16));
  }
}

// Key groups that all tiles of a call go through before the next ones: their lines stay in an L1.
constexpr int kSpanGroups = kBlockGroups / 2;

// Up to 24 accumulators, 3 or 6 vectors of keys and a broadcast fill the 32 registers.
template <int kRows>
constexpr int kScoreGroups = kRows <= 4 ? 6 : 3;

// Scores of groups [begin, end), and the largest visible one per lane.
template <int kRows>
void Scores(const KeyBlock& block, Tile& tile, const std::uint16_t* const* masks, int begin,
            int end) {
  constexpr int kGroups = kScoreGroups<kRows>;
  static_assert(kSpanGroups % kGroups == 0, "a span is whole register tiles");
  const std::uint32_t* q = QueryWords(tile, 0);
  for (int first = begin; first < end; first += kGroups) {
    const std::uint32_t* k[kGroups];
    for (int g = 0; g < kGroups; ++g) k[g] = block.k[first + g] + tile.lane;
    __m512 sum[kRows][kGroups];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 6
      for (int g = 0; g < kGroups; ++g) sum[r][g] = _mm512_setzero_ps();
    }
    for (int pair = 0; pair < kChannelPairs; ++pair) {
      __m512i keys[kGroups];
#pragma GCC unroll 6
      for (int g = 0; g < kGroups; ++g) {
        keys[g] = _mm512_loadu_si512(k[g] + pair * block.k_stride);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512i x = BroadcastWord(q + r * kChannelPairs + pair);
#pragma GCC unroll 6
        for (int g = 0; g < kGroups; ++g) sum[r][g] = Dot(sum[r][g], x, keys[g]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      __m512 largest =
          first == 0 ? _mm512_set1_ps(kMinusInfinity) : _mm512_load_ps(tile.largest[r]);
#pragma GCC unroll 6
      for (int g = 0; g < kGroups; ++g) {
        const __mmask16 visible = masks[first + g][r];
        largest = _mm512_mask_max_ps(largest, visible, largest, sum[r][g]);
        _mm512_store_ps(&tile.s[r][(first + g) * kGroupKeys], sum[r][g]);
      }
      _mm512_store_ps(tile.largest[r], largest);
    }
  }
}

// 2^x for x up to about 1, nowhere worse than 3e-6: minimax of degree 4, far below the 2^-9 of bf16
// weights; 0 where not visible, NaN stays NaN there.
[[gnu::always_inline]] inline __m512 Exp2(__m512 x, __mmask16 visible) {
  // x - floor(x), and 0 for -inf; scalef takes the floor itself.
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 power = _mm512_set1_ps(1.35341678e-2f);
  power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(5.20114601e-2f));
  power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(2.41442755e-1f));
  power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(6.93003833e-1f));
  power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(1.00000262f));
  return _mm512_maskz_scalef_ps(visible, power, x);
}

// Scores become weights 2^(score log2(e) - max), packed in pairs.
void Softmax(const KeyBlock& block, Tile& tile, const std::uint16_t* const* masks) {
  alignas(64) float largest[kGroupKeys] = {}, base[kGroupKeys];
  for (int r = 0; r < tile.queries; ++r) {
    largest[r] = _mm512_reduce_max_ps(_mm512_load_ps(tile.largest[r]));
  }
  const __m512 log2e = _mm512_set1_ps(kLog2E), nothing = _mm512_set1_ps(kMinusInfinity);
  const __m512 old_max = _mm512_load_ps(tile.max);
  const __m512 new_max = _mm512_max_ps(old_max, _mm512_mul_ps(_mm512_load_ps(largest), log2e));
  // Nothing visible so far, or scores of -inf only: (-inf) - (-inf) must not arise.
  const __m512 bases =
      _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(new_max, nothing, _CMP_NEQ_UQ), new_max);
  _mm512_store_ps(tile.max, new_max);
  _mm512_store_ps(tile.factor, Exp2(_mm512_sub_ps(old_max, bases), 0xFFFF));
  _mm512_store_ps(base, bases);
  for (int r = 0; r < tile.queries; ++r) {
    const __m512 shift = _mm512_set1_ps(base[r]);
    __m512 sum = _mm512_mul_ps(_mm512_load_ps(tile.sum[r]), _mm512_set1_ps(tile.factor[r]));
    std::uint32_t* words = WeightWords(tile, r);
    const int groups = block.groups;
    for (int g = 0; g < groups; ++g) {
      const __m512 s = _mm512_load_ps(&tile.s[r][g * kGroupKeys]);
      const __m512 p = Exp2(_mm512_fmsub_ps(s, log2e, shift), masks[g][r]);
      sum = _mm512_add_ps(sum, p);
      const __m256bh pairs = _mm512_cvtneps_pbh(p);
      std::memcpy(words + g * kGroupPairs, &pairs, sizeof pairs);
    }
    _mm512_store_ps(tile.sum[r], sum);
  }
}

// Pairs [begin, end) of a group that any of the queries [first, first + rows) sees.
struct PairRange {
  int begin = 0, end = 0;
};
PairRange VisiblePairs(const std::uint16_t* visible, int first, int rows) {
  unsigned any = 0;
  for (int r = first; r < first + rows; ++r) any |= visible[r];
  if (any == 0) return {};
  return {std::countr_zero(any) / 2, (static_cast<int>(std::bit_width(any)) + 1) / 2};
}

// o += weights V of groups [begin, end) for queries [first, first + kRows); what was summed before
// this block shrinks by `factor` first.
template <int kRows>
void Accumulate(const KeyBlock& block, Tile& tile, int first, int begin, int end) {
  __m512 sum[kRows][kChannelVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const __m512 factor = _mm512_set1_ps(begin == 0 ? tile.factor[first + r] : 1.0f);
#pragma GCC unroll 4
    for (int c = 0; c < kChannelVectors; ++c) {
      sum[r][c] = _mm512_mul_ps(_mm512_load_ps(&tile.o[first + r][c * kLanes]), factor);
    }
  }
  constexpr int kRowWords = kBlockGroups * kGroupKeys;
  for (int g = begin; g < end; ++g) {
    const PairRange range = VisiblePairs(tile.VisibleOf(block, g), first, kRows);
    const std::uint32_t* weights = WeightWords(tile, first) + g * kGroupPairs;
    for (int pair = range.begin; pair < range.end; ++pair) {
      const std::uint32_t* v = block.v[g] + (tile.lane / 2 + pair) * kChannels;
      __m512i values[kChannelVectors];
#pragma GCC unroll 4
      for (int c = 0; c < kChannelVectors; ++c) values[c] = _mm512_loadu_si512(v + c * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512i p = BroadcastWord(weights + r * kRowWords + pair);
#pragma GCC unroll 4
        for (int c = 0; c < kChannelVectors; ++c) sum[r][c] = Dot(sum[r][c], p, values[c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kChannelVectors; ++c) {
      _mm512_store_ps(&tile.o[first + r][c * kLanes], sum[r][c]);
    }
  }
}

// Six rows of O fill the registers; seven and eight are done in two halves, which see fewer columns
// each.
void AccumulateRows(const KeyBlock& block, Tile& tile, int begin, int end) {
  constexpr int kMostRows = 6, kHalf = kTileQueries / 2;
  const int head = tile.queries <= kMostRows ? tile.queries : kHalf;
  for (int first = 0; first < tile.queries; first += head) {
    WithRows(std::min(head, tile.queries - first), [&](auto rows) {
      if constexpr (rows <= kMostRows) Accumulate<rows>(block, tile, first, begin, end);
    });
  }
}

// O is not read again: whole lines that bypass the caches need not be read before they are written.
void StoreRows(const Tile& tile, bf16* const* rows) {
  for (int r = 0; r < tile.queries; ++r) {
    const __m512 factor = _mm512_set1_ps(1 / _mm512_reduce_add_ps(_mm512_load_ps(tile.sum[r])));
    const bool aligned = reinterpret_cast<std::uintptr_t>(rows[r]) % 64 == 0;
#pragma GCC unroll 2
    for (int c = 0; c < kChannels; c += 2 * kLanes) {
      const __m512 low = _mm512_mul_ps(_mm512_load_ps(&tile.o[r][c]), factor);
      const __m512 high = _mm512_mul_ps(_mm512_load_ps(&tile.o[r][c + kLanes]), factor);
      const auto line = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
      if (aligned) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(rows[r] + c), line);
      } else {
        _mm512_storeu_si512(rows[r] + c, line);
      }
    }
  }
}

void Finish() { _mm_sfence(); }

void Attend(const KeyBlock& block, Tile* tiles, int count, FetchList& fetch, int fetch_end) {
  static constexpr std::uint16_t kNothing[kTileQueries] = {};
  const std::uint16_t* masks[kTilesAtOnce][kBlockGroups];
  for (int i = 0; i < count; ++i) {
    for (int g = 0; g < kBlockGroups; ++g) {
      masks[i][g] = g < block.groups ? tiles[i].VisibleOf(block, g) : kNothing;
    }
  }
  const int spans = (block.groups + kSpanGroups - 1) / kSpanGroups;
  FetchSteps fetch_steps(fetch, fetch_end, 2 * spans * count);
  for (int begin = 0; begin < block.groups; begin += kSpanGroups) {
    const int end = std::min(begin + kSpanGroups, block.groups);
    for (int i = 0; i < count; ++i) {
      fetch_steps.Next();
      WithRows(tiles[i].queries,
               [&](auto rows) { Scores<rows>(block, tiles[i], masks[i], begin, end); });
    }
  }
  for (int i = 0; i < count; ++i) Softmax(block, tiles[i], masks[i]);
  for (int begin = 0; begin < block.groups; begin += kSpanGroups) {
    const int end = std::min(begin + kSpanGroups, block.groups);
    for (int i = 0; i < count; ++i) {
      fetch_steps.Next();
      AccumulateRows(block, tiles[i], begin, end);
    }
  }
}

}  // namespace

const TileLeaf& Avx512Bf16Leaf() {
  static constexpr TileLeaf kLeaf = {"avx512bf16", PackKeys,  PackValues, LoadQueries,
                                     Attend,       StoreRows, Finish};
  return kLeaf;
}

}  // namespace assay::neighborhood_attention_3d
#endif
