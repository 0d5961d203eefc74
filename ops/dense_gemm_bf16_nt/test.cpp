// Room tests: full and sampled comparison at captured (n, k), the classic failures of GEMM kernels,
// refusals, and the mutants.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "ops/dense_gemm_bf16_nt/spec.h"
#include "replay/room_test.h"
#include "replay/test_memory.h"

namespace assay::dense_gemm_bf16_nt {
namespace {

constexpr const char* kWide = "dense_gemm_bf16_nt_n12288_k4096";
constexpr const char* kSquare = "dense_gemm_bf16_nt_n4096_k4096";
constexpr const char* kDeep = "dense_gemm_bf16_nt_n4096_k12288";

const Family& TheFamily() {
  static const Family family = MakeFamily();
  return family;
}

// Truth of the first `m` rows, from the truth of at least as many.
Expected FirstRows(const Expected& all, std::int64_t m, std::int64_t n) {
  Expected expected = all;
  const auto rows = static_cast<std::size_t>(m), elements = static_cast<std::size_t>(m * n);
  expected.rows[0].resize(rows);
  expected.outputs[0].value.resize(elements);
  expected.outputs[0].scale.resize(elements);
  return expected;
}

void RunCpuBackend(TestCase& test, int threads = 0) {
  test.outputs.Poison();
  TheFamily().FindBackend("cpu")->run(test.problem, test.inputs, test.outputs, {threads});
  EXPECT_EQ(test.outputs.CheckRedZones(), std::nullopt);
  EXPECT_EQ(test.inputs.CheckRedZones(), std::nullopt);
}

// Rows of A do not depend on M, so the truth of M = 129 (5 to 20 GFLOP of fp64) serves all smaller
// ones.
void CompareFully(const char* definition, const std::string& kind) {
  const std::int64_t largest = kSanitized ? 7 : 129;
  const TestCase whole = MakeTestCase(TheFamily(), definition, {{"M", largest}}, 11, kind);
  const Expected truth = ComputeExpected(TheFamily(), whole.problem, whole.inputs, AllRows(whole));
  ASSERT_EQ(truth.invalid, "");
  for (const std::int64_t m : {1, 7, 63, 64, 65, 127, 128, 129}) {
    if (m > largest) continue;
    TestCase test = MakeTestCase(TheFamily(), definition, {{"M", m}}, 11, kind);
    RunCpuBackend(test);
    const Expected expected = FirstRows(truth, m, test.problem.axis("N"));
    const Verdict verdict =
        Verify(TheFamily(), test.problem, test.inputs, test.outputs, expected, 1);
    EXPECT_TRUE(verdict.passed()) << definition << " M " << m << ": " << verdict.reason;
    EXPECT_EQ(verdict.correctness.outputs[0].grade, "strict") << definition << " M " << m;
  }
}

TEST(DenseGemm, EveryElementWide) { CompareFully(kWide, "gate"); }
TEST(DenseGemm, EveryElementSquare) { CompareFully(kSquare, "to_out"); }
TEST(DenseGemm, EveryElementDeep) { CompareFully(kDeep, "down"); }

TEST(DenseGemm, EveryGeneratorKind) {
  for (const std::string& kind : Variants()) {
    if (kSanitized && kind != "to_q" && kind != "down" && kind != "magnitude") continue;
    TestCase test = MakeTestCase(TheFamily(), kSquare, {{"M", kSanitized ? 3 : 16}}, 3, kind);
    const Verdict verdict = RunAndVerify(test);
    EXPECT_TRUE(verdict.passed()) << kind << ": " << verdict.reason;
    EXPECT_EQ(verdict.correctness.outputs[0].grade, "strict") << kind;
  }
}

// The edit prefix: an odd M whose last tile has 29 rows, at the captured sizes.
TEST(DenseGemm, SampledAtCapturedSize) {
  if (kSanitized) GTEST_SKIP() << "138 GFLOP at captured size are for uninstrumented builds";
  TestCase test = MakeTestCase(TheFamily(), kSquare, {{"M", 4125}}, 5, "",
                               {{"module_path", "transformer_blocks.0.attn.to_q"}});
  const Verdict verdict = RunAndVerify(test, "cpu", /*full=*/false);
  EXPECT_TRUE(verdict.passed()) << verdict.reason;
  EXPECT_EQ(verdict.correctness.outputs[0].grade, "strict");
  EXPECT_LT(verdict.correctness.share_checked, 0.01);
  EXPECT_EQ(verdict.correctness.findings.size(), 3u);
}

TEST(DenseGemm, NoRows) {
  TestCase test = MakeTestCase(TheFamily(), kSquare, {{"M", 0}}, 1);
  EXPECT_TRUE(RunAndVerify(test).passed());
}

TEST(DenseGemm, IntegersAreExact) {
  TestCase test = MakeTestCase(TheFamily(), kSquare, {{"M", kSanitized ? 9 : 65}}, 7, "integers");
  RunCpuBackend(test);
  const auto truth = Reference(test.problem, test.inputs, AllRows(test), SumOrder::kForward);
  const bf16* c = test.outputs["C"].as<bf16>();
  for (std::size_t i = 0; i < truth[0].value.size(); ++i) {
    ASSERT_EQ(ToFloat(c[i]), ToFloat(ToBF16(truth[0].value[i]))) << "element " << i;
  }
}

// A split-K library kernel once returned the first k - (k mod block) terms only.
TEST(DenseGemm, OnesCountK) {
  constexpr std::int64_t kM = 5, kN = 70, kLargestK = 12288;
  const std::vector<bf16> ones(kN * kLargestK, ToBF16(1.0f));
  std::vector<std::int64_t> sizes = {1, 3, 255, 257, 4096, 4104, kLargestK};
  for (std::int64_t k = 8; k <= 512; k += 8) sizes.push_back(k);
  for (const std::int64_t k : sizes) {
    std::vector<bf16> c(kM * kN, bf16{0xFFFF});
    RunCpu({kM, kN, k, ones.data(), k, ones.data(), k, c.data(), kN});
    const bf16 expected = ToBF16(static_cast<float>(k));
    for (const bf16 x : c) ASSERT_EQ(ToFloat(x), ToFloat(expected)) << "K " << k;
  }
}

// Random operands with any strides and a first element off 16-byte alignment; NaN guards around C.
struct Strided {
  std::vector<bf16> a, b, c;
  Args args;
};

Strided MakeStrided(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t lda,
                    std::int64_t ldb, std::int64_t ldc) {
  Strided made;
  made.a.resize(static_cast<std::size_t>(m * lda + 1));
  made.b.resize(static_cast<std::size_t>(n * ldb + 1));
  made.c.assign(static_cast<std::size_t>(m * ldc + 1), bf16{0xFFFF});
  for (std::size_t i = 0; i < made.a.size(); ++i) made.a[i] = ToBF16(UnitNormal(2, 0, i));
  for (std::size_t i = 0; i < made.b.size(); ++i) made.b[i] = ToBF16(UnitNormal(2, 1, i));
  made.args = {m, n, k, made.a.data() + 1, lda, made.b.data() + 1, ldb, made.c.data() + 1, ldc};
  return made;
}

void ExpectStrict(const Args& g) {
  for (std::int64_t m = 0; m < g.m; ++m) {
    for (std::int64_t n = 0; n < g.n; ++n) {
      double sum = 0, magnitude = 0;
      for (std::int64_t k = 0; k < g.k; ++k) {
        const double product = double{ToFloat(g.a[m * g.lda + k])} * ToFloat(g.b[n * g.ldb + k]);
        sum += product;
        magnitude += std::abs(product);
      }
      const double allowed =
          0.5 * UlpBF16(sum) + static_cast<double>(g.k) / 16 * 0x1p-23 * magnitude;
      ASSERT_LE(std::abs(ToFloat(g.c[m * g.ldc + n]) - sum), allowed) << "at " << m << "," << n;
    }
  }
}

void ExpectPaddingUntouched(const Args& g) {
  for (std::int64_t m = 0; m < g.m; ++m) {
    for (std::int64_t n = g.n; n < g.ldc && m * g.ldc + n < g.m * g.ldc; ++n) {
      ASSERT_EQ(g.c[m * g.ldc + n].bits, 0xFFFF) << "padding of row " << m;
    }
  }
}

// A sliced out of a fused projection: lda = 12288 with k = 4096.
TEST(DenseGemm, SlicedA) {
  const Strided made = MakeStrided(9, 40, 4096, 12288, 4096, 40);
  RunCpu(made.args);
  ExpectStrict(made.args);
}

// TMA epilogues once stored wrong data silently for such shapes.
TEST(DenseGemm, OddStridesAndUnalignedBases) {
  const std::int64_t n = kSanitized ? 250 : 4090;
  const Strided made = MakeStrided(17, n, 513, 514, 515, n + 7);
  RunCpu(made.args);
  ExpectStrict(made.args);
  ExpectPaddingUntouched(made.args);
}

// A stream-K kernel once hung on a tiny m.
TEST(DenseGemm, FewRowsDeepK) {
  const Strided made = MakeStrided(16, kSanitized ? 64 : 2560, 8192, 8192, 8192, 2560);
  RunCpu(made.args);
  ExpectStrict(made.args);
}

TEST(DenseGemm, NanStaysInItsRowAndColumn) {
  Strided made = MakeStrided(33, 67, 300, 300, 300, 67);
  made.a[1 + 20 * 300 + 299] = bf16{0x7FC0};
  made.b[1 + 50 * 300 + 7] = bf16{0x7F80};  // infinity
  RunCpu(made.args);
  for (std::int64_t m = 0; m < 33; ++m) {
    for (std::int64_t n = 0; n < 67; ++n) {
      const float c = ToFloat(made.args.c[m * 67 + n]);
      if (m == 20) {
        EXPECT_TRUE(std::isnan(c)) << m << "," << n;
      } else if (n == 50) {
        EXPECT_FALSE(std::isfinite(c)) << m << "," << n;
      } else {
        EXPECT_TRUE(std::isfinite(c)) << m << "," << n;
      }
    }
  }
}

// Split-K kernels differ from run to run; ours may not, nor with the number of threads.
TEST(DenseGemm, TenRunsAndAnyThreadsGiveTheSameBits) {
  TestCase test = MakeTestCase(TheFamily(), kSquare, {{"M", kSanitized ? 29 : 157}}, 9, "to_q");
  RunCpuBackend(test, 1);
  const Tensor& c = test.outputs["C"];
  const std::vector<std::byte> first(c.data, c.data + c.bytes());
  for (int run = 0; run < (kSanitized ? 2 : 10); ++run) {
    RunCpuBackend(test, run % 4);
    ASSERT_EQ(std::memcmp(first.data(), c.data, first.size()), 0) << "run " << run;
  }
}

// Row strides of 2^31 elements: offsets must be 64 bits wide. The pages between rows are never
// touched, so they cost no memory.
TEST(DenseGemm, OffsetsBeyond32Bits) {
  constexpr std::int64_t kStride = (1LL << 31) + 8, kRows = 3, kN = 16, kK = 64;
  constexpr std::size_t kBytes = static_cast<std::size_t>(kStride) * kRows * sizeof(bf16);
  const Reserved a_memory(kBytes), b_memory(kBytes), c_memory(kBytes);
  if (!a_memory.ok() || !b_memory.ok() || !c_memory.ok()) {
    GTEST_SKIP() << "no " << 3 * kBytes << " bytes of address space";
  }
  auto *a = a_memory.as<bf16>(), *b = b_memory.as<bf16>();
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t k = 0; k < kK; ++k) {
      a[r * kStride + k] = ToBF16(static_cast<float>(r + 1));
      b[r * kStride + k] = ToBF16(static_cast<float>(10 * r + 1));
    }
  }
  const Args args{kRows, kRows, kK, a, kStride, b, kStride, c_memory.as<bf16>(), kStride};
  RunCpu(args);
  for (std::int64_t m = 0; m < kRows; ++m) {
    for (std::int64_t n = 0; n < kRows; ++n) {
      EXPECT_EQ(ToFloat(args.c[m * kStride + n]), static_cast<float>(kK * (m + 1) * (10 * n + 1)));
    }
  }
  static_assert(kN >= kRows);
}

