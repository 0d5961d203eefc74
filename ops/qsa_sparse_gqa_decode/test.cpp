// Tests of the qsa_sparse_gqa_decode room: captured batches, edge semantics of the page, poison,
// addresses past 32 bits, refusals, verdicts of mutants.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "base/random.h"
#include "ops/paged/testing.h"
#include "ops/qsa_index_topk_decode/spec.h"
#include "ops/qsa_sparse_gqa_decode/cpu_leaf.h"
#include "ops/qsa_sparse_gqa_decode/spec.h"
#include "replay/room_test.h"
#include "replay/test_memory.h"
#include "tests/captured_records.h"

namespace assay::qsa_sparse_gqa_decode {
namespace {

using ::testing::HasSubstr;
using List = std::vector<std::int64_t>;
using Bits = std::vector<std::uint16_t>;

constexpr const char* kDefinition = "qsa_sparse_gqa_decode_qwen38_h24_kv2_d256_topk512_c4";
constexpr std::int64_t kRowElements = kHeads * kHeadSize;
constexpr bf16 kNaN{0x7FC0};
constexpr bf16 kInf{0x7F80};

const Family& TheFamily() {
  static const Family family = MakeFamily();
  return family;
}

TestCase MakeCase(const List& lengths, const std::string& variant = "clustered",
                  std::uint64_t key = 7, const paged::Spare& spare = {},
                  Attributes attributes = {}) {
  Axes axes = paged::AxesOf(lengths, PagesOfTokens, spare);
  axes["P"] = 64;
  attributes["sequence_lengths"] = lengths;
  return MakeTestCase(TheFamily(), kDefinition, axes, key, variant, attributes);
}

TestCase MakeCaptured(const Workload& workload, std::uint64_t key = 7,
                      const std::string& variant = "") {
  return MakeTestCase(TheFamily(), workload.definition, workload.axes, key, variant,
                      workload.attributes);
}

Args ArgsOf(TestCase& test) { return Bind(test.problem, test.inputs, test.outputs); }

Bits BitsOf(const TestCase& test, std::int64_t b) {
  const auto* out = reinterpret_cast<const std::uint16_t*>(test.outputs["out"].data);
  return {out + b * kRowElements, out + (b + 1) * kRowElements};
}

Bits OutputOf(TestCase& test, int threads = 0) {
  test.outputs.Poison();
  RunCpu(ArgsOf(test), threads);
  const auto* out = reinterpret_cast<const std::uint16_t*>(test.outputs["out"].data);
  return {out, out + test.outputs["out"].elements()};
}

bool IsZero(const Bits& bits) {
  return std::all_of(bits.begin(), bits.end(), [](std::uint16_t x) { return (x & 0x7FFF) == 0; });
}

// K and V of a token of row b, [2, 256] each.
bf16* TokenOf(TestCase& test, const char* cache, std::int64_t b, std::int64_t token) {
  const Args args = ArgsOf(test);
  const std::int64_t page = args.page_table[b * args.table_width + token / kPageTokens];
  return test.inputs[cache].as<bf16>() +
         (page * kPageTokens + token % kPageTokens) * kTokenElements;
}

std::int32_t* ListOf(TestCase& test, std::int64_t b = 0) {
  return test.inputs["block_ids"].as<std::int32_t>() + b * kTopK;
}

// --- captured batches ---

// The captured single rows and a quarter of the larger batches at their original addresses, where
// pages without a selected token take no memory; every sixteenth with all pages and their poison.
// (`assay run` does all 192 with poison.)
TEST(QsaSparse, CapturedBatches) {
  std::size_t number = 0;
  for (const Workload& workload : Captured("qsa_sparse")) {
    ++number;
    const bool poisoned = number % 16 == 4;
    if (workload.axes.at("B") > 1 && number % 4 != 0) continue;
    if (kSanitized && number % 32 != 4) continue;
    TestCase test = MakeCaptured(workload, 7, poisoned ? "" : "original_address");
    const Verdict verdict = RunAndVerify(test, "cpu", /*full=*/false);
    ASSERT_TRUE(verdict.passed()) << workload.uuid << ": " << verdict.reason;
    EXPECT_EQ(verdict.correctness.outputs[0].grade, "strict") << workload.uuid;
  }
  EXPECT_EQ(number, 192u);
}

TEST(QsaSparse, BytesOfCapturedBatches) {
  const auto megabytes = [](const char* request, std::int64_t step) {
    for (const Workload& workload : Captured("qsa_sparse")) {
      if (workload.request != request || Int(workload, "step") != step) continue;
      TestCase test = MakeCaptured(workload, 7, "original_address");
      return TheFamily().cost(test.problem, test.inputs).bytes * 1e-6;
    }
    ADD_FAILURE() << "no record " << request;
    return 0.0;
  };
  EXPECT_NEAR(megabytes("qwen_next_short_request", 0), 0.29, 0.005);
  EXPECT_NEAR(megabytes("qwen_next_cold_main", 0), 4.22, 0.005);
  EXPECT_NEAR(megabytes("qwen_next_256k_context_p99", 0), 4.24, 0.005);
  EXPECT_NEAR(megabytes("qwen_next_overlap_p100", 0), 97.1, 0.05);
  TestCase one = MakeCase({2945});
  EXPECT_EQ(TheFamily().cost(one.problem, one.inputs).flops, 24576.0 * 2049);
}

TEST(QsaSparse, OtherBatchSizes) {
  for (std::int64_t rows : {2, 3, 7, 24, 33}) {
    if (kSanitized && rows > 3) break;
    List lengths;
    for (std::int64_t b = 0; b < rows; ++b) lengths.push_back(500 + 700 * (b % 5) + b);
    TestCase test = MakeCase(lengths);
    ExpectGrade(test, "strict", std::to_string(rows) + " rows");
  }
}

TEST(QsaSparse, EveryVariant) {
  for (const std::string& variant : TheFamily().variants) {
    TestCase test = MakeCase({9003, 2945, 130, 5000, 7}, variant, 3);
    ExpectGrade(test, "strict", variant);
  }
}

// At least 99.9 % of the elements are within one unit in the last place or 1e-3.
TEST(QsaSparse, MostElementsAreRightToTheLastPlace) {
  TestCase test = MakeCase({9003, 2945, 33025});
  OutputOf(test);
  const RowLists rows = AllRows(test);
  const auto expected =
      TheFamily().reference(test.problem, test.inputs, rows, SumOrder::kForward)[0].value;
  std::int64_t off = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double got = ToFloat(test.outputs["out"].as<bf16>()[i]);
    const double error = std::abs(got - ToFloat(ToBF16(expected[i])));
    off += error > std::max(UlpBF16(expected[i]), 1e-3);
  }
  EXPECT_LE(off, static_cast<std::int64_t>(expected.size() / 1000));
  double largest = 0;
  for (double x : expected) largest = std::max(largest, std::abs(x));
  EXPECT_GT(largest, 2) << "outputs reach the captured magnitudes";
  EXPECT_LT(largest, 24);
}

TEST(QsaSparse, EveryLeaf) {
  for (const Leaf* leaf : RunnableLeaves()) {
    for (const char* variant : {"clustered", "shuffled", "dominant", "beyond_length"}) {
      TestCase test = MakeCase({5003, 133, 64, 2}, variant, 5);
      test.outputs.Poison();
      RunWith(*leaf, ArgsOf(test), 0);
      const Verdict verdict = VerifyFully(test);
      EXPECT_TRUE(verdict.passed()) << leaf->name << " " << variant << ": " << verdict.reason;
    }
  }
}

// --- edges ---

TEST(QsaSparse, LengthsAroundBorders) {
  TestCase test = MakeCase({0,  1,  2,  3,  4,   5,    15,   16,   17,   31,   32,   33,   63,  64,
                            65, 66, 67, 68, 127, 2047, 2048, 2049, 2051, 2052, 2055, 2056, 4095},
                           "clustered", 2, {2, 3});
  ExpectGrade(test, "strict", "lengths");
  EXPECT_TRUE(IsZero(BitsOf(test, 0))) << "an empty row is zero";
}

TEST(QsaSparse, EmptyBatch) {
  TestCase none = MakeCase({});
  ExpectGrade(none, "strict", "B = 0");
  TestCase empty = MakeCase({0, 0});
  EXPECT_EQ(empty.problem.axis("MP"), 0);
  ExpectGrade(empty, "strict", "MP = 0");
}

// Without a tail the newest token may be left out; it is then poison.
TEST(QsaSparse, NewestTokenMayBeUnselected) {
  TestCase test = MakeCase({4096});
  std::int32_t* list = ListOf(test);
  std::int32_t* last = std::find(list, list + kTopK, 1023);
  ASSERT_NE(last, list + kTopK);
  *last = -1;
  std::fill_n(TokenOf(test, "k_cache", 0, 4095), kTokenElements, kNaN);
  ExpectGrade(test, "strict", "token 4095 unselected");
}

TEST(QsaSparse, NothingListed) {
  TestCase tail = MakeCase({4099}), none = MakeCase({4096});
  for (TestCase* test : {&tail, &none}) std::fill_n(ListOf(*test), kTopK, -1);
  ExpectGrade(tail, "strict", "tail only");
  EXPECT_FALSE(IsZero(BitsOf(tail, 0)));
  ExpectGrade(none, "strict", "nothing");
  EXPECT_TRUE(IsZero(BitsOf(none, 0)));
}

TEST(QsaSparse, LeadingHoles) {
  for (std::int64_t holes : {16, 32, 64, 511}) {
    TestCase test = MakeCase({6003, 2945});
    for (std::int64_t b : {0, 1}) std::fill_n(ListOf(test, b), holes, -1);
    ExpectGrade(test, "strict", std::to_string(holes) + " holes");
  }
}

// Ids that reach behind the end are masked token by token; the incomplete group counts once,
// whether it is listed or not.
TEST(QsaSparse, ListedGroupsBehindTheEnd) {
  TestCase plain = MakeCase({1001}), listed = MakeCase({1001});
  std::int32_t* list = ListOf(listed);
  ASSERT_EQ(list[250], -1);
  list[250] = 250;  // token 1000 alone
  list[251] = 252;
  list[252] = 255;
  ExpectGrade(listed, "strict", "groups behind the end");
  EXPECT_EQ(BitsOf(listed, 0), (OutputOf(plain), BitsOf(plain, 0)));
}

TEST(QsaSparse, OrderOfTheListDoesNotMatter) {
  TestCase test = MakeCase({9003});
  const Bits ascending = OutputOf(test);
  std::int32_t* list = ListOf(test);
  std::reverse(list, list + kTopK);
  std::swap(list[3], list[400]);
  const Bits shuffled = OutputOf(test);
  for (std::size_t i = 0; i < ascending.size(); ++i) {
    const double x = ToFloat(bf16{ascending[i]}), y = ToFloat(bf16{shuffled[i]});
    EXPECT_LE(std::abs(x - y), 2 * UlpBF16(x) + 1e-3) << i;
  }
  ExpectGrade(test, "strict", "descending");
}

TEST(QsaSparse, ListConventionsAgree) {
  const List lengths = {9003, 2945, 131, 4096, 3};
  TestCase blocks = MakeCase(lengths), tokens = MakeCase(lengths, "token_ids");
  EXPECT_TRUE(tokens.inputs.has("token_ids") && !tokens.inputs.has("block_ids"));
  EXPECT_EQ(OutputOf(tokens), OutputOf(blocks));
  // A token id at the end of the row or behind it is left out, and nothing is added.
  auto* list = tokens.inputs["token_ids"].as<std::int32_t>() + 2 * kMostTokens;
  ASSERT_EQ(list[130], 130);
  list[130] = 131;
  list[131] = 180;
  ExpectGrade(tokens, "strict", "token 130 missing");
}

TEST(QsaSparse, SharedPages) {
  const List lengths = {16001, 300, 8005};
  std::int64_t pages = -40;
  for (std::int64_t length : lengths) pages += PagesOfTokens(length);
  TestCase test =
      MakeTestCase(TheFamily(), kDefinition, {{"B", 3}, {"MP", 251}, {"NP", pages}, {"P", 64}}, 4,
                   "", {{"sequence_lengths", lengths}});
  const auto* table = test.inputs["page_table"].as<std::int32_t>();
  EXPECT_TRUE(std::equal(table, table + 40, table + 2 * 251));
  ExpectGrade(test, "strict", "shared prefix");
}

TEST(QsaSparse, TailsOfTheTableAreNeverUsed) {
  TestCase test = MakeCase({4001, 130, 65}, "clustered", 6, {40, 5});
  const Bits wanted = OutputOf(test);
  const std::int64_t width = test.problem.axis("MP");
  auto* table = test.inputs["page_table"].as<std::int32_t>();
  for (std::int32_t garbage : {-1, 0, std::numeric_limits<std::int32_t>::max(), 7}) {
    const std::int64_t live[] = {63, 3, 2};
    for (std::int64_t b = 0; b < 3; ++b) {
      std::fill(table + b * width + live[b], table + (b + 1) * width, garbage);
    }
    EXPECT_EQ(OutputOf(test), wanted) << garbage;
  }
  TestCase wide = MakeCase({4001, 130, 65}, "clustered", 6, {262144, 5});
  EXPECT_EQ(OutputOf(wide), wanted);
}

// Every slot outside of the attended set holds NaN keys and infinite values already; here they
// change, and the result must not.
TEST(QsaSparse, UnselectedSlotsHaveNoEffect) {
  TestCase test = MakeCase({9003, 2945}, "clustered", 7, {0, 3});
  const Bits wanted = OutputOf(test);
  std::int64_t poisoned = 0;
  for (const char* name : {"k_cache", "v_cache"}) {
    Tensor& cache = test.inputs[name];
    bf16* x = cache.as<bf16>();
    const bf16 old = std::strcmp(name, "k_cache") == 0 ? kNaN : kInf;
    for (std::int64_t at = 0; at < cache.elements(); at += kTokenElements) {
      if (!std::all_of(x + at, x + at + kTokenElements, [&](bf16 e) { return e == old; })) continue;
      std::fill_n(x + at, kTokenElements, ToBF16(100.0f));
      ++poisoned;
    }
  }
  const std::int64_t slots = test.problem.axis("NP") * kPageTokens;
  EXPECT_EQ(poisoned, 2 * (slots - 2051 - 2049));
  EXPECT_EQ(OutputOf(test), wanted);
}

TEST(QsaSparse, InfinityInASelectedValueStaysInItsHeads) {
  TestCase test = MakeCase({2945, 2946});
  const Bits clean = OutputOf(test);
  const std::int64_t token = 4 * ListOf(test, 1)[100] + 2;
  TokenOf(test, "v_cache", 1, token)[kHeadSize + 17] = kInf;  // KV head 1
  const Bits got = OutputOf(test);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::size_t row = i / (24 * 256), head = i / 256 % 24;
    if (row == 1 && head >= 12) {
      EXPECT_TRUE(i % 256 != 17 || !std::isfinite(ToFloat(bf16{got[i]}))) << head;
    } else {
      ASSERT_EQ(got[i], clean[i]) << row << " " << head;
    }
  }
}

