// The fp64 truth of rows, and how C is judged: rows, columns, single elements, and Freivalds'
// check of the whole product. Shares nothing with the kernels.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"
#include "base/simd.h"
#include "ops/dense_gemm_bf16_nt/spec.h"

namespace assay::dense_gemm_bf16_nt {
namespace {

constexpr std::int64_t kTileRows = 128;     // whose borders are always sampled
constexpr std::int64_t kTileColumns = 256;  // likewise
constexpr std::int64_t kRandomRows = 16;    // besides the border rows
constexpr std::int64_t kRandomColumns = 8;  // likewise
constexpr std::int64_t kRandomElements = 4096;
constexpr int kVectors = 3;  // of Freivalds' check
// Below this many products every row is checked: about a second on two cores.
constexpr double kFullCheckProducts = 0x1p31;

// Captured rule: the tolerance recorded with the workloads.
constexpr double kAtol = 0.005, kRtol = 0.016;
// Relative L2 limit of a row; rounding the output alone gives 1.7e-3.
constexpr double kRowRelL2 = 3e-3;

// Tensor cores add 16 products a step and may truncate: one unit of fp32 per step.
double AccumulationError(std::int64_t k) { return static_cast<double>(k) / 16.0 * 0x1p-23; }

// sum a*b and sum |a*b| over k.
struct Dot {
  double sum = 0, magnitude = 0;
};

constexpr std::int64_t kGroup = 4;      // rows of doubles per pass: one bf16 load serves four
constexpr std::int64_t kBlockK = 1024;  // 4 x 1024 doubles = 32 KB
constexpr std::int64_t kStreamed = 32;  // rows per task

// dots[g] += over k < count of wide[g * stride + k] * narrow[k].
ASSAY_VECTOR_CLONES void AddDots(const double* wide, std::int64_t stride, const bf16* narrow,
                                 std::int64_t count, Dot* dots) {
  double s0 = 0, s1 = 0, s2 = 0, s3 = 0, m0 = 0, m1 = 0, m2 = 0, m3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3, m0, m1, m2, m3)
  for (std::int64_t k = 0; k < count; ++k) {
    const double x = ToFloat(narrow[k]);
    const double p0 = wide[k] * x, p1 = wide[stride + k] * x;
    const double p2 = wide[2 * stride + k] * x, p3 = wide[3 * stride + k] * x;
    s0 += p0;
    s1 += p1;
    s2 += p2;
    s3 += p3;
    m0 += std::abs(p0);
    m1 += std::abs(p1);
    m2 += std::abs(p2);
    m3 += std::abs(p3);
  }
  const double sums[kGroup] = {s0, s1, s2, s3}, magnitudes[kGroup] = {m0, m1, m2, m3};
  for (std::int64_t g = 0; g < kGroup; ++g) {
    dots[g].sum += sums[g];
    dots[g].magnitude += magnitudes[g];
  }
}

Dot DotOf(const bf16* x, const bf16* y, std::int64_t k) {
  Dot dot;
  for (std::int64_t i = 0; i < k; ++i) {
    const double product = double{ToFloat(x[i])} * ToFloat(y[i]);
    dot.sum += product;
    dot.magnitude += std::abs(product);
  }
  return dot;
}

Dot DotReversed(const bf16* x, const bf16* y, std::int64_t k) {
  Dot dot;
  for (std::int64_t i = k; i-- > 0;) {
    const double product = double{ToFloat(x[i])} * ToFloat(y[i]);
    dot.sum += product;
    dot.magnitude += std::abs(product);
  }
  return dot;
}

// Rows `chosen` of `fixed` [., k] times every row of `streamed` [count, k]: dots[c * count + s].
std::vector<Dot> AllDots(const bf16* fixed, const std::vector<std::int64_t>& chosen,
                         const bf16* streamed, std::int64_t count, std::int64_t k) {
  const auto rows = static_cast<std::int64_t>(chosen.size());
  const std::int64_t padded = (rows + kGroup - 1) / kGroup * kGroup;
  std::vector<double> wide(static_cast<std::size_t>(padded * k));
  for (std::int64_t r = 0; r < rows; ++r) {
    const bf16* from = fixed + chosen[static_cast<std::size_t>(r)] * k;
    for (std::int64_t i = 0; i < k; ++i)
      wide[static_cast<std::size_t>(r * k + i)] = ToFloat(from[i]);
  }
  std::vector<Dot> dots(static_cast<std::size_t>(rows * count));
  ParallelRanges(count, kStreamed, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r0 = 0; r0 < rows; r0 += kGroup) {
      std::array<std::array<Dot, kGroup>, kStreamed> partial{};
      for (std::int64_t k0 = 0; k0 < k; k0 += kBlockK) {
        for (std::int64_t s = begin; s < end; ++s) {
          AddDots(wide.data() + r0 * k + k0, k, streamed + s * k + k0, std::min(kBlockK, k - k0),
                  partial[static_cast<std::size_t>(s - begin)].data());
        }
      }
      for (std::int64_t g = 0; g < std::min(kGroup, rows - r0); ++g) {
        for (std::int64_t s = begin; s < end; ++s) {
          dots[static_cast<std::size_t>((r0 + g) * count + s)] =
              partial[static_cast<std::size_t>(s - begin)][static_cast<std::size_t>(g)];
        }
      }
    }
  });
  return dots;
}

