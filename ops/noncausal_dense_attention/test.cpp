// Tests of this room: captured shapes, length crossings, edge semantics, refusals, determinism,
// kept public bugs, mutants, and the identities of the captured records.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "cpu/attention_leaf.h"
#include "ops/attention/rows.h"
#include "ops/noncausal_dense_attention/spec.h"
#include "replay/room_test.h"
#include "replay/test_memory.h"

namespace assay {
namespace {

namespace room = noncausal_dense_attention;
using room::Args;
using ::testing::HasSubstr;

// Definitions with few heads besides the real ones, so that awkward lengths are cheap.
const Family& Dense() {
  static const Family family = [] {
    Family f = room::MakeFamily();
    const std::vector<std::string> variables = {"B", "Nq", "Nk"};
    f.definitions.push_back({"h1_d64", {{"H", 1}, {"D", 64}}, variables});
    f.definitions.push_back({"h2_d64", {{"H", 2}, {"D", 64}}, variables});
    f.definitions.push_back({"h2_d128", {{"H", 2}, {"D", 128}}, variables});
    return f;
  }();
  return family;
}

TestCase Make(const std::string& definition, std::int64_t b, std::int64_t nq, std::int64_t nk,
              const std::string& variant = "", const Attributes& attributes = {}) {
  return MakeTestCase(Dense(), definition, {{"B", b}, {"Nq", nq}, {"Nk", nk}}, 20261130, variant,
                      attributes);
}

Args ArgsOf(TestCase& test) { return room::Bind(test.problem, test.inputs, test.outputs); }

// Edge rows of every head and `random` others.
Verdict RunAndVerifySample(TestCase& test, std::int64_t random) {
  test.outputs.Poison();
  room::RunCpu(ArgsOf(test), 0);
  const std::int64_t nq = test.problem.axis("Nq");
  const RowLists rows = {attention::SampleRows(test.problem.axis("B"), nq, test.problem.axis("H"),
                                               attention::EdgeQueries(nq), random, 5)};
  const Expected expected = ComputeExpected(Dense(), test.problem, test.inputs, rows);
  return Verify(Dense(), test.problem, test.inputs, test.outputs, expected, 5);
}

// Output bytes of a run on poisoned outputs.
std::vector<std::byte> Compute(TestCase& test, int threads = 0) {
  test.outputs.Poison();
  room::RunCpu(ArgsOf(test), threads);
  return BytesOf(test.outputs["O"]);
}

bf16* Row(TestCase& test, const char* name, std::int64_t token, std::int64_t head) {
  Bundle& bundle = std::string_view(name) == "O" ? test.outputs : test.inputs;
  const std::int64_t heads = test.problem.axis("H"), dim = test.problem.axis("D");
  return bundle[name].as<bf16>() + (token * heads + head) * dim;
}

// --- shapes ---

TEST(NoncausalDenseAttention, CapturedVideoShapes) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {
      {1120, 1120}, {2352, 2352}, {2560, 2560}, {1120, 1024}, {2352, 1024}, {2560, 1024}};
  for (const auto& [nq, nk] : shapes) {
    TestCase test = Make("noncausal_dense_attention_h32_d128", 1, nq, nk);
    const Verdict verdict = RunAndVerifySample(test, 128);
    EXPECT_TRUE(verdict.passed()) << nq << "x" << nk << ": " << verdict.reason;
    EXPECT_EQ(verdict.correctness.outputs[0].grade, "captured");
  }
}

TEST(NoncausalDenseAttention, CapturedAudioShapesOfEveryBatch) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {
      {51, 51},   {126, 126}, {51, 1024},  {126, 1024}, {1120, 51},
      {2352, 51}, {51, 1120}, {2560, 126}, {51, 2352},  {126, 2560}};
  for (std::int64_t b : {1, 2, 4}) {
    for (const auto& [nq, nk] : shapes) {
      TestCase test = Make("noncausal_dense_attention_h32_d64", b, nq, nk);
      const Verdict verdict = RunAndVerifySample(test, 64);
      EXPECT_TRUE(verdict.passed()) << b << "x" << nq << "x" << nk << ": " << verdict.reason;
    }
  }
}

