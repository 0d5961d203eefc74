// Tests of the mixed_mla_decode room: captured structure, decoding inside the operator, edge
// semantics of the page, refusals, verdicts of mutants.
#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "ops/mixed_mla_decode/batch.h"
#include "ops/mixed_mla_decode/lists.h"
#include "ops/mixed_mla_decode/spec.h"
#include "ops/mla/testing.h"
#include "ops/registry.h"
#include "replay/room_test.h"
#include "replay/suite.h"
#include "replay/test_memory.h"

namespace assay::mixed_mla_decode {
namespace {

using mla::LargestDifference;
using ::testing::HasSubstr;
using List = std::vector<std::int64_t>;

constexpr const char* kDefinition = "mixed_mla_decode_deepseek41_h64_d512_k8128_k4512";
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kRow = kHeads * kDim;  // elements of one query row

const Family& TheFamily() {
  static const Family family = MakeFamily();
  return family;
}

TestCase MakeCase(std::int64_t b, std::int64_t n8, std::int64_t n4, const std::string& variant = "",
                  const List& sequences = {}, std::uint64_t key = 7) {
  Attributes attributes;
  if (!sequences.empty()) attributes["sequence_lengths"] = sequences;
  return MakeTestCase(TheFamily(), kDefinition, {{"B", b}, {"N8", n8}, {"N4", n4}}, key, variant,
                      attributes);
}

// One row of a long request.
TestCase MakeLong(const std::string& variant = "") {
  return MakeCase(1, 1, 277, variant, {142017});
}

Args ArgsOf(TestCase& test) { return Bind(test.problem, test.inputs, test.outputs); }

std::vector<bf16> OutputOf(const Args& args) {
  Args call = args;
  std::vector<bf16> out(static_cast<std::size_t>(args.b * kRow + 8), bf16{0x7FFF});
  call.out = out.data();
  RunCpu(call, 0);
  out.resize(static_cast<std::size_t>(args.b * kRow));
  return out;
}
std::vector<bf16> OutputOf(TestCase& test) { return OutputOf(ArgsOf(test)); }

std::int32_t* WindowOf(TestCase& test, std::int64_t row) {
  return test.inputs["indices"].as<std::int32_t>() + row * kWindow;
}
std::int32_t* ExtraOf(TestCase& test, std::int64_t row) {
  return test.inputs["extra_indices"].as<std::int32_t>() + row * kExtra;
}

// --- the captured records ---

const std::vector<Workload>& CapturedRecords() {
  static const std::vector<Workload> records = [] {
    std::vector<Workload> found = LoadSuite(SuitePath("serving"), Registry({})).workloads;
    std::erase_if(found, [](const Workload& w) { return w.definition != kDefinition; });
    return found;
  }();
  return records;
}

const List& ListOf(const Workload& record, const char* name) {
  return std::get<List>(record.attributes.at(name));
}

std::int64_t StepOf(const Workload& record) {
  return std::get<std::int64_t>(record.attributes.at("step"));
}

TEST(MixedMlaDecode, CapturedIdentities) {
  ASSERT_EQ(CapturedRecords().size(), 42u);
  for (const Workload& record : CapturedRecords()) {
    SCOPED_TRACE(record.request + ", step " + std::to_string(StepOf(record)));
    const List& sequences = ListOf(record, "sequence_lengths");
    const std::int64_t b = record.axes.at("B"), n4 = record.axes.at("N4");
    std::int64_t window_pages = 0, compressed_pages = 0;
    for (std::int64_t sequence : sequences) {
      window_pages += (sequence - 1) / 256 - std::max<std::int64_t>(sequence - 128, 0) / 256 + 1;
      compressed_pages += (sequence / 2 + 127) / 128;
    }
    EXPECT_EQ(record.axes.at("N8"), window_pages);
    EXPECT_EQ(b, static_cast<std::int64_t>(sequences.size()));
    EXPECT_LE(n4, std::min(512 * b, compressed_pages));
    if (record.request.ends_with("short_request") || record.request.ends_with("cold_main")) {
      EXPECT_EQ(n4, compressed_pages);
    }
    EXPECT_EQ(record.axes.at("P8"), 256);
    EXPECT_EQ(record.axes.at("P4"), 128);
    EXPECT_EQ(ListOf(record, "allocated_cache_8"), (List{234, 256, 1, 528}));
    EXPECT_EQ(ListOf(record, "allocated_cache_4"), (List{422126, 128, 1, 288}));
  }
}

TEST(MixedMlaDecode, CapturedStepsAndMembers) {
  for (const Workload& record : CapturedRecords()) {
    SCOPED_TRACE(record.request + ", step " + std::to_string(StepOf(record)));
    const List& sequences = ListOf(record, "sequence_lengths");
    const List& input = ListOf(record, "member_input_tokens");
    const List& output = ListOf(record, "member_output_tokens");
    List expected;
    for (std::size_t m = 0; m < input.size(); ++m) {
      const bool alive = output[m] - 1 > StepOf(record);
      if (input.size() == 1 || alive) expected.push_back(input[m] + 1 + StepOf(record));
    }
    EXPECT_EQ(sequences, expected);
    if (input.size() > 1) continue;
    const std::int64_t last = output[0] - 2;
    EXPECT_EQ(ListOf(record, "capture_decode_steps"), (List{0, 1, 2, 3, last / 2, last}));
  }
}

TEST(MixedMlaDecode, EveryCapturedAxisSetMatchesTheReference) {
  for (const Workload& record : CapturedRecords()) {
    TestCase test =
        MakeTestCase(TheFamily(), record.definition, record.axes, 7, "", record.attributes);
    ExpectGrade(test, "strict", record.uuid, /*full=*/false);
  }
}

TEST(MixedMlaDecode, OtherBatchSizes) {
  for (std::int64_t b : {1, 2, 3, 4, 7, 32}) {
    if (kSanitized && b > 4) continue;
    TestCase any = MakeCase(b, 3, 9);
    ExpectGrade(any, "strict", "B = " + std::to_string(b), /*full=*/false);
  }
}

// --- the generator ---

// Positions of the tokens that a list has, by the pages of the batch.
TEST(MixedMlaDecode, ListsHaveTheCapturedStructure) {
  for (const Workload& record : CapturedRecords()) {
    TestCase test =
        MakeTestCase(TheFamily(), record.definition, record.axes, 5, "", record.attributes);
    const List& sequences = ListOf(record, "sequence_lengths");
    std::set<std::int64_t> pages8, pages4;
    for (std::size_t b = 0; b < sequences.size(); ++b) {
      const std::int64_t sequence = sequences[b], window = std::min<std::int64_t>(sequence, 128);
      const auto row = static_cast<std::int64_t>(b);
      const std::int32_t* list = WindowOf(test, row);
      ASSERT_EQ(test.inputs["topk_length"].as<std::int32_t>()[b], window);
      for (std::int64_t j = 0; j < window; ++j) {
        ASSERT_EQ(list[j] % 256, (sequence - 1 - j) % 256) << "newest first";
        pages8.insert(list[j] / 256);
      }
      const std::int64_t picks = std::min<std::int64_t>(sequence / 2, 512);
      const std::int32_t* extra = ExtraOf(test, row);
      ASSERT_EQ(test.inputs["extra_topk_length"].as<std::int32_t>()[b], picks);
      std::set<std::int32_t> distinct(extra, extra + picks);
      ASSERT_EQ(static_cast<std::int64_t>(distinct.size()), picks);
      for (std::int64_t j = 0; j < picks; ++j) pages4.insert(extra[j] / 128);
      for (std::int64_t j = window; j < 128; ++j) ASSERT_EQ(list[j], -1);
      for (std::int64_t j = picks; j < 512; ++j) ASSERT_EQ(extra[j], -1);
    }
    EXPECT_EQ(static_cast<std::int64_t>(pages8.size()), record.axes.at("N8"));
    EXPECT_EQ(static_cast<std::int64_t>(pages4.size()), record.axes.at("N4"));
  }
}

TEST(MixedMlaDecode, PicksAscendAndAllAreTakenWhenFew) {
  const Problem problem = MakeProblem(TheFamily(), kDefinition, {{"B", 2}, {"N8", 3}, {"N4", 300}},
                                      {{"sequence_lengths", List{90000, 770}}});
  const Batch batch = BatchOf(problem, 3);
  const std::vector<std::int64_t> some = Picks(batch.rows[0], 0, 3),
                                  all = Picks(batch.rows[1], 1, 3);
  EXPECT_TRUE(std::is_sorted(some.begin(), some.end()));
  EXPECT_EQ(some.size(), 512u);
  ASSERT_EQ(all.size(), 385u);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<std::int64_t>(i));
}

// The three captured overlapping requests share their first 134 pages.
TEST(MixedMlaDecode, RowsSharePrefixPages) {
  for (const Workload& record : CapturedRecords()) {
    if (record.axes.at("B") != 3) continue;
    const Problem problem =
        MakeProblem(TheFamily(), record.definition, record.axes, record.attributes);
    const Batch batch = BatchOf(problem, 1);
    const auto& a = batch.rows[0].compressed_pages.number;
    const auto& c = batch.rows[2].compressed_pages.number;
    for (std::size_t p = 0; p < 134; ++p) EXPECT_EQ(a[p], c[p]) << p;
    for (std::size_t p = 135; p < 137; ++p) EXPECT_TRUE(a[p] != c[p] || a[p] < 0) << p;
  }
}

TEST(MixedMlaDecode, OutputsAreLargeEnoughToJudge) {
  TestCase test = MakeLong();
  double squares = 0;
  for (bf16 x : OutputOf(test)) squares += std::pow(ToFloat(x), 2);
  EXPECT_GE(std::sqrt(squares / kRow), 0.1);
}

// Frozen bits: they must never change, or seeds stop meaning the same content.
TEST(MixedMlaDecode, SameBitsOnEveryMachine) {
  TestCase test = MakeCase(2, 3, 30, "poison", {4000, 9000}, 0x0123456789ABCDEF);
  EXPECT_EQ(HashOf(test.inputs), 13225133508380764666u);
}

// --- pages ---

// One token of cache8 whose 16 groups have scales of their own, all tokens different.
void FillDistinct8(std::vector<std::uint8_t>& cache, std::int64_t pages) {
  for (std::int64_t t = 0; t < pages * 256; ++t) {
    std::uint8_t* page = cache.data() + t / 256 * kPageBytes8;
    for (std::int64_t d = 0; d < 512; ++d) {
      page[t % 256 * 512 + d] = static_cast<std::uint8_t>((t * 31 + d * 7) % 126 + (d % 2) * 128);
    }
    for (std::int64_t g = 0; g < 16; ++g) {
      page[256 * 512 + t % 256 * 16 + g] = static_cast<std::uint8_t>(100 + (t * 5 + g * 3) % 50);
    }
  }
}
void FillDistinct4(std::vector<std::uint8_t>& cache, std::int64_t pages) {
  for (std::int64_t t = 0; t < pages * 128; ++t) {
    std::uint8_t* page = cache.data() + t / 128 * kPageBytes4;
    for (std::int64_t i = 0; i < 256; ++i) {
      page[t % 128 * 256 + i] = static_cast<std::uint8_t>(t * 31 + i * 7);
    }
    for (std::int64_t g = 0; g < 32; ++g) {
      page[128 * 256 + t % 128 * 32 + g] = static_cast<std::uint8_t>(1 + (t * 5 + g * 3) % 125);
    }
  }
}

// One key, no sink: the output is the key itself, for every token of every page.
TEST(MixedMlaDecode, OneKeyComesOutExactly) {
  constexpr std::int64_t kPages8 = 2, kPages4 = 3, kTokens = 512 + 384;
  std::vector<std::uint8_t> cache8(kPages8 * kPageBytes8), cache4(kPages4 * kPageBytes4);
  FillDistinct8(cache8, kPages8);
  FillDistinct4(cache4, kPages4);
  std::vector<std::int32_t> window(kTokens * kWindow, -1), extra(kTokens * kExtra, -1);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    if (t < 512) {
      window[static_cast<std::size_t>(t * kWindow + t % kWindow)] = static_cast<std::int32_t>(t);
    } else {
      extra[static_cast<std::size_t>(t * kExtra + t % kExtra)] = static_cast<std::int32_t>(t - 512);
    }
  }
  const std::vector<bf16> q(kTokens * kRow);  // zeros: a single key has weight 1 anyway
  Args args;
  args.b = kTokens;
  args.q = q.data();
  args.cache8 = {cache8.data(), kPages8, kPageBytes8};
  args.cache4 = {cache4.data(), kPages4, kPageBytes4};
  args.window.indices = window.data();
  args.extra.indices = extra.data();
  const std::vector<bf16> out = OutputOf(args);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t d = 0; d < kDim; ++d) {
      float expected = 0;
      if (t < 512) {
        const std::uint8_t* page = cache8.data() + t / 256 * kPageBytes8;
        expected = ToFloat(e4m3{page[t % 256 * 512 + d]}) *
                   ToFloat(ue8m0{page[131072 + t % 256 * 16 + d / 32]});
      } else {
        const std::int64_t u = t - 512;
        const std::uint8_t* page = cache4.data() + u / 128 * kPageBytes4;
        const unsigned byte = page[u % 128 * 256 + d / 2];
        expected = E2M1ToFloat(d % 2 == 0 ? byte % 16 : byte / 16) *
                   ToFloat(e4m3{page[32768 + u % 128 * 32 + d / 16]});
      }
      for (std::int64_t head : {0, 37, 63}) {
        ASSERT_EQ(ToFloat(out[static_cast<std::size_t>(t * kRow + head * kDim + d)]), expected)
            << "token " << t << ", dim " << d;
      }
    }
  }
}