// Runs and returns the message of the refusal; "" when there was none.
std::string Refusal(const Args& args) {
  try {
    RunCpu(args);
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::kInput);
    return error.what();
  }
  return "";
}

TEST(DenseGemm, RefusesWhatItCannotMean) {
  using testing::HasSubstr;
  const Strided made = MakeStrided(4, 4, 8, 8, 8, 4);
  const auto changed = [&](auto change) {
    Args args = made.args;
    change(args);
    return Refusal(args);
  };
  EXPECT_EQ(Refusal(made.args), "");
  EXPECT_THAT(changed([](Args& g) { g.m = -1; }), HasSubstr("M = -1 is negative"));
  EXPECT_THAT(changed([](Args& g) { g.n = -2; }), HasSubstr("N = -2 is negative"));
  EXPECT_THAT(changed([](Args& g) { g.k = -3; }), HasSubstr("K = -3 is negative"));
  EXPECT_THAT(changed([](Args& g) { g.lda = 7; }), HasSubstr("lda = 7"));
  EXPECT_THAT(changed([](Args& g) { g.ldb = 0; }), HasSubstr("ldb = 0"));
  EXPECT_THAT(changed([](Args& g) { g.ldc = 3; }), HasSubstr("ldc = 3"));
  EXPECT_THAT(changed([](Args& g) { g.a = nullptr; }), HasSubstr("A is null"));
  EXPECT_THAT(changed([](Args& g) { g.c = nullptr; }), HasSubstr("C is null"));
  EXPECT_THAT(changed([](Args& g) { g.lda = 1LL << 62; }), HasSubstr("address space"));
  EXPECT_THAT(changed([](Args& g) { g.c = const_cast<bf16*>(g.a) + 31; }), HasSubstr("overlaps A"));
  EXPECT_THAT(changed([](Args& g) { g.c = const_cast<bf16*>(g.b); }), HasSubstr("overlaps B"));
  EXPECT_EQ(changed([](Args& g) {
              g.m = 0;
              g.a = nullptr;
              g.c = nullptr;
            }),
            "");
}

