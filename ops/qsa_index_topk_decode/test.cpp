// Tests of the qsa_index_topk_decode room: captured batches, edge semantics of the page, exact
// ties, addresses past 32 bits, refusals, verdicts of mutants.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>

#include "base/random.h"
#include "ops/paged/testing.h"
#include "ops/qsa_index_topk_decode/spec.h"
#include "replay/room_test.h"
#include "replay/test_memory.h"
#include "tests/captured_records.h"

namespace assay::qsa_index_topk_decode {
namespace {

using ::testing::HasSubstr;
using List = std::vector<std::int64_t>;
using Ids = std::vector<std::int32_t>;

constexpr const char* kDefinition = "qsa_index_topk_decode_qwen38_h4_d128_topk512_c4";
constexpr bf16 kNaN{0x7FC0};
constexpr bf16 kInf{0x7F80};

const Family& TheFamily() {
  static const Family family = MakeFamily();
  return family;
}

TestCase MakeCase(const List& lengths, const std::string& variant = "natural",
                  std::uint64_t key = 7, const paged::Spare& spare = {},
                  Attributes attributes = {}) {
  Axes axes = paged::AxesOf(lengths, PagesOfTokens, spare);
  axes["P"] = 16;
  attributes["sequence_lengths"] = lengths;
  return MakeTestCase(TheFamily(), kDefinition, axes, key, variant, attributes);
}

TestCase MakeCaptured(const Workload& workload, std::uint64_t key = 7,
                      const std::string& variant = "") {
  return MakeTestCase(TheFamily(), workload.definition, workload.axes, key, variant,
                      workload.attributes);
}

Args ArgsOf(TestCase& test) { return Bind(test.problem, test.inputs, test.outputs); }

Ids RowOf(const TestCase& test, std::int64_t b) {
  const std::int32_t* ids = test.outputs["block_ids"].as<std::int32_t>() + b * kTopK;
  return {ids, ids + kTopK};
}

Ids IdsOf(TestCase& test, int threads = 0) {
  test.outputs.Poison();
  RunCpu(ArgsOf(test), threads);
  const std::int32_t* ids = test.outputs["block_ids"].as<std::int32_t>();
  return {ids, ids + test.outputs["block_ids"].elements()};
}

// ids of [first, last), then -1 up to 512.
Ids Iota(std::int32_t first, std::int32_t last) {
  Ids ids(static_cast<std::size_t>(kTopK), -1);
  std::iota(ids.begin(), ids.begin() + (last - first), first);
  return ids;
}

bf16* KeyOf(TestCase& test, std::int64_t b, std::int64_t group) {
  const Args args = ArgsOf(test);
  const std::int64_t page = args.page_table[b * args.table_width + group / 16];
  return test.inputs["index_k_cache"].as<bf16>() + (page * 16 + group % 16) * kHeadSize;
}

void SetKey(TestCase& test, std::int64_t group, bf16 value) {
  std::fill_n(KeyOf(test, 0, group), kHeadSize, value);
}

void ExpectExact(TestCase& test, const std::string& what) {
  const Verdict verdict = RunAndVerify(test);
  EXPECT_TRUE(verdict.passed()) << what << ": " << verdict.reason;
  EXPECT_EQ(FindingOf(verdict, "near_tie_rows").measured, 0) << what;
}

// --- captured batches ---

// Own kernels must select exactly the fp64 set in 99.9 % of the rows, the others in the band.
TEST(QsaIndex, CapturedBatches) {
  std::int64_t rows = 0, near_ties = 0;
  std::size_t number = 0;
  for (const Workload& workload : Captured("qsa_index")) {
    if (kSanitized && number++ % 24 != 0) continue;
    TestCase test = MakeCaptured(workload);
    const Verdict verdict = RunAndVerify(test);
    ASSERT_TRUE(verdict.passed()) << workload.uuid << ": " << verdict.reason;
    rows += workload.axes.at("B");
    near_ties += static_cast<std::int64_t>(FindingOf(verdict, "near_tie_rows").measured);
  }
  EXPECT_TRUE(rows == 1288 || kSanitized) << rows;
  EXPECT_LE(near_ties, rows / 1000);
}

TEST(QsaIndex, BytesAndFlopsOfCapturedBatches) {
  const auto megabytes = [](const char* request, std::int64_t step) {
    for (const Workload& workload : Captured("qsa_index")) {
      if (workload.request != request || Int(workload, "step") != step) continue;
      TestCase test = MakeCaptured(workload);
      return TheFamily().cost(test.problem, test.inputs).bytes * 1e-6;
    }
    ADD_FAILURE() << "no record " << request;
    return 0.0;
  };
  EXPECT_NEAR(megabytes("qwen_next_cold_main", 0), 0.19, 0.005);
  EXPECT_NEAR(megabytes("qwen_next_256k_context_p99", 0), 16.0, 0.05);
  EXPECT_NEAR(megabytes("qwen_next_overlap_p50", 0), 2.39, 0.005);
  EXPECT_NEAR(megabytes("qwen_next_overlap_p95", 0), 3.68, 0.005);
  EXPECT_NEAR(megabytes("qwen_next_overlap_p100", 0), 6.33, 0.005);
  TestCase one = MakeCase({4096});
  const Cost cost = TheFamily().cost(one.problem, one.inputs);
  EXPECT_EQ(cost.flops, 1024 * 1024);
  EXPECT_EQ(cost.bytes, 1024 * 256 + 1024 + 4 + 2048 + 4 * 64);
}

TEST(QsaIndex, EveryDistribution) {
  for (const std::string& variant : TheFamily().variants) {
    TestCase test = MakeCase({20003, 2945, 129, 5001, 33025}, variant, 3);
    ExpectExact(test, variant);
  }
}

// All scores inside one fp16 top byte, and other tie-rich content, at the sizes where public
// selectors overflowed a bin or a buffer; twenty launches give the same bits.
TEST(QsaIndex, NoBoundedBufferAtAnyLength) {
  for (const char* variant : {"one_top_byte", "ties", "few_winners", "all_equal", "natural"}) {
    for (std::int64_t n : {4097, 4609, 30938, 65504}) {
      if (kSanitized && n > 5000) break;
      TestCase test = MakeCase({4 * n}, variant, 5);
      ExpectExact(test, variant + std::string(" ") + std::to_string(n));
      const Ids first = IdsOf(test);
      for (int launch = 0; launch < 19; ++launch) EXPECT_EQ(IdsOf(test), first);
    }
  }
}

// Past 262,144 tokens and 65,536 groups.
TEST(QsaIndex, VeryLongRows) {
  TestCase test = MakeCase({262144 + 5, 300003, 17}, "natural", 11);
  ExpectExact(test, "natural");
  TestCase up = MakeCase({300003}, "monotone_up", 11);
  ExpectExact(up, "monotone_up");
  EXPECT_EQ(RowOf(up, 0), Iota(75000 - 512, 75000));
}

// --- edges ---

TEST(QsaIndex, GroupCountsAroundBorders) {
  for (std::int64_t n : {0,  1,   2,   3,   4,   5,    15,   16,   17,   63,   64,
                         65, 511, 512, 513, 514, 4096, 4097, 4098, 8191, 8192, 8193}) {
    for (std::int64_t tail = 0; tail < 4; ++tail) {
      TestCase test = MakeCase({4 * n + tail}, "natural", 2, {3, 2});
      ExpectExact(test, std::to_string(n) + " groups, tail " + std::to_string(tail));
      if (n > 512) continue;
      EXPECT_EQ(RowOf(test, 0), Iota(0, static_cast<std::int32_t>(n)));
    }
  }
}

TEST(QsaIndex, ShortRowsDoNotLookAtScores) {
  TestCase test = MakeCase({4 * 512 + 3}, "natural");
  std::fill_n(test.inputs["q"].as<bf16>(), kHeads * kHeadSize, kNaN);
  SetKey(test, 100, kNaN);
  EXPECT_EQ(IdsOf(test), Iota(0, 512));
  ExpectExact(test, "512 groups of NaN");
}

TEST(QsaIndex, FirstDroppedGroup) {
  TestCase test = MakeCase({4 * 513}, "monotone_up");
  EXPECT_EQ(IdsOf(test), Iota(1, 513));
  TestCase down = MakeCase({4 * 513}, "monotone_down");
  EXPECT_EQ(IdsOf(down), Iota(0, 512));
}

TEST(QsaIndex, EqualScoresKeepTheLowestIds) {
  for (std::int64_t n : {513, 700, 5000, 65504}) {
    TestCase test = MakeCase({4 * n}, "all_equal");
    EXPECT_EQ(IdsOf(test), Iota(0, 512)) << n;
  }
  // Zeros of either sign are equal: heads with products of -0 and of +0.
  TestCase zeros = MakeCase({4 * 1000}, "natural");
  bf16* q = zeros.inputs["q"].as<bf16>();
  std::fill_n(q, kHeads * kHeadSize, bf16{});
  for (std::int64_t i = 0; i < kHeads * kHeadSize; i += 2) q[i] = bf16{0x8000};
  EXPECT_EQ(IdsOf(zeros), Iota(0, 512));
  ExpectExact(zeros, "zeros of both signs");
}

TEST(QsaIndex, NanRanksLastAndInfinityFirst) {
  // Heads 1 to 3 see the negative of channel 0: an infinity there is no NaN, and no score of
  // theirs.
  const auto mirror = [](TestCase& one) {
    for (std::int64_t h = 1; h < kHeads; ++h) {
      one.inputs["q"].as<bf16>()[h * kHeadSize] = ToBF16(-1.0f);
    }
  };
  TestCase test = MakeCase({4 * 600}, "monotone_down", 5);
  mirror(test);
  for (std::int64_t group : {0, 7, 300}) SetKey(test, group, kNaN);
  *KeyOf(test, 0, 599) = kInf;
  ExpectExact(test, "597 numbers");
  const Ids ids = RowOf(test, 0);
  for (std::int32_t group : {0, 7, 300}) {
    EXPECT_FALSE(std::binary_search(ids.begin(), ids.end(), group)) << group;
  }
  EXPECT_EQ(ids.back(), 599);

  // 100 NaN among 600: 12 of them are needed, the lowest ids.
  for (std::int64_t group = 200; group < 300; ++group) SetKey(test, group, kNaN);
  ExpectExact(test, "497 numbers");
  const Ids filled = RowOf(test, 0);
  EXPECT_TRUE(std::binary_search(filled.begin(), filled.end(), 211));
  EXPECT_FALSE(std::binary_search(filled.begin(), filled.end(), 213));

  // A NaN query makes every score NaN; one NaN head is enough.
  test.inputs["q"].as<bf16>()[3 * kHeadSize] = kNaN;
  EXPECT_EQ(IdsOf(test), Iota(0, 512));
  ExpectExact(test, "NaN in q");

  // More than 512 infinities: lowest ids.
  TestCase many = MakeCase({4 * 2000}, "monotone_up", 5);
  mirror(many);
  for (std::int64_t group = 900; group < 1900; ++group) *KeyOf(many, 0, group) = kInf;
  EXPECT_EQ(IdsOf(many), Iota(900, 1412));
  ExpectExact(many, "infinities");
}

// ReLU acts per head: making negative products more negative changes no score.
TEST(QsaIndex, NegativeHeadProductsDoNotCount) {
  TestCase test = MakeCase({4 * 1500}, "few_winners", 4);
  const Ids before = IdsOf(test);
  bf16* q = test.inputs["q"].as<bf16>();
  for (std::int64_t h = 1; h < kHeads; ++h) q[h * kHeadSize + 100] = ToBF16(-1000.0f);
  EXPECT_EQ(IdsOf(test), before);
  ExpectExact(test, "more negative heads");
}

TEST(QsaIndex, EmptyBatchesAndTables) {
  TestCase none = MakeCase({});
  ExpectExact(none, "B = 0");
  TestCase empty = MakeCase({0, 1, 2, 3});
  EXPECT_EQ(empty.problem.axis("MP"), 0);
  ExpectExact(empty, "MP = 0");
  EXPECT_EQ(RowOf(empty, 3), Iota(0, 0));
}

TEST(QsaIndex, TailsOfTheTableAndOfPagesAreNeverUsed) {
  for (const char* variant : {"natural", "nan_poison"}) {
    TestCase test = MakeCase({4 * 1000 + 1, 4 * 700 + 2, 9}, variant, 6, {40, 5});
    const Ids wanted = IdsOf(test);
    ExpectExact(test, variant);
    const std::int64_t width = test.problem.axis("MP");
    auto* table = test.inputs["page_table"].as<std::int32_t>();
    for (std::int32_t garbage : {-1, 0, std::numeric_limits<std::int32_t>::max(), 77}) {
      const std::int64_t live[] = {63, 44, 1};
      for (std::int64_t b = 0; b < 3; ++b) {
        std::fill(table + b * width + live[b], table + (b + 1) * width, garbage);
      }
      EXPECT_EQ(IdsOf(test), wanted) << variant << ", table tail " << garbage;
    }
  }
}

// Time and results at a page table of 262,144 columns are those of the live width.
TEST(QsaIndex, VeryWideTables) {
  TestCase narrow = MakeCase({20001}), wide = MakeCase({20001}, "natural", 7, {262144, 0});
  EXPECT_EQ(IdsOf(narrow), IdsOf(wide));
}

TEST(QsaIndex, SharedPagesAndRepeatedPages) {
  // Rows 0 and 2 share 40 pages of their prefix.
  const List lengths = {16001, 300, 8005};
  Attributes attributes{{"sequence_lengths", lengths}};
  std::int64_t pages = -40;
  for (std::int64_t length : lengths) pages += PagesOfTokens(length);
  TestCase test =
      MakeTestCase(TheFamily(), kDefinition, {{"B", 3}, {"MP", 250}, {"NP", pages}, {"P", 16}}, 4,
                   "", attributes);
  const auto* table = test.inputs["page_table"].as<std::int32_t>();
  EXPECT_TRUE(std::equal(table, table + 40, table + 2 * 250));
  ExpectExact(test, "shared prefix");

  // The same physical page many times in one row: its groups tie, ids stay logical.
  TestCase repeated = MakeCase({4 * 2000}, "natural");
  auto* entries = repeated.inputs["page_table"].as<std::int32_t>();
  std::fill(entries, entries + 124, entries[0]);
  ExpectExact(repeated, "one page 124 times");
}

TEST(QsaIndex, RowAloneInABatchAndUnderOtherPlaces) {
  const Workload* largest = nullptr;
  const std::vector<Workload> captured = Captured("qsa_index");
  for (const Workload& workload : captured) {
    if (workload.axes.at("B") == 23) largest = &workload;
  }
  ASSERT_NE(largest, nullptr);
  TestCase batch = MakeCaptured(*largest);
  const Ids together = IdsOf(batch);
  Args args = ArgsOf(batch);
  for (std::int64_t b = 0; b < 23; ++b) {
    Ids alone(static_cast<std::size_t>(kTopK));
    Args one = args;
    one.batch = 1;
    one.q += b * kHeads * kHeadSize;
    one.page_table += b * args.table_width;
    one.seq_lens += b;
    one.block_ids = alone.data();
    RunCpu(one, 1);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + b * kTopK)) << b;
  }
  TestCase original = MakeCaptured(*largest, 7, "original_address");
  EXPECT_EQ(IdsOf(original), together) << "same content at other addresses";
}