// Pages of a padded cache lie further apart; the padding is poison.
TEST(MixedMlaDecode, PaddedPages) {
  TestCase test = MakeLong();
  Args args = ArgsOf(test);
  const std::vector<bf16> expected = OutputOf(args);
  const auto pad = [](const Cache& cache, std::int64_t page_bytes, std::int64_t stride) {
    std::vector<std::uint8_t> padded(static_cast<std::size_t>(cache.pages * stride), 0x7F);
    for (std::int64_t page = 0; page < cache.pages; ++page) {
      std::memcpy(padded.data() + page * stride, cache.bytes + page * page_bytes,
                  static_cast<std::size_t>(page_bytes));
    }
    return padded;
  };
  const std::int64_t stride8 = kPageBytes8 + 512, stride4 = kPageBytes4 + 16;
  const std::vector<std::uint8_t> cache8 = pad(args.cache8, kPageBytes8, stride8);
  const std::vector<std::uint8_t> cache4 = pad(args.cache4, kPageBytes4, stride4);
  args.cache8 = {cache8.data(), args.cache8.pages, stride8};
  args.cache4 = {cache4.data(), args.cache4.pages, stride4};
  EXPECT_EQ(OutputOf(args), expected);

  // The same through a bundle, whose padded caches are uint8[pages, stride].
  std::vector<TensorLayout> layouts = TheFamily().input_layouts(test.problem);
  for (TensorLayout& layout : layouts) {
    if (layout.name == "cache8") layout.shape = {args.cache8.pages, stride8};
    if (layout.name == "cache4") layout.shape = {args.cache4.pages, stride4};
  }
  Bundle inputs = Bundle::Allocate(layouts);
  for (Tensor& tensor : inputs.tensors()) {
    const std::byte* from = test.inputs[tensor.name].data;
    if (tensor.name == "cache8") from = reinterpret_cast<const std::byte*>(cache8.data());
    if (tensor.name == "cache4") from = reinterpret_cast<const std::byte*>(cache4.data());
    std::memcpy(tensor.data, from, tensor.bytes());
  }
  TheFamily().validate_inputs(test.problem, inputs);
  EXPECT_EQ(OutputOf(BindInputs(test.problem, inputs)), expected);
}