std::vector<Dot> AllDotsReversed(const bf16* fixed, const std::vector<std::int64_t>& chosen,
                                 const bf16* streamed, std::int64_t count, std::int64_t k) {
  std::vector<Dot> dots(chosen.size() * static_cast<std::size_t>(count));
  ParallelFor(static_cast<std::int64_t>(dots.size()), 0, [&](std::int64_t i) {
    const std::int64_t row = chosen[static_cast<std::size_t>(i / count)];
    dots[static_cast<std::size_t>(i)] = DotReversed(fixed + row * k, streamed + i % count * k, k);
  });
  return dots;
}

// Sorted, without duplicates, inside [0, count): `wanted` plus `random` seeded ones.
std::vector<std::int64_t> Sample(std::vector<std::int64_t> wanted, std::int64_t random,
                                 std::int64_t count, std::uint64_t seed, std::uint64_t stream) {
  for (std::int64_t i = 0; i < random && count > 0; ++i) {
    const std::uint64_t h = Mix64(seed, kAuxiliaryTensor + stream, static_cast<std::uint64_t>(i));
    wanted.push_back(static_cast<std::int64_t>(h % static_cast<std::uint64_t>(count)));
  }
  std::erase_if(wanted, [&](std::int64_t i) { return i < 0 || i >= count; });
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  return wanted;
}

struct Operands {
  std::int64_t m = 0, n = 0, k = 0;
  const bf16* a = nullptr;  // [m, k]
  const bf16* b = nullptr;  // [n, k]
  const bf16* c = nullptr;  // [m, n]
};

std::string Number(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", x);
  return text;
}

std::string Position(std::int64_t m, std::int64_t n) {
  return "C[" + std::to_string(m) + "," + std::to_string(n) + "]";
}

// The worst of many comparisons: share of the limit that was used, where, both values.
class Worst {
 public:
  explicit Worst(std::string name) { finding_.name = std::move(name); }

  // An element against its truth: inside the captured or the strict rule; non-finite references
  // must be met exactly, and infinity is right, or allowed, around the overflow limit of bf16.
  void Element(std::int64_t m, std::int64_t n, bf16 stored, const Dot& truth, std::int64_t k) {
    const double got = ToFloat(stored), expected = truth.sum;
    constexpr double kOverflow = 0x1.FFp127;  // rounds to infinity from here
    if (std::isnan(expected)) return Add(std::isnan(got) ? 0 : 2, 1, m, n, got, expected);
    if (std::isinf(expected)) return Add(got == expected ? 0 : 2, 1, m, n, got, expected);
    if (std::isinf(got)) {
      const bool legal =
          std::abs(expected) > 0.99 * kOverflow && std::signbit(got) == std::signbit(expected);
      return Add(legal ? 0 : 2, 1, m, n, got, expected);
    }
    if (std::isnan(got)) return Add(2, 1, m, n, got, expected);
    const double captured = kAtol + kRtol * std::abs(expected);
    const double strict = 0.5 * UlpBF16(expected) + AccumulationError(k) * truth.magnitude;
    Add(std::abs(got - expected), std::max(captured, strict), m, n, got, expected);
  }

  // n < 0: a whole row.
  void Add(double error, double limit, std::int64_t m, std::int64_t n, double got,
           double expected) {
    double used = error == 0 ? 0 : error / limit;
    if (std::isnan(used)) used = std::numeric_limits<double>::max();
    const std::lock_guard lock(mutex_);
    if (used <= finding_.measured) return;
    finding_.measured = used;
    finding_.detail = (n < 0 ? "row " + std::to_string(m) + " of C times signs" : Position(m, n)) +
                      " = " + Number(got) + ", expected " + Number(expected) + " +- " +
                      Number(limit);
  }

