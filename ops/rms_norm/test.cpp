// Tests of the rms_norm room: step shapes, edge semantics, verdicts of mutants.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "ops/rms_norm/spec.h"
#include "replay/room_test.h"

namespace assay::rms_norm {
namespace {

using ::testing::HasSubstr;

constexpr const char* kDefinition = "rms_norm_n4096";
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

const Family& TheFamily() {
  static const Family family = MakeFamily();
  return family;
}

TestCase MakeCase(std::int64_t m, const std::string& variant = "default",
                  const std::string& definition = kDefinition, const Attributes& attributes = {}) {
  return MakeTestCase(TheFamily(), definition, {{"M", m}}, 7, variant, attributes);
}

Args ArgsOf(TestCase& test) { return Bind(test.problem, test.inputs, test.outputs); }

TEST(RmsNorm, EveryDefinitionRowCountAndVariant) {
  for (const Definition& definition : TheFamily().definitions) {
    for (std::int64_t m : {0, 1, 2, 3, 5, 8, 16, 300}) {
      TestCase test = MakeCase(m, "default", definition.name);
      ExpectCpuPasses(test, definition.name + " M = " + std::to_string(m));
    }
    for (const std::string& variant : TheFamily().variants) {
      TestCase test = MakeCase(4, variant, definition.name);
      ExpectCpuPasses(test, definition.name + " " + variant);
    }
  }
}

TEST(RmsNorm, OtherEps) {
  for (double eps : {1e-6, 1e-3, 1.0}) {
    TestCase test = MakeCase(4, "default", kDefinition, {{"eps", eps}});
    ExpectCpuPasses(test, std::to_string(eps));
  }
}

// Sizes that no definition has: the lanes' remainder.
TEST(RmsNorm, AnyRowLength) {
  for (std::int64_t n : {1, 2, 31, 32, 33, 100}) {
    std::vector<bf16> x(static_cast<std::size_t>(n)), weight(x.size(), ToBF16(1.0f)), y(x.size());
    double squares = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = ToBF16(static_cast<float>(i % 7) - 2.5f);
      squares += std::pow(ToFloat(x[i]), 2);
    }
    Args args;
    args.m = 1;
    args.n = n;
    args.x = x.data();
    args.weight = weight.data();
    args.y = y.data();
    RunCpu(args, 0);
    const double rms = std::sqrt(squares / static_cast<double>(n) + 1e-5);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = ToFloat(x[i]) / rms;
      EXPECT_NEAR(ToFloat(y[i]), expected, 0.51 * UlpBF16(expected)) << n << " element " << i;
    }
  }
}

TEST(RmsNorm, InPlaceAndThreads) {
  TestCase test = MakeCase(300);
  RunCpu(ArgsOf(test), 1);
  const auto expected = BytesOf(test.outputs["y"]);
  for (int threads : {2, 3, 8}) {
    test.outputs.Poison();
    RunCpu(ArgsOf(test), threads);
    EXPECT_EQ(BytesOf(test.outputs["y"]), expected) << threads << " threads";
  }
  Args args = ArgsOf(test);
  args.y = test.inputs["x"].as<bf16>();
  RunCpu(args, 0);
  EXPECT_EQ(BytesOf(test.inputs["x"]), expected);
}

// A row's bits depend on that row alone: what makes verifying a draft equal decoding.
TEST(RmsNorm, RowsAreIndependent) {
  TestCase test = MakeCase(16);
  RunCpu(ArgsOf(test), 0);
  for (std::int64_t row = 0; row < 16; ++row) {
    Args one = ArgsOf(test);
    std::vector<bf16> y(4096);
    one.m = 1;
    one.x += row * 4096;
    one.y = y.data();
    RunCpu(one, 0);
    EXPECT_TRUE(std::equal(y.begin(), y.end(), test.outputs["y"].as<bf16>() + row * 4096)) << row;
  }
}