// The engine's pools: byte offsets pass 2^32. Same content at other addresses, in memory of holes.
TEST(MixedMlaDecode, OriginalAddresses) {
  for (const Workload& record : CapturedRecords()) {
    if (record.axes.at("B") == 1 && record.axes.at("N4") < 457) continue;
    const Problem problem = MakeProblem(TheFamily(), record.definition, record.axes,
                                        record.attributes, "original_address");
    TestCase compact =
        MakeTestCase(TheFamily(), record.definition, record.axes, 7, "", record.attributes);
    TestCase test{&TheFamily(), problem, {}, {}};
    test.inputs = Bundle::AllocateShared(TheFamily().input_layouts(problem));
    Generate(problem, 7, test.inputs);
    TheFamily().validate_inputs(problem, test.inputs);
    test.outputs = Bundle::Allocate(OutputLayouts(TheFamily(), problem));
    EXPECT_EQ(OutputOf(test), OutputOf(compact));
    std::int32_t largest = 0;
    for (std::int64_t b = 0; b < record.axes.at("B"); ++b) {
      largest = std::max(largest, *std::max_element(ExtraOf(test, b), ExtraOf(test, b) + kExtra));
    }
    EXPECT_GT(std::int64_t{largest} / 128 * kPageBytes4, std::int64_t{1} << 32);
    EXPECT_LE(mla::TouchedBytes(test.inputs), TheFamily().resident_bytes(problem));
    EXPECT_LT(TheFamily().resident_bytes(problem), 32'000'000u);
    EXPECT_GT(Bundle::ArenaBytes(TheFamily().input_layouts(problem)), 15'000'000'000u);
  }
}

// --- semantics ---

TEST(MixedMlaDecode, EveryVariantPasses) {
  for (const std::string& variant : TheFamily().variants) {
    const std::int64_t rows = kSanitized ? 12 : 25;  // the special rows are of 12 kinds
    TestCase test =
        MakeCase(rows, 2 * rows, 600, variant, List(static_cast<std::size_t>(rows), 20000));
    ExpectGrade(test, "strict", variant, /*full=*/false);
  }
}

TEST(MixedMlaDecode, ConventionsGiveTheSameBits) {
  const List sequences = {130, 60, 700, 1};
  TestCase lengths = MakeCase(4, 4, 5, "", sequences),
           none = MakeCase(4, 4, 5, "no_length", sequences);
  TestCase junk = MakeCase(4, 4, 5, "poison", sequences);
  const std::vector<bf16> expected = OutputOf(lengths);
  EXPECT_EQ(OutputOf(none), expected);
  EXPECT_EQ(OutputOf(junk), expected);
  Args mixed = ArgsOf(lengths);
  mixed.extra.length = nullptr;
  EXPECT_EQ(OutputOf(mixed), expected);
}

TEST(MixedMlaDecode, ThreadsAndRepetitionsGiveTheSameBits) {
  for (std::int64_t b : {1, 9}) {
    TestCase test = MakeCase(b, 2, 8);
    const Args args = ArgsOf(test);
    const std::vector<bf16> first = OutputOf(args);
    for (int threads : {1, 2, 3, 16}) {
      RunCpu(args, threads);
      EXPECT_EQ(std::memcmp(args.out, first.data(), first.size() * 2), 0) << threads;
    }
  }
}

TEST(MixedMlaDecode, EveryInstructionSetPasses) {
  for (const cpu::LatentLeaf* leaf : cpu::RunnableLatentLeaves()) {
    for (const char* variant : {"default", "special"}) {
      TestCase test = MakeCase(12, 24, 300, variant, List(12, 20000));
      RunCpu(ArgsOf(test), 0, *leaf);
      const Verdict verdict = VerifyFully(test);
      EXPECT_TRUE(verdict.passed()) << leaf->name << ": " << verdict.reason;
      EXPECT_EQ(verdict.correctness.outputs.at(0).grade, "strict") << leaf->name;
    }
  }
}

TEST(MixedMlaDecode, PermutedColumnsDifferByOneUlp) {
  TestCase test = MakeLong(), reversed = MakeLong();
  std::reverse(WindowOf(reversed, 0), WindowOf(reversed, 0) + kWindow);
  std::reverse(ExtraOf(reversed, 0), ExtraOf(reversed, 0) + kExtra);
  const std::vector<bf16> a = OutputOf(test), b = OutputOf(reversed);
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_LE(std::abs(ToFloat(a[i]) - ToFloat(b[i])), UlpBF16(ToFloat(a[i])) + 1e-6) << i;
  }
}

