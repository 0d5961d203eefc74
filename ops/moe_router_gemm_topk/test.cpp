// Tests of the router room: captured and odd sizes, edge semantics and refusals of the page, near
// ties, properties (permutation, batch position), mutants, public bugs.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>

#include "base/random.h"
#include "ops/moe_router_gemm_topk/spec.h"
#include "replay/room_test.h"

namespace assay::moe_router_gemm_topk {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kDefinition = "moe_router_gemm_topk_deepseek41_d5120_e384_topk6";
constexpr std::int64_t kK = 5120, kExperts = 384, kChosen = 6;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

const Family& TheFamily() {
  static const Family family = MakeFamily();
  return family;
}

TestCase MakeCase(std::int64_t m, const std::string& variant = "tokens", std::uint64_t key = 7) {
  return MakeTestCase(TheFamily(), kDefinition, {{"M", m}}, key, variant);
}

Args ArgsOf(TestCase& test) { return Bind(test.problem, test.inputs, test.outputs); }

float* Bias(TestCase& test) { return test.inputs["bias"].as<float>(); }
bf16* X(TestCase& test) { return test.inputs["x"].as<bf16>(); }
bf16* W(TestCase& test) { return test.inputs["W"].as<bf16>(); }

std::vector<std::int32_t> Ids(const TestCase& test, std::int64_t m) {
  const std::int32_t* ids = test.outputs["expert_ids"].as<std::int32_t>() + m * kChosen;
  return {ids, ids + kChosen};
}
std::vector<float> Weights(const TestCase& test, std::int64_t m) {
  const float* weights = test.outputs["expert_weights"].as<float>() + m * kChosen;
  return {weights, weights + kChosen};
}

struct Kernel {
  cpu::Isa isa;
  bool bf16_dots;
};

std::vector<Kernel> Kernels() {
  std::vector<Kernel> kernels;
  for (const Kernel& kernel : {Kernel{cpu::Isa::kBaseline, false}, Kernel{cpu::Isa::kAvx2, false},
                               Kernel{cpu::Isa::kAvx512, false}, Kernel{cpu::Isa::kAvx512, true}}) {
    if (cpu::Supports(kernel.isa) && (!kernel.bf16_dots || cpu::HasAvx512Bf16()))
      kernels.push_back(kernel);
  }
  return kernels;
}

// x[m] = 1 at channel 0, so that the logit of expert e is W[e, 0], exactly.
void SetLogits(TestCase& test, const std::vector<float>& logits) {
  std::fill_n(X(test), test.inputs["x"].elements(), bf16{});
  for (std::int64_t m = 0; m < test.problem.axis("M"); ++m) X(test)[m * kK] = ToBF16(1.0f);
  for (std::int64_t e = 0; e < kExperts; ++e) {
    W(test)[e * kK] = ToBF16(logits[static_cast<std::size_t>(e)]);
  }
}

std::vector<float> Constant(float value) { return std::vector<float>(kExperts, value); }

// --- against fp64 ---

TEST(Router, CapturedSizes) {
  for (const std::int64_t m : {1, 2, 3, 128, 448, 1984, 2432, 2944, 3456, 4032, 4096}) {
    if (kSanitized && m > 3) break;
    TestCase test = MakeCase(m);
    const Verdict verdict = RunAndVerify(test, "cpu", false);
    EXPECT_TRUE(verdict.passed()) << m << ": " << verdict.reason;
    EXPECT_LE(FindingOf(verdict, "near_tie_rows").measured, 2) << m;
    // Recorded errors of the engine: up to 3.6e-6.
    EXPECT_LE(FindingOf(verdict, "expert_weights").measured, 0.1) << m;
  }
}

TEST(Router, OtherSizes) {
  for (const std::int64_t m : {0, 4, 5, 6, 7, 13, 17, 59, 60, 61, 63, 64, 65, 127, 129, 1000}) {
    if (kSanitized && m > 7) break;
    TestCase test = MakeCase(m, "tokens", 11);
    ExpectCpuPasses(test, "M " + std::to_string(m));
  }
}

TEST(Router, AllVariants) {
  for (const std::string& variant : TheFamily().variants) {
    TestCase test = MakeCase(kSanitized || variant == "gap_sweep" ? 5 : 130, variant, 3);
    ExpectCpuPasses(test, variant);
  }
}

TEST(Router, EveryInstructionSet) {
  TestCase test = MakeCase(67);
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, 1);
  for (const Kernel& kernel : Kernels()) {
    test.outputs.Poison();
    RunCpu(ArgsOf(test), 0, kernel.isa, kernel.bf16_dots);
    const Verdict verdict =
        Verify(TheFamily(), test.problem, test.inputs, test.outputs, expected, 1);
    EXPECT_TRUE(verdict.passed()) << cpu::IsaName(kernel.isa) << ": " << verdict.reason;
  }
}

