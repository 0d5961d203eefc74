// Generated Q, K and V: statistics like those of the captured decoder (README.md), every head row a
// pure function of (key, tensor, point, head).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/parallel.h"
#include "base/random.h"
#include "base/simd.h"
#include "ops/neighborhood_attention_3d/elements.h"

namespace assay::neighborhood_attention_3d {
namespace {

// Positions in the declared order: the tensor numbers of the element source.
constexpr std::uint64_t kQ = 0, kK = 1, kV = 2;
// Numbers of random values that belong to no input.
constexpr std::uint64_t kWeights = kAuxiliaryTensor + 1;  // + tensor
constexpr std::uint64_t kDirections = kAuxiliaryTensor + 4;
constexpr std::uint64_t kOutliers = kAuxiliaryTensor + 5;
constexpr std::uint64_t kVoxels = kAuxiliaryTensor + 6;

constexpr double kRotationBase = 10000;
constexpr float kQueryScale = 0.125f;  // 1 / sqrt(64), which the operator does not apply
constexpr float kConstantValue = 1.7f;
// One V element in 5000 is 8 times as large: at most one a row, in every 78th row.
constexpr std::uint64_t kOutlierRows = static_cast<std::uint64_t>(64 * 0.0002 * 4294967296.0);
constexpr float kOutlierSize = 8;
// Heads 1, 5, 9, ...: all logits are lowered by 16. The softmax does not notice, but a kernel that
// scores padding as 0 does: its weight becomes nearly 1.
constexpr float kLoweredLogit = -16;

// Standard deviation of V as in the decoder's stages: the wide stages have small values, and the
// window mean shrinks them to 0.02, which an absolute tolerance alone would not see.
float ValueSize(const Problem& problem) {
  const std::int64_t heads = problem.axis("H");
  // The two 3x5x5 stages differ in their frame: up to 28x48 and from 40x64 points on.
  constexpr std::int64_t kSmallFrame = 2000;
  if (heads == 16) return 0.2f;
  if (heads == 8) return problem.axis("Y") * problem.axis("X") < kSmallFrame ? 0.2f : 0.8f;
  return heads == 4 ? 2.0f : 0.8f;
}

// sums[i] = UnitNormal without its scale: four 16-bit fields minus their mean.
ASSAY_VECTOR_CLONES
void NormalSums(std::uint64_t key, std::uint64_t tensor, std::uint64_t first, std::int32_t* sums) {
  for (std::uint64_t i = 0; i < kHeadDim; ++i) {
    const std::uint64_t h = Mix64(key, tensor, first + i);
    sums[i] = static_cast<std::int32_t>((h & 0xFFFF) + ((h >> 16) & 0xFFFF) + ((h >> 32) & 0xFFFF) +
                                        (h >> 48)) -
              131070;
  }
}

// Integers, so that the order of the sum does not matter.
ASSAY_VECTOR_CLONES
std::int64_t SumOfSquares(const std::int32_t* sums) {
  std::int64_t total = 0;
  for (int i = 0; i < kHeadDim; ++i) total += static_cast<std::int64_t>(sums[i]) * sums[i];
  return total;
}

ASSAY_VECTOR_CLONES
void RotateRow(const float* x, const float* cosine, const float* sine, const float* direction,
               float factor, bf16* row) {
  constexpr int kPairs = kHeadDim / 2;
  for (int i = 0; i < kPairs; ++i) {
    const float low = x[i] * cosine[i] - x[i + kPairs] * sine[i];
    const float high = x[i] * sine[i] + x[i + kPairs] * cosine[i];
    row[i] = ToBF16((low + direction[i]) * factor);
    row[i + kPairs] = ToBF16((high + direction[i + kPairs]) * factor);
  }
}

ASSAY_VECTOR_CLONES
void ScaleRow(const std::int32_t* sums, float factor, bf16* row) {
  for (int i = 0; i < kHeadDim; ++i) row[i] = ToBF16(static_cast<float>(sums[i]) * factor);
}

std::vector<float> ChannelWeights(std::uint64_t key, std::uint64_t tensor) {
  std::vector<float> weights;
  for (std::uint64_t c = 0; c < kHeadDim; ++c) {
    weights.push_back(static_cast<float>(std::exp(0.3 * UnitNormal(key, kWeights + tensor, c))));
  }
  return weights;
}

// +-gain per channel of heads 1, 5, 9, ..., else 0; the signs are those of Q and K alike.
std::vector<float> HeadDirections(std::uint64_t key, std::int64_t heads, float gain) {
  std::vector<float> directions(static_cast<std::size_t>(heads * kHeadDim));
  for (std::size_t i = 0; i < directions.size(); ++i) {
    if (i / kHeadDim % 4 != 1) continue;
    directions[i] = (Mix64(key, kDirections, i) >> 63) != 0 ? gain : -gain;
  }
  return directions;
}

}  // namespace

ElementSource::ElementSource(const Problem& problem, std::uint64_t key)
    : key_(key),
      batch_(problem.axis("B")),
      t_(problem.axis("T")),
      y_(problem.axis("Y")),
      x_(problem.axis("X")),
      heads_(problem.axis("H")),
      zero_query_(problem.variant == "zero_query"),
      constant_value_(problem.variant == "constant_value"),
      delta_value_(problem.variant == "delta_value"),
      nan_voxel_(problem.variant == "nan_voxel"),
      value_size_(ValueSize(problem)) {
  // Aligned: a query is the key of its own point, whose logit is then about 10 and the others' 0.
  const std::uint64_t query_tensor = problem.variant == "aligned" ? kK : kQ;
  // (direction)(gain direction) / 8 = 8 gain
  const float gain = kLoweredLogit * kQueryScale;
  query_ = {query_tensor, ChannelWeights(key, query_tensor), HeadDirections(key, heads_, 1),
            kQueryScale};
  key_projection_ = {kK, ChannelWeights(key, kK), HeadDirections(key, heads_, gain), 1};
  int first_pair = 0;
  for (const auto& [length, pairs] : {std::pair{t_, 8}, {y_, 12}, {x_, 12}}) {
    Rotation rotation{first_pair, pairs, {}, {}};
    for (std::int64_t position = 0; position < length; ++position) {
      for (int i = 0; i < pairs; ++i) {
        const double angle = static_cast<double>(position) *
                             std::pow(kRotationBase, -static_cast<double>(i) / pairs);
        rotation.cosine.push_back(static_cast<float>(std::cos(angle)));
        rotation.sine.push_back(static_cast<float>(std::sin(angle)));
      }
    }
    first_pair += pairs;
    rotations_.push_back(std::move(rotation));
  }
}

std::uint64_t ElementSource::RowNumber(const Point& p, std::int64_t head) const {
  return static_cast<std::uint64_t>((((p.b * t_ + p.t) * y_ + p.y) * x_ + p.x) * heads_ + head);
}

Point ElementSource::Voxel(std::int64_t b) const {
  const auto pick = [&](std::uint64_t axis, std::int64_t length) {
    const std::uint64_t random = Mix64(key_, kVoxels, static_cast<std::uint64_t>(b) * 3 + axis);
    return static_cast<std::int64_t>(random % static_cast<std::uint64_t>(length));
  };
  return {b, pick(0, t_), pick(1, y_), pick(2, x_)};
}

bool ElementSource::IsVoxel(const Point& p) const {
  const Point voxel = Voxel(p.b);
  return p.t == voxel.t && p.y == voxel.y && p.x == voxel.x;
}

void ElementSource::ProjectionRow(const Projection& projection, const Point& p, std::int64_t head,
                                  bf16* row) const {
  std::int32_t sums[kHeadDim];
  NormalSums(key_, projection.tensor, RowNumber(p, head) * kHeadDim, sums);
  const auto squares = static_cast<double>(SumOfSquares(sums));
  const auto normalise =
      static_cast<float>(std::sqrt(static_cast<double>(kHeadDim) / std::max(squares, 1.0)));
  float x[kHeadDim], cosine[kPairs], sine[kPairs];
  for (int i = 0; i < kHeadDim; ++i) {
    x[i] = static_cast<float>(sums[i]) * normalise * projection.weight[static_cast<std::size_t>(i)];
  }
  const std::int64_t positions[] = {p.t, p.y, p.x};
  for (std::size_t axis = 0; axis < rotations_.size(); ++axis) {
    const Rotation& rotation = rotations_[axis];
    const auto at = static_cast<std::size_t>(positions[axis] * rotation.pairs);
    const auto bytes = static_cast<std::size_t>(rotation.pairs) * sizeof(float);
    std::memcpy(cosine + rotation.first_pair, rotation.cosine.data() + at, bytes);
    std::memcpy(sine + rotation.first_pair, rotation.sine.data() + at, bytes);
  }
  RotateRow(x, cosine, sine, projection.direction.data() + head * kHeadDim, projection.factor, row);
}

void ElementSource::QueryRow(const Point& p, std::int64_t head, bf16* row) const {
  if (zero_query_) return void(std::fill_n(row, kHeadDim, bf16{}));
  ProjectionRow(query_, p, head, row);
}

// The NaN voxel has one NaN channel in K of head 0, and in V of every other head.
void ElementSource::KeyRow(const Point& p, std::int64_t head, bf16* row) const {
  ProjectionRow(key_projection_, p, head, row);
  if (nan_voxel_ && head == 0 && IsVoxel(p)) row[5] = bf16{0x7FC0};
}

void ElementSource::ValueRow(const Point& p, std::int64_t head, bf16* row) const {
  if (constant_value_) return void(std::fill_n(row, kHeadDim, ToBF16(kConstantValue)));
  if (delta_value_) return void(std::fill_n(row, kHeadDim, ToBF16(IsVoxel(p) ? 1.0f : 0.0f)));
  std::int32_t sums[kHeadDim];
  NormalSums(key_, kV, RowNumber(p, head) * kHeadDim, sums);
  const std::uint64_t random = Mix64(key_, kOutliers, RowNumber(p, head));
  if (random >> 32 < kOutlierRows) {
    sums[random % kHeadDim] *= static_cast<std::int32_t>(kOutlierSize);
  }
  ScaleRow(sums, value_size_ * (1.7320508075688772f / 65536.0f), row);
  if (nan_voxel_ && head != 0 && IsVoxel(p)) row[5] = bf16{0x7FC0};
}

void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  const ElementSource source(problem, key);
  bf16* const q = inputs["Q"].as<bf16>();
  bf16* const k = inputs["K"].as<bf16>();
  bf16* const v = inputs["V"].as<bf16>();
  const std::int64_t heads = problem.axis("H"), x = problem.axis("X"), y = problem.axis("Y");
  const std::int64_t t = problem.axis("T");
  ParallelFor(problem.axis("B") * t * y, 0, [&](std::int64_t line) {
    Point p{line / (t * y), line / y % t, line % y, 0};
    std::int64_t at = line * x * heads * kHeadDim;
    for (p.x = 0; p.x < x; ++p.x) {
      for (std::int64_t head = 0; head < heads; ++head, at += kHeadDim) {
        source.QueryRow(p, head, q + at);
        source.KeyRow(p, head, k + at);
        source.ValueRow(p, head, v + at);
      }
    }
  });
}

}  // namespace assay::neighborhood_attention_3d
