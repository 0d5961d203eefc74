// The recurrent GPU kernel of this room: every element against fp64 by the strictest grades, and
// the bits that its header promises.
#include <gmock/gmock.h>

#include "ops/gdn_prefill/device_cases.cuh"
#include "ops/gdn_prefill/sm90_recurrent.h"

namespace assay::gdn_prefill {
namespace {

using testing::HasSubstr;

constexpr int kRowChoices[] = {8, 16, 32};

RecurrentOptions Rows(int rows) {
  RecurrentOptions options;
  options.rows_per_cta = rows;
  return options;
}

// Runs on poisoned outputs and brings them back.
Bits Execute(TestCase& test, const RecurrentOptions& options = {}) {
  OnDevice device(test);
  RunRecurrent(BindOnDevice(test.problem, device.inputs(), device.outputs()), options, nullptr);
  device.Download();
  return BitsOf(test);
}

// fp32 throughout: it must reach the strictest grades, with every number of rows, and the same
// bits.
void ExpectStrict(TestCase& test, const std::string& what) {
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, AllRows(test));
  Bits first;
  for (const int rows : kRowChoices) {
    const Bits bits = Execute(test, Rows(rows));
    if (rows != kRowChoices[0]) {
      EXPECT_EQ(bits, first) << what << ": " << rows << " rows a CTA give other bits";
      continue;
    }
    first = bits;
    const Verdict verdict =
        Verify(TheFamily(), test.problem, test.inputs, test.outputs, expected, 1);
    ASSERT_TRUE(verdict.passed()) << what << ": " << verdict.reason;
    EXPECT_EQ(verdict.correctness.outputs[0].grade, "strict") << what;
    EXPECT_EQ(verdict.correctness.outputs[1].grade, "fp32") << what;
  }
  OnDevice device(test);
  RunRecurrent16(BindOnDevice(test.problem, device.inputs(), device.outputs()), {}, nullptr);
  device.Download();
  const Verdict verdict = Verify(TheFamily(), test.problem, test.inputs, test.outputs, expected, 1);
  ASSERT_TRUE(verdict.passed()) << what << ", chunks of 16: " << verdict.reason;
  EXPECT_EQ(verdict.correctness.outputs[0].grade, "strict") << what << ", chunks of 16";
  EXPECT_EQ(verdict.correctness.outputs[1].grade, "fp32") << what << ", chunks of 16";
}

using GdnRecurrentSm90 = DeviceTest;

TEST_F(GdnRecurrentSm90, EveryLengthUpTo130) {
  for (std::int64_t tokens = 1; tokens <= 130; ++tokens) {
    TestCase test = MakeCase(tokens, 1);
    ExpectStrict(test, std::to_string(tokens) + " tokens");
  }
}

TEST_F(GdnRecurrentSm90, PairsOfLengthsAroundTheChunk) {
  for (const std::int64_t first : {1, 7, 8, 9, 15, 16, 17, 31, 32, 33}) {
    for (const std::int64_t second : {1, 7, 8, 9, 16, 33}) {
      TestCase test = MakeCaseOf({first, second});
      ExpectStrict(test, std::to_string(first) + " and " + std::to_string(second));
    }
  }
}

TEST_F(GdnRecurrentSm90, CapturedSizes) {
  for (const auto& [tokens, sequences] : kCapturedSizes) {
    TestCase test = MakeCase(tokens, sequences);
    ExpectStrict(test, std::to_string(tokens) + " tokens, " + std::to_string(sequences));
  }
}

TEST_F(GdnRecurrentSm90, EveryVariant) {
  for (const std::string& variant : TheFamily().variants) {
    TestCase test = MakeCase(203, 4, variant);
    if (variant != "v50" && variant != "v1e4") {
      ExpectStrict(test, variant);
      continue;
    }
    Execute(test);  // values of hundreds: the state rule decides
    const Verdict verdict = VerifyFully(test);
    EXPECT_TRUE(verdict.passed()) << variant << ": " << verdict.reason;
  }
}

TEST_F(GdnRecurrentSm90, TenThousandTokens) {
  for (const char* variant : {"default", "correlated", "repeated_key"}) {
    TestCase test = MakeCase(10000, 1, variant);
    ExpectStrict(test, variant);
  }
}

// 4.3 GB of states; some rows are judged.
TEST_F(GdnRecurrentSm90, FourThousandSequencesOfOneToken) {
  constexpr std::int64_t kSequences = 4096;
  TestCase test = MakeCaseOf(std::vector<std::int64_t>(kSequences, 1), "state_noise");
  Execute(test);
  const std::vector<std::int64_t> rows{0, 7, 8, 16383, 16384, 32759, 32760, 32767};
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, {rows, rows});
  const Verdict verdict = Verify(TheFamily(), test.problem, test.inputs, test.outputs, expected, 1);
  EXPECT_TRUE(verdict.passed()) << verdict.reason;
}

