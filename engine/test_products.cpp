// The two arithmetics of matrix products: within their bound on products of a model, and what holds
// where that bound cannot.
#include <cmath>

#include "engine/check.h"
#include "engine/compare_math.h"
#include "engine/philox.h"
#include "engine/test_support.h"

namespace assay::engine {
namespace {

CheckFindings CheckProducts(const Model& model) {
  const auto executor = MakeCpuExecutor({});
  State state(model.config, {.slots = 2, .rows_per_request = 8, .tokens = 512});
  Runner runner(model, state, *executor);
  Checker checker(runner, *executor);
  const int slot = state.Create();
  for (int step = 0; step < 4; ++step) {
    const std::int64_t start = state.length(slot);
    std::vector<std::int32_t> tokens;
    for (int r = 0; r < 8; ++r) tokens.push_back(TokenAt(1, start + r));
    const StepOutput output = runner.Run(ProgramKind::kTrunk, 8, {{slot, 8, start, {}}}, tokens);
    const RowResult before = ResultOf(output, 7);
    checker.Check(CheckMode::kProducts, *executor);
    EXPECT_TRUE(ResultOf(output, 7) == before) << "a check changes nothing";
    state.Commit(slot, 8);
  }
  return checker.findings();
}

TEST(Products, OfTheModelAreWithinTheirBound) {
  for (const WeightFormat format :
       {WeightFormat::kBF16, WeightFormat::kFP8, WeightFormat::kMXFP4}) {
    const CheckFindings findings = CheckProducts(
        MakeSyntheticModel(PresetConfig("tiny"), {.seed = 1, .plant = 5.0, .format = format}));
    EXPECT_EQ(findings.problems, std::vector<std::string>()) << WeightFormatName(format);
    EXPECT_GT(findings.products.products, 100'000);
    EXPECT_GT(findings.products.worst, 0);
    EXPECT_LE(findings.products.worst, 1) << findings.Text();
    EXPECT_LE(findings.products.worst_proven, 1) << findings.Text();
    EXPECT_FALSE(findings.worst_product.empty());
  }
}

// Lengths of the products of real dimensions (16,384: the output projection of 64 heads of 256).
TEST(Products, OfRealLengthsAreWithinTheirBound) {
  for (const std::int64_t k : {512, 2048, 4096, 8192, 12288, 16384}) {
    std::vector<bf16> x, w;
    const auto value = [](std::int64_t i, std::uint32_t purpose) {
      const auto at = static_cast<std::uint64_t>(i);
      return ToBF16(2 * PhiloxUniform(3, at, purpose) - 1 + 2 * PhiloxUniform(3, at, purpose + 1) -
                    1);
    };
    constexpr int kRows = 64;
    for (std::int64_t i = 0; i < k; ++i) x.push_back(value(i, 10));
    for (std::int64_t i = 0; i < kRows * k; ++i) w.push_back(value(i, 20));
    std::vector<const bf16*> rows;
    for (int row = 0; row < kRows; ++row) rows.push_back(w.data() + row * k);
    std::vector<float> y(kRows);
    const ComparedMath math;
    math.Dots(x.data(), rows.data(), kRows, k, y.data());
    EXPECT_EQ(math.found().beyond, 0) << k;
    EXPECT_LE(math.found().worst_proven, 1) << k;
  }
}

// No operands whatever: beside 2^20 the tensor core drops what lies below 2^20 / 2^25, 4,094 times.
// What it drops is all that remains when -2^20 follows.
TEST(Products, ABoundOfSixteenBitsCannotHoldForAllOperands) {
  constexpr std::size_t k = 4096;
  const std::vector<bf16> ones(k, ToBF16(1.0f));
  std::vector<bf16> x(k, ToBF16(0.03f));
  x.front() = ToBF16(0x1p20f);
  x.back() = ToBF16(-0x1p20f);
  const bf16* row = ones.data();
  float y = 1;
  const ComparedMath math;
  math.Dots(x.data(), &row, 1, k, &y);
  EXPECT_EQ(y, 0.0f);
  EXPECT_EQ(math.found().beyond, 1);
  EXPECT_GT(math.found().worst, 3);
  EXPECT_LE(math.found().worst_proven, 1);
}

}  // namespace
}  // namespace assay::engine
