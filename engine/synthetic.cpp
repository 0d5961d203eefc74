#include "engine/synthetic.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>

#include "base/error.h"
#include "base/parallel.h"
#include "engine/philox.h"

namespace assay::engine {
namespace {

constexpr std::uint32_t kPromptTensor = 0xC0000000u;
constexpr std::int64_t kPlantShift = 7919;
constexpr std::int64_t kFillGrain = 1 << 16;  // elements a thread fills at a time

// Sum of a word's bytes, centred: near-normal, integer, variance 21845 = 4 (256^2 - 1) / 12.
int BellSum(std::uint32_t word) {
  return static_cast<int>((word & 255) + ((word >> 8) & 255) + ((word >> 16) & 255) +
                          (word >> 24)) -
         510;
}

// Calls use(i, g) for the elements [begin, end) of a tensor.
template <class Use>
void ForBellSums(std::uint64_t seed, std::uint32_t tensor_id, std::int64_t begin, std::int64_t end,
                 const Use& use) {
  for (std::int64_t block = begin / 4; 4 * block < end; ++block) {
    const PhiloxWords words = TensorWords(seed, tensor_id, static_cast<std::uint64_t>(block));
    for (std::int64_t lane = 0; lane < 4; ++lane) {
      const std::int64_t i = 4 * block + lane;
      if (i >= begin && i < end) use(i, BellSum(words[static_cast<std::size_t>(lane)]));
    }
  }
}

float Factor(double sigma) { return static_cast<float>(sigma / std::sqrt(21845.0)); }

float RoundTo(const TensorSpec& spec, float x) { return spec.fp32 ? x : ToFloat(ToBF16(x)); }

// What the recipe adds to an element before rounding.
float VectorOffset(const TensorSpec& spec, std::int64_t i) {
  switch (spec.slot) {
    case Slot::kConvQ:
    case Slot::kConvK:
    case Slot::kConvV:
      return i % kConvWidth == kConvWidth - 1 ? 0.7f : 0.0f;
    case Slot::kHcBase:
    case Slot::kHcBase + 3: {
      constexpr float kPrePost[8] = {1, -1, .5f, -.5f, -1.5f, 1.5f, -.5f, .5f};
      if (i < 8) return kPrePost[i];
      const std::int64_t from = (i - 8) / kStreamCount, to = (i - 8) % kStreamCount;
      return to == from ? 5.0f : to == (from + 1) % kStreamCount ? 2.5f : 0.0f;
    }
    default:
      return 0;
  }
}

// Weights are read once per step from end to end: large pages save most of the address translation.
template <class T>
std::shared_ptr<T> Allocate(std::int64_t count) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
  if (bytes < kHugePage)
    return {new T[static_cast<std::size_t>(count)], std::default_delete<T[]>()};
  const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = std::aligned_alloc(kHugePage, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  madvise(memory, rounded, MADV_HUGEPAGE);  // advice: a kernel without large pages is as good
  return {static_cast<T*>(memory), [](T* data) { std::free(data); }};
}
std::shared_ptr<std::byte> AllocateBytes(std::int64_t count) { return Allocate<std::byte>(count); }

class Generator {
 public:
  Generator(const ModelConfig& config, const SyntheticOptions& options, Model& model)
      : c_(config), options_(options), model_(model) {}

  void FillVector(const TensorSpec& spec, std::vector<float>& target) const {
    const std::int64_t count = ElementCount(spec.shape);
    target.resize(static_cast<std::size_t>(count));
    const float factor = Factor(spec.sigma), mean = static_cast<float>(spec.mean);
    ForBellSums(Seed(spec), spec.tensor_id, 0, count, [&](std::int64_t i, int g) {
      float x = static_cast<float>(g) * factor;
      if (mean != 0) x += mean;
      target[static_cast<std::size_t>(i)] = RoundTo(spec, x + VectorOffset(spec, i));
    });
  }

  void FillMatrix(const TensorSpec& spec, Matrix& target) const {
    target.n = spec.shape[0], target.k = spec.shape[1];
    target.format = Quantised(spec) ? options_.format : WeightFormat::kBF16;
    switch (target.format) {
      case WeightFormat::kBF16:
        return FillBF16(spec, target);
      case WeightFormat::kFP8:
        return FillFP8(spec, target);
      case WeightFormat::kMXFP4:
        return FillMXFP4(spec, target);
      case WeightFormat::kNVFP4:
        break;
    }
    throw Error(Fault::kUnsupported, "synthetic weights exist as bf16, fp8 and mxfp4");
  }

 private:
  std::uint64_t Seed(const TensorSpec& spec) const {
    const bool noise = options_.noise_mtp && spec.layer == c_.trunk_layers();
    return options_.seed + (noise ? 0x9E3779B97F4A7C15u : 0);
  }

  // What the published FP8 and FP4 checkpoints quantise. FP4: experts only.
  bool Quantised(const TensorSpec& spec) const {
    const bool routed = spec.expert >= 0,
               shared = spec.slot >= Slot::kShared && spec.slot < Slot::kShared + 3;
    if (!spec.may_be_quantised || spec.layer < 0) return false;
    if (options_.format == WeightFormat::kMXFP4) return routed || shared;
    const bool dense = spec.slot >= Slot::kDense && spec.slot < Slot::kDense + 3;
    const bool latent = c_.kind(spec.layer) == LayerKind::kDsa &&
                        (spec.slot == Slot::kQa || spec.slot == Slot::kKvA ||
                         spec.slot == Slot::kQb || spec.slot == Slot::kO);
    return routed || shared || dense || latent;
  }