TEST(NoncausalDenseAttention, EveryGeneratorVariant) {
  for (const std::string& variant : Dense().variants) {
    for (const char* definition :
         {"noncausal_dense_attention_h32_d64", "noncausal_dense_attention_h10_d128"}) {
      TestCase test = Make(definition, 2, 126, 300, variant);
      const Verdict verdict = RunAndVerifySample(test, 64);
      EXPECT_TRUE(verdict.passed()) << definition << " " << variant << ": " << verdict.reason;
      EXPECT_EQ(verdict.correctness.outputs[0].grade, "captured") << variant;
    }
  }
}

TEST(NoncausalDenseAttention, LengthsCrossed) {
  const std::vector<std::int64_t> lengths = {1,   2,   7,   51,  63,  64,   65,   126,  127,
                                             128, 129, 175, 176, 177, 1024, 1120, 2352, 2560};
  for (const char* definition : {"h2_d64", "h2_d128"}) {
    for (std::int64_t nq : lengths) {
      for (std::int64_t nk : lengths) {
        if (nq > 1000 && nk > 1200) continue;  // CapturedVideoShapes has these
        TestCase test = Make(definition, 1, nq, nk);
        const bool full = nq * nk <= 200 * 200;
        const Verdict verdict = full ? RunAndVerify(test) : RunAndVerifySample(test, 32);
        ASSERT_TRUE(verdict.passed()) << definition << " " << nq << "x" << nk << verdict.reason;
      }
    }
  }
}

TEST(NoncausalDenseAttention, EveryInstructionSet) {
  for (const cpu::AttentionLeaf* leaf : cpu::RunnableAttentionLeaves()) {
    for (const char* definition : {"h2_d64", "h2_d128"}) {
      for (const char* variant : {"captured", "masked_heads", "extreme_negative"}) {
        TestCase test = Make(definition, 2, 131, 333, variant);
        cpu::RunWith(*leaf, room::KernelArguments(ArgsOf(test)), 0);
        const Verdict verdict = VerifyFully(test);
        EXPECT_TRUE(verdict.passed()) << leaf->name << " " << variant << ": " << verdict.reason;
      }
    }
  }
}

TEST(NoncausalDenseAttention, WorldModelBufferLongerThanItsKeys) {
  TestCase plain = Make("noncausal_dense_attention_h10_d128", 1, 200, 512);
  TestCase buffered = Make("noncausal_dense_attention_h10_d128", 1, 200, 512, "",
                           {{"k_buffer", std::int64_t{777}}});
  EXPECT_EQ(buffered.inputs["K"].shape[1], 777);
  EXPECT_TRUE(std::isnan(ToFloat(Row(buffered, "K", 512, 0)[0])));
  EXPECT_TRUE(RunAndVerify(buffered).passed());
  EXPECT_EQ(Compute(plain), Compute(buffered));
}

// --- edge semantics ---

TEST(NoncausalDenseAttention, NothingToDo) {
  for (const auto& [b, nq] : {std::pair<std::int64_t, std::int64_t>{0, 5}, {2, 0}}) {
    TestCase test = Make("h2_d64", b, nq, 3);
    EXPECT_TRUE(RunAndVerify(test).passed());
  }
}

TEST(NoncausalDenseAttention, NoKeyGivesZeros) {
  TestCase test = Make("h2_d128", 2, 9, 0);
  for (std::byte byte : Compute(test)) ASSERT_EQ(byte, std::byte{0});
  EXPECT_TRUE(RunAndVerify(test).passed());
}

TEST(NoncausalDenseAttention, OneKeyGivesItsValueExactly) {
  TestCase test = Make("h2_d64", 1, 70, 1);
  Compute(test);
  for (std::int64_t q = 0; q < 70; ++q) {
    ASSERT_TRUE(std::equal(Row(test, "V", 0, 0), Row(test, "V", 1, 0), Row(test, "O", q, 0)));
  }
}

TEST(NoncausalDenseAttention, ConstantValuesComeBack) {
  TestCase test = Make("h2_d128", 1, 130, 1120);
  Tensor& v = test.inputs["V"];
  std::fill_n(v.as<bf16>(), v.elements(), ToBF16(1.7f));
  EXPECT_TRUE(RunAndVerify(test).passed());
}

