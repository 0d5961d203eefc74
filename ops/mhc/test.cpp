// Tests of the mhc room: step shapes, properties of the outputs, verdicts of mutants.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "ops/mhc/spec.h"
#include "replay/room_test.h"

namespace assay::mhc {
namespace {

using ::testing::HasSubstr;

constexpr const char* kDefinition = "mhc_mix_n4096_s4";
constexpr std::int64_t kN = 4096;

const Family& TheFamily() {
  static const Family family = MakeFamily();
  return family;
}

TestCase MakeCase(std::int64_t m, std::uint64_t key = 7) {
  return MakeTestCase(TheFamily(), kDefinition, {{"M", m}}, key);
}

Args ArgsOf(TestCase& test) { return Bind(test.problem, test.inputs, test.outputs); }

std::vector<std::vector<std::byte>> OutputBytes(TestCase& test, int threads) {
  test.outputs.Poison();
  RunCpu(ArgsOf(test), threads);
  return BytesOf(test.outputs);
}

TEST(Mhc, StepRowCounts) {
  for (std::int64_t m : {0, 1, 2, 3, 4, 8, 16}) {
    TestCase test = MakeCase(m, 11);
    ExpectCpuPasses(test, "M = " + std::to_string(m));
  }
  TestCase longer = MakeCase(100);
  const Verdict verdict = RunAndVerify(longer, "cpu", /*full=*/false);
  EXPECT_TRUE(verdict.passed()) << verdict.reason;
}

// Far inside the limits: fp32 is better than what a legal kernel may do.
TEST(Mhc, ErrorsAreAFractionOfTheLimits) {
  TestCase test = MakeCase(16);
  RunCpu(ArgsOf(test), 0);
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, 1);
  const Args args = ArgsOf(test);
  for (std::size_t i = 0; i < 16 * 4; ++i) {
    EXPECT_NEAR(args.post[i], expected.outputs[1].value[i], 2e-6) << i;
  }
  for (std::size_t i = 0; i < 16 * 16; ++i) {
    const double r = expected.outputs[2].value[i];
    EXPECT_NEAR(args.comb[i], r, 2e-7 + 1e-5 * r) << i;
  }
}

// Columns were normalised last, rows have converged: both sums are 1.
TEST(Mhc, StreamMatrixIsDoublyStochastic) {
  TestCase test = MakeCase(16);
  RunCpu(ArgsOf(test), 0);
  for (std::int64_t row = 0; row < 16; ++row) {
    const float* c = ArgsOf(test).comb + row * 16;
    for (int j = 0; j < 4; ++j) {
      EXPECT_NEAR(c[4 * j] + c[4 * j + 1] + c[4 * j + 2] + c[4 * j + 3], 1, 2e-2);
      EXPECT_NEAR(c[j] + c[4 + j] + c[8 + j] + c[12 + j], 1, 1e-5);
      EXPECT_GT(c[5 * j], c[4 * j + (j + 2) % 4]) << "the diagonal is planted";
    }
  }
}

TEST(Mhc, ThreadsAndOtherRowsDoNotMatter) {
  TestCase test = MakeCase(16);
  const auto expected = OutputBytes(test, 1);
  for (int threads : {2, 3, 8}) EXPECT_EQ(OutputBytes(test, threads), expected) << threads;
  for (std::int64_t row : {0, 7, 15}) {
    std::vector<bf16> u(kN);
    float post[4], comb[16];
    Args one = ArgsOf(test);
    one.m = 1;
    one.streams += row * kStreams * kN;
    one.u = u.data();
    one.post = post;
    one.comb = comb;
    RunCpu(one, 0);
    EXPECT_TRUE(std::equal(u.begin(), u.end(), test.outputs["u"].as<bf16>() + row * kN)) << row;
    EXPECT_TRUE(std::equal(post, post + 4, test.outputs["post"].as<float>() + row * 4)) << row;
    EXPECT_TRUE(std::equal(comb, comb + 16, test.outputs["comb"].as<float>() + row * 16)) << row;
  }
}

// The norms take the size of a row out.
TEST(Mhc, SizeOfTheStreamsDoesNotMatter) {
  TestCase test = MakeCase(1);
  OutputBytes(test, 0);
  const std::vector<float> post(ArgsOf(test).post, ArgsOf(test).post + 4);
  const std::vector<bf16> u(ArgsOf(test).u, ArgsOf(test).u + kN);
  bf16* streams = test.inputs["streams"].as<bf16>();
  for (std::int64_t i = 0; i < kStreams * kN; ++i) streams[i] = ToBF16(ToFloat(streams[i]) * 64);
  OutputBytes(test, 0);
  for (std::size_t j = 0; j < 4; ++j) EXPECT_NEAR(ArgsOf(test).post[j], post[j], 2e-5);
  for (std::size_t i = 0; i < kN; ++i) {
    EXPECT_NEAR(ToFloat(ArgsOf(test).u[i]), ToFloat(u[i]), 2 * UlpBF16(ToFloat(u[i]))) << i;
  }
}

TEST(Mhc, ZeroStreams) {
  TestCase test = MakeCase(2);
  std::fill_n(test.inputs["streams"].as<bf16>(), kStreams * kN, bf16{});
  ExpectCpuPasses(test, "zero streams");
  for (std::int64_t i = 0; i < kN; ++i) EXPECT_EQ(ToFloat(ArgsOf(test).u[i]), 0);
}

TEST(Mhc, NaNStaysInItsRow) {
  TestCase test = MakeCase(3);
  test.inputs["streams"].as<bf16>()[kStreams * kN + 5] =
      ToBF16(std::numeric_limits<float>::quiet_NaN());
  ExpectCpuPasses(test, "NaN");
  for (std::int64_t row = 0; row < 3; ++row) {
    EXPECT_EQ(std::isnan(ArgsOf(test).post[row * 4]), row == 1);
    EXPECT_EQ(std::isnan(ArgsOf(test).comb[row * 16]), row == 1);
    EXPECT_EQ(std::isnan(ToFloat(ArgsOf(test).u[row * kN])), row == 1);
  }
}

TEST(Mhc, Refusals) {
  TestCase test = MakeCase(1);
  const auto refusal = [&](const std::function<void(Args&)>& change) {
    Args args = ArgsOf(test);
    change(args);
    return ErrorOf([&] { RunCpu(args, 0); });
  };
  EXPECT_THAT(refusal([](Args& a) { a.n = 100; }), HasSubstr("N = 100"));
  EXPECT_THAT(refusal([](Args& a) { a.comb = nullptr; }), HasSubstr("comb is missing"));
  const TestCase larger = MakeCase(2);
  EXPECT_THAT(ErrorOf([&] { TheFamily().validate_inputs(test.problem, larger.inputs); }),
              HasSubstr("input 'streams' is bfloat16[2,4,4096], expected bfloat16[1,4,4096]"));
}

TEST(Mhc, MutantsAreRejected) {
  for (std::int64_t m : {1, 4}) {
    TestCase test = MakeCase(m);
    ExpectMutantsKilled(test);
  }
}

TEST(Mhc, CostMatchesThePage) {
  TestCase test = MakeCase(1);
  EXPECT_EQ(TheFamily().cost(test.problem, test.inputs).bytes,
            1572864 + 8192 + 108 + 4096 * 10 + 80);
}

}  // namespace
}  // namespace assay::mhc