TEST(QsaSparse, NanInASelectedKeyReachesTheWholeRow) {
  TestCase test = MakeCase({2945});
  TokenOf(test, "k_cache", 0, 4 * ListOf(test)[300])[5] = kNaN;  // KV head 0
  ExpectGrade(test, "strict", "NaN in K");
  const Bits got = BitsOf(test, 0);
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(std::isnan(ToFloat(bf16{got[i]})), i / 256 < 12) << i;
  }
}

// A needle far out: one dominant key, whose value must come back.
TEST(QsaSparse, NeedlesInLongContexts) {
  for (std::int64_t length : {120'000, 190'000, 210'001, 262'150}) {
    TestCase test = MakeCase({length}, "original_address");
    const std::int64_t token = 4 * ListOf(test)[500] + 1;
    EXPECT_GT(token, length / 2);
    bf16* k = TokenOf(test, "k_cache", 0, token);
    bf16* v = TokenOf(test, "v_cache", 0, token);
    const bf16* q = test.inputs["q"].as<bf16>() + 3 * kHeadSize;  // head 3 looks for it
    for (std::int64_t d = 0; d < kHeadSize; ++d) k[d] = ToBF16(4 * ToFloat(q[d]));
    std::fill_n(v, kHeadSize, ToBF16(100.0f));
    ExpectGrade(test, "strict", std::to_string(length));
    EXPECT_NEAR(ToFloat(test.outputs["out"].as<bf16>()[3 * kHeadSize + 9]), 100, 0.5);
  }
}