TEST(NoncausalDenseAttention, UnitValueInOneKeyGivesItsWeight) {
  TestCase test = Make("h1_d64", 1, 40, 200);
  Tensor& v = test.inputs["V"];
  std::fill_n(v.as<bf16>(), v.elements(), bf16{});
  Row(test, "V", 77, 0)[5] = ToBF16(1.0f);
  EXPECT_TRUE(RunAndVerify(test).passed());
  double sum = 0;
  for (std::int64_t q = 0; q < 40; ++q) sum += ToFloat(Row(test, "O", q, 0)[5]);
  EXPECT_GT(sum, 0);
}

TEST(NoncausalDenseAttention, IdenticalKeysGiveTheMean) {
  TestCase test = Make("h2_d64", 1, 5, 177, "identical_keys");
  Compute(test);
  double mean = 0;
  for (std::int64_t j = 0; j < 177; ++j) mean += ToFloat(Row(test, "V", j, 1)[9]) / 177.0;
  EXPECT_NEAR(ToFloat(Row(test, "O", 3, 1)[9]), mean, 0.005 * std::abs(mean) + 1e-6);
}

TEST(NoncausalDenseAttention, AllVisibleMaskEqualsNoMaskBitwise) {
  TestCase plain = Make("h2_d128", 2, 150, 333),
           masked = Make("h2_d128", 2, 150, 333, "all_visible");
  EXPECT_EQ(Compute(plain), Compute(masked));
}

TEST(NoncausalDenseAttention, AnyNonzeroMaskByteMeansVisible) {
  TestCase test = Make("h2_d64", 2, 20, 100, "masked_rows");
  const auto before = Compute(test);
  Tensor& mask = test.inputs["mask"];
  for (std::int64_t i = 0; i < mask.elements(); ++i) {
    if (mask.data[i] != std::byte{0}) mask.data[i] = std::byte{0x80};
  }
  EXPECT_EQ(before, Compute(test));
}

TEST(NoncausalDenseAttention, RowsWithoutAVisibleKeyAreZeroWhateverTheyHold) {
  TestCase test = Make("h2_d64", 2, 21, 300, "masked_rows");  // query 10 sees nothing
  Row(test, "Q", 10, 1)[3] = bf16{0x7FC0};
  Compute(test);
  for (int d = 0; d < 64; ++d) EXPECT_EQ(Row(test, "O", 10, 1)[d].bits, 0);
  EXPECT_TRUE(VerifyFully(test).passed());
}

TEST(NoncausalDenseAttention, MaskedSampleBesideVisibleOnes) {  // kept: flash-attention 1254
  TestCase test = Make("h2_d128", 2, 65, 200, "masked");
  EXPECT_TRUE(RunAndVerify(test).passed());
  for (std::int64_t q = 65; q < 130; ++q) EXPECT_EQ(Row(test, "O", q, 0)[0].bits, 0);
}

TEST(NoncausalDenseAttention, MaskIgnoredIsRejected) {
  for (const char* variant : {"masked", "masked_rows", "masked_heads"}) {
    TestCase test = Make("noncausal_dense_attention_h32_d64", 2, 51, 300, variant);
    Args args = ArgsOf(test);
    args.mask = nullptr;
    room::RunCpu(args, 0);
    const Expected expected = ComputeExpected(Dense(), test.problem, test.inputs, 1);
    EXPECT_FALSE(Verify(Dense(), test.problem, test.inputs, test.outputs, expected, 1).passed());
  }
}

TEST(NoncausalDenseAttention, NanReachesExactlyWhoSeesIt) {
  const bf16 nan{0x7FC0};
  for (const char* variant : {"captured", "masked", "masked_rows"}) {
    for (const char* tensor : {"Q", "K", "V"}) {
      TestCase test = Make("h2_d64", 2, 70, 300, variant);
      Row(test, tensor, 11, 1)[7] = nan;
      const Verdict verdict = RunAndVerify(test);
      EXPECT_TRUE(verdict.passed()) << variant << " " << tensor << ": " << verdict.reason;
      std::int64_t poisoned = 0;
      for (std::int64_t i = 0; i < test.outputs["O"].elements(); ++i) {
        poisoned += std::isnan(ToFloat(test.outputs["O"].as<bf16>()[i])) ? 1 : 0;
      }
      if (std::string_view(variant) != "captured") continue;
      const std::int64_t wanted = tensor[0] == 'Q' ? 64 : tensor[0] == 'K' ? 70 * 64 : 70;
      EXPECT_EQ(poisoned, wanted) << tensor;
    }
  }
}

