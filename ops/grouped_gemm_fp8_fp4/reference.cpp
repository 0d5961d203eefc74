// The fp64 truth of rows of D, the default sample of rows and how D is judged. Shares nothing with
// the kernels: every code and scale is decoded here by its definition, in either storage.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"
#include "base/simd.h"
#include "ops/grouped_gemm_fp8_fp4/spec.h"
#include "ops/room.h"

namespace assay::grouped_gemm_fp8_fp4 {
namespace {

// Below this many products every row is checked: about a second on two cores.
constexpr double kFullCheckProducts = 0x1p31;
constexpr std::size_t kSampledExperts = 64;
// Of the expert with most rows: both sides of the tile borders that kernels use.
constexpr std::size_t kTileBorders[] = {63, 64, 127, 128};

// Tensor cores add 16 products a step and may truncate: one unit of fp32 per step.
double AccumulationError(std::int64_t k) { return static_cast<double>(k) / 16.0 * 0x1p-23; }

// --- decoding ---

// Scale of `row` (inside leading index `block`) and group g, in plain or packed storage.
double ScaleOf(const Tensor& tensor, std::int64_t block, std::int64_t row, std::int64_t g) {
  const std::size_t rank = tensor.shape.size();
  const std::int64_t rows = tensor.shape[rank - 2], stride = tensor.shape[rank - 1];
  ue8m0 scale;
  if (tensor.dtype == DType::kI32) {
    const auto word = static_cast<std::uint32_t>(
        tensor.as<std::int32_t>()[(block * rows + g / kPackedGroups) * stride + row]);
    scale.bits = static_cast<std::uint8_t>(word >> (8 * (g % kPackedGroups)));
  } else {
    scale.bits = std::to_integer<std::uint8_t>(tensor.data[(block * rows + row) * stride + g]);
  }
  return scale.bits == 255 ? std::nan("") : std::ldexp(1.0, scale.bits - 127);
}

void DecodeActivations(const Bundle& inputs, std::int64_t m, std::int64_t k, double* out) {
  const e4m3* a = inputs["A"].as<e4m3>() + m * k;
  for (std::int64_t g = 0; g < k / kGroup; ++g) {
    const double scale = ScaleOf(inputs["SFA"], 0, m, g);
    for (std::int64_t i = g * kGroup; i < (g + 1) * kGroup; ++i) out[i] = ToFloat(a[i]) * scale;
  }
}

void DecodeWeights(const Bundle& inputs, std::int64_t expert, std::int64_t n, std::int64_t columns,
                   std::int64_t k, double* out) {
  static const std::array<double, 16> kValue = [] {
    std::array<double, 16> value{};
    for (unsigned code = 0; code < 16; ++code) value[code] = E2M1ToFloat(code);
    return value;
  }();
  const std::byte* w = inputs["W"].data + (expert * columns + n) * (k / 2);
  for (std::int64_t g = 0; g < k / kGroup; ++g) {
    const double scale = ScaleOf(inputs["SFW"], expert, n, g);
    for (std::int64_t i = g * kGroup; i < (g + 1) * kGroup; i += 2) {
      const auto pair = std::to_integer<unsigned>(w[i / 2]);
      out[i] = kValue[pair & 15] * scale;
      out[i + 1] = kValue[pair >> 4] * scale;
    }
  }
}

// --- dots ---

constexpr std::size_t kRowsTogether = 4;

struct Dots {
  double sum[kRowsTogether] = {}, magnitude[kRowsTogether] = {};
};

// Of one row of weights with four rows of activations.
ASSAY_VECTOR_CLONES Dots FourDots(const double* w, const double* const (&a)[kRowsTogether],
                                  std::int64_t k) {
  double s0 = 0, s1 = 0, s2 = 0, s3 = 0, m0 = 0, m1 = 0, m2 = 0, m3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3, m0, m1, m2, m3)
  for (std::int64_t i = 0; i < k; ++i) {
    const double p0 = a[0][i] * w[i], p1 = a[1][i] * w[i];
    const double p2 = a[2][i] * w[i], p3 = a[3][i] * w[i];
    s0 += p0;
    s1 += p1;
    s2 += p2;
    s3 += p3;
    m0 += std::abs(p0);
    m1 += std::abs(p1);
    m2 += std::abs(p2);
    m3 += std::abs(p3);
  }
  return {{s0, s1, s2, s3}, {m0, m1, m2, m3}};
}

Dots FourDotsReversed(const double* w, const double* const (&a)[kRowsTogether], std::int64_t k) {
  Dots dots;
  for (std::size_t r = 0; r < kRowsTogether; ++r) {
    for (std::int64_t i = k; i-- > 0;) {
      dots.sum[r] += a[r][i] * w[i];
      dots.magnitude[r] += std::abs(a[r][i] * w[i]);
    }
  }
  return dots;
}

using Positions = std::vector<std::size_t>;  // in the list of wanted rows

// One column of an expert for all of its wanted rows: the column's weights are decoded once.
void FillColumn(const Problem& problem, const Bundle& inputs, std::int64_t expert,
                std::int64_t column, SumOrder order, const Positions& positions,
                const std::vector<double>& a, ExpectedRows& expected) {
  const std::int64_t n = problem.axis("N"), k = problem.axis("K");
  std::vector<double> w(static_cast<std::size_t>(k));
  DecodeWeights(inputs, expert, column, n, k, w.data());
  for (std::size_t first = 0; first < positions.size(); first += kRowsTogether) {
    const double* four[kRowsTogether];
    for (std::size_t r = 0; r < kRowsTogether; ++r) {
      const std::size_t position = positions[std::min(first + r, positions.size() - 1)];
      four[r] = a.data() + position * static_cast<std::size_t>(k);
    }
    const Dots dots = order == SumOrder::kForward ? FourDots(w.data(), four, k)
                                                  : FourDotsReversed(w.data(), four, k);
    for (std::size_t r = 0; r < kRowsTogether && first + r < positions.size(); ++r) {
      const std::size_t at =
          positions[first + r] * static_cast<std::size_t>(n) + static_cast<std::size_t>(column);
      expected.value[at] = dots.sum[r];
      expected.scale[at] = dots.magnitude[r];
    }
  }
}

// --- the sample ---

void AddSample(const std::vector<std::int64_t>& rows_of_expert, std::uint64_t h,
               std::vector<std::int64_t>& sample) {
  sample.push_back(rows_of_expert.front());
  sample.push_back(rows_of_expert.back());
  sample.push_back(rows_of_expert[h % rows_of_expert.size()]);
}

// Experts in the order of sampling: most rows, fewest rows, the last one, then seeded.
std::vector<std::int64_t> ExpertsToSample(
    const std::map<std::int64_t, std::vector<std::int64_t>>& rows, std::uint64_t seed) {
  std::vector<std::int64_t> experts;
  for (const auto& [expert, of_expert] : rows) experts.push_back(expert);
  const auto size = [&](std::int64_t e) { return rows.at(e).size(); };
  const auto fewer = [&](std::int64_t a, std::int64_t b) { return size(a) < size(b); };
  const std::int64_t most = *std::max_element(experts.begin(), experts.end(), fewer);
  const std::int64_t fewest = *std::min_element(experts.begin(), experts.end(), fewer);
  const std::int64_t last = experts.back();
  const auto order = [&](std::int64_t e) {
    if (e == most || e == fewest || e == last) return std::uint64_t{0};
    return Mix64(seed, kAuxiliaryTensor, static_cast<std::uint64_t>(e)) | 1;
  };
  std::stable_sort(experts.begin(), experts.end(),
                   [&](std::int64_t a, std::int64_t b) { return order(a) < order(b); });
  experts.resize(std::min(experts.size(), kSampledExperts));
  return experts;
}

void SampleExperts(const std::map<std::int64_t, std::vector<std::int64_t>>& rows,
                   std::uint64_t seed, std::vector<std::int64_t>& sample) {
  const std::vector<std::int64_t> experts = ExpertsToSample(rows, seed);
  std::size_t most = 0;
  for (const std::int64_t e : experts) {
    AddSample(rows.at(e), Mix64(seed, kAuxiliaryTensor + 1, static_cast<std::uint64_t>(e)), sample);
    most = std::max(most, rows.at(e).size());
  }
  for (const std::int64_t e : experts) {
    if (rows.at(e).size() < most) continue;
    for (const std::size_t border : kTileBorders) {
      if (border < most) sample.push_back(rows.at(e)[border]);
    }
    return;
  }
}

std::int64_t SliceOfRow(const Problem& problem, const Bundle& inputs, std::int64_t row) {
  return ExpertOfRow(problem, inputs, row);
}

}  // namespace

