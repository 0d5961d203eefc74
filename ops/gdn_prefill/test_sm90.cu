// The chunk path of this room on the GPU: what its first kernel hands over, every element of the
// result against fp64, and the bits that its header promises.
#include <gmock/gmock.h>

#include <limits>
#include <numeric>

#include "ops/gdn_prefill/check_factors_sm90.cuh"
#include "ops/gdn_prefill/sm90.h"
#include "replay/device_room_test.cuh"

namespace assay::gdn_prefill {
namespace {

using testing::HasSubstr;

constexpr const char* kDefinition = "gdn_prefill_qk4_v8_d128_k_last";
constexpr std::int64_t kTokenElements = kValueHeads * kHeadSize;
constexpr std::int64_t kSequenceElements = kValueHeads * kStateElements;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

const Family& TheFamily() {
  static const Family family = MakeFamily();
  return family;
}

TestCase MakeCase(std::int64_t tokens, std::int64_t sequences,
                  const std::string& variant = "default", const Attributes& attributes = {}) {
  return MakeTestCase(
      TheFamily(), kDefinition,
      {{"total_seq_len", tokens}, {"num_seqs", sequences}, {"len_cu_seqlens", sequences + 1}}, 29,
      variant, attributes);
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

struct Bits {
  std::vector<std::byte> output, new_state;
  friend bool operator==(const Bits&, const Bits&) = default;
};

Bits BitsOf(const TestCase& test) {
  const auto copy = [](const Tensor& tensor) {
    return std::vector<std::byte>(tensor.data, tensor.data + tensor.bytes());
  };
  return {copy(test.outputs["output"]), copy(test.outputs["new_state"])};
}

std::string NameOf(int rows) { return std::to_string(rows) + " rows"; }

std::function<void(Stream)> Prepare(const TestCase& test, const Args& args, int rows) {
  return PrepareCuda(args, test.inputs["cu_seqlens"].as<std::int64_t>(), {false, rows});
}

// Runs the chunk path on poisoned outputs and brings them back.
Bits Execute(TestCase& test, int rows = 16) {
  OnDevice device(test);
  const Args args = BindOnDevice(test.problem, device.inputs(), device.outputs());
  Prepare(test, args, rows)(nullptr);
  device.Download();
  return BitsOf(test);
}

// Every chain passes, with the same bits.
void ExpectRight(TestCase& test, const std::string& what) {
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, AllRows(test));
  Bits first;
  for (const int rows : kChainRows) {
    const Bits bits = Execute(test, rows);
    if (first.new_state.empty()) {
      first = bits;
      const Verdict verdict =
          Verify(TheFamily(), test.problem, test.inputs, test.outputs, expected, 1);
      ASSERT_TRUE(verdict.passed()) << what << ": " << verdict.reason;
    }
    EXPECT_EQ(bits, first) << what << ": " << NameOf(rows) << " give other bits";
  }
}

using GdnPrefillSm90 = DeviceTest;

// The first kernel alone. Limits: fp16 rounds values up to 1 by 2^-11; the blockwise inverse rounds
// intermediate blocks too.
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
    EXPECT_LE(errors.t.error, 4e-3) << variant << " T: " << errors.t.Text();
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
  constexpr std::int64_t kSizes[][2] = {{6, 1},    {61, 1},    {525, 1},  {2107, 1}, {35, 2},
                                        {341, 2},  {983, 2},   {255, 3},  {1800, 3}, {959, 4},
                                        {3028, 5}, {4124, 15}, {8192, 57}};
  for (const auto& [tokens, sequences] : kSizes) {
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
  EXPECT_EQ(std::memcmp(kept.new_state.data(), none.inputs["state"].data, kept.new_state.size()),
            0);
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
}

// The reference has the NaN at the same elements: from its token on, in its row, head or output.
TEST_F(GdnPrefillSm90, NaNsStayWhereThePageSays) {
  for (const char* name : {"q", "k", "v", "a", "b"}) {
    TestCase test = MakeCaseOf({66, 121, 6});
    Tensor& tensor = test.inputs[name];
    const std::int64_t of_token = tensor.elements() / 193;
    tensor.as<bf16>()[111 * of_token + of_token / 2] = ToBF16(kNaN);
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
  Prepare(test, args, 16)(nullptr);
  device.Download();
  EXPECT_EQ(BitsOf(test).output, expected.output);
  EXPECT_EQ(std::memcmp(place.Get().data(), expected.new_state.data(), expected.new_state.size()),
            0);

  std::int64_t begin = 0;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    args = BindOnDevice(test.problem, device.inputs(), device.outputs());
    args.sequences = 1;
    args.tokens = lengths[s];
    args.q += begin * kKeyHeads * kHeadSize;
    args.k += begin * kKeyHeads * kHeadSize;
    args.v += begin * kTokenElements;
    args.a += begin * kValueHeads;
    args.b += begin * kValueHeads;
    args.output += begin * kTokenElements;
    args.state += static_cast<std::int64_t>(s) * kSequenceElements;
    args.new_state += static_cast<std::int64_t>(s) * kSequenceElements;
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
    Args first = BindOnDevice(test.problem, device.inputs(), device.outputs()), second = first;
    first.tokens = split;
    first.new_state = between.data();
    second.tokens = kTokens - split;
    second.q += split * kKeyHeads * kHeadSize;
    second.k += split * kKeyHeads * kHeadSize;
    second.v += split * kTokenElements;
    second.a += split * kValueHeads;
    second.b += split * kValueHeads;
    second.output += split * kTokenElements;
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
  TestCase test = MakeCaseOf({100, 60, 40}), other = MakeCaseOf({10, 0, 190});
  OnDevice device(test);
  const Args args = BindOnDevice(test.problem, device.inputs(), device.outputs());
  const auto call = Prepare(test, args, 16);
  Tensor& lengths = test.inputs["cu_seqlens"];
  std::memcpy(lengths.data, other.inputs["cu_seqlens"].data, lengths.bytes());
  CheckCuda(cudaMemcpy(const_cast<std::int64_t*>(args.cu_seqlens), lengths.data, lengths.bytes(),
                       cudaMemcpyHostToDevice),
            "cudaMemcpy of lengths");
  call(nullptr);
  device.Download();
  const Verdict verdict = VerifyFully(test);
  EXPECT_TRUE(verdict.passed()) << verdict.reason;
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
  EXPECT_THAT(error_of([&] { Prepare(test, odd, 16)(nullptr); }),
              HasSubstr("q is not aligned to 16 bytes"));
  EXPECT_THAT(error_of([&] { Prepare(test, args, 3)(nullptr); }), HasSubstr("no chain of 3 rows"));
}

}  // namespace
}  // namespace assay::gdn_prefill