TEST(QsaIndex, LengthConventionsAndPaddedQueriesAgree) {
  const List lengths = {9001, 2945, 131};
  TestCase tokens = MakeCase(lengths), groups = MakeCase(lengths, "group_lens");
  TestCase padded = MakeCase(lengths, "padded_query");
  EXPECT_TRUE(groups.inputs.has("group_lens") && !groups.inputs.has("seq_lens"));
  EXPECT_EQ(padded.inputs["q"].shape, (Shape{3, 8, 128}));
  const Ids wanted = IdsOf(tokens);
  EXPECT_EQ(IdsOf(groups), wanted);
  EXPECT_EQ(IdsOf(padded), wanted);
}

TEST(QsaIndex, ThreadsAndRepeatsGiveTheSameBits) {
  TestCase test = MakeCase({100001, 2945, 40000, 9});
  const Ids wanted = IdsOf(test, 1);
  for (int launch = 0; launch < 20; ++launch) {
    EXPECT_EQ(IdsOf(test, 1 + launch % 4), wanted) << launch;
  }
}

TEST(QsaIndex, EveryInstructionSet) {
  for (cpu::Isa isa : {cpu::Isa::kBaseline, cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
    if (!cpu::Supports(isa)) continue;
    for (const char* variant : {"natural", "ties", "denormal", "few_winners"}) {
      for (std::int64_t length : {2055, 2945, 12345}) {
        TestCase test = MakeCase({length}, variant, 8);
        test.outputs.Poison();
        RunCpu(ArgsOf(test), 0, isa);
        const Verdict verdict = VerifyFully(test);
        EXPECT_TRUE(verdict.passed()) << cpu::IsaName(isa) << variant << verdict.reason;
        EXPECT_EQ(FindingOf(verdict, "near_tie_rows").measured, 0);
      }
    }
  }
}

TEST(QsaIndex, OtherTopKAndGroupSizes) {
  TestCase test = MakeCase({40000}, "monotone_up");
  for (std::int64_t top_k : {1, 64, 1024, 2048}) {
    Ids ids(static_cast<std::size_t>(top_k));
    Args args = ArgsOf(test);
    args.top_k = top_k;
    args.block_ids = ids.data();
    RunCpu(args, 0);
    for (std::int64_t i = 0; i < top_k; ++i) {
      ASSERT_EQ(ids[static_cast<std::size_t>(i)], 10000 - top_k + i);
    }
    args.group_tokens = 8;
    RunCpu(args, 0);
    EXPECT_EQ(ids.back(), 4999);
  }
}

TEST(QsaIndex, DebugScores) {
  TestCase test = MakeCase({4 * 600, 40}, "monotone_up");
  SetKey(test, 5, kNaN);
  std::vector<float> scores(2 * 700, -7);
  Args args = ArgsOf(test);
  args.scores = scores.data();
  args.scores_stride = 700;
  RunCpu(args, 0);
  for (std::size_t j = 0; j < 600; ++j) {
    if (j == 5) continue;
    EXPECT_NEAR(scores[j], static_cast<double>(1 + j) * 0x1.0p-16 / std::sqrt(128.0), 1e-9);
  }
  EXPECT_TRUE(std::isnan(scores[5]));
  EXPECT_NEAR(scores[700 + 9], 10 * 0x1.0p-16 / std::sqrt(128.0), 1e-9);
  EXPECT_EQ(scores[600], -7) << "only n scores are written";
  EXPECT_EQ(scores[710], -7);
}

// Rewriting groups between two calls, as speculative decoding does, shows in the second call.
TEST(QsaIndex, NothingIsRememberedBetweenCalls) {
  TestCase test = MakeCase({4 * 3000}, "monotone_up");
  EXPECT_EQ(IdsOf(test), Iota(2488, 3000));
  for (std::int64_t group = 2990; group < 3000; ++group) SetKey(test, group, bf16{});
  EXPECT_EQ(IdsOf(test).back(), -1 + 2990);
  test.inputs["seq_lens"].as<std::int32_t>()[0] = 4 * 2000 + 3;
  EXPECT_EQ(IdsOf(test), Iota(1488, 2000));
}

// --- addresses ---

// Pages at byte offsets past 2^31 and 2^32. The pool is reserved, not touched, except for the live
// pages.
TEST(QsaIndex, PoolBeyond32BitOffsets) {
  Attributes pool{{"allocated_cache_shape", List{1'200'000, 16, 1, 128}}};
  TestCase test = MakeCase({40000}, "original_address", 7, {}, pool);
  EXPECT_EQ(test.inputs["index_k_cache"].shape[0], 1'200'000);
  ExpectExact(test, "4.9 GB pool");
  TestCase compact = MakeCase({40000});
  EXPECT_EQ(RowOf(test, 0), IdsOf(compact));
  EXPECT_LT(TheFamily().resident_bytes(test.problem), 4u << 20);
  EXPECT_EQ(ExpectMutantsKilled(test), 2);
}

TEST(QsaIndex, OriginalAddressesOfTheCapturedPool) {
  for (const Workload& workload : Captured("qsa_index")) {
    if (Int(workload, "step") != 0) continue;
    TestCase test = MakeCaptured(workload, 7, "original_address");
    EXPECT_EQ(test.inputs["index_k_cache"].shape, (Shape{83743, 16, 1, 128}));
    const auto* table = test.inputs["page_table"].as<std::int32_t>();
    if (workload.axes.at("NP") >= 3) {
      const std::set<std::int32_t> used(table, table + test.inputs["page_table"].elements());
      EXPECT_THAT(used, ::testing::IsSupersetOf({65535, 65536, 83742}));
    }
    ExpectExact(test, workload.uuid);
  }
}

// A larger page stride; what lies between the pages is never read.
TEST(QsaIndex, PaddedPages) {
  TestCase test = MakeCase({9001});
  const Ids wanted = IdsOf(test);
  const std::int64_t pages = test.problem.axis("NP"), stride = 4096 + 48;
  std::vector<std::byte> memory(static_cast<std::size_t>(pages * stride + 16), std::byte{0xFF});
  std::byte* start = memory.data();
  start += (16 - reinterpret_cast<std::uintptr_t>(start) % 16) % 16;
  Args args = ArgsOf(test);
  for (std::int64_t page = 0; page < pages; ++page) {
    std::memcpy(start + page * stride, args.index_k_cache + page * 2048, 4096);
  }
  args.index_k_cache = reinterpret_cast<const bf16*>(start);
  args.page_stride_bytes = stride;
  test.outputs.Poison();
  RunCpu(args, 0);
  EXPECT_EQ(RowOf(test, 0), wanted);
}

// Keys that end at the end of mapped memory: nothing behind a row's last live page is touched.
TEST(QsaIndex, GuardPageBehindTheCache) {
  TestCase test = MakeCase({4 * 1600});
  const Ids wanted = IdsOf(test);
  const Guarded keys(test.inputs["index_k_cache"]);
  Args args = ArgsOf(test);
  args.index_k_cache = keys.as<bf16>();
  test.outputs.Poison();
  RunCpu(args, 0);
  EXPECT_EQ(RowOf(test, 0), wanted);
}

// --- the selector alone ---

TEST(QsaIndexSelect, AgreesWithAFullSort) {
  for (std::int64_t n : {0, 1, 511, 512, 513, 575, 1024, 1025, 5000, 65504}) {
    for (int levels : {1, 3, 1000, 1 << 24}) {
      std::vector<float> scores(static_cast<std::size_t>(n));
      for (std::size_t j = 0; j < scores.size(); ++j) {
        const std::uint64_t random = Mix64(static_cast<std::uint64_t>(n), 1, j);
        scores[j] = static_cast<float>(random % static_cast<std::uint64_t>(levels));
        if (random % 97 == 0) scores[j] = -std::numeric_limits<float>::quiet_NaN();
        if (random % 101 == 0) scores[j] = std::numeric_limits<float>::infinity();
        if (random % 103 == 0) scores[j] = std::numeric_limits<float>::denorm_min();
      }
      const auto rank = [&](std::int32_t j) {
        const float x = scores[static_cast<std::size_t>(j)];
        return std::isnan(x) ? -1.0f : x;
      };
      Ids order(scores.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](std::int32_t i, std::int32_t j) { return rank(i) > rank(j); });
      order.resize(std::min<std::size_t>(order.size(), 512));
      std::sort(order.begin(), order.end());
      order.resize(512, -1);
      Ids got(512, 12345);
      SelectCpu(scores.data(), n, 512, got.data());
      EXPECT_EQ(got, order) << n << " scores, " << levels << " levels";
    }
  }
}