// A family with other constants: the templates of the page.
TEST(Router, OtherShapes) {
  for (const auto& [k, experts, chosen] :
       {std::tuple{64, 4, 1}, {128, 12, 12}, {192, 1024, 16}, {2048, 100, 8}}) {
    Family family = MakeFamily();
    family.definitions = {{"other", {{"K", k}, {"E", experts}, {"T", chosen}}, {"M"}}};
    TestCase test = MakeTestCase(family, "other", {{"M", 70}}, 5);
    ExpectCpuPasses(test, "E " + std::to_string(experts));
  }
}

TEST(Router, LogitsOnDemand) {
  TestCase test = MakeCase(9);
  std::vector<float> logits(9 * kExperts);
  Args args = ArgsOf(test);
  RunCpu(args, 0);
  const auto without = BytesOf(test.outputs);
  args.logits = logits.data();
  RunCpu(args, 0);
  EXPECT_EQ(BytesOf(test.outputs), without);
  for (std::int64_t m = 0; m < 9; ++m) {
    for (std::int64_t e = 0; e < kExperts; e += 37) {
      double sum = 0, magnitude = 0;
      for (std::int64_t i = 0; i < kK; ++i) {
        const double product =
            static_cast<double>(ToFloat(X(test)[m * kK + i])) * ToFloat(W(test)[e * kK + i]);
        sum += product;
        magnitude += std::abs(product);
      }
      EXPECT_NEAR(logits[static_cast<std::size_t>(m * kExperts + e)], sum, 4e-7 * magnitude);
    }
  }
}

// --- edge semantics ---

