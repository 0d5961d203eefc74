// Tests of the swiglu room: step shapes, edge semantics, verdicts of mutants.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "ops/swiglu/spec.h"
#include "replay/room_test.h"

namespace assay::swiglu {
namespace {

using ::testing::HasSubstr;

constexpr const char* kDefinition = "swiglu_n2048";
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

TEST(Swiglu, EveryDefinitionRowCountAndVariant) {
  for (const Definition& definition : TheFamily().definitions) {
    for (std::int64_t m : {0, 1, 2, 3, 9, 16, 128, 300}) {
      TestCase test = MakeCase(m, "default", definition.name);
      ExpectCpuPasses(test, definition.name + " M = " + std::to_string(m));
    }
    for (const std::string& variant : TheFamily().variants) {
      TestCase test = MakeCase(4, variant, definition.name);
      ExpectCpuPasses(test, definition.name + " " + variant);
    }
  }
}

TEST(Swiglu, OtherLimits) {
  for (double limit : {0.5, 2.0, 7.0, 100.0}) {
    TestCase test = MakeCase(4, "wide", kDefinition, {{"swiglu_limit", limit}});
    ExpectCpuPasses(test, std::to_string(limit));
  }
  TestCase whole = MakeCase(1, "default", kDefinition, {{"swiglu_limit", std::int64_t{7}}});
  EXPECT_EQ(ArgsOf(whole).limit, 7);
}

// Every bf16 gate there is, against fp64: subnormals, both infinities, NaNs.
TEST(Swiglu, EveryGate) {
  std::vector<bf16> gate(65536), up(65536, ToBF16(2.0f)), y(65536);
  for (std::size_t i = 0; i < gate.size(); ++i) gate[i].bits = static_cast<std::uint16_t>(i);
  Args args;
  args.m = 1;
  args.n = 65536;
  args.gate = gate.data();
  args.up = up.data();
  args.y = y.data();
  RunCpu(args, 0);
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double g = ToFloat(gate[i]), clamped = g > 10 ? 10 : g;
    const double expected = clamped / (1 + std::exp(-clamped)) * 2;
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(ToFloat(y[i]))) << g;
      continue;
    }
    const double limit = 0x1p-126 + (0.5 + 0x1p-6) * UlpBF16(expected);
    EXPECT_NEAR(ToFloat(y[i]), expected, limit) << g;
  }
}

TEST(Swiglu, EveryUp) {
  std::vector<bf16> gate(65536, ToBF16(20.0f)), up(65536), y(65536);
  for (std::size_t i = 0; i < up.size(); ++i) up[i].bits = static_cast<std::uint16_t>(i);
  Args args;
  args.m = 1;
  args.n = 65536;
  args.gate = gate.data();
  args.up = up.data();
  args.y = y.data();
  RunCpu(args, 0);
  const double silu = 10 / (1 + std::exp(-10.0));
  for (std::size_t i = 0; i < up.size(); ++i) {
    const double u = ToFloat(up[i]);
    if (std::isnan(u)) {
      EXPECT_TRUE(std::isnan(ToFloat(y[i])));
      continue;
    }
    const double expected = silu * std::clamp(u, -10.0, 10.0);
    EXPECT_NEAR(ToFloat(y[i]), expected, 0x1p-126 + (0.5 + 0x1p-6) * UlpBF16(expected)) << u;
  }
}

TEST(Swiglu, NonFiniteValuesStayWhereTheyAre) {
  TestCase test = MakeCase(2);
  test.inputs["gate"].as<bf16>()[3] = ToBF16(kNaN);
  test.inputs["gate"].as<bf16>()[4] = ToBF16(kInf);
  test.inputs["gate"].as<bf16>()[5] = ToBF16(-kInf);
  test.inputs["up"].as<bf16>()[6] = ToBF16(kNaN);
  test.inputs["up"].as<bf16>()[7] = ToBF16(-kInf);
  ExpectCpuPasses(test, "non-finite values");
  for (std::int64_t i = 0; i < 2 * 2048; ++i) {
    EXPECT_EQ(std::isnan(ToFloat(test.outputs["y"].as<bf16>()[i])), i == 3 || i == 5 || i == 6)
        << i;
  }
}