TEST(MixedMlaDecode, RowsWithoutAKeyAreZero) {
  TestCase test = MakeCase(3, 3, 4, "no_length");
  std::fill_n(WindowOf(test, 1), kWindow, -1);
  std::fill_n(ExtraOf(test, 1), kExtra, -7);
  Args args = ArgsOf(test);
  std::vector<float> lse(3 * kHeads);
  args.lse = lse.data();
  const std::vector<bf16> out = OutputOf(args);
  for (std::int64_t i = kRow; i < 2 * kRow; ++i)
    EXPECT_EQ(out[static_cast<std::size_t>(i)].bits, 0);
  for (std::size_t h = 0; h < 3 * kHeads; ++h) EXPECT_EQ(std::isinf(lse[h]), h / kHeads == 1);
  ExpectGrade(test, "strict", "one empty row", /*full=*/false);

  TestCase zero = MakeCase(2, 3, 4);
  for (const char* name : {"topk_length", "extra_topk_length"}) {
    zero.inputs[name].as<std::int32_t>()[0] = 0;
  }
  ExpectGrade(zero, "strict", "length 0", /*full=*/false);
}

TEST(MixedMlaDecode, OneOfTheCachesAlone) {
  TestCase window = MakeCase(2, 3, 0), extra = MakeCase(2, 0, 4), nothing = MakeCase(2, 0, 0);
  ExpectGrade(window, "strict", "window only", /*full=*/false);
  ExpectGrade(extra, "strict", "extra only", /*full=*/false);
  ExpectGrade(nothing, "strict", "no page at all", /*full=*/false);
}

