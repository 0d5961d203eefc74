// The chunk path of this room on the GPU: what its first kernel hands over, every element of the
// result against fp64, and the bits that its header promises.
#include <gmock/gmock.h>

#include "ops/gdn_prefill/check_factors_sm90.cuh"
#include "ops/gdn_prefill/device_cases.cuh"
#include "ops/gdn_prefill/sm90.h"

namespace assay::gdn_prefill {
namespace {

using testing::HasSubstr;

Plan Chain(int rows) { return {false, rows}; }
Plan Paired(int piece_chunks = 0) { return {false, 64, true, piece_chunks}; }

std::string NameOf(const Plan& plan) {
  return std::to_string(plan.chain_rows) + " rows" + (plan.paired ? ", paired, pieces of " : "") +
         (plan.paired ? std::to_string(plan.piece_chunks) : "");
}

std::function<void(Stream)> Prepare(const TestCase& test, const Args& args, const Plan& plan) {
  return PrepareCuda(args, test.inputs["cu_seqlens"].as<std::int64_t>(), plan);
}

// Runs the chunk path on poisoned outputs and brings them back.
Bits Execute(TestCase& test, const Plan& plan) {
  OnDevice device(test);
  const Args args = BindOnDevice(test.problem, device.inputs(), device.outputs());
  Prepare(test, args, plan)(nullptr);
  device.Download();
  return BitsOf(test);
}
Bits Execute(TestCase& test) { return Execute(test, Chain(16)); }

// Every chain passes, and sequences in pieces too, the shortest that there may be.
void ExpectRight(TestCase& test, const std::string& what) {
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, AllRows(test));
  const std::int64_t tokens = test.problem.axes.at("total_seq_len");
  const int least = static_cast<int>(tokens / (kMostPieces * kChunk)) + 1;
  for (const Plan& plan : {Chain(16), Chain(32), Chain(64), Paired(), Paired(least),
                           Paired(least + 1), Paired(least + 2)}) {
    Execute(test, plan);
    const Verdict verdict =
        Verify(TheFamily(), test.problem, test.inputs, test.outputs, expected, 1);
    ASSERT_TRUE(verdict.passed()) << what << ", " << NameOf(plan) << ": " << verdict.reason;
  }
}

using GdnPrefillSm90 = DeviceTest;

// The first kernel alone. Limits: fp16 rounds values up to 1 by 2^-11 and the blockwise inverse
// rounds intermediate blocks too. With one key throughout A is all ones: 16 such errors of A add up
// in an element of a block of T, and T has three blocks below each other.
TEST_F(GdnPrefillSm90, FactorsOfEveryChunk) {
  for (const char* variant : {"default", "with_empty", "gate_spike", "strong_decay", "repeated_key",
                              "alternating_key", "beta_zero", "correlated"}) {
    TestCase test = MakeCase(300, 4, variant);
    OnDevice device(test);
    const FactorErrors errors =
        CheckFactors(BindOnDevice(test.problem, device.inputs(), device.outputs()),
                     Bind(test.problem, test.inputs, test.outputs));
    EXPECT_LE(errors.k.error, 1e-7) << variant << " k: " << errors.k.Text();
    EXPECT_LE(errors.q.error, 1e-7) << variant << " q: " << errors.q.Text();
    const bool one_key = std::string(variant).ends_with("_key");
    EXPECT_LE(errors.t.error, one_key ? 1e-2 : 4e-3) << variant << " T: " << errors.t.Text();
    EXPECT_LE(errors.p.error, 1e-3) << variant << " P: " << errors.p.Text();
    EXPECT_LE(errors.gates.error, 2e-5) << variant << " gates: " << errors.gates.Text();
  }
}

TEST_F(GdnPrefillSm90, EveryLengthUpTo130) {
  for (std::int64_t tokens = 1; tokens <= 130; ++tokens) {
    TestCase test = MakeCase(tokens, 1);
    ExpectRight(test, std::to_string(tokens) + " tokens");
  }
}

TEST_F(GdnPrefillSm90, PairsOfLengthsAroundTheChunk) {
  for (const std::int64_t first : {1, 15, 16, 17, 63, 64, 65, 127, 128, 129}) {
    for (const std::int64_t second : {1, 16, 63, 64, 65, 128}) {
      TestCase test = MakeCaseOf({first, second});
      ExpectRight(test, std::to_string(first) + " and " + std::to_string(second));
    }
  }
}

TEST_F(GdnPrefillSm90, CapturedSizes) {
  for (const auto& [tokens, sequences] : kCapturedSizes) {
    TestCase test = MakeCase(tokens, sequences);
    ExpectRight(test, std::to_string(tokens) + " tokens, " + std::to_string(sequences));
  }
}

TEST_F(GdnPrefillSm90, EveryVariant) {
  for (const std::string& variant : TheFamily().variants) {
    TestCase test = MakeCase(403, 4, variant);
    ExpectRight(test, variant);
  }
}

TEST_F(GdnPrefillSm90, TenThousandTokens) {
  for (const char* variant : {"default", "correlated", "repeated_key"}) {
    TestCase test = MakeCase(10000, 1, variant);
    ExpectRight(test, variant);
  }
}

TEST_F(GdnPrefillSm90, EmptySequences) {
  TestCase mixed = MakeCaseOf({0, 70, 0, 0, 17, 0});
  ExpectRight(mixed, "empty ones between");
  TestCase none = MakeCaseOf({0, 0, 0});
  const Bits kept = Execute(none);
  EXPECT_TRUE(StateIsKept(none, kept));
  TestCase null = MakeCaseOf({0, 3, 0}, "state_null");
  ExpectRight(null, "no states");
  TestCase nothing = MakeCase(0, 0);
  Execute(nothing);
  TestCase zeroed = MakeCase(140, 6, "with_empty", {{"empty_state", std::string("zero")}});
  ExpectRight(zeroed, "zeros for empty ones");
}

// Beyond fp16: the recurrence takes over, within the same call.
TEST_F(GdnPrefillSm90, NumbersBeyondHalfPrecision) {
  TestCase large = MakeCase(140, 2, "state_noise");
  float* state = large.inputs["state"].as<float>();
  for (std::int64_t i = 0; i < 2 * kSequenceElements; ++i) state[i] *= 1e6f;
  ExpectRight(large, "large state");

  TestCase query = MakeCaseOf({70, 70});
  bf16* q = query.inputs["q"].as<bf16>();
  for (std::int64_t i = 0; i < 140 * kKeyHeads * kHeadSize; ++i) {
    q[i] = ToBF16(ToFloat(q[i]) * 1e7f);
  }
  ExpectRight(query, "large queries");

  TestCase product = MakeCaseOf({70, 70});  // q_i . k_i = 1e5, q itself is no problem
  const bf16* k = product.inputs["k"].as<bf16>();
  for (std::int64_t i = 0; i < 140 * kKeyHeads * kHeadSize; ++i) {
    product.inputs["q"].as<bf16>()[i] = ToBF16(1e5f * ToFloat(k[i]));
  }
  ExpectRight(product, "large products of queries and keys");
}

// Below 6e-5 fp16 keeps fewer than 11 bits. Judged by relative errors alone: the absolute tolerance
// of the state is larger than such states.
TEST_F(GdnPrefillSm90, SmallValuesKeepTheStateRule) {
  TestCase test = MakeCase(403, 3, "state_zeros");
  Tensor& v = test.inputs["v"];
  for (std::int64_t i = 0; i < v.elements(); ++i) {
    v.as<bf16>()[i] = ToBF16(1e-5f * ToFloat(v.as<bf16>()[i]));
  }
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, AllRows(test));
  const std::vector<double>& truth = expected.outputs[1].value;
  for (const Plan& plan : {Chain(16), Chain(64), Paired(2)}) {
    Execute(test, plan);
    const float* state = test.outputs["new_state"].as<float>();
    for (std::int64_t head = 0; head < 3 * kValueHeads; ++head) {
      double difference = 0, norm = 0;
      for (std::int64_t i = head * kStateElements; i < (head + 1) * kStateElements; ++i) {
        const double r = truth[static_cast<std::size_t>(i)];
        difference += (state[i] - r) * (state[i] - r);
        norm += r * r;
      }
      EXPECT_GT(norm, 0);
      EXPECT_LE(std::sqrt(difference / norm), 0.01) << NameOf(plan) << ", head " << head;
    }
  }
}