TEST(Router, ZeroRow) {
  TestCase test = MakeCase(2, "zero_x");
  ExpectCpuPasses(test, "zeros");
  for (const float weight : Weights(test, 1)) EXPECT_NEAR(weight, 0.25f, 1e-7f);
  // Equal biases: the six lowest ids.
  std::fill_n(Bias(test), kExperts, 0.25f);
  ExpectCpuPasses(test, "zeros, equal biases");
  EXPECT_THAT(Ids(test, 0), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(Router, LargeAndSmallLogits) {
  TestCase test = MakeCase(1);
  std::fill_n(Bias(test), kExperts, 0.0f);
  std::vector<float> logits = Constant(-100);
  // s: sqrt(l) above 20, ln 2 at 0, exp(l/2) far below 0 (log(1 + exp) would give 0 at -18).
  logits[7] = 64, logits[8] = 20, logits[9] = 0, logits[200] = -18, logits[201] = -40;
  logits[383] = -80;
  SetLogits(test, logits);
  ExpectCpuPasses(test, "spread logits");
  EXPECT_THAT(Ids(test, 0), ElementsAre(7, 8, 9, 200, 201, 383));
  SetLogits(test, [&] {
    std::vector<float> low = Constant(-60);
    for (std::size_t e = 100; e < 106; ++e) low[e] = -18.0f - static_cast<float>(e - 100) * 0.125f;
    return low;
  }());
  ExpectCpuPasses(test, "log1p, not log(1 + exp)");
  const auto weights = Weights(test, 0);
  EXPECT_NEAR(weights[0] / weights[5], std::exp(0.3125), 1e-4);
}

TEST(Router, ScoresThatVanish) {
  TestCase test = MakeCase(3);
  SetLogits(test, Constant(-120));
  ExpectCpuPasses(test, "all scores 0");
  for (const float weight : Weights(test, 2)) EXPECT_EQ(weight, 0);
  std::fill_n(Bias(test), kExperts, 0.0f);
  ExpectCpuPasses(test, "all scores 0, no bias");
  EXPECT_THAT(Ids(test, 1), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(Router, InfiniteBiases) {
  TestCase test = MakeCase(4, "infinite_bias");
  ExpectCpuPasses(test, "380 experts at -inf");
  EXPECT_THAT(Ids(test, 3), ElementsAre(0, 1, 5, 77, 200, 383));
  std::fill_n(Bias(test), kExperts, -kInf);
  ExpectCpuPasses(test, "all at -inf");
  EXPECT_THAT(Ids(test, 0), ElementsAre(0, 1, 2, 3, 4, 5));
  std::fill_n(Bias(test), kExperts, 0.0f);
  for (const std::int64_t e : {381, 50, 300, 12, 99, 250, 260, 370}) Bias(test)[e] = kInf;
  ExpectCpuPasses(test, "eight at +inf");
  EXPECT_THAT(Ids(test, 2), ElementsAre(12, 50, 99, 250, 260, 300));
  const auto weights = Weights(test, 2);
  EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0f), 1.5f, 1e-5f);
}

// Out of contract (refused by validation), but six distinct ids all the same; NaN ranks last.
TEST(Router, NaNRanksLast) {
  TestCase test = MakeCase(2);
  std::fill_n(Bias(test), kExperts, kNaN);
  RunCpu(ArgsOf(test), 0);
  EXPECT_THAT(Ids(test, 0), ElementsAre(0, 1, 2, 3, 4, 5));
  for (const std::int64_t e : {9, 19, 29}) Bias(test)[e] = -kInf;
  RunCpu(ArgsOf(test), 0);
  EXPECT_THAT(Ids(test, 0), ElementsAre(0, 1, 2, 9, 19, 29));
  X(test)[kK + 3] = ToBF16(kNaN);
  RunCpu(ArgsOf(test), 0);
  EXPECT_THAT(Ids(test, 0), ElementsAre(0, 1, 2, 9, 19, 29));
  EXPECT_THAT(Ids(test, 1), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(Router, ZerosOfEitherSignAreEqual) {
  TestCase test = MakeCase(1);
  SetLogits(test, Constant(-120));
  for (std::int64_t e = 0; e < kExperts; ++e) Bias(test)[e] = e % 2 == 0 ? -0.0f : 0.0f;
  RunCpu(ArgsOf(test), 0);
  EXPECT_THAT(Ids(test, 0), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(Router, ImagesUseTheirOwnBias) {
  TestCase test = MakeCase(64, "images");
  ExpectCpuPasses(test, "images");
  TestCase text = MakeCase(64);
  RunCpu(ArgsOf(text), 0);
  int different = 0;
  for (std::int64_t m = 0; m < 64; ++m) {
    if (m % 3 == 1) {
      different += Ids(test, m) != Ids(text, m);
    } else {
      EXPECT_EQ(Ids(test, m), Ids(text, m)) << m;
    }
  }
  EXPECT_GE(different, 15);
}

TEST(Router, PaddingRowsGetNoExpert) {
  TestCase test = MakeCase(9, "padded");
  ExpectCpuPasses(test, "padded");
  for (std::int64_t m = 0; m < 9; ++m) {
    if (m >= 6) {
      EXPECT_THAT(Ids(test, m), Each(-1));
      EXPECT_THAT(Weights(test, m), Each(0.0f));
    } else {
      const auto weights = Weights(test, m);
      EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0f), 2.5f, 1e-5f);
    }
  }
}

// --- ties ---

TEST(Router, ExactTiesGoToTheLowerId) {
  TestCase test = MakeCase(40, "ties");
  const Verdict verdict = RunAndVerify(test);
  EXPECT_TRUE(verdict.passed()) << verdict.reason;
  EXPECT_EQ(FindingOf(verdict, "near_tie_rows").measured, 0);
  for (std::int64_t m = 0; m < 40; ++m) {
    // Quads of equal experts: one whole quad and the lower half of another.
    std::map<std::int32_t, std::vector<std::int32_t>> quads;
    for (const std::int32_t id : Ids(test, m)) quads[id / 4].push_back(id % 4);
    ASSERT_EQ(quads.size(), 2u);
    for (const auto& [quad, members] : quads) {
      if (members.size() != 4) {
        EXPECT_THAT(members, ElementsAre(0, 1)) << m;
      }
    }
  }
  // Equal experts have no band, not even in one row.
  for (std::int32_t* ids = test.outputs["expert_ids"].as<std::int32_t>();; ids += kChosen) {
    const auto second = std::find_if(ids, ids + kChosen - 1, [&](const std::int32_t& id) {
      return id % 4 == 1 && (&id)[1] / 4 != id / 4;
    });
    if (second == ids + kChosen - 1) continue;
    ++*second;
    break;
  }
  EXPECT_THAT(VerifyFully(test).reason, HasSubstr("wrong_rows"));
}

// Rows m = 0..4 have b6 - b7 = 0, 1e-7, 1e-6, 1e-5, 1e-4. fp32 cannot see the second.
TEST(Router, GapSweep) {
  TestCase test = MakeCase(5, "gap_sweep");
  const Verdict verdict = RunAndVerify(test);
  EXPECT_TRUE(verdict.passed()) << verdict.reason;
  EXPECT_LE(FindingOf(verdict, "near_tie_rows").measured, 1);
  for (std::int64_t j = 0; j < 5; ++j) {
    const auto ids = Ids(test, j);
    const bool ahead = std::find(ids.begin(), ids.end(), 300 + j) != ids.end();
    const bool behind = std::find(ids.begin(), ids.end(), 20 + j) != ids.end();
    EXPECT_NE(ahead, behind) << j;
    if (j != 1) {
      EXPECT_EQ(ahead, j > 1) << j;
    }
    // The other choice: excused up to a gap of 1e-6 (the band is about 1.9e-6 here).
    const std::int32_t other[] = {static_cast<std::int32_t>(ahead ? 20 + j : 300 + j)};
    std::int32_t* row = test.outputs["expert_ids"].as<std::int32_t>() + j * kChosen;
    std::replace(row, row + kChosen, static_cast<std::int32_t>(ahead ? 300 + j : 20 + j), other[0]);
    std::sort(row, row + kChosen);
    const Verdict swapped = VerifyFully(test);
    EXPECT_EQ(swapped.reason.find("wrong_rows") == std::string::npos, j <= 2)
        << j << ": " << swapped.reason;
    std::copy(ids.begin(), ids.end(), row);
  }
}

// Six experts with equal scores at the cut in every row: a kernel that picks any of them would need
// the band in more rows than it may.
TEST(Router, TheBandIsForFewRows) {
  TestCase test = MakeCase(10);
  std::vector<float> logits = Constant(-4);
  for (std::size_t e = 0; e < 8; ++e) logits[e * 40] = 2;
  SetLogits(test, logits);
  for (std::int64_t e = 0; e < kExperts; ++e) Bias(test)[e] = 0.125f;
  ExpectCpuPasses(test, "ties at the cut");
  EXPECT_THAT(Ids(test, 0), ElementsAre(0, 40, 80, 120, 160, 200));
  for (std::int64_t m = 0; m < 10; ++m) {
    test.outputs["expert_ids"].as<std::int32_t>()[m * kChosen + 5] = 240;
    const Verdict verdict = VerifyFully(test);
    EXPECT_EQ(FindingOf(verdict, "near_tie_rows").measured, static_cast<double>(m + 1));
    EXPECT_EQ(verdict.passed(), m < 2) << m;
  }
}

// --- what the verdict rejects ---

TEST(Router, RejectsBrokenRows) {
  TestCase test = MakeCase(20);
  RunCpu(ArgsOf(test), 0);
  std::int32_t* ids = test.outputs["expert_ids"].as<std::int32_t>();
  float* weights = test.outputs["expert_weights"].as<float>();
  const auto reason = [&](auto& element, auto value) {
    const auto kept = std::exchange(element, value);
    const Verdict verdict = VerifyFully(test);
    element = kept;
    EXPECT_FALSE(verdict.passed());
    return verdict.reason;
  };
  EXPECT_TRUE(VerifyFully(test).passed());
  EXPECT_THAT(reason(ids[6 * 3 + 5], 384), HasSubstr("expert_ids[3,5] = 384 is outside 0..383"));
  EXPECT_THAT(reason(ids[6 * 3], -1), HasSubstr("expert_ids[3,0] = -1 is outside"));
  EXPECT_THAT(reason(ids[6 * 3 + 1], ids[6 * 3]), HasSubstr("does not increase"));
  EXPECT_THAT(reason(weights[6 * 7 + 2], 1.001f * weights[6 * 7 + 2]),
              HasSubstr("expert_weights[7,2] = "));
  EXPECT_THAT(reason(weights[6 * 7 + 2], kNaN), HasSubstr("expert_weights[7,2] = nan"));
  EXPECT_EQ(VerifyFully(test).correctness.outputs[0].grade, "checks");
}

// --- properties ---

TEST(Router, PermutedExperts) {
  TestCase test = MakeCase(33), permuted = MakeCase(33);
  std::vector<std::int64_t> to(kExperts);
  std::iota(to.begin(), to.end(), 0);
  std::sort(to.begin(), to.end(), [](auto a, auto b) {
    return Mix64(1, 1, static_cast<std::uint64_t>(a)) < Mix64(1, 1, static_cast<std::uint64_t>(b));
  });
  for (std::int64_t e = 0; e < kExperts; ++e) {
    const std::int64_t target = to[static_cast<std::size_t>(e)];
    std::copy_n(W(test) + e * kK, kK, W(permuted) + target * kK);
    Bias(permuted)[target] = Bias(test)[e];
  }
  RunCpu(ArgsOf(test), 0);
  RunCpu(ArgsOf(permuted), 0);
  for (std::int64_t m = 0; m < 33; ++m) {
    std::map<std::int32_t, float> expected, got;
    for (std::size_t i = 0; i < kChosen; ++i) {
      const auto id = static_cast<std::size_t>(Ids(test, m)[i]);
      expected[static_cast<std::int32_t>(to[id])] = Weights(test, m)[i];
      got[Ids(permuted, m)[i]] = Weights(permuted, m)[i];
    }
    for (const auto& [id, weight] : expected) {
      ASSERT_TRUE(got.contains(id)) << "row " << m;
      EXPECT_NEAR(got[id], weight, 1e-6);
    }
  }
}

// The same bits alone, in a batch of 3 and in one of 448.
TEST(Router, BatchPositionDoesNotMatter) {
  TestCase many = MakeCase(448);
  RunCpu(ArgsOf(many), 0);
  for (const auto& [first, rows] : {std::pair{0, 1}, {200, 1}, {447, 1}, {100, 3}, {57, 13}}) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(rows * kChosen));
    std::vector<float> weights(ids.size());
    Args args = ArgsOf(many);
    args.m = rows;
    args.x += first * kK;
    args.expert_ids = ids.data();
    args.expert_weights = weights.data();
    RunCpu(args, 0);
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto at = static_cast<std::ptrdiff_t>(r * kChosen);
      EXPECT_TRUE(
          std::equal(ids.begin() + at, ids.begin() + at + kChosen, Ids(many, first + r).begin()));
      const auto expected = Weights(many, first + r);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), weights.begin() + at));
    }
  }
}

