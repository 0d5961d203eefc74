// The truth of qsa_index_topk_decode in fp64, and the judge of selections that differ from it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/parallel.h"
#include "ops/qsa_index_topk_decode/spec.h"
#include "ops/selection/selection.h"

namespace assay::qsa_index_topk_decode {
namespace {

constexpr double kInverseDivisor = 0.08838834764831844;  // 1 / sqrt(128)
// Error bound of an fp32 score, per unit of sum |q k| / sqrt(128): 128 + 8 roundings, twice for
// adders that truncate.
constexpr double kEpsilon = 2 * (128 + 8) * 0x1.0p-24;

using selection::Ids;

const bf16* Key(const Args& args, std::int64_t b, std::int64_t group) {
  const std::int64_t page = args.page_table[b * args.table_width + group / kPageGroups];
  return args.index_k_cache + (page * kPageGroups + group % kPageGroups) * kHeadSize;
}

struct Candidate : selection::Candidate {
  bool surely_zero = false;  // no head comes near a positive product
};

Candidate Score(const Args& args, std::int64_t b, std::int64_t group, SumOrder order) {
  const bf16* key = Key(args, b, group);
  Candidate candidate;
  candidate.surely_zero = true;
  double sum = 0, magnitude = 0;
  bool nan = false;
  for (std::int64_t h = 0; h < kHeads; ++h) {
    const bf16* q = args.q + (b * args.q_heads + h) * kHeadSize;
    double dot = 0, absolute = 0;
    for (std::int64_t i = 0; i < kHeadSize; ++i) {
      const std::int64_t d = order == SumOrder::kForward ? i : kHeadSize - 1 - i;
      const double product = static_cast<double>(ToFloat(q[d])) * ToFloat(key[d]);
      dot += product;
      absolute += std::abs(product);
    }
    nan = nan || std::isnan(dot);
    if (dot > 0) sum += dot;
    magnitude += absolute;
    if (!(dot + kEpsilon * absolute < 0) && absolute != 0) candidate.surely_zero = false;
  }
  candidate.score = nan ? std::numeric_limits<double>::quiet_NaN() : sum * kInverseDivisor;
  candidate.band = std::isfinite(magnitude) ? kEpsilon * magnitude * kInverseDivisor : 0;
  return candidate;
}

std::vector<Candidate> ScoreRow(const Args& args, std::int64_t b, std::int64_t n, SumOrder order) {
  std::vector<Candidate> candidates(static_cast<std::size_t>(n));
  ParallelRanges(n, 1024, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin; j < end; ++j) {
      candidates[static_cast<std::size_t>(j)] = Score(args, b, j, order);
    }
  });
  return candidates;
}

// Both candidates have the same score in any precision: equal keys, infinities, or no positive
// product at all.
bool ExactTie(const Args& args, std::int64_t b, const std::vector<Candidate>& candidates,
              std::int32_t i, std::int32_t j) {
  const Candidate& x = candidates[static_cast<std::size_t>(i)];
  const Candidate& y = candidates[static_cast<std::size_t>(j)];
  if (std::isnan(x.score) && std::isnan(y.score)) return true;
  if (x.score != y.score) return false;
  return std::isinf(x.score) || (x.surely_zero && y.surely_zero) ||
         std::memcmp(Key(args, b, i), Key(args, b, j), kKeyBytes) == 0;
}

std::vector<selection::Candidate> Scores(const std::vector<Candidate>& candidates) {
  return {candidates.begin(), candidates.end()};
}

// Why the set `got` is not a right answer although it is well formed; "" when it is one.
std::string SelectionProblem(const Args& args, std::int64_t b, std::int64_t n, const Ids& got) {
  const std::vector<Candidate> candidates = ScoreRow(args, b, n, SumOrder::kForward);
  return selection::SelectionProblem(
      Scores(candidates), got, "group",
      [&](std::int32_t i, std::int32_t j) { return ExactTie(args, b, candidates, i, j); });
}

}  // namespace

std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order) {
  const Args args = BindInputs(problem, inputs);
  const std::vector<std::int64_t> counts = GroupCounts(args);
  ExpectedRows ids;
  ids.value.reserve(rows[0].size() * static_cast<std::size_t>(kTopK));
  for (std::int64_t b : rows[0]) {
    const std::int64_t n = counts[static_cast<std::size_t>(b)];
    // Scores of a row that keeps everything do not matter.
    std::vector<Candidate> candidates(static_cast<std::size_t>(n));
    if (n > kTopK) candidates = ScoreRow(args, b, n, order);
    const Ids top = selection::TopK(Scores(candidates), kTopK);
    for (std::int64_t i = 0; i < kTopK; ++i) {
      const auto at = static_cast<std::size_t>(i);
      ids.value.push_back(at < top.size() ? top[at] : -1);
    }
  }
  return {std::move(ids)};
}

std::vector<Finding> RowChecks(const Problem& problem, const Bundle& inputs, const Bundle& outputs,
                               const RowLists& rows, const std::vector<ExpectedRows>& expected) {
  const Args args = BindInputs(problem, inputs);
  const std::vector<std::int64_t> counts = GroupCounts(args);
  const auto count_of = [&](std::int64_t b) { return counts[static_cast<std::size_t>(b)]; };
  const selection::RowRule rule = {
      "block_ids", "group", kTopK, count_of,
      [&](std::int64_t b, const Ids& ids) { return SelectionProblem(args, b, count_of(b), ids); }};
  return selection::RowChecks(rule, outputs, rows[0], expected[0]);
}

}  // namespace assay::qsa_index_topk_decode