TEST(MixedMlaDecode, NoRowsAtAll) {
  TestCase test = MakeCase(0, 1, 1);
  const Verdict verdict = RunAndVerify(test);
  EXPECT_TRUE(verdict.passed());
  EXPECT_THAT(verdict.flags, ::testing::Contains("empty"));
}

TEST(MixedMlaDecode, InfiniteSinksAndNone) {
  TestCase test = MakeLong();
  Args args = ArgsOf(test);
  const std::vector<bf16> plain = OutputOf(args);
  std::array<float, kHeads> sink;
  sink.fill(-kInf);
  args.attn_sink = sink.data();
  const std::vector<bf16> without = OutputOf(args);
  args.attn_sink = nullptr;
  EXPECT_EQ(OutputOf(args), without);
  EXPECT_GT(LargestDifference(plain, without), 0.1);
  args.attn_sink = sink.data();
  sink[5] = kInf;
  const std::vector<bf16> out = OutputOf(args);
  for (std::int64_t i = 0; i < kRow; ++i) {
    const auto at = static_cast<std::size_t>(i);
    EXPECT_EQ(ToFloat(out[at]), i / kDim == 5 ? 0 : ToFloat(without[at]));
  }
}

TEST(MixedMlaDecode, LseLeavesTheSinkOut) {
  TestCase test = MakeLong();
  Args args = ArgsOf(test);
  std::vector<float> lse(kHeads), plain(kHeads);
  args.lse = lse.data();
  RunCpu(args, 0);
  args.attn_sink = nullptr;
  args.lse = plain.data();
  RunCpu(args, 0);
  EXPECT_EQ(lse, plain);
  // 640 equal logits of 0.
  std::fill_n(test.inputs["q"].as<bf16>(), kRow, bf16{});
  RunCpu(args, 0);
  for (float each : plain) EXPECT_NEAR(each, std::log(640.0), 1e-4);
}

// Leading blocks without a key, keys later, in each cache and in both.
TEST(MixedMlaDecode, LeadingColumnsWithoutAKey) {
  for (int which = 1; which < 4; ++which) {
    TestCase test = MakeLong("no_length");
    if ((which & 1) != 0) std::fill_n(WindowOf(test, 0), 64, -1);
    if ((which & 2) != 0) std::fill_n(ExtraOf(test, 0), 256, -1);
    ExpectGrade(test, "strict", "which = " + std::to_string(which), /*full=*/false);
  }
}

// A vector that both formats hold, once in each cache: twice the weight of one.
TEST(MixedMlaDecode, AKeyInBothCachesCountsTwice) {
  TestCase test = MakeCase(1, 1, 1, "no_length");
  auto* cache8 = test.inputs["cache8"].as<std::uint8_t>();
  auto* cache4 = test.inputs["cache4"].as<std::uint8_t>();
  std::memset(cache8, 0x40, 512);  // 2 with scale 1
  std::memset(cache8 + 131072, 127, 16);
  std::memset(cache4, 0x44, 256);  // 2 with scale 1
  std::memset(cache4 + 32768, 0x38, 32);
  std::int32_t *window = WindowOf(test, 0), *extra = ExtraOf(test, 0);
  std::fill_n(window, kWindow, -1);
  std::fill_n(extra, kExtra, -1);
  window[0] = 0;
  window[1] = 5;
  extra[0] = 0;
  ExpectGrade(test, "strict", "the same vector in both caches", /*full=*/false);
  const std::vector<bf16> both = OutputOf(test);
  extra[0] = -1;
  window[2] = 0;
  ExpectGrade(test, "strict", "a duplicate index", /*full=*/false);
  EXPECT_EQ(OutputOf(test), both);
  window[2] = -1;
  EXPECT_GT(LargestDifference(OutputOf(test), both), 0.01);
}