TEST(QsaIndexSelect, ExpandsToTokens) {
  const std::int32_t ids[] = {0, 3, 7, -1};
  std::int32_t tokens[19];
  ExpandToTokens(ids, 4, 34, tokens);
  EXPECT_THAT(Ids(tokens, tokens + 19), ::testing::ElementsAre(0, 1, 2, 3, 12, 13, 14, 15, 28, 29,
                                                               30, 31, 32, 33, -1, -1, -1, -1, -1));
}

// --- verification ---

Verdict Judge(TestCase& test) {
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, AllRows(test));
  return Verify(TheFamily(), test.problem, test.inputs, test.outputs, expected, 1);
}

// Replaces `out` by `in` in row 0.
void Swap(TestCase& test, std::int32_t out, std::int32_t in) {
  std::int32_t* ids = test.outputs["block_ids"].as<std::int32_t>();
  *std::find(ids, ids + kTopK, out) = in;
  std::sort(ids, ids + kTopK);
}

// Scores (1 + j) 2^-16: the band, of summands that add up to 3, is 7 steps wide.
TEST(QsaIndexChecks, NearTiesAreEquivalentAndCounted) {
  TestCase test = MakeCase({4 * 1000}, "monotone_up");
  IdsOf(test);
  EXPECT_EQ(FindingOf(Judge(test), "near_tie_rows").measured, 0);
  Swap(test, 488, 485);
  Verdict verdict = Judge(test);
  EXPECT_TRUE(verdict.passed()) << verdict.reason;
  EXPECT_EQ(FindingOf(verdict, "near_tie_rows").measured, 1);
  Swap(test, 489, 479);
  verdict = Judge(test);
  EXPECT_FALSE(verdict.passed());
  EXPECT_THAT(verdict.reason, HasSubstr("selection: block_ids[0]: group 479"));

  // Large products that cancel widen the band.
  bf16* q = test.inputs["q"].as<bf16>();
  q[10] = q[11] = ToBF16(64.0f);
  for (std::int64_t group = 0; group < 1000; ++group) {
    KeyOf(test, 0, group)[10] = ToBF16(64.0f);
    KeyOf(test, 0, group)[11] = ToBF16(-64.0f);
  }
  Swap(test, 600, 3);
  EXPECT_TRUE(Judge(test).passed());
}

