// Scores in wgmma accumulators: hiding keys, running maximum and sum, weights in bf16. Float
// 4j + 2h + i of lane l belongs to row l / 4 + 8h, column 8j + 2 (l % 4) + i.
#pragma once

#include <cstdint>

#include "cuda/epilogue.cuh"
#include "ops/attention/sm90_params.cuh"

namespace assay::attention {

__device__ inline float MinusInfinity() { return __int_as_float(0xff800000); }

// 2^x, subnormal results are 0. About 2 ulp.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x of a positive sum, 1 ulp; 0 of 0.
__device__ inline float InverseSum(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return x == 0 ? 0 : y;
}

// Two rows of a thread. Weights are 2^(s c - reference) with c = log2(e) / sqrt(head_dim). The
// reference is the largest s c so far, rounded up (so that no weight passes 1), or an older one
// that is at most kSlack below: weights then reach 2^8, which costs no precision, and O need not be
// multiplied. Rounding of the reference cancels: every weight and every factor uses the same value.
struct RowState {
  float reference[2];
  float sum[2];  // of this thread's columns
};
inline constexpr float kSlack = 8;

// Columns of a tile that hold keys: [0, first_end) and [second_begin, second_end).
struct Columns {
  std::int32_t first_end = 0, second_begin = 0, second_end = 0;
};

__device__ inline Columns ColumnsOf(const KeyTiles& keys, const KeyTile& tile, int rows) {
  if (tile.packed) {
    return {keys.prefix - keys.prefix_tiles * rows, keys.packed,
            keys.packed + keys.suffix - tile.row};
  }
  return {(tile.prefix ? keys.prefix : keys.suffix) - tile.row, 0, 0};
}

// Scores of columns that hold no key become -inf.
template <int kFloats>
__device__ void HideGaps(float (&s)[kFloats], const Columns& columns) {
  const int first = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < kFloats; ++i) {
    const int column = i / 4 * 8 + i % 2 + first;
    const bool key = column < columns.first_end ||
                     (column >= columns.second_begin && column < columns.second_end);
    if (!key) s[i] = MinusInfinity();
  }
}

// Columns from limit[h] on become -inf.
template <int kFloats>
__device__ void HideFrom(float (&s)[kFloats], const std::int32_t (&limit)[2]) {
  const int first = threadIdx.x % 4 * 2;
  const std::int32_t left[2] = {limit[0] - first, limit[1] - first};
#pragma unroll
  for (int i = 0; i < kFloats; ++i) {
    if (i / 4 * 8 + i % 2 >= left[i / 2 % 2]) s[i] = MinusInfinity();
  }
}

// Columns whose byte of the row's mask is 0, and those from `columns` on, become -inf.
template <int kFloats>
__device__ void HideMasked(float (&s)[kFloats], const std::uint8_t* const (&row)[2],
                           std::int64_t stride, std::int32_t columns) {
  const int first = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < kFloats; ++i) {
    const int column = i / 4 * 8 + i % 2 + first;
    if (column >= columns || row[i / 2 % 2][column * stride] == 0) s[i] = MinusInfinity();
  }
}

// The same for a mask that all queries share, of neighbouring bytes: a warp reads each byte once,
// and a tile that is visible as a whole costs a few votes.
template <int kFloats>
__device__ void HideShared(float (&s)[kFloats], const std::uint8_t* row, std::int32_t columns) {
  constexpr int kColumns = kFloats * 2, kWords = (kColumns + 31) / 32;
  const int lane = threadIdx.x % 32, first = lane % 4 * 2;
  std::uint32_t words[kWords];
  bool all = true;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const int column = w * 32 + lane;
    const bool inside = column < kColumns;
    const bool visible = inside && column < columns && row[column] != 0;
    words[w] = __ballot_sync(0xffffffffu, visible);
    all = all && words[w] == __ballot_sync(0xffffffffu, inside);
    words[w] >>= first;
  }
  if (all) return;
#pragma unroll
  for (int i = 0; i < kFloats; ++i) {
    if ((words[i / 16] >> (i / 4 % 4 * 8 + i % 2) & 1) == 0) s[i] = MinusInfinity();
  }
}

// What this thread's rows of a tile see.
struct RowView {
  std::int32_t limit[2] = {};        // kBlockCausal
  std::int32_t least_limit = 0;      // of the warpgroup's 64 rows
  const std::uint8_t* mask[2] = {};  // kMask: bytes of key 0
};

// `row`: of the warpgroup's first query. Rows beyond the last query see what the last one sees.
template <Visibility kVisibility>
__device__ RowView ViewRows(const Params& params, const QueryTile& query, std::int32_t row) {
  RowView view;
  if constexpr (kVisibility == Visibility::kAll) return view;
  const auto last = static_cast<std::int32_t>(params.tensors.queries) - 1;
  const int mine = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const std::int32_t number = min(row + mine + 8 * h, last);
    if constexpr (kVisibility == Visibility::kBlockCausal) {
      view.limit[h] = params.blocks.Limit(number);
    } else {
      const Sm90Mask& mask = params.tensors.mask;
      view.mask[h] = mask.visible + query.batch * mask.batch + query.head * mask.head +
                     std::int64_t{number} * mask.query;
    }
  }
  if constexpr (kVisibility == Visibility::kBlockCausal) {
    view.least_limit = params.blocks.Limit(min(row, last));
  }
  return view;
}