TEST(MixedMlaDecode, PlaceholderRow) {
  TestCase test = MakeCase(2, 1, 1);
  WindowOf(test, 1)[0] = ExtraOf(test, 1)[0] = 0;
  test.inputs["topk_length"].as<std::int32_t>()[1] = 1;
  test.inputs["extra_topk_length"].as<std::int32_t>()[1] = 1;
  ExpectGrade(test, "strict", "index 0, length 1", /*full=*/false);
}

TEST(MixedMlaDecode, NaNQueriesStayInTheirHead) {
  TestCase test = MakeCase(2, 1, 4);
  test.inputs["q"].as<bf16>()[kRow + 9 * kDim + 77] = ToBF16(kNaN);
  const std::vector<bf16> out = OutputOf(test);
  for (std::int64_t i = 0; i < 2 * kRow; ++i) {
    EXPECT_EQ(std::isnan(ToFloat(out[static_cast<std::size_t>(i)])), i / kDim == kHeads + 9);
  }
}

// Scale bytes that bf16 cannot hold take the fp32 way, for the whole row.
TEST(MixedMlaDecode, ScalesBeyondBF16) {
  for (int byte : {0, 3, 9, 10, 246, 247, 253}) {
    TestCase test = MakeLong("no_sink");
    auto* cache8 = test.inputs["cache8"].as<std::uint8_t>();
    const std::int64_t token = WindowOf(test, 0)[40];
    std::memset(cache8 + token * 512 + 96, byte < 200 ? 0x7E : 0x01, 32);
    cache8[131072 + token * 16 + 3] = static_cast<std::uint8_t>(byte);
    TheFamily().validate_inputs(test.problem, test.inputs);
    ExpectGrade(test, "strict", "scale byte " + std::to_string(byte), /*full=*/false);
  }
}

TEST(MixedMlaDecode, NothingOutsideTheTensorsIsTouched) {
  for (const char* variant : {"default", "special", "poison"}) {
    for (bool at_end : {false, true}) {
      TestCase test = MakeCase(12, 24, 300, variant, List(12, 20000));
      Args args = ArgsOf(test);
      const std::vector<bf16> expected = OutputOf(args);
      const auto guard = [&](const char* name) { return Guarded(test.inputs[name], at_end); };
      const Guarded q = guard("q"), cache8 = guard("cache8"), cache4 = guard("cache4");
      const Guarded window = guard("indices"), extra = guard("extra_indices");
      const Guarded out(expected.data(), expected.size() * 2, at_end);
      args.q = q.as<bf16>();
      args.cache8.bytes = cache8.as<std::uint8_t>();
      args.cache4.bytes = cache4.as<std::uint8_t>();
      args.window.indices = window.as<std::int32_t>();
      args.extra.indices = extra.as<std::int32_t>();
      args.out = out.as<bf16>();
      RunCpu(args, 0);
      EXPECT_EQ(std::memcmp(args.out, expected.data(), expected.size() * 2), 0);
    }
  }
}

// --- refusals ---

TEST(MixedMlaDecode, RefusesBadCalls) {
  TestCase test = MakeCase(2, 2, 3);
  const Args good = ArgsOf(test);
  const auto refusal = [&](const std::function<void(Args&)>& change) {
    Args args = good;
    change(args);
    return ErrorOf([&] { RunCpu(args, 0); });
  };
  EXPECT_THAT(refusal([](Args& a) { a.cache8.page_stride = 135152; }),
              HasSubstr("cache8 has a page stride of 135152 bytes, supported are multiples of 16 "
                        "from 135168 on"));
  EXPECT_THAT(refusal([](Args& a) { a.cache4.page_stride = 36872; }),
              HasSubstr("cache4 has a page stride of 36872"));
  EXPECT_THAT(refusal([](Args& a) { a.cache8.bytes += 8; }),
              HasSubstr("cache8 is not aligned to 16 bytes"));
  EXPECT_THAT(refusal([](Args& a) { a.cache4.bytes += 1; }),
              HasSubstr("cache4 is not aligned to 16 bytes"));
  EXPECT_THAT(refusal([](Args& a) { a.q += 1; }), HasSubstr("q is not aligned to 16 bytes"));
  EXPECT_THAT(refusal([](Args& a) { a.out = const_cast<bf16*>(a.q) + kRow; }),
              HasSubstr("out overlaps q"));
  EXPECT_THAT(refusal([](Args& a) {
                a.out = reinterpret_cast<bf16*>(const_cast<std::uint8_t*>(a.cache4.bytes));
              }),
              HasSubstr("out overlaps cache4"));
  EXPECT_THAT(refusal([](Args& a) { a.sm_scale = -1; }), HasSubstr("sm_scale = -1"));
  const std::int32_t long8[] = {128, 129}, long4[] = {513, 0}, negative[] = {-1, 0};
  EXPECT_THAT(refusal([&](Args& a) {
                a.window.length = long8;
                a.window.indices = WindowOf(test, 0);
              }),
              HasSubstr("topk_length[1] = 129 is outside 0..128"));
  EXPECT_THAT(refusal([&](Args& a) {
                a.extra = {nullptr, long4};  // refused before any index is read
              }),
              HasSubstr("extra_topk_length[0] = 513 is outside 0..512"));
  EXPECT_THAT(refusal([&](Args& a) { a.extra.length = negative; }),
              HasSubstr("extra_topk_length[0] = -1 is outside"));
  WindowOf(test, 1)[127] = 2 * 256;
  EXPECT_THAT(refusal([](Args&) {}),
              HasSubstr("indices[1,127] = 512 is outside the cache of 512 tokens"));
  WindowOf(test, 1)[127] = 0;
  ExtraOf(test, 0)[3] = 3 * 128;
  EXPECT_THAT(refusal([](Args&) {}),
              HasSubstr("extra_indices[0,3] = 384 is outside the cache of 384 tokens"));
}

