// Runs of the faulty family for tests: one operator, backends that fail in known ways, and what
// each must come to. Test code only.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "replay/runner.h"

namespace assay {

// One vector sum of `n` elements.
inline Workload FaultySum(std::int64_t n, const std::string& uuid = "u-1") {
  Workload workload;
  workload.uuid = uuid;
  workload.definition = "faulty_sum";
  workload.axes = {{"N", n}};
  return workload;
}

inline RunOptions QuickOptions(const std::vector<std::string>& worker) {
  RunOptions options;
  options.worker_command = worker;
  options.budget_s = 0.2;
  options.repeats = 2;
  options.timeout_s = 20;
  return options;
}

// Results in the order they came.
inline std::vector<CaseResult> RunSuite(const Registry& registry,
                                        const std::vector<Workload>& workloads,
                                        const RunOptions& options,
                                        const MachineCeilings& ceilings = {}) {
  Suite suite;
  suite.workloads = workloads;
  std::vector<CaseResult> results;
  RunCallbacks callbacks;
  callbacks.on_result = [&](const CaseResult& result) { results.push_back(result); };
  const std::atomic<bool> stop{false};
  RunCases(PlanCases(registry, suite, options), options, ceilings, callbacks, stop);
  return results;
}

struct ExpectedFault {
  const char* backend;
  Status status;
  const char* sub;
  const char* reason;  // part of it
};

inline void ExpectFault(const ExpectedFault& expected, const CaseResult& result) {
  EXPECT_EQ(result.status, expected.status) << expected.backend << ": " << result.reason;
  EXPECT_EQ(result.sub, expected.sub) << expected.backend << ": " << result.reason;
  EXPECT_THAT(result.reason, ::testing::HasSubstr(expected.reason)) << expected.backend;
  EXPECT_TRUE(result.timing.empty()) << expected.backend << ": a failed case has no speed";
}

}  // namespace assay