TEST(QsaIndexChecks, ExactTiesHaveNoBand) {
  TestCase test = MakeCase({4 * 1000}, "all_equal");
  IdsOf(test);
  Swap(test, 511, 512);
  EXPECT_THAT(Judge(test).reason, HasSubstr("instead of the equal group 511"));
  // Two zero scores: no head has a positive product.
  TestCase zeros = MakeCase({4 * 1000}, "few_winners");
  const Ids ids = IdsOf(zeros);
  std::int32_t last_zero = -1, first_free = 999;
  for (std::int32_t group = 999; group >= 0; --group) {
    const bool winner = ToFloat(KeyOf(zeros, 0, group)[0]) >= 0;
    const bool taken = std::binary_search(ids.begin(), ids.end(), group);
    if (!winner && taken) last_zero = std::max(last_zero, group);
    if (!winner && !taken) first_free = std::min(first_free, group);
  }
  Swap(zeros, last_zero, first_free);
  EXPECT_THAT(Judge(zeros).reason, HasSubstr("instead of the equal group"));
}

TEST(QsaIndexChecks, MalformedRowsAreRejected) {
  TestCase test = MakeCase({4 * 1000, 4 * 100}, "monotone_up");
  const auto reason_of = [&](std::int64_t at, std::int32_t value) {
    IdsOf(test);
    test.outputs["block_ids"].as<std::int32_t>()[at] = value;
    return Judge(test).reason;
  };
  EXPECT_THAT(reason_of(3, 490),
              HasSubstr("ids_well_formed: block_ids[0]: [3] = 490 does not asc"));
  EXPECT_THAT(reason_of(511, 1000), HasSubstr("[511] = 1000 is not a group of [0, 1000)"));
  EXPECT_THAT(reason_of(511, -1), HasSubstr("[511] = -1 is not a group"));
  EXPECT_THAT(reason_of(512 + 100, 100), HasSubstr("[100] = 100, expected -1 behind 100 ids"));
  EXPECT_THAT(reason_of(512 + 511, 0x7F7F7F7F), HasSubstr("block_ids[1]: [511] = 2139062143"));
}