TEST(QsaSparse, DominantAndEqualScores) {
  TestCase dominant = MakeCase({9003}, "dominant");
  ExpectGrade(dominant, "strict", "scores near 1e3");
  // All scores equal and V constant: the mean is that constant.
  TestCase equal = MakeCase({2052}, "equal_scores");
  for (std::int64_t t = 0; t < 2052; ++t) {
    std::fill_n(TokenOf(equal, "v_cache", 0, t), kTokenElements, ToBF16(1.5f));
  }
  OutputOf(equal);
  for (std::uint16_t x : BitsOf(equal, 0)) EXPECT_EQ(ToFloat(bf16{x}), 1.5f);
}

TEST(QsaSparse, ScaleIsAnArgument) {
  TestCase test = MakeCase({2945}), other = MakeCase({2945}, "other_scale");
  ExpectGrade(other, "strict", "scale 0.05");
  EXPECT_NE(OutputOf(test), OutputOf(other));
  Args args = ArgsOf(test);
  args.scale = 0.0625f;
  const Bits wanted = OutputOf(test);
  RunCpu(args, 0);
  EXPECT_EQ(BitsOf(test, 0), wanted);
}

TEST(QsaSparse, LogSumExpOnRequest) {
  TestCase test = MakeCase({2945, 0});
  std::vector<float> lse(48, 7);
  Args args = ArgsOf(test);
  args.lse = lse.data();
  RunCpu(args, 0);
  for (std::int64_t h = 0; h < kHeads; ++h) {
    double largest = -1e9, sum = 0;
    std::vector<double> scores;
    for (std::int64_t token : AttendedTokens(args, 0)) {
      const bf16* k = TokenOf(test, "k_cache", 0, token) + h / 12 * kHeadSize;
      double dot = 0;
      for (std::int64_t d = 0; d < kHeadSize; ++d) {
        dot += static_cast<double>(ToFloat(args.q[h * kHeadSize + d])) * ToFloat(k[d]);
      }
      scores.push_back(dot / 16);
      largest = std::max(largest, dot / 16);
    }
    for (double score : scores) sum += std::exp(score - largest);
    EXPECT_NEAR(lse[static_cast<std::size_t>(h)], largest + std::log(sum), 1e-4) << h;
    EXPECT_EQ(lse[static_cast<std::size_t>(24 + h)], -std::numeric_limits<float>::infinity());
  }
}

