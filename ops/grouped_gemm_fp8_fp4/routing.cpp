// Generated routing: which expert owns which row. Nothing here calls libm except sqrt: the same
// bits on every machine.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"
#include "ops/grouped_gemm_fp8_fp4/spec.h"

namespace assay::grouped_gemm_fp8_fp4 {
namespace {

constexpr std::uint64_t kPermutation = kAuxiliaryTensor, kPicks = kAuxiliaryTensor + 1,
                        kShuffle = kAuxiliaryTensor + 3;

constexpr std::int64_t kPicksPerToken = 6;
constexpr std::int64_t kLargeGroup = 129;  // rows of the large expert of `one_129`

// x^0.6 by square roots, which IEEE rounds alike everywhere: 0.6 = 0.1001 1001 1001 ... in binary.
double PowerThreeFifths(double x) {
  double root = x, product = 1;
  for (int bit = 0; bit < 16; ++bit) {
    root = std::sqrt(root);
    if (bit % 4 == 0 || bit % 4 == 3) product *= root;
  }
  return product;
}

// Running sums of every expert's popularity: Zipf with exponent 0.6 over a random order of experts.
std::vector<double> CumulativePopularity(std::int64_t experts, std::uint64_t key, bool uniform) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return Mix64(key, kPermutation, static_cast<std::uint64_t>(a)) <
           Mix64(key, kPermutation, static_cast<std::uint64_t>(b));
  });
  std::vector<double> popularity(order.size());
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    popularity[static_cast<std::size_t>(order[rank])] =
        uniform ? 1 : 1 / PowerThreeFifths(static_cast<double>(rank + 1));
  }
  std::partial_sum(popularity.begin(), popularity.end(), popularity.begin());
  return popularity;
}

// Up to six distinct experts of one token. The first pick of the first token is the last expert,
// whose offsets are the largest: an expert that 32-bit arithmetic cannot reach always owns a row.
std::vector<std::int32_t> PicksOfToken(const std::vector<double>& cumulative, std::uint64_t key,
                                       std::int64_t token) {
  const auto experts = static_cast<std::int32_t>(cumulative.size());
  const auto wanted = static_cast<std::size_t>(std::min<std::int64_t>(kPicksPerToken, experts));
  std::vector<std::int32_t> picks;
  if (token == 0) picks.push_back(experts - 1);
  for (std::uint64_t attempt = 0; picks.size() < wanted; ++attempt) {
    const double u = Uniform(key, kPicks, (static_cast<std::uint64_t>(token) << 20) + attempt);
    const auto found =
        std::upper_bound(cumulative.begin(), cumulative.end(), u * cumulative.back());
    const auto expert =
        std::min(static_cast<std::int32_t>(found - cumulative.begin()), experts - 1);
    if (std::find(picks.begin(), picks.end(), expert) == picks.end()) picks.push_back(expert);
  }
  return picks;
}

void AddTokens(const Problem& problem, std::uint64_t key, std::vector<std::int32_t>& experts) {
  const auto rows = static_cast<std::size_t>(problem.axis("M"));
  const bool uniform = problem.variant == "uniform" || problem.variant == "one_129";
  const bool same = problem.variant == "same_experts";
  const std::vector<double> cumulative = CumulativePopularity(problem.axis("E"), key, uniform);
  for (std::int64_t token = 0; experts.size() < rows; ++token) {
    for (const std::int32_t pick : PicksOfToken(cumulative, key, same ? 0 : token)) {
      if (experts.size() < rows) experts.push_back(pick);
    }
  }
}

void Shuffle(std::uint64_t key, std::vector<std::int32_t>& experts) {
  for (std::size_t i = experts.size(); i > 1; --i) {
    std::swap(experts[i - 1], experts[Mix64(key, kShuffle, i) % i]);
  }
}

}  // namespace

std::vector<std::int32_t> GenerateRouting(const Problem& problem, std::uint64_t key) {
  const auto rows = static_cast<std::size_t>(problem.axis("M"));
  const auto count = static_cast<std::int32_t>(problem.axis("E"));
  const bool padding = HasPaddingRows(problem);
  std::vector<std::int32_t> experts;
  if (const std::vector<std::int64_t>* given = problem.integers("expert_rows")) {
    for (std::size_t e = 0; e < given->size(); ++e) {
      experts.insert(experts.end(), static_cast<std::size_t>((*given)[e]),
                     static_cast<std::int32_t>(e));
    }
    experts.resize(rows, -1);
  } else {
    if (problem.variant == "one_129") {
      experts.assign(std::min<std::size_t>(rows, kLargeGroup), count / 2);
    }
    if (problem.variant == "one_each") {
      for (std::size_t m = 0; m < rows; ++m) {
        experts.push_back(static_cast<std::int32_t>(m) % count);
      }
    }
    AddTokens(problem, key, experts);
    std::stable_sort(experts.begin(), experts.end());
    // Padding wherever it may stand: also inside an expert's rows.
    for (std::size_t m = 3; padding && m < rows; m += 5) experts[m] = -1;
  }
  if (problem.variant == "shuffled") Shuffle(key, experts);
  return experts;
}

}  // namespace assay::grouped_gemm_fp8_fp4
