// Generated inputs: tokens that share topics, so that some experts are popular, and the variants
// that put logits, biases and ties where routers go wrong. Nothing here calls libm except sqrt,
// which IEEE rounds alike everywhere: the same bits on every machine.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/parallel.h"
#include "base/random.h"
#include "base/simd.h"
#include "ops/moe_router_gemm_topk/spec.h"

namespace assay::moe_router_gemm_topk {
namespace {

constexpr std::uint64_t kX = 0, kW = 1, kBias = 2, kBiasVl = 3;  // positions in the declared order
constexpr std::uint64_t kTopics = kAuxiliaryTensor, kPicks = kAuxiliaryTensor + 1;

constexpr float kWeightStd = 0.025f, kBiasStd = 0.15f, kBiasOffset = 0.05f;
constexpr std::int64_t kTopicCount = 8;
// Shares of a token's own noise and of its two topics; their squares sum to 1.
constexpr float kNoise = 0.75f, kFirstTopic = 0.53f, kSecondTopic = 0.395f;
constexpr std::int64_t kOutliers = 4;
constexpr float kOutlierFactor = 10;

// Channels whose sum of products is the same for all tokens, to move all logits: 8 * 4 * W.
constexpr std::int64_t kOffsetChannels = 8;
constexpr float kOffsetX = 4;

constexpr std::int64_t kDominating = 100;              // expert of `single_expert`
constexpr std::int64_t kFinite[] = {5, 77, 200, 383};  // experts of `infinite_bias` that rank first
constexpr std::int64_t kTied = 4;                      // experts with equal rows in `ties`

// `gap_sweep`: in row m the sixth place is between experts 300 + j and 20 + j, j = m % 5, whose
// biases differ by kGaps[j]; five others lead by far.
constexpr std::array<float, 5> kGaps = {0, 1e-7f, 1e-6f, 1e-5f, 1e-4f};
constexpr std::int64_t kLeading[] = {10, 60, 110, 160, 210};
constexpr std::int64_t kAhead = 300, kBehind = 20;

ASSAY_VECTOR_CLONES void FillNormal(std::uint64_t key, std::uint64_t tensor, std::int64_t first,
                                    std::int64_t count, float factor, float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = UnitNormal(key, tensor, static_cast<std::uint64_t>(first + i)) * factor;
  }
}

ASSAY_VECTOR_CLONES void AddTopics(const float* first, const float* second, std::int64_t count,
                                   float* x) {
  for (std::int64_t i = 0; i < count; ++i) {
    x[i] = kNoise * x[i] + kFirstTopic * first[i] + kSecondTopic * second[i];
  }
}

ASSAY_VECTOR_CLONES void StoreScaled(const float* x, float factor, std::int64_t count, bf16* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = ToBF16(x[i] * factor);
}

// Topic t with a probability proportional to 1 / (t + 1).
std::int64_t PickTopic(std::uint64_t key, std::int64_t token, std::int64_t which) {
  double total = 0;
  for (std::int64_t t = 0; t < kTopicCount; ++t) total += 1.0 / static_cast<double>(t + 1);
  double left = total * Uniform(key, kPicks, static_cast<std::uint64_t>(2 * token + which));
  for (std::int64_t t = 0; t + 1 < kTopicCount; ++t) {
    left -= 1.0 / static_cast<double>(t + 1);
    if (left < 0) return t;
  }
  return kTopicCount - 1;
}

// Row `token`: noise and topics, outlier channels, then RMS 1.
void MakeRow(std::uint64_t key, std::int64_t token, std::int64_t k,
             const std::vector<float>& topics, std::vector<float>& x, bf16* out) {
  FillNormal(key, kX, token * k, k, 1, x.data());
  AddTopics(topics.data() + PickTopic(key, token, 0) * k,
            topics.data() + PickTopic(key, token, 1) * k, k, x.data());
  for (std::int64_t j = 0; j < kOutliers; ++j) {
    x[static_cast<std::size_t>(k / 8 + j * k / kOutliers)] *= kOutlierFactor;
  }
  double squares = 0;
  for (const float value : x) squares += static_cast<double>(value) * value;
  const double rms = std::sqrt(squares / static_cast<double>(k));
  StoreScaled(x.data(), static_cast<float>(1 / rms), k, out);
}

void MakeTokens(std::uint64_t key, Tensor& x) {
  const std::int64_t k = x.shape[1];
  std::vector<float> topics(static_cast<std::size_t>(kTopicCount * k));
  FillNormal(key, kTopics, 0, kTopicCount * k, 1, topics.data());
  ParallelRanges(x.shape[0], 16, 0, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> row(static_cast<std::size_t>(k));
    for (std::int64_t m = begin; m < end; ++m) {
      MakeRow(key, m, k, topics, row, x.as<bf16>() + m * k);
    }
  });
}

void MakeWeights(std::uint64_t key, float factor, Tensor& w) {
  const std::int64_t k = w.shape[1];
  ParallelRanges(w.shape[0], 16, 0, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> row(static_cast<std::size_t>(k));
    for (std::int64_t e = begin; e < end; ++e) {
      FillNormal(key, kW, e * k, k, kWeightStd, row.data());
      StoreScaled(row.data(), factor, k, w.as<bf16>() + e * k);
    }
  });
}