TEST(QsaSparse, ThreadsNeighboursAndPlacesDoNotMatter) {
  const List lengths = {9003, 2945, 131, 40000};
  TestCase test = MakeCase(lengths);
  const Bits wanted = OutputOf(test, 1);
  for (int threads : {2, 3, 16}) EXPECT_EQ(OutputOf(test, threads), wanted) << threads;
  for (std::int64_t b = 0; b < 4; ++b) {
    std::vector<bf16> alone(static_cast<std::size_t>(kRowElements));
    Args args = ArgsOf(test);
    args.batch = 1;
    args.q += b * kRowElements;
    args.page_table += b * args.table_width;
    args.seq_lens += b;
    args.block_ids += b * kTopK;
    args.out = alone.data();
    RunCpu(args, 1);
    EXPECT_EQ(std::memcmp(alone.data(), wanted.data() + b * kRowElements, 2 * kRowElements), 0)
        << b;
  }
  TestCase original = MakeCase(lengths, "original_address");
  EXPECT_EQ(OutputOf(original), wanted) << "same content at other addresses";
}

// A second call with other lengths, lists and pages owes nothing to the first.
TEST(QsaSparse, NothingIsRememberedBetweenCalls) {
  TestCase test = MakeCase({9003}), other = MakeCase({9003}, "uniform", 8);
  const Bits wanted = OutputOf(other);
  OutputOf(test);
  for (const Tensor& tensor : other.inputs.tensors()) {
    std::memcpy(test.inputs[tensor.name].data, tensor.data, tensor.bytes());
  }
  EXPECT_EQ(OutputOf(test), wanted);
}