TEST(Router, RunsAreBitwiseEqual) {
  for (const std::int64_t m : {1, 3, 61}) {
    TestCase test = MakeCase(m);
    RunCpu(ArgsOf(test), 1);
    const auto expected = BytesOf(test.outputs);
    for (int launch = 0; launch < 100; ++launch) {
      test.outputs.Poison();
      RunCpu(ArgsOf(test), launch % 6 + 1);
      ASSERT_EQ(BytesOf(test.outputs), expected) << launch;
    }
  }
}

TEST(Router, LongRowStride) {
  TestCase test = MakeCase(5);
  RunCpu(ArgsOf(test), 0);
  const auto expected = BytesOf(test.outputs);
  constexpr std::int64_t kStride = kK + 8;
  std::vector<bf16> storage(5 * kStride + 8, bf16{0x7FC0});
  bf16* x = storage.data();
  while (reinterpret_cast<std::uintptr_t>(x) % 16 != 0) ++x;
  for (std::int64_t m = 0; m < 5; ++m) std::copy_n(X(test) + m * kK, kK, x + m * kStride);
  Args args = ArgsOf(test);
  args.x = x;
  args.ldx = kStride;
  test.outputs.Poison();
  RunCpu(args, 0);
  EXPECT_EQ(BytesOf(test.outputs), expected);
}

