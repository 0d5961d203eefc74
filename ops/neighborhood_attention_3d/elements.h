// The generator's element source: any head row of any input on demand, without the tensor.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/neighborhood_attention_3d/spec.h"

namespace assay::neighborhood_attention_3d {

// A grid point of one batch element.
struct Point {
  std::int64_t b = 0, t = 0, y = 0, x = 0;
};

class ElementSource {
 public:
  ElementSource(const Problem& problem, std::uint64_t key);

  // The 64 channels of one head of Q, K or V at `point`.
  void QueryRow(const Point& point, std::int64_t head, bf16* row) const;
  void KeyRow(const Point& point, std::int64_t head, bf16* row) const;
  void ValueRow(const Point& point, std::int64_t head, bf16* row) const;

  // The special voxel of batch element `b` in the variants delta_value and nan_voxel.
  Point Voxel(std::int64_t b) const;

 private:
  static constexpr int kPairs = kHeadDim / 2;

  // What turns 64 normal numbers into a row of Q or K.
  struct Projection {
    std::uint64_t tensor = 0;      // number of the random stream
    std::vector<float> weight;     // [64]
    std::vector<float> direction;  // [heads, 64], added after the rotation
    float factor = 1;              // at last
  };

  void ProjectionRow(const Projection& projection, const Point& point, std::int64_t head,
                     bf16* row) const;
  std::uint64_t RowNumber(const Point& point, std::int64_t head) const;
  bool IsVoxel(const Point& point) const;

  std::uint64_t key_;
  std::int64_t batch_, t_, y_, x_, heads_;
  bool zero_query_, constant_value_, delta_value_, nan_voxel_;
  float value_size_;
  Projection query_, key_projection_;
  // Rotation of channel pair (i, i + 32) at a position of its axis; T owns pairs 0-7, Y 8-19,
  // X 20-31. [position][pairs of the axis]
  struct Rotation {
    int first_pair = 0, pairs = 0;
    std::vector<float> cosine, sine;
  };
  std::vector<Rotation> rotations_;  // T, Y, X
};

}  // namespace assay::neighborhood_attention_3d