TEST(Swiglu, InPlaceAndThreads) {
  TestCase test = MakeCase(100);
  RunCpu(ArgsOf(test), 1);
  const auto expected = BytesOf(test.outputs["y"]);
  for (int threads : {2, 3, 8}) {
    test.outputs.Poison();
    RunCpu(ArgsOf(test), threads);
    EXPECT_EQ(BytesOf(test.outputs["y"]), expected) << threads << " threads";
  }
  Args args = ArgsOf(test);
  args.y = test.inputs["gate"].as<bf16>();
  RunCpu(args, 0);
  EXPECT_EQ(BytesOf(test.inputs["gate"]), expected);
}

TEST(Swiglu, Refusals) {
  TestCase test = MakeCase(2);
  const auto refusal = [&](const std::function<void(Args&)>& change) {
    Args args = ArgsOf(test);
    change(args);
    return ErrorOf([&] { RunCpu(args, 0); });
  };
  EXPECT_THAT(refusal([](Args& a) { a.y = const_cast<bf16*>(a.up) + 1; }),
              HasSubstr("y overlaps a part of up"));
  EXPECT_THAT(refusal([](Args& a) { a.gate = nullptr; }), HasSubstr("gate is missing"));
  EXPECT_THAT(refusal([](Args& a) { a.limit = kNaN; }), HasSubstr("limit = nan"));
  EXPECT_THAT(ErrorOf([] {
                MakeCase(1, "default", kDefinition, {{"swiglu_limit", -1.0}});
              }),
              HasSubstr("swiglu_limit = -1.0"));
  EXPECT_THAT(ErrorOf([] {
                MakeCase(1, "default", kDefinition, {{"swiglu_limit", "10"}});
              }),
              HasSubstr("swiglu_limit is not a number"));
  const TestCase larger = MakeCase(3);
  EXPECT_THAT(ErrorOf([&] { TheFamily().validate_inputs(test.problem, larger.inputs); }),
              HasSubstr("input 'gate' is bfloat16[3,2048], expected bfloat16[2,2048]"));
}

TEST(Swiglu, MutantsAreRejected) {
  for (const Definition& definition : TheFamily().definitions) {
    for (std::int64_t m : {1, 4}) {
      TestCase test = MakeCase(m, "default", definition.name);
      SCOPED_TRACE(definition.name);
      ExpectMutantsKilled(test);
    }
  }
  // Where silu of the limit is far from the limit, the order of clamp and silu shows.
  TestCase small = MakeCase(1, "default", kDefinition, {{"swiglu_limit", 2.0}});
  ExpectMutantsKilled(small);
}

// The shares of clamped elements that the model has.
TEST(Swiglu, DistributionIsAsDocumented) {
  TestCase test = MakeCase(16, "default", "swiglu_n12288");
  int gates = 0, ups = 0;
  for (std::int64_t i = 0; i < 16 * 12288; ++i) {
    gates += ToFloat(test.inputs["gate"].as<bf16>()[i]) > 10;
    ups += std::abs(ToFloat(test.inputs["up"].as<bf16>()[i])) > 10;
  }
  EXPECT_NEAR(gates / (16.0 * 12288), 0.005, 0.002);
  EXPECT_NEAR(ups / (16.0 * 12288), 0.01, 0.004);
}

TEST(Swiglu, CostMatchesThePage) {
  TestCase test = MakeCase(16);
  EXPECT_EQ(TheFamily().cost(test.problem, test.inputs).bytes, 16 * 2048 * 6);
}

}  // namespace
}  // namespace assay::swiglu
