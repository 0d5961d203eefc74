// Coverage audit and diff: recordings whose loss is known must be found out, equal ones must not.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "timeline/read.h"
#include "timeline/result.h"
#include "timeline/synthetic.h"

namespace assay::timeline {
namespace {

const std::string kData = std::string(ASSAY_SOURCE_DIR) + "/../shared/data/";

Trace Synthetic(const SyntheticTrace& spec) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("assay_audit_" + std::to_string(getpid())))
          .string() +
      ".sqlite";
  WriteSyntheticExport(path, spec);
  Trace trace = ReadTrace(path);
  std::filesystem::remove(path);
  return trace;
}

ScopeCoverage AuditOf(const Trace& trace, const Scope& scope) {
  const LaunchIndex index(trace);
  return AuditCoverage(trace, index, Analyze(trace, index, scope));
}

const Check& Find(const DeviceCoverage& device, const std::string& id) {
  for (const Check& check : device.checks) {
    if (check.id == id) return check;
  }
  throw std::runtime_error("no check " + id);
}

TEST(Audit, WholeRecordingIsComplete) {
  const Trace trace = Synthetic({});
  const ScopeCoverage coverage = AuditOf(trace, FullScope(trace));
  EXPECT_TRUE(coverage.complete()) << coverage.Sentence(trace);
}

TEST(Audit, LostTailIsFoundAndPlaced) {
  for (const double lost : {0.1, 0.3, 0.6}) {
    SyntheticTrace spec;
    spec.kernels = 4'000;
    spec.names = 10;
    spec.lost_tail = lost;
    const Trace trace = Synthetic(spec);
    const ScopeCoverage coverage = AuditOf(trace, FullScope(trace));
    EXPECT_EQ(coverage.devices[0].verdict, Coverage::kComplete) << coverage.Sentence(trace);
    EXPECT_EQ(coverage.devices[1].verdict, Coverage::kTruncated) << coverage.Sentence(trace);
    EXPECT_EQ(Find(coverage.devices[1], "launches").state, Check::kSuspect);
    EXPECT_NEAR(coverage.devices[1].factor, 1 - lost, 0.1);
    const Window full = FullScope(trace).steps[0];
    const double at = static_cast<double>(coverage.devices[1].truncated_at - full.begin) /
                      static_cast<double>(full.end - full.begin);
    EXPECT_NEAR(at, 1 - lost, 0.05);
    EXPECT_FALSE(coverage.complete());
  }
}

TEST(Audit, LostTailOfTheOnlyDeviceIsFoundByItsCalls) {
  SyntheticTrace spec;
  spec.devices = 1;
  spec.kernels = 3'000;
  spec.lost_tail = 0.3;
  const Trace trace = Synthetic(spec);
  const ScopeCoverage coverage = AuditOf(trace, FullScope(trace));
  EXPECT_EQ(coverage.devices[0].verdict, Coverage::kTruncated) << coverage.Sentence(trace);
}

TEST(Audit, AnchorRatiosOfTheProfileSummaries) {
  // Counts of the anchor kernel in the steady windows of three recordings of one run; the third is
  // complete: 4 devices x 4 steps of 200. The first two lost their tails.
  const std::vector<std::pair<std::int64_t, double>> recordings = {
      {848, .265}, {1459, .456}, {3200, 1.0}};
  for (const auto& [count, ratio] : recordings) {
    Anchor anchor;
    anchor.most = 3200;
    anchor.counts = {{count}};
    EXPECT_NEAR(AnchorRatio({anchor}, 0), ratio, 5e-4);
  }
}

TEST(Audit, EmptyStepsAndLostGraphsOfTheSyntheticFile) {
  const std::string path = kData + "traces/nsys/synthetic_features.sqlite.gz";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
  const Trace trace = ReadTrace(path);
  const Scope steps = NvtxScope(trace, "step");
  const ScopeCoverage coverage = AuditOf(trace, steps);
  ASSERT_EQ(coverage.devices.size(), 2u);
  EXPECT_EQ(coverage.devices[1].verdict, Coverage::kTruncated);
  EXPECT_EQ(Find(coverage.devices[1], "steps").state, Check::kSuspect);
  EXPECT_EQ(Find(coverage.devices[0], "tail").state, Check::kOk);
}

