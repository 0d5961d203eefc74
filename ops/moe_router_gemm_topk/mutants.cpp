// Wrong routers that verification must reject: one plain kernel with a mistake switched on. Each is
// a mistake that a real kernel made or could make.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/parallel.h"
#include "ops/moe_router_gemm_topk/spec.h"

namespace assay::moe_router_gemm_topk {
namespace {

enum class Mistake {
  kBiasInWeights,
  kBiasIgnored,
  kNotScaled,
  kNotNormalised,
  kNormalisedOverAll,
  kUnsorted,
  kWeightsNotPermuted,
  kLogitsInBF16,
  kSigmoid,
  kSquareRootMissing,
  kTopOfLogits,
  kLogitsAsWeights,
  kOnly256Experts,
  kFirstMissed,
  kOneOfSixMissed,
  kNextExpert,
  kLastOfKDropped,
  kHigherIdWins,
  kChosenAgain,
  kTextBiasForImages,
  kPaddingIgnored,
};

constexpr std::int64_t kThreads = 256;  // of the kernel that has one per expert
constexpr std::int64_t kDroppedK = 64;  // one tile

float Score(float l, Mistake mistake) {
  if (mistake == Mistake::kSigmoid) return 1 / (1 + std::exp(-l));
  const float softplus = l > 20 ? l : std::log1p(std::exp(l));
  return mistake == Mistake::kSquareRootMissing ? softplus : std::sqrt(softplus);
}

float Dot(const bf16* x, const bf16* w, std::int64_t k) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < k; ++i) sum += ToFloat(x[i]) * ToFloat(w[i]);
  return sum;
}

struct Row {
  std::vector<float> logit, score, rank;  // [experts]
};

Row ScoreRow(const Args& args, std::int64_t m, Mistake mistake) {
  Row row;
  const bool image =
      args.is_image != nullptr && args.is_image[m] != 0 && mistake != Mistake::kTextBiasForImages;
  const float* bias = image ? args.bias_vl : args.bias;
  const std::int64_t k = mistake == Mistake::kLastOfKDropped ? args.k - kDroppedK : args.k;
  for (std::int64_t e = 0; e < args.experts; ++e) {
    const std::int64_t w_row = mistake == Mistake::kNextExpert ? (e + 1) % args.experts : e;
    float logit = Dot(args.x + m * args.ldx, args.w + w_row * args.k, k);
    if (mistake == Mistake::kLogitsInBF16) logit = ToFloat(ToBF16(logit));
    row.logit.push_back(logit);
    row.score.push_back(Score(logit, mistake));
    float rank = row.score.back() + bias[e];
    if (mistake == Mistake::kBiasIgnored) rank = row.score.back();
    if (mistake == Mistake::kTopOfLogits) rank = logit;
    row.rank.push_back(rank);
  }
  return row;
}

std::vector<std::int64_t> Choose(const Args& args, Row& row, Mistake mistake) {
  const std::int64_t count =
      mistake == Mistake::kOnly256Experts ? std::min(kThreads, args.experts) : args.experts;
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  const auto rank = [&](std::int64_t e) { return row.rank[static_cast<std::size_t>(e)]; };
  if (mistake == Mistake::kChosenAgain) {
    // Takes out the best by writing -inf, six times: repeats once the rest is -inf as well.
    std::vector<std::int64_t> chosen;
    for (std::int64_t i = 0; i < args.chosen; ++i) {
      const auto best = std::max_element(row.rank.begin(), row.rank.end());
      chosen.push_back(best - row.rank.begin());
      *best = -std::numeric_limits<float>::infinity();
    }
    return chosen;
  }
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    if (mistake == Mistake::kHigherIdWins && rank(a) == rank(b)) return a > b;
    return rank(a) > rank(b);
  });
  if (mistake == Mistake::kFirstMissed) order.erase(order.begin());
  if (mistake == Mistake::kOneOfSixMissed) order.erase(order.begin() + args.chosen - 1);
  order.resize(static_cast<std::size_t>(args.chosen));
  return order;
}

float WeightOf(const Row& row, std::int64_t expert, Mistake mistake) {
  const auto e = static_cast<std::size_t>(expert);
  if (mistake == Mistake::kBiasInWeights) return row.rank[e];
  if (mistake == Mistake::kLogitsAsWeights) return row.logit[e];
  return row.score[e];
}

