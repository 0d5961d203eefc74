// Arguments of the attention kernels, and how one call's keys are cut into tiles.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/mbarrier.cuh"
#include "cuda/tma.cuh"
#include "ops/attention/sm90.h"

namespace assay::attention {

// What restricts visibility beyond the ends of the key pieces.
enum class Visibility { kAll, kBlockCausal, kMask };

// The order of key tiles: the suffix from its (ragged) end to its start, then the prefix likewise.
// Where both ragged tails fit one tile they share the first one: the prefix's tail in its first
// `packed` rows (a multiple of 8, so that the swizzle's phase matches), the suffix's behind.
struct KeyTiles {
  std::int32_t suffix = 0, prefix = 0;              // keys
  std::int32_t suffix_tiles = 0, prefix_tiles = 0;  // without the packed tail
  std::int32_t packed = 0;                          // 0 = the tails have tiles of their own
  std::int32_t ragged = -1;  // number of the prefix's tail among the tiles, if it is one
};

inline KeyTiles CutKeys(std::int64_t suffix, std::int64_t prefix, std::int32_t rows) {
  KeyTiles keys;
  keys.suffix = static_cast<std::int32_t>(suffix);
  keys.prefix = static_cast<std::int32_t>(prefix);
  keys.suffix_tiles = (keys.suffix + rows - 1) / rows;
  keys.prefix_tiles = (keys.prefix + rows - 1) / rows;
  const std::int32_t tail = keys.prefix % rows, padded = (tail + 7) / 8 * 8;
  const std::int32_t last = keys.suffix - (keys.suffix_tiles - 1) * rows;
  if (tail > 0 && padded + last <= rows) {
    keys.packed = padded;
    --keys.prefix_tiles;
  } else if (tail > 0) {
    keys.ragged = keys.suffix_tiles;
  }
  return keys;
}

// Tensor maps of K or V of one piece: boxes of a whole tile and, where a tile is packed, of this
// piece's part of it. A step of 0 broadcasts the batch or the head.
struct KeySource {
  CUtensorMap whole, tail;
  std::int32_t batch_step = 1, head_step = 1;
};

inline constexpr int kOutputRows = 16;  // a warp stores its rows of O by itself

struct BlockTable {
  std::int32_t count = 0;
  ImageBlock blocks[kMaxImageBlocks];

  // Query `row` sees the keys below this.
  __host__ __device__ std::int32_t Limit(std::int32_t row) const {
    std::int32_t low = 0, high = count;  // blocks before `low` start at or before `row`
    while (low < high) {
      const std::int32_t middle = (low + high) / 2;
      if (blocks[middle].start <= row) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low > 0 && row < blocks[low - 1].end ? blocks[low - 1].end : row + 1;
  }
};

struct Params {
  CUtensorMap q, o;  // o: boxes of kOutputRows rows
  std::int32_t q_batch_step = 1, q_head_step = 1, o_batch_step = 1, o_head_step = 1;
  KeySource k[2], v[2];  // suffix, prefix
  KeyTiles keys;
  std::int32_t query_tiles = 0;  // per head
  std::int32_t split = 1;        // see Sm90Plan
  std::int32_t tiles = 0;        // query_tiles * heads * batch
  std::int32_t whole_tiles = 0;  // of them: the first ones, which one CTA computes alone
  // Of the others, (query tile, key tile) units for each CTA; the first `extra_units` take one
  // more.
  std::int32_t units = 0, extra_units = 0;
  float* shares = nullptr;  // see sm90_share.cuh; null where all tiles are whole
  float scale_log2 = 0;     // log2(e) / sqrt(head_dim)
  float unscale = 0;        // at most 1 / scale_log2
  Sm90Tensors tensors;
  BlockTable blocks;
};
static_assert(alignof(Params) >= 64, "TMA faults on tensor maps that are not 64-byte aligned");
static_assert(sizeof(Params) <= 4096, "kernel arguments");

// Which queries of which head.
struct QueryTile {
  std::int32_t batch = 0, head = 0;
  std::int32_t row = 0;  // the first query
};

// Tiles of one head are neighbours, so that CTAs which run together share its keys in L2. With
// limits tiles differ in length: every head starts at another one, so that no CTA gets the same
// number each time; of a single head the longest comes first.
__device__ inline QueryTile TileAt(const Params& params, std::int32_t index, int rows,
                                   Visibility visibility) {
  const std::int32_t pair = index / params.query_tiles;
  std::int32_t number = index - pair * params.query_tiles;
  if (visibility == Visibility::kBlockCausal) {
    number = params.query_tiles - 1 - (number + pair) % params.query_tiles;
  }
  const auto heads = static_cast<std::int32_t>(params.tensors.heads);
  return {pair / heads, pair % heads, number * rows};
}

// Tiles of suffix keys that some query of [row, row + rows) sees.
template <Visibility kVisibility>
__device__ std::int32_t SuffixTiles(const Params& params, std::int32_t row, int rows, int keys) {
  if constexpr (kVisibility != Visibility::kBlockCausal) return params.keys.suffix_tiles;
  const auto last = static_cast<std::int32_t>(params.tensors.queries) - 1;
  return (params.blocks.Limit(min(row + rows - 1, last)) + keys - 1) / keys;
}

// Where key tile number `number` of a tile's sequence lies.
struct KeyTile {
  bool prefix = false, packed = false;
  std::int32_t row = 0;  // its first key in its piece (of the suffix where packed)
};

__device__ inline KeyTile KeyTileAt(const KeyTiles& keys, std::int32_t suffix_tiles,
                                    std::int32_t number, int rows) {
  const std::int32_t suffix = suffix_tiles - 1 - number;
  if (suffix >= 0) return {false, number == 0 && keys.packed > 0, suffix * rows};
  return {true, false, (keys.prefix_tiles + suffix) * rows};
}

// One thread: a box of `rows` x kDim elements into `stage`, as chunks of 64 columns `pitch` bytes
// apart.
template <int kDim>
__device__ void LoadRows(std::byte* stage, int pitch, const CUtensorMap* map, std::int32_t row,
                         std::int32_t head, std::int32_t batch, std::uint64_t* full) {
#pragma unroll
  for (int chunk = 0; chunk < kDim / 64; ++chunk) {
    sm90::TmaLoad(stage + chunk * pitch, map, {chunk * 64, row, head, batch}, full);
  }
}

// One thread: a key tile of kRows rows of K or V; `full` gets all its bytes.
template <int kDim, int kRows>
__device__ void LoadKeys(std::byte* stage, const KeySource (&source)[2], const KeyTiles& keys,
                         const KeyTile& tile, const QueryTile& query, std::uint64_t* full) {
  constexpr int kPitch = kRows * 128;
  sm90::MbarrierArriveExpectTx(full, kRows * kDim * 2);
  const KeySource& piece = source[tile.prefix];
  const std::int32_t head = query.head * piece.head_step, batch = query.batch * piece.batch_step;
  if (!tile.packed) {
    LoadRows<kDim>(stage, kPitch, &piece.whole, tile.row, head, batch, full);
    return;
  }
  LoadRows<kDim>(stage + keys.packed * 128, kPitch, &piece.tail, tile.row, head, batch, full);
  LoadRows<kDim>(stage, kPitch, &source[1].tail, keys.prefix_tiles * kRows,
                 query.head * source[1].head_step, query.batch * source[1].batch_step, full);
}

}  // namespace assay::attention
