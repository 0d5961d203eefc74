// Device backends on a simulated GPU: right ones are timed, and every fault costs its own case.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

#include "replay/fake_accelerator.h"
#include "replay/fault_cases.h"
#include "replay/faulty_family.h"
#include "replay/fresh_inputs.h"
#include "replay/gpu.h"
#include "replay/measure_device.h"
#include "replay/timing_selftest.h"

namespace assay {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

RunOptions QuickOptions() { return assay::QuickOptions({FAULTY_WORKER}); }

std::vector<CaseResult> RunAll(const std::vector<std::string>& backends,
                               RunOptions options = QuickOptions()) {
  options.backends = backends;
  return RunSuite(FaultyRegistry(), {FaultySum(1000)}, options);
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
  const ExpectedFault expectations[] = {
      {"gpu_writes_behind", Status::kIncorrect, "out_of_bounds", "sum"},
      {"gpu_modifies_input", Status::kIncorrect, "input_modified", "input 'a'"},
      {"gpu_illegal_address", Status::kFailed, "cuda_error", "illegal memory access"},
      {"gpu_leaves_side_stream", Status::kUnsupported, "exception", "never joins"},
      {"gpu_enqueues_nothing", Status::kUnsupported, "exception", "enqueues nothing"},
      {"gpu_works_elsewhere", Status::kIncorrect, "numerical", "nan"},
      {"gpu_skips_repeats", Status::kIncorrect, "unstable", "in the timing loop"},
      {"gpu_caches_by_pointer", Status::kIncorrect, "unstable", "new content"},
      {"gpu_knows_the_checks", Status::kIncorrect, "unstable", "in the timing loop on new content"},
      {"gpu_plans_by_content", Status::kIncorrect, "unstable", "new content"},
      {"gpu_out_of_memory", Status::kOom, "", "needs 4096 bytes of device memory"},
  };
  std::vector<std::string> together = {"gpu_good"};
  for (const ExpectedFault& expected : expectations) {
    ExpectFault(expected, RunOne(expected.backend));
    together.push_back(expected.backend);
  }
  // Side by side, each is judged as if it were alone.
  for (const CaseResult& result : RunAll(together)) {
    const auto expected =
        std::find_if(std::begin(expectations), std::end(expectations),
                     [&](const ExpectedFault& fault) { return fault.backend == result.backend; });
    if (expected != std::end(expectations)) {
      ExpectFault(*expected, result);
    } else {
      EXPECT_EQ(result.status, Status::kPassed) << result.reason;
    }
  }
}

TEST(DeviceCase, HostBackendsBesideThemAreTimedAndTheNextWorkloadIsRight) {
  RunOptions options = QuickOptions();
  options.backends = {"good", "gpu_good"};
  const auto results =
      RunSuite(FaultyRegistry(),
               {FaultySum(1000, "u-1"), FaultySum(13, "u-2"), FaultySum(500, "u-3")}, options);
  ASSERT_EQ(results.size(), 6u);
  for (const CaseResult& result : results) {
    const bool unlucky = result.uuid == "u-2";
    EXPECT_EQ(result.status, unlucky ? Status::kInvalidRecord : Status::kPassed) << result.reason;
    EXPECT_EQ(result.timing.size(), unlucky ? 0u : 4u) << result.uuid << result.backend;
  }
}

// Cold calls never meet what it has kept; warm ones repeat their content, and new content shows
// what computing costs.
TEST(DeviceCase, KeptResultsGainNothingColdAndAreFoundWarm) {
  const CaseResult result = RunOne("gpu_keeps_results");
  EXPECT_EQ(result.status, Status::kSuspicious) << result.reason;
  EXPECT_EQ(result.sub, "memo");
  EXPECT_THAT(result.reason, HasSubstr("warm"));
  const auto summaries = Summarize(result.timing);
  ASSERT_EQ(summaries.size(), 2u);
  EXPECT_DOUBLE_EQ(summaries[0].median_ns, 63e3 + FakeAccelerator::kNodeNs);
  EXPECT_DOUBLE_EQ(summaries[1].median_ns, 2e3 + FakeAccelerator::kNodeNs);
  EXPECT_THAT(result.flags, Not(Contains("repeated_content")));
}

// Their inputs are made while the workload before them runs: what that throws belongs to them.
TEST(DeviceCase, TheNextWorkloadsInputsAreItsOwnBusiness) {
  RunOptions options = QuickOptions();
  options.backends = {"gpu_good"};
  const auto results = RunSuite(
      FaultyRegistry(),
      {FaultySum(1000, "u-1"), FaultySum(13, "u-2"), FaultySum(0, "u-3"), FaultySum(500, "u-4")},
      options);
  ASSERT_EQ(results.size(), 4u);
  for (const CaseResult& result : results) {
    const bool unlucky = result.uuid == "u-2";
    EXPECT_EQ(result.status, unlucky ? Status::kInvalidRecord : Status::kPassed) << result.reason;
    EXPECT_EQ(result.correctness.content_sets, unlucky ? 0 : 3) << result.uuid;
  }
  EXPECT_THAT(results[1].reason, HasSubstr("unlucky"));
}

TEST(DeviceCase, InputsThatDoNotFitTwiceAreMadeWhenTheirTurnComes) {
  RunOptions options = QuickOptions();
  options.backends = {"gpu_good"};
  options.timing = false;
  // One content set of 1000 elements fits, half of the limit holds none.
  options.memory_limit_bytes = 60'000;
  for (const CaseResult& result :
       RunSuite(FaultyRegistry(), {FaultySum(1000, "u-1"), FaultySum(1000, "u-2")}, options)) {
    EXPECT_EQ(result.status, Status::kPassed) << result.reason;
    EXPECT_EQ(result.correctness.content_sets, 1);
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

// The driver's library is ours: it says 1755 of 1980 MHz, and a power cap.
TEST(DeviceCase, AThrottledGpuIsFlaggedAndItsClocksAreKept) {
  EXPECT_THAT(RunOne("gpu_good").flags, Contains("clocks_unknown"));
  const std::string folder = testing::TempDir() + "assay-nvml-" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  std::filesystem::create_symlink(FAKE_NVML, folder + "/libnvidia-ml.so.1");
  RunOptions options = QuickOptions();
  options.worker_command = {"/usr/bin/env", "LD_LIBRARY_PATH=" + folder, FAULTY_WORKER};
  const CaseResult result = RunOne("gpu_good", options);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(result.status, Status::kPassed) << result.reason;
  EXPECT_THAT(result.flags, Contains("throttled"));
  EXPECT_THAT(result.flags, Not(Contains("clocks_unknown")));
  ASSERT_GE(result.clocks.size(), 3u);
  EXPECT_EQ(result.clocks[0].sm_mhz, 1755);
  EXPECT_FALSE(result.timing.empty());  // shown all the same
}

TEST(DeviceCase, NotesOfTheBackendReachTheResultOnce) {
  EXPECT_THAT(RunOne("gpu_good").notes, testing::ElementsAre("computes sums of 1000 elements"));
}

CaseResult RunCrossChecked(const std::vector<std::string>& worker) {
  RunOptions options = assay::QuickOptions(worker);
  options.cross_check = true;
  return RunOne("gpu_good", options);
}

TEST(DeviceCase, SpansStandBesideTheColdTime) {
  const CaseResult result = RunCrossChecked({FAULTY_WORKER});
  ASSERT_EQ(result.status, Status::kPassed) << result.reason;
  const auto summaries = Summarize(result.timing);
  ASSERT_EQ(summaries.size(), 3u);
  EXPECT_EQ(summaries[2].mode, "cold_span");
  EXPECT_EQ(summaries[2].repeats, 1);
  EXPECT_DOUBLE_EQ(summaries[2].median_ns, 3000);  // without the node's own cost
  EXPECT_EQ(Headline(summaries)->mode, "cold_graph");
  EXPECT_THAT(result.flags, Not(Contains("span_differs")));
}

TEST(DeviceCase, SpansThatContradictAreFlagged) {
  const CaseResult result = RunCrossChecked({FAULTY_WORKER, "long_spans"});
  EXPECT_EQ(result.status, Status::kPassed) << result.reason;
  EXPECT_DOUBLE_EQ(Summarize(result.timing).back().median_ns, 9000);
  EXPECT_THAT(result.flags, Contains("span_differs"));
}

TEST(DeviceCase, WithoutCuptiANoteSaysSo) {
  const CaseResult result = RunCrossChecked({FAULTY_WORKER, "no_cupti"});
  EXPECT_EQ(result.status, Status::kPassed) << result.reason;
  EXPECT_EQ(Summarize(result.timing).size(), 2u);
  EXPECT_THAT(result.notes, Contains("no cross-check by CUPTI: CUPTI could not be loaded"));
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

// One content set or several, one graph for all calls or one each.
TEST(DeviceTimer, EveryColdCallMeetsItsOwnContent) {
  for (const std::size_t sets : {1, 2, 3}) {
    for (const double ns : {2e3, 200e3, 5e6}) {
      FakeAccelerator gpu;
      std::vector<Bundle> inputs;
      std::vector<std::unique_ptr<ContentVersions>> versions;
      std::vector<ContentVersions*> given;
      std::vector<DeviceCall> calls;
      std::vector<std::string> met;
      for (std::size_t set = 0; set < sets; ++set) {
        inputs.push_back(Bundle::AllocateShared({{"x", DType::kF32, {100}}}));
        for (int i = 0; i < 100; ++i) inputs[set]["x"].as<float>()[i] = 1.1f + float(set);
        const Tensor x = inputs[set]["x"];
        versions.push_back(
            gpu.MakeVersions(ChangingParts(inputs[set], inputs[set].arena().data())));
        given.push_back(versions.back().get());
        calls.push_back([x, ns, &met](Stream stream) {
          FakeAccelerator::Of(stream).Launch(ns, ns + 500, [x, &met] {
            met.emplace_back(reinterpret_cast<const char*>(x.data), x.bytes());
          });
        });
      }
      std::vector<std::string> original;
      for (const DeviceCall& call : calls) call(gpu.stream());
      original.swap(met);
      DeviceTimer timer(gpu, calls, FlushKind::kRead, given);
      TimingLimits limits;
      limits.warmup_s = 0;
      const MeasuredSeries cold = timer.Measure("cold", limits);
      const double started = ns > DeviceTimer::kLongNs ? FakeAccelerator::kStartNs : 0;
      EXPECT_NEAR(cold.series.samples_ns.front(), ns + 500 + FakeAccelerator::kNodeNs + started,
                  1e-6);
      // The probes before the loop see the original content.
      std::set<std::string> different;
      std::size_t calls_on_versions = 0;
      for (const std::string& content : met) {
        const bool probe = std::find(original.begin(), original.end(), content) != original.end();
        calls_on_versions += probe ? 0 : 1;
        if (!probe) different.insert(content);
      }
      EXPECT_EQ(different.size(), calls_on_versions) << sets << " sets, " << ns << " ns";
      EXPECT_GE(calls_on_versions, cold.series.samples_ns.size());
      met.clear();
      std::vector<std::uint64_t> last(sets, kOriginalVersion);
      last[0] = kJudgedVersion;
      timer.ReplayAll(last);
      ChangeVersion(inputs[0], kJudgedVersion, kOriginalVersion);
      for (std::size_t set = 0; set < sets; ++set) {
        EXPECT_EQ(inputs[set]["x"].as<float>()[7], 1.1f + float(set)) << sets << " sets";
      }
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

// Probes on the simulated GPU. Spins take `factor` times what its own clock says.
class FakeProbes : public TimingProbes {
 public:
  FakeProbes(FakeAccelerator& gpu, double factor) : gpu_(gpu), factor_(factor) {}

  void Empty(Stream) override { gpu_.Launch(0, 0, {}); }
  void Spin(Stream, double ns) override {
    gpu_.Launch(factor_ * ns, factor_ * ns, [this, ns] { times_.push_back(ns); });
  }
  std::vector<double> SpinTimes() override { return std::exchange(times_, {}); }
  void ParallelSpins(Stream stream, double ns) override { Spin(stream, ns); }
  void UnjoinedSpin(Stream stream, double ns) override {
    Spin(stream, ns);
    gpu_.LeaveUnjoined();
  }
  void SpinElsewhere(double) override {
    gpu_.LaunchElsewhere([] {});
  }
  void Copy(Stream, std::size_t bytes) override { Read({}, 2 * bytes); }
  void Read(Stream, std::size_t bytes) override {
    const double cold_ns = static_cast<double>(bytes) / 4e12 * 1e9;
    gpu_.Launch(cold_ns / 2, cold_ns, {});
  }
  void PinnedRead(Stream stream, std::size_t bytes) override {
    gpu_.PinLines();
    Read(stream, bytes);
  }

 private:
  FakeAccelerator& gpu_;
  double factor_;
  std::vector<double> times_;
};

TEST(TimingSelftest, AcceptsATruthfulDeviceAndNamesALiar) {
  FakeAccelerator gpu;
  FakeProbes truthful(gpu, 1), liar(gpu, 1.1);
  for (const TimingTrial& trial : TryTiming(gpu, truthful)) {
    EXPECT_TRUE(trial.passed) << trial.name << ": " << trial.median_ns << " " << trial.answer;
  }
  std::vector<std::string> wrong;
  for (const TimingTrial& trial : TryTiming(gpu, liar)) {
    if (!trial.passed) wrong.push_back(trial.name);
  }
  // A tenth of 2 us is inside the 0.3 us allowed, a tenth of the others is not.
  EXPECT_THAT(wrong, ElementsAre("spin 10 us, cold", "spin 100 us, cold", "spin 1000 us, cold",
                                 "spin 10 us, warm", "spin 100 us, warm", "spin 1000 us, warm",
                                 "two dependent spins of 5 us", "spin 10 us, records of CUPTI",
                                 "spin 100 us, records of CUPTI"));
}

}  // namespace
}  // namespace assay