TEST(QsaIndexChecks, MutantsAreRejected) {
  for (const char* request :
       {"qwen_next_cold_main", "qwen_next_overlap_p50", "qwen_next_overlap_p95"}) {
    for (const Workload& workload : Captured("qsa_index")) {
      if (workload.request != request || Int(workload, "step") != 1) continue;
      for (const char* variant : {"natural", "ties", "one_top_byte", "original_address"}) {
        TestCase test = MakeCaptured(workload, 7, variant);
        ExpectMutantsKilled(test);
      }
    }
  }
}

// --- refusals ---

TEST(QsaIndexRefusals, Axes) {
  const auto make = [](const Axes& axes, const List& lengths) {
    return ErrorOf([&] {
      MakeProblem(TheFamily(), kDefinition, axes, {{"sequence_lengths", lengths}});
    });
  };
  EXPECT_EQ(make({{"B", 1}, {"MP", 4}, {"NP", 4}, {"P", 16}}, {256}), "no error");
  EXPECT_THAT(make({{"B", 1}, {"MP", 4}, {"NP", 4}, {"P", 64}}, {256}),
              HasSubstr("axis P = 64, but a page holds 16 group keys (the page table may be in KV "
                        "pages of 64 tokens or in scheduler pages)"));
  EXPECT_THAT(make({{"B", 1}, {"MP", 3}, {"NP", 4}, {"P", 16}}, {256}),
              HasSubstr("sequence_lengths[0] = 256 needs 4 pages, but the page table has MP = 3"));
  EXPECT_THAT(make({{"B", 1}, {"MP", 4}, {"NP", 3}, {"P", 16}}, {256}),
              HasSubstr("NP = 3 pages cannot hold"));
}

