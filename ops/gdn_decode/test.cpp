// Tests of the gdn_decode room.
#include "ops/gdn_decode/spec.h"
#include "replay/room_test.h"

namespace assay::gdn_decode {
namespace {
const Family& TheFamily() {
  static const Family family = MakeFamily();
  return family;
}
constexpr const char* kDefinition = "gdn_decode_qk4_v8_d128_k_last";

TEST(GdnDecode, Probe) {
  for (const auto& variant : TheFamily().variants) {
    TestCase test = MakeTestCase(TheFamily(), kDefinition, {{"batch_size", 16}}, 7, variant);
    const Verdict verdict = RunAndVerify(test);
    EXPECT_TRUE(verdict.passed()) << variant << ": " << verdict.reason;
    std::cout << variant << " out " << verdict.correctness.outputs[0].budget_used << " l2 "
              << verdict.correctness.outputs[0].max_rel_l2 << " state "
              << verdict.correctness.outputs[1].budget_used << " "
              << verdict.correctness.outputs[1].max_rel_l2 << "\n";
  }
}
TEST(GdnDecode, Mutants) {
  TestCase test = MakeTestCase(TheFamily(), kDefinition, {{"batch_size", 4}}, 7);
  ExpectMutantsKilled(test);
}
}  // namespace
}  // namespace assay::gdn_decode
