// The fp64 truth of rows, and how a choice of experts is judged: as a set, with a band for near
// ties; weights against the truth for the set that was chosen. Shares nothing with the kernels.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>

#include "base/parallel.h"
#include "base/random.h"
#include "base/simd.h"
#include "ops/moe_router_gemm_topk/spec.h"
#include "ops/room.h"

namespace assay::moe_router_gemm_topk {
namespace {

// Rows of a verdict: all up to here, else this many (edges and a seeded sample).
constexpr std::int64_t kMostRows = 1024;
constexpr std::int64_t kTileRows = 128;  // whose borders are always sampled

// --- the formula ---

double Softplus(double l) { return l > 20 ? l : std::log1p(std::exp(l)); }
double ScoreOf(double logit) { return std::sqrt(Softplus(logit)); }

// ds/dl
double Slope(double logit, double score) {
  return score == 0 ? 0 : 1 / (1 + std::exp(-logit)) / (2 * score);
}

// bf16 to fp64 by blocks, so that a row of x is widened once for all experts.
ASSAY_VECTOR_CLONES void Widen(const bf16* from, std::int64_t count, double* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = ToFloat(from[i]);
}

ASSAY_VECTOR_CLONES double Dot(const double* x, const bf16* w, std::int64_t k) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < k; ++i) sum += x[i] * ToFloat(w[i]);
  return sum;
}

double DotReversed(const double* x, const bf16* w, std::int64_t k) {
  double sum = 0;
  for (std::int64_t i = k; i-- > 0;) sum += x[i] * ToFloat(w[i]);
  return sum;
}

struct Scalars {
  std::int64_t valid_rows = 0;
  double scaling = kDefaultScaling;
};

Scalars ScalarsOf(const Problem& problem, const Bundle& inputs) {
  Scalars scalars{problem.axis("M"), kDefaultScaling};
  if (const Tensor* valid = inputs.find("num_valid_rows")) {
    scalars.valid_rows = valid->as<std::int32_t>()[0];
  }
  if (const Tensor* scaling = inputs.find("scaling")) scalars.scaling = scaling->as<float>()[0];
  return scalars;
}

const float* BiasOfRow(const Bundle& inputs, std::int64_t m) {
  const Tensor* image = inputs.find("is_image");
  const bool of_image = image != nullptr && image->as<std::uint8_t>()[m] != 0;
  return inputs[of_image ? "bias_vl" : "bias"].as<float>();
}

// Scores of all experts for one row.
struct Row {
  std::vector<double> logit, score;
  const float* bias = nullptr;
  double biased(std::int64_t e) const {
    return score[static_cast<std::size_t>(e)] + static_cast<double>(bias[e]);
  }
};

Row ComputeRow(const Problem& problem, const Bundle& inputs, std::int64_t m, SumOrder order) {
  const std::int64_t k = problem.axis("K"), experts = problem.axis("E");
  std::vector<double> x(static_cast<std::size_t>(k));
  Widen(inputs["x"].as<bf16>() + m * k, k, x.data());
  Row row;
  row.bias = BiasOfRow(inputs, m);
  for (std::int64_t e = 0; e < experts; ++e) {
    const bf16* w = inputs["W"].as<bf16>() + e * k;
    const double logit =
        order == SumOrder::kForward ? Dot(x.data(), w, k) : DotReversed(x.data(), w, k);
    row.logit.push_back(logit);
    row.score.push_back(ScoreOf(logit));
  }
  return row;
}

// The best by score plus bias, ties to the lower id; in increasing id.
std::vector<std::int64_t> Choose(const Row& row, std::int64_t chosen) {
  std::vector<std::int64_t> experts(row.score.size());
  std::iota(experts.begin(), experts.end(), 0);
  std::stable_sort(experts.begin(), experts.end(),
                   [&](std::int64_t a, std::int64_t b) { return row.biased(a) > row.biased(b); });
  experts.resize(static_cast<std::size_t>(chosen));
  std::sort(experts.begin(), experts.end());
  return experts;
}