std::int64_t ExpertOfRow(const Problem& problem, const Bundle& inputs, std::int64_t m) {
  if (const Tensor* rows = inputs.find("m_indices")) return rows->as<std::int32_t>()[m];
  const Tensor& offsets = inputs["expert_offsets"];
  for (std::int64_t e = 0; e < problem.axis("E"); ++e) {
    const std::int64_t end = offsets.dtype == DType::kI64 ? offsets.as<std::int64_t>()[e + 1]
                                                          : offsets.as<std::int32_t>()[e + 1];
    if (m < end) return e;
  }
  throw Error(Fault::kInternal, "row " + std::to_string(m) + " has no expert");
}

RowLists SampleRows(const Problem& problem, const Bundle& inputs, std::uint64_t seed) {
  const std::int64_t m = problem.axis("M");
  const double products = static_cast<double>(m) * static_cast<double>(problem.axis("N")) *
                          static_cast<double>(problem.axis("K"));
  if (products <= kFullCheckProducts) return {EveryRow(m)};
  std::map<std::int64_t, std::vector<std::int64_t>> rows;
  std::vector<std::int64_t> padding, sample;
  for (std::int64_t row = 0; row < m; ++row) {
    const std::int64_t expert = ExpertOfRow(problem, inputs, row);
    (expert < 0 ? padding : rows[expert]).push_back(row);
  }
  if (!padding.empty()) AddSample(padding, seed, sample);
  if (!rows.empty()) SampleExperts(rows, seed, sample);
  std::sort(sample.begin(), sample.end());
  sample.erase(std::unique(sample.begin(), sample.end()), sample.end());
  return {std::move(sample)};
}

