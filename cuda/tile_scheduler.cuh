// Order of output tiles in a persistent kernel.
#pragma once

#include <cstdint>

namespace assay::sm90 {

struct TileCoordinates {
  std::int32_t m = 0, n = 0;  // tile row and column
};

// Walks a grid of tiles in bands of `band` rows: inside a band column by column, so that the tiles
// which run at the same time share few rows of A and few rows of B in L2. Every second band runs
// backwards and starts with the columns that the one before it left in cache.
// `by_columns` exchanges the roles of rows and columns.
struct TileOrder {
  std::int32_t tiles_m = 0, tiles_n = 0;
  std::int32_t band = 1;
  bool by_columns = false;

  __host__ __device__ std::int64_t tiles() const {
    return static_cast<std::int64_t>(tiles_m) * tiles_n;
  }

  __host__ __device__ TileCoordinates At(std::int64_t index) const {
    const std::int32_t rows = by_columns ? tiles_n : tiles_m;
    const std::int32_t columns = by_columns ? tiles_m : tiles_n;
    const std::int64_t band_tiles = static_cast<std::int64_t>(band) * columns;
    const auto number = static_cast<std::int32_t>(index / band_tiles);
    const std::int64_t within = index - number * band_tiles;
    const std::int32_t first_row = number * band;
    const std::int32_t height = rows - first_row < band ? rows - first_row : band;
    auto column = static_cast<std::int32_t>(within / height);
    const auto row = first_row + static_cast<std::int32_t>(within - std::int64_t{column} * height);
    if (number % 2 == 1) column = columns - 1 - column;
    return by_columns ? TileCoordinates{column, row} : TileCoordinates{row, column};
  }
};

}  // namespace assay::sm90
