#include "ops/attention/inputs.h"

#include <cmath>
#include <numbers>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"

namespace assay::attention {
namespace {

// Numbers of random values that belong to no input, after kAuxiliaryTensor.
constexpr std::uint64_t kAngles = kAuxiliaryTensor + 1;
constexpr std::uint64_t kDirections = kAuxiliaryTensor + 2;
constexpr std::uint64_t kWeights = kAuxiliaryTensor + 16;   // + channel_tensor
constexpr std::uint64_t kScales = kAuxiliaryTensor + 32;    // + channel_tensor
constexpr std::uint64_t kMeans = kAuxiliaryTensor + 48;     // + channel_tensor
constexpr std::uint64_t kOutliers = kAuxiliaryTensor + 64;  // + tensor

constexpr double kOutlierShare = 0.0005;
constexpr float kSinkLogit = 6.0f;

void Normalise(float* x, std::int64_t count) {
  double squares = 0;
  for (std::int64_t c = 0; c < count; ++c) squares += static_cast<double>(x[c]) * x[c];
  const auto factor = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(count)));
  for (std::int64_t c = 0; c < count; ++c) x[c] *= factor;
}

// Rotates every head of one token.
void Rotate(std::uint64_t key, std::int64_t position, std::int64_t heads, std::int64_t dim,
            float* x) {
  const std::int64_t pairs = dim / 2;
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    const auto index = static_cast<std::uint64_t>(position * pairs + pair);
    const double angle = 2 * std::numbers::pi * Uniform(key, kAngles, index);
    const auto cosine = static_cast<float>(std::cos(angle));
    const auto sine = static_cast<float>(std::sin(angle));
    for (std::int64_t head = 0; head < heads; ++head) {
      float& first = x[head * dim + pair];
      float& second = x[head * dim + pair + pairs];
      const float rotated = first * cosine - second * sine;
      second = first * sine + second * cosine;
      first = rotated;
    }
  }
}

// x += gain * direction of its head, for all heads or only for 1, 5, 9, ...
void AddDirection(std::uint64_t key, const TokenShape& shape, float gain, bool every_fourth,
                  bf16* x) {
  const std::int64_t inner = shape.inner();
  std::vector<float> offset(static_cast<std::size_t>(inner));
  for (std::int64_t c = 0; c < inner; ++c) {
    const std::int64_t head = c / shape.dim;
    if (every_fourth && head % 4 != 1) continue;
    offset[static_cast<std::size_t>(c)] = gain * HeadDirection(key, head, shape.dim, c % shape.dim);
  }
  ParallelFor(shape.batch * shape.tokens, 0, [&](std::int64_t token) {
    bf16* row = x + token * inner;
    for (std::int64_t c = 0; c < inner; ++c) {
      row[c] = ToBF16(ToFloat(row[c]) + offset[static_cast<std::size_t>(c)]);
    }
  });
}

}  // namespace

void GenerateProjection(const ProjectionRecipe& recipe, const TokenShape& shape, bf16* x) {
  const std::int64_t inner = shape.inner();
  std::vector<float> weight(static_cast<std::size_t>(inner));
  for (std::int64_t c = 0; c < inner; ++c) {
    weight[static_cast<std::size_t>(c)] =
        recipe.temp *
        (1 + recipe.weight_spread * UnitNormal(recipe.key, kWeights + recipe.channel_tensor,
                                               static_cast<std::uint64_t>(c)));
  }
  const std::int64_t group = recipe.norm_per_head ? shape.dim : inner;
  ParallelRanges(shape.batch * shape.tokens, 16, 0, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> row(static_cast<std::size_t>(inner));
    for (std::int64_t token = begin; token < end; ++token) {
      const std::int64_t base = token * inner;
      for (std::int64_t c = 0; c < inner; ++c) {
        row[static_cast<std::size_t>(c)] =
            UnitNormal(recipe.key, recipe.tensor, static_cast<std::uint64_t>(base + c));
      }
      for (std::int64_t c = 0; c < inner; c += group) Normalise(row.data() + c, group);
      for (std::int64_t c = 0; c < inner; ++c) {
        row[static_cast<std::size_t>(c)] *= weight[static_cast<std::size_t>(c)];
      }
      Rotate(recipe.key, recipe.first_position + token % shape.tokens, shape.heads, shape.dim,
             row.data());
      for (std::int64_t c = 0; c < inner; ++c) {
        x[base + c] = ToBF16(row[static_cast<std::size_t>(c)]);
      }
    }
  });
}

void GenerateValues(const ValueRecipe& recipe, const TokenShape& shape, bf16* v) {
  const std::int64_t inner = shape.inner();
  std::vector<float> scale(static_cast<std::size_t>(inner)), mean(scale.size());
  for (std::size_t c = 0; c < scale.size(); ++c) {
    scale[c] = static_cast<float>(
        std::exp(0.7 * UnitNormal(recipe.key, kScales + recipe.channel_tensor, c)));
    mean[c] = 0.5f * UnitNormal(recipe.key, kMeans + recipe.channel_tensor, c) * scale[c];
  }
  ParallelRanges(shape.batch * shape.tokens, 16, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token) {
      for (std::int64_t c = 0; c < inner; ++c) {
        const auto index = static_cast<std::uint64_t>(token * inner + c);
        const auto channel = static_cast<std::size_t>(c);
        float element = UnitNormal(recipe.key, recipe.tensor, index) * scale[channel] +
                        mean[channel] + recipe.extra_mean;
        if (Uniform(recipe.key, kOutliers + recipe.tensor, index) < kOutlierShare) element *= 10;
        v[index] = ToBF16(element);
      }
    }
  });
}

float HeadDirection(std::uint64_t key, std::int64_t head, std::int64_t dim, std::int64_t channel) {
  // +-1 has unit mean square exactly.
  const auto index = static_cast<std::uint64_t>(head * dim + channel);
  return (Mix64(key, kDirections, index) >> 63) != 0 ? 1.0f : -1.0f;
}

void AddSinkDirection(std::uint64_t key, const TokenShape& shape, bf16* q) {
  AddDirection(key, shape, 1, false, q);
}

void LowerLogitsOfQueries(std::uint64_t key, const TokenShape& shape, bf16* q) {
  AddDirection(key, shape, 1, true, q);
}

void LowerLogitsOfKeys(std::uint64_t key, const TokenShape& shape, bf16* k) {
  const float gain = kLoweredLogit / std::sqrt(static_cast<float>(shape.dim));
  AddDirection(key, shape, gain, true, k);
}

void AddSinkKey(std::uint64_t key, const TokenShape& shape, std::int64_t batch, std::int64_t head,
                std::int64_t sink, bf16* k) {
  // scale * direction.(gain * direction) = gain * sqrt(dim)
  const float gain = kSinkLogit / std::sqrt(static_cast<float>(shape.dim));
  bf16* row = k + ((batch * shape.tokens + sink) * shape.heads + head) * shape.dim;
  for (std::int64_t d = 0; d < shape.dim; ++d) {
    row[d] = ToBF16(ToFloat(row[d]) + gain * HeadDirection(key, head, shape.dim, d));
  }
}

}  // namespace assay::attention