// --- large logits and long sequences: kept public bugs ---

TEST(NoncausalDenseAttention, VeryNegativeLogits) {  // kept: pytorch 196678, flashinfer PR 4401
  for (std::int64_t nk : {64, 192, 704}) {
    TestCase test = Make("h2_d128", 1, 67, nk, "extreme_negative");
    EXPECT_TRUE(RunAndVerify(test).passed()) << nk;
    EXPECT_EQ(test.outputs["O"].elements(), 67 * 2 * 128);
  }
}

TEST(NoncausalDenseAttention, VeryPositiveLogits) {  // kept: pytorch 119131
  TestCase test = Make("h2_d64", 1, 67, 500, "extreme_positive");
  EXPECT_TRUE(RunAndVerify(test).passed());
}

TEST(NoncausalDenseAttention, LogitsOfTenThousandMeetTheGrade) {
  TestCase test = Make("h2_d128", 1, 40, 300);
  for (const char* name : {"Q", "K"}) {  // factors of 32: logits around 3 * 1024
    Tensor& x = test.inputs[name];
    for (std::int64_t i = 0; i < x.elements(); ++i) {
      x.as<bf16>()[i] = ToBF16(32 * ToFloat(x.as<bf16>()[i]));
    }
  }
  EXPECT_TRUE(RunAndVerify(test).passed());
}

TEST(NoncausalDenseAttention, SoftmaxWithoutMaximumIsRejected) {
  TestCase test = Make("h1_d64", 1, 3, 20, "extreme_positive");
  for (std::int64_t q = 0; q < 3; ++q) {
    for (std::int64_t d = 0; d < 64; ++d) {
      float sum = 0, weighted = 0;
      for (std::int64_t j = 0; j < 20; ++j) {
        float dot = 0;
        for (int c = 0; c < 64; ++c) {
          dot += ToFloat(Row(test, "Q", q, 0)[c]) * ToFloat(Row(test, "K", j, 0)[c]);
        }
        const float p = std::exp(dot / 8);
        sum += p;
        weighted += p * ToFloat(Row(test, "V", j, 0)[d]);
      }
      Row(test, "O", q, 0)[d] = ToBF16(weighted / sum);
    }
  }
  EXPECT_FALSE(VerifyFully(test).passed());
}

TEST(NoncausalDenseAttention, MoreThan65536MaskedKeys) {  // kept: pytorch 162588
  TestCase test = Make("h1_d64", 1, 3, 65537, "all_visible");
  Tensor& mask = test.inputs["mask"];
  std::fill_n(mask.data, 65536, std::byte{0});
  Compute(test);
  for (std::int64_t q = 0; q < 3; ++q) {
    EXPECT_TRUE(
        std::equal(Row(test, "O", q, 0), Row(test, "O", q, 0) + 64, Row(test, "V", 65536, 0)));
  }
}

TEST(NoncausalDenseAttention, OffsetsBeyond32Bits) {  // kept: flash-attention PR 1500
  constexpr std::int64_t kFar = (1LL << 32) + 64;     // elements between the two tokens
  const Reserved q(2 * kFar + 4096), k(2 * kFar + 4096), v(2 * kFar + 4096), o(2 * kFar + 4096);
  if (!q.ok() || !k.ok() || !v.ok() || !o.ok()) GTEST_SKIP() << "no address space for 32 GiB";
  TestCase test = Make("h1_d64", 1, 2, 2);
  const auto near = Compute(test);
  Args args = ArgsOf(test);
  for (std::int64_t token = 0; token < 2; ++token) {
    std::copy_n(Row(test, "Q", token, 0), 64, q.as<bf16>() + token * kFar);
    std::copy_n(Row(test, "K", token, 0), 64, k.as<bf16>() + token * kFar);
    std::copy_n(Row(test, "V", token, 0), 64, v.as<bf16>() + token * kFar);
  }
  args.q = q.as<bf16>();
  args.k = k.as<bf16>();
  args.v = v.as<bf16>();
  args.o = o.as<bf16>();
  args.q_strides.token = args.k_strides.token = args.v_strides.token = args.o_strides.token = kFar;
  room::RunCpu(args, 0);
  for (std::int64_t token = 0; token < 2; ++token) {
    EXPECT_EQ(std::memcmp(o.as<bf16>() + token * kFar, near.data() + token * 128, 128), 0);
  }
}

