// Tests of the moe_decode room: formats, shapes, edges of the activation, refusals, mutants.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "ops/moe_decode/spec.h"
#include "replay/room_test.h"

namespace assay::moe_decode {
namespace {

using ::testing::HasSubstr;

constexpr Format kFormats[] = {Format::kFP8, Format::kMXFP4, Format::kNVFP4};

// The family of a format with one small definition more: 6 experts, 2 of them chosen.
const Family& FamilyOf(Format format) {
  static const std::vector<Family> families = [] {
    std::vector<Family> made;
    for (const Format each : kFormats) {
      Family family = FourBits(each) ? MakeW4Family() : MakeW8Family();
      family.definitions.push_back(DefinitionOf("small", each, 6, 256, 384, 2));
      family.definitions.push_back(DefinitionOf("three", each, 9, 256, 128, 3));
      made.push_back(std::move(family));
    }
    return made;
  }();
  return families[static_cast<std::size_t>(format)];
}

TestCase MakeSmall(Format format, std::int64_t m, const std::string& variant = "",
                   const char* definition = "small") {
  return MakeTestCase(FamilyOf(format), definition, {{"M", m}}, 7, variant);
}

TEST(MoeDecode, FormatsVariantsAndRows) {
  for (const Format format : kFormats) {
    for (const std::int64_t m : {1, 2, 7, 16}) {
      TestCase test = MakeSmall(format, m);
      ExpectCpuPasses(test, test.problem.definition->name + ", M = " + std::to_string(m),
                      /*full=*/false);
    }
    for (const std::string& variant : Variants()) {
      TestCase test = MakeSmall(format, 3, variant);
      ExpectCpuPasses(test, variant, /*full=*/false);
    }
  }
}

TEST(MoeDecode, NoRows) {
  TestCase test = MakeSmall(Format::kFP8, 0);
  const Verdict verdict = RunAndVerify(test, "cpu", false);
  EXPECT_TRUE(verdict.passed()) << verdict.reason;
}

std::vector<bf16> OutputOf(Args args, int threads = 0) {
  std::vector<bf16> y(static_cast<std::size_t>(args.m * args.hidden));
  args.y = y.data();
  RunCpu(args, threads);
  return y;
}

// A row's bits depend neither on the other rows, nor on threads, nor on the order of its experts.
TEST(MoeDecode, RowsAreAlone) {
  for (const Format format : kFormats) {
    TestCase test = MakeSmall(format, 5, "", "three");
    const Args args = BindInputs(test.problem, test.inputs);
    const std::vector<bf16> together = OutputOf(args, 3);
    for (std::int64_t row = 0; row < args.m; ++row) {
      Args alone = args;
      std::vector<std::int32_t> ids(args.ids + row * 3, args.ids + row * 3 + 3);
      std::vector<float> weights(args.weights + row * 3, args.weights + row * 3 + 3);
      std::swap(ids[0], ids[2]);
      std::swap(weights[0], weights[2]);
      alone.m = 1;
      alone.x += row * args.hidden;
      alone.ids = ids.data();
      alone.weights = weights.data();
      const std::vector<bf16> own = OutputOf(alone, 1);
      EXPECT_EQ(std::memcmp(own.data(), together.data() + row * args.hidden, own.size() * 2), 0)
          << "row " << row;
    }
  }
}

// Every code and scale of a format, against their values as other code has them.
TEST(MoeDecode, DecodersKnowEveryCode) {
  std::vector<std::uint8_t> codes(128 * 256);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i);
  const std::vector<float> blocks = {0.75f, -3.0f};
  std::vector<float> out(256);
  Matrix w{Format::kFP8, 128, 256, codes.data(), blocks.data()};
  DecodeFP8(w, 0, 77, out.data());
  for (unsigned code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F) continue;  // NaN: refused
    EXPECT_EQ(out[code], ToFloat(e4m3{static_cast<std::uint8_t>(code)}) * blocks[code / 128])
        << code;
  }
  for (const Format format : {Format::kMXFP4, Format::kNVFP4}) {
    const float global = 3;
    for (unsigned byte = 1; byte < 127; ++byte) {
      const std::vector<std::uint8_t> groups(256, static_cast<std::uint8_t>(byte));
      w = {format, 1, 256, codes.data(), nullptr, groups.data()};
      float scale = ToFloat(ue8m0{static_cast<std::uint8_t>(byte)});
      if (format == Format::kNVFP4) {
        w.global = &global;
        scale = ToFloat(e4m3{static_cast<std::uint8_t>(byte)}) * global;
      }
      DecodeFP4(w, 0, 0, out.data());
      for (unsigned k = 0; k < 256; ++k) {
        const unsigned code = k % 2 == 0 ? codes[k / 2] & 15u : codes[k / 2] >> 4;
        ASSERT_EQ(out[k / 2 + k % 2 * 128], E2M1ToFloat(code) * scale) << byte << ", " << k;
      }
    }
  }
}

