// New content for every timed call: versions of inputs, the loop that uses them, its judge.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/low_bits.h"
#include "replay/fault_cases.h"
#include "replay/faulty_family.h"
#include "replay/fresh_inputs.h"
#include "replay/measure.h"

namespace assay {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Bytes(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data), tensor.bytes()};
}

Bundle RandomBundle(const std::vector<TensorLayout>& layouts) {
  Bundle bundle = Bundle::AllocateShared(layouts);
  for (std::size_t t = 0; t < bundle.tensors().size(); ++t) {
    const Tensor& tensor = bundle.tensors()[t];
    for (std::size_t i = 0; i < tensor.bytes(); ++i) {
      tensor.data[i] = static_cast<std::byte>(Mix64(5, t, i));
    }
  }
  return bundle;
}

TEST(FreshInputs, OnlyLowestBitsOfInexactFiniteElementsChange) {
  // Every code of the 8-bit and 16-bit formats, in places with and without a drawn bit.
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kE4M3, DType::kE5M2}) {
    const int bytes = static_cast<int>(DTypeBytes(dtype, 1));
    const LowBitLanes lanes = LowBitLanesOf(dtype);
    const std::uint64_t mantissa = lanes.mantissa & ((std::uint64_t{2} << lanes.top) - 1);
    const std::uint64_t exponent = lanes.exponent & ((std::uint64_t{2} << lanes.top) - 1);
    for (std::uint64_t code = 0; code < (std::uint64_t{1} << (8 * bytes)); ++code) {
      const bool exact = (code & mantissa) == 0 || (code & exponent) == exponent;
      std::uint64_t word = 0;
      for (int at = 0; at < 8 / bytes; ++at) word |= code << (8 * bytes * at);
      EXPECT_EQ(ChangeLowBits(word, 0, 3, lanes), word);
      EXPECT_EQ(ChangeLowBits(word, ~std::uint64_t{0}, 3, lanes), exact ? word : word ^ lanes.low);
    }
  }
  EXPECT_EQ(LowBitLanesOf(DType::kI32).low, 0u);
  EXPECT_EQ(LowBitLanesOf(DType::kUE8M0).low, 0u);
}

TEST(FreshInputs, VersionsDifferEverywhereAndCanBeTakenBack) {
  // Sizes that end inside a word, inside a line and beyond one thread's share.
  Bundle bundle = RandomBundle({{"half", DType::kBF16, {3, 333'331}},
                                {"single", DType::kF32, {77}},
                                {"byte", DType::kE4M3, {1'001}},
                                {"double", DType::kF64, {9}},
                                {"index", DType::kI32, {100}},
                                {"scale", DType::kF32, {}}});
  ASSERT_TRUE(HasVersions(bundle));
  std::vector<std::string> original;
  for (const Tensor& tensor : bundle.tensors()) original.push_back(Bytes(tensor));
  ChangeVersion(bundle, kOriginalVersion, 2);
  const std::string second = Bytes(bundle["half"]);
  ChangeVersion(bundle, 2, 3);
  EXPECT_NE(Bytes(bundle["half"]), second);
  for (std::size_t t = 0; t < 4; ++t) EXPECT_NE(Bytes(bundle.tensors()[t]), original[t]) << t;
  EXPECT_EQ(Bytes(bundle["index"]), original[4]);
  EXPECT_EQ(Bytes(bundle["scale"]), original[5]);
  EXPECT_EQ(bundle.CheckRedZones(), std::nullopt);
  const auto* now = bundle["half"].as<bf16>();
  const auto* before = reinterpret_cast<const bf16*>(original[0].data());
  std::int64_t changed = 0;
  for (std::int64_t i = 0; i < bundle["half"].elements(); ++i) {
    changed += now[i].bits != before[i].bits;
    ASSERT_EQ(now[i].bits | 1, before[i].bits | 1);
  }
  EXPECT_NEAR(static_cast<double>(changed) / 999'993, 0.5 * 63 / 64, 0.01);
  ChangeVersion(bundle, 3, kOriginalVersion);
  for (std::size_t t = 0; t < original.size(); ++t)
    EXPECT_EQ(Bytes(bundle.tensors()[t]), original[t]);
}

TEST(FreshInputs, EveryColdCallMeetsItsOwnContent) {
  std::vector<Slot> slots;
  for (int s = 0; s < 3; ++s) {
    slots.push_back({RandomBundle({{"x", DType::kF32, {1'000}}}),
                     Bundle::AllocateShared({{"y", DType::kF32, {4}}})});
    slots.back().inputs["x"].as<float>()[0] = static_cast<float>(s);
  }
  const std::vector<Slot> original = {{RandomBundle({{"x", DType::kF32, {1'000}}}), {}}};
  std::set<std::string> seen;
  int calls = 0;
  TimingLimits limits;
  limits.max_samples = 50;
  const MeasuredSeries cold = MeasureHost("cold_host", slots, limits, true, [&](Slot& slot) {
    ++calls;
    seen.insert(Bytes(slot.inputs["x"]));
    std::fill_n(slot.outputs["y"].as<float>(), 4, 0.0f);
  });
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(calls));
  EXPECT_GE(cold.series.samples_ns.size(), 33u);  // thirty, then one more for each content set
  EXPECT_EQ(slots[0].version, kJudgedVersion);
  EXPECT_EQ(slots[1].version, kOriginalVersion);
  EXPECT_EQ(Bytes(slots[1].inputs["x"]).substr(4), Bytes(original[0].inputs["x"]).substr(4));
}

std::vector<CaseResult> RunBackends(const std::vector<std::string>& backends, std::uint64_t seed) {
  RunOptions options = QuickOptions({FAULTY_WORKER});
  options.backends = backends;
  options.seed = seed;
  return RunSuite(FaultyRegistry(), {FaultySum(1000)}, options);
}

TEST(FreshInputs, WhatIsComputedInTheTimingLoopIsJudged) {
  const CaseResult lazy = RunBackends({"skips_versions"}, 0).at(0);
  EXPECT_EQ(lazy.status, Status::kIncorrect);
  EXPECT_EQ(lazy.sub, "unstable");
  EXPECT_THAT(lazy.reason, HasSubstr("wrong in the timing loop on new content"));
  const CaseResult good = RunBackends({"good"}, 0).at(0);
  EXPECT_EQ(good.status, Status::kPassed) << good.reason;
  EXPECT_THAT(good.flags, Not(Contains("repeated_content")));
}

TEST(FreshInputs, AWorkerThatDiesInTheLoopLeavesTheOthersTheirInputs) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {  // the order of backends depends on it
    for (const CaseResult& result : RunBackends({"dies_while_timed", "good"}, seed)) {
      const bool good = result.backend == "good";
      EXPECT_EQ(result.status, good ? Status::kPassed : Status::kFailed) << result.reason;
    }
  }
}

}  // namespace
}  // namespace assay