TEST_F(GdnRecurrentSm90, EmptySequences) {
  TestCase mixed = MakeCaseOf({0, 9, 0, 0, 17, 0});
  ExpectStrict(mixed, "empty ones between");
  TestCase none = MakeCaseOf({0, 0, 0});
  const Bits kept = Execute(none);
  EXPECT_TRUE(StateIsKept(none, kept));
  TestCase single = MakeCaseOf({0});
  const Bits one = Execute(single);
  EXPECT_TRUE(StateIsKept(single, one));
  TestCase null = MakeCaseOf({0, 3, 0}, "state_null");
  ExpectStrict(null, "no states");
  TestCase nothing = MakeCase(0, 0);
  Execute(nothing);
  TestCase zeroed = MakeCase(40, 6, "with_empty", {{"empty_state", std::string("zero")}});
  ExpectStrict(zeroed, "zeros for empty ones");
}

TEST_F(GdnRecurrentSm90, StateOfLargeNorm) {
  TestCase test = MakeCase(40, 2, "state_noise");
  float* state = test.inputs["state"].as<float>();
  for (std::int64_t i = 0; i < 2 * kSequenceElements; ++i) state[i] *= 1e4f;
  Execute(test);
  const Verdict verdict = VerifyFully(test);
  EXPECT_TRUE(verdict.passed()) << verdict.reason;
}

TEST_F(GdnRecurrentSm90, SameBitsTenTimesInPlaceAndAlone) {
  const std::vector<std::int64_t> lengths = {13, 1, 40, 8};
  TestCase test = MakeCaseOf(lengths);
  const Bits expected = Execute(test);
  for (int run = 0; run < 10; ++run) EXPECT_EQ(Execute(test), expected) << "run " << run;
  RecurrentOptions overlapping;
  overlapping.overlap_launch = true;
  EXPECT_EQ(Execute(test, overlapping), expected);

  const float* state = test.inputs["state"].as<float>();
  DeviceArray<float> place(std::vector<float>(state, state + 4 * kSequenceElements));
  OnDevice device(test);
  Args args = BindOnDevice(test.problem, device.inputs(), device.outputs());
  args.state = args.new_state = place.data();
  RunRecurrent(args, {}, nullptr);
  device.Download();
  EXPECT_EQ(BitsOf(test).output, expected.output);
  EXPECT_EQ(std::memcmp(place.Get().data(), expected.new_state.data(), expected.new_state.size()),
            0);

  std::int64_t begin = 0;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    const Args batch = BindOnDevice(test.problem, device.inputs(), device.outputs());
    args = SequenceOf(batch, static_cast<std::int64_t>(s), begin, lengths[s]);
    RunRecurrent(args, {}, nullptr);
    begin += lengths[s];
  }
  device.Download();
  EXPECT_EQ(BitsOf(test), expected) << "each sequence alone";
}