// The gate is clamped above only, before its silu; up on both sides. One weight that is not zero
// per matrix makes each step visible.
TEST(MoeDecode, ActivationAtItsEdges) {
  TestCase test = MakeSmall(Format::kFP8, 1);
  Args args = BindInputs(test.problem, test.inputs);
  args.shared = false;
  for (const char* name : {"w_gate", "w_up", "w_down"}) {
    std::memset(test.inputs[name].data, 0, test.inputs[name].bytes());
  }
  for (const char* name : {"s_gate", "s_up", "s_down"}) {
    std::fill_n(test.inputs[name].as<float>(), test.inputs[name].elements(), 1.0f);
  }
  const std::int64_t expert = args.ids[0];
  for (const char* name : {"w_gate", "w_up", "w_down"}) {
    test.inputs[name].as<e4m3>()[expert * 256 * 384] = ToE4M3(1.0);
  }
  // Gate and up read different elements of x.
  std::swap(test.inputs["w_up"].as<e4m3>()[expert * 256 * 384],
            test.inputs["w_up"].as<e4m3>()[expert * 256 * 384 + 1]);
  test.inputs["topk_weights"].as<float>()[0] = 1;
  const auto y = [&](float gate, float up) {
    bf16* x = test.inputs["x"].as<bf16>();
    x[0] = ToBF16(gate);
    x[1] = ToBF16(up);
    return ToFloat(OutputOf(args)[0]);
  };
  const auto silu = [](float x) { return x / (1 + std::exp(-x)); };
  EXPECT_EQ(y(20, 1), y(10, 1));
  EXPECT_NEAR(y(10, 1), silu(10), 0.04);
  EXPECT_EQ(y(2, 40), y(2, 10));
  EXPECT_EQ(y(2, -40), y(2, -10));
  EXPECT_LT(y(2, -10), 0);
  EXPECT_NEAR(y(-12, 10), 10 * silu(-12), 1e-5);  // not clamped below: -10 would give -4.5e-3
  EXPECT_NEAR(y(-1, 1), silu(-1), 0.002);
  EXPECT_EQ(y(0, 10), 0);
}

TEST(MoeDecode, RefusesWhatCannotBe) {
  TestCase test = MakeSmall(Format::kFP8, 2);
  const auto text = [](const std::function<void()>& action) -> std::string {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::kInput);
      return error.what();
    }
    return "no error";
  };
  const auto validate = [&] {
    return text([&] { test.family->validate_inputs(test.problem, test.inputs); });
  };
  auto* ids = test.inputs["topk_ids"].as<std::int32_t>();
  const std::int32_t right = std::exchange(ids[1], 6);
  EXPECT_THAT(validate(), HasSubstr("topk_ids[0,1] = 6 is outside the 6 routed experts"));
  ids[1] = ids[0];
  EXPECT_THAT(validate(), HasSubstr("comes twice"));
  ids[1] = right;
  float& weight = test.inputs["topk_weights"].as<float>()[2];
  const float kept = std::exchange(weight, NAN);
  EXPECT_THAT(validate(), HasSubstr("topk_weights[1,0] is not finite"));
  weight = kept;
  test.inputs["w_down"].as<e4m3>()[right * 384 * 256 + 384 * 3 + 5].bits = 0xFF;
  EXPECT_THAT(validate(), HasSubstr("w_down of expert " + std::to_string(right) +
                                    ", row 3, column 5 is not a number"));
  const auto problem = [&](std::int64_t m) {
    return text([&] { MakeProblem(FamilyOf(Format::kFP8), "small", {{"M", m}}); });
  };
  EXPECT_THAT(problem(257), HasSubstr("axis M = 257"));
}

TEST(MoeDecode, CostOfTheRealLayer) {
  const Family family = MakeW8Family();
  const Problem problem = MakeProblem(family, "moe_w8_decode_fp8_e288_h4096_i2048_k8", {{"M", 1}});
  Bundle inputs = Bundle::AllocateShared(family.input_layouts(problem));
  for (std::int32_t j = 0; j < 8; ++j) inputs["topk_ids"].as<std::int32_t>()[j] = 30 * j;
  const Cost cost = family.cost(problem, inputs);
  EXPECT_EQ(cost.flops, 6.0 * 9 * 4096 * 2048);
  EXPECT_EQ(cost.bytes, 9 * (3.0 * 4096 * 2048 + 3 * 4.0 * 32 * 16) + 4 * 4096 + 64);
  EXPECT_LT(family.resident_bytes(problem), 230e6) << "idle experts take no memory";
}

TEST(MoeDecode, MutantsAreRejected) {
  for (const Format format : kFormats) {
    for (const std::int64_t m : {1, 4}) {
      TestCase test = MakeSmall(format, m, "", "three");
      SCOPED_TRACE(test.family->name + ", format " + std::to_string(static_cast<int>(format)) +
                   ", M = " + std::to_string(m));
      ExpectMutantsKilled(test);
    }
  }
}

}  // namespace
}  // namespace assay::moe_decode
