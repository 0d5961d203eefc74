#include "ops/attention/rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/parallel.h"
#include "base/random.h"

namespace assay::attention {
namespace {

// Sample rows are drawn from their own stream.
constexpr std::uint64_t kSampledRows = kAuxiliaryTensor + 128;

// The reference is plain loops, compiled for several vector widths so that 10^10 fp64 operations of
// a large case take seconds. (The sanitizers' start-up does not survive GCC's function clones.)
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ASSAY_WIDE_CLONES [[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
#else
#define ASSAY_WIDE_CLONES
#endif

constexpr std::size_t kKeysWidenedAtOnce = 256;  // 256 KB of fp64 at dim 128: stays in an L2
constexpr std::size_t kRowsAtOnce = 64;          // bounds the weights: 64 rows x 63360 keys = 32 MB

void Widen(const bf16* x, std::int64_t dim, double* wide) {
  for (std::int64_t d = 0; d < dim; ++d) wide[d] = static_cast<double>(ToFloat(x[d]));
}

ASSAY_WIDE_CLONES
double Dot(const double* q, const double* k, std::int64_t dim) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t d = 0; d < dim; ++d) sum += q[d] * k[d];
  return sum;
}

ASSAY_WIDE_CLONES
void AddWeighted(double p, const double* v, std::int64_t dim, double* value, double* weight) {
  for (std::int64_t d = 0; d < dim; ++d) {
    value[d] += p * v[d];
    weight[d] += p * std::abs(v[d]);
  }
}

bool IsVisible(const RowGroup& group, std::size_t row, std::size_t key) {
  return !group.visible || group.visible(row, key);
}

// p[row][key] = q_row . k_key * scale.
void AllScores(const RowGroup& group, std::vector<std::vector<double>>& p) {
  const auto dim = static_cast<std::size_t>(group.dim);
  const double scale =
      group.scale != 0 ? group.scale : 1 / std::sqrt(static_cast<double>(group.dim));
  std::vector<double> q(group.q.size() * dim), k(kKeysWidenedAtOnce * dim);
  for (std::size_t row = 0; row < group.q.size(); ++row) {
    Widen(group.q[row], group.dim, q.data() + row * dim);
  }
  for (std::size_t first = 0; first < group.keys.size(); first += kKeysWidenedAtOnce) {
    const std::size_t end = std::min(first + kKeysWidenedAtOnce, group.keys.size());
    for (std::size_t key = first; key < end; ++key) {
      Widen(group.keys[key].k, group.dim, k.data() + (key - first) * dim);
    }
    for (std::size_t row = 0; row < group.q.size(); ++row) {
      for (std::size_t key = first; key < end; ++key) {
        const double dot = Dot(q.data() + row * dim, k.data() + (key - first) * dim, group.dim);
        p[row][key] = dot * scale;
      }
    }
  }
}

// Scores become exp(score - largest visible score); weights of invisible keys are never read.
void Exponentiate(const RowGroup& group, std::size_t row, std::vector<double>& p) {
  double largest = -std::numeric_limits<double>::infinity();
  for (std::size_t key = 0; key < p.size(); ++key) {
    if (IsVisible(group, row, key)) largest = std::max(largest, p[key]);
  }
  for (std::size_t key = 0; key < p.size(); ++key) {
    if (IsVisible(group, row, key)) p[key] = std::exp(p[key] - largest);
  }
}

}  // namespace

void AttendRows(const RowGroup& group, SumOrder order) {
  const std::size_t rows = group.q.size(), keys = group.keys.size();
  const auto dim = static_cast<std::size_t>(group.dim);
  std::vector<std::vector<double>> p(rows, std::vector<double>(keys));
  AllScores(group, p);

  std::vector<double> sum(rows, 0), v(kKeysWidenedAtOnce * dim);
  std::vector<bool> any(rows, false);
  for (std::size_t row = 0; row < rows; ++row) {
    Exponentiate(group, row, p[row]);
    std::fill_n(group.value[row], dim, 0.0);
    std::fill_n(group.weight[row], dim, 0.0);
  }
  for (std::size_t first = 0; first < keys; first += kKeysWidenedAtOnce) {
    const std::size_t end = std::min(first + kKeysWidenedAtOnce, keys);
    const auto key_number = [&](std::size_t n) {
      return order == SumOrder::kForward ? n : keys - 1 - n;
    };
    for (std::size_t n = first; n < end; ++n) {
      Widen(group.keys[key_number(n)].v, group.dim, v.data() + (n - first) * dim);
    }
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t n = first; n < end; ++n) {
        const std::size_t key = key_number(n);
        if (!IsVisible(group, row, key)) continue;
        any[row] = true;
        sum[row] += p[row][key];
        AddWeighted(p[row][key], v.data() + (n - first) * dim, group.dim, group.value[row],
                    group.weight[row]);
      }
    }
  }
  for (std::size_t row = 0; row < rows; ++row) {
    if (!any[row]) continue;
    for (std::size_t d = 0; d < dim; ++d) {
      group.value[row][d] /= sum[row];
      group.weight[row][d] /= sum[row];
    }
  }
}

void ForEachHead(
    const std::vector<std::int64_t>& rows, std::int64_t queries, std::int64_t heads,
    const std::function<void(std::int64_t, std::int64_t, const std::vector<std::size_t>&)>& body) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::size_t>> positions;
  for (std::size_t n = 0; n < rows.size(); ++n) {
    positions[{rows[n] / (queries * heads), rows[n] % heads}].push_back(n);
  }
  struct Piece {
    std::int64_t batch, head;
    std::vector<std::size_t> positions;
  };
  std::vector<Piece> pieces;
  for (const auto& [slice, list] : positions) {
    for (std::size_t first = 0; first < list.size(); first += kRowsAtOnce) {
      const std::size_t end = std::min(first + kRowsAtOnce, list.size());
      pieces.push_back({slice.first,
                        slice.second,
                        {list.begin() + static_cast<std::ptrdiff_t>(first),
                         list.begin() + static_cast<std::ptrdiff_t>(end)}});
    }
  }
  ParallelFor(static_cast<std::int64_t>(pieces.size()), 0, [&](std::int64_t index) {
    const Piece& piece = pieces[static_cast<std::size_t>(index)];
    body(piece.batch, piece.head, piece.positions);
  });
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

std::int64_t SliceOfRow(const Problem& problem, const Bundle&, std::int64_t row) {
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