void RunRow(const Args& args, std::int64_t m, Mistake mistake) {
  std::int32_t* ids = args.expert_ids + m * args.chosen;
  float* weights = args.expert_weights + m * args.chosen;
  if (args.valid_rows >= 0 && m >= args.valid_rows && mistake != Mistake::kPaddingIgnored) {
    std::fill_n(ids, args.chosen, -1);
    std::fill_n(weights, args.chosen, 0.0f);
    return;
  }
  Row row = ScoreRow(args, m, mistake);
  std::vector<std::int64_t> order = Choose(args, row, mistake);
  std::vector<std::int64_t> sorted = order;
  if (mistake != Mistake::kUnsorted) std::sort(sorted.begin(), sorted.end());
  const std::vector<std::int64_t>& of_weights =
      mistake == Mistake::kWeightsNotPermuted ? order : sorted;
  float sum = 0;
  for (const std::int64_t e : sorted) sum += WeightOf(row, e, mistake);
  if (mistake == Mistake::kNormalisedOverAll) {
    sum = std::accumulate(row.score.begin(), row.score.end(), 0.0f);
  }
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    ids[i] = static_cast<std::int32_t>(sorted[i]);
    weights[i] = WeightOf(row, of_weights[i], mistake);
    if (mistake != Mistake::kNotNormalised) weights[i] /= sum + 1e-20f;
    if (mistake != Mistake::kNotScaled) weights[i] *= args.scaling;
  }
}

// A single row may choose right by chance, or hold no padding.
bool HasRows(const Problem& problem) { return problem.axis("M") > 16; }

Mutant Make(const char* name, const char* text, Mistake mistake,
            bool (*applies)(const Problem&) = nullptr, const char* variant = "") {
  const auto run = [mistake](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
    const Args args = Bind(problem, inputs, outputs);
    ParallelFor(args.m, 0, [&](std::int64_t m) { RunRow(args, m, mistake); });
  };
  return {name, text, run, applies, variant};
}

}  // namespace

std::vector<Mutant> Mutants() {
  return {
      Make("bias_in_weights", "takes weights from score plus bias", Mistake::kBiasInWeights),
      Make("bias_ignored", "chooses by the score alone", Mistake::kBiasIgnored, HasRows),
      Make("not_scaled", "weights of a row sum to 1", Mistake::kNotScaled),
      Make("not_normalised", "weights are not divided by their sum", Mistake::kNotNormalised),
      Make("normalised_over_all", "divides by the scores of all experts",
           Mistake::kNormalisedOverAll),
      Make("unsorted", "writes experts in order of rank", Mistake::kUnsorted, HasRows),
      Make("weights_not_permuted", "sorts ids but not their weights", Mistake::kWeightsNotPermuted,
           HasRows),
      Make("logits_in_bf16", "rounds logits to bf16", Mistake::kLogitsInBF16),
      Make("sigmoid", "scores with a sigmoid", Mistake::kSigmoid),
      Make("square_root_missing", "scores with softplus", Mistake::kSquareRootMissing),
      Make("top_of_logits", "chooses by raw logits", Mistake::kTopOfLogits, HasRows),
      Make("logits_as_weights", "takes weights from raw logits", Mistake::kLogitsAsWeights),
      Make("only_256_experts", "one thread per expert, but 256 threads", Mistake::kOnly256Experts,
           HasRows),
      Make("first_missed", "takes ranks 2 to 7", Mistake::kFirstMissed),
      Make("one_of_six_missed", "takes the seventh for the sixth", Mistake::kOneOfSixMissed),
      Make("next_expert", "expert numbers are off by one", Mistake::kNextExpert),
      Make("last_of_k_dropped", "leaves out the last 64 of K", Mistake::kLastOfKDropped),
      Make("higher_id_wins", "breaks ties by the higher id", Mistake::kHigherIdWins, HasRows,
           "ties"),
      Make("chosen_again", "marks chosen experts with -inf, like those that rank last",
           Mistake::kChosenAgain, nullptr, "infinite_bias"),
      Make("text_bias_for_images", "uses the bias of text for images", Mistake::kTextBiasForImages,
           HasRows, "images"),
      Make("padding_ignored", "chooses for padding rows too", Mistake::kPaddingIgnored, HasRows,
           "padded"),
  };
}

}  // namespace assay::moe_router_gemm_topk
