// The fp64 truth of rows of y without any rounding inside, the default sample of rows, and how y is
// judged. Shares nothing with the kernel: every weight is decoded here by its definition.
#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/parallel.h"
#include "base/random.h"
#include "base/simd.h"
#include "ops/moe_decode/spec.h"

namespace assay::moe_decode {
namespace {

constexpr std::uint64_t kSampledRows = kAuxiliaryTensor + 301;

using Vec = std::vector<double>;

// Tensor cores add 16 products a step and may truncate: one unit of fp32 per step.
double AccumulationError(std::int64_t k) { return static_cast<double>(k) / 16.0 * 0x1p-23; }

// --- decoding ---

double ScaleOf(const Matrix& w, std::int64_t expert, std::int64_t n, std::int64_t k) {
  if (w.format == Format::kFP8) {
    return w.blocks[(expert * (w.n / 128) + n / 128) * (w.k / 128) + k / 128];
  }
  if (w.format == Format::kMXFP4) {
    return std::ldexp(1.0, w.groups[(expert * w.n + n) * (w.k / 32) + k / 32] - 127);
  }
  const e4m3 scale{w.groups[(expert * w.n + n) * (w.k / 16) + k / 16]};
  return static_cast<double>(ToFloat(scale)) * w.global[expert];
}

// The values of codes, by all their bits.
template <std::size_t N, class Decode>
std::array<double, N> TableOf(const Decode& decode) {
  std::array<double, N> table{};
  for (unsigned code = 0; code < N; ++code) table[code] = decode(code);
  return table;
}

Vec WeightRow(const Matrix& w, std::int64_t expert, std::int64_t n) {
  static const auto kE4M3 =
      TableOf<256>([](unsigned code) { return ToFloat(e4m3{static_cast<std::uint8_t>(code)}); });
  static const auto kE2M1 = TableOf<16>([](unsigned code) { return E2M1ToFloat(code); });
  Vec row(static_cast<std::size_t>(w.k));
  const std::int64_t group = w.format == Format::kFP8 ? 128 : w.format == Format::kMXFP4 ? 32 : 16;
  for (std::int64_t first = 0; first < w.k; first += group) {
    const double scale = ScaleOf(w, expert, n, first);
    for (std::int64_t k = first; k < first + group; ++k) {
      const std::int64_t index = (expert * w.n + n) * w.k + k;
      double code = 0;
      if (w.format == Format::kFP8) {
        code = kE4M3[w.codes[index]];
      } else {
        const unsigned pair = w.codes[index / 2];
        code = kE2M1[k % 2 == 0 ? pair & 15u : pair >> 4];
      }
      row[static_cast<std::size_t>(k)] = code * scale;
    }
  }
  return row;
}

// --- one row through one expert ---

struct DotResult {
  double value = 0, magnitude = 0;  // sum w x, sum |w x|
};

ASSAY_VECTOR_CLONES void SumLanes(const double* w, const double* x, std::size_t n, double* value,
                                  double* magnitude) {
  for (std::size_t i = 0; i < n; ++i) {
    const double product = w[i] * x[i];
    value[i % 8] += product;
    magnitude[i % 8] += std::abs(product);
  }
}

DotResult Dot(Vec w, Vec x, SumOrder order) {
  if (order == SumOrder::kReverse) {
    std::reverse(w.begin(), w.end());
    std::reverse(x.begin(), x.end());
  }
  double value[8] = {}, magnitude[8] = {};
  SumLanes(w.data(), x.data(), w.size(), value, magnitude);
  DotResult result;
  for (int lane = 0; lane < 8; ++lane) {
    result.value += value[lane];
    result.magnitude += magnitude[lane];
  }
  return result;
}

// silu(min(g, limit)) * clip(u), and by how much a kernel's may differ, in units of 2^-9: g, u and
// the activation each rounded to bf16, g and u summed in fp32.
DotResult Activation(const DotResult& g, const DotResult& u, std::int64_t hidden, double limit) {
  const double gate = std::min(g.value, limit), up = std::clamp(u.value, -limit, limit);
  const double logistic = 1 / (1 + std::exp(-gate));
  const double silu = gate * logistic, slope = logistic * (1 + gate * (1 - logistic));
  const double sums = AccumulationError(hidden) * 0x1p9;
  DotResult result;
  result.value = silu * up;
  result.magnitude = std::abs(slope * up) * (std::abs(gate) + sums * g.magnitude) +
                     std::abs(silu) * (std::abs(up) + sums * u.magnitude) + std::abs(silu * up);
  return result;
}

// Adds weight * E(x) and its error in units of 2^-9 to a row of y.
void AddExpert(const Args& args, std::int64_t expert, double weight, const Vec& x, SumOrder order,
               double* value, double* scale) {
  Vec activated, error;
  for (std::int64_t i = 0; i < args.inter; ++i) {
    const DotResult a = Activation(Dot(WeightRow(args.gate, expert, i), x, order),
                                   Dot(WeightRow(args.up, expert, i), x, order), args.hidden,
                                   static_cast<double>(args.limit));
    activated.push_back(a.value);
    error.push_back(a.magnitude);
  }
  const double sums = AccumulationError(args.inter) * 0x1p9;
  for (std::int64_t n = 0; n < args.hidden; ++n) {
    const Vec down = WeightRow(args.down, expert, n);
    const DotResult y = Dot(down, activated, order);
    // The output is rounded to bf16, too: at most 2^-9 of sum |w a|.
    value[n] += weight * y.value;
    scale[n] += std::abs(weight) * (Dot(down, error, order).magnitude + (1 + sums) * y.magnitude);
  }
}

}  // namespace

// An expert costs the reference 3 H I multiply-adds: all rows of small sizes, four of real ones.
RowLists SampleRows(const Problem& problem, const Bundle&, std::uint64_t seed) {
  constexpr std::int64_t kProducts = std::int64_t{1} << 30;
  const std::int64_t m = problem.axis("M");
  const std::int64_t each = 3 * problem.axis("H") * problem.axis("I") * (problem.axis("K") + 1);
  const std::int64_t wanted = std::min(m, std::max<std::int64_t>(4, kProducts / each));
  std::set<std::int64_t> rows;
  if (m > 0) rows = {0, m - 1};
  for (std::uint64_t n = 0; static_cast<std::int64_t>(rows.size()) < wanted; ++n) {
    rows.insert(
        static_cast<std::int64_t>(Mix64(seed, kSampledRows, n) % static_cast<std::uint64_t>(m)));
  }
  return {{rows.begin(), rows.end()}};
}

std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order) {
  const Args args = BindInputs(problem, inputs);
  const auto hidden = static_cast<std::size_t>(args.hidden);
  const std::int64_t terms = args.top_k + 1;
  const auto count = static_cast<std::int64_t>(rows[0].size());
  // Each (row, expert) on its own, added afterwards in the wanted order.
  std::vector<double> values(static_cast<std::size_t>(count * terms) * hidden),
      scales(values.size());
  ParallelFor(count * terms, 0, [&](std::int64_t task) {
    const std::int64_t row = rows[0][static_cast<std::size_t>(task / terms)], j = task % terms;
    const bool shared = j == args.top_k;
    Vec x;
    for (std::int64_t i = 0; i < args.hidden; ++i) {
      x.push_back(ToFloat(args.x[row * args.hidden + i]));
    }
    const std::size_t at = static_cast<std::size_t>(task) * hidden;
    AddExpert(args, shared ? args.experts : args.ids[row * args.top_k + j],
              shared ? 1.0 : static_cast<double>(args.weights[row * args.top_k + j]), x, order,
              &values[at], &scales[at]);
  });
  ExpectedRows expected;
  expected.value.assign(rows[0].size() * hidden, 0.0);
  expected.scale.assign(expected.value.size(), 0.0);
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t step = 0; step < terms; ++step) {
      const std::int64_t j = order == SumOrder::kForward ? step : terms - 1 - step;
      for (std::size_t n = 0; n < hidden; ++n) {
        const std::size_t from = static_cast<std::size_t>(r * terms + j) * hidden + n;
        expected.value[static_cast<std::size_t>(r) * hidden + n] += values[from];
        expected.scale[static_cast<std::size_t>(r) * hidden + n] += scales[from];
      }
    }
  }
  return {std::move(expected)};
}

// 1/16 more than the first-order error for what it leaves out: second order (gates up to 10 move by
// 0.02), exponentials, the sum over experts. One ulp for the result: the other errors may lift it
// into the next binade, where half an ulp is a whole one of r.
std::vector<OutputPolicy> Policies(const Problem&) {
  OutputPolicy policy;
  policy.grades = {{"strict", 0, 0, 0x1p-9 * (1 + 1.0 / 16), 1}};
  policy.slice_of_row = [](const Problem&, const Bundle&, std::int64_t row) { return row; };
  return {policy};
}

}  // namespace assay::moe_decode
