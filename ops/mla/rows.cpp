#include "ops/mla/rows.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/parallel.h"
#include "base/simd.h"
#include "ops/mla/codec.h"

namespace assay::mla {
namespace {

// Keys that all heads visit before the next ones: 128 KB in fp64, so that they stay in L2.
constexpr std::size_t kKeysAtOnce = 32;
constexpr auto kWidth = static_cast<std::size_t>(kDim);

// Plain loops, compiled for several vector widths: a large case needs 10^10 fp64 operations. Four
// keys at a time, because a single sum would wait for its own additions.
ASSAY_VECTOR_CLONES void Dots(const double* q, const double* k, std::size_t keys, double* dots) {
  std::size_t j = 0;
  for (; j + 4 <= keys; j += 4, k += 4 * kWidth) {
    double a = 0, b = 0, c = 0, e = 0;
#pragma omp simd reduction(+ : a, b, c, e)
    for (std::size_t d = 0; d < kWidth; ++d) {
      a += q[d] * k[d];
      b += q[d] * k[kWidth + d];
      c += q[d] * k[2 * kWidth + d];
      e += q[d] * k[3 * kWidth + d];
    }
    dots[j] = a;
    dots[j + 1] = b;
    dots[j + 2] = c;
    dots[j + 3] = e;
  }
  for (; j < keys; ++j, k += kWidth) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::size_t d = 0; d < kWidth; ++d) sum += q[d] * k[d];
    dots[j] = sum;
  }
}

// Adds `keys` keys, which are `stride` elements apart, in this order.
ASSAY_VECTOR_CLONES void AddWeighted(const double* p, std::ptrdiff_t p_stride, const double* k,
                                     std::ptrdiff_t stride, std::size_t keys, double* value,
                                     double* weight) {
  constexpr std::size_t kChannels = 32;  // their sums stay in registers
  for (std::size_t first = 0; first < kWidth; first += kChannels) {
    double v[kChannels], w[kChannels];
    for (std::size_t d = 0; d < kChannels; ++d) {
      v[d] = value[first + d];
      w[d] = weight[first + d];
    }
    for (std::size_t j = 0; j < keys; ++j) {
      const double pj = p[static_cast<std::ptrdiff_t>(j) * p_stride];
      const double* kj = k + static_cast<std::ptrdiff_t>(j) * stride + first;
      for (std::size_t d = 0; d < kChannels; ++d) {
        v[d] += pj * kj[d];
        w[d] += pj * std::abs(kj[d]);
      }
    }
    for (std::size_t d = 0; d < kChannels; ++d) {
      value[first + d] = v[d];
      weight[first + d] = w[d];
    }
  }
}

// x becomes exp(x - largest), summed in the given order.
double Exponentiate(std::span<double> x, double largest, SumOrder order) {
  double sum = 0;
  for (double& each : x) each = std::exp(each - largest);
  for (std::size_t j = 0; j < x.size(); ++j) {
    sum += x[order == SumOrder::kForward ? j : x.size() - 1 - j];
  }
  return sum;
}

}  // namespace