TEST(Router, EngineConvention) {
  TestCase test = MakeCase(12);
  RunCpu(ArgsOf(test), 0);
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  for (std::int64_t m = 0; m < 12; ++m) {
    std::vector<std::size_t> order = {4, 0, 5, 2, 1, 3};  // any: ranks are not ids
    std::rotate(order.begin(), order.begin() + m % 6, order.end());
    for (const std::size_t i : order) {
      ids.push_back(Ids(test, m)[i]);
      weights.push_back(Weights(test, m)[i] / 1.5f);
    }
  }
  FromEngineConvention(12, kChosen, 1.5f, ids.data(), weights.data());
  for (std::int64_t m = 0; m < 12; ++m) {
    for (std::size_t i = 0; i < kChosen; ++i) {
      const std::size_t at = static_cast<std::size_t>(m) * kChosen + i;
      EXPECT_EQ(ids[at], Ids(test, m)[i]);
      EXPECT_NEAR(weights[at], Weights(test, m)[i], 1e-6);
    }
  }
}

// --- public bugs ---

// Experts above 255 were never considered by one thread per expert and 256 threads.
TEST(Router, WinnersAbove255) {
  TestCase test = MakeCase(8, "high_experts");
  ExpectCpuPasses(test, "above 255");
  for (std::int64_t m = 0; m < 8; ++m) EXPECT_THAT(Ids(test, m), Each(::testing::Ge(256)));
  for (std::int64_t e = 378; e < kExperts; ++e) Bias(test)[e] += 5;
  ExpectCpuPasses(test, "the last six");
  EXPECT_THAT(Ids(test, 4), ElementsAre(378, 379, 380, 381, 382, 383));
}

