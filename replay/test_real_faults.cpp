// What a device worker survives and names, on a real GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "replay/fault_cases.h"
#include "replay/gpu.h"
#include "replay/real_faults.h"

namespace assay {
namespace {

using ::testing::Contains;
using ::testing::Not;

class RealFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    const GpuAnswer answer = AskForGpu({REAL_FAULTS_WORKER});
    if (!answer.gpu) GTEST_SKIP() << answer.why_not;
  }

  static std::vector<CaseResult> RunAll(const std::vector<std::string>& backends,
                                        double timeout_s = 60) {
    RunOptions options = QuickOptions({REAL_FAULTS_WORKER});
    options.backends = backends;
    options.repeats = 1;
    options.timeout_s = timeout_s;
    return RunSuite(RealFaultsRegistry(), {FaultySum(100'003)}, options);
  }
};

TEST_F(RealFaults, AGoodBackendIsTimed) {
  const CaseResult result = RunAll({"good"}).at(0);
  ASSERT_EQ(result.status, Status::kPassed) << result.reason;
  EXPECT_EQ(result.timing.size(), 2u);
  EXPECT_GE(result.clocks.size(), 3u);
  EXPECT_THAT(result.flags, Not(Contains("repeated_content")));
}

TEST_F(RealFaults, EveryFaultIsAResultWithItsName) {
  const ExpectedFault expectations[] = {
      {"writes_behind", Status::kIncorrect, "out_of_bounds", "sum"},
      {"modifies_input", Status::kIncorrect, "input_modified", "input 'a'"},
      {"illegal_address", Status::kFailed, "cuda_error", "illegal memory access"},
      {"elsewhere", Status::kUnsupported, "exception", "enqueues nothing"},
      {"early_return", Status::kIncorrect, "numerical", ""},
      {"unjoined", Status::kUnsupported, "exception", "never joins"},
      {"lazy", Status::kIncorrect, "unstable", ""},
      {"knows_the_checks", Status::kIncorrect, "unstable", "in the timing loop on new content"},
      {"too_much_memory", Status::kFailed, "cuda_error", "out of memory"},
  };
  for (const ExpectedFault& expected : expectations) {
    ExpectFault(expected, RunAll({expected.backend}).at(0));
  }
  // Synchronising inside a capture invalidates it: refused or failed, never timed.
  const CaseResult result = RunAll({"synchronises"}).at(0);
  EXPECT_NE(result.status, Status::kPassed);
  EXPECT_FALSE(result.timed());
}

TEST_F(RealFaults, AHangAndALostContextCostOneCaseEach) {
  const auto results = RunAll({"illegal_address", "hangs", "good"}, 5);
  ASSERT_EQ(results.size(), 3u);
  for (const CaseResult& result : results) {
    const Status expected = result.backend == "good"    ? Status::kPassed
                            : result.backend == "hangs" ? Status::kTimeout
                                                        : Status::kFailed;
    EXPECT_EQ(result.status, expected) << result.backend << ": " << result.reason;
  }
}

TEST_F(RealFaults, PinnedCacheLinesAreFlagged) {
  EXPECT_THAT(RunAll({"pins"}).at(0).flags, Contains("pins_l2"));
  EXPECT_THAT(RunAll({"good"}).at(0).flags, Not(Contains("pins_l2")));
}

}  // namespace
}  // namespace assay