void AttendToken(const TokenHeads& token, SumOrder order) {
  const std::size_t heads = token.heads.size(), keys = token.keys.size() / kWidth;
  std::vector<double> q(heads * kWidth), p(heads * keys), total(heads, 0);
  for (std::size_t h = 0; h < heads; ++h) {
    for (std::size_t d = 0; d < kWidth; ++d) {
      q[h * kWidth + d] = ToFloat(token.q[static_cast<std::size_t>(token.heads[h]) * kWidth + d]);
    }
    std::fill_n(token.value[h], kWidth, 0.0);
    std::fill_n(token.weight[h], kWidth, 0.0);
  }
  for (std::size_t first = 0; first < keys; first += kKeysAtOnce) {
    const std::size_t count = std::min(kKeysAtOnce, keys - first);
    for (std::size_t h = 0; h < heads; ++h) {
      Dots(&q[h * kWidth], &token.keys[first * kWidth], count, &p[h * keys + first]);
    }
  }
  for (std::size_t h = 0; h < heads && keys > 0; ++h) {
    const std::span<double> x(&p[h * keys], keys);
    for (double& each : x) each *= token.scale;
    const double largest = *std::max_element(x.begin(), x.end());
    total[h] = Exponentiate(x, largest, order);
    if (token.sink != nullptr) total[h] += std::exp(token.sink[token.heads[h]] - largest);
  }
  for (std::size_t first = 0; first < keys; first += kKeysAtOnce) {
    const std::size_t count = std::min(kKeysAtOnce, keys - first);
    const bool forward = order == SumOrder::kForward;
    const std::size_t start = forward ? first : keys - 1 - first;
    const std::ptrdiff_t step = forward ? 1 : -1;
    for (std::size_t h = 0; h < heads; ++h) {
      AddWeighted(&p[h * keys + start], step, &token.keys[start * kWidth], step * kDim, count,
                  token.value[h], token.weight[h]);
    }
  }
  for (std::size_t h = 0; h < heads && keys > 0; ++h) {
    for (std::size_t d = 0; d < kWidth; ++d) {
      token.value[h][d] /= total[h];
      token.weight[h][d] /= total[h];
    }
  }
}

void ForEachToken(const std::vector<std::int64_t>& rows,
                  const std::function<void(std::int64_t, const std::vector<std::int64_t>&,
                                           const std::vector<std::size_t>&)>& body) {
  std::vector<std::size_t> starts;  // positions where another token begins
  for (std::size_t n = 0; n < rows.size(); ++n) {
    if (n == 0 || rows[n] / kHeads != rows[n - 1] / kHeads) starts.push_back(n);
  }
  starts.push_back(rows.size());
  ParallelFor(static_cast<std::int64_t>(starts.size()) - 1, 0, [&](std::int64_t index) {
    const auto at = static_cast<std::size_t>(index);
    std::vector<std::int64_t> heads;
    std::vector<std::size_t> positions;
    for (std::size_t n = starts[at]; n < starts[at + 1]; ++n) {
      heads.push_back(rows[n] % kHeads);
      positions.push_back(n);
    }
    body(rows[starts[at]] / kHeads, heads, positions);
  });
}

ExpectedRows ReferenceRows(const std::vector<std::int64_t>& rows, SumOrder order,
                           const std::function<TokenHeads(std::int64_t token)>& token_of) {
  ExpectedRows expected;
  expected.value.resize(rows.size() * kWidth);
  expected.scale.resize(expected.value.size());
  ForEachToken(rows, [&](std::int64_t number, const std::vector<std::int64_t>& heads,
                         const std::vector<std::size_t>& positions) {
    TokenHeads token = token_of(number);
    token.heads = heads;
    for (const std::size_t position : positions) {
      token.value.push_back(&expected.value[position * kWidth]);
      token.weight.push_back(&expected.scale[position * kWidth]);
    }
    AttendToken(token, order);
  });
  return expected;
}

std::vector<std::int64_t> RowsOfTokens(const std::vector<std::int64_t>& tokens) {
  std::vector<std::int64_t> rows;
  for (std::int64_t token : tokens) {
    for (std::int64_t head = 0; head < kHeads; ++head) rows.push_back(token * kHeads + head);
  }
  return rows;
}

OutputPolicy Policy() {
  OutputPolicy policy;
  // P rounded to bf16 moves the result by up to 2^-8 sum_j p_j |v_j|, perhaps into the next binade,
  // where half an ulp of the final rounding is a whole ulp of r. Weights below 2^-126 vanish in
  // fp32: 640 of them, times values up to 10, are less than 2^-112.
  policy.grades = {{"strict", 0x1.0p-112, 0, 0x1.0p-8, 1}, {"captured", 0.005, 0.016, 0, 0}};
  policy.slice_rel_l2 = 5e-3;
  policy.slice_of_row = [](const Problem&, const Bundle&, std::int64_t row) {
    return row % kHeads;
  };
  return policy;
}

}  // namespace assay::mla