double SumOfScores(const Row& row, const std::vector<std::int64_t>& set) {
  double sum = 0;
  for (const std::int64_t e : set) sum += row.score[static_cast<std::size_t>(e)];
  return sum;
}

// --- judging one row ---

// How far fp32 may move score plus bias of one expert. The logit moves by up to 4e-7 sum |x W| (the
// page's bound for tensor cores), the score by its slope times that; exp, log1p and sqrt in fp32
// add 2^-22 of the score and the addition 2^-23 of the bias; below 2^-63 a score may be zero
// (exp(l) underflows at its square).
double Uncertainty(const Bundle& inputs, std::int64_t m, std::int64_t k, const Row& row,
                   std::int64_t e) {
  const bf16* x = inputs["x"].as<bf16>() + m * k;
  const bf16* w = inputs["W"].as<bf16>() + e * k;
  double magnitude = 0;
  for (std::int64_t i = 0; i < k; ++i) {
    magnitude += std::abs(static_cast<double>(ToFloat(x[i])) * ToFloat(w[i]));
  }
  const auto at = static_cast<std::size_t>(e);
  const double bias = std::isfinite(row.bias[e]) ? std::abs(row.bias[e]) : 0;
  return 2 * 4e-7 * magnitude * Slope(row.logit[at], row.score[at]) + 0x1p-22 * row.score[at] +
         0x1p-23 * bias + 0x1p-63;
}

// Equal weights and bias: equal in any arithmetic, so the lower id must win.
bool Identical(const Bundle& inputs, std::int64_t k, const Row& row, std::int64_t e,
               std::int64_t f) {
  const bf16* w = inputs["W"].as<bf16>();
  return row.bias[e] == row.bias[f] &&
         std::memcmp(w + e * k, w + f * k, static_cast<std::size_t>(k) * sizeof(bf16)) == 0;
}

// "" when every exchange of an absent expert for a present one is inside the band.
std::string WrongChoice(const Problem& problem, const Bundle& inputs, std::int64_t m,
                        const Row& row, const std::vector<std::int64_t>& expected,
                        const std::vector<std::int64_t>& got) {
  const std::int64_t k = problem.axis("K");
  std::vector<std::int64_t> absent, present;
  std::set_difference(expected.begin(), expected.end(), got.begin(), got.end(),
                      std::back_inserter(absent));
  std::set_difference(got.begin(), got.end(), expected.begin(), expected.end(),
                      std::back_inserter(present));
  for (const std::int64_t f : absent) {
    for (const std::int64_t e : present) {
      const double gap = row.biased(f) - row.biased(e);
      const double band = Uncertainty(inputs, m, k, row, e) + Uncertainty(inputs, m, k, row, f);
      if (gap <= band && !Identical(inputs, k, row, e, f)) continue;  // false for NaN: -inf - -inf
      char text[160];
      std::snprintf(text, sizeof text, "row %lld has expert %lld, not %lld, which is ahead by %.3g",
                    static_cast<long long>(m), static_cast<long long>(e), static_cast<long long>(f),
                    gap);
      return text;
    }
  }
  return "";
}

// Distinct experts in increasing order, "" or what is wrong.
std::string WrongIds(const std::int32_t* ids, std::int64_t chosen, std::int64_t experts,
                     std::int64_t m) {
  for (std::int64_t i = 0; i < chosen; ++i) {
    const bool inside = ids[i] >= 0 && ids[i] < experts;
    if (inside && (i == 0 || ids[i] > ids[i - 1])) continue;
    return "expert_ids[" + std::to_string(m) + "," + std::to_string(i) +
           "] = " + std::to_string(ids[i]) +
           (inside ? " does not increase" : " is outside 0.." + std::to_string(experts - 1));
  }
  return "";
}

