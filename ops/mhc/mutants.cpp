// Wrong kernels that verification must reject: one plain site with a mistake switched on.
#include <algorithm>
#include <cmath>

#include "ops/mhc/spec.h"

namespace assay::mhc {
namespace {

enum class Mistake {
  kCombTransposed,
  kRoundMissing,
  kRoundsEndWithRows,
  kSoftmaxOfColumns,
  kPostNotDoubled,
  kPostNotSigmoid,
  kScalesSwapped,
  kBaseOmitted,
  kMixesNotNormalised,
  kMeanOfOneStream,
  kStreamsInterleaved,
  kStreamsSummed,
  kStreamDropped,
  kNotNormalised,
  kOnePlusWeight,
  kOnePercent,
};

float Sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

struct Site {
  float mix[kMixes] = {};
};

// Element i of the flat streams as F sees it.
float FlatElement(const Args& args, Mistake mistake, std::int64_t row, std::int64_t i) {
  const bf16* streams = args.streams + row * kStreams * args.n;
  if (mistake == Mistake::kStreamsInterleaved) i = i % kStreams * args.n + i / kStreams;
  return ToFloat(streams[i]);
}

Site MixesOf(const Args& args, Mistake mistake, std::int64_t row) {
  Site site;
  const std::int64_t count = kStreams * args.n;
  double squares = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double value = FlatElement(args, mistake, row, i);
    squares += value * value;
  }
  const auto mean_of = static_cast<double>(mistake == Mistake::kMeanOfOneStream ? args.n : count);
  double inverse = 1 / std::sqrt(squares / mean_of + double{kNormEps});
  if (mistake == Mistake::kMixesNotNormalised) inverse = 1;
  for (std::int64_t o = 0; o < kMixes; ++o) {
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      sum += double{args.fn[o * count + i]} * FlatElement(args, mistake, row, i);
    }
    int scale = o < 4 ? 0 : o < 8 ? 1 : 2;
    if (mistake == Mistake::kScalesSwapped) scale = 2 - scale;
    site.mix[o] = static_cast<float>(sum * inverse) * args.scale[scale];
    if (mistake != Mistake::kBaseOmitted) site.mix[o] += args.base[o];
  }
  return site;
}

void Divide(float (&c)[4][4], bool columns) {
  for (int a = 0; a < 4; ++a) {
    float sum = kMixEps;
    for (int b = 0; b < 4; ++b) sum += columns ? c[b][a] : c[a][b];
    for (int b = 0; b < 4; ++b) (columns ? c[b][a] : c[a][b]) /= sum;
  }
}

void Comb(Mistake mistake, const float* logits, float* out) {
  float c[4][4];
  const bool columns = mistake == Mistake::kSoftmaxOfColumns;
  for (int a = 0; a < 4; ++a) {
    float sum = 0;
    const auto at = [&](int b) -> float& { return columns ? c[b][a] : c[a][b]; };
    for (int b = 0; b < 4; ++b) {
      sum += at(b) = std::exp(columns ? logits[4 * b + a] : logits[4 * a + b]);
    }
    for (int b = 0; b < 4; ++b) at(b) = at(b) / sum + kMixEps;
  }
  Divide(c, !columns);
  const int rounds = mistake == Mistake::kRoundMissing ? kSinkhornRounds - 1 : kSinkhornRounds;
  for (int round = 1; round < rounds; ++round) {
    Divide(c, columns);
    Divide(c, !columns);
  }
  if (mistake == Mistake::kRoundsEndWithRows) Divide(c, false);
  for (int j = 0; j < 4; ++j) {
    for (int k = 0; k < 4; ++k) {
      out[4 * j + k] = mistake == Mistake::kCombTransposed ? c[k][j] : c[j][k];
    }
  }
}

