// Tests of the gdn_prefill room: captured shapes, partitions, edge semantics of the page, verdicts
// of mutants.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "ops/gdn_decode/spec.h"
#include "ops/gdn_prefill/partition.h"
#include "ops/gdn_prefill/spec.h"
#include "replay/room_test.h"

namespace assay::gdn_prefill {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kDefinition = "gdn_prefill_qk4_v8_d128_k_last";
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kValueElements = kValueHeads * kHeadSize;
constexpr std::int64_t kKeyElements = kKeyHeads * kHeadSize;
constexpr std::int64_t kSequenceElements = kValueHeads * kStateElements;

const Family& TheFamily() {
  static const Family family = MakeFamily();
  return family;
}

Axes AxesOf(std::int64_t tokens, std::int64_t sequences) {
  return {{"total_seq_len", tokens}, {"num_seqs", sequences}, {"len_cu_seqlens", sequences + 1}};
}

TestCase MakeCase(std::int64_t tokens, std::int64_t sequences,
                  const std::string& variant = "default", std::uint64_t key = 7,
                  const Attributes& attributes = {}) {
  return MakeTestCase(TheFamily(), kDefinition, AxesOf(tokens, sequences), key, variant,
                      attributes);
}

// A case with the given lengths instead of a generated partition.
TestCase MakeCaseOf(const std::vector<std::int64_t>& lengths,
                    const std::string& variant = "all_continued") {
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  TestCase test = MakeCase(tokens, static_cast<std::int64_t>(lengths.size()), variant);
  std::int64_t* cu_seqlens = test.inputs["cu_seqlens"].as<std::int64_t>();
  std::partial_sum(lengths.begin(), lengths.end(), cu_seqlens + 1);
  return test;
}

Args ArgsOf(TestCase& test) { return Bind(test.problem, test.inputs, test.outputs); }

std::vector<std::vector<std::byte>> OutputBytes(TestCase& test, int threads = 0) {
  test.outputs.Poison();
  RunCpu(ArgsOf(test), threads);
  return BytesOf(test.outputs);
}

// The kernel is a recurrence in fp32: it must reach the strictest grades.
void ExpectStrict(TestCase& test, const std::string& what) {
  const Verdict verdict = RunAndVerify(test);
  ASSERT_TRUE(verdict.passed()) << what << ": " << verdict.reason;
  EXPECT_EQ(verdict.correctness.outputs[0].grade, "strict") << what;
  EXPECT_EQ(verdict.correctness.outputs[1].grade, "fp32") << what;
}

struct Size {
  std::int64_t tokens, sequences;
};
// The 77 captured (T, N), without those of T = 8192.
constexpr Size kCaptured[] = {
    {6, 1},    {12, 1},   {13, 1},   {14, 1},   {16, 1},   {18, 1},   {23, 1},   {24, 1},
    {30, 1},   {31, 1},   {35, 1},   {48, 1},   {49, 1},   {61, 1},   {67, 1},   {68, 1},
    {79, 1},   {92, 1},   {97, 1},   {116, 1},  {134, 1},  {525, 1},  {1377, 1}, {2107, 1},
    {28, 2},   {32, 2},   {35, 2},   {40, 2},   {42, 2},   {46, 2},   {76, 2},   {81, 2},
    {85, 2},   {91, 2},   {114, 2},  {118, 2},  {132, 2},  {185, 2},  {248, 2},  {341, 2},
    {461, 2},  {574, 2},  {983, 2},  {2040, 2}, {3271, 2}, {5709, 2}, {82, 3},   {139, 3},
    {202, 3},  {239, 3},  {255, 3},  {294, 3},  {661, 3},  {973, 3},  {1592, 3}, {1796, 3},
    {1800, 3}, {2284, 3}, {2857, 3}, {401, 4},  {832, 4},  {959, 4},  {3028, 5}, {3999, 13},
    {4124, 15}};

TEST(GdnPrefill, CapturedSizes) {
  for (const Size& size : kCaptured) {
    if (size.tokens > (kSanitized ? 100 : 6000)) continue;
    TestCase test = MakeCase(size.tokens, size.sequences);
    ExpectStrict(test, std::to_string(size.tokens) + ", " + std::to_string(size.sequences));
  }
}

// The 16 captured sizes with 8192 tokens differ in N only: the extremes here, all in the suite.
TEST(GdnPrefill, CapturedSizesOf8192Tokens) {
  if (kSanitized) GTEST_SKIP() << "too slow under sanitizers";
  for (std::int64_t sequences : {20, 57}) {
    TestCase test = MakeCase(8192, sequences);
    ExpectStrict(test, std::to_string(sequences) + " sequences");
  }
}

TEST(GdnPrefill, OtherPartitionsOfCapturedSizes) {
  for (const Size& size : kCaptured) {
    if (size.tokens > (kSanitized ? 100 : 700) || size.sequences == 1) continue;
    for (const char* variant : {"skewed", "with_empty", "equal"}) {
      TestCase test = MakeCase(size.tokens, size.sequences, variant);
      ExpectStrict(test, std::string(variant) + " " + std::to_string(size.tokens));
    }
  }
}

TEST(GdnPrefill, EmptyCases) {
  for (const Size& size : {Size{0, 0}, Size{0, 3}}) {
    TestCase test = MakeCase(size.tokens, size.sequences, "all_continued");
    ExpectStrict(test, std::to_string(size.sequences) + " sequences without tokens");
    if (size.sequences == 0) continue;
    EXPECT_EQ(BytesOf(test.outputs)[1], BytesOf(test.inputs)[3]);  // states are copied
  }
}

TEST(GdnPrefill, EveryLengthUpTo130) {
  for (std::int64_t tokens = 1; tokens <= (kSanitized ? 20 : 130); ++tokens) {
    TestCase test = MakeCase(tokens, 1, "default", static_cast<std::uint64_t>(tokens));
    ExpectStrict(test, std::to_string(tokens) + " tokens");
  }
}

TEST(GdnPrefill, PairsOfLengthsAroundChunkSizes) {
  for (std::int64_t chunk : {16, 32, 64, 128}) {
    if (kSanitized && chunk > 16) break;
    std::vector<std::int64_t> lengths;
    for (std::int64_t first = chunk - 1; first <= chunk + 1; ++first) {
      for (std::int64_t second = chunk - 1; second <= chunk + 1; ++second) {
        lengths.insert(lengths.end(), {first, second});
      }
    }
    TestCase test = MakeCaseOf(lengths);
    ExpectStrict(test, "around " + std::to_string(chunk));
  }
}

// v = 1e4 is judged by the state rule; all else must meet the fp32 rule.
TEST(GdnPrefill, AllVariants) {
  for (const std::string& variant : TheFamily().variants) {
    TestCase test = MakeCase(kSanitized ? 70 : 333, 3, variant, 3);
    const Verdict verdict = RunAndVerify(test);
    EXPECT_TRUE(verdict.passed()) << variant << ": " << verdict.reason;
    if (variant == "v1e4" || variant == "v50") continue;
    EXPECT_EQ(verdict.correctness.outputs[0].grade, "strict") << variant;
    EXPECT_EQ(verdict.correctness.outputs[1].grade, "fp32") << variant;
  }
}

TEST(GdnPrefill, EveryInstructionSet) {
  TestCase test = MakeCase(kSanitized ? 70 : 517, 3, "all_continued");
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, 1);
  for (cpu::Isa isa : {cpu::Isa::kBaseline, cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
    if (!cpu::Supports(isa)) continue;
    test.outputs.Poison();
    RunCpu(ArgsOf(test), 0, isa);
    const Verdict verdict =
        Verify(TheFamily(), test.problem, test.inputs, test.outputs, expected, 1);
    EXPECT_TRUE(verdict.passed()) << cpu::IsaName(isa) << ": " << verdict.reason;
    EXPECT_EQ(verdict.correctness.outputs[1].grade, "fp32") << cpu::IsaName(isa);
  }
}

// The contest's own rule, as information: an element is wrong when both errors exceed 1e-2.
TEST(GdnPrefill, ContestRule) {
  TestCase test = MakeCase(300, 2);
  RunCpu(ArgsOf(test), 0);
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, 1);
  int errors = 0;
  for (std::size_t i = 0; i < expected.outputs[0].value.size(); ++i) {
    const double r = expected.outputs[0].value[i];
    const double error = std::abs(ToFloat(test.outputs["output"].as<bf16>()[i]) - r);
    if (error > 1e-2 && error > 1e-2 * std::abs(r)) ++errors;
  }
  RecordProperty("contest_rule_errors", errors);
  EXPECT_EQ(errors, 0);
}

