// Device backends on a simulated GPU: right ones are timed, and every fault costs its own case.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "replay/fake_accelerator.h"
#include "replay/faulty_family.h"
#include "replay/gpu.h"
#include "replay/measure_device.h"
#include "replay/runner.h"

namespace assay {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

RunOptions QuickOptions() {
  RunOptions options;
  options.worker_command = {FAULTY_WORKER};
  options.budget_s = 0.2;
  options.repeats = 2;
  options.timeout_s = 20;
  return options;
}

std::vector<CaseResult> RunAll(const std::vector<std::string>& backends,
                               RunOptions options = QuickOptions()) {
  options.backends = backends;
  Suite suite;
  Workload workload;
  workload.uuid = "u-1";
  workload.definition = "faulty_sum";
  workload.axes = {{"N", 1000}};
  suite.workloads = {workload};
  std::vector<CaseResult> results;
  RunCallbacks callbacks;
  callbacks.on_result = [&](const CaseResult& result) { results.push_back(result); };
  const std::atomic<bool> stop{false};
  RunCases(PlanCases(FaultyRegistry(), suite, options), options, {}, callbacks, stop);
  return results;
}

CaseResult RunOne(const std::string& backend, const RunOptions& options = QuickOptions()) {
  const std::vector<CaseResult> results = RunAll({backend}, options);
  EXPECT_EQ(results.size(), 1u);
  return results.empty() ? CaseResult{} : results.front();
}

TEST(DeviceCase, AGoodBackendIsCheckedAndTimedColdAndWarm) {
  const CaseResult result = RunOne("gpu_good");
  ASSERT_EQ(result.status, Status::kPassed) << result.reason;
  EXPECT_EQ(result.device, "cuda");
  EXPECT_EQ(result.correctness.content_sets, 3);
  ASSERT_EQ(result.timing.size(), 4u);  // two modes, two repeats
  const auto summaries = Summarize(result.timing);
  ASSERT_EQ(summaries.size(), 2u);
  EXPECT_EQ(summaries[0].mode, "cold_graph");
  EXPECT_EQ(summaries[1].mode, "warm_graph");
  // The simulated kernel: 3 us cold, 2 us warm, and a node's own cost; never the start of a graph.
  EXPECT_DOUBLE_EQ(summaries[0].median_ns, 3000 + FakeAccelerator::kNodeNs);
  EXPECT_DOUBLE_EQ(summaries[1].median_ns, 2000 + FakeAccelerator::kNodeNs);
  EXPECT_EQ(Headline(summaries)->mode, "cold_graph");
}

TEST(DeviceCase, EveryFaultIsAResultWithItsName) {
  const struct {
    const char* backend;
    Status status;
    const char* sub;
    const char* reason;
  } expectations[] = {
      {"gpu_writes_behind", Status::kIncorrect, "out_of_bounds", "sum"},
      {"gpu_modifies_input", Status::kIncorrect, "input_modified", "input 'a'"},
      {"gpu_illegal_address", Status::kFailed, "cuda_error", "illegal memory access"},
      {"gpu_leaves_side_stream", Status::kUnsupported, "exception", "never joins"},
      {"gpu_enqueues_nothing", Status::kUnsupported, "exception", "enqueues nothing"},
      {"gpu_works_elsewhere", Status::kIncorrect, "numerical", "nan"},
      {"gpu_skips_repeats", Status::kIncorrect, "unstable", "after timing"},
      {"gpu_caches_by_pointer", Status::kIncorrect, "unstable", "new content"},
      {"gpu_plans_by_content", Status::kIncorrect, "unstable", "new content"},
      {"gpu_out_of_memory", Status::kOom, "", "needs 4096 bytes of device memory"},
  };
  for (const auto& expected : expectations) {
    const CaseResult result = RunOne(expected.backend);
    EXPECT_EQ(result.status, expected.status) << expected.backend << ": " << result.reason;
    EXPECT_EQ(result.sub, expected.sub) << expected.backend << ": " << result.reason;
    EXPECT_THAT(result.reason, HasSubstr(expected.reason)) << expected.backend;
    EXPECT_FALSE(result.timed()) << expected.backend;
  }
}

TEST(DeviceCase, ALostContextCostsOneCase) {
  const auto results = RunAll({"gpu_illegal_address", "gpu_good"});
  ASSERT_EQ(results.size(), 2u);
  for (const CaseResult& result : results) {
    EXPECT_EQ(result.status, result.backend == "gpu_good" ? Status::kPassed : Status::kFailed)
        << result.reason;
  }
}

TEST(DeviceCase, AHangIsKilled) {
  RunOptions options = QuickOptions();
  options.timeout_s = 0.5;
  EXPECT_EQ(RunOne("gpu_hangs", options).status, Status::kTimeout);
}

TEST(DeviceCase, PinnedCacheLinesAreFlagged) {
  EXPECT_THAT(RunOne("gpu_pins_lines").flags, Contains("pins_l2"));
  EXPECT_THAT(RunOne("gpu_good").flags, Not(Contains("pins_l2")));
}

TEST(DeviceCase, NotesOfTheBackendReachTheResultOnce) {
  EXPECT_THAT(RunOne("gpu_good").notes, testing::ElementsAre("computes sums of 1000 elements"));
}

TEST(DeviceCase, WithoutAGpuTheReasonIsTheResult) {
  RunOptions options = QuickOptions();
  options.worker_command = {FAULTY_WORKER, "no_gpu"};
  const CaseResult result = RunOne("gpu_good", options);
  EXPECT_EQ(result.status, Status::kUnsupported);
  EXPECT_THAT(result.reason, HasSubstr("no usable GPU"));
  const GpuAnswer answer = AskForGpu(options.worker_command);
  EXPECT_FALSE(answer.gpu);
  EXPECT_THAT(answer.why_not, HasSubstr("no usable GPU"));
}

TEST(DeviceCase, DeviceBackendsRunByDefaultOnlyWhereThereIsADevice) {
  const auto device_cases = [](const std::string& why_no_gpu) {
    RunOptions options;
    options.why_no_gpu = why_no_gpu;
    Suite suite;
    suite.workloads.emplace_back();
    suite.workloads[0].definition = "faulty_sum";
    int count = 0;
    for (const PlannedCase& planned : PlanCases(FaultyRegistry(), suite, options)) {
      count += planned.family->FindBackend(planned.backend)->on_device() ? 1 : 0;
    }
    return count;
  };
  EXPECT_GT(device_cases(""), 0);
  EXPECT_EQ(device_cases("no driver"), 0);
}

TEST(DeviceCase, TheWorkerNamesItsGpu) {
  const GpuAnswer answer = AskForGpu({FAULTY_WORKER});
  ASSERT_TRUE(answer.gpu) << answer.why_not;
  EXPECT_EQ(answer.gpu->name, "Fake GPU");
  EXPECT_EQ(answer.gpu->capability, 90);
}

TEST(DeviceCase, CeilingsComeFromTheWorkerUnderTheGpusName) {
  const Ceilings ceilings = AskForGpuCeilings({FAULTY_WORKER});
  EXPECT_EQ(ceilings.device_id, "GPU-fake");
  EXPECT_EQ(ceilings.copy_bytes, 4e12);
  EXPECT_EQ(ceilings.bf16_flops, 8e14);
  EXPECT_EQ(ceilings.launch_ns, 700);
  EXPECT_EQ(ceilings.more.size(), 3u);
  EXPECT_THROW(AskForGpuCeilings({FAULTY_WORKER, "no_gpu"}), Error);
}

// A call of known length in every mode, long and short.
TEST(DeviceTimer, MeasuresKnownLengths) {
  for (const double ns : {0.0, 2e3, 10e3, 200e3, 5e6}) {
    FakeAccelerator gpu;
    const DeviceCall call = [ns](Stream stream) {
      FakeAccelerator::Of(stream).Launch(ns, ns + 500, [] {});
    };
    DeviceTimer timer(gpu, {call, call}, FlushKind::kRead);
    TimingLimits limits;
    limits.warmup_s = 0;
    const bool is_long = ns > DeviceTimer::kLongNs;
    const double started = is_long ? FakeAccelerator::kStartNs : 0;
    for (const bool cold : {true, false}) {
      const MeasuredSeries measured = timer.Measure(cold ? "cold" : "warm", limits);
      const std::string mode =
          std::string(cold ? "cold" : "warm") + (is_long ? "_event" : "_graph");
      EXPECT_EQ(measured.series.mode, mode);
      EXPECT_EQ(measured.series.stop, "converged");
      EXPECT_NEAR(measured.series.samples_ns.front(),
                  ns + (cold ? 500 : 0) + FakeAccelerator::kNodeNs + started, 1e-6)
          << mode << " of " << ns;
    }
  }
}

TEST(DeviceTimer, RefusesWhatItCannotTime) {
  FakeAccelerator gpu;
  DeviceTimer unknown(gpu, {[](Stream s) { FakeAccelerator::Of(s).Launch(1, 1, [] {}); }},
                      FlushKind::kRead);
  EXPECT_THROW(unknown.Measure("tepid", {}), Error);
  DeviceTimer empty(gpu, {[](Stream) {}}, FlushKind::kRead);
  EXPECT_THROW(empty.Measure("cold", {}), Error);
}

}  // namespace
}  // namespace assay