void Input(const Args& args, Mistake mistake, const Site& site, std::int64_t row) {
  std::vector<float> x(static_cast<std::size_t>(args.n));
  double squares = 0;
  for (std::int64_t i = 0; i < args.n; ++i) {
    float sum = 0;
    for (std::int64_t j = 0; j < kStreams; ++j) {
      if (mistake == Mistake::kStreamDropped && j == 3) continue;
      const float pre = mistake == Mistake::kStreamsSummed ? 1.0f : Sigmoid(site.mix[j]) + kMixEps;
      sum += pre * ToFloat(args.streams[(row * kStreams + j) * args.n + i]);
    }
    x[static_cast<std::size_t>(i)] = sum;
    squares += double{sum} * sum;
  }
  auto factor =
      static_cast<float>(1 / std::sqrt(squares / static_cast<double>(args.n) + double{kNormEps}));
  if (mistake == Mistake::kNotNormalised) factor = 1;
  if (mistake == Mistake::kOnePercent) factor *= 1.01f;
  for (std::int64_t i = 0; i < args.n; ++i) {
    float weight = ToFloat(args.weight[i]);
    if (mistake == Mistake::kOnePlusWeight) weight += 1;
    args.u[row * args.n + i] = ToBF16(x[static_cast<std::size_t>(i)] * factor * weight);
  }
}

void RunMutant(Mistake mistake, const Args& args) {
  for (std::int64_t row = 0; row < args.m; ++row) {
    const Site site = MixesOf(args, mistake, row);
    for (std::int64_t j = 0; j < kStreams; ++j) {
      const float raw = site.mix[4 + j];
      const float sigmoid =
          mistake == Mistake::kPostNotSigmoid ? std::clamp(raw, 0.0f, 1.0f) : Sigmoid(raw);
      args.post[row * kStreams + j] = (mistake == Mistake::kPostNotDoubled ? 1 : 2) * sigmoid;
    }
    Comb(mistake, site.mix + 8, args.comb + row * 16);
    Input(args, mistake, site, row);
  }
}

Mutant Make(const char* name, const char* what, Mistake mistake) {
  const auto run = [mistake](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
    RunMutant(mistake, Bind(problem, inputs, outputs));
  };
  return {name, what, run};
}

}  // namespace

std::vector<Mutant> Mutants() {
  return {
      Make("comb_transposed", "writes the stream matrix as [destination, source]",
           Mistake::kCombTransposed),
      Make("round_missing", "does 19 Sinkhorn rounds", Mistake::kRoundMissing),
      Make("rounds_end_with_rows", "normalises rows once more at the end",
           Mistake::kRoundsEndWithRows),
      Make("softmax_of_columns", "starts from the columns instead of the rows",
           Mistake::kSoftmaxOfColumns),
      Make("post_not_doubled", "leaves the factor 2 of post out", Mistake::kPostNotDoubled),
      Make("post_not_sigmoid", "clamps post to 0..1 instead of taking the sigmoid",
           Mistake::kPostNotSigmoid),
      Make("scales_swapped", "takes the scales of pre and stream matrix for each other",
           Mistake::kScalesSwapped),
      Make("base_omitted", "leaves the base out", Mistake::kBaseOmitted),
      Make("mixes_not_normalised", "does not divide the mixes by the streams' size",
           Mistake::kMixesNotNormalised),
      Make("mean_of_one_stream", "divides the sum of squares by N instead of 4 N",
           Mistake::kMeanOfOneStream),
      Make("streams_interleaved", "reads F as if streams alternated element by element",
           Mistake::kStreamsInterleaved),
      Make("streams_summed", "adds the streams up without pre", Mistake::kStreamsSummed),
      Make("stream_dropped", "leaves the last stream out of the input", Mistake::kStreamDropped),
      Make("not_normalised", "leaves the norm of the input out", Mistake::kNotNormalised),
      Make("one_plus_weight", "multiplies by 1 + weight", Mistake::kOnePlusWeight),
      Make("one_percent", "the input is 1 percent too large", Mistake::kOnePercent),
  };
}

}  // namespace assay::mhc