// The worst of many rows, from several threads.
class Worst {
 public:
  explicit Worst(const char* name, double limit) : finding_{name, true, 0, limit, ""} {}

  void Count(const std::string& detail) {
    const std::lock_guard lock(mutex_);
    finding_.measured += 1;
    if (finding_.detail.empty()) finding_.detail = detail;
  }
  template <class Detail>
  void Largest(double measured, const Detail& detail) {
    const std::lock_guard lock(mutex_);
    if (measured <= finding_.measured) return;
    finding_.measured = measured;
    finding_.detail = detail();
  }
  Finding Done() {
    finding_.passed = finding_.measured <= finding_.limit;
    return finding_;
  }

 private:
  std::mutex mutex_;
  Finding finding_;
};

struct RowsJudge {
  const Problem& problem;
  const Bundle& inputs;
  const std::int32_t* ids;
  const float* weights;
  Scalars scalars;
  Worst wrong_ids{"expert_ids", 0}, wrong_sets{"wrong_rows", 0}, weight_error{"expert_weights", 1};
  Worst near_tie_rows;

  void Judge(std::int64_t m, const double* expected_ids, const double* expected_weights) {
    const std::int64_t chosen = problem.axis("T");
    const std::int32_t* got = ids + m * chosen;
    if (m >= scalars.valid_rows) return JudgePadding(m);
    const std::string problem_of_ids = WrongIds(got, chosen, problem.axis("E"), m);
    if (!problem_of_ids.empty()) return wrong_ids.Count(problem_of_ids);
    const std::vector<std::int64_t> set(got, got + chosen),
        expected(expected_ids, expected_ids + chosen);
    const Row row = set == expected ? Row{} : ComputeRow(problem, inputs, m, SumOrder::kForward);
    if (set == expected) return JudgeWeights(m, expected_weights, SumFromWeights(m, expected));
    const std::string wrong = WrongChoice(problem, inputs, m, row, expected, set);
    if (!wrong.empty()) return wrong_sets.Count(wrong);
    near_tie_rows.Count("row " + std::to_string(m));
    const double sum = SumOfScores(row, set);
    std::vector<double> truth;
    for (const std::int64_t e : set) {
      truth.push_back(row.score[static_cast<std::size_t>(e)] / (sum + 1e-20) * scalars.scaling);
    }
    JudgeWeights(m, truth.data(), sum);
  }

 private:
  // Rows from num_valid_rows on: id -1, weight 0.
  void JudgePadding(std::int64_t m) {
    for (std::int64_t i = m * problem.axis("T"); i < (m + 1) * problem.axis("T"); ++i) {
      if (ids[i] != -1) wrong_ids.Count("row " + std::to_string(m) + " is padding, but has an id");
      if (weights[i] != 0) {
        weight_error.Largest(
            2, [&] { return "row " + std::to_string(m) + " is padding, but has a weight"; });
      }
    }
  }

  double SumFromWeights(std::int64_t m, const std::vector<std::int64_t>& set) const {
    // Only its order of magnitude matters, and only where it is tiny.
    const std::int64_t k = problem.axis("K");
    std::vector<double> x(static_cast<std::size_t>(k));
    Widen(inputs["x"].as<bf16>() + m * k, k, x.data());
    double sum = 0;
    for (const std::int64_t e : set) {
      sum += ScoreOf(Dot(x.data(), inputs["W"].as<bf16>() + e * k, k));
    }
    return sum;
  }

  // |w - w*| <= 2e-5 + 1e-4 |w*|, plus what scores below 2^-63 that became zero can do.
  void JudgeWeights(std::int64_t m, const double* truth, double sum) {
    const std::int64_t chosen = problem.axis("T");
    const double underflow =
        std::abs(scalars.scaling) * static_cast<double>(chosen + 1) * 0x1p-63 / (sum + 1e-20);
    for (std::int64_t i = 0; i < chosen; ++i) {
      const double got = weights[m * chosen + i];
      const double limit = 2e-5 + 1e-4 * std::abs(truth[i]) + underflow;
      double used = std::abs(got - truth[i]) / limit;
      if (!std::isfinite(got)) used = std::numeric_limits<double>::max();
      weight_error.Largest(used, [&] {
        char text[160];
        std::snprintf(text, sizeof text, "expert_weights[%lld,%lld] = %.9g, expected %.9g +- %.3g",
                      static_cast<long long>(m), static_cast<long long>(i), got, truth[i], limit);
        return std::string(text);
      });
    }
  }
};

}  // namespace