  Finding Done() {
    finding_.limit = 1;
    finding_.passed = finding_.measured <= 1;
    return finding_;
  }

 private:
  std::mutex mutex_;
  Finding finding_;
};

Finding CheckColumns(const Operands& g, std::uint64_t seed) {
  const std::vector<std::int64_t> columns =
      Sample({0, g.n - 1, kTileColumns - 1, kTileColumns}, kRandomColumns, g.n, seed, 1);
  const std::vector<Dot> dots = AllDots(g.b, columns, g.a, g.m, g.k);
  Worst worst("full columns");
  for (std::size_t i = 0; i < columns.size(); ++i) {
    for (std::int64_t m = 0; m < g.m; ++m) {
      const Dot& truth = dots[i * static_cast<std::size_t>(g.m) + static_cast<std::size_t>(m)];
      worst.Element(m, columns[i], g.c[m * g.n + columns[i]], truth, g.k);
    }
  }
  return worst.Done();
}

Finding CheckElements(const Operands& g, std::uint64_t seed) {
  Worst worst("single elements");
  std::vector<Dot> dots(kRandomElements);
  const auto position = [&](std::int64_t i) {
    const auto at = static_cast<std::uint64_t>(i);
    const auto m = Mix64(seed, kAuxiliaryTensor + 2, at) % static_cast<std::uint64_t>(g.m);
    const auto n = Mix64(seed, kAuxiliaryTensor + 3, at) % static_cast<std::uint64_t>(g.n);
    return std::pair(static_cast<std::int64_t>(m), static_cast<std::int64_t>(n));
  };
  ParallelRanges(kRandomElements, 64, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto [m, n] = position(i);
      dots[static_cast<std::size_t>(i)] = DotOf(g.a + m * g.k, g.b + n * g.k, g.k);
    }
  });
  for (std::int64_t i = 0; i < kRandomElements; ++i) {
    const auto [m, n] = position(i);
    worst.Element(m, n, g.c[m * g.n + n], dots[static_cast<std::size_t>(i)], g.k);
  }
  return worst.Done();
}

// Per k: three signed sums over n of B, and the norm over n; each [k].
struct Projected {
  std::array<std::vector<double>, kVectors> sums;
  std::vector<double> norm;
};

using Signs = std::array<std::vector<double>, kVectors>;  // +-1, each [n]

Signs MakeSigns(std::int64_t n, std::uint64_t seed) {
  Signs signs;
  for (int v = 0; v < kVectors; ++v) {
    signs[static_cast<std::size_t>(v)].resize(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint64_t h = Mix64(seed, kAuxiliaryTensor + 4 + static_cast<std::uint64_t>(v),
                                    static_cast<std::uint64_t>(i));
      signs[static_cast<std::size_t>(v)][static_cast<std::size_t>(i)] = (h >> 63) != 0 ? 1 : -1;
    }
  }
  return signs;
}

ASSAY_VECTOR_CLONES void AddRow(const bf16* row, std::int64_t count, double x0, double x1,
                                double x2, double* s0, double* s1, double* s2, double* squares) {
#pragma omp simd
  for (std::int64_t k = 0; k < count; ++k) {
    const double b = ToFloat(row[k]);
    s0[k] += x0 * b;
    s1[k] += x1 * b;
    s2[k] += x2 * b;
    squares[k] += b * b;
  }
}

Projected Project(const Operands& g, const Signs& x) {
  Projected p;
  for (auto& sums : p.sums) sums.resize(static_cast<std::size_t>(g.k));
  p.norm.resize(static_cast<std::size_t>(g.k));
  ParallelRanges(g.k, 256, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = 0; n < g.n; ++n) {
      const auto at = static_cast<std::size_t>(n);
      AddRow(g.b + n * g.k + begin, end - begin, x[0][at], x[1][at], x[2][at],
             p.sums[0].data() + begin, p.sums[1].data() + begin, p.sums[2].data() + begin,
             p.norm.data() + begin);
    }
  });
  for (double& norm : p.norm) norm = std::sqrt(norm);
  return p;
}

// Over i < count: three dots of `row` with doubles, and one of |row| (or row^2 when `w` is null).
struct RowSums {
  double s0 = 0, s1 = 0, s2 = 0, weighted = 0;
};

