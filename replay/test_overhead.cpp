// What the harness adds to a case. A program of its own, since ctest runs it alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "replay/fault_cases.h"
#include "replay/faulty_family.h"

namespace assay {
namespace {

TEST(Overhead, OfAShortCaseIsBelow3Milliseconds) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "timing under a sanitizer says nothing";
#endif
  RunOptions options;
  options.worker_command = {FAULTY_WORKER};
  options.backends = {"good"};
  options.budget_s = 0.2;
  std::vector<Workload> workloads;
  for (int i = 0; i < 20; ++i) workloads.push_back(FaultySum(1000, "u-" + std::to_string(i)));
  std::vector<double> overheads;
  for (const CaseResult& result : RunSuite(FaultyRegistry(), workloads, options)) {
    overheads.push_back(result.overhead_ms);
  }
  ASSERT_EQ(overheads.size(), 20u);
  std::sort(overheads.begin(), overheads.end());
  std::printf("overhead of a case: least %.2f ms, median %.2f ms\n", overheads[0], overheads[10]);
  // The limit of the product, on the least of 20 cases: other programs may share the machine.
  EXPECT_LT(overheads[0], 3.0);
}

}  // namespace
}  // namespace assay