// Sequence s of `test` alone, as its own call; returns outputs and state.
struct Single {
  std::vector<bf16> output;
  std::vector<float> state;
};
Single RunAlone(TestCase& test, std::int64_t begin, std::int64_t end, const float* state) {
  Args args = ArgsOf(test);
  const std::int64_t cu_seqlens[] = {0, end - begin};
  Single single;
  single.output.resize(static_cast<std::size_t>((end - begin) * kValueElements) + 4);
  single.state.resize(kSequenceElements + 4);
  args.tokens = end - begin;
  args.sequences = 1;
  args.q += begin * kKeyElements;
  args.k += begin * kKeyElements;
  args.v += begin * kValueElements;
  args.a += begin * kValueHeads;
  args.b += begin * kValueHeads;
  args.cu_seqlens = cu_seqlens;
  args.state = state;
  args.output = single.output.data();
  args.new_state = single.state.data();
  RunCpu(args, 2);
  return single;
}

TEST(GdnPrefill, PackingDoesNotChangeABit) {
  TestCase test = MakeCaseOf({17, 1, 64, 3, 130, 2, 31});
  OutputBytes(test);
  const Args args = ArgsOf(test);
  for (std::int64_t s = 0; s < args.sequences; ++s) {
    const std::int64_t begin = args.cu_seqlens[s], end = args.cu_seqlens[s + 1];
    const Single alone = RunAlone(test, begin, end, args.state + s * kSequenceElements);
    const auto bytes = static_cast<std::size_t>((end - begin) * kValueElements) * sizeof(bf16);
    EXPECT_EQ(std::memcmp(alone.output.data(), args.output + begin * kValueElements, bytes), 0);
    EXPECT_EQ(std::memcmp(alone.state.data(), args.new_state + s * kSequenceElements,
                          kSequenceElements * sizeof(float)),
              0);
  }
}