// Hides what the rows do not see of a key tile of kFloats * 2 columns.
template <Visibility kVisibility, int kFloats>
__device__ void Hide(float (&s)[kFloats], const Params& params, const KeyTile& tile,
                     const RowView& view) {
  constexpr int kRows = kFloats * 2;
  if constexpr (kVisibility == Visibility::kAll) {
    const Columns columns = ColumnsOf(params.keys, tile, kRows);
    if (tile.packed) {
      HideGaps(s, columns);
    } else if (columns.first_end < kRows) {
      HideFrom(s, {columns.first_end, columns.first_end});
    }
  } else if constexpr (kVisibility == Visibility::kBlockCausal) {
    if (view.least_limit < tile.row + kRows) {
      HideFrom(s, {view.limit[0] - tile.row, view.limit[1] - tile.row});
    }
  } else {
    const Sm90Mask& mask = params.tensors.mask;
    const std::int64_t stride = mask.key, offset = tile.row * stride;
    if (mask.query == 0 && stride == 1) {
      HideShared(s, view.mask[0] + offset, params.keys.suffix - tile.row);
      return;
    }
    HideMasked(s, {view.mask[0] + offset, view.mask[1] + offset}, stride,
               params.keys.suffix - tile.row);
  }
}

__device__ inline float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float QuadSum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Whether some row of the warp has a score of which the weight would pass 2^kSlack: the bits of
// positive floats are ordered as integers, of which one instruction compares three. A row whose
// limit is below 0 always says yes. Everything is rounded down, so that no such score escapes.
template <int kFloats>
__device__ bool Grown(const float (&s)[kFloats], const RowState& state, float unscale) {
  int largest[2][2];
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    largest[i / 2 % 2][i / 4] = max(__float_as_int(s[i]), __float_as_int(s[i + 1]));
  }
#pragma unroll
  for (int i = 8; i < kFloats; i += 2) {
    int& slot = largest[i / 2 % 2][i / 4 % 2];
    slot = __vimax3_s32(slot, __float_as_int(s[i]), __float_as_int(s[i + 1]));
  }
  bool grown = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int limit = __float_as_int(__fmul_rd(__fadd_rd(state.reference[h], kSlack), unscale));
    grown = grown || limit < 0 || max(largest[h][0], largest[h][1]) > limit;
  }
  return __any_sync(0xffffffffu, grown);
}

// Raises the reference of rows where the tile's largest score demands it. `factor` is what their
// older sums and O must be multiplied by, 1 elsewhere.
template <bool kFirst, int kFloats>
__device__ void Raise(const float (&s)[kFloats], RowState& state, float scale_log2,
                      float (&factor)[2]) {
  float largest[2][2];
#pragma unroll
  for (int i = 0; i < kFloats; ++i) {
    float& slot = largest[i / 2 % 2][i / 4 % 2];
    slot = i < 8 && i % 2 == 0 ? s[i] : fmaxf(slot, s[i]);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float top = __fmul_ru(QuadMax(fmaxf(largest[h][0], largest[h][1])), scale_log2);
    const float old = kFirst ? MinusInfinity() : state.reference[h];
    factor[h] = 1;
    if (kFirst || top > old + kSlack) {
      state.reference[h] = top;
      // No key seen yet: old is -inf, and so is the difference.
      if (!kFirst) factor[h] = Exp2(old - top);
    }
  }
}

// Scores become weights; the state takes them in. `factor` is what older sums and O must be
// multiplied by; the result says whether any factor of the warp may not be 1. Most tiles cost a
// vote: lanes exchange their largest scores only where one of them asks for it.
template <bool kFirst, int kFloats>
__device__ bool Exponentiate(float (&s)[kFloats], RowState& state, const Params& params,
                             float (&factor)[2]) {
  factor[0] = factor[1] = 1;
  const bool grown = kFirst || Grown(s, state, params.unscale);
  if (grown) Raise<kFirst>(s, state, params.scale_log2, factor);
  float base[2], sum[2][2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    base[h] = state.reference[h] == MinusInfinity() ? 0.0f : state.reference[h];
  }
#pragma unroll
  for (int i = 0; i < kFloats; ++i) {
    s[i] = Exp2(fmaf(s[i], params.scale_log2, -base[i / 2 % 2]));
    sum[i / 2 % 2][i / 4 % 2] += s[i];
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float tile = sum[h][0] + sum[h][1];
    state.sum[h] = kFirst ? tile : fmaf(state.sum[h], factor[h], tile);
  }
  return !kFirst && grown;
}

// Weights as the first operand of WgmmaValues: step k takes words[k].
template <int kFloats>
__device__ void PackWeights(const float (&s)[kFloats], std::uint32_t (&words)[kFloats / 8][4]) {
#pragma unroll
  for (int i = 0; i < kFloats / 2; ++i) {
    words[i / 4][i % 4] = sm90::PackBf16(s[2 * i], s[2 * i + 1]);
  }
}

template <int kFloats>
__device__ void MultiplyRows(float (&o)[kFloats], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kFloats; ++i) o[i] *= factor[i / 2 % 2];
}

}  // namespace assay::attention
