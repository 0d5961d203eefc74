// Tests of the kpool_index_decode room: step shapes, lengths around every boundary, edge semantics,
// verdicts of mutants.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "ops/kpool_index_decode/spec.h"
#include "ops/paged/testing.h"
#include "replay/room_test.h"
#include "replay/test_memory.h"

namespace assay::kpool_index_decode {
namespace {

using ::testing::HasSubstr;
using Lengths = std::vector<std::int64_t>;

constexpr const char* kDefinition = "kpool_index_decode_h32_d128_topk512_c4";

const Family& TheFamily() {
  static const Family family = MakeFamily();
  return family;
}

// Requests of these lengths, `rows` rows each, `spare` pages more than they need.
TestCase MakeCase(const Lengths& lengths, std::int64_t rows = 1,
                  const std::string& variant = "natural", std::int64_t spare = 3) {
  Axes axes = paged::AxesOf(lengths, PagesOfTokens, {1, spare});
  axes["V"] = rows;
  return MakeTestCase(TheFamily(), kDefinition, axes, 7, variant, {{"sequence_lengths", lengths}});
}

Args ArgsOf(TestCase& test) { return Bind(test.problem, test.inputs, test.outputs); }

std::vector<std::int32_t> Ids(TestCase& test, int threads = 0) {
  test.outputs.Poison();
  RunCpu(ArgsOf(test), threads);
  const Tensor& ids = test.outputs["pool_ids"];
  return {ids.as<std::int32_t>(), ids.as<std::int32_t>() + ids.elements()};
}

TEST(KpoolIndex, StepShapes) {
  TestCase decode = MakeCase({8192, 2500, 4099, 3});
  ExpectCpuPasses(decode, "decode");
  TestCase verify = MakeCase({8191, 2600}, 6);
  ExpectCpuPasses(verify, "verify");
  TestCase empty = MakeCase({});
  ExpectCpuPasses(empty, "no requests");
}

TEST(KpoolIndex, AllVariants) {
  for (const std::string& variant : TheFamily().variants) {
    TestCase test = MakeCase({4500, 3000}, 2, variant);
    ExpectCpuPasses(test, variant);
  }
}

// Around the first pool, a page of pools, and 512 pools, for rows that close pools or not.
TEST(KpoolIndex, LengthsAroundEveryBoundary) {
  for (std::int64_t length : {1, 3, 4, 5, 8, 255, 256, 257, 2047, 2048, 2049, 2051, 2052, 2304}) {
    for (std::int64_t rows : {1, 4}) {
      if (length < rows) continue;
      TestCase test = MakeCase({length}, rows);
      ExpectCpuPasses(test, std::to_string(length) + " tokens, " + std::to_string(rows) + " rows");
      const Args args = ArgsOf(test);
      for (std::int64_t v = 0; v < rows; ++v) {
        const std::int64_t seen = length - (rows - 1 - v);
        EXPECT_EQ(VisiblePools(args, v), seen / 4);
        const std::int32_t* ids = args.pool_ids + v * kTopK;
        const std::int64_t kept = std::min<std::int64_t>(seen / 4, kTopK);
        EXPECT_EQ(std::count(ids, ids + kTopK, -1), kTopK - kept) << length << " row " << v;
      }
    }
  }
}

// Row v of a verify call is the decode call of a request that is that much shorter.
TEST(KpoolIndex, VerifyEqualsSuccessiveDecode) {
  constexpr std::int64_t kRows = 6;
  TestCase test = MakeCase({6001}, kRows);
  const std::vector<std::int32_t> all = Ids(test);
  for (std::int64_t v = 0; v < kRows; ++v) {
    const std::int32_t length = 6001 - static_cast<std::int32_t>(kRows - 1 - v);
    std::vector<std::int32_t> ids(kTopK);
    Args one = ArgsOf(test);
    one.rows = 1;
    one.q += v * kHeads * kHeadSize;
    one.weights += v * kHeads;
    one.seq_lens = &length;
    one.pool_ids = ids.data();
    RunCpu(one, 0);
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), all.begin() + v * kTopK)) << "row " << v;
  }
}

TEST(KpoolIndex, ThreadsDoNotMatter) {
  TestCase test = MakeCase({9000, 2100}, 3);
  const std::vector<std::int32_t> expected = Ids(test, 1);
  for (int threads : {2, 3, 8}) EXPECT_EQ(Ids(test, threads), expected) << threads;
}

// fp32 needs the near-tie band in no row of these.
TEST(KpoolIndex, AgreesWithTheReferenceId) {
  TestCase test = MakeCase({8192, 5000}, 4);
  const std::vector<std::int32_t> ids = Ids(test);
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, 1);
  int different = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) different += ids[i] != expected.outputs[0].value[i];
  EXPECT_EQ(different, 0);
}

TEST(KpoolIndex, EqualPoolsKeepTheLowestIds) {
  TestCase test = MakeCase({4096}, 1, "all_equal");
  const std::vector<std::int32_t> ids = Ids(test);
  for (std::int32_t i = 0; i < kTopK; ++i) EXPECT_EQ(ids[static_cast<std::size_t>(i)], i);
  ExpectCpuPasses(test, "all equal");
}

