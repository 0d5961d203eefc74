// The GPU kernels of this room: every element against fp64, all gates, verifying several rows,
// equal bits where the header promises them.
#include <gmock/gmock.h>

#include <limits>

#include "ops/kda_decode/sm90.h"
#include "replay/device_room_test.cuh"

namespace assay::kda_decode {
namespace {

using testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr const char* kSmall = "kda_decode_h8_d128";
constexpr const char* kDefinitions[] = {"kda_decode_h64_d128", kSmall, "kda_decode_h12_d128",
                                        "kda_decode_h64_d128_unbounded",
                                        "kda_decode_h64_d128_plain"};

const Family& TheFamily() {
  static const Family family = MakeFamily();
  return family;
}

TestCase MakeCase(const std::string& definition, std::int64_t batch,
                  const std::string& variant = "default", const Attributes& attributes = {}) {
  return MakeTestCase(TheFamily(), definition, {{"batch_size", batch}}, 17, variant, attributes);
}

Args ArgsOf(const TestCase& test, OnDevice& device) {
  return Bind(test.problem, device.inputs(), device.outputs());
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

// Runs on poisoned outputs and brings them back.
Bits Execute(TestCase& test, OnDevice& device, bool overlap_launch = false) {
  device.PoisonOutputs();
  PrepareCuda(ArgsOf(test, device), overlap_launch)(nullptr);
  device.Download();
  return BitsOf(test);
}

Bits Execute(TestCase& test) {
  OnDevice device(test);
  return Execute(test, device);
}

void ExpectPasses(TestCase& test, const std::string& what) {
  Execute(test);
  const Verdict verdict = VerifyFully(test);
  EXPECT_TRUE(verdict.passed()) << what << ": " << verdict.reason;
}

using KdaDecodeSm90 = DeviceTest;

TEST_F(KdaDecodeSm90, EveryDefinitionEveryVariant) {
  for (const char* definition : kDefinitions) {
    for (const std::string& variant : TheFamily().variants) {
      TestCase test = MakeCase(definition, 2, variant);
      ExpectPasses(test, std::string(definition) + " " + variant);
    }
  }
}

TEST_F(KdaDecodeSm90, Batches) {
  for (const std::int64_t batch : {0, 1, 3, 4, 8, 16}) {
    TestCase test = MakeCase(kDefinitions[0], batch);
    ExpectPasses(test, "batch_size " + std::to_string(batch));
  }
}

TEST_F(KdaDecodeSm90, AttributesOfTheProblem) {
  TestCase bound = MakeCase(kSmall, 2, "default", {{"lower_bound", -1.5}});
  ExpectPasses(bound, "lower_bound -1.5");
  TestCase deep = MakeCase(kSmall, 2, "default", {{"lower_bound", -40.0}});
  ExpectPasses(deep, "lower_bound -40");
  TestCase plain = MakeCase(kSmall, 2, "state_null", {{"qk_norm", std::int64_t{0}}});
  for (const char* name : {"q", "k"}) {  // norm of about 1, as a caller's normalisation leaves it
    Tensor& tensor = plain.inputs[name];
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      tensor.as<bf16>()[i] = ToBF16(ToFloat(tensor.as<bf16>()[i]) / 16);
    }
  }
  ExpectPasses(plain, "qk_norm 0");
}

// Row i of a request that is verified has the bits of i + 1 decode calls; the committed state
// stays.
TEST_F(KdaDecodeSm90, VerifiedRowsEqualDecodeCallsBitwise) {
  constexpr std::int64_t kRequests = 2, kRows = 5, kHeads = 8;
  constexpr std::int64_t kState = kHeads * kStateElements, kToken = kHeads * kHeadSize;
  TestCase rows = MakeCase(kSmall, kRequests * kRows);  // row r of request n is its batch row
  OnDevice device(rows);
  DeviceArray<float> scratch(kRequests * kRows * kState);
  Args verify = ArgsOf(rows, device);
  verify.batch = kRequests;
  verify.rows = kRows;
  verify.new_state = nullptr;
  verify.scratch = scratch.data();
  device.PoisonOutputs();
  RunCuda(verify, nullptr);
  device.Download();
  const std::vector<std::byte> output = BitsOf(rows).output;
  const std::vector<float> states = scratch.Get();
  for (std::int64_t n = 0; n < kRequests; ++n) {
    const float* committed = rows.inputs["state"].as<float>() + n * kState;
    DeviceArray<float> state(std::vector<float>(committed, committed + kState));
    for (std::int64_t r = 0; r < kRows; ++r) {
      const std::int64_t token = n * kRows + r;
      Args step = ArgsOf(rows, device);
      step.batch = 1;
      step.q += token * kToken, step.k += token * kToken, step.v += token * kToken;
      step.a += token * kToken, step.b += token * kHeads;
      step.output += token * kToken;
      step.state = step.new_state = state.data();
      RunCuda(step, nullptr);
      EXPECT_EQ(std::memcmp(state.Get().data(), states.data() + token * kState, kState * 4), 0)
          << "request " << n << " row " << r;
    }
  }
  device.Download();
  EXPECT_EQ(BitsOf(rows).output, output);
}

TEST_F(KdaDecodeSm90, EveryRowOfVerifying) {
  const Family family = MakeVerifyFamily();
  for (const std::int64_t requests : {1, 2, 4}) {
    for (const std::int64_t rows : {1, 2, 6, 8}) {
      TestCase test = MakeTestCase(family, "kda_verify_h8_d128",
                                   {{"batch_size", requests}, {"rows", rows}}, 19);
      OnDevice device(test);
      RunCuda(ArgsOf(test, device), nullptr);
      device.Download();
      const Verdict verdict = VerifyFully(test);
      EXPECT_TRUE(verdict.passed()) << requests << " x " << rows << ": " << verdict.reason;
    }
  }
}

TEST_F(KdaDecodeSm90, SameBitsTenTimesInPlaceAndInPools) {
  constexpr std::int64_t kState = 8 * kStateElements;
  TestCase test = MakeCase(kSmall, 3);
  OnDevice device(test);
  const Bits expected = Execute(test, device);
  for (int run = 0; run < 10; ++run) EXPECT_EQ(Execute(test, device, run % 2 == 1), expected);
  TestCase zeros = MakeCase(kSmall, 3, "state_zeros"), no_state = MakeCase(kSmall, 3, "state_null");
  EXPECT_EQ(Execute(zeros), Execute(no_state));

  const float* state = test.inputs["state"].as<float>();
  const auto* expected_state = reinterpret_cast<const float*>(expected.new_state.data());
  std::vector<float> pool(5 * kState, 42.0f);
  const std::vector<std::int64_t> slot = {4, -1, 1};
  for (const std::size_t n : {0, 2}) {
    std::copy_n(state + n * kState, kState, pool.data() + slot[n] * kState);
  }
  DeviceArray<float> device_pool(pool);
  DeviceArray<std::int64_t> device_slot(slot);
  Args args = ArgsOf(test, device);
  args.state = args.new_state = device_pool.data();
  args.slot = device_slot.data();
  args.slots = 5;
  device.PoisonOutputs();
  RunCuda(args, nullptr);
  device.Download();
  const std::vector<float> after = device_pool.Get();
  const Bits pooled = BitsOf(test);
  constexpr std::size_t kOutputBytes = 8 * kHeadSize * 2;
  for (std::size_t n = 0; n < 3; ++n) {
    for (std::size_t i = n * kOutputBytes; i < (n + 1) * kOutputBytes; ++i) {
      ASSERT_EQ(pooled.output[i], n == 1 ? std::byte{0} : expected.output[i]) << "row " << n;
    }
    if (n == 1) continue;
    EXPECT_EQ(std::memcmp(after.data() + slot[n] * kState, expected_state + n * kState, kState * 4),
              0);
  }
  for (const std::int64_t s : {0, 2, 3}) {
    for (std::int64_t i = 0; i < kState; ++i) {
      ASSERT_EQ(after[static_cast<std::size_t>(s * kState + i)], 42.0f) << "slot " << s;
    }
  }
}

// Where the page sends a NaN or an infinite gate; the reference has it at the same elements.
TEST_F(KdaDecodeSm90, NaNsAndInfiniteGates) {
  for (const char* name : {"q", "k", "v", "a", "b"}) {
    TestCase test = MakeCase(kSmall, 2);
    test.inputs[name].as<bf16>()[*name == 'b' ? 9 : 700] = ToBF16(kNaN);
    ExpectPasses(test, std::string("NaN in ") + name);
  }
  for (const char* gate : {"", "_unbounded", "_plain"}) {
    TestCase test = MakeCase(std::string("kda_decode_h64_d128") + gate, 1);
    bf16 *a = test.inputs["a"].as<bf16>(), *b = test.inputs["b"].as<bf16>();
    for (int i = 0; i < 64; ++i) {
      a[2 * i] = ToBF16(kInf);
      a[2 * i + 1] = ToBF16(-kInf);
    }
    b[1] = ToBF16(kInf);
    b[2] = ToBF16(-kInf);
    ExpectPasses(test, std::string("infinite gates") + gate);
  }
}

// No GPU needed: arguments are checked before the device is asked.
TEST(KdaDecodeSm90Plan, RefusesBadArguments) {
  TestCase test = MakeCase(kSmall, 2);
  const Args args = Bind(test.problem, test.inputs, test.outputs);
  const auto refusal = [](const Args& bad) -> std::string {
    try {
      PrepareCuda(bad);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  Args bad = args;
  bad.rows = 2;
  EXPECT_THAT(refusal(bad), HasSubstr("2 rows per request need scratch"));
  bad = args;
  bad.a_log = nullptr;
  EXPECT_THAT(refusal(bad), HasSubstr("A_log is missing"));
  EXPECT_EQ(refusal(args), "accepted");
}

}  // namespace
}  // namespace assay::kda_decode