// The reference has the NaN at the same elements: from its token on, in its row, head or output.
TEST_F(GdnPrefillSm90, NaNsStayWhereThePageSays) {
  for (const char* name : {"q", "k", "v", "a", "b"}) {
    TestCase test = MakeCaseOf({66, 121, 6});
    SetNaN(test.inputs[name], 111, 193);
    ExpectRight(test, std::string("NaN in ") + name);
  }
}

TEST_F(GdnPrefillSm90, SameBitsTenTimesInPlaceAndAlone) {
  const std::vector<std::int64_t> lengths = {130, 1, 64, 200};
  TestCase test = MakeCaseOf(lengths);
  const Bits expected = Execute(test);
  for (int run = 0; run < 10; ++run) EXPECT_EQ(Execute(test), expected) << "run " << run;

  const float* state = test.inputs["state"].as<float>();
  DeviceArray<float> place(std::vector<float>(state, state + 4 * kSequenceElements));
  OnDevice device(test);
  Args args = BindOnDevice(test.problem, device.inputs(), device.outputs());
  args.state = args.new_state = place.data();
  Prepare(test, args, {false, 16})(nullptr);
  device.Download();
  EXPECT_EQ(BitsOf(test).output, expected.output);
  EXPECT_EQ(std::memcmp(place.Get().data(), expected.new_state.data(), expected.new_state.size()),
            0);

  std::int64_t begin = 0;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    const Args batch = BindOnDevice(test.problem, device.inputs(), device.outputs());
    args = SequenceOf(batch, static_cast<std::int64_t>(s), begin, lengths[s]);
    const std::int64_t cu_seqlens[] = {0, lengths[s]};
    PrepareCuda(args, cu_seqlens, {false, 16})(nullptr);
    CheckCuda(cudaDeviceSynchronize(), "a sequence alone");
    begin += lengths[s];
  }
  device.Download();
  EXPECT_EQ(BitsOf(test), expected) << "each sequence alone";
}