std::string RefusalOfInputs(const std::function<void(TestCase&)>& change,
                            const std::string& variant = "") {
  TestCase test = MakeCase(2, 2, 3, variant);
  change(test);
  return ErrorOf([&] { TheFamily().validate_inputs(test.problem, test.inputs); });
}

std::uint8_t& Byte8(TestCase& test, std::int64_t at) {
  return test.inputs["cache8"].as<std::uint8_t>()[at];
}

TEST(MixedMlaDecode, RefusesBadContents) {
  EXPECT_EQ(RefusalOfInputs([](TestCase&) {}), "no error");
  EXPECT_THAT(
      RefusalOfInputs([](TestCase& t) { t.inputs["topk_length"].as<std::int32_t>()[1] = 200; }),
      HasSubstr("topk_length[1] = 200 is outside 0..128"));
  EXPECT_THAT(RefusalOfInputs([](TestCase& t) { WindowOf(t, 0)[5] = 99999; }),
              HasSubstr("indices[0,5] = 99999 is outside the cache of 512 tokens"));
  EXPECT_THAT(RefusalOfInputs([](TestCase& t) { t.inputs["attn_sink"].as<float>()[9] = kNaN; }),
              HasSubstr("attn_sink[9] is NaN"));
  EXPECT_THAT(RefusalOfInputs([](TestCase& t) {
                t.inputs["q"].as<bf16>()[kRow + 2 * kDim + 3] = ToBF16(kInf);
              }),
              HasSubstr("q[1,2,3] = inf is not finite"));
  EXPECT_THAT(
      RefusalOfInputs([](TestCase& t) { t.inputs["sm_scale"].as<float>()[0] = -2; }, "special"),
      HasSubstr("sm_scale = -2.000000 is not a positive"));
  const auto token8 = [](TestCase& t) { return std::int64_t{WindowOf(t, 1)[7]}; };
  const auto page8 = [&](TestCase& t) { return token8(t) / 256 * kPageBytes8; };
  EXPECT_THAT(
      RefusalOfInputs([&](TestCase& t) { Byte8(t, page8(t) + token8(t) % 256 * 512 + 40) = 0x7F; }),
      HasSubstr("of cache8, whose dim 40 is code 127 with scale byte"));
  for (int byte : {255, 254}) {  // NaN; beyond bf16
    EXPECT_THAT(RefusalOfInputs([&](TestCase& t) {
                  Byte8(t, page8(t) + 131072 + token8(t) % 256 * 16 + 2) =
                      static_cast<std::uint8_t>(byte);
                }),
                HasSubstr("with scale byte " + std::to_string(byte) + ", not a finite number"));
  }
  EXPECT_THAT(RefusalOfInputs([](TestCase& t) {
                const std::int64_t token = ExtraOf(t, 0)[11];
                t.inputs["cache4"]
                    .as<std::uint8_t>()[token / 128 * kPageBytes4 + 32768 + token % 128 * 32 + 31] =
                    0xFF;
              }),
              HasSubstr("of cache4, whose scale 31 is byte 255, NaN"));
}

Problem SmallProblem() {
  return MakeProblem(TheFamily(), kDefinition, {{"B", 2}, {"N8", 2}, {"N4", 3}});
}

std::string RefusalOfLayout(const std::string& name, DType dtype, const Shape& shape) {
  return ErrorOfLayout(TheFamily(), SmallProblem(), {name, dtype, shape});
}

