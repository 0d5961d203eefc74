// The GPU kernels of this room: every element against fp64, edges of the page, equal bits where the
// header promises them.
#include <gmock/gmock.h>

#include <limits>

#include "ops/gdn_decode/sm90.h"
#include "replay/device_room_test.cuh"

namespace assay::gdn_decode {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kRowElements = kValueHeads * kStateElements;  // states of a batch row
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

const Family& TheFamily() {
  static const Family family = MakeFamily();
  return family;
}

TestCase MakeCase(std::int64_t batch, const std::string& variant = "default",
                  std::uint64_t key = 11) {
  return MakeTestCase(TheFamily(), "gdn_decode_qk4_v8_d128_k_last", {{"batch_size", batch}}, key,
                      variant);
}

Args ArgsOf(const TestCase& test, OnDevice& device) {
  return BindOnDevice(test.problem, device.inputs(), device.outputs());
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
Bits Execute(TestCase& test, OnDevice& device, const Plan& plan) {
  device.PoisonOutputs();
  PrepareCuda(ArgsOf(test, device), plan)(nullptr);
  device.Download();
  return BitsOf(test);
}

Bits Execute(TestCase& test) {
  OnDevice device(test);
  return Execute(test, device, ChoosePlan(ArgsOf(test, device)));
}

void ExpectPasses(TestCase& test, const std::string& what) {
  Execute(test);
  const Verdict verdict = VerifyFully(test);
  EXPECT_TRUE(verdict.passed()) << what << ": " << verdict.reason;
}

using GdnDecodeSm90 = DeviceTest;

TEST_F(GdnDecodeSm90, EveryKernelEveryVariant) {
  for (const std::string& variant : TheFamily().variants) {
    TestCase test = MakeCase(3, variant);
    const Expected expected =
        ComputeExpected(TheFamily(), test.problem, test.inputs, AllRows(test));
    OnDevice device(test);
    for (const std::string_view kernel : Sm90Kernels()) {
      Execute(test, device, {kernel});
      const Verdict verdict =
          Verify(TheFamily(), test.problem, test.inputs, test.outputs, expected, 1);
      EXPECT_TRUE(verdict.passed()) << kernel << " " << variant << ": " << verdict.reason;
    }
  }
}

TEST_F(GdnDecodeSm90, CapturedAndOtherBatches) {
  for (const std::int64_t batch : {1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 48, 64, 65}) {
    TestCase test = MakeCase(batch);
    ExpectPasses(test, "batch_size " + std::to_string(batch));
  }
  TestCase none = MakeCase(0);
  Execute(none);
}

TEST_F(GdnDecodeSm90, BatchOf1000) {
  TestCase test = MakeCase(1000, "state_noise");
  Execute(test);
  const std::vector<std::int64_t> rows{0, 7, 8, 3999, 4000, 7991, 7992, 7999};
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, {rows, rows});
  const Verdict verdict = Verify(TheFamily(), test.problem, test.inputs, test.outputs, expected, 1);
  EXPECT_TRUE(verdict.passed()) << verdict.reason;
}

// Tighter than the captured rule: 1 bf16 ulp plus 2^-20 of the summed magnitudes.
TEST_F(GdnDecodeSm90, OutputWithinOneUlp) {
  TestCase test = MakeCase(16);
  Execute(test);
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, AllRows(test));
  const bf16* output = test.outputs["output"].as<bf16>();
  for (std::size_t i = 0; i < expected.outputs[0].value.size(); ++i) {
    const double r = expected.outputs[0].value[i];
    EXPECT_LE(std::abs(ToFloat(output[i]) - r), UlpBF16(r) + 0x1p-20 * expected.outputs[0].scale[i])
        << "element " << i;
  }
}

// State of norm 1e5, far above what the rules of the generator's variants see.
TEST_F(GdnDecodeSm90, StateOfLargeNorm) {
  TestCase test = MakeCase(4, "state_noise");
  float* state = test.inputs["state"].as<float>();
  for (std::int64_t i = 0; i < 4 * kRowElements; ++i) state[i] *= 1e4f;
  Execute(test);
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, AllRows(test));
  const float* got = test.outputs["new_state"].as<float>();
  for (std::size_t i = 0; i < expected.outputs[1].value.size(); ++i) {
    const double r = expected.outputs[1].value[i];
    ASSERT_LE(std::abs(got[i] - r), 1e-5 * std::abs(r) + 1e-2) << "element " << i;
  }
}

