// The attention kernels on the device: every kernel and split against fp64 at awkward shapes,
// repeatability, guard bands, strides, NaN, offsets beyond 2^31.
#include <gmock/gmock.h>

#include <limits>

#include "base/error.h"
#include "cuda/device_test.cuh"
#include "ops/attention/cases_sm90.cuh"
#include "ops/attention/check_sm90.cuh"

namespace assay::attention {
namespace {

constexpr bf16 kNaN{0x7FC1};

using AttentionSm90 = DeviceTest;

// Kernels and splits that can run the call.
std::vector<Sm90Plan> PlansFor(const Sm90Call& call) {
  std::vector<Sm90Plan> plans;
  for (const std::string_view kernel : Sm90Kernels()) {
    if (!WhyNot(call, kernel).empty()) continue;
    plans.push_back({kernel, 1});
    const bool cluster = kernel.starts_with("split");
    if (kernel.starts_with("core") && !call.block_causal) plans.push_back({kernel, 1, true});
    if (!cluster && !kernel.starts_with("resident")) continue;
    for (const int split : {2, 4, 8}) plans.push_back({kernel, split});
  }
  return plans;
}

std::string Name(const Sm90Plan& plan) {
  return std::string(plan.kernel) + " split " + std::to_string(plan.split) +
         (plan.share ? " shared" : "");
}

void Execute(const Sm90Call& call, const Sm90Plan& plan) {
  PrepareSm90(call, plan)(nullptr);
  CheckCuda(cudaDeviceSynchronize(), Name(plan).c_str());
}

void ExpectRight(const Sm90Call& call, const std::string& what, std::int64_t step = 1) {
  const CheckResult result = CheckOnDevice(call, step);
  EXPECT_GT(result.rows, 0u);
  EXPECT_EQ(result.outside, 0u) << what << ": first at element " << result.first;
  EXPECT_EQ(result.wrong_lse, 0u) << what;
  EXPECT_LE(result.worst_slice, 0.005) << what;
}

void ExpectEveryPlanRight(CaseData& data, const std::string& what) {
  for (const Sm90Plan& plan : PlansFor(data.call)) {
    data.Poison();
    Execute(data.call, plan);
    ExpectRight(data.call, what + " " + Name(plan));
  }
}

TEST_F(AttentionSm90, EveryPlanEveryElementAtAwkwardShapes) {
  for (const Case& c : AwkwardCases()) {
    CaseData data(c);
    for (const Sm90Plan& plan : PlansFor(data.call)) {
      data.Poison();
      Execute(data.call, plan);
      const std::vector<std::uint16_t> first = data.Output();
      EXPECT_FALSE(data.GuardTouched(first)) << c.Name() << " " << Name(plan);
      ExpectRight(data.call, c.Name() + " " + Name(plan));
      for (int repeat = 0; repeat < 3; ++repeat) {
        data.Poison();
        Execute(data.call, plan);
        EXPECT_TRUE(data.Output() == first) << c.Name() << " " << Name(plan) << ": other bits";
      }
    }
  }
}

TEST_F(AttentionSm90, MaskOfOnesChangesNoBit) {
  for (const std::int64_t d : {64, 128}) {
    CaseData data({2, 3, d, 130, 1000, 0, 3}, 20);
    const Sm90Plan plan = ChooseSm90Plan(data.call);
    Execute(data.call, plan);
    const std::vector<std::uint16_t> masked = data.Output();
    data.call.tensors.mask = {};
    data.Poison();
    Execute(data.call, plan);
    EXPECT_TRUE(data.Output() == masked) << "D " << d;
  }
}

TEST_F(AttentionSm90, OneKeyGivesItsValues) {
  CaseData data({2, 3, 64, 65, 1});
  for (const Sm90Plan& plan : PlansFor(data.call)) {
    data.Poison();
    Execute(data.call, plan);
    const std::vector<std::uint16_t> o = data.Output();
    std::vector<std::uint16_t> v(2 * 3 * 64);
    CheckCuda(cudaMemcpy(v.data(), data.call.tensors.suffix.v, v.size() * 2, cudaMemcpyDefault),
              "values");
    for (std::size_t i = 0; i < 2 * 65 * 3 * 64; ++i) {
      const std::size_t batch = i / (65 * 192);
      ASSERT_EQ(o[i], v[batch * 192 + i % 192]) << Name(plan) << " element " << i;
    }
  }
}

// Scores that grow far beyond those of earlier key tiles.
TEST_F(AttentionSm90, ScoresThatJump) {
  for (const float temperature : {20.0f, 100.0f, 1000.0f}) {
    for (const Case& c :
         {Case{1, 2, 64, 130, 700}, Case{1, 2, 128, 130, 900},
          Case{1, 2, 128, 300, 300, 0, 0, true, {{20, 290}}}, Case{1, 2, 64, 100, 500, 0, 2}}) {
      CaseData data(c, temperature);
      ExpectEveryPlanRight(data, c.Name() + " temperature " + std::to_string(temperature));
    }
  }
}

// Channel 0 of every head becomes first + slope * token.
__global__ void SetChannel(std::uint16_t* x, std::int64_t tokens, int heads, int d, float first,
                           float slope) {
  for (std::int64_t i = threadIdx.x; i < tokens * heads; i += blockDim.x) {
    const float value = first + slope * static_cast<float>(i / heads);
    x[i * d] = __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
}

// Scores that climb or fall steadily along the keys, by 0.07 to 10 a key: the last tile outweighs
// all others, or the first one does, whichever way tiles are walked, and all scores may be far
// below or far above 0.
TEST_F(AttentionSm90, ScoresThatClimbAndFall) {
  for (const Case& c :
       {Case{1, 2, 64, 130, 700}, Case{1, 2, 128, 130, 900}, Case{1, 2, 128, 130, 400, 130},
        Case{1, 2, 128, 300, 300, 0, 0, true, {{20, 290}}}, Case{1, 2, 64, 100, 500, 0, 2}}) {
    for (const float slope : {0.1f, -0.1f, 1.0f, -1.0f, 10.0f, -10.0f}) {
      for (const float first : {0.0f, -300.0f * slope}) {
        CaseData data(c);
        const Sm90Tensors& x = data.call.tensors;
        const auto set = [&](const bf16* p, std::int64_t tokens, float start, float step) {
          SetChannel<<<1, 256>>>(reinterpret_cast<std::uint16_t*>(const_cast<bf16*>(p)), tokens,
                                 static_cast<int>(c.h), static_cast<int>(c.d), start, step);
          CheckCuda(cudaGetLastError(), "launch of SetChannel");
        };
        set(x.q, c.nq, 8, 0);
        set(x.suffix.k, c.nk, first, slope);
        if (c.np > 0) set(x.prefix.k, c.np, first + slope * static_cast<float>(c.nk), slope);
        ExpectEveryPlanRight(
            data, c.Name() + " from " + std::to_string(first) + " slope " + std::to_string(slope));
      }
    }
  }
}

// NaN reaches the rows that see it and no other; the fp64 check says which.
TEST_F(AttentionSm90, NaNStaysInItsRows) {
  const std::vector<Case> cases = {{1, 2, 64, 100, 130},
                                   {1, 2, 128, 200, 300},
                                   {1, 2, 64, 100, 130, 0, 2},
                                   {1, 2, 128, 100, 130, 0, 2},
                                   {1, 2, 128, 300, 300, 0, 0, true, {{20, 100}, {150, 151}}},
                                   {1, 2, 128, 50, 50, 0, 0, true}};
  for (const Case& c : cases) {
    for (const bool value : {false, true}) {
      CaseData data(c);
      const Sm90Keys& keys = data.call.tensors.suffix;
      const std::int64_t token = c.nk / 2, head = 1, channel = 5;
      const bf16* at = value ? keys.v + token * keys.v_strides.token + head * c.d + channel
                             : keys.k + token * keys.k_strides.token + head * c.d + channel;
      CheckCuda(cudaMemcpy(const_cast<bf16*>(at), &kNaN, 2, cudaMemcpyHostToDevice), "NaN");
      ExpectEveryPlanRight(data, c.Name() + (value ? " NaN in V" : " NaN in K"));
    }
  }
}

// Q, K and V as slices of one buffer, head-major tensors, keys that all batches share.
TEST_F(AttentionSm90, StridesOfOtherLayouts) {
  const std::int64_t b = 2, n = 150, h = 3;
  for (const std::int64_t d : {64, 128}) {
    CaseData data({b, h, d, n, 3 * n});
    Sm90Call call = data.call;
    Sm90Tensors& x = call.tensors;
    const bf16* packed = x.suffix.k;  // b * 3 n * h * d elements
    const Strides slice{3 * n * h * d, 3 * h * d, d, 1};
    x.q = packed;
    x.suffix = {n, packed + h * d, slice, packed + 2 * h * d, slice};
    x.q_strides = slice;
    const auto expect_right = [&](const char* what) {
      for (const Sm90Plan& plan : PlansFor(call)) {
        data.Poison();
        Execute(call, plan);
        EXPECT_FALSE(data.GuardTouched(data.Output()));
        ExpectRight(call, what + Name(plan));
      }
    };
    expect_right("slices ");
    const Strides head_major{h * n * d, d, n * d, 1};
    x.q_strides = x.o_strides = head_major;
    x.suffix = {n, packed, head_major, data.call.tensors.suffix.v, head_major};
    expect_right("head-major ");
    x.suffix.k_strides.batch = x.suffix.v_strides.batch = 0;
    expect_right("shared keys ");
    x.suffix.k_strides.head = 0;
    expect_right("shared heads ");
  }
}

// A tensor of more than 2^31 elements; the last keys are far beyond 32-bit offsets.
TEST_F(AttentionSm90, OffsetsBeyond32Bits) {
  CaseData data({1, 40, 128, 70, 420000});
  for (const char* kernel : {"core_d128x128x160", "split_d128x64x64"}) {
    data.Poison();
    Execute(data.call, {kernel, 1});
    ExpectRight(data.call, kernel, 211);
  }
}

TEST_F(AttentionSm90, RefusesPlansThatCannotRun) {
  CaseData data({1, 2, 64, 100, 130});
  const auto refusal = [&](const Sm90Plan& plan) -> std::string {
    try {
      PrepareSm90(data.call, plan);
    } catch (const Error& error) {
      return error.what();
    }
    return "(not refused)";
  };
  EXPECT_THAT(refusal({"core_d128x128x160", 1}), testing::HasSubstr("head dimension 64"));
  EXPECT_THAT(refusal({"resident_d64x64x64", 1}), testing::HasSubstr("more than 64 keys"));
  EXPECT_THAT(refusal({"split_d64x64x128", 3}), testing::HasSubstr("split = 3"));
  EXPECT_THAT(refusal({"nothing", 1}), testing::HasSubstr("no such kernel"));
}

}  // namespace
}  // namespace assay::attention