TEST(Audit, GraphLaunchesWhoseKernelsWereRemovedAreSeen) {
  const std::string path = kData + "traces/kineto/mi300_vllm_piecewise_graph.json.gz";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
  Trace trace = ReadTrace(path);
  EXPECT_TRUE(AuditOf(trace, FullScope(trace)).complete());
  const LaunchIndex index(trace);
  std::vector<GpuRow> kept;
  for (std::size_t k = 0; k < trace.gpu.size(); ++k) {
    const std::uint32_t call = index.CallOf(k);
    if (call == LaunchIndex::kNone || !IsGraphLaunch(trace.api_names[trace.api[call].name])) {
      kept.push_back(trace.gpu[k]);
    }
  }
  EXPECT_EQ(trace.gpu.size() - kept.size(), 361u);
  trace.gpu = kept;
  const LaunchIndex after(trace);
  const ScopeUse use = Analyze(trace, after, FullScope(trace));
  const ScopeCoverage coverage = AuditCoverage(trace, after, use);
  EXPECT_NE(coverage.devices[0].verdict, Coverage::kComplete);
  EXPECT_NE(Find(coverage.devices[0], "launches").text.find("25 of them graph launches"),
            std::string::npos)
      << Find(coverage.devices[0], "launches").text;
}

TEST(Audit, EndMarkersOfOurRecorderAreBelieved) {
  Trace trace = Synthetic({});
  for (const Process& process : trace.processes) {
    trace.segments.push_back({process.pid, 1'000, 1'000, process.pid % 2 == 0, 0});
  }
  const ScopeCoverage coverage = AuditOf(trace, FullScope(trace));
  EXPECT_EQ(coverage.devices[0].verdict, Coverage::kComplete);
  EXPECT_EQ(coverage.devices[1].verdict, Coverage::kTruncated);
}

ScopeDiff DiffOf(const Trace& a, const Trace& b, const Scope& scope_a, const Scope& scope_b) {
  const LaunchIndex index_a(a), index_b(b);
  DiffOptions options;
  options.resamples = 1'000;
  return DiffScope({a, index_a}, scope_a, {b, index_b}, scope_b, options);
}

std::vector<Window> Parts(const Trace& trace, int parts) {
  const Window full = FullScope(trace).steps[0];
  std::vector<Window> windows;
  for (int k = 0; k < parts; ++k) {
    windows.push_back({full.begin + (full.end - full.begin) * k / parts,
                       full.begin + (full.end - full.begin) * (k + 1) / parts});
  }
  return windows;
}

TEST(Diff, SelfDiffIsNeutralWithoutRows) {
  const Trace trace = Synthetic({});
  const ScopeDiff diff = DiffOf(trace, trace, FullScope(trace), FullScope(trace));
  EXPECT_EQ(diff.verdict, Verdict::kNeutral) << diff.reason;
  EXPECT_TRUE(diff.keys.empty());
  EXPECT_EQ(diff.comparability, 1);
}

TEST(Diff, SlowerKernelIsARegressionWithItsCause) {
  SyntheticTrace spec;
  spec.names = 4;
  const Trace a = Synthetic(spec);
  spec.slower = 6;
  const Trace b = Synthetic(spec);
  const ScopeDiff diff = DiffOf(a, b, {"s", Parts(a, 5), ""}, {"s", Parts(b, 5), ""});
  EXPECT_EQ(diff.verdict, Verdict::kRegression) << diff.reason;
  ASSERT_FALSE(diff.keys.empty());
  EXPECT_EQ(diff.keys[0].cause, "slower");
  EXPECT_NE(diff.keys[0].name.find("kernel_0"), std::string::npos);
  EXPECT_EQ(diff.keys[0].count_a, diff.keys[0].count_b);
  ASSERT_TRUE(diff.keys[0].total_ratio.has_value());
  EXPECT_GT(diff.keys[0].total_ratio->low, 3);
  const ScopeDiff back = DiffOf(b, a, {"s", Parts(b, 5), ""}, {"s", Parts(a, 5), ""});
  EXPECT_EQ(back.verdict, Verdict::kImprovement) << back.reason;
  EXPECT_EQ(VerdictExitCode(diff.verdict), 1);
}