TEST_F(GdnDecodeSm90, NullStateIsZerosAndScaleHasADefault) {
  TestCase zeros = MakeCase(4, "state_zeros"), no_state = MakeCase(4, "state_null");
  EXPECT_EQ(Execute(zeros), Execute(no_state));
  TestCase given = MakeCase(4), no_scale = MakeCase(4, "scale_null");
  const Bits expected = Execute(given);
  EXPECT_EQ(Execute(no_scale), expected);
  given.inputs["scale"].as<float>()[0] = 0;
  EXPECT_EQ(Execute(given), expected);
  // A typed call gives the scale by value.
  OnDevice device(given);
  Args args = ArgsOf(given, device);
  args.scale_at = nullptr;
  args.scale = kDefaultScale;
  RunCuda(args, nullptr);
  device.Download();
  EXPECT_EQ(BitsOf(given), expected);
}

// Rows of a batch alone, in place, in a pool with padding, from a captured graph, ten times, and by
// every kernel: the same bits.
TEST_F(GdnDecodeSm90, SameBitsInPlaceInPoolsInGraphsAndByAllKernels) {
  TestCase test = MakeCase(5);
  OnDevice device(test);
  const Plan plan = ChoosePlan(ArgsOf(test, device));
  const Bits expected = Execute(test, device, plan);
  for (int run = 0; run < 10; ++run) EXPECT_EQ(Execute(test, device, plan), expected);
  for (const std::string_view kernel : Sm90Kernels()) {
    EXPECT_EQ(Execute(test, device, {kernel}), expected) << kernel;
    EXPECT_EQ(Execute(test, device, {kernel, true}), expected) << kernel << " overlapping";
  }
  const auto* expected_state = reinterpret_cast<const float*>(expected.new_state.data());
  const float* state = test.inputs["state"].as<float>();

  DeviceArray<float> place(std::vector<float>(state, state + 5 * kRowElements));
  Args args = ArgsOf(test, device);
  args.state = args.new_state = place.data();
  device.PoisonOutputs();
  RunCuda(args, nullptr);
  device.Download();
  EXPECT_EQ(BitsOf(test).output, expected.output);
  EXPECT_EQ(std::memcmp(place.Get().data(), expected_state, expected.new_state.size()), 0);

  // Slots 6, padding, 2, padding (outside the pool), 0.
  std::vector<float> pool(7 * kRowElements, 42.0f);
  const std::vector<std::int64_t> slot = {6, -1, 2, 7, 0};
  for (const std::size_t n : {0, 2, 4}) {
    std::copy_n(state + n * kRowElements, kRowElements, pool.data() + slot[n] * kRowElements);
  }
  DeviceArray<float> device_pool(pool);
  DeviceArray<std::int64_t> device_slot(slot);
  args.state = args.new_state = device_pool.data();
  args.slot = device_slot.data();
  args.slots = 7;
  device.PoisonOutputs();
  RunCuda(args, nullptr);
  device.Download();
  const std::vector<float> after = device_pool.Get();
  const Bits pooled = BitsOf(test);
  constexpr std::size_t kOutputBytes = kValueHeads * kHeadSize * 2;
  for (std::size_t n = 0; n < 5; ++n) {
    const bool padding = n == 1 || n == 3;
    for (std::size_t i = n * kOutputBytes; i < (n + 1) * kOutputBytes; ++i) {
      ASSERT_EQ(pooled.output[i], padding ? std::byte{0} : expected.output[i]) << "row " << n;
    }
    if (padding) continue;
    EXPECT_EQ(std::memcmp(after.data() + slot[n] * kRowElements, expected_state + n * kRowElements,
                          kRowElements * 4),
              0)
        << "row " << n;
  }
  for (const std::int64_t s : {1, 3, 4, 5}) {
    for (std::int64_t i = 0; i < kRowElements; ++i) {
      ASSERT_EQ(after[static_cast<std::size_t>(s * kRowElements + i)], 42.0f) << "slot " << s;
    }
  }

  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  for (int i = 0; i < 3; ++i) PrepareCuda(ArgsOf(test, device), {plan.kernel, i > 0})(stream);
  CheckCuda(cudaStreamEndCapture(stream, &graph), "end capture");
  CheckCuda(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
  device.PoisonOutputs();
  CheckCuda(cudaGraphLaunch(ready, stream), "cudaGraphLaunch");
  device.Download();
  EXPECT_EQ(BitsOf(test), expected);
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// Slot 20000 of a pool: element offsets pass 2^31.
TEST_F(GdnDecodeSm90, PoolBeyond32BitOffsets) {
  constexpr std::int64_t kSlots = 20001;
  std::size_t free = 0, total = 0;
  CheckCuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  if (free < std::size_t{12} << 30) GTEST_SKIP() << "needs 12 GiB, " << free << " bytes are free";
  TestCase test = MakeCase(1);
  const Bits expected = Execute(test);
  DeviceArray<float> pool(kSlots * kRowElements);
  float* place = pool.data() + (kSlots - 1) * kRowElements;
  CheckCuda(cudaMemcpy(place, test.inputs["state"].data, kRowElements * 4, cudaMemcpyHostToDevice),
            "cudaMemcpy");
  DeviceArray<std::int64_t> slot(std::vector<std::int64_t>{kSlots - 1});
  OnDevice device(test);
  Args args = ArgsOf(test, device);
  args.state = args.new_state = pool.data();
  args.slot = slot.data();
  args.slots = kSlots;
  RunCuda(args, nullptr);
  device.Download();
  std::vector<std::byte> state(kRowElements * 4);
  CheckCuda(cudaMemcpy(state.data(), place, state.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  EXPECT_EQ(state, expected.new_state);
  EXPECT_EQ(BitsOf(test).output, expected.output);
}

// Where the page sends a NaN or an infinite gate; the reference has it at the same elements.
TEST_F(GdnDecodeSm90, NaNsAndInfiniteGates) {
  for (const char* name : {"q", "k", "v", "a", "b"}) {
    TestCase test = MakeCase(2);
    test.inputs[name].as<bf16>()[*name == 'a' || *name == 'b' ? 9 : 700] = ToBF16(kNaN);
    ExpectPasses(test, std::string("NaN in ") + name);
  }
  TestCase state = MakeCase(1);
  state.inputs["state"].as<float>()[3 * kStateElements + 130] = kNaN;
  ExpectPasses(state, "NaN in state");

  TestCase test = MakeCase(1);
  bf16 *a = test.inputs["a"].as<bf16>(), *b = test.inputs["b"].as<bf16>();
  a[0] = ToBF16(kInf);   // g = 0
  a[1] = ToBF16(-kInf);  // g = 1
  b[2] = ToBF16(kInf);   // beta = 1
  b[3] = ToBF16(-kInf);  // beta = 0
  a[4] = ToBF16(kInf);
  b[4] = ToBF16(-kInf);                        // wiped and nothing new
  test.inputs["A_log"].as<float>()[5] = -200;  // e^A_log underflows in fp32
  a[5] = ToBF16(kInf);
  test.inputs["A_log"].as<float>()[6] = 80;
  ExpectPasses(test, "infinite gates");
}

// No GPU needed: arguments are checked before the device is asked.
TEST(GdnDecodeSm90Plan, RefusesBadArgumentsAndUnknownKernels) {
  TestCase test = MakeCase(2);
  const Args args = Bind(test.problem, test.inputs, test.outputs);
  const auto refusal = [](const Args& bad, const Plan& plan) -> std::string {
    try {
      PrepareCuda(bad, plan);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  Args bad = args;
  bad.v += 1;
  EXPECT_THAT(refusal(bad, {}), HasSubstr("v is not aligned to 8 bytes"));
  bad = args;
  bad.new_state = const_cast<float*>(bad.state) + 4;
  EXPECT_THAT(refusal(bad, {}), HasSubstr("new_state overlaps a part of state"));
  EXPECT_THAT(refusal(args, {"r3"}), HasSubstr("no kernel named r3"));
  EXPECT_EQ(refusal(args, ChoosePlan(args)), "accepted");
}

}  // namespace
}  // namespace assay::gdn_decode