// [0, m) then [m, T) with the carried state: judged against the reference of the whole.
TEST(GdnPrefill, SplitSequenceEqualsWhole) {
  constexpr std::int64_t kTokens = 140;
  TestCase test = MakeCase(kTokens, 1);
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, 1);
  const Args args = ArgsOf(test);
  for (std::int64_t m : {std::int64_t{1}, std::int64_t{16}, std::int64_t{63}, std::int64_t{64},
                         std::int64_t{65}, kTokens - 1}) {
    test.outputs.Poison();
    const Single head = RunAlone(test, 0, m, args.state);
    const Single tail = RunAlone(test, m, kTokens, head.state.data());
    std::copy_n(head.output.begin(), m * kValueElements, args.output);
    std::copy_n(tail.output.begin(), (kTokens - m) * kValueElements,
                args.output + m * kValueElements);
    std::copy_n(tail.state.begin(), kSequenceElements, args.new_state);
    const Verdict verdict =
        Verify(TheFamily(), test.problem, test.inputs, test.outputs, expected, 1);
    EXPECT_TRUE(verdict.passed()) << "split at " << m << ": " << verdict.reason;
    EXPECT_EQ(verdict.correctness.outputs[1].grade, "fp32");
  }
}

// The decode operator, token by token, over the same 64 tokens: same verdict against the same
// truth.
TEST(GdnPrefill, EqualsSixtyFourDecodeSteps) {
  constexpr std::int64_t kTokens = 64;
  TestCase test = MakeCase(kTokens, 1);
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, 1);
  const Args args = ArgsOf(test);
  test.outputs.Poison();
  std::copy_n(args.state, kSequenceElements, args.new_state);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    gdn_decode::Args step;
    step.batch = 1;
    step.q = args.q + t * kKeyElements;
    step.k = args.k + t * kKeyElements;
    step.v = args.v + t * kValueElements;
    step.state = step.new_state = args.new_state;
    step.a_log = args.a_log;
    step.a = args.a + t * kValueHeads;
    step.dt_bias = args.dt_bias;
    step.b = args.b + t * kValueHeads;
    step.output = args.output + t * kValueElements;
    gdn_decode::RunCpu(step, 0);
  }
  const Verdict verdict = Verify(TheFamily(), test.problem, test.inputs, test.outputs, expected, 1);
  EXPECT_TRUE(verdict.passed()) << verdict.reason;
  EXPECT_EQ(verdict.correctness.outputs[0].grade, "strict");
  EXPECT_EQ(verdict.correctness.outputs[1].grade, "fp32");
}

TEST(GdnPrefill, NullStateIsZeros) {
  TestCase zeros = MakeCase(100, 3, "state_zeros"), null = MakeCase(100, 3, "state_null");
  ASSERT_FALSE(null.inputs.has("state"));
  EXPECT_EQ(OutputBytes(zeros), OutputBytes(null));
}