// --- addresses ---

TEST(QsaSparse, OriginalAddressesPass32Bits) {
  const List lengths = {40003};
  TestCase test = MakeCase(lengths, "original_address");
  EXPECT_EQ(test.inputs["k_cache"].shape, (Shape{83743, 64, 2, 256}));
  const auto* table = test.inputs["page_table"].as<std::int32_t>();
  const std::set<std::int32_t> used(table, table + test.inputs["page_table"].elements());
  EXPECT_THAT(used, ::testing::IsSupersetOf({65535, 65536, 83742}));
  ExpectGrade(test, "strict", "11 GB of pools");
  EXPECT_LT(TheFamily().resident_bytes(test.problem), 70u << 20);
  EXPECT_EQ(ExpectMutantsKilled(test), 2);
}

// A larger page stride; what lies between the pages is never read.
TEST(QsaSparse, PaddedPages) {
  TestCase test = MakeCase({3001});
  const Bits wanted = OutputOf(test);
  const std::int64_t pages = test.problem.axis("NP"), stride = kPageBytes + 48;
  std::vector<std::byte> memory(static_cast<std::size_t>(2 * pages * stride + 16), std::byte{0xFF});
  std::byte* start = memory.data();
  start += (16 - reinterpret_cast<std::uintptr_t>(start) % 16) % 16;
  Args args = ArgsOf(test);
  for (std::int64_t page = 0; page < pages; ++page) {
    std::memcpy(start + page * stride, args.k_cache + page * kPageBytes / 2, kPageBytes);
    std::memcpy(start + (pages + page) * stride, args.v_cache + page * kPageBytes / 2, kPageBytes);
  }
  args.k_cache = reinterpret_cast<const bf16*>(start);
  args.v_cache = reinterpret_cast<const bf16*>(start + pages * stride);
  args.page_stride_bytes = stride;
  test.outputs.Poison();
  RunCpu(args, 0);
  EXPECT_EQ(BitsOf(test, 0), wanted);
}