TEST_F(GdnPrefillSm90, SplitSequenceEqualsWhole) {
  constexpr std::int64_t kTokens = 211;
  TestCase test = MakeCase(kTokens, 1);
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, AllRows(test));
  for (const std::int64_t split : {1, 16, 63, 64, 65, 210}) {
    OnDevice device(test);
    DeviceArray<float> between(kSequenceElements);
    const Args whole = BindOnDevice(test.problem, device.inputs(), device.outputs());
    Args first = TokensOf(whole, 0, split), second = TokensOf(whole, split, kTokens - split);
    first.new_state = between.data();
    second.state = between.data();
    const std::int64_t first_lengths[] = {0, split}, second_lengths[] = {0, kTokens - split};
    const auto call = PrepareCuda(first, first_lengths, {false, 16});
    const auto next = PrepareCuda(second, second_lengths, {false, 16});
    call(nullptr);
    next(nullptr);
    device.Download();
    const Verdict verdict =
        Verify(TheFamily(), test.problem, test.inputs, test.outputs, expected, 1);
    EXPECT_TRUE(verdict.passed()) << "split at " << split << ": " << verdict.reason;
  }
}

// A recorded call follows cu_seqlens on the device.
TEST_F(GdnPrefillSm90, ReplayReadsNewLengths) {
  const TestCase other = MakeCaseOf({10, 0, 190});
  for (const Plan& plan : {Chain(16), Chain(32), Chain(64), Paired(), Paired(1)}) {
    TestCase test = MakeCaseOf({100, 60, 40});
    OnDevice device(test);
    const Args args = BindOnDevice(test.problem, device.inputs(), device.outputs());
    const auto call = Prepare(test, args, plan);
    Tensor& lengths = test.inputs["cu_seqlens"];
    std::memcpy(lengths.data, other.inputs["cu_seqlens"].data, lengths.bytes());
    CheckCuda(cudaMemcpy(const_cast<std::int64_t*>(args.cu_seqlens), lengths.data, lengths.bytes(),
                         cudaMemcpyHostToDevice),
              "cudaMemcpy of lengths");
    call(nullptr);
    device.Download();
    const Verdict verdict = VerifyFully(test);
    EXPECT_TRUE(verdict.passed()) << NameOf(plan) << ": " << verdict.reason;
  }
}