RowLists SampleRows(const Problem& problem, const Bundle&, std::uint64_t seed) {
  const std::int64_t m = problem.axis("M");
  if (m <= kMostRows) return {EveryRow(m), EveryRow(m)};
  std::vector<std::int64_t> rows;
  for (std::int64_t border = 0; border < m; border += kTileRows) {
    rows.push_back(border);
    if (border > 0) rows.push_back(border - 1);
  }
  rows.push_back(m - 1);
  for (std::uint64_t i = 0; static_cast<std::int64_t>(rows.size()) < kMostRows; ++i) {
    rows.push_back(static_cast<std::int64_t>(Mix64(seed, kAuxiliaryTensor, i) %
                                             static_cast<std::uint64_t>(m)));
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return {rows, rows};
}

std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order) {
  const std::int64_t chosen = problem.axis("T");
  const Scalars scalars = ScalarsOf(problem, inputs);
  ExpectedRows ids, weights;
  const std::vector<std::int64_t>& wanted = rows[0];
  ids.value.resize(wanted.size() * static_cast<std::size_t>(chosen), -1);
  weights.value.resize(ids.value.size());
  ParallelFor(static_cast<std::int64_t>(wanted.size()), 0, [&](std::int64_t at) {
    const std::int64_t m = wanted[static_cast<std::size_t>(at)];
    if (m >= scalars.valid_rows) return;
    const Row row = ComputeRow(problem, inputs, m, order);
    const std::vector<std::int64_t> set = Choose(row, chosen);
    const double sum = SumOfScores(row, set);
    for (std::size_t i = 0; i < set.size(); ++i) {
      const std::size_t to = static_cast<std::size_t>(at * chosen) + i;
      const double score = row.score[static_cast<std::size_t>(set[i])];
      ids.value[to] = static_cast<double>(set[i]);
      weights.value[to] = score / (sum + 1e-20) * scalars.scaling;
    }
  });
  return {std::move(ids), std::move(weights)};
}

std::vector<OutputPolicy> Policies(const Problem&) {
  OutputPolicy policy;  // sets with near ties, and weights of the chosen set: RowChecks
  policy.judged_by_checks = true;
  return {policy, policy};
}

std::vector<Finding> RowChecks(const Problem& problem, const Bundle& inputs, const Bundle& outputs,
                               const RowLists& rows, const std::vector<ExpectedRows>& expected) {
  const auto count = static_cast<std::int64_t>(rows[0].size());
  const std::int64_t chosen = problem.axis("T");
  const double most_excused = std::max(2.0, 0.01 * static_cast<double>(count));
  RowsJudge judge{problem,
                  inputs,
                  outputs["expert_ids"].as<std::int32_t>(),
                  outputs["expert_weights"].as<float>(),
                  ScalarsOf(problem, inputs),
                  Worst("expert_ids", 0),
                  Worst("wrong_rows", 0),
                  Worst("expert_weights", 1),
                  Worst("near_tie_rows", most_excused)};
  ParallelRanges(count, 4, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      judge.Judge(rows[0][static_cast<std::size_t>(at)], expected[0].value.data() + at * chosen,
                  expected[1].value.data() + at * chosen);
    }
  });
  return {judge.wrong_ids.Done(), judge.wrong_sets.Done(), judge.near_tie_rows.Done(),
          judge.weight_error.Done()};
}

}  // namespace assay::moe_router_gemm_topk