// Caches between pages that cannot be touched: a -1 taken for an address would fault.
TEST(QsaSparse, GuardPagesAroundTheCaches) {
  TestCase test = MakeCase({64 * 45});
  std::fill_n(ListOf(test), 5, -1);
  const Bits wanted = OutputOf(test);
  Args args = ArgsOf(test);
  const Guarded keys(test.inputs["k_cache"]), values(test.inputs["v_cache"]);
  args.k_cache = keys.as<bf16>();
  args.v_cache = values.as<bf16>();
  test.outputs.Poison();
  RunCpu(args, 0);
  EXPECT_EQ(BitsOf(test, 0), wanted);
}

// --- verification ---

TEST(QsaSparseChecks, MutantsAreRejected) {
  for (const char* request :
       {"qwen_next_short_request", "qwen_next_cold_main", "qwen_next_overlap_p50"}) {
    for (const Workload& workload : Captured("qsa_sparse")) {
      if (workload.request != request || Int(workload, "step") != 0) continue;
      for (const char* variant : {"clustered", "shuffled", "beyond_length", "original_address"}) {
        TestCase test = MakeCaptured(workload, 7, variant);
        ExpectMutantsKilled(test);
      }
    }
  }
}

// --- refusals ---

TEST(QsaSparseRefusals, Axes) {
  const auto make = [](const Axes& axes, const List& lengths) {
    return ErrorOf([&] {
      MakeProblem(TheFamily(), kDefinition, axes, {{"sequence_lengths", lengths}});
    });
  };
  EXPECT_EQ(make({{"B", 1}, {"MP", 4}, {"NP", 4}, {"P", 64}}, {256}), "no error");
  EXPECT_THAT(make({{"B", 1}, {"MP", 4}, {"NP", 4}, {"P", 16}}, {256}),
              HasSubstr("axis P = 16, but a page holds 64 tokens"));
  EXPECT_THAT(make({{"B", 1}, {"MP", 3}, {"NP", 4}, {"P", 64}}, {256}),
              HasSubstr("sequence_lengths[0] = 256 needs 4 pages, but the page table has MP = 3"));
}

