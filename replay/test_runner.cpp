// The runner against backends and workers that fail in every way we know: each costs its own case.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <thread>

#include "replay/fault_cases.h"
#include "replay/faulty_family.h"

namespace assay {
namespace {

using ::testing::HasSubstr;

Workload Sum(std::int64_t n, const std::string& uuid = "u-1") { return FaultySum(n, uuid); }

RunOptions QuickOptions() { return assay::QuickOptions({FAULTY_WORKER}); }

// Results by backend of one run over `workloads`.
std::multimap<std::string, CaseResult> RunAll(const std::vector<Workload>& workloads,
                                              const std::vector<std::string>& backends,
                                              RunOptions options = QuickOptions()) {
  options.backends = backends;
  std::multimap<std::string, CaseResult> results;
  for (CaseResult& result : RunSuite(FaultyRegistry(), workloads, options)) {
    results.emplace(result.backend, std::move(result));
  }
  return results;
}

CaseResult RunOne(const std::string& backend, RunOptions options = QuickOptions(),
                  std::int64_t n = 1000) {
  const auto results = RunAll({Sum(n)}, {backend}, std::move(options));
  EXPECT_EQ(results.size(), 1u);
  return results.empty() ? CaseResult{} : results.begin()->second;
}

TEST(Runner, AGoodBackendPassesWithEverySampleKept) {
  const CaseResult result = RunOne("good");
  EXPECT_EQ(result.status, Status::kPassed) << result.reason;
  EXPECT_EQ(result.correctness.content_sets, 3);
  EXPECT_EQ(result.correctness.share_checked, 1);
  EXPECT_EQ(result.correctness.grade(), "captured");
  ASSERT_EQ(result.timing.size(), 4u);  // two modes, two repeats
  for (const TimingSeries& series : result.timing) EXPECT_GE(series.samples_ns.size(), 1u);
  ASSERT_EQ(result.input_hashes.size(), 2u);
  EXPECT_EQ(result.input_hashes[0].second.size(), 64u);
}

TEST(Runner, EveryFaultIsAResultWithItsName) {
  const ExpectedFault expectations[] = {
      {"segfault", Status::kFailed, "signal", "signal 11"},
      {"exits", Status::kFailed, "exit", "exit code 0"},
      {"throws", Status::kFailed, "exception", "no luck"},
      {"out_of_memory", Status::kOom, "", "out of memory"},
      {"writes_nothing", Status::kIncorrect, "numerical", "sum[0] = nan"},
      {"skips_last", Status::kIncorrect, "numerical", "sum[999] = nan"},
      {"writes_behind", Status::kIncorrect, "out_of_bounds", "behind its end"},
      {"writes_before", Status::kIncorrect, "out_of_bounds", "before its start"},
      {"modifies_input", Status::kIncorrect, "input_modified", "'a' was modified"},
      {"moves_output", Status::kIncorrect, "aliasing", "not the given memory"},
      {"wrong_later", Status::kIncorrect, "unstable", "wrong in the timing loop"},
      {"caches_by_pointer", Status::kIncorrect, "numerical", "content set 1"},
      {"skips_repeats", Status::kIncorrect, "unstable", "before every output element"},
      {"picky", Status::kUnsupported, "", "only on Sundays"},
  };
  for (const ExpectedFault& expected : expectations) {
    ExpectFault(expected, RunOne(expected.backend));
  }
}

TEST(Runner, BitsAreComparedWhenAskedFor) {
  RunOptions options = QuickOptions();
  options.timing = false;
  EXPECT_EQ(RunOne("last_bit_off", options).status, Status::kPassed);  // inside the tolerance
  options.bitwise = true;
  const CaseResult wrong = RunOne("last_bit_off", options);
  EXPECT_EQ(wrong.status, Status::kIncorrect);
  EXPECT_EQ(wrong.sub, "bitwise");
  EXPECT_THAT(wrong.reason, HasSubstr("sum[999] = 0x"));
  const CaseResult right = RunOne("documented", options);
  EXPECT_EQ(right.status, Status::kPassed) << right.reason;
  ASSERT_EQ(right.correctness.findings.size(), 1u);
  EXPECT_EQ(right.correctness.findings[0].name, "bitwise");
  EXPECT_THAT(RunOne("good", options).flags, ::testing::Contains("no_bitwise_order"));
}

TEST(Runner, AHangIsKilledAndCostsOneCase) {
  RunOptions options = QuickOptions();
  options.timeout_s = 1;  // a busy machine may keep the good one waiting for a while
  const auto results = RunAll({Sum(100)}, {"hangs", "good"}, options);
  EXPECT_EQ(results.find("hangs")->second.status, Status::kTimeout);
  EXPECT_EQ(results.find("hangs")->second.sub, "check");
  EXPECT_EQ(results.find("good")->second.status, Status::kPassed);
}

TEST(Runner, SpoiledInputsAreNotTheNeighboursFault) {
  const auto results = RunAll({Sum(1000)}, {"spoils_inputs_and_dies", "spoils_new_inputs", "good"});
  EXPECT_EQ(results.find("spoils_inputs_and_dies")->second.status, Status::kFailed);
  const CaseResult& late = results.find("spoils_new_inputs")->second;
  EXPECT_EQ(late.sub, "input_modified") << late.reason;
  const CaseResult& good = results.find("good")->second;
  EXPECT_EQ(good.status, Status::kPassed) << good.reason;
}

TEST(Runner, OneFaultDoesNotTouchTheNeighbours) {
  const auto results = RunAll({Sum(100, "u-1"), Sum(200, "u-2")},
                              {"segfault", "modifies_input", "writes_behind", "good", "prints"});
  EXPECT_EQ(results.size(), 10u);
  for (const auto& [backend, result] : results) {
    if (backend == "good" || backend == "prints") {
      EXPECT_EQ(result.status, Status::kPassed) << backend << ": " << result.reason;
    } else {
      EXPECT_NE(result.status, Status::kPassed) << backend;
    }
  }
}

TEST(Runner, WorkersThatDoNotGreetAreExplained) {
  for (const char* fault : {"mute", "old", "babble"}) {
    RunOptions options = QuickOptions();
    options.worker_command = {FAULTY_WORKER, fault};
    const CaseResult result = RunOne("good", options);
    EXPECT_EQ(result.status, Status::kFailed) << fault;
    EXPECT_NE(result.reason, "") << fault;
  }
  RunOptions options = QuickOptions();
  options.worker_command = {"/no/such/worker"};
  EXPECT_THAT(RunOne("good", options).reason, HasSubstr("exit code 127"));
}

TEST(Runner, BadAxesAndUnknownDefinitionsAreResults) {
  Workload unknown = Sum(8, "u-2");
  unknown.definition = "never_heard_of";
  const auto results = RunAll({Sum(13, "u-1"), unknown, Sum(8, "u-3")}, {"good"});
  ASSERT_EQ(results.size(), 3u);
  std::map<std::string, CaseResult> by_uuid;
  for (const auto& [backend, result] : results) by_uuid[result.uuid] = result;
  EXPECT_EQ(by_uuid["u-1"].status, Status::kInvalidRecord);
  EXPECT_THAT(by_uuid["u-1"].reason, HasSubstr("N = 13"));
  EXPECT_EQ(by_uuid["u-2"].status, Status::kUnsupported);
  EXPECT_EQ(by_uuid["u-3"].status, Status::kPassed);
}

TEST(Runner, TooLargeForMemoryIsOomBeforeAnyAllocation) {
  const auto start = std::chrono::steady_clock::now();
  const CaseResult result = RunOne("good", QuickOptions(), 1LL << 39);
  EXPECT_EQ(result.status, Status::kOom);
  EXPECT_THAT(result.reason, HasSubstr("6597069791232 bytes"));  // 3 * 4 * 2^39 and red zones
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

TEST(Runner, FewContentSetsWhenMemoryIsShort) {
  RunOptions options = QuickOptions();
  options.memory_limit_bytes = 2 * (3 * 4 * 100'000 + 6 * 4096 + 3 * 4096);
  const CaseResult result = RunOne("good", options, 100'000);
  EXPECT_EQ(result.status, Status::kPassed);
  EXPECT_EQ(result.correctness.content_sets, 2);
}

// 108 MB of tensors: two content sets stay, the third is met in the memory of the first.
TEST(Runner, LargeCasesMeetThreeContentSetsInTheMemoryOfTwo) {
  constexpr std::int64_t kMany = 9'000'000;
  RunOptions options = QuickOptions();
  options.repeats = 1;
  const auto results = RunAll({Sum(kMany)}, {"good", "wrong_on_third_call"}, options);
  const CaseResult& good = results.find("good")->second;
  // On a busy machine a few long calls may look suspicious.
  EXPECT_TRUE(good.status == Status::kPassed || good.sub == "memo") << good.reason;
  EXPECT_EQ(good.correctness.content_sets, 3);
  EXPECT_EQ(good.timing.size(), 2u);  // cold and warm
  constexpr double kTensors = 3.0 * sizeof(float) * kMany;
  EXPECT_LT(static_cast<double>(good.peak_bytes), 3 * kTensors);
  EXPECT_GT(static_cast<double>(good.peak_bytes), 1.9 * kTensors);
  const CaseResult& wrong = results.find("wrong_on_third_call")->second;
  EXPECT_EQ(wrong.status, Status::kIncorrect);
  EXPECT_THAT(wrong.reason, HasSubstr("content set 2: sum[4500000]"));
}

TEST(Runner, TimesBelowTheFloorAreFlagged) {
  RunOptions options = QuickOptions();
  options.backends = {"slow"};
  const auto flags = [&](double launch_ns) {
    MachineCeilings ceilings;
    ceilings.host.launch_ns = launch_ns;
    return RunSuite(FaultyRegistry(), {Sum(100)}, options, ceilings).at(0).flags;
  };
  // A call takes 0.4 s and a little.
  EXPECT_THAT(flags(1e9), ::testing::Contains("below_floor"));
  EXPECT_THAT(flags(0.1e9), ::testing::Not(::testing::Contains("below_floor")));
}

TEST(Runner, TenTimesFasterThanAllOthersIsFlagged) {
  const auto flags = [](const std::vector<std::string>& backends) {
    return RunAll({Sum(100)}, backends).find("good")->second.flags;
  };
  EXPECT_THAT(flags({"good", "slow"}), ::testing::Contains("too_fast"));
  EXPECT_THAT(flags({"good", "slow", "documented"}),
              ::testing::Not(::testing::Contains("too_fast")));
}

TEST(Runner, EmptyCasesPassWithAFlag) {
  const CaseResult result = RunOne("good", QuickOptions(), 0);
  EXPECT_EQ(result.status, Status::kPassed) << result.reason;
  EXPECT_THAT(result.flags, ::testing::Contains("empty"));
}

TEST(Runner, SlowKernelsStayInsideTheBudget) {
  RunOptions options = QuickOptions();
  options.repeats = 3;
  const auto start = std::chrono::steady_clock::now();
  const CaseResult result = RunOne("slow", options);  // 0.4 s a call, 0.2 s of budget
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4));
  EXPECT_EQ(result.status, Status::kPassed) << result.reason;
  EXPECT_EQ(result.correctness.content_sets, 1);  // one run takes more than the budget
  ASSERT_EQ(result.timing.size(), 1u);
  EXPECT_EQ(result.timing[0].mode, "cold_host");
  EXPECT_EQ(result.timing[0].samples_ns.size(), 1u);
  EXPECT_THAT(result.flags, ::testing::Contains("noisy"));
}

TEST(Runner, RatherSlowKernelsAreTimedInOneProcess) {
  RunOptions options = QuickOptions();
  options.repeats = 3;
  options.budget_s = 0.9;  // a call takes 0.4 s: six series do not fit
  const CaseResult result = RunOne("slow", options);
  EXPECT_EQ(result.status, Status::kPassed) << result.reason;
  EXPECT_EQ(result.correctness.content_sets, 2);
  EXPECT_EQ(result.timing.size(), 2u);  // one repeat of both modes
}

TEST(Runner, SeedsGiveOtherContent) {
  RunOptions options = QuickOptions();
  options.timing = false;
  const CaseResult first = RunOne("good", options);
  options.seed = 40;
  const CaseResult second = RunOne("good", options);
  EXPECT_NE(first.input_hashes, second.input_hashes);
}

TEST(Runner, StopsBetweenCasesWhenAsked) {
  RunOptions options = QuickOptions();
  Suite suite;
  for (int i = 0; i < 50; ++i) suite.workloads.push_back(Sum(100, "u-" + std::to_string(i)));
  options.backends = {"good"};
  std::atomic<bool> stop{false};
  int results = 0;
  RunCallbacks callbacks;
  callbacks.on_result = [&](const CaseResult&) { stop = ++results == 2; };
  RunCases(PlanCases(FaultyRegistry(), suite, options), options, {}, callbacks, stop);
  EXPECT_EQ(results, 2);
}

TEST(Runner, StopInterruptsAHangingBackend) {
  RunOptions options = QuickOptions();
  options.backends = {"hangs"};
  options.timeout_s = 60;
  Suite suite;
  suite.workloads = {Sum(100)};
  std::atomic<bool> stop{false};
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stop = true;
  });
  int results = 0;
  RunCallbacks callbacks;
  callbacks.on_result = [&](const CaseResult&) { ++results; };
  const auto start = std::chrono::steady_clock::now();
  RunCases(PlanCases(FaultyRegistry(), suite, options), options, {}, callbacks, stop);
  later.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_EQ(results, 0) << "an interrupted case is dropped, so that --resume runs it again";
}

TEST(Runner, DoneCasesAreSkipped) {
  RunOptions options = QuickOptions();
  options.build = "b1";
  options.done = {{"u-1", "good", "b1"}};
  Suite suite;
  suite.workloads = {Sum(100, "u-1"), Sum(100, "u-2")};
  options.backends = {"good"};
  EXPECT_EQ(PlanCases(FaultyRegistry(), suite, options).size(), 1u);
  options.build = "b2";
  EXPECT_EQ(PlanCases(FaultyRegistry(), suite, options).size(), 2u);
}

TEST(Runner, UnknownBackendIsRefusedWithTheKnownOnes) {
  RunOptions options = QuickOptions();
  options.backends = {"gpu9000"};
  Suite suite;
  suite.workloads = {Sum(100)};
  try {
    PlanCases(FaultyRegistry(), suite, options);
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("unknown backend 'gpu9000'"));
    EXPECT_THAT(error.what(), HasSubstr("good"));
  }
}

}  // namespace
}  // namespace assay