TEST(QsaIndexRefusals, Contents) {
  TestCase test = MakeCase({300, 9000});
  const auto validate = [&] {
    return ErrorOf([&] { TheFamily().validate_inputs(test.problem, test.inputs); });
  };
  EXPECT_EQ(validate(), "no error");
  auto* lengths = test.inputs["seq_lens"].as<std::int32_t>();
  lengths[1] = -4;
  EXPECT_THAT(validate(), HasSubstr("seq_lens[1] = -4 is negative"));
  lengths[1] = 9100;
  EXPECT_THAT(validate(), HasSubstr("seq_lens[1] = 9100 means 2275 groups, but the page table "
                                    "covers 141 pages of 16 groups (it may be in KV pages"));
  lengths[1] = 9000;
  auto* table = test.inputs["page_table"].as<std::int32_t>();
  const std::int64_t width = test.problem.axis("MP");
  table[3] = -1;  // row 0: 75 groups, 5 live pages; refused although all groups are selected
  EXPECT_THAT(validate(), HasSubstr("page_table[0,3] = -1 is outside the cache of 146 pages"));
  table[3] = 146;
  EXPECT_THAT(validate(), HasSubstr("page_table[0,3] = 146 is outside"));
  table[3] = 0;
  table[width + 140] = 1 << 30;
  EXPECT_THAT(validate(), HasSubstr("page_table[1,140] = 1073741824 is outside"));
}