// --- strides ---

TEST(NoncausalDenseAttention, PermutedAndSlicedLayouts) {
  TestCase test = Make("h2_d64", 2, 40, 90);
  const auto wanted = Compute(test);
  const std::int64_t d = 64, h = 2;
  // [b, h, n, d] for Q and O; K and V as slices of a five-head cache.
  std::vector<bf16> q(2 * 2 * 40 * 64), o(q.size()), k(2 * 90 * 5 * 64, bf16{0x7FC0}), v(k);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t head = 0; head < h; ++head) {
      for (std::int64_t t = 0; t < 40; ++t) {
        std::copy_n(Row(test, "Q", b * 40 + t, head), d, &q[((b * h + head) * 40 + t) * d]);
      }
      for (std::int64_t t = 0; t < 90; ++t) {
        std::copy_n(Row(test, "K", b * 90 + t, head), d, &k[((b * 90 + t) * 5 + 2 + head) * d]);
        std::copy_n(Row(test, "V", b * 90 + t, head), d, &v[((b * 90 + t) * 5 + 2 + head) * d]);
      }
    }
  }
  Args args = ArgsOf(test);
  args.q = q.data();
  args.o = o.data();
  args.q_strides = args.o_strides = {h * 40 * d, d, 40 * d, 1};
  args.k = k.data() + 2 * d;
  args.v = v.data() + 2 * d;
  args.k_strides = args.v_strides = {90 * 5 * d, 5 * d, d, 1};
  room::RunCpu(args, 0);
  const auto* expected = reinterpret_cast<const bf16*>(wanted.data());
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t t = 0; t < 40; ++t) {
      for (std::int64_t head = 0; head < h; ++head) {
        ASSERT_TRUE(std::equal(expected, expected + d, &o[((b * h + head) * 40 + t) * d]));
        expected += d;
      }
    }
  }
}

TEST(NoncausalDenseAttention, KeysSharedByAllBatches) {
  TestCase test = Make("h2_d128", 2, 20, 50);
  for (const char* name : {"K", "V"}) {
    std::copy_n(Row(test, name, 0, 0), 50 * 2 * 128, Row(test, name, 50, 0));
  }
  const auto wanted = Compute(test);
  Args args = ArgsOf(test);
  args.k_strides.batch = args.v_strides.batch = 0;
  test.outputs.Poison();
  room::RunCpu(args, 0);
  EXPECT_EQ(wanted, BytesOf(test.outputs["O"]));
}

TEST(NoncausalDenseAttention, MaskBroadcastByStrides) {
  TestCase test = Make("h2_d64", 1, 30, 64, "all_visible");
  std::fill_n(test.inputs["mask"].data, 20, std::byte{0});
  const auto wanted = Compute(test);
  Args args = ArgsOf(test);
  std::vector<std::uint8_t> per_query(30 * 64, 1);
  for (std::int64_t q = 0; q < 30; ++q) std::fill_n(&per_query[q * 64], 20, 0);
  args.mask = per_query.data();
  args.mask_strides = {0, 0, 64, 1};
  test.outputs.Poison();
  room::RunCpu(args, 0);
  EXPECT_EQ(wanted, BytesOf(test.outputs["O"]));
  const std::uint8_t one = 1;  // a single byte for everybody
  args.mask = &one;
  args.mask_strides = {0, 0, 0, 0};
  room::RunCpu(args, 0);
  args.mask = nullptr;
  const auto all = BytesOf(test.outputs["O"]);
  room::RunCpu(args, 0);
  EXPECT_EQ(all, BytesOf(test.outputs["O"]));
}