TEST(MixedMlaDecode, RefusesOtherLayouts) {
  EXPECT_EQ(RefusalOfLayout("q", DType::kBF16, {2, 1, 64, 512}), "no error");
  EXPECT_EQ(RefusalOfLayout("indices", DType::kI32, {2, 128}), "no error");
  EXPECT_EQ(RefusalOfLayout("cache8", DType::kE4M3, {2, 256, 1, 528}), "no error");
  EXPECT_EQ(RefusalOfLayout("cache8", DType::kU8, {2, 135680}), "no error");
  EXPECT_THAT(RefusalOfLayout("cache8", DType::kU8, {2, 256, 1, 656}),
              HasSubstr("uint8[2,256,1,656], expected uint8[2,256,1,528] or uint8[2,page stride], "
                        "the layout V41: probably V3.2 records"));
  EXPECT_THAT(RefusalOfLayout("cache8", DType::kU8, {2, 256, 1, 584}),
              HasSubstr("probably V4 pages"));
  EXPECT_THAT(RefusalOfLayout("cache4", DType::kU8, {3, 128, 1, 368}),
              HasSubstr("the layout V41_FP4: probably an MXFP4 latent"));
  EXPECT_THAT(RefusalOfLayout("cache8", DType::kU8, {2, 256, 1, 512}),
              HasSubstr("probably an 8-bit latent with one scale"));
  EXPECT_THAT(RefusalOfLayout("cache8", DType::kU8, {2, 128, 1, 528}),
              HasSubstr("cache8 is uint8[2,128,1,528]"));
  EXPECT_THAT(RefusalOfLayout("cache4", DType::kE4M3, {3, 128, 1, 288}),
              HasSubstr("cache4 is float8_e4m3fn"));
  EXPECT_THAT(RefusalOfLayout("cache8", DType::kU8, {2, 135000}),
              HasSubstr("cache8 has a page stride of 135000 bytes"));
  EXPECT_THAT(RefusalOfLayout("indices", DType::kI32, {2, 1, 64}),
              HasSubstr("int32[2,1,64], expected int32[2,1,128] or int32[2,128]"));
  EXPECT_THAT(RefusalOfLayout("extra_indices", DType::kI64, {2, 1, 512}), HasSubstr("is int64"));
  EXPECT_THAT(RefusalOfLayout("extra_topk_length", DType::kI32, {3}),
              HasSubstr("expected int32[2]"));
  EXPECT_THAT(RefusalOfLayout("q", DType::kF16, {2, 64, 512}), HasSubstr("is float16"));
  EXPECT_THAT(RefusalOfLayout("attn_sink", DType::kF32, {16}), HasSubstr("expected float32[64]"));
  EXPECT_THAT(ErrorOfLayout(TheFamily(), SmallProblem(), {}, "cache4"),
              HasSubstr("input 'cache4' is missing"));
}

TEST(MixedMlaDecode, RefusesContradictingAxesAndAttributes) {
  const auto refusal = [](const Axes& axes, const Attributes& attributes) {
    return ErrorOf([&] { MakeProblem(TheFamily(), kDefinition, axes, attributes); });
  };
  const auto lengths = [](const List& list) { return Attributes{{"sequence_lengths", list}}; };
  EXPECT_EQ(refusal({{"B", 1}, {"N8", 1}, {"N4", 12}}, lengths({2945})), "no error");
  EXPECT_THAT(refusal({{"B", 1}, {"N8", 2}, {"N4", 12}}, lengths({2945})),
              HasSubstr("N8 = 2, but the windows of sequence_lengths touch 1 pages"));
  EXPECT_THAT(refusal({{"B", 1}, {"N8", 1}, {"N4", 13}}, lengths({2945})),
              HasSubstr("N4 = 13, but sequence_lengths fill only 12 compressed pages"));
  EXPECT_THAT(refusal({{"B", 1}, {"N8", 1}, {"N4", 2}}, lengths({700})),
              HasSubstr("N4 = 2, but rows of at most 512 compressed tokens pick from 3 pages"));
  EXPECT_THAT(refusal({{"B", 1}, {"N8", 1}, {"N4", 3}}, lengths({90000})),
              HasSubstr("row 0 cannot pick 512 compressed tokens from its share of N4 = 3 pages"));
  EXPECT_THAT(refusal({{"B", 1}, {"N8", 2}, {"N4", 550}}, lengths({200000})),
              HasSubstr("row 0 cannot pick 512"));
  EXPECT_THAT(refusal({{"B", 2}, {"N8", 1}, {"N4", 12}}, lengths({2945})),
              HasSubstr("sequence_lengths has 1 entries, but B = 2"));
  EXPECT_THAT(refusal({{"B", 1}, {"N8", 1}, {"N4", 12}}, lengths({-5})),
              HasSubstr("sequence_lengths[0] = -5 is negative"));
  EXPECT_THAT(refusal({{"B", 1}, {"N8", 1}, {"N4", 1}, {"P8", 64}}, {}),
              HasSubstr("axis P8 = 64, but the definition fixes it at 256"));
  EXPECT_THAT(refusal({{"B", 1}, {"N8", 1}, {"N4", 1}}, {{"kv_format", std::string("V4")}}),
              HasSubstr("kv_format = 'V4', supported is 'V41'"));
  EXPECT_THAT(refusal({{"B", 1}, {"N8", 1}, {"N4", 1}}, {{"extra_format", std::string("MXFP4")}}),
              HasSubstr("extra_format = 'MXFP4', supported is 'V41_FP4'"));
}

// --- cost and verification ---

TEST(MixedMlaDecode, CostOfAFullRow) {
  TestCase test = MakeLong();
  const Cost cost = TheFamily().cost(test.problem, test.inputs);
  EXPECT_EQ(cost.flops, 2.0 * 64 * 640 * 1024);
  EXPECT_EQ(cost.bytes, 215040 + 131072 + 2560);
}

TEST(MixedMlaDecode, MutantsAreRejected) {
  TestCase brief = MakeCase(1, 1, 1, "", {129}), long_request = MakeLong();
  TestCase batch = MakeCase(3, 4, 146, "", {35009, 35393, 35457});
  TestCase original = MakeLong("original_address");
  for (TestCase* test : {&brief, &long_request, &batch, &original}) {
    SCOPED_TRACE(test->problem.variant + ", N4 = " + std::to_string(test->problem.axis("N4")));
    ExpectMutantsKilled(*test);
  }
}

}  // namespace
}  // namespace assay::mixed_mla_decode
