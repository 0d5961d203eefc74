// Query tiles that several CTAs of a persistent kernel compute together: when the tiles do not fill
// the last wave, its (query tile, key tile) units are dealt out evenly. A CTA that starts inside a
// query tile leaves its share (O, reference, sum) in global memory; the one that holds the tile's
// first key tile adds the shares in key order, so that bits do not depend on timing.
#pragma once

#include "cuda/fence.cuh"
#include "ops/attention/sm90_softmax.cuh"

namespace assay::attention {

// Key tiles [begin, end) of a query tile.
struct Piece {
  std::int32_t tile = 0;
  std::int32_t begin = 0, end = 0;
};

__device__ inline std::int32_t KeyTilesOf(const Params& params) {
  return params.keys.suffix_tiles + params.keys.prefix_tiles;
}

// The first shared unit of a CTA, counted from the first shared tile.
__device__ inline std::int32_t FirstUnit(const Params& params, std::int32_t cta) {
  return cta * params.units + min(cta, params.extra_units);
}

// What a CTA computes, in order: whole tiles, then its part of the shared units.
class Pieces {
 public:
  __device__ explicit Pieces(const Params& params) {
    GoTo(params, static_cast<std::int32_t>(blockIdx.x));
  }

  // A whole tile has end = -1: limits may shorten it.
  __device__ bool Next(const Params& params, Piece& piece) {
    if (next_ < params.whole_tiles) {
      piece = {next_, 0, -1};
      GoTo(params, next_ + static_cast<std::int32_t>(gridDim.x));
      return true;
    }
    const std::int32_t unit = next_ - params.whole_tiles;
    const std::int32_t left = FirstUnit(params, static_cast<std::int32_t>(blockIdx.x) + 1) - unit;
    if (left <= 0) return false;
    const std::int32_t key_tiles = KeyTilesOf(params);
    const std::int32_t tile = unit / key_tiles, begin = unit - tile * key_tiles;
    piece = {params.whole_tiles + tile, begin, min(key_tiles, begin + left)};
    next_ += piece.end - begin;
    return true;
  }

 private:
  __device__ void GoTo(const Params& params, std::int32_t tile) {
    next_ = tile < params.whole_tiles
                ? tile
                : params.whole_tiles + FirstUnit(params, static_cast<std::int32_t>(blockIdx.x));
  }

  std::int32_t next_ = 0;  // a whole tile, or whole_tiles + a shared unit
};

// Memory of the shares: a flag per warpgroup of each CTA (0 between calls), then 128 x kFloats
// values of O, two references and two sums per warpgroup.
__host__ __device__ constexpr std::int64_t ShareFlagBytes(std::int64_t warpgroups) {
  return (warpgroups * 4 + 1023) / 1024 * 1024;
}
__host__ __device__ constexpr std::int64_t ShareBytes(std::int64_t warpgroups, int floats) {
  return ShareFlagBytes(warpgroups) + warpgroups * (floats + 4) * 128 * 4;
}

// One warpgroup's share. `number` counts warpgroups over all CTAs, `barrier` is a named barrier
// that only this warpgroup uses.
template <int kFloats>
class Share {
 public:
  __device__ Share(float* shares, std::int32_t warpgroups, std::int32_t number, int barrier)
      : flag_(reinterpret_cast<unsigned*>(shares) + number),
        values_(shares + ShareFlagBytes(warpgroups) / 4 +
                std::int64_t{number} * (kFloats + 4) * 128 + threadIdx.x % 128),
        barrier_(barrier) {}

  __device__ void Store(const float (&o)[kFloats], const RowState& state) const {
#pragma unroll
    for (int i = 0; i < kFloats; ++i) __stcg(values_ + i * 128, o[i]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      __stcg(values_ + (kFloats + h) * 128, state.reference[h]);
      __stcg(values_ + (kFloats + 2 + h) * 128, state.sum[h]);
    }
    sm90::BarSync(barrier_, 128);
    if (threadIdx.x % 128 == 0) {
      asm volatile("fence.acq_rel.gpu;\n\tst.release.gpu.global.u32 [%0], %1;"
                   :
                   : "l"(flag_), "r"(1)
                   : "memory");
    }
  }

  // Waits for the share and adds it.
  __device__ void AddTo(float (&o)[kFloats], RowState& state) const {
    if (threadIdx.x % 128 == 0) {
      unsigned ready = 0;
      while (ready == 0) {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(ready) : "l"(flag_) : "memory");
      }
    }
    sm90::BarSync(barrier_, 128);
    float own[2], other[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float reference = __ldcg(values_ + (kFloats + h) * 128);
      const float larger = fmaxf(state.reference[h], reference);
      const float base = larger == MinusInfinity() ? 0.0f : larger;
      own[h] = Exp2(state.reference[h] - base);
      other[h] = Exp2(reference - base);
      state.reference[h] = larger;
      state.sum[h] = state.sum[h] * own[h] + __ldcg(values_ + (kFloats + 2 + h) * 128) * other[h];
    }
#pragma unroll
    for (int i = 0; i < kFloats; ++i) {
      o[i] = o[i] * own[i / 2 % 2] + __ldcg(values_ + i * 128) * other[i / 2 % 2];
    }
    sm90::BarSync(barrier_, 128);  // all have read it
    if (threadIdx.x % 128 == 0) __stcg(flag_, 0u);
  }

 private:
  unsigned* flag_;
  float* values_;
  int barrier_;
};

}  // namespace assay::attention
