// Tests of the kda_decode room: step shapes, edge semantics of the page, verdicts of mutants.
#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/gdn_decode/spec.h"
#include "ops/kda_decode/spec.h"
#include "replay/room_test.h"
#include "replay/test_memory.h"

namespace assay::kda_decode {
namespace {

using ::testing::HasSubstr;

constexpr const char* kDefinition = "kda_decode_h64_d128";
constexpr const char* kSmall = "kda_decode_h8_d128";
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

const Family& TheFamily() {
  static const Family family = MakeFamily();
  return family;
}

const Family& VerifyFamily() {
  static const Family family = MakeVerifyFamily();
  return family;
}

TestCase MakeVerify(std::int64_t requests, std::int64_t rows,
                    const std::string& variant = "default", std::int64_t heads = 8) {
  return MakeTestCase(VerifyFamily(), "kda_verify_h" + std::to_string(heads) + "_d128",
                      {{"batch_size", requests}, {"rows", rows}}, 7, variant);
}

TestCase MakeCase(const std::string& definition, std::int64_t batch,
                  const std::string& variant = "default", std::uint64_t key = 7,
                  const Attributes& attributes = {}) {
  return MakeTestCase(TheFamily(), definition, {{"batch_size", batch}}, key, variant, attributes);
}

Args ArgsOf(TestCase& test) { return Bind(test.problem, test.inputs, test.outputs); }

std::vector<std::vector<std::byte>> OutputBytes(TestCase& test, int threads = 0) {
  test.outputs.Poison();
  RunCpu(ArgsOf(test), threads);
  return BytesOf(test.outputs);
}

TEST(KdaDecode, EveryDefinition) {
  for (const Definition& definition : TheFamily().definitions) {
    TestCase test = MakeCase(definition.name, kSanitized ? 1 : 2, "default", 5);
    ExpectCpuPasses(test, definition.name);
  }
}

TEST(KdaDecode, BatchSizes) {
  for (std::int64_t batch : {0, 1, 3, 4, 8, 16}) {
    if (kSanitized && batch > 3) break;
    TestCase test = MakeCase(kDefinition, batch, "default", 11);
    const Verdict verdict = RunAndVerify(test, "cpu", /*full=*/false);
    EXPECT_TRUE(verdict.passed()) << "batch_size " << batch << ": " << verdict.reason;
  }
}

TEST(KdaDecode, AllVariantsAndGates) {
  for (const std::string& variant : TheFamily().variants) {
    for (const char* gate : {"", "_unbounded", "_plain"}) {
      if (kSanitized && *gate != 0 && variant != "extreme_gates") continue;  // 64 heads are slow
      TestCase test = MakeCase(std::string(kDefinition) + gate, 1, variant, 3);
      ExpectCpuPasses(test, variant + gate);
    }
  }
}

TEST(KdaDecode, OtherLowerBounds) {
  for (double bound : {-1.0, -0.25, -5.0, -30.0}) {
    TestCase test = MakeCase(kSmall, 2, "default", 7, {{"lower_bound", bound}});
    EXPECT_EQ(ArgsOf(test).lower_bound, bound);
    ExpectCpuPasses(test, std::to_string(bound));
  }
}

TEST(KdaDecode, NormalisedQueriesAndKeys) {
  TestCase test = MakeCase(kSmall, 2, "default", 7, {{"qk_norm", std::int64_t{0}}});
  const bf16* k = test.inputs["k"].as<bf16>();
  double squares = 0;
  for (std::int64_t i = 0; i < kHeadSize; ++i) squares += std::pow(ToFloat(k[i]), 2);
  EXPECT_NEAR(squares, 1, 4e-3);
  ExpectCpuPasses(test, "normalised");
}

// Tighter than the captured rule: 1 bf16 ulp plus 2^-20 of the summed magnitudes.
TEST(KdaDecode, OutputWithinOneUlp) {
  TestCase test = MakeCase(kDefinition, 2);
  RunCpu(ArgsOf(test), 0);
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, 1);
  const bf16* output = test.outputs["output"].as<bf16>();
  for (std::size_t i = 0; i < expected.outputs[0].value.size(); ++i) {
    const double r = expected.outputs[0].value[i];
    EXPECT_LE(std::abs(ToFloat(output[i]) - r), UlpBF16(r) + 0x1p-20 * expected.outputs[0].scale[i])
        << "element " << i;
  }
}

TEST(KdaDecode, NullStateIsZeros) {
  TestCase zeros = MakeCase(kSmall, 3, "state_zeros"), null = MakeCase(kSmall, 3, "state_null");
  ASSERT_FALSE(null.inputs.has("state"));
  EXPECT_EQ(OutputBytes(zeros), OutputBytes(null));
}

TEST(KdaDecode, InPlaceEqualsOutOfPlace) {
  TestCase test = MakeCase(kSmall, 3);
  const auto expected = OutputBytes(test);
  Args args = ArgsOf(test);
  args.new_state = test.inputs["state"].as<float>();
  RunCpu(args, 0);
  EXPECT_EQ(BytesOf(test.outputs["output"]), expected[0]);
  EXPECT_EQ(BytesOf(test.inputs["state"]), expected[1]);
}

TEST(KdaDecode, RunsAreBitwiseEqual) {
  TestCase test = MakeCase(kSmall, 5);
  const auto inputs = BytesOf(test.inputs);
  const auto expected = OutputBytes(test, 1);
  for (int threads : {1, 2, 2, 3, 3, 4, 5, 7, 8, 40}) {
    EXPECT_EQ(OutputBytes(test, threads), expected) << threads << " threads";
  }
  EXPECT_EQ(BytesOf(test.inputs), inputs);
}

// Row i of a verify call has the bits of i + 1 successive decode calls; the committed state stays.
TEST(KdaDecode, VerifyEqualsSuccessiveDecode) {
  constexpr std::int64_t kRequests = 2, kRows = 6, kHeads = 8;
  constexpr std::int64_t kRowStates = kHeads * kStateElements, kRowValues = kHeads * kHeadSize;
  // The rows of all requests, as tokens of a batch; request r of the verify call owns 6 of them.
  TestCase tokens = MakeCase(kSmall, kRequests * kRows);
  const auto inputs = BytesOf(tokens.inputs);
  Args verify = ArgsOf(tokens);
  std::vector<float> scratch(kRequests * kRows * kRowStates);
  verify.batch = kRequests;
  verify.rows = kRows;
  verify.new_state = nullptr;
  verify.scratch = scratch.data();
  RunCpu(verify, 0);
  EXPECT_EQ(BytesOf(tokens.inputs), inputs);
  std::vector<bf16> output(kRowValues);
  for (std::int64_t r = 0; r < kRequests; ++r) {
    std::vector<float> state(verify.state + r * kRowStates, verify.state + (r + 1) * kRowStates);
    for (std::int64_t row = 0; row < kRows; ++row) {
      const std::int64_t token = r * kRows + row;
      Args one = ArgsOf(tokens);
      one.batch = 1;
      one.q += token * kRowValues;
      one.k += token * kRowValues;
      one.v += token * kRowValues;
      one.a += token * kRowValues;
      one.b += token * kHeads;
      one.state = one.new_state = state.data();
      one.output = output.data();
      RunCpu(one, 0);
      EXPECT_EQ(std::memcmp(output.data(), verify.output + token * kRowValues, kRowValues * 2), 0)
          << "request " << r << " row " << row;
      EXPECT_EQ(std::memcmp(state.data(), scratch.data() + token * kRowStates, kRowStates * 4), 0)
          << "request " << r << " row " << row;
    }
  }
}

// The relation to GDN: one decay for all channels of a head and normalised q and k. Its value heads
// 2c and 2c + 1 share a key head.
TEST(KdaDecode, EqualDecaysAreGdn) {
  constexpr std::int64_t kHeads = gdn_decode::kValueHeads;
  const Family gdn_family = gdn_decode::MakeFamily();
  TestCase gdn = MakeTestCase(gdn_family, "gdn_decode_qk4_v8_d128_k_last", {{"batch_size", 2}}, 9);
  const gdn_decode::Args in = gdn_decode::Bind(gdn.problem, gdn.inputs, gdn.outputs);
  gdn_decode::RunCpu(in, 0);
  std::vector<bf16> q(2 * kHeads * kHeadSize), k(q.size()), a(q.size()), output(q.size());
  std::vector<float> dt_bias(kHeads * kHeadSize), new_state(2 * kHeads * kStateElements);
  for (std::int64_t i = 0; i < 2 * kHeads * kHeadSize; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int64_t row = i / kHeadSize;
    q[at] = in.q[row / 2 * kHeadSize + i % kHeadSize];
    k[at] = in.k[row / 2 * kHeadSize + i % kHeadSize];
    a[at] = in.a[row];
    dt_bias[at % dt_bias.size()] = in.dt_bias[row % kHeads];
  }
  Args args;
  args.gate = Gate::kUnbounded;
  args.qk_norm = false;
  args.batch = 2;
  args.heads = kHeads;
  args.q = q.data();
  args.k = k.data();
  args.v = in.v;
  args.a = a.data();
  args.b = in.b;
  args.a_log = in.a_log;
  args.dt_bias = dt_bias.data();
  args.state = in.state;
  args.output = output.data();
  args.new_state = new_state.data();
  RunCpu(args, 0);
  for (std::size_t i = 0; i < output.size(); ++i) {
    const float expected = ToFloat(in.output[i]);
    EXPECT_NEAR(ToFloat(output[i]), expected, UlpBF16(expected) + 1e-6) << "element " << i;
  }
  for (std::size_t i = 0; i < new_state.size(); ++i) {
    ASSERT_NEAR(new_state[i], in.new_state[i], 1e-6 + 1e-5 * std::abs(in.new_state[i])) << i;
  }
}

// 64 tokens at the bound, or at no decay at all: finite and right after each.
TEST(KdaDecode, BoundaryOfTheBound) {
  for (const float a : {1e4f, -1e4f}) {
    TestCase test = MakeCase(kSmall, 1);
    bf16* raw = test.inputs["a"].as<bf16>();
    std::fill(raw, raw + 8 * kHeadSize, ToBF16(a));
    for (int token = 0; token < 64; ++token) {
      if (token % 16 == 15) {
        ExpectCpuPasses(test, "token " + std::to_string(token) + " at a = " + std::to_string(a));
      } else {
        RunCpu(ArgsOf(test), 0);
      }
      std::memcpy(test.inputs["state"].data, test.outputs["new_state"].data,
                  test.inputs["state"].bytes());
    }
  }
}

// -1e3 nats a token: the state is wiped, nothing overflows.
TEST(KdaDecode, UnboundedGateMayWipe) {
  TestCase test = MakeCase("kda_decode_h64_d128_unbounded", 1);
  bf16* raw = test.inputs["a"].as<bf16>();
  std::fill(raw, raw + 64 * kHeadSize, ToBF16(1000.0f));
  ExpectCpuPasses(test, "wiped");
}

// Running one model with the other gate gives plausible outputs: the mismatch of a record is
// refused, and the verdict sees it when nothing was recorded.
TEST(KdaDecode, GateMismatchIsRefused) {
  const auto make = [](const Attributes& attributes, const std::string& gate = "") {
    return ErrorOf([&] { MakeCase(kDefinition + gate, 1, "default", 7, attributes); });
  };
  EXPECT_EQ(make({{"gate_kind", "bounded"}, {"lower_bound", -5.0}}), "no error");
  EXPECT_EQ(make({{"lower_bound", std::int64_t{-5}}}), "no error");
  EXPECT_THAT(make({{"gate_kind", "unbounded"}}),
              HasSubstr("gate_kind = 'unbounded', but the definition has the bounded gate"));
  EXPECT_THAT(make({{"gate_kind", "bounded"}}, "_plain"), HasSubstr("has the plain gate"));
  EXPECT_THAT(make({{"lower_bound", -5.0}}, "_unbounded"), HasSubstr("has no lower_bound"));
  EXPECT_THAT(make({{"lower_bound", 0.0}}), HasSubstr("lower_bound = 0.0"));
  EXPECT_THAT(make({{"lower_bound", -kInf}}), HasSubstr("is not a negative number"));
  EXPECT_THAT(make({{"lower_bound", "-5"}}), HasSubstr("lower_bound is not a number"));

  TestCase test = MakeCase(kDefinition, 1);
  Args args = ArgsOf(test);
  args.gate = Gate::kUnbounded;
  RunCpu(args, 0);
  EXPECT_FALSE(VerifyFully(test).passed());
}

// A decay reaches the column of its key channel: with beta = 0, S[v][k] = state[v][k] e^(ln g_k).
TEST(KdaDecode, DecaysKeyChannels) {
  TestCase test = MakeCase(kSmall, 1);
  bf16* raw = test.inputs["a"].as<bf16>();
  for (std::int64_t i = 0; i < 8 * kHeadSize; ++i) {
    raw[i] = ToBF16(i % kHeadSize == 5 ? kInf : -kInf);  // only channel 5 decays
  }
  for (std::int64_t h = 0; h < 8; ++h) test.inputs["b"].as<bf16>()[h] = ToBF16(-kInf);
  ExpectCpuPasses(test, "one channel");
  const float* state = test.inputs["state"].as<float>();
  const float* new_state = test.outputs["new_state"].as<float>();
  for (std::int64_t i = 0; i < 8 * kStateElements; ++i) {
    EXPECT_EQ(new_state[i], i % kHeadSize == 5 ? state[i] * std::exp(-5.0f) : state[i]) << i;
  }
}

TEST(KdaDecode, ZeroKeysAndQueries) {
  TestCase test = MakeCase(kSmall, 1, "zero_rows");
  ExpectCpuPasses(test, "zero rows");
  for (std::int64_t i = 0; i < kHeadSize; ++i) {  // head 2 has the zero query
    EXPECT_EQ(ToFloat(test.outputs["output"].as<bf16>()[2 * kHeadSize + i]), 0);
  }
}

// Which heads of a request hold a NaN in output and state, how many each.
struct NaNs {
  std::array<int, 8> output{}, state{};
};
NaNs CountNaNs(TestCase& test) {
  NaNs count;
  for (std::size_t i = 0; i < 8 * kHeadSize; ++i) {
    count.output[i / kHeadSize] += std::isnan(ToFloat(test.outputs["output"].as<bf16>()[i]));
  }
  for (std::size_t i = 0; i < 8 * kStateElements; ++i) {
    count.state[i / kStateElements] += std::isnan(test.outputs["new_state"].as<float>()[i]);
  }
  return count;
}

TEST(KdaDecode, NaNStaysWhereThePageSays) {
  const auto count = [](const char* tensor) {
    TestCase test = MakeCase(kSmall, 1);
    test.inputs[tensor].as<bf16>()[3 * kHeadSize + 17] = ToBF16(kNaN);
    ExpectCpuPasses(test, std::string("NaN in ") + tensor);
    const NaNs nans = CountNaNs(test);
    for (std::size_t h = 0; h < 8; ++h) {
      if (h == 3) continue;
      EXPECT_EQ(nans.output[h] + nans.state[h], 0) << tensor << " head " << h;
    }
    return std::pair(nans.output[3], nans.state[3]);
  };
  EXPECT_EQ(count("v"), std::pair(1, 128));
  EXPECT_EQ(count("k"), std::pair(128, 16384));
  EXPECT_EQ(count("a"), std::pair(128, 16384));
  EXPECT_EQ(count("q"), std::pair(128, 0));
}

// Negative slots are padding rows: output 0, no state touched.
TEST(KdaDecode, PoolOfStates) {
  TestCase plain = MakeCase(kSmall, 3), pooled = MakeCase(kSmall, 3);
  const auto expected = OutputBytes(plain);
  constexpr std::int64_t kElements = 8 * kStateElements;
  Bundle memory = Bundle::Allocate({{"pool", DType::kF32, {5 * kElements}}});
  float* pool = memory["pool"].as<float>();
  std::fill(pool, pool + 5 * kElements, 42.0f);
  const std::int64_t slot[] = {4, -1, 1};
  const float* state = pooled.inputs["state"].as<float>();
  for (int n : {0, 2}) std::copy_n(state + n * kElements, kElements, pool + slot[n] * kElements);
  Args args = ArgsOf(pooled);
  args.state = args.new_state = pool;
  args.slot = slot;
  args.slots = 5;
  RunCpu(args, 0);
  const auto* wanted = reinterpret_cast<const float*>(expected[1].data());
  for (int n : {0, 2}) {
    EXPECT_EQ(std::memcmp(pool + slot[n] * kElements, wanted + n * kElements, kElements * 4), 0);
  }
  for (std::int64_t i = 0; i < 8 * kHeadSize; ++i) {
    EXPECT_EQ(args.output[8 * kHeadSize + i].bits, 0);
  }
  for (std::int64_t s : {0, 2, 3}) EXPECT_EQ(pool[s * kElements], 42.0f);
  const std::int64_t twice[] = {2, 2, 1}, outside[] = {0, 5, 1};
  args.slot = twice;
  EXPECT_THAT(ErrorOf([&] { RunCpu(args, 0); }), HasSubstr("slot 2 is used by two rows"));
  args.slot = outside;
  EXPECT_THAT(ErrorOf([&] { RunCpu(args, 0); }), HasSubstr("slot[1] = 5 is outside the pool of 5"));
}

// Slot 2100 of a pool with 64 heads: element offsets pass 2^31. The pool is reserved, not touched,
// except for that slot.
TEST(KdaDecode, PoolBeyond32BitOffsets) {
  constexpr std::int64_t kSlots = 2101, kElements = 64 * kStateElements;
  constexpr std::size_t kBytes = kSlots * kElements * sizeof(float);
  static_assert((kSlots - 1) * kElements > std::int64_t{1} << 31);
  const Reserved memory(kBytes);
  if (!memory.ok()) GTEST_SKIP() << "cannot reserve " << kBytes << " bytes of addresses";
  TestCase test = MakeCase(kDefinition, 1);
  const auto expected = OutputBytes(test);
  auto* pool = memory.as<float>();
  const std::int64_t slot[] = {kSlots - 1};
  float* place = pool + slot[0] * kElements;
  std::copy_n(test.inputs["state"].as<float>(), kElements, place);
  Args args = ArgsOf(test);
  args.state = args.new_state = pool;
  args.slot = slot;
  args.slots = kSlots;
  RunCpu(args, 0);
  EXPECT_EQ(std::memcmp(place, expected[1].data(), expected[1].size()), 0);
  EXPECT_EQ(BytesOf(test.outputs["output"]), expected[0]);
}

TEST(KdaDecode, RefusesBadCalls) {
  TestCase test = MakeCase(kSmall, 2);
  const auto refusal = [&](const std::function<void(Args&)>& change) {
    Args args = ArgsOf(test);
    change(args);
    return ErrorOf([&] { RunCpu(args, 0); });
  };
  EXPECT_EQ(refusal([](Args&) {}), "no error");
  EXPECT_THAT(refusal([](Args& a) { a.new_state = const_cast<float*>(a.state) + 4; }),
              HasSubstr("new_state overlaps a part of state"));
  EXPECT_THAT(refusal([](Args& a) {
                a.new_state = nullptr;
                a.scratch = const_cast<float*>(a.state);
              }),
              HasSubstr("scratch overlaps state"));
  EXPECT_THAT(refusal([](Args& a) { a.state += 1; }),
              HasSubstr("state is not aligned to 16 bytes"));
  EXPECT_THAT(refusal([](Args& a) { a.v += 1; }), HasSubstr("v is not aligned to 8 bytes"));
  EXPECT_THAT(refusal([](Args& a) { a.a_log = nullptr; }), HasSubstr("A_log is missing"));
  EXPECT_THAT(refusal([](Args& a) { a.rows = 2; }), HasSubstr("2 rows per request need scratch"));
  EXPECT_THAT(refusal([](Args& a) { a.new_state = nullptr; }), HasSubstr("exactly one of"));
  EXPECT_THAT(refusal([](Args& a) { a.lower_bound = kNaN; }), HasSubstr("lower_bound = nan"));
}

TEST(KdaDecode, RefusesBadInputs) {
  TestCase test = MakeCase(kSmall, 1);
  const auto validate = [&] { TheFamily().validate_inputs(test.problem, test.inputs); };
  float* a_log = test.inputs["A_log"].as<float>();
  const float kept = a_log[3];
  for (float bad : {81.0f, kInf, kNaN, -kInf}) {
    a_log[3] = bad;
    EXPECT_THAT(ErrorOf(validate), HasSubstr("A_log[3] = "));
  }
  a_log[3] = kept;
  test.inputs["dt_bias"].as<float>()[7 * kHeadSize + 2] = kInf;
  EXPECT_THAT(ErrorOf(validate), HasSubstr("dt_bias[7,2] = inf"));

  const auto with = [&](const TensorLayout& changed, const char* definition = kSmall) {
    const Problem problem = MakeProblem(TheFamily(), definition, {{"batch_size", 1}});
    std::vector<TensorLayout> layouts = TheFamily().input_layouts(problem);
    for (TensorLayout& layout : layouts) {
      if (layout.name == changed.name) layout = changed;
    }
    const Bundle inputs = Bundle::Allocate(layouts);
    return ErrorOf([&] { TheFamily().validate_inputs(problem, inputs); });
  };
  EXPECT_EQ(with({"dt_bias", DType::kF32, {1024}}), "no error");
  EXPECT_THAT(with({"dt_bias", DType::kF32, {1023}}), HasSubstr("'dt_bias' is float32[1023]"));
  EXPECT_THAT(with({"A_log", DType::kF32, {7}}), HasSubstr("'A_log' is float32[7], expected"));
  EXPECT_THAT(with({"A_log", DType::kF32, {8}}, "kda_decode_h64_d128_plain"), "no error");
  const TestCase larger = MakeCase(kSmall, 2);
  EXPECT_THAT(ErrorOf([&] { TheFamily().validate_inputs(test.problem, larger.inputs); }),
              HasSubstr("input 'q' is bfloat16[2,1,8,128], expected bfloat16[1,1,8,128]"));
}

TEST(KdaDecode, MutantsAreRejected) {
  for (const char* definition :
       {kSmall, kDefinition, "kda_decode_h64_d128_unbounded", "kda_decode_h64_d128_plain"}) {
    TestCase test = MakeCase(definition, 1);
    SCOPED_TRACE(definition);
    ExpectMutantsKilled(test);
  }
}

TEST(KdaVerify, StepShapesAndVariants) {
  for (std::int64_t requests : {1, 2, 4}) {
    for (std::int64_t rows : {1, 2, 4, 6, 8}) {
      if (kSanitized && requests * rows > 4) continue;
      TestCase test = MakeVerify(requests, rows);
      ExpectCpuPasses(test, std::to_string(requests) + " x " + std::to_string(rows));
    }
  }
  for (const std::string& variant : VerifyFamily().variants) {
    TestCase test = MakeVerify(1, 3, variant);
    ExpectCpuPasses(test, variant);
  }
  TestCase empty = MakeVerify(0, 4);
  ExpectCpuPasses(empty, "no requests");
}

TEST(KdaVerify, RowsAreSampledWhereThereAreMany) {
  if (kSanitized) GTEST_SKIP() << "134 MB of states";
  TestCase test = MakeVerify(2, 16, "default", 64);
  const Verdict verdict = RunAndVerify(test, "cpu", /*full=*/false);
  EXPECT_TRUE(verdict.passed()) << verdict.reason;
}

TEST(KdaVerify, MutantsAreRejected) {
  TestCase test = MakeVerify(2, 4);
  ExpectMutantsKilled(test);
}

TEST(KdaVerify, RefusesBadAxesAndCountsItsBytes) {
  EXPECT_THAT(ErrorOf([] { MakeVerify(1, 0); }), HasSubstr("axis rows = 0"));
  TestCase test = MakeVerify(2, 4);
  EXPECT_EQ(VerifyFamily().cost(test.problem, test.inputs).bytes,
            2 * 8 * (5 * 65536 + 4 * 1282) + 8 * 516);
  const TestCase decode = MakeCase(kSmall, 2);
  EXPECT_THAT(ErrorOf([&] { VerifyFamily().validate_inputs(test.problem, decode.inputs); }),
              HasSubstr("input 'q' is bfloat16[2,1,8,128], expected bfloat16[2,4,8,128]"));
}

TEST(KdaDecode, CostMatchesThePage) {
  TestCase test = MakeCase(kDefinition, 1), null = MakeCase(kDefinition, 1, "state_null");
  EXPECT_EQ(TheFamily().cost(test.problem, test.inputs).bytes, 64 * (132354 + 516));
  EXPECT_EQ(TheFamily().cost(test.problem, test.inputs).flops, 64 * 7 * 16384);
  EXPECT_EQ(TheFamily().cost(null.problem, null.inputs).bytes, 64 * (132354 + 516 - 65536));
}

// Every set holds all three regimes of the gate, and states that are neither dead nor exploding.
TEST(KdaGenerator, DistributionIsAsDocumented) {
  for (const char* gate : {"", "_unbounded", "_plain"}) {
    TestCase test = MakeCase(std::string(kDefinition) + gate, 1);
    std::array<int, 3> regimes{};
    const Args args = ArgsOf(test);
    for (std::int64_t i = 0; i < 64 * kHeadSize; ++i) {
      const double x = ToFloat(args.a[i]) + double{args.dt_bias[i]};
      const double rate = args.a_log != nullptr ? std::exp(args.a_log[i / kHeadSize]) : 1.0;
      const double ln_g = args.gate == Gate::kUnbounded ? -rate * std::log1p(std::exp(x))
                                                        : -5 / (1 + std::exp(-rate * x));
      if (ln_g > -0.0125) ++regimes[0];
      if (ln_g > -3.5 && ln_g < -0.04) ++regimes[1];
      if (ln_g < -4.7) ++regimes[2];
    }
    for (int count : regimes) EXPECT_GT(count, 64 * kHeadSize / 4) << gate;
    double squares = 0;
    for (std::int64_t i = 0; i < 64 * kStateElements; ++i) {
      squares += double{args.state[i]} * args.state[i];
    }
    const double rms = std::sqrt(squares / (64 * kStateElements));
    EXPECT_GT(rms, 0.02) << gate;
    EXPECT_LT(rms, 2) << gate;
  }
}

// Frozen bits: they must never change, or seeds stop meaning the same content.
TEST(KdaGenerator, SameBitsOnEveryMachine) {
  TestCase bounded = MakeCase(kSmall, 1, "default", 0x0123456789ABCDEF);
  TestCase unbounded = MakeCase("kda_decode_h64_d128_unbounded", 1, "default", 0x0123456789ABCDEF);
  EXPECT_EQ(HashOf(unbounded.inputs, HashOf(bounded.inputs)), 0x848BE0784F006400u);
}

}  // namespace
}  // namespace assay::kda_decode