  void FillBF16(const TensorSpec& spec, Matrix& target) const {
    const std::int64_t k = target.k;
    const auto values = Allocate<bf16>(target.n * k);
    target.data = {values, reinterpret_cast<const std::byte*>(values.get())};
    const float factor = Factor(spec.sigma);
    const bool diagonal = spec.slot == Slot::kProject && !options_.noise_mtp;
    const float alpha =
        static_cast<float>(options_.plant * std::sqrt(2 * std::log(static_cast<double>(c_.vocab))) /
                           static_cast<double>(c_.hidden));
    const bool planted = spec.slot == Slot::kHead && options_.plant != 0;
    ParallelRanges(target.n * k, kFillGrain, 0, [&](std::int64_t begin, std::int64_t end) {
      ForBellSums(Seed(spec), spec.tensor_id, begin, end, [&](std::int64_t i, int g) {
        float x = static_cast<float>(g) * factor;
        const std::int64_t row = i / k, column = i % k;
        if (diagonal && row == column) x += 1.0f;  // the embedding half passes through
        if (planted) {
          const std::int64_t from = ((row - kPlantShift) % c_.vocab + c_.vocab) % c_.vocab;
          x += alpha * ToFloat(model_.embed.row(from)[column]);
        }
        values.get()[i] = ToBF16(x);
      });
    });
  }

  // Payload e4m3(g / 64), whose standard deviation is 2.309375; a scale per 128 x 128 block.
  void FillFP8(const TensorSpec& spec, Matrix& target) const {
    const std::int64_t k = target.k, blocks = FP8Blocks(target.n) * FP8Blocks(k);
    const auto payload = AllocateBytes(target.n * k);
    ParallelRanges(target.n * k, kFillGrain, 0, [&](std::int64_t begin, std::int64_t end) {
      ForBellSums(Seed(spec), spec.tensor_id, begin, end, [&](std::int64_t i, int g) {
        payload.get()[i] = static_cast<std::byte>(ToE4M3(g / 64.0).bits);
      });
    });
    const auto scales = Allocate<float>(blocks);
    const float unit = static_cast<float>(spec.sigma / 2.309375);
    for (std::int64_t i = 0; i < blocks; ++i) {
      const float byte = static_cast<float>(ScaleWord(spec, i) & 255);
      scales.get()[i] = unit * (0.75f + byte / 512);
    }
    target.data = payload;
    target.scales = {scales, reinterpret_cast<const std::byte*>(scales.get())};
  }

  // Codes e2m1(g / 100), standard deviation 1.478; a power-of-two scale per 32.
  void FillMXFP4(const TensorSpec& spec, Matrix& target) const {
    const std::int64_t k = target.k, groups = target.n * k / kMXFP4Group;
    const auto payload = AllocateBytes(target.n * k / 2);
    ParallelRanges(target.n * k, kFillGrain, 0, [&](std::int64_t begin, std::int64_t end) {
      ForBellSums(Seed(spec), spec.tensor_id, begin, end, [&](std::int64_t i, int g) {
        std::byte& byte = payload.get()[i / 2];
        const auto code = static_cast<std::byte>(ToE2M1(g / 100.0));
        byte = i % 2 == 0 ? code : byte | (code << 4);
      });
    });
    const auto scales = AllocateBytes(groups);
    const int exponent = static_cast<int>(std::lround(std::log2(spec.sigma / 1.478)));
    for (std::int64_t i = 0; i < groups; ++i) {
      constexpr int kSteps[4] = {-1, 0, 0, 1};
      scales.get()[i] = static_cast<std::byte>(127 + exponent + kSteps[ScaleWord(spec, i) & 3]);
    }
    target.data = payload;
    target.scales = scales;
  }

  // Scales have counters of their own.
  std::uint32_t ScaleWord(const TensorSpec& spec, std::int64_t i) const {
    const auto index = static_cast<std::uint64_t>(i);
    return TensorWords(Seed(spec), spec.tensor_id + 2048, index / 4)[index % 4];
  }

  const ModelConfig& c_;
  const SyntheticOptions& options_;
  Model& model_;
};

}  // namespace

double DefaultPlant(const ModelConfig& config) { return config.hidden <= 256 ? 5.0 : 2.6; }

Model MakeSyntheticModel(const ModelConfig& config, const SyntheticOptions& options) {
  ValidateConfig(config);
  Model model;
  model.config = config;
  const Generator generator(config, options, model);
  try {
    VisitTensors(
        config, model,
        {[&](const TensorSpec& spec, Matrix& m) { generator.FillMatrix(spec, m); },
         [&](const TensorSpec& spec, std::vector<float>& v) { generator.FillVector(spec, v); }});
  } catch (const std::bad_alloc&) {
    BadInput("model " + config.name + ": " + std::to_string(CountParameters(config).trunk) +
             " weights do not fit into this machine's memory");
  }
  return model;
}

std::vector<std::int32_t> SyntheticPrompt(const ModelConfig& config, std::uint64_t seed,
                                          std::int64_t count) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    const std::uint32_t word = TensorWords(seed, kPromptTensor, index / 4)[index % 4];
    tokens.push_back(static_cast<std::int32_t>(word % static_cast<std::uint64_t>(config.vocab)));
  }
  return tokens;
}

std::uint32_t TensorChecksum(const std::vector<float>& values) {
  std::uint32_t sum = 0, index = 0;
  for (const float x : values) sum += ++index * std::bit_cast<std::uint32_t>(x);
  return sum;
}

std::uint32_t TensorChecksum(const Matrix& matrix) {
  std::uint32_t sum = 0, index = 0;
  const bf16* values = matrix.row(0);
  for (std::int64_t i = 0; i < matrix.n * matrix.k; ++i) {
    sum += ++index * std::bit_cast<std::uint32_t>(ToFloat(values[i]));
  }
  return sum;
}

}  // namespace assay::engine
