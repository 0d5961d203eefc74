// Tests of the nope_mla_decode room: selected and dense rows, verify rows, edges, refusals,
// mutants.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "ops/mla/testing.h"
#include "ops/nope_mla_decode/spec.h"
#include "ops/paged/testing.h"
#include "replay/room_test.h"

namespace assay::nope_mla_decode {
namespace {

using ::testing::HasSubstr;
using List = std::vector<std::int64_t>;

constexpr const char* kSelected = "nope_mla_decode_h64_d512_top512_c4";
constexpr const char* kAll = "nope_mla_decode_h64_d512_all";

const Family& TheFamily() {
  static const Family family = MakeFamily();
  return family;
}

// Requests of these lengths, on pages of their own.
TestCase MakeCase(const char* definition, const List& lengths, std::int64_t rows,
                  const std::string& variant = "", std::uint64_t key = 7) {
  Axes axes = paged::AxesOf(lengths, PagesOfTokens);
  axes["V"] = rows;
  return MakeTestCase(TheFamily(), definition, axes, key, variant, {{"sequence_lengths", lengths}});
}

// Around a page, a pool, the width of the selection.
TEST(NopeMlaDecode, LengthsAroundEveryBorder) {
  for (const std::int64_t length : {1, 3, 4, 63, 64, 65, 2047, 2048, 2049, 2052, 2055}) {
    if (kSanitized && length > 100) continue;
    for (const char* definition : {kSelected, kAll}) {
      TestCase test = MakeCase(definition, {length}, 1);
      ExpectCpuPasses(test, std::string(definition) + ", length " + std::to_string(length),
                      /*full=*/false);
    }
  }
}

TEST(NopeMlaDecode, VariantsAndVerifyRows) {
  for (const std::string& variant : TheFamily().variants) {
    if (variant == paged::kOriginalAddress) continue;
    TestCase test = MakeCase(kSelected, {kSanitized ? 300 : 4099, 77}, 3, variant);
    ExpectCpuPasses(test, variant, /*full=*/false);
  }
  TestCase all = MakeCase(kAll, {300, 1, 129}, 4);
  ExpectCpuPasses(all, "rows before the start of a request", /*full=*/false);
}

// The engine's pool: byte offsets pass 2^32.
TEST(NopeMlaDecode, OriginalAddresses) {
  if (kSanitized) GTEST_SKIP() << "5 GB of holes: too much for sanitizers";
  TestCase test = MakeCase(kSelected, {2500}, 2, std::string(paged::kOriginalAddress));
  ExpectCpuPasses(test, "original addresses", /*full=*/false);
}

std::vector<bf16> OutputOf(const Args& args, int threads = 0) {
  std::vector<bf16> out(static_cast<std::size_t>(args.total_rows() * kHeads * kDim));
  Args call = args;
  call.out = out.data();
  RunCpu(call, threads);
  return out;
}

// A verify step gives each row what it has as the only row of a decode step.
TEST(NopeMlaDecode, VerifyRowsAreDecodeRows) {
  constexpr std::int64_t kRows = 5;
  TestCase test = MakeCase(kSelected, {kSanitized ? 300 : 2600, 131}, kRows);
  const Args args = Bind(test.problem, test.inputs, test.outputs);
  const std::vector<bf16> together = OutputOf(args, 2);
  for (std::int64_t row = 0; row < args.total_rows(); ++row) {
    Args alone = args;
    const auto length = static_cast<std::int32_t>(args.TokensOf(row));
    alone.requests = 1, alone.rows = 1;
    alone.q += row * kHeads * kDim;
    alone.page_table += row / kRows * args.table_width;
    alone.seq_lens = &length;
    alone.pool_ids += row * kTopPools;
    const std::vector<bf16> own = OutputOf(alone, 1);
    EXPECT_EQ(std::memcmp(own.data(), together.data() + row * kHeads * kDim, own.size() * 2), 0)
        << "row " << row;
  }
}

// One token: its latent; equal latents: that latent, whatever the queries.
TEST(NopeMlaDecode, ConstantLatentsComeBack) {
  TestCase test = MakeCase(kAll, {200}, 2);
  bf16* latents = test.inputs["latents"].as<bf16>();
  for (std::int64_t i = 0; i < test.inputs["latents"].elements(); ++i) {
    latents[i] = ToBF16(static_cast<float>(i % kDim) / 64);
  }
  const std::vector<bf16> out = OutputOf(Bind(test.problem, test.inputs, test.outputs));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float wanted = static_cast<float>(i % static_cast<std::size_t>(kDim)) / 64;
    ASSERT_NEAR(ToFloat(out[i]), wanted, wanted / 128) << i;
  }
}

TEST(NopeMlaDecode, RowsWithoutTokensAreZero) {
  TestCase test = MakeCase(kAll, {2}, 4);
  const std::vector<bf16> out = OutputOf(Bind(test.problem, test.inputs, test.outputs));
  for (std::int64_t i = 0; i < 2 * kHeads * kDim; ++i) {
    ASSERT_EQ(ToFloat(out[static_cast<std::size_t>(i)]), 0) << i;
  }
  EXPECT_NE(ToFloat(out.back()), 0);
}

TEST(NopeMlaDecode, RefusesWhatCannotBe) {
  TestCase test = MakeCase(kSelected, {300}, 2);
  const auto refusal = [&](const char* tensor, std::int64_t at, std::int32_t value) {
    std::int32_t& element = test.inputs[tensor].as<std::int32_t>()[at];
    const std::int32_t right = std::exchange(element, value);
    const std::string text =
        ErrorOf([&] { TheFamily().validate_inputs(test.problem, test.inputs); });
    element = right;
    return text;
  };
  EXPECT_THAT(refusal("pool_ids", 3, 74),
              HasSubstr("pool_ids[0,0,3] = 74; the row has 74 closed pools"));
  EXPECT_THAT(refusal("pool_ids", kTopPools + 3, -2), HasSubstr("pool_ids[0,1,3] = -2"));
  EXPECT_THAT(refusal("pool_ids", 3, 2), HasSubstr("pool_ids[0,0,3] = 2 comes twice"));
  EXPECT_THAT(refusal("seq_lens", 0, -1), HasSubstr("seq_lens[0] = -1"));
  EXPECT_THAT(refusal("seq_lens", 0, 321), HasSubstr("room for 0 to 320 tokens"));
  EXPECT_THAT(refusal("page_table", 1, 5), HasSubstr("page_table[0,1] = 5 is outside"));
  EXPECT_THAT(ErrorOf([] {
                MakeProblem(TheFamily(), kAll, {{"B", 1}, {"V", 17}, {"MP", 1}, {"NP", 1}});
              }),
              HasSubstr("axis V = 17, a step has 1 to 16 rows"));
}

TEST(NopeMlaDecode, CostOfOneRow) {
  TestCase test = MakeCase(kSelected, {4099}, 1);
  const Cost cost = TheFamily().cost(test.problem, test.inputs);
  EXPECT_EQ(cost.flops, 4.0 * 64 * 512 * 2051);
  EXPECT_EQ(cost.bytes, 2051 * 1024 + 4 * 65 + 4 + 2 * 65536 + 2048);
}

TEST(NopeMlaDecode, MutantsAreRejected) {
  TestCase decode = MakeCase(kSelected, {4099, 3001}, 1), verify = MakeCase(kSelected, {4111}, 3);
  TestCase all = MakeCase(kAll, {777, 650}, 2), longer = MakeCase(kAll, {2047}, 1, "", 1);
  TestCase drafts = MakeCase(kSelected, {8191}, 2, "", 2);
  for (TestCase* test : {&decode, &verify, &all, &longer, &drafts}) {
    if (kSanitized && test != &all) continue;
    SCOPED_TRACE(test->problem.definition->name +
                 ", V = " + std::to_string(test->problem.axis("V")));
    ExpectMutantsKilled(*test);
  }
}

}  // namespace
}  // namespace assay::nope_mla_decode