TEST(RmsNorm, ZeroRowsStayZero) {
  TestCase test = MakeCase(2, "zero_row");
  ExpectCpuPasses(test, "zero row");
  for (std::int64_t i = 0; i < 4096; ++i) EXPECT_EQ(ToFloat(test.outputs["y"].as<bf16>()[i]), 0);
}

TEST(RmsNorm, NonFiniteValues) {
  TestCase nan = MakeCase(3);
  nan.inputs["x"].as<bf16>()[4096 + 5] = ToBF16(kNaN);
  ExpectCpuPasses(nan, "NaN");
  for (std::int64_t i = 0; i < 3 * 4096; ++i) {
    EXPECT_EQ(std::isnan(ToFloat(nan.outputs["y"].as<bf16>()[i])), i / 4096 == 1) << i;
  }
  TestCase weight = MakeCase(2);
  weight.inputs["weight"].as<bf16>()[9] = ToBF16(kNaN);
  ExpectCpuPasses(weight, "NaN in a weight");
  TestCase infinite = MakeCase(1);
  infinite.inputs["x"].as<bf16>()[7] = ToBF16(kInf);
  ExpectCpuPasses(infinite, "infinity");
  EXPECT_TRUE(std::isnan(ToFloat(infinite.outputs["y"].as<bf16>()[7])));
  EXPECT_EQ(ToFloat(infinite.outputs["y"].as<bf16>()[8]), 0);
}

TEST(RmsNorm, Refusals) {
  TestCase test = MakeCase(2);
  const auto refusal = [&](const std::function<void(Args&)>& change) {
    Args args = ArgsOf(test);
    change(args);
    return ErrorOf([&] { RunCpu(args, 0); });
  };
  EXPECT_THAT(refusal([](Args& a) { a.y = const_cast<bf16*>(a.x) + 1; }),
              HasSubstr("y overlaps a part of x"));
  EXPECT_THAT(refusal([](Args& a) { a.weight = nullptr; }), HasSubstr("weight is missing"));
  EXPECT_THAT(refusal([](Args& a) { a.n = 0; }), HasSubstr("N = 0"));
  EXPECT_THAT(refusal([](Args& a) { a.eps = 0; }), HasSubstr("eps = 0"));
  EXPECT_THAT(ErrorOf([] {
                MakeCase(1, "default", kDefinition, {{"eps", -1.0}});
              }),
              HasSubstr("eps = -1.0"));
  EXPECT_THAT(ErrorOf([] {
                MakeCase(1, "default", kDefinition, {{"eps", "1e-5"}});
              }),
              HasSubstr("eps is not a number"));
  const TestCase larger = MakeCase(3);
  EXPECT_THAT(ErrorOf([&] { TheFamily().validate_inputs(test.problem, larger.inputs); }),
              HasSubstr("input 'x' is bfloat16[3,4096], expected bfloat16[2,4096]"));
}

TEST(RmsNorm, MutantsAreRejected) {
  for (const Definition& definition : TheFamily().definitions) {
    for (std::int64_t m : {1, 4}) {
      TestCase test = MakeCase(m, "default", definition.name);
      SCOPED_TRACE(definition.name);
      ExpectMutantsKilled(test);
    }
  }
}

TEST(RmsNorm, SampleHoldsFirstAndLastRow) {
  TestCase test = MakeCase(1000);
  const RowLists rows = TheFamily().sample_rows(test.problem, test.inputs, 3);
  EXPECT_EQ(rows[0].size(), 256u);
  EXPECT_EQ(rows[0].front(), 0);
  EXPECT_EQ(rows[0].back(), 999);
  EXPECT_TRUE(std::is_sorted(rows[0].begin(), rows[0].end()));
}

TEST(RmsNorm, CostMatchesThePage) {
  TestCase test = MakeCase(16);
  EXPECT_EQ(TheFamily().cost(test.problem, test.inputs).bytes, 16 * 4096 * 4 + 4096 * 2);
  EXPECT_EQ(TheFamily().cost(test.problem, test.inputs).flops, 16 * 4096 * 4);
}

}  // namespace
}  // namespace assay::rms_norm