TEST(GdnPrefill, ScaleNullAndZeroMeanTheDefault) {
  TestCase given = MakeCase(50, 2), null = MakeCase(50, 2, "scale_null");
  ASSERT_FALSE(null.inputs.has("scale"));
  const auto expected = OutputBytes(given);
  EXPECT_EQ(OutputBytes(null), expected);
  given.inputs["scale"].as<float>()[0] = 0;
  EXPECT_EQ(OutputBytes(given), expected);
}

TEST(GdnPrefill, InPlaceEqualsOutOfPlace) {
  TestCase test = MakeCaseOf({40, 0, 23});
  const auto expected = OutputBytes(test);
  Args args = ArgsOf(test);
  std::copy_n(args.state, 3 * kSequenceElements, args.new_state);
  args.state = args.new_state;
  RunCpu(args, 0);
  EXPECT_EQ(BytesOf(test.outputs), expected);
}

TEST(GdnPrefill, RunsAreBitwiseEqual) {
  TestCase test = MakeCase(kSanitized ? 40 : 300, 3);
  const auto inputs = BytesOf(test.inputs);
  const auto expected = OutputBytes(test, 1);
  for (int threads : {1, 2, 2, 2, 3, 3, 4, 5, 16, 64}) {
    EXPECT_EQ(OutputBytes(test, threads), expected) << threads << " threads";
  }
  EXPECT_EQ(BytesOf(test.inputs), inputs);
}

TEST(GdnPrefill, EmptySequenceKeepsItsStateOrZeroesIt) {
  TestCase test = MakeCaseOf({0, 5, 0, 7, 0});
  ExpectStrict(test, "empty sequences");
  const Args args = ArgsOf(test);
  for (std::int64_t s : {0, 2, 4}) {
    EXPECT_EQ(std::memcmp(args.new_state + s * kSequenceElements,
                          args.state + s * kSequenceElements, kSequenceElements * sizeof(float)),
              0);
  }
  TestCase zero = MakeCase(12, 3, "with_empty", 7, {{"empty_state", std::string("zero")}});
  float* state = zero.inputs["state"].as<float>();
  std::fill(state, state + 3 * kSequenceElements, 1.0f);
  ExpectStrict(zero, "contest's empty state");
  EXPECT_EQ(zero.outputs["new_state"].as<float>()[0], 0);  // sequence 0 is empty
}

// Any token of an otherwise empty-handed head: output = scale beta (k.q) v at its first token.
TEST(GdnPrefill, OutputReadsTheUpdatedState) {
  TestCase test = MakeCase(1, 1, "state_zeros");
  RunCpu(ArgsOf(test), 0);
  const Args args = ArgsOf(test);
  for (std::int64_t h = 0; h < kValueHeads; ++h) {
    double kq = 0;
    for (std::int64_t i = h / 2 * kHeadSize; i < (h / 2 + 1) * kHeadSize; ++i) {
      kq += static_cast<double>(ToFloat(args.k[i])) * ToFloat(args.q[i]);
    }
    const double beta = 1 / (1 + std::exp(-ToFloat(args.b[h])));
    for (std::int64_t i = h * kHeadSize; i < (h + 1) * kHeadSize; ++i) {
      const double expected = kDefaultScale * beta * kq * ToFloat(args.v[i]);
      EXPECT_NEAR(ToFloat(args.output[i]), expected, UlpBF16(expected)) << "element " << i;
    }
  }
}

TEST(GdnPrefill, ValueHeadReadsKeyHeadOfItsPair) {
  TestCase test = MakeCase(9, 1, "state_zeros");
  bf16* k = test.inputs["k"].as<bf16>();
  for (std::int64_t i = 0; i < 9 * kKeyElements; ++i) {
    k[i] = ToBF16(i % kHeadSize == i / kHeadSize % kKeyHeads ? 1.0f : 0.0f);
  }
  ExpectStrict(test, "axis keys");
  const float* state = test.outputs["new_state"].as<float>();
  for (std::int64_t i = 0; i < kSequenceElements; ++i) {
    EXPECT_EQ(state[i] != 0, i % kHeadSize == i / kStateElements / 2) << "element " << i;
  }
}