void MakeBias(std::uint64_t key, std::uint64_t tensor, Tensor& bias) {
  FillNormal(key, tensor, 0, bias.elements(), kBiasStd, bias.as<float>());
  for (std::int64_t e = 0; e < bias.elements(); ++e) bias.as<float>()[e] += kBiasOffset;
}

// Adds about `offset` (a multiple of 1/4 up to 256, so that its share per channel is exact) to the
// logits of experts [first, last).
void OffsetLogits(float offset, std::int64_t first, std::int64_t last, Tensor& x, Tensor& w) {
  const std::int64_t k = x.shape[1];
  for (std::int64_t m = 0; m < x.shape[0]; ++m) {
    std::fill_n(x.as<bf16>() + m * k, kOffsetChannels, ToBF16(kOffsetX));
  }
  for (std::int64_t e = 0; e < w.shape[0]; ++e) {
    const float share = e >= first && e < last ? offset / (kOffsetChannels * kOffsetX) : 0;
    std::fill_n(w.as<bf16>() + e * k, kOffsetChannels, ToBF16(share));
  }
}

void MakeTies(Tensor& w, Tensor& bias) {
  const std::int64_t k = w.shape[1];
  for (std::int64_t e = 0; e < w.shape[0]; ++e) {
    const std::int64_t first = e / kTied * kTied;
    std::copy_n(w.as<bf16>() + first * k, k, w.as<bf16>() + e * k);
    bias.as<float>()[e] = bias.as<float>()[first];
  }
}

void MakeGapSweep(Tensor& x, Tensor& w, Tensor& bias) {
  const std::int64_t k = x.shape[1];
  constexpr auto kChannels = static_cast<std::int64_t>(kGaps.size());
  std::fill_n(x.as<bf16>(), x.elements(), bf16{});
  for (std::int64_t m = 0; m < x.shape[0]; ++m) x.as<bf16>()[m * k + m % kChannels] = ToBF16(1.0f);
  for (std::int64_t e = 0; e < w.shape[0]; ++e) {
    std::fill_n(w.as<bf16>() + e * k, kChannels, ToBF16(-4.0f));
    bias.as<float>()[e] = 0;
  }
  for (std::int64_t j = 0; j < kChannels; ++j) {
    float lead = 4;
    for (const std::int64_t e : kLeading) w.as<bf16>()[e * k + j] = ToBF16(lead++);
    for (const std::int64_t e : {kAhead + j, kBehind + j}) {
      w.as<bf16>()[e * k + j] = ToBF16(2.0f);
      bias.as<float>()[e] = 0.125f;
    }
    bias.as<float>()[kAhead + j] += kGaps[static_cast<std::size_t>(j)];
  }
}

}  // namespace

std::vector<std::string> Variants() {
  return {"tokens",          "zero_x",        "ties",         "large_logits",
          "negative_logits", "very_negative", "high_experts", "single_expert",
          "infinite_bias",   "gap_sweep",     "images",       "padded"};
}

void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  const std::string& variant = problem.variant;
  Tensor &x = inputs["x"], &w = inputs["W"], &bias = inputs["bias"];
  const std::int64_t experts = w.shape[0];
  MakeTokens(key, x);
  MakeWeights(key, variant == "large_logits" ? 20.0f : 1.0f, w);
  MakeBias(key, kBias, bias);
  if (variant == "zero_x") {
    std::fill_n(x.as<bf16>(), x.elements(), bf16{});
  } else if (variant == "ties") {
    MakeTies(w, bias);
  } else if (variant == "negative_logits") {
    OffsetLogits(-40, 0, experts, x, w);
  } else if (variant == "very_negative") {
    OffsetLogits(-116, 0, experts, x, w);
  } else if (variant == "high_experts") {
    for (std::int64_t e = 256; e < experts; ++e) bias.as<float>()[e] += 2;
  } else if (variant == "single_expert") {
    OffsetLogits(64, kDominating, kDominating + 1, x, w);
  } else if (variant == "infinite_bias") {
    for (std::int64_t e = 0; e < experts; ++e) {
      if (std::find(std::begin(kFinite), std::end(kFinite), e) != std::end(kFinite)) continue;
      bias.as<float>()[e] = -std::numeric_limits<float>::infinity();
    }
  } else if (variant == "gap_sweep") {
    MakeGapSweep(x, w, bias);
  }
  if (Tensor* bias_vl = inputs.find("bias_vl")) MakeBias(key, kBiasVl, *bias_vl);
  if (Tensor* image = inputs.find("is_image")) {
    for (std::int64_t m = 0; m < x.shape[0]; ++m) image->as<std::uint8_t>()[m] = m % 3 == 1;
  }
  if (Tensor* valid = inputs.find("num_valid_rows")) {
    valid->as<std::int32_t>()[0] = static_cast<std::int32_t>(x.shape[0] - x.shape[0] / 3);
  }
  if (Tensor* scaling = inputs.find("scaling")) scaling->as<float>()[0] = 2.5f;
}

}  // namespace assay::moe_router_gemm_topk