// --- reproducibility ---

TEST(NoncausalDenseAttention, TenRunsAndAnyThreadCountAgreeBitwise) {
  for (const char* variant : {"captured", "masked_rows"}) {
    TestCase test = Make("h2_d128", 1, 700, 1500, variant);
    const auto first = Compute(test);
    for (int run = 0; run < 9; ++run) ASSERT_EQ(first, Compute(test));
    for (int threads : {1, 2, 3, 8}) ASSERT_EQ(first, Compute(test, threads)) << threads;
  }
}

TEST(NoncausalDenseAttention, SameKeySameInputs) {
  TestCase a = Make("h2_d64", 1, 33, 44, "sink"), b = Make("h2_d64", 1, 33, 44, "sink");
  for (const char* name : {"Q", "K", "V"}) {
    EXPECT_EQ(std::memcmp(a.inputs[name].data, b.inputs[name].data, a.inputs[name].bytes()), 0);
  }
}

// --- verdicts ---

TEST(NoncausalDenseAttention, MutantsAreRejected) {
  TestCase small = Make("noncausal_dense_attention_h32_d64", 1, 51, 1024);
  ExpectMutantsKilled(small);
  TestCase sampled = Make("noncausal_dense_attention_h32_d64", 1, 2352, 1024);
  ExpectMutantsKilled(sampled);
  TestCase world = Make("noncausal_dense_attention_h10_d128", 1, 936, 512);
  ExpectMutantsKilled(world);
}

TEST(NoncausalDenseAttention, CostOfTheTable) {
  TestCase test = Make("noncausal_dense_attention_h32_d128", 1, 1120, 1120);
  const Cost cost = Dense().cost(test.problem, test.inputs);
  EXPECT_NEAR(cost.flops / 1e9, 20.6, 0.05);
  EXPECT_NEAR(cost.bytes / 1e6, 36.7, 0.05);
  EXPECT_EQ(cost.exponentials, 32.0 * 1120 * 1120);
}

// --- refusals ---

TEST(NoncausalDenseAttention, RefusesStrides) {
  TestCase test = Make("h2_d64", 1, 8, 8);
  const auto refusal = [&](auto change) {
    Args args = ArgsOf(test);
    change(args);
    return ErrorOf([&] { room::RunCpu(args, 0); });
  };
  EXPECT_THAT(refusal([](Args& a) { a.d = 96; }), HasSubstr("96, supported are 64 and 128"));
  EXPECT_THAT(refusal([](Args& a) { a.q_strides.channel = 2; }),
              HasSubstr("Q has channel stride 2"));
  EXPECT_THAT(refusal([](Args& a) { a.k_strides.token = 132; }),
              HasSubstr("K has token stride 132"));
  EXPECT_THAT(refusal([](Args& a) { a.v_strides.head = -64; }), HasSubstr("V has head stride -64"));
  EXPECT_THAT(refusal([](Args& a) { a.o_strides.token = 0; }), HasSubstr("share memory"));
  EXPECT_THAT(refusal([](Args& a) { a.v = nullptr; }), HasSubstr("V is null"));
  EXPECT_THAT(refusal([](Args& a) { a.o = const_cast<bf16*>(a.k) + 64; }),
              HasSubstr("O overlaps input K"));
}

TEST(NoncausalDenseAttention, RefusesMasksThatAreNotBool) {  // kept: pytorch PR 191612
  const TestCase test = Make("h2_d64", 1, 8, 8);
  for (DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kI32, DType::kI64, DType::kU8}) {
    EXPECT_THAT(ErrorOfLayout(Dense(), test.problem, {"mask", dtype, {1, 8}}),
                HasSubstr("mask is " + std::string(DTypeName(dtype)) + ", supported is bool"));
  }
}