// A wiped state (g = 0 exactly) leaves only what comes after it, also inside a chunk.
TEST(GdnPrefill, InfiniteGateInputs) {
  TestCase test = MakeCaseOf({11, 11});
  bf16* a = test.inputs["a"].as<bf16>();
  bf16* b = test.inputs["b"].as<bf16>();
  for (std::int64_t t : {2, 3, 12, 21}) a[t * kValueHeads + t % 8] = ToBF16(kInf);
  for (std::int64_t t : {4, 5, 13, 20}) a[t * kValueHeads + t % 8] = ToBF16(-kInf);
  for (std::int64_t t : {6, 7, 14, 19}) b[t * kValueHeads + t % 8] = ToBF16(kInf);
  for (std::int64_t t : {8, 9, 15, 18}) b[t * kValueHeads + t % 8] = ToBF16(-kInf);
  ExpectStrict(test, "infinite gates");
}

// Full comparison covers the places: the reference says NaN exactly where the page says. Here: a
// NaN in sequence 1 must not reach its neighbours, nor tokens before it.
TEST(GdnPrefill, NaNStaysInItsSequence) {
  for (const char* name : {"q", "k", "v"}) {
    TestCase test = MakeCaseOf({6, 11, 6});
    const Args args = ArgsOf(test);
    const std::int64_t elements = *name == 'v' ? kValueElements : kKeyElements;
    const std::int64_t head = *name == 'v' ? 5 : 2;
    test.inputs[name].as<bf16>()[12 * elements + head * kHeadSize + 9] = ToBF16(kNaN);
    const Verdict verdict = RunAndVerify(test);
    EXPECT_TRUE(verdict.passed()) << name << ": " << verdict.reason;
    std::int64_t nans = 0;
    for (std::int64_t i = 0; i < 23 * kValueElements; ++i) {
      if (!std::isnan(ToFloat(args.output[i]))) continue;
      ++nans;
      EXPECT_GE(i / kValueElements, 12) << name;
      EXPECT_LT(i / kValueElements, 17) << name;
    }
    // v: row 9 of one head, 5 tokens; k: two heads, 5 tokens; q: two heads, 1 token.
    EXPECT_EQ(nans, *name == 'v' ? 5 : *name == 'k' ? 5 * 2 * 128 : 2 * 128) << name;
    std::int64_t state_nans = 0;
    for (std::int64_t i = 0; i < 3 * kSequenceElements; ++i) {
      state_nans += std::isnan(args.new_state[i]) ? 1 : 0;
    }
    EXPECT_EQ(state_nans, *name == 'v' ? 128 : *name == 'k' ? 2 * kStateElements : 0) << name;
  }
}

TEST(GdnPrefill, RefusesBadInputs) {
  TestCase test = MakeCase(10, 2);
  std::int64_t* cu_seqlens = test.inputs["cu_seqlens"].as<std::int64_t>();
  const auto validate = [&] { TheFamily().validate_inputs(test.problem, test.inputs); };
  const auto run = [&] { RunCpu(ArgsOf(test), 0); };
  EXPECT_EQ(ErrorOf(validate), "no error");
  const auto expect = [&](std::int64_t c0, std::int64_t c1, std::int64_t c2, const char* text) {
    cu_seqlens[0] = c0, cu_seqlens[1] = c1, cu_seqlens[2] = c2;
    EXPECT_THAT(ErrorOf(validate), HasSubstr(text));
    EXPECT_THAT(ErrorOf(run), HasSubstr(text));
  };
  expect(1, 5, 10, "cu_seqlens[0] = 1 is not 0");
  expect(0, 12, 10, "cu_seqlens[2] = 10 is below cu_seqlens[1] = 12");
  expect(0, 5, 11, "cu_seqlens[2] = 11 is not the number of tokens, 10");
  expect(0, -1, 10, "cu_seqlens[1] = -1 is below cu_seqlens[0] = 0");
  cu_seqlens[1] = 5;
  test.inputs["A_log"].as<float>()[0] = kInf;
  EXPECT_THAT(ErrorOf(validate), HasSubstr("A_log[0] = inf"));
  test.inputs["A_log"].as<float>()[0] = 0;
  test.inputs["dt_bias"].as<float>()[1] = kNaN;
  EXPECT_THAT(ErrorOf(validate), HasSubstr("dt_bias[1] = nan"));

  const TestCase other = MakeCase(10, 3);
  EXPECT_THAT(ErrorOf([&] { TheFamily().validate_inputs(test.problem, other.inputs); }),
              HasSubstr("input 'state' is float32[3,8,128,128], expected float32[2,8,128,128]"));
}