TEST(QsaSparseRefusals, Contents) {
  TestCase test = MakeCase({300, 9000});
  const auto validate = [&] {
    return ErrorOf([&] { TheFamily().validate_inputs(test.problem, test.inputs); });
  };
  const auto with = [&](std::int32_t& place, std::int32_t value) {
    const std::int32_t kept = place;
    place = value;
    const std::string error = validate();
    place = kept;
    return error;
  };
  EXPECT_EQ(validate(), "no error");
  auto* lengths = test.inputs["seq_lens"].as<std::int32_t>();
  EXPECT_THAT(with(lengths[1], -4), HasSubstr("seq_lens[1] = -4 is negative"));
  EXPECT_THAT(with(lengths[1], 9100),
              HasSubstr("seq_lens[1] = 9100, but the page table covers 141 pages of 64 tokens"));
  auto* table = test.inputs["page_table"].as<std::int32_t>();
  EXPECT_THAT(with(table[3], -1), HasSubstr("page_table[0,3] = -1 is outside the cache of 146"));
  EXPECT_THAT(with(table[281], 146), HasSubstr("page_table[1,140] = 146 is outside"));
  std::int32_t* list = ListOf(test, 1);
  EXPECT_THAT(with(list[7], 141 * 16),
              HasSubstr("block_ids[1,7] = 2256 lies behind the page table of 141 pages"));
  EXPECT_THAT(with(list[7], list[9]), HasSubstr("is listed twice"));
  EXPECT_THAT(with(list[7], -2), HasSubstr("block_ids[1,7] = -2 is negative, but not -1"));
  EXPECT_EQ(with(list[7], 141 * 16 - 1), "no error") << "behind the end, inside the table";

  TestCase tokens = MakeCase({300, 9000}, "token_ids");
  auto* ids = tokens.inputs["token_ids"].as<std::int32_t>();
  ids[4] = 141 * 64;
  EXPECT_THAT(ErrorOf([&] { TheFamily().validate_inputs(tokens.problem, tokens.inputs); }),
              HasSubstr("token_ids[0,4] = 9024 lies behind the page table"));
}