TEST_F(GdnRecurrentSm90, SplitSequenceEqualsWhole) {
  constexpr std::int64_t kTokens = 131;
  TestCase test = MakeCase(kTokens, 1);
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, AllRows(test));
  for (const std::int64_t split : {1, 7, 8, 16, 63, 64, 65, 130}) {
    OnDevice device(test);
    DeviceArray<float> between(kSequenceElements);
    const Args whole = BindOnDevice(test.problem, device.inputs(), device.outputs());
    Args first = TokensOf(whole, 0, split), second = TokensOf(whole, split, kTokens - split);
    first.new_state = between.data();
    second.state = between.data();
    RunRecurrent(first, {}, nullptr);
    RunRecurrent(second, {}, nullptr);
    device.Download();
    const Verdict verdict =
        Verify(TheFamily(), test.problem, test.inputs, test.outputs, expected, 1);
    EXPECT_TRUE(verdict.passed()) << "split at " << split << ": " << verdict.reason;
    EXPECT_EQ(verdict.correctness.outputs[1].grade, "fp32") << "split at " << split;
  }
}

// Flags and length limits: what is not chosen is not touched.
TEST_F(GdnRecurrentSm90, ComputesOnlyWhatIsSelected) {
  const std::vector<std::int64_t> lengths = {5, 20, 0, 12};
  TestCase test = MakeCaseOf(lengths);
  const Bits all = Execute(test);
  test.outputs.Poison();
  const Bits poison = BitsOf(test);
  const auto expect = [&](const Bits& got, const std::function<bool(int s, int h)>& chosen) {
    std::int64_t begin = 0;
    for (int s = 0; s < 4; ++s) {
      for (int h = 0; h < 8; ++h) {
        const Bits& wanted = chosen(s, h) ? all : poison;
        const auto state_at = static_cast<std::size_t>((s * 8 + h) * kStateElements * 4);
        EXPECT_EQ(
            std::memcmp(&got.new_state[state_at], &wanted.new_state[state_at], kStateElements * 4),
            0)
            << "state of " << s << ", " << h;
        for (std::int64_t t = begin; t < begin + lengths[static_cast<std::size_t>(s)]; ++t) {
          const auto at = static_cast<std::size_t>((t * 8 + h) * kHeadSize * 2);
          EXPECT_EQ(std::memcmp(&got.output[at], &wanted.output[at], kHeadSize * 2), 0)
              << "token " << t << " head " << h;
        }
      }
      begin += lengths[static_cast<std::size_t>(s)];
    }
  };
  std::vector<std::int32_t> flags(32);
  for (std::size_t i = 0; i < 32; ++i) flags[i] = i % 3 == 1 ? 7 : 0;
  DeviceArray<std::int32_t> selected(flags);
  RecurrentOptions options;
  options.selected = selected.data();
  expect(Execute(test, options), [&](int s, int h) { return (s * 8 + h) % 3 == 1; });
  options = {};
  options.max_tokens = 5;
  expect(Execute(test, options),
         [&](int s, int) { return lengths[static_cast<std::size_t>(s)] <= 5; });
  options = {};
  options.min_tokens = 12;
  expect(Execute(test, options),
         [&](int s, int) { return lengths[static_cast<std::size_t>(s)] >= 12; });
}

// The reference has the NaN at the same elements: from its token on, in its row, head or output.
TEST_F(GdnRecurrentSm90, NaNsStayWhereThePageSays) {
  for (const char* name : {"q", "k", "v", "a", "b"}) {
    TestCase test = MakeCaseOf({6, 21, 6});
    SetNaN(test.inputs[name], 11, 33);
    ExpectStrict(test, std::string("NaN in ") + name);
  }
}

TEST(GdnRecurrentSm90Plan, RefusesUnknownRows) {
  Args args;
  args.sequences = 1;
  try {
    RunRecurrent(args, Rows(12), nullptr);
    ADD_FAILURE() << "accepted 12 rows";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rows_per_cta = 12 is not 8, 16 or 32"));
  }
}

}  // namespace
}  // namespace assay::gdn_prefill
