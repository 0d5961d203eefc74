// Every tile kernel and oneDNN against plain fp64 sums, over ragged shapes and strides.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"
#include "cpu/gemm_onednn.h"
#include "cpu/gemm_tiles.h"

namespace assay::cpu {
namespace {

struct Operands {
  GemmBf16Nt args;
  std::vector<bf16> a, b, c;
};

// Rows padded by `padding` elements, so that strides are odd and rows unaligned.
Operands MakeOperands(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t padding) {
  Operands made;
  made.a.resize(static_cast<std::size_t>(m * (k + padding)));
  made.b.resize(static_cast<std::size_t>(n * (k + padding)));
  made.c.assign(static_cast<std::size_t>(m * (n + padding)), bf16{0xFFFF});
  for (std::size_t i = 0; i < made.a.size(); ++i) made.a[i] = ToBF16(UnitNormal(1, 0, i));
  for (std::size_t i = 0; i < made.b.size(); ++i) made.b[i] = ToBF16(UnitNormal(1, 1, i));
  made.args = {
      m, n, k, made.a.data(), k + padding, made.b.data(), k + padding, made.c.data(), n + padding};
  return made;
}

// Half an ulp of the output rounding plus fp32 accumulation, one rounding a step.
void ExpectRight(const Operands& operands, const std::string& what) {
  const GemmBf16Nt& g = operands.args;
  for (std::int64_t m = 0; m < g.m; ++m) {
    for (std::int64_t n = 0; n < g.n; ++n) {
      double sum = 0, magnitude = 0;
      for (std::int64_t k = 0; k < g.k; ++k) {
        const double term = double{ToFloat(g.a[m * g.lda + k])} * ToFloat(g.b[n * g.ldb + k]);
        sum += term;
        magnitude += std::abs(term);
      }
      const double allowed = 0.5 * UlpBF16(sum) + 0x1p-24 * static_cast<double>(g.k) * magnitude;
      ASSERT_LE(std::abs(ToFloat(g.c[m * g.ldc + n]) - sum), allowed)
          << what << " " << g.m << "x" << g.n << "x" << g.k << " at " << m << "," << n;
    }
    for (std::int64_t n = g.n; n < g.ldc; ++n) {
      ASSERT_EQ(g.c[m * g.ldc + n].bits, 0xFFFF)
          << what << ": padding written at " << m << "," << n;
    }
  }
}

// Around every boundary of tiles (4, 6, 14 rows; 8, 16, 32 columns), blocks of k (256) and chunks.
constexpr std::int64_t kShapes[][3] = {{1, 1, 1},    {1, 33, 7},    {3, 8, 2},     {5, 17, 31},
                                       {13, 31, 33}, {14, 32, 256}, {15, 40, 257}, {29, 65, 255},
                                       {47, 70, 64}, {113, 96, 40}, {450, 37, 65}, {9, 520, 300}};

TEST(Gemm, EveryTileKernelIsRight) {
  for (const TileKernel* tiles : SupportedTiles()) {
    for (const auto& [m, n, k] : kShapes) {
      for (const std::int64_t padding : {0, 3}) {
        Operands operands = MakeOperands(m, n, k, padding);
        RunTiles(operands.args, 2, *tiles);
        ExpectRight(operands, tiles->name);
      }
    }
  }
}

TEST(Gemm, OneDnnIsRight) {
  if (!OneDnnBuiltIn()) GTEST_SKIP() << "built without oneDNN";
  if (!__builtin_cpu_supports("avx512bw")) GTEST_SKIP() << "oneDNN needs AVX-512 for bf16";
  for (const auto& [m, n, k] : kShapes) {
    for (const std::int64_t padding : {0, 3}) {
      Operands operands = MakeOperands(m, n, k, padding);
      RunOneDnn(operands.args, 2);
      ExpectRight(operands, "oneDNN");
    }
  }
}

TEST(Gemm, OneDnnBitsDoNotDependOnThreads) {
  if (!OneDnnBuiltIn()) GTEST_SKIP() << "built without oneDNN";
  if (!__builtin_cpu_supports("avx512bw")) GTEST_SKIP() << "oneDNN needs AVX-512 for bf16";
  Operands operands = MakeOperands(600, 1100, 1000, 0);
  RunOneDnn(operands.args, 1);
  const std::vector<bf16> once = operands.c;
  for (int run = 0; run < 10; ++run) {
    operands.c.assign(operands.c.size(), bf16{0xFFFF});
    RunOneDnn(operands.args, 1 + run % 3);
    ASSERT_EQ(operands.c, once) << "run " << run;
  }
}

TEST(Gemm, TileKernelsAgreeBitForBit) {
  Operands operands = MakeOperands(67, 97, 1333, 1);
  RunTiles(operands.args, 1, kTilesPlain);
  const std::vector<bf16> plain = operands.c;
  for (const TileKernel* tiles : SupportedTiles()) {
    for (const int threads : {1, 2, 5}) {
      RunTiles(operands.args, threads, *tiles);
      ASSERT_EQ(operands.c, plain) << tiles->name << " with " << threads << " threads";
    }
  }
}

TEST(Gemm, EmptyShapes) {
  bf16 c[4] = {{1}, {1}, {1}, {1}};
  cpu::Run({0, 4, 8, nullptr, 8, nullptr, 8, nullptr, 4}, 0);
  cpu::Run({2, 2, 0, nullptr, 0, nullptr, 0, c, 2}, 0);
  for (const bf16 x : c) EXPECT_EQ(x.bits, 0);
}

}  // namespace
}  // namespace assay::cpu