TEST_F(GdnPrefillSm90, RefusesBadLengthsAndUnknownChains) {
  const auto error_of = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  TestCase test = MakeCaseOf({3, 4});
  OnDevice device(test);
  const Args args = BindOnDevice(test.problem, device.inputs(), device.outputs());
  const std::int64_t decreasing[] = {0, 8, 7};
  EXPECT_THAT(error_of([&] { PrepareCuda(args, decreasing, {}); }),
              HasSubstr("cu_seqlens[2] = 7 is below cu_seqlens[1] = 8"));
  Args odd = args;
  odd.q += 4;
  EXPECT_THAT(error_of([&] {
                Prepare(test, odd, {false, 16})(nullptr);
              }),
              HasSubstr("q is not aligned to 16 bytes"));
  EXPECT_THAT(error_of([&] {
                Prepare(test, args, {false, 3})(nullptr);
              }),
              HasSubstr("no chain of 3 rows"));
  EXPECT_THAT(error_of([&] {
                Prepare(test, args, {false, 32, false, 4})(nullptr);
              }),
              HasSubstr("no pieces of 4 chunks for 32 rows"));
  TestCase long_one = MakeCaseOf({2 * kMostPieces * kChunk + 1});
  OnDevice on_device(long_one);
  const Args long_args = BindOnDevice(long_one.problem, on_device.inputs(), on_device.outputs());
  EXPECT_THAT(error_of([&] { Prepare(long_one, long_args, Paired(2))(nullptr); }),
              HasSubstr("pieces of 2 chunks for 4097 tokens are more than 32"));
}

Plan PlanOf(std::int64_t tokens, std::int64_t sequences) {
  std::vector<std::int64_t> cu_seqlens(static_cast<std::size_t>(sequences) + 1);
  for (std::int64_t s = 0; s <= sequences; ++s) {
    cu_seqlens[static_cast<std::size_t>(s)] = tokens * s / sequences;
  }
  return ChoosePlan(cu_seqlens.data(), sequences);
}

// Where measurements are far apart.
TEST(GdnPrefillSm90Plan, FollowsTheMeasurements) {
  EXPECT_TRUE(PlanOf(24, 1).recurrent);
  EXPECT_FALSE(PlanOf(24, 1).recurrent16);
  EXPECT_TRUE(PlanOf(64, 1).recurrent);
  EXPECT_TRUE(PlanOf(64, 1).recurrent16);
  EXPECT_FALSE(PlanOf(65, 1).recurrent);
  EXPECT_EQ(PlanOf(134, 1).chain_rows, 16);
  EXPECT_EQ(PlanOf(300, 3).chain_rows, 32);
  EXPECT_EQ(PlanOf(2107, 1).chain_rows, 16);
  EXPECT_GT(PlanOf(8192, 1).piece_chunks, 0);
  EXPECT_GT(PlanOf(32768, 1).piece_chunks, 0);
  EXPECT_EQ(PlanOf(32768, 4).chain_rows, 32);
  EXPECT_EQ(PlanOf(8192, 8).chain_rows, 64);
  EXPECT_FALSE(PlanOf(8192, 8).paired);
  EXPECT_TRUE(PlanOf(8192, 57).paired);
  EXPECT_EQ(PlanOf(8192, 57).piece_chunks, 0);
}

TEST(GdnPrefillSm90Plan, TheScheduleHasEveryItemOnceAndIsBalanced) {
  const std::int64_t cu_seqlens[] = {0, 1000, 1000, 1064, 3000, 3500, 3501, 4000, 6000, 6100, 8192};
  constexpr std::int64_t kSequences = 10;
  for (const int places : {1, 7, 132, 1000}) {
    const WideSchedule schedule = ScheduleWide(cu_seqlens, kSequences, places);
    ASSERT_EQ(schedule.first_item.front(), 0);
    ASSERT_EQ(schedule.first_item.back(), kSequences * 16);
    EXPECT_EQ(schedule.first_item.size(), std::min<std::size_t>(places, kSequences * 16) + 1);
    std::vector<bool> seen(schedule.items.size());
    std::vector<std::int64_t> chunks;
    for (std::size_t c = 0; c + 1 < schedule.first_item.size(); ++c) {
      EXPECT_LT(schedule.first_item[c], schedule.first_item[c + 1]) << "CTA " << c;
      chunks.push_back(0);
      for (int at = schedule.first_item[c]; at < schedule.first_item[c + 1]; ++at) {
        const auto item = static_cast<std::size_t>(schedule.items[static_cast<std::size_t>(at)]);
        EXPECT_FALSE(seen[item]) << "item " << item;
        seen[item] = true;
        chunks.back() += (cu_seqlens[item / 16 + 1] - cu_seqlens[item / 16] + 63) / 64;
      }
    }
    EXPECT_THAT(seen, testing::Each(true));
    // The longest sequence has 33 chunks; none more than that between any two CTAs.
    const auto [least, most] = std::minmax_element(chunks.begin(), chunks.end());
    EXPECT_LE(*most - *least, 33) << places;
  }
}

}  // namespace
}  // namespace assay::gdn_prefill