TEST(GdnPrefill, RefusesInt32Offsets) {
  TestCase test = MakeCase(10, 2);
  std::vector<TensorLayout> layouts = test.inputs.layouts();
  for (TensorLayout& layout : layouts) {
    if (layout.name == "cu_seqlens") layout.dtype = DType::kI32;
  }
  const Bundle inputs = Bundle::Allocate(layouts);
  EXPECT_THAT(ErrorOf([&] { TheFamily().validate_inputs(test.problem, inputs); }),
              HasSubstr("input 'cu_seqlens' is int32[3], expected int64[3]"));
}

TEST(GdnPrefill, RefusesBadAxesAndCalls) {
  const auto make = [](const Axes& axes) {
    return [axes] { MakeProblem(TheFamily(), kDefinition, axes); };
  };
  EXPECT_THAT(ErrorOf(make({{"total_seq_len", 9}, {"num_seqs", 2}, {"len_cu_seqlens", 2}})),
              HasSubstr("len_cu_seqlens = 2 is not num_seqs + 1 = 3"));
  EXPECT_THAT(ErrorOf(make(AxesOf(9, 0))), HasSubstr("total_seq_len = 9 needs at least one"));
  EXPECT_THAT(ErrorOf(make(AxesOf(-9, 1))), HasSubstr("total_seq_len = -9"));

  TestCase test = MakeCase(10, 2);
  Args args = ArgsOf(test);
  args.new_state = const_cast<float*>(args.state) + 4;
  EXPECT_THAT(ErrorOf([&] { RunCpu(args, 0); }), HasSubstr("overlaps a part of state"));
  args = ArgsOf(test);
  args.q += 1;
  EXPECT_THAT(ErrorOf([&] { RunCpu(args, 0); }), HasSubstr("q is not aligned to 8 bytes"));
}

TEST(GdnPrefill, MutantsAreRejected) {
  TestCase test = MakeCase(kSanitized ? 150 : 200, 3);
  ExpectMutantsKilled(test);
}

// The chunk grade must not open a door: 2^-7 B admits bf16 operands, not a 1 percent error.
TEST(GdnPrefill, ChunkGradeNeedsTheRelativeLimit) {
  TestCase test = MakeCase(100, 2);
  RunCpu(ArgsOf(test), 0);
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, 1);
  bf16* output = test.outputs["output"].as<bf16>();
  for (std::int64_t i = 0; i < 100 * kValueElements; ++i) {
    output[i] = ToBF16(1.012f * ToFloat(output[i]));
  }
  const Verdict verdict = Verify(TheFamily(), test.problem, test.inputs, test.outputs, expected, 1);
  EXPECT_FALSE(verdict.passed());
  EXPECT_THAT(verdict.reason, HasSubstr("relative L2 error"));
}

TEST(GdnPrefill, CostMatchesThePage) {
  TestCase test = MakeCase(100, 3);
  EXPECT_EQ(TheFamily().cost(test.problem, test.inputs).bytes, 6176 * 100 + 1048576 * 3 + 4 * 8);
  EXPECT_EQ(TheFamily().cost(test.problem, test.inputs).flops, 100.0 * 8 * 7 * 16384);
}

TEST(GdnPartition, CoversAllTokensInOrder) {
  for (const char* variant : {"default", "skewed", "with_empty", "equal"}) {
    for (std::int64_t sequences : {0, 1, 2, 3, 4, 57}) {
      for (std::int64_t tokens : {0, 1, 2, 5, 100, 8192}) {
        if (sequences == 0 && tokens > 0) continue;
        const auto cu = Partition(tokens, sequences, variant);
        ASSERT_EQ(cu.size(), static_cast<std::size_t>(sequences) + 1);
        EXPECT_EQ(CuSeqlensProblem(cu.data(), sequences, tokens), "") << variant;
      }
    }
  }
}

TEST(GdnPartition, HasTheDocumentedShape) {
  EXPECT_THAT(Partition(10, 4, "equal"), ElementsAre(0, 2, 5, 7, 10));
  const auto empty = Partition(100, 6, "with_empty");
  EXPECT_EQ(empty[1], 0);
  EXPECT_EQ(empty[4], empty[3]);
  EXPECT_EQ(empty[5], 100);
  const auto skewed = Partition(900, 5, "skewed");
  EXPECT_EQ(skewed[3] - skewed[2], 600);
  const auto uniform = Partition(8192, 57, "default");
  for (std::size_t s = 1; s < uniform.size(); ++s) EXPECT_GT(uniform[s], uniform[s - 1]);
}

}  // namespace
}  // namespace assay::gdn_prefill