TEST(DenseGemm, InputsOfTheWrongFormAreNamed) {
  const Problem problem = MakeProblem(TheFamily(), kSquare, {{"M", 2}});
  const Bundle wrong_shape =
      Bundle::Allocate({{"A", DType::kBF16, {2, 4095}}, {"B", DType::kBF16, {4096, 4096}}});
  const Bundle wrong_type =
      Bundle::Allocate({{"A", DType::kF16, {2, 4096}}, {"B", DType::kBF16, {4096, 4096}}});
  for (const auto& [bundle, text] :
       {std::pair(&wrong_shape, "A has shape [2,4095]"), std::pair(&wrong_type, "A is float16")}) {
    try {
      ValidateInputs(problem, *bundle);
      FAIL() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(text));
    }
  }
}

TEST(DenseGemm, LayerFollowsTheModulePath) {
  const auto kind = [](const char* definition, const Attributes& attributes,
                       const std::string& variant = "") {
    return KindOf(MakeProblem(TheFamily(), definition, {{"M", 1}}, attributes, variant));
  };
  const auto path = [](const char* text) {
    return Attributes{{"module_path", std::string("transformer_blocks.0.") + text}};
  };
  EXPECT_EQ(kind(kWide, path("attn")), "qkv");
  EXPECT_EQ(kind(kWide, path("img_mlp.gate_layer")), "gate");
  EXPECT_EQ(kind(kSquare, path("attn.to_q")), "to_q");
  EXPECT_EQ(kind(kSquare, path("attn.to_out.0")), "to_out");
  EXPECT_EQ(kind(kDeep, path("img_mlp.out")), "down");
  EXPECT_EQ(kind(kWide, {}), "gate");
  EXPECT_EQ(kind(kWide, path("attn"), "ones"), "ones");
}