TEST(KpoolIndex, NaNRanksLast) {
  TestCase test = MakeCase({2600}, 1, "nan_keys");  // 650 pools, some 40 of them NaN
  const Args args = ArgsOf(test);
  for (const std::int32_t id : Ids(test)) {
    bool nan = false;
    for (std::int64_t d = 0; d < kHeadSize; ++d) nan |= (KeyOf(args, 0, id)[d] & 0x7F) == 0x7F;
    EXPECT_FALSE(nan) << id;
  }
  // A NaN weight makes every score NaN: the lowest ids.
  test.inputs["weights"].as<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::int32_t> ids = Ids(test);
  for (std::int32_t i = 0; i < kTopK; ++i) EXPECT_EQ(ids[static_cast<std::size_t>(i)], i);
  ExpectCpuPasses(test, "NaN weight");
}

TEST(KpoolIndex, PaddingRequestsSelectNothing) {
  TestCase test = MakeCase({3000, 0, 2500}, 2);
  ExpectCpuPasses(test, "padding");
  const std::vector<std::int32_t> ids = Ids(test);
  EXPECT_EQ(std::count(ids.begin() + 2 * kTopK, ids.begin() + 4 * kTopK, -1), 2 * kTopK);
}

// A page number past 254,200: byte offsets pass 2^31. The pool is reserved, not touched, except for
// those pages.
TEST(KpoolIndex, CacheBeyond32BitOffsets) {
  constexpr std::int64_t kPages = 600000;
  constexpr std::size_t kBytes = kPages * kPageBytes;
  static_assert(kBytes > std::size_t{1} << 32);
  const Reserved memory(kBytes);
  if (!memory.ok()) GTEST_SKIP() << "cannot reserve " << kBytes << " bytes of addresses";
  TestCase test = MakeCase({4096});
  const std::vector<std::int32_t> expected = Ids(test);
  Args args = ArgsOf(test);
  auto* cache = memory.as<std::uint8_t>();
  std::vector<std::int32_t> table;
  for (std::int32_t page = 0; page < 16; ++page) {
    table.push_back(static_cast<std::int32_t>(kPages) - 1 - 3 * page);
    std::copy_n(args.pool_cache + args.page_table[page] * kPageBytes, kPageBytes,
                cache + table.back() * kPageBytes);
  }
  args.pool_cache = cache;
  args.page_table = table.data();
  args.table_width = 16;
  args.pages = kPages;
  RunCpu(args, 0);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), args.pool_ids));
}

TEST(KpoolIndex, Refusals) {
  TestCase test = MakeCase({3000, 2500}, 2);
  const auto validate = [&] {
    return ErrorOf([&] { TheFamily().validate_inputs(test.problem, test.inputs); });
  };
  EXPECT_EQ(validate(), "no error");
  auto* lengths = test.inputs["seq_lens"].as<std::int32_t>();
  lengths[1] = -1;
  EXPECT_THAT(validate(), HasSubstr("seq_lens[1] = -1 is negative"));
  lengths[1] = 1;
  EXPECT_THAT(validate(), HasSubstr("seq_lens[1] = 1 is shorter than the 2 rows"));
  lengths[1] = 4000;
  EXPECT_THAT(validate(), HasSubstr("needs 16 pages of 64 pools, but the page table has 13"));
  lengths[1] = 2500;
  auto* table = test.inputs["page_table"].as<std::int32_t>();
  table[13] = 999;
  EXPECT_THAT(validate(), HasSubstr("page_table[1,0] = 999 is outside the cache of"));
  Args args = ArgsOf(test);
  args.pool_cache += 4;
  EXPECT_THAT(ErrorOf([&] { RunCpu(args, 0); }), HasSubstr("pool_cache is not aligned to 16"));
  EXPECT_THAT(ErrorOf([] { MakeCase({3}, 4); }),
              HasSubstr("sequence_lengths[0] = 3 is shorter than the 4 rows"));
  EXPECT_THAT(ErrorOf([] { MakeCase({300}, 0); }), HasSubstr("V = 0"));
}

TEST(KpoolIndex, MutantsAreRejected) {
  TestCase decode = MakeCase({4500, 3001, 1000});
  ExpectMutantsKilled(decode);
  TestCase verify = MakeCase({4500, 1001}, 4);
  ExpectMutantsKilled(verify);
  for (const char* variant : {"ties", "nan_keys"}) {
    TestCase test = MakeCase({4500}, 1, variant);
    ExpectMutantsKilled(test);
  }
}

TEST(KpoolIndex, CostMatchesThePage) {
  TestCase test = MakeCase({8192}, 4);  // 2048, and three rows of 2047 pools
  const Cost cost = TheFamily().cost(test.problem, test.inputs);
  EXPECT_EQ(cost.bytes, 2048 * 132 + 32 * 4 + 4 + 4 * (32 * 132 + 2048));
  EXPECT_EQ(cost.flops, 2.0 * 32 * 128 * (2048 + 3 * 2047));
}

}  // namespace
}  // namespace assay::kpool_index_decode