TEST(NoncausalDenseAttention, RefusesTensorsThatDoNotFit) {
  const TestCase test = Make("h2_d64", 1, 8, 8);
  const auto refusal = [&](const TensorLayout& layout) {
    return ErrorOfLayout(Dense(), test.problem, layout);
  };
  EXPECT_THAT(refusal({"K", DType::kBF16, {1, 8, 4, 64}}), HasSubstr("K has shape [1,8,4,64]"));
  EXPECT_THAT(refusal({"V", DType::kBF16, {1, 8, 2, 32}}), HasSubstr("expected [1,8,2,64]"));
  EXPECT_THAT(refusal({"Q", DType::kF16, {1, 8, 2, 64}}), HasSubstr("Q is float16"));
  EXPECT_THAT(ErrorOf([] {
                Make("h2_d64", 1, 8, 8, "", {{"k_buffer", std::int64_t{7}}});
              }),
              HasSubstr("k_buffer = 7 is shorter than Nk = 8"));
}

// --- identities of the captured data ---

std::ifstream Data(const char* name) {
  return std::ifstream(std::string(ASSAY_SOURCE_DIR) + "/../shared/data/" + name);
}

TEST(NoncausalDenseAttention, CapturedAxesFollowFromTheRequest) {
  std::ifstream file = Data("serving_workloads.jsonl");
  if (!file) GTEST_SKIP() << "../shared/data/serving_workloads.jsonl is not here";
  int records = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.find("noncausal_dense_attention") == std::string::npos) continue;
    const auto record = nlohmann::json::parse(line);
    ++records;
    const auto& request = record["request"];
    const std::string size = request["size"], variant = record["variant"];
    const std::int64_t frames = request["num_frames"], fps = request["fps"];
    const std::int64_t width = std::stoll(size),
                       height = std::stoll(size.substr(size.find('x') + 1));
    const std::int64_t v = ((frames - 1) / 8 + 1) * (height / 32) * (width / 32);
    const std::int64_t a = 25 * frames / fps;
    const std::map<std::string, std::pair<std::int64_t, std::int64_t>> lengths = {
        {"attn1", {v, v}},
        {"attn2", {v, 1024}},
        {"audio_attn1", {a, a}},
        {"audio_attn2", {a, 1024}},
        {"audio_to_video_attn", {v, a}},
        {"video_to_audio_attn", {a, v}}};
    const auto& axes = record["axes"];
    EXPECT_EQ(axes["Nq"], lengths.at(variant).first);
    EXPECT_EQ(axes["Nk"], lengths.at(variant).second);
    EXPECT_EQ(axes["B"], request["num_outputs_per_prompt"]);
    EXPECT_EQ(axes["B"], record["requested_outputs"]);
    EXPECT_EQ(axes["B"], record["actual_attention_batch"]);
    EXPECT_EQ(record["module_path"], "transformer_blocks.0." + variant);
    const bool wide = variant == "attn1" || variant == "attn2";
    EXPECT_EQ(record["definition"],
              std::string("noncausal_dense_attention_h32_") + (wide ? "d128" : "d64"));
    EXPECT_EQ(record["interface_curation"]["previous_replay"]["axes"], axes);
  }
  EXPECT_EQ(records, 162);
}

TEST(NoncausalDenseAttention, WorldModelShapesFollowFromTheFrame) {
  std::ifstream file = Data("worldmodel_attention_replays.json");
  if (!file) GTEST_SKIP() << "../shared/data/worldmodel_attention_replays.json is not here";
  const auto entries = nlohmann::json::parse(file);
  EXPECT_EQ(entries.size(), 1116u);
  for (const auto& entry : entries) {
    const std::int64_t frame = entry["q_len"].get<std::int64_t>() / 3;
    const std::int64_t start = entry["context"]["start_frame"], k_len = entry["k_len"];
    const bool self = entry["context"]["role"] == "self";
    ASSERT_EQ(k_len, self ? frame * std::min<std::int64_t>(18, start + 3) : 512);
    ASSERT_EQ(entry["k_shape"][0], self ? 19 * frame : 512);
    int tp = 0, sp = 0;
    const std::string configuration = entry["configuration"];
    ASSERT_EQ(std::sscanf(configuration.c_str(), "%*[^_]_tp%d_sp%d", &tp, &sp), 2);
    ASSERT_EQ(entry["q_shape"][1].get<int>() * tp * sp, 40);
  }
}

}  // namespace
}  // namespace assay
