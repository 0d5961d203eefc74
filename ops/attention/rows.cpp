#include "ops/attention/rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/random.h"

namespace assay::attention {
namespace {

// Sample rows are drawn from their own stream.
constexpr std::uint64_t kSampledRows = kAuxiliaryTensor + 128;

double Widen(bf16 x) { return static_cast<double>(ToFloat(x)); }

// The reference is plain loops, compiled for several vector widths so that 10^10 fp64 operations of
// a large case take seconds. (The sanitizers' start-up does not survive GCC's function clones.)
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ASSAY_WIDE_CLONES [[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
#else
#define ASSAY_WIDE_CLONES
#endif

ASSAY_WIDE_CLONES
double Dot(const double* q, const bf16* k, std::int64_t dim) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t d = 0; d < dim; ++d) sum += q[d] * Widen(k[d]);
  return sum;
}

ASSAY_WIDE_CLONES
void AddWeighted(double p, const bf16* v, std::int64_t dim, double* value, double* weight) {
  for (std::int64_t d = 0; d < dim; ++d) {
    const double x = Widen(v[d]);
    value[d] += p * x;
    weight[d] += p * std::abs(x);
  }
}

}  // namespace

void AttendRow(const bf16* q, const std::vector<VisibleKey>& keys, std::int64_t dim, SumOrder order,
               double* value, double* weight) {
  std::fill_n(value, dim, 0.0);
  std::fill_n(weight, dim, 0.0);
  if (keys.empty()) return;
  std::vector<double> wide_q(static_cast<std::size_t>(dim));
  for (std::int64_t d = 0; d < dim; ++d) wide_q[static_cast<std::size_t>(d)] = Widen(q[d]);

  std::vector<double> p(keys.size());
  double largest = -std::numeric_limits<double>::infinity();
  for (std::size_t j = 0; j < keys.size(); ++j) {
    p[j] = Dot(wide_q.data(), keys[j].k, dim) / std::sqrt(static_cast<double>(dim));
    largest = std::max(largest, p[j]);
  }
  for (double& x : p) x = std::exp(x - largest);

  double sum = 0;
  for (std::size_t n = 0; n < keys.size(); ++n) {
    const std::size_t j = order == SumOrder::kForward ? n : keys.size() - 1 - n;
    sum += p[j];
    AddWeighted(p[j], keys[j].v, dim, value, weight);
  }
  for (std::int64_t d = 0; d < dim; ++d) {
    value[d] /= sum;
    weight[d] /= sum;
  }
}

std::vector<std::int64_t> EdgeQueries(std::int64_t queries,
                                      const std::vector<std::int64_t>& borders) {
  std::vector<std::int64_t> edges = {0, 1, queries - 1};
  const auto add_around = [&](std::int64_t border) {
    for (std::int64_t q = border - 1; q <= border + 1; ++q) edges.push_back(q);
  };
  for (std::int64_t tile : {64, 128, 176, 192}) {
    add_around(tile);
    add_around((queries - 1) / tile * tile);
  }
  for (std::int64_t border : borders) add_around(border);
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  std::erase_if(edges, [&](std::int64_t q) { return q < 0 || q >= queries; });
  return edges;
}

std::vector<std::int64_t> SampleRows(std::int64_t batch, std::int64_t queries, std::int64_t heads,
                                     const std::vector<std::int64_t>& edges, std::int64_t random,
                                     std::uint64_t seed) {
  std::vector<std::int64_t> rows;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t q : edges) {
      for (std::int64_t h = 0; h < heads; ++h) rows.push_back((b * queries + q) * heads + h);
    }
  }
  const auto total = static_cast<std::uint64_t>(batch * queries * heads);
  for (std::int64_t n = 0; n < random && total > 0; ++n) {
    rows.push_back(static_cast<std::int64_t>(
        Mix64(seed, kSampledRows, static_cast<std::uint64_t>(n)) % total));
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

std::vector<std::int64_t> AllOutputRows(std::int64_t batch, std::int64_t queries,
                                        std::int64_t heads) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(batch * queries * heads));
  for (std::size_t r = 0; r < rows.size(); ++r) rows[r] = static_cast<std::int64_t>(r);
  return rows;
}

std::int64_t SliceOfRow(const Problem& problem, std::int64_t row) {
  const std::int64_t heads = problem.axis("H");
  return row / (problem.axis("Nq") * heads) * heads + row % heads;
}

OutputPolicy Policy() {
  OutputPolicy policy;
  policy.grades = {{"captured", 0.005, 0.016, 0, 0}, {"flash", 0.005, 0.016, 0x1.0p-8, 0}};
  policy.slice_rel_l2 = 5e-3;
  policy.slice_of_row = SliceOfRow;
  return policy;
}

}  // namespace assay::attention