TEST(Diff, RefusesWhenCoverageDiffers) {
  SyntheticTrace spec;
  const Trace a = Synthetic(spec);
  spec.lost_tail = 0.4;
  const Trace b = Synthetic(spec);
  const ScopeDiff diff = DiffOf(a, b, FullScope(a), FullScope(b));
  EXPECT_EQ(diff.verdict, Verdict::kNotComparable);
  EXPECT_NE(diff.reason.find("coverage of B is not complete"), std::string::npos) << diff.reason;
  EXPECT_EQ(VerdictExitCode(diff.verdict), 6);
}

TEST(Diff, PairOfRealTrainingSteps) {
  const std::string folder = kData + "traces/nsys/nsys_3.25.0_2gpu_training_";
  if (!std::filesystem::exists(folder + "before.sqlite.gz")) GTEST_SKIP() << "no " << folder;
  const Trace a = ReadTrace(folder + "before.sqlite.gz");
  const Trace b = ReadTrace(folder + "after.sqlite.gz");
  const ScopeDiff diff = DiffOf(a, b, FullScope(a), FullScope(b));
  EXPECT_GT(diff.comparability, 0.8);
  // Both windows are 0.30 s long: the pair was cut by time, so step time says nothing.
  EXPECT_EQ(diff.verdict, Verdict::kNeutral) << diff.reason;
  EXPECT_FALSE(diff.keys.empty());
  EXPECT_EQ(diff.devices.size(), 2u);
}

TEST(Summary, DeviceRowsOfTheRealProfileSatisfyTheInvariants) {
  std::ifstream file(kData + "worldmodel_timeline_summary.json");
  if (!file) GTEST_SKIP() << "no profile summary in " << kData;
  const std::string text(std::istreambuf_iterator<char>(file), {});
  int rows = 0;
  EXPECT_EQ(CheckSummary(text, rows), std::vector<std::string>{});
  EXPECT_EQ(rows, 36);
  // The checker can fail.
  nlohmann::json broken = nlohmann::json::parse(text);
  broken["original"]["scopes"]["steady"]["devices"][0]["nccl_ms"] = 1e6;
  EXPECT_FALSE(CheckSummary(broken.dump(), rows).empty());
}

TEST(Output, IsStableAndComplete) {
  SyntheticTrace spec;
  spec.nvtx_per_kernel = 0.1;
  const Trace trace = Synthetic(spec);
  const LaunchIndex index(trace);
  AnalyzeOptions options;
  const TimelineResult result = AnalyzeRun(trace, index, {FullScope(trace)}, options);
  const std::string json = ResultToJson(result);
  EXPECT_EQ(json, ResultToJson(AnalyzeRun(trace, index, {FullScope(trace)}, options)));
  const nlohmann::json parsed = nlohmann::json::parse(json);
  EXPECT_EQ(parsed["assay_timeline"], 1);
  const auto& scope = parsed["scopes"][0];
  for (const char* key : {"top_time", "top_count", "groups", "devices", "copies", "wait_apis",
                          "coverage", "kernel_groups", "ranges"}) {
    EXPECT_TRUE(scope.contains(key)) << key;
  }
  EXPECT_EQ(scope["devices"][0]["buckets_ns"].is_object(), true);
  for (const std::string& table : CsvTables()) {
    const std::string csv = ResultToCsv(result, table);
    EXPECT_EQ(csv.rfind("scope,", 0), 0u) << table;
    EXPECT_GT(std::count(csv.begin(), csv.end(), '\n'), 1) << table;
  }
  const std::string text = SummaryText(result, 100, false, 10);
  EXPECT_NE(text.find("coverage: "), std::string::npos);
  EXPECT_NE(text.find("launch-bound"), std::string::npos);
}

}  // namespace
}  // namespace assay::timeline