// Layers must look like the captured ones: bell-shaped with outlier channels, outputs in range.
TEST(DenseGemm, GeneratedOutputsReachTheCapturedMagnitudes) {
  struct Range {
    const char *definition, *kind;
    double low, high;  // of the largest |C| among 64 rows; captured tensors have 64 times more
  };
  for (const Range& range : {Range{kSquare, "to_q", 32, 256}, Range{kSquare, "to_out", 64, 256},
                             Range{kSquare, "gate", 2, 16}, Range{kDeep, "down", 4, 128}}) {
    TestCase test = MakeTestCase(TheFamily(), range.definition, {{"M", 64}}, 21, range.kind);
    RunCpuBackend(test);
    double largest = 0;
    const Tensor& c = test.outputs["C"];
    for (std::int64_t i = 0; i < c.elements(); ++i) {
      largest = std::max(largest, std::abs(double{ToFloat(c.as<bf16>()[i])}));
    }
    EXPECT_GE(largest, range.low) << range.kind;
    EXPECT_LE(largest, range.high) << range.kind;
  }
}

TEST(DenseGemm, MutantsAreKilled) {
  if (kSanitized) GTEST_SKIP() << "captured-size products are for uninstrumented builds";
  // Four whole row tiles and the ragged 29 rows of M = 4125, at an eighth of its cost.
  TestCase test = MakeTestCase(TheFamily(), kSquare, {{"M", 541}}, 13, "to_q");
  ExpectMutantsKilled(test);
}

}  // namespace
}  // namespace assay::dense_gemm_bf16_nt