std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order) {
  const std::int64_t n = problem.axis("N"), k = problem.axis("K");
  const std::vector<std::int64_t>& wanted = rows[0];
  ExpectedRows expected;  // rows without an expert stay 0
  expected.value.resize(wanted.size() * static_cast<std::size_t>(n));
  expected.scale.resize(expected.value.size());
  std::vector<double> a(wanted.size() * static_cast<std::size_t>(k));
  std::map<std::int64_t, Positions> of_expert;
  for (std::size_t at = 0; at < wanted.size(); ++at) {
    const std::int64_t expert = ExpertOfRow(problem, inputs, wanted[at]);
    if (expert < 0) continue;
    of_expert[expert].push_back(at);
    DecodeActivations(inputs, wanted[at], k, a.data() + at * static_cast<std::size_t>(k));
  }
  for (const auto& [expert, positions] : of_expert) {
    ParallelFor(n, 0, [&, e = expert, &at = positions](std::int64_t column) {
      FillColumn(problem, inputs, e, column, order, at, a, expected);
    });
  }
  return {std::move(expected)};
}

// `fp8` is for kernels that multiply in 8 bits and keep about 14 while they accumulate.
std::vector<OutputPolicy> Policies(const Problem& problem) {
  OutputPolicy policy;
  policy.grades = {{"strict", 0, 0, AccumulationError(problem.axis("K")), 0.5},
                   {"captured", 0.005, 0.016, 0, 0},
                   {"fp8", 0, 0, 0x1p-12, 0.5}};
  policy.slice_rel_l2 = 0x1p-8;  // per expert; rounding the output alone gives 1.7e-3
  policy.min_slice_rows = 1;
  policy.slice_of_row = SliceOfRow;
  return {policy};
}

// Reported, not judged: what the page expects to be above 99.9 %.
std::vector<Finding> RowChecks(const Problem& problem, const Bundle&, const Bundle& outputs,
                               const RowLists& rows, const std::vector<ExpectedRows>& expected) {
  const std::int64_t n = problem.axis("N");
  const bf16* d = outputs["D"].as<bf16>();
  std::int64_t inside = 0, elements = 0;
  for (std::size_t at = 0; at < rows[0].size(); ++at) {
    for (std::int64_t column = 0; column < n; ++column) {
      const double r =
          expected[0].value[at * static_cast<std::size_t>(n) + static_cast<std::size_t>(column)];
      if (!std::isfinite(r)) continue;
      const double error = std::abs(ToFloat(d[rows[0][at] * n + column]) - ToFloat(ToBF16(r)));
      inside += error <= UlpBF16(r);
      ++elements;
    }
  }
  Finding finding{"within_one_ulp", true, 1, 0.999, ""};
  if (elements != 0) finding.measured = static_cast<double>(inside) / static_cast<double>(elements);
  return {finding};
}

}  // namespace assay::grouped_gemm_fp8_fp4
