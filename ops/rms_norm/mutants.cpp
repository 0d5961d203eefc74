// Wrong kernels that verification must reject: one plain norm with a mistake switched on.
#include <bit>
#include <cmath>

#include "ops/rms_norm/spec.h"

namespace assay::rms_norm {
namespace {

enum class Mistake {
  kOnePlusWeight,
  kWeightOmitted,
  kOtherEps,
  kEpsOmitted,
  kEpsOutsideTheRoot,
  kMeanSubtracted,
  kSumNotMean,
  kTailDropped,
  kRowsMixed,
  kRoundedTwice,
  kSumInBF16,
  kTruncated,
  kOnePercent,
};

float SumOfSquares(const bf16* x, std::int64_t n, float mean, Mistake mistake) {
  float squares = 0;
  const std::int64_t end = mistake == Mistake::kTailDropped ? n - n / 64 : n;
  for (std::int64_t i = 0; i < end; ++i) {
    const float value = ToFloat(x[i]) - mean;
    squares += value * value;
    if (mistake == Mistake::kSumInBF16) squares = ToFloat(ToBF16(squares));
  }
  return squares;
}

float RootOf(float mean_square, float eps, Mistake mistake) {
  switch (mistake) {
    case Mistake::kOtherEps:
      return std::sqrt(mean_square + eps / 10);
    case Mistake::kEpsOmitted:
      return std::sqrt(mean_square);
    case Mistake::kEpsOutsideTheRoot:
      return std::sqrt(mean_square) + eps;
    default:
      return std::sqrt(mean_square + eps);
  }
}

bf16 Finish(float normed, float weight, Mistake mistake) {
  switch (mistake) {
    case Mistake::kOnePlusWeight:
      return ToBF16(normed * (1 + weight));
    case Mistake::kWeightOmitted:
      return ToBF16(normed);
    case Mistake::kRoundedTwice:
      return ToBF16(ToFloat(ToBF16(normed)) * weight);
    case Mistake::kOnePercent:
      return ToBF16(normed * weight * 1.01f);
    case Mistake::kTruncated:
      return {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normed * weight) >> 16)};
    default:
      return ToBF16(normed * weight);
  }
}

void RunMutant(Mistake mistake, const Args& args) {
  for (std::int64_t row = 0; row < args.m; ++row) {
    const bf16* x = args.x + row * args.n;
    const bf16* measured =
        mistake == Mistake::kRowsMixed ? args.x + (row + 1) % args.m * args.n : x;
    float mean = 0;
    if (mistake == Mistake::kMeanSubtracted) {
      for (std::int64_t i = 0; i < args.n; ++i) mean += ToFloat(x[i]);
      mean /= static_cast<float>(args.n);
    }
    float mean_square = SumOfSquares(measured, args.n, mean, mistake);
    if (mistake != Mistake::kSumNotMean) mean_square /= static_cast<float>(args.n);
    const float root = RootOf(mean_square, args.eps, mistake);
    for (std::int64_t i = 0; i < args.n; ++i) {
      args.y[row * args.n + i] =
          Finish((ToFloat(x[i]) - mean) / root, ToFloat(args.weight[i]), mistake);
    }
  }
}

Mutant Make(const char* name, const char* what, Mistake mistake,
            bool (*applies)(const Problem&) = nullptr) {
  const auto run = [mistake](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
    RunMutant(mistake, Bind(problem, inputs, outputs));
  };
  return {name, what, run, applies};
}

bool HasRows(const Problem& problem) { return problem.axis("M") > 1; }

}  // namespace

std::vector<Mutant> Mutants() {
  return {
      Make("one_plus_weight", "multiplies by 1 + weight, another model family's convention",
           Mistake::kOnePlusWeight),
      Make("weight_omitted", "leaves the weight out", Mistake::kWeightOmitted),
      Make("other_eps", "uses a tenth of eps", Mistake::kOtherEps),
      Make("eps_omitted", "leaves eps out", Mistake::kEpsOmitted),
      Make("eps_outside_the_root", "adds eps to the root instead of the mean",
           Mistake::kEpsOutsideTheRoot),
      Make("mean_subtracted", "computes a layer norm", Mistake::kMeanSubtracted),
      Make("sum_not_mean", "does not divide the sum of squares by N", Mistake::kSumNotMean),
      Make("tail_dropped", "leaves the last 64th of a row out of the sum", Mistake::kTailDropped),
      Make("rows_mixed", "normalises a row by the norm of the next", Mistake::kRowsMixed, HasRows),
      Make("rounded_twice", "rounds to bf16 before multiplying by the weight",
           Mistake::kRoundedTwice),
      Make("sum_in_bf16", "sums squares in bf16", Mistake::kSumInBF16),
      Make("truncated", "cuts to bf16 instead of rounding", Mistake::kTruncated),
      Make("one_percent", "is 1 percent too large", Mistake::kOnePercent),
  };
}

}  // namespace assay::rms_norm
