// The truth of kpool_index_decode in fp64, and what it says of selections that differ from it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/parallel.h"
#include "ops/kpool_index_decode/spec.h"
#include "ops/selection/selection.h"

namespace assay::kpool_index_decode {
namespace {

// Error bound of an fp32 score per unit of scale sum_h |w_h| sum_d |q k|: 128 + 32 + 4 roundings,
// twice for adders that truncate. (Products of two e4m3 are exact.)
constexpr double kEpsilon = 2 * (128 + 32 + 4) * 0x1.0p-24;

using selection::Ids;

struct Candidate : selection::Candidate {
  bool surely_zero = false;  // no head comes near a positive product
};

// Queries of a row as numbers; keys are converted once each.
std::vector<double> QueryOf(const Args& args, std::int64_t row) {
  std::vector<double> q;
  for (std::int64_t i = 0; i < kHeads * kHeadSize; ++i) {
    q.push_back(ToFloat(args.q[row * kHeads * kHeadSize + i]));
  }
  return q;
}

Candidate Score(const Args& args, std::int64_t row, const std::vector<double>& q, std::int64_t pool,
                SumOrder order) {
  const std::int64_t b = row / args.rows;
  double key[kHeadSize];
  for (std::int64_t d = 0; d < kHeadSize; ++d) key[d] = ToFloat(e4m3{KeyOf(args, b, pool)[d]});
  double sum = 0, magnitude = 0;
  Candidate candidate;
  candidate.surely_zero = true;
  for (std::int64_t step = 0; step < kHeads; ++step) {
    const std::int64_t h = order == SumOrder::kForward ? step : kHeads - 1 - step;
    double dot = 0, absolute = 0;
    for (std::int64_t i = 0; i < kHeadSize; ++i) {
      const std::int64_t d = order == SumOrder::kForward ? i : kHeadSize - 1 - i;
      const double product = q[static_cast<std::size_t>(h * kHeadSize + d)] * key[d];
      dot += product;
      absolute += std::abs(product);
    }
    const double weight = args.weights[row * kHeads + h];
    sum += weight * (dot < 0 ? 0 : dot);  // a NaN stays
    magnitude += std::abs(weight) * absolute;
    if (!(dot + kEpsilon * absolute < 0) && absolute != 0) candidate.surely_zero = false;
  }
  const double scale = ScaleOf(args, b, pool);
  candidate.score = sum * scale;
  candidate.band = std::isfinite(magnitude) ? kEpsilon * magnitude * std::abs(scale) : 0;
  return candidate;
}

std::vector<Candidate> ScoreRow(const Args& args, std::int64_t row, SumOrder order) {
  const std::vector<double> q = QueryOf(args, row);
  std::vector<Candidate> candidates(static_cast<std::size_t>(VisiblePools(args, row)));
  ParallelRanges(static_cast<std::int64_t>(candidates.size()), 256, 0,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t pool = begin; pool < end; ++pool) {
                     candidates[static_cast<std::size_t>(pool)] = Score(args, row, q, pool, order);
                   }
                 });
  return candidates;
}

std::vector<selection::Candidate> Scores(const std::vector<Candidate>& candidates) {
  return {candidates.begin(), candidates.end()};
}

// Both candidates have the same score in any precision: equal keys and scales, NaN, or no positive
// product at all.
bool ExactTie(const Args& args, std::int64_t b, const std::vector<Candidate>& candidates,
              std::int32_t i, std::int32_t j) {
  const Candidate& x = candidates[static_cast<std::size_t>(i)];
  const Candidate& y = candidates[static_cast<std::size_t>(j)];
  if (std::isnan(x.score) && std::isnan(y.score)) return true;
  if (x.score != y.score) return false;
  return (x.surely_zero && y.surely_zero) ||
         (ScaleOf(args, b, i) == ScaleOf(args, b, j) &&
          std::memcmp(KeyOf(args, b, i), KeyOf(args, b, j), kHeadSize) == 0);
}

std::string SelectionProblem(const Args& args, std::int64_t row, const Ids& got) {
  const std::vector<Candidate> candidates = ScoreRow(args, row, SumOrder::kForward);
  return selection::SelectionProblem(Scores(candidates), got, "pool",
                                     [&](std::int32_t i, std::int32_t j) {
                                       return ExactTie(args, row / args.rows, candidates, i, j);
                                     });
}

}  // namespace

std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order) {
  const Args args = BindInputs(problem, inputs);
  ExpectedRows ids;
  for (const std::int64_t row : rows[0]) {
    // Scores of a row that keeps everything do not matter.
    std::vector<Candidate> candidates(static_cast<std::size_t>(VisiblePools(args, row)));
    if (candidates.size() > kTopK) candidates = ScoreRow(args, row, order);
    const Ids top = selection::TopK(Scores(candidates), kTopK);
    for (std::size_t i = 0; i < kTopK; ++i) ids.value.push_back(i < top.size() ? top[i] : -1);
  }
  return {std::move(ids)};
}

std::vector<Finding> RowChecks(const Problem& problem, const Bundle& inputs, const Bundle& outputs,
                               const RowLists& rows, const std::vector<ExpectedRows>& expected) {
  const Args args = BindInputs(problem, inputs);
  const selection::RowRule rule = {
      "pool_ids", "pool", kTopK, [&](std::int64_t row) { return VisiblePools(args, row); },
      [&](std::int64_t row, const Ids& ids) { return SelectionProblem(args, row, ids); }};
  return selection::RowChecks(rule, outputs, rows[0], expected[0]);
}

}  // namespace assay::kpool_index_decode