// A bf16 bias would take 0.50390625 and 0.50585938 for equal and choose the lower id.
TEST(Router, BiasKeepsItsBits) {
  TestCase test = MakeCase(1);
  SetLogits(test, Constant(1));
  std::fill_n(Bias(test), kExperts, 0.0f);
  for (std::int64_t e = 0; e < 5; ++e) Bias(test)[e] = 3;
  Bias(test)[10] = 0.5039f;
  Bias(test)[20] = 0.5041f;
  ExpectCpuPasses(test, "close biases");
  EXPECT_THAT(Ids(test, 0), ElementsAre(0, 1, 2, 3, 4, 20));
}

TEST(Router, DominatingExpert) {
  TestCase test = MakeCase(10, "single_expert");
  ExpectCpuPasses(test, "one expert");
  for (std::int64_t m = 0; m < 10; ++m) {
    const auto ids = Ids(test, m);
    const auto at = std::find(ids.begin(), ids.end(), 100) - ids.begin();
    ASSERT_LT(at, kChosen);
    EXPECT_GT(Weights(test, m)[static_cast<std::size_t>(at)], 0.5f);
  }
}

// --- refusals ---

TEST(Router, RefusesBadInputs) {
  TestCase test = MakeCase(3, "images");
  const auto error = [&](auto& element, auto value) {
    const auto kept = std::exchange(element, value);
    const std::string text =
        ErrorOf([&] { TheFamily().validate_inputs(test.problem, test.inputs); });
    element = kept;
    return text;
  };
  EXPECT_EQ(error(X(test)[0], X(test)[0]), "no error");
  EXPECT_THAT(error(X(test)[kK + 77], ToBF16(kNaN)), HasSubstr("x[1,77] = nan is not finite"));
  EXPECT_THAT(error(W(test)[383 * kK], ToBF16(-kInf)), HasSubstr("W[383,0] = -inf is not finite"));
  EXPECT_THAT(error(Bias(test)[5], kNaN), HasSubstr("bias[5] is NaN"));
  EXPECT_THAT(error(test.inputs["bias_vl"].as<float>()[6], kNaN), HasSubstr("bias_vl[6] is NaN"));
  EXPECT_EQ(error(Bias(test)[5], -kInf), "no error");
  TestCase padded = MakeCase(3, "padded");
  const auto valid_error = [&](std::int32_t rows) {
    padded.inputs["num_valid_rows"].as<std::int32_t>()[0] = rows;
    return ErrorOf([&] { TheFamily().validate_inputs(padded.problem, padded.inputs); });
  };
  EXPECT_EQ(valid_error(0), "no error");
  EXPECT_THAT(valid_error(4), HasSubstr("num_valid_rows = 4 is outside 0..3"));
  EXPECT_THAT(valid_error(-1), HasSubstr("num_valid_rows = -1 is outside 0..3"));
  padded.inputs["num_valid_rows"].as<std::int32_t>()[0] = 2;
  padded.inputs["scaling"].as<float>()[0] = kInf;
  EXPECT_THAT(ErrorOf([&] { TheFamily().validate_inputs(padded.problem, padded.inputs); }),
              HasSubstr("scaling = inf is not finite"));
}

