// Tests of the gdn_prefill room.
#include <chrono>

#include "ops/gdn_prefill/spec.h"
#include "replay/room_test.h"

namespace assay::gdn_prefill {
namespace {
const Family& TheFamily() {
  static const Family family = MakeFamily();
  return family;
}
constexpr const char* kDefinition = "gdn_prefill_qk4_v8_d128_k_last";
Axes A(std::int64_t t, std::int64_t n) {
  return {{"total_seq_len", t}, {"num_seqs", n}, {"len_cu_seqlens", n + 1}};
}

TEST(GdnPrefill, Probe) {
  for (const auto& variant : TheFamily().variants) {
    TestCase test = MakeTestCase(TheFamily(), kDefinition, A(700, 4), 7, variant);
    const Verdict verdict = RunAndVerify(test);
    EXPECT_TRUE(verdict.passed()) << variant << ": " << verdict.reason;
    std::cout << variant << " out " << verdict.correctness.outputs[0].grade << " "
              << verdict.correctness.outputs[0].budget_used << " l2 "
              << verdict.correctness.outputs[0].max_rel_l2 << " state "
              << verdict.correctness.outputs[1].grade << " "
              << verdict.correctness.outputs[1].budget_used << " "
              << verdict.correctness.outputs[1].max_rel_l2 << "\n";
  }
}
TEST(GdnPrefill, Big) {
  using Clock = std::chrono::steady_clock;
  auto now = [] { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); };
  double t0 = now();
  TestCase test = MakeTestCase(TheFamily(), kDefinition, A(8192, 1), 7);
  double t1 = now();
  std::cout << "generate " << t1 - t0 << "\n";
  for (auto isa : {cpu::Isa::kBaseline, cpu::Isa::kAvx2, cpu::Isa::kAvx512})
    for (int threads : {1, 2}) {
      double best = 1e9;
      for (int i = 0; i < 5; ++i) {
        t0 = now();
        RunCpu(Bind(test.problem, test.inputs, test.outputs), threads, isa);
        best = std::min(best, now() - t0);
      }
      std::cout << cpu::IsaName(isa) << " " << threads << " " << best << "\n";
    }
  t0 = now();
  const Expected expected = ComputeExpected(TheFamily(), test.problem, test.inputs, 1);
  t1 = now();
  std::cout << "reference " << t1 - t0 << "\n";
  const Verdict verdict =
      Verify(*test.family, test.problem, test.inputs, test.outputs, expected, 1);
  std::cout << "verify " << now() - t1 << "\n";
  EXPECT_TRUE(verdict.passed()) << ": " << verdict.reason;
}
TEST(GdnPrefill, Mutants) {
  TestCase test = MakeTestCase(TheFamily(), kDefinition, A(200, 3), 7);
  ExpectMutantsKilled(test);
}
}  // namespace
}  // namespace assay::gdn_prefill