TEST(QsaIndexRefusals, Tensors) {
  TestCase test = MakeCase({300, 9000});
  const auto with = [&](const TensorLayout& changed, const std::string& dropped = "") {
    return ErrorOfLayout(TheFamily(), test.problem, changed, dropped);
  };
  EXPECT_THAT(with({"q", DType::kBF16, {2, 6, 128}}), HasSubstr("q is bfloat16[2,6,128]"));
  EXPECT_THAT(with({"q", DType::kF32, {2, 4, 128}}), HasSubstr("q is float32[2,4,128]"));
  EXPECT_THAT(with({"index_k_cache", DType::kBF16, {37, 64, 1, 128}}),
              HasSubstr("expected pages of 16 group keys (the page table may be in KV pages of 64 "
                        "tokens or in scheduler pages)"));
  EXPECT_THAT(with({"index_k_cache", DType::kE4M3, {146, 16, 1, 128}}),
              HasSubstr("the FP8 cache is another operator"));
  EXPECT_THAT(with({"index_k_cache", DType::kBF16, {146, 16, 2, 64}}),
              HasSubstr("expected bfloat16[NP,16,1,128]"));
  EXPECT_THAT(with({"page_table", DType::kI64, {2, 141}}), HasSubstr("page_table is int64"));
  EXPECT_THAT(with({"seq_lens", DType::kI32, {3}}), HasSubstr("seq_lens is int32[3]"));
  EXPECT_THAT(with({}, "seq_lens"), HasSubstr("exactly one of seq_lens and group_lens, not none"));
  EXPECT_THAT(with({"group_lens", DType::kI32, {2}}), HasSubstr("and group_lens, not both"));
  EXPECT_THAT(with({}, "q"), HasSubstr("input 'q' is missing"));
}