TEST(QsaSparseRefusals, Tensors) {
  TestCase test = MakeCase({300, 9000});
  const auto with = [&](const TensorLayout& changed, const std::string& dropped = "") {
    return ErrorOfLayout(TheFamily(), test.problem, changed, dropped);
  };
  EXPECT_THAT(with({"q", DType::kBF16, {2, 32, 256}}),
              HasSubstr("input 'q' is bfloat16[2,32,256], expected bfloat16[2,24,256]"));
  EXPECT_THAT(with({"k_cache", DType::kBF16, {146, 16, 2, 256}}), HasSubstr("pages of 64 tokens"));
  EXPECT_THAT(with({"v_cache", DType::kE4M3, {146, 64, 2, 256}}),
              HasSubstr("an FP8 cache is another definition"));
  EXPECT_THAT(with({"v_cache", DType::kBF16, {146, 64, 4, 256}}),
              HasSubstr("expected bfloat16[NP,64,2,256]"));
  EXPECT_THAT(with({"v_cache", DType::kBF16, {145, 64, 2, 256}}),
              HasSubstr("k_cache has 146 pages, v_cache has 145"));
  EXPECT_THAT(with({"seq_lens", DType::kI64, {2}}), HasSubstr("'seq_lens' is int64[2]"));
  EXPECT_THAT(with({"block_ids", DType::kI32, {2, 256}}), HasSubstr("'block_ids' is int32[2,256]"));
  EXPECT_THAT(with({"token_ids", DType::kI32, {2, 2051}}), HasSubstr("not both"));
  EXPECT_THAT(with({}, "block_ids"), HasSubstr("not none"));
  EXPECT_THAT(with({}, "page_table"), HasSubstr("input 'page_table' is missing"));
}

TEST(QsaSparseRefusals, Calls) {
  TestCase test = MakeCase({300});
  const auto run = [&](const std::function<void(Args&)>& change) {
    Args args = ArgsOf(test);
    change(args);
    return ErrorOf([&] { RunCpu(args, 0); });
  };
  EXPECT_THAT(run([](Args& a) { a.k_cache += 4; }), HasSubstr("k_cache is not aligned to 16"));
  EXPECT_THAT(run([](Args& a) { a.v_cache += 4; }), HasSubstr("v_cache is not aligned to 16"));
  EXPECT_THAT(run([](Args& a) { a.page_stride_bytes = 65520; }), HasSubstr("stride of 65520"));
  EXPECT_THAT(run([](Args& a) { a.page_stride_bytes = 65544; }), HasSubstr("stride of 65544"));
  EXPECT_THAT(run([](Args& a) { a.token_ids = a.block_ids; }), HasSubstr("not both"));
  EXPECT_EQ(run([](Args&) {}), "no error");
}

// Frozen bits: they must never change, or seeds stop meaning the same content.
TEST(QsaSparseContent, SameBitsOnEveryMachine) {
  TestCase test = MakeCase({3001, 70}, "clustered", 0x0123456789ABCDEF);
  EXPECT_EQ(HashOf(test.inputs), 1203933324078071263u);
}

// Runs of neighbouring groups, as many as the index operator's own selections have.
TEST(QsaSparseContent, SelectionsAreClustered) {
  const auto runs = [](const std::int32_t* ids) {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < kTopK; ++i) count += i == 0 || ids[i] != ids[i - 1] + 1;
    return count;
  };
  for (std::int64_t length : {4756, 14849, 64001}) {
    TestCase test = MakeCase({length}, "original_address");
    const Family index_family = qsa_index_topk_decode::MakeFamily();
    const std::int64_t pages = qsa_index_topk_decode::PagesOfTokens(length);
    TestCase index = MakeTestCase(index_family, index_family.definitions[0].name,
                                  {{"B", 1}, {"MP", pages}, {"NP", pages}, {"P", 16}}, 7, "",
                                  {{"sequence_lengths", List{length}}});
    index_family.backends[0].run(index.problem, index.inputs, index.outputs, {});
    const std::int64_t ours = runs(ListOf(test));
    const std::int64_t theirs = runs(index.outputs["block_ids"].as<std::int32_t>());
    EXPECT_LT(ours, 2 * theirs) << length;
    EXPECT_GT(2 * ours, theirs) << length;
    EXPECT_EQ(ListOf(test)[0], 0);
    EXPECT_EQ(ListOf(test)[511], length / 4 - 1);
  }
}

}  // namespace
}  // namespace assay::qsa_sparse_gqa_decode