TEST(Router, RefusesWrongForms) {
  const Problem problem = MakeProblem(TheFamily(), kDefinition, {{"M", 2}});
  const auto error = [&](std::size_t at, DType dtype, const Shape& shape) {
    std::vector<TensorLayout> layouts = TheFamily().input_layouts(problem);
    layouts[at].dtype = dtype;
    layouts[at].shape = shape;
    const Bundle inputs = Bundle::Allocate(layouts);
    return ErrorOf([&] { TheFamily().validate_inputs(problem, inputs); });
  };
  EXPECT_THAT(error(0, DType::kBF16, {2, 4096}), HasSubstr("'x' is bfloat16[2,4096], expected"));
  EXPECT_THAT(error(1, DType::kF32, {384, kK}), HasSubstr("'W' is float32[384,5120], expected"));
  EXPECT_THAT(error(1, DType::kBF16, {256, kK}), HasSubstr("'W' is bfloat16[256,5120]"));
  EXPECT_THAT(error(2, DType::kBF16, {384}),
              HasSubstr("'bias' is bfloat16[384], expected float32"));
  std::vector<TensorLayout> layouts = TheFamily().input_layouts(problem);
  layouts.push_back({"is_image", DType::kU8, {2}});
  const Bundle inputs = Bundle::Allocate(layouts);
  EXPECT_THAT(ErrorOf([&] { TheFamily().validate_inputs(problem, inputs); }),
              HasSubstr("is_image is given without bias_vl"));
}

TEST(Router, RefusesBadCalls) {
  TestCase test = MakeCase(2);
  const auto error = [&](const std::function<void(Args&)>& change) {
    Args args = ArgsOf(test);
    change(args);
    return ErrorOf([&] { RunCpu(args, 0); });
  };
  const std::uint8_t image[2] = {};
  EXPECT_EQ(error([](Args&) {}), "no error");
  EXPECT_THAT(error([](Args& a) { a.k = 5000; }), HasSubstr("K = 5000 is not a multiple of 64"));
  EXPECT_THAT(error([](Args& a) { a.experts = 382; }), HasSubstr("E = 382 is not a multiple of 4"));
  EXPECT_THAT(error([](Args& a) { a.experts = 1028; }), HasSubstr("E = 1028"));
  EXPECT_THAT(error([](Args& a) { a.chosen = 17; }), HasSubstr("17 experts cannot be chosen"));
  EXPECT_THAT(error([](Args& a) { a.m = -3; }), HasSubstr("M = -3 is negative"));
  EXPECT_THAT(error([](Args& a) { a.m = std::int64_t{1} << 50; }), HasSubstr("address space"));
  EXPECT_THAT(error([](Args& a) { a.ldx = kK + 4; }), HasSubstr("row stride of x, 5124"));
  EXPECT_THAT(error([](Args& a) { a.ldx = kK - 8; }), HasSubstr("row stride of x, 5112"));
  EXPECT_THAT(error([](Args& a) { a.x += 4; }), HasSubstr("x is not aligned to 16 bytes"));
  EXPECT_THAT(error([](Args& a) { a.w += 4; }), HasSubstr("W is not aligned to 16 bytes"));
  EXPECT_THAT(error([](Args& a) { a.bias = nullptr; }), HasSubstr("bias is null"));
  EXPECT_THAT(error([&](Args& a) { a.is_image = image; }), HasSubstr("without bias_vl"));
  EXPECT_THAT(error([](Args& a) { a.valid_rows = 3; }),
              HasSubstr("num_valid_rows = 3 is above M = 2"));
  EXPECT_THAT(ErrorOf([] { MakeCase(1, "nonsense"); }), HasSubstr("nonsense"));
  Family family = MakeFamily();
  family.definitions = {{"other", {{"K", 100}, {"E", 384}, {"T", 6}}, {"M"}}};
  EXPECT_THAT(ErrorOf([&] {
                MakeProblem(family, "other", {{"M", 1}});
              }),
              HasSubstr("K = 100 is not a multiple of 64"));
}