ASSAY_VECTOR_CLONES RowSums SumRow(const bf16* row, std::int64_t count, const double* x0,
                                   const double* x1, const double* x2, const double* w) {
  double s0 = 0, s1 = 0, s2 = 0, weighted = 0;
#pragma omp simd reduction(+ : s0, s1, s2, weighted)
  for (std::int64_t i = 0; i < count; ++i) {
    const double value = ToFloat(row[i]);
    s0 += value * x0[i];
    s1 += value * x1[i];
    s2 += value * x2[i];
    weighted += w == nullptr ? value * value : std::abs(value) * w[i];
  }
  return {s0, s1, s2, weighted};
}

// Freivalds: C x = A (B^T x) for random signs x. The rounding of C may move y_m by six standard
// deviations of the summed output roundings, 0.0135 norm2(C_m). Accumulation may move each element
// by e_n <= AccumulationError * S_mn, S = |A| |B|^T; signs are independent of the kernel, so their
// sum stays below 6 norm2_n(e) (Hoeffding), and norm2_n(S_mn) <= sum_k |a_mk| norm2_n(b_nk).
// (The page's bound sums S over n instead; it is 18 times larger than the rest at n = 12288 and
// would hide a dropped block of k.)
Finding CheckProduct(const Operands& g, std::uint64_t seed) {
  const Signs x = MakeSigns(g.n, seed);
  const Projected p = Project(g, x);
  Worst worst("freivalds");
  ParallelRanges(g.m, 16, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t m = begin; m < end; ++m) {
      const RowSums z = SumRow(g.a + m * g.k, g.k, p.sums[0].data(), p.sums[1].data(),
                               p.sums[2].data(), p.norm.data());
      const RowSums y = SumRow(g.c + m * g.n, g.n, x[0].data(), x[1].data(), x[2].data(), nullptr);
      // Rows whose truth is not finite, or may overflow bf16, are for the element checks.
      if (!std::isfinite(z.weighted + z.s0) || z.weighted > 0x1p127) continue;
      const double limit = 0.0135 * std::sqrt(y.weighted) + 6 * AccumulationError(g.k) * z.weighted;
      const double got[kVectors] = {y.s0, y.s1, y.s2}, expected[kVectors] = {z.s0, z.s1, z.s2};
      for (int v = 0; v < kVectors; ++v) {
        worst.Add(std::abs(got[v] - expected[v]), limit, m, -1, got[v], expected[v]);
      }
    }
  });
  return worst.Done();
}

}  // namespace

RowLists SampleRows(const Problem& problem, const Bundle&, std::uint64_t seed) {
  const std::int64_t m = problem.axis("M");
  const double products = static_cast<double>(m) * static_cast<double>(problem.axis("N")) *
                          static_cast<double>(problem.axis("K"));
  std::vector<std::int64_t> edges = {
      0, 1, m - 1, kTileRows - 1, kTileRows, m / 2, m - m % kTileRows};
  if (products <= kFullCheckProducts) {
    for (std::int64_t row = 0; row < m; ++row) edges.push_back(row);
  }
  return {Sample(std::move(edges), kRandomRows, m, seed, 0)};
}

std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order) {
  const bf16* a = inputs["A"].as<bf16>();
  const bf16* b = inputs["B"].as<bf16>();
  const std::int64_t n = problem.axis("N"), k = problem.axis("K");
  const std::vector<Dot> dots = order == SumOrder::kForward ? AllDots(a, rows[0], b, n, k)
                                                            : AllDotsReversed(a, rows[0], b, n, k);
  ExpectedRows expected;
  expected.value.reserve(dots.size());
  expected.scale.reserve(dots.size());
  for (const Dot& dot : dots) {
    expected.value.push_back(dot.sum);
    expected.scale.push_back(dot.magnitude);
  }
  return {std::move(expected)};
}

std::vector<OutputPolicy> Policies(const Problem& problem) {
  OutputPolicy policy;
  policy.grades = {{"strict", 0, 0, AccumulationError(problem.axis("K")), 0.5},
                   {"captured", kAtol, kRtol, 0, 0}};
  policy.slice_rel_l2 = kRowRelL2;
  policy.min_slice_rows = 1;
  policy.slice_of_row = [](const Problem&, const Bundle&, std::int64_t row) { return row; };
  return {policy};
}

std::vector<Finding> WholeChecks(const Problem& problem, const Bundle& inputs,
                                 const Bundle& outputs, std::uint64_t seed) {
  const Operands g{problem.axis("M"),      problem.axis("N"),      problem.axis("K"),
                   inputs["A"].as<bf16>(), inputs["B"].as<bf16>(), outputs["C"].as<bf16>()};
  if (g.m == 0) return {};
  return {CheckColumns(g, seed), CheckElements(g, seed), CheckProduct(g, seed)};
}

}  // namespace assay::dense_gemm_bf16_nt
