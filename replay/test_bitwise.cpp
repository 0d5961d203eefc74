// The bitwise check on dense GEMM: a backend that computes as a tensor core does passes; one that
// walks k another way is close enough for every tolerance, and fails.
#include <gmock/gmock.h>

#include "base/tensor_core.h"
#include "ops/dense_gemm_bf16_nt/spec.h"
#include "replay/bitwise.h"
#include "replay/room_test.h"

namespace assay {
namespace {

using testing::HasSubstr;

const TensorCoreRule kRule = RuleOf(*FindMatrixInstruction("wgmma.m64n8k16.bf16.bf16"));

float InOrder(const bf16* a, const bf16* b, std::int64_t k) {
  return TensorCoreDot(kRule, a, b, k);
}

// Two halves of k added at the end, as a kernel with split K does.
float SplitInTwo(const bf16* a, const bf16* b, std::int64_t k) {
  const std::int64_t half = k / 2;
  return TensorCoreDot(kRule, a, b, half) + TensorCoreDot(kRule, a + half, b + half, k - half);
}

// Steps of 16 from the end to the beginning.
float Backwards(const bf16* a, const bf16* b, std::int64_t k) {
  std::vector<bf16> back_a, back_b;
  for (std::int64_t at = k - 16; at >= 0; at -= 16) {
    back_a.insert(back_a.end(), a + at, a + at + 16);
    back_b.insert(back_b.end(), b + at, b + at + 16);
  }
  return TensorCoreDot(kRule, back_a.data(), back_b.data(), k);
}

float PlainFloat(const bf16* a, const bf16* b, std::int64_t k) {
  float sum = 0;
  for (std::int64_t i = 0; i < k; ++i) sum += ToFloat(a[i]) * ToFloat(b[i]);
  return sum;
}

// A family with one backend, whose dot product is given.
Family WithBackend(float (*dot)(const bf16*, const bf16*, std::int64_t), bool documented = true) {
  Family family = dense_gemm_bf16_nt::MakeFamily();
  Backend backend;
  backend.name = "model";
  backend.supports = [](const Problem&, const Bundle&) { return std::string(); };
  backend.run = [dot](const Problem& problem, const Bundle& inputs, Bundle& outputs,
                      const RunContext&) {
    const dense_gemm_bf16_nt::Args g = dense_gemm_bf16_nt::Bind(problem, inputs, outputs);
    for (std::int64_t m = 0; m < g.m; ++m) {
      for (std::int64_t n = 0; n < g.n; ++n) {
        g.c[m * g.ldc + n] = ToBF16(dot(g.a + m * g.lda, g.b + n * g.ldb, g.k));
      }
    }
  };
  if (documented) backend.bitwise = dense_gemm_bf16_nt::StepsOf16();
  family.backends = {backend};
  return family;
}

// What `assay run --bitwise` decides about one content set.
Verdict Judge(const Family& family) {
  TestCase test = MakeTestCase(family, "dense_gemm_bf16_nt_n4096_k4096", {{"M", 4}}, 3, "to_q");
  const Backend& backend = family.backends[0];
  backend.run(test.problem, test.inputs, test.outputs, {});
  const Expected expected = ComputeExpected(family, test.problem, test.inputs, 1);
  Verdict verdict = Verify(family, test.problem, test.inputs, test.outputs, expected, 1);
  EXPECT_TRUE(verdict.passed()) << verdict.reason;  // before the bits are looked at
  AddBitwise(family, backend, test.problem, test.inputs, test.outputs, 1, verdict);
  return verdict;
}

TEST(Bitwise, TheDocumentedOrderPasses) {
  const Verdict verdict = Judge(WithBackend(InOrder));
  EXPECT_TRUE(verdict.passed()) << verdict.reason;
  const Finding& finding = verdict.correctness.findings.back();
  EXPECT_EQ(finding.name, "bitwise");
  EXPECT_TRUE(finding.passed);
  EXPECT_THAT(finding.detail, HasSubstr("k in steps of 16"));
}

TEST(Bitwise, AnyOtherOrderFails) {
  for (const auto dot : {SplitInTwo, Backwards, PlainFloat}) {
    const Verdict verdict = Judge(WithBackend(dot));
    EXPECT_EQ(verdict.status, Status::kIncorrect);
    EXPECT_EQ(verdict.sub, "bitwise");
    EXPECT_THAT(verdict.reason, HasSubstr("sampled elements differ from the documented order"));
    EXPECT_THAT(verdict.reason, HasSubstr("bitwise: C[0,"));
    EXPECT_GT(verdict.correctness.findings.back().measured, 3);
  }
}

TEST(Bitwise, SilenceIsNoPass) {
  const Verdict verdict = Judge(WithBackend(InOrder, false));
  EXPECT_TRUE(verdict.passed());
  EXPECT_THAT(verdict.flags, testing::Contains("no_bitwise_order"));
}

// One wrong bit in a corner of a large output is seen: corners are always sampled.
TEST(Bitwise, CornersAreAlwaysSampled) {
  const Family family = WithBackend(InOrder);
  TestCase test = MakeTestCase(family, "dense_gemm_bf16_nt_n4096_k4096", {{"M", 5}}, 3, "to_q");
  const Backend& backend = family.backends[0];
  backend.run(test.problem, test.inputs, test.outputs, {});
  Tensor& c = test.outputs["C"];
  for (const std::int64_t at : {std::int64_t{0}, std::int64_t{4095}, 4 * 4096l, c.elements() - 1}) {
    c.as<bf16>()[at].bits ^= 1;
    const Finding finding =
        CheckBitwise(family, backend, test.problem, test.inputs, test.outputs, 5);
    EXPECT_EQ(finding.measured, 1) << at;
    c.as<bf16>()[at].bits ^= 1;
  }
  EXPECT_TRUE(CheckBitwise(family, backend, test.problem, test.inputs, test.outputs, 5).passed);
}

TEST(Bitwise, ShapesAreJudgedFirst) {
  const Family family = WithBackend(InOrder);
  TestCase test = MakeTestCase(family, "dense_gemm_bf16_nt_n4096_k4096", {{"M", 1}}, 3, "to_q");
  const Bundle wrong = Bundle::Allocate({{"C", DType::kBF16, {1, 8}}});
  Verdict verdict;
  verdict.status = Status::kIncorrect;
  verdict.sub = "shape";
  AddBitwise(family, family.backends[0], test.problem, test.inputs, wrong, 1, verdict);
  EXPECT_TRUE(verdict.correctness.findings.empty());
}

}  // namespace
}  // namespace assay