// --- mutants, cost, generator ---

TEST(Router, MutantsAreRejected) {
  for (const std::int64_t m : {1, 128}) {
    TestCase test = MakeCase(m);
    ExpectMutantsKilled(test);
  }
  for (const char* variant : {"ties", "infinite_bias", "images", "padded"}) {
    TestCase test = MakeCase(40, variant);
    ExpectMutantsKilled(test);
  }
}

TEST(Router, CostMatchesThePage) {
  for (const auto& [m, megabytes] : {std::pair{128, 5.25}, {448, 8.54}, {4096, 46.1}}) {
    const Problem problem = MakeProblem(TheFamily(), kDefinition, {{"M", m}});
    const Cost cost = TheFamily().cost(problem, Bundle());
    EXPECT_NEAR(cost.bytes * 1e-6, megabytes, 0.006 * megabytes);
    EXPECT_EQ(cost.flops, 2.0 * static_cast<double>(m) * 384 * 5120);
  }
}

// Logits spread over about 1.8, some experts are popular, and the bias matters.
TEST(RouterInputs, DistributionIsAsDocumented) {
  constexpr std::int64_t kRows = 400;
  TestCase test = MakeCase(kRows);
  std::vector<float> logits(kRows * kExperts);
  Args args = ArgsOf(test);
  args.logits = logits.data();
  RunCpu(args, 0);
  double squares = 0;
  for (const float l : logits) squares += static_cast<double>(l) * l;
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(logits.size())), 1.8, 0.15);
  std::vector<int> uses(kExperts);
  for (std::int64_t m = 0; m < kRows; ++m) {
    double norm = 0;
    for (std::int64_t i = 0; i < kK; ++i) norm += std::pow(ToFloat(X(test)[m * kK + i]), 2);
    EXPECT_NEAR(std::sqrt(norm / kK), 1, 2e-3);
    for (const std::int32_t id : Ids(test, m)) ++uses[static_cast<std::size_t>(id)];
  }
  EXPECT_GT(*std::max_element(uses.begin(), uses.end()), 10 * 6 * kRows / kExperts);
  const auto with_bias = BytesOf(test.outputs);
  std::fill_n(Bias(test), kExperts, 0.0f);
  int changed = 0;
  std::vector<std::vector<std::int32_t>> before;
  for (std::int64_t m = 0; m < kRows; ++m) before.push_back(Ids(test, m));
  RunCpu(ArgsOf(test), 0);
  for (std::int64_t m = 0; m < kRows; ++m)
    changed += Ids(test, m) != before[static_cast<std::size_t>(m)];
  EXPECT_GT(changed, kRows / 2);
}

// Frozen bits: they must never change, or seeds stop meaning the same content.
TEST(RouterInputs, SameBitsOnEveryMachine) {
  TestCase tokens = MakeCase(3, "tokens", 0x0123456789ABCDEF);
  TestCase padded = MakeCase(3, "padded", 0x0123456789ABCDEF);
  EXPECT_EQ(HashOf(padded.inputs, HashOf(tokens.inputs)), 16355966835005714391u);
}

}  // namespace
}  // namespace assay::moe_router_gemm_topk