TEST(QsaIndexRefusals, Calls) {
  TestCase test = MakeCase({300, 9000}, "padded_query");
  const auto run = [&](const std::function<void(Args&)>& change) {
    Args args = ArgsOf(test);
    change(args);
    return ErrorOf([&] { RunCpu(args, 0); });
  };
  EXPECT_THAT(run([](Args& a) { a.index_k_cache += 1; }), HasSubstr("not aligned to 16 bytes"));
  EXPECT_THAT(run([](Args& a) { a.page_stride_bytes = 4080; }), HasSubstr("stride of 4080"));
  EXPECT_THAT(run([](Args& a) { a.page_stride_bytes = 4104; }), HasSubstr("stride of 4104"));
  EXPECT_THAT(run([](Args& a) { a.q_heads = 5; }), HasSubstr("q has 5 heads"));
  EXPECT_THAT(run([](Args& a) { a.top_k = 0; }), HasSubstr("top_k = 0"));
  test.inputs["q"].as<bf16>()[8 * 128 + 5 * 128 + 3] = ToBF16(0.5f);
  EXPECT_THAT(run([](Args&) {}), HasSubstr("q[1,5,3] is not zero"));
}

// Frozen bits: they must never change, or seeds stop meaning the same content.
TEST(QsaIndexContent, SameBitsOnEveryMachine) {
  TestCase test = MakeCase({5001, 700}, "natural", 0x0123456789ABCDEF);
  EXPECT_EQ(HashOf(test.inputs), 15073054227010344026u);
}

// Needles, the first and the newest group among them, are always selected.
TEST(QsaIndexContent, DistributionIsAsDocumented) {
  TestCase test = MakeCase({4 * 20000 + 2});
  std::vector<float> scores(20000);
  Args args = ArgsOf(test);
  args.scores = scores.data();
  args.scores_stride = 20000;
  RunCpu(args, 0);
  EXPECT_EQ(RowOf(test, 0).front(), 0);
  EXPECT_EQ(RowOf(test, 0).back(), 19999);
  std::sort(scores.rbegin(), scores.rend());
  EXPECT_GT(scores[200], 1.3f * scores[2000]) << "one group in a hundred scores high";
  EXPECT_GT(scores[16000], 0) << "most have a positive head product";
  EXPECT_EQ(scores[19999], 0) << "some have none";
  for (std::int64_t group : {1, 500, 19998}) {
    double squares = 0;
    for (std::int64_t d = 0; d < kHeadSize; ++d) {
      squares += std::pow(ToFloat(KeyOf(test, 0, group)[d]), 2);
    }
    const double length = std::sqrt(squares / 128);
    EXPECT_GT(length, 0.69) << group;
    EXPECT_LT(length, 1.31) << group;
  }
}

}  // namespace
}  // namespace assay::qsa_index_topk_decode
