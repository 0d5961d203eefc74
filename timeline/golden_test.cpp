// Real profiler exports against numbers that an independent brute-force program computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "timeline/analyze.h"
#include "timeline/read.h"

namespace assay::timeline {
namespace {

using nlohmann::json;

const std::string kFolder = std::string(ASSAY_SOURCE_DIR) + "/../shared/data/traces/";

json Golden() {
  std::ifstream file(kFolder + "golden.json");
  return file ? json::parse(file) : json();
}

std::vector<std::string> Files(const std::string& folder) {
  std::vector<std::string> files;
  const json golden = Golden();
  for (const auto& [name, entry] : golden.items()) {
    if (name.rfind(folder, 0) == 0) files.push_back(name);
  }
  if (files.empty()) files.push_back("absent");
  return files;
}

Window WindowOf(const json& pair) { return {pair[0].get<Ns>(), pair[1].get<Ns>()}; }

const DeviceUse* FindDevice(const Trace& trace, const ScopeUse& use, const std::string& key) {
  for (const DeviceUse& device : use.devices) {
    const Device& info = trace.devices[device.device];
    if (info.key == key || std::to_string(info.ordinal) == key) return &device;
  }
  return nullptr;
}

void ExpectMetrics(const DeviceUse& use, const json& want) {
  const std::map<std::string, Ns> got = {{"window_ns", use.window},
                                         {"non_nccl_ns", use.compute()},
                                         {"nccl_ns", use.comm()},
                                         {"memcpy_ns", use.memcpy()},
                                         {"memset_ns", use.memset()},
                                         {"graph_ns", use.graph()},
                                         {"non_nccl_nccl_overlap_ns", use.compute_comm()},
                                         {"kernel_memcpy_overlap_ns", use.kernel_memcpy()},
                                         {"kernel_memset_overlap_ns", use.kernel_memset()},
                                         {"busy_kernel_memcpy_ns", use.busy_kernel_memcpy()},
                                         {"busy_ns", use.busy()},
                                         {"gap_ns", use.gap()}};
  for (const auto& [key, value] : want.items()) {
    ASSERT_TRUE(got.count(key)) << key;
    EXPECT_EQ(got.at(key), value.get<Ns>()) << key;
  }
}

void ExpectTop(const std::vector<Group>& groups, const json& want, bool by_count) {
  std::vector<const Group*> order;
  for (const Group& group : groups) {
    if (group.category != Category::kGraph) order.push_back(&group);
  }
  std::stable_sort(order.begin(), order.end(), [&](const Group* a, const Group* b) {
    if (by_count && a->count != b->count) return a->count > b->count;
    if (a->total != b->total) return a->total > b->total;
    return a->name < b->name;
  });
  ASSERT_GE(order.size(), want.size());
  for (std::size_t k = 0; k < want.size(); ++k) {
    const std::string name = want[k]["name"].get<std::string>();
    // The page's names of one file are cut after 160 characters.
    EXPECT_EQ(order[k]->name.substr(0, name.size()), name);
    EXPECT_EQ(order[k]->count, want[k]["count"].get<std::int64_t>()) << name;
    EXPECT_EQ(order[k]->full_total, want[k]["total_ns"].get<Ns>()) << name;
  }
}

void ExpectDevice(const Trace& trace, const ScopeUse& full, const ScopeUse& middle,
                  const std::string& key, const json& want) {
  const DeviceUse* use = FindDevice(trace, full, key);
  const DeviceUse* half = FindDevice(trace, middle, key);
  ASSERT_TRUE(use && half) << "no device " << key;
  const auto count = [&](const DeviceUse& d, Category c) {
    return d.overlapping[static_cast<std::size_t>(c)];
  };
  EXPECT_EQ(count(*use, Category::kCompute) + count(*use, Category::kComm), want["kernels"]);
  EXPECT_EQ(count(*use, Category::kMemcpy), want["memcpy"]);
  EXPECT_EQ(count(*use, Category::kMemset), want["memset"]);
  EXPECT_EQ(count(*use, Category::kGraph), want["graph"]);
  EXPECT_EQ(use->first, want["first_ns"]);
  EXPECT_EQ(use->last, want["last_ns"]);
  ExpectMetrics(*use, want["full"]);
  ExpectMetrics(*half, want["middle"]);
  EXPECT_EQ(use->full[0] + use->full[1], want["kernel_sum_ns"]);
  const json& lengths = want["kernel_dur_ns"];
  EXPECT_EQ(use->kernel_length.min, lengths["min"]);
  EXPECT_EQ(use->kernel_length.p50, lengths["p50"]);
  EXPECT_EQ(use->kernel_length.p95, lengths["p95"]);
  EXPECT_EQ(use->kernel_length.p99, lengths["p99"]);
  EXPECT_EQ(use->kernel_length.max, lengths["max"]);
  EXPECT_EQ(use->zero_rows, want["kernel_zero_duration"]);
  EXPECT_EQ(use->same_stream_overlaps, want["same_stream_overlaps"]);
  EXPECT_EQ(half->overlapping[0] + half->overlapping[1], want["middle_kernels_overlapping"]);
  EXPECT_EQ(half->starting[0] + half->starting[1], want["middle_kernels_starting_inside"]);
  EXPECT_EQ(half->clipped[0] + half->clipped[1], want["middle_kernel_clipped_sum_ns"]);

  const WindowMap map(full.scope.steps);
  const std::vector<Group> groups = GroupsOf(trace, map, {}, use->device);
  const auto kernels = std::count_if(groups.begin(), groups.end(), [](const Group& group) {
    return group.category != Category::kGraph;
  });
  EXPECT_EQ(kernels, want["distinct_kernel_names"]);
  ExpectTop(groups, want["top_time"], false);
  ExpectTop(groups, want["top_count"], true);
  std::set<std::int64_t> streams;
  for (const GpuRow& row : trace.gpu) {
    if (row.category <= 1 && trace.DeviceOf(row) == use->device) {
      streams.insert(trace.streams[row.stream].id);
    }
  }
  EXPECT_EQ(streams.size(), want["kernel_streams"]);

  std::map<std::string, const CopyUse*> copies;
  const std::vector<CopyUse> all = CopiesOf(trace, map, use->device);
  for (const CopyUse& copy : all) {
    if (copy.category != Category::kMemcpy) continue;
    // Exports number the directions, Kineto names them.
    const std::string number = copy.direction == "Host-to-Device"     ? "1"
                               : copy.direction == "Device-to-Host"   ? "2"
                               : copy.direction == "Device-to-Device" ? "8"
                                                                      : copy.direction;
    copies[number] = &copy;
  }
  EXPECT_EQ(copies.size(), want["copies"].size());
  for (const auto& [direction, copy] : want["copies"].items()) {
    ASSERT_TRUE(copies.count(direction)) << direction;
    EXPECT_EQ(copies[direction]->count, copy["count"]);
    EXPECT_EQ(copies[direction]->full, copy["sum_ns"]);
    EXPECT_EQ(copies[direction]->bytes_full, copy["bytes"]);
  }
}

void ExpectHost(const Trace& trace, const LaunchIndex& index, const ScopeUse& full,
                const json& want) {
  if (want.count("api")) {
    std::map<std::string, std::pair<std::int64_t, Ns>> api;
    for (const ApiRow& row : trace.api) {
      auto& [count, sum] = api[trace.api_names[row.name]];
      ++count;
      sum += row.end - row.start;
    }
    // The golden list may be cut to the longest names; all it holds must agree.
    for (const auto& [name, use] : want["api"].items()) {
      EXPECT_EQ(api[name].first, use["count"]) << name;
      EXPECT_EQ(api[name].second, use["sum_ns"]) << name;
    }
    EXPECT_EQ(trace.api_other_class, want["api_rows_other_event_class"]);
  }
  std::int64_t without = 0;
  std::vector<Ns> delays;
  std::int64_t negative = 0;
  for (std::size_t k = 0; k < trace.gpu.size(); ++k) {
    if (trace.gpu[k].category > 1) continue;
    const std::uint32_t call = index.CallOf(k);
    if (call == LaunchIndex::kNone) {
      ++without;
    } else {
      delays.push_back(trace.gpu[k].start - trace.api[call].end);
      negative += delays.back() < 0;
    }
  }
  for (const char* key : {"kernels_without_api_row", "kernels_without_launch_row"}) {
    if (want.count(key)) {
      EXPECT_EQ(without, want[key]) << key;
    }
  }
  if (want.count("queue_delay_ns")) {
    const json& queue = want["queue_delay_ns"];
    const Quantiles got = QuantilesOf(delays);
    EXPECT_EQ(got.count, queue["n"]);
    EXPECT_EQ(got.min, queue["min"]);
    EXPECT_EQ(got.p50, queue["p50"]);
    EXPECT_EQ(got.max, queue["max"]);
    EXPECT_EQ(negative, queue["negative"]);
  }
  if (want.count("duplicate_pid_correlation_api_keys")) {
    EXPECT_EQ(index.duplicates(), want["duplicate_pid_correlation_api_keys"]);
  }
  std::int64_t launches = 0, empty = 0, graphs = 0, empty_graphs = 0;
  for (std::size_t k = 0; k < trace.api.size(); ++k) {
    const std::string& name = trace.api_names[trace.api[k].name];
    launches += IsKernelLaunch(name);
    empty += IsKernelLaunch(name) && !index.HasRow(k);
    graphs += IsGraphLaunch(name);
    empty_graphs += IsGraphLaunch(name) && !index.HasRow(k);
  }
  const auto expect = [&](const char* key, std::int64_t got) {
    if (want.count(key)) {
      EXPECT_EQ(got, want[key]) << key;
    }
  };
  expect("launch_api_rows", launches);
  expect("launch_api_without_kernel", empty);
  expect("launch_calls", launches);
  expect("launch_calls_without_gpu_row", empty);
  expect("graph_launch_calls", graphs);
  expect("graph_launches_without_gpu_row", empty_graphs);
  expect("graph_rows_without_timestamps", trace.graphs_untimed);
  if (want.count("correlation_ids_shared_by_processes")) {
    std::map<std::uint32_t, std::set<std::uint32_t>> users;
    for (const GpuRow& row : trace.gpu) {  // the page counts kernels only
      if (row.correlation != kNoCorrelation && row.category <= 1) {
        users[row.correlation].insert(trace.ProcessOf(row));
      }
    }
    const auto shared = std::count_if(users.begin(), users.end(),
                                      [](const auto& user) { return user.second.size() > 1; });
    EXPECT_EQ(shared, want["correlation_ids_shared_by_processes"]);
  }
  if (want.count("diagnostic_severity")) {
    std::map<std::string, int> severities;
    for (const Diagnostic& row : trace.diagnostics) ++severities[std::to_string(row.severity)];
    EXPECT_EQ(json(severities),
              want["diagnostic_severity"].empty() ? json(severities) : want["diagnostic_severity"]);
  }
  if (want.count("osrt_in_full_window")) {
    for (const auto& [name, use] : want["osrt_in_full_window"].items()) {
      const auto wait = std::find_if(full.waits.begin(), full.waits.end(), [&](const WaitUse& w) {
        return w.api == name && w.kind == "os";
      });
      ASSERT_NE(wait, full.waits.end()) << name;
      EXPECT_EQ(wait->count, use["count"]) << name;
      EXPECT_EQ(wait->thread_ns, use["summed_thread_ns"]) << name;
    }
  }
}

class GoldenTrace : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "absent") GTEST_SKIP() << "no golden traces at " << kFolder;
    want_ = Golden()[GetParam()];
  }
  json want_;
};

TEST_P(GoldenTrace, ReproducesEveryNumber) {
  const Trace trace = ReadTrace(kFolder + GetParam());
  const LaunchIndex index(trace);
  const Scope scope = FullScope(trace);
  if (want_["devices"].empty()) {
    EXPECT_TRUE(trace.gpu.empty());
    EXPECT_FALSE(trace.ranges.empty());
    return;
  }
  const Window full_window = WindowOf(want_["full_window_ns"]);
  ASSERT_EQ(scope.steps.size(), 1u);
  EXPECT_EQ(scope.steps[0], full_window);
  const ScopeUse full = Analyze(trace, index, scope);
  const ScopeUse middle =
      Analyze(trace, index, {"middle", {WindowOf(want_["middle_window_ns"])}, ""});
  EXPECT_EQ(trace.devices.size(), want_["devices"].size());
  for (const auto& [key, device] : want_["devices"].items()) {
    SCOPED_TRACE("device " + key);
    ExpectDevice(trace, full, middle, key, device);
  }
  ExpectHost(trace, index, full, want_);
  EXPECT_TRUE(BrokenInvariants(trace, full).empty()) << BrokenInvariants(trace, full).front();
  EXPECT_TRUE(BrokenInvariants(trace, middle).empty());
  EXPECT_EQ(trace.rejected_events, 0);
}

std::string TestName(const testing::TestParamInfo<std::string>& info) {
  std::string name = std::filesystem::path(info.param).filename().string();
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Nsys, GoldenTrace, testing::ValuesIn(Files("nsys/")), TestName);
INSTANTIATE_TEST_SUITE_P(Kineto, GoldenTrace, testing::ValuesIn(Files("kineto/")), TestName);

json Entry(const std::string& name) {
  const json golden = Golden();
  return golden.is_null() ? golden : golden[name];
}

TEST(GoldenSynthetic, SteadyWindowsAndStepsAgree) {
  const std::string name = "nsys/synthetic_features.sqlite.gz";
  const json want = Entry(name);
  if (want.is_null()) GTEST_SKIP() << "no golden traces at " << kFolder;
  const Trace trace = ReadTrace(kFolder + name);
  const LaunchIndex index(trace);
  Scope steady{"steady", {}, ""};
  for (const json& window : want["steady_windows_ns"]) steady.steps.push_back(WindowOf(window));
  const ScopeUse use = Analyze(trace, index, steady);
  for (const auto& [key, metrics] : want["steady"].items()) {
    const DeviceUse* device = FindDevice(trace, use, key);
    ASSERT_TRUE(device);
    ExpectMetrics(*device, metrics);
  }
}

TEST(GoldenRocprof, JsonAgrees) {
  const std::string name = "rocprofv3/mi355_training_results.json.gz";
  const json want = Entry(name);
  if (want.is_null()) GTEST_SKIP() << "no golden traces at " << kFolder;
  const Trace trace = ReadTrace(kFolder + name);
  EXPECT_EQ(trace.gpu.size(), want["dispatches"]);
  const LaunchIndex index(trace);
  const ScopeUse use = Analyze(trace, index, FullScope(trace));
  for (const auto& [key, agent] : want["agents"].items()) {
    const DeviceUse* device = FindDevice(trace, use, key);
    ASSERT_TRUE(device);
    EXPECT_EQ(trace.devices[device->device].model, agent["name"]);
    EXPECT_EQ(device->overlapping[0] + device->overlapping[1], agent["kernels"]);
    EXPECT_EQ(device->full[0] + device->full[1], agent["sum_ns"]);
    EXPECT_EQ(device->busy(), agent["union_ns"]);
    EXPECT_EQ(device->overlapping[1], agent["nccl_kernels"]);
    EXPECT_EQ(device->comm(), agent["nccl_union_ns"]);
    EXPECT_EQ(device->compute(), agent["non_nccl_union_ns"]);
    EXPECT_EQ(device->first, agent["first_ns"]);
    EXPECT_EQ(device->last, agent["last_ns"]);
    EXPECT_EQ(device->streams.size(), agent["queues"]);
    EXPECT_EQ(use.groups.size(), agent["distinct_names"]);
    ExpectTop(use.groups, agent["top_time"], false);
  }
}

TEST(GoldenRocprof, CsvSamplesAreRead) {
  if (Golden().is_null()) GTEST_SKIP() << "no golden traces at " << kFolder;
  const Trace kernels = ReadTrace(kFolder + "rocprofv3/kernel_trace.csv");
  ASSERT_FALSE(kernels.gpu.empty());
  EXPECT_EQ(kernels.gpu[0].start, 8819330200067564);
  EXPECT_EQ(kernels.configs[kernels.gpu[0].detail].grid[0], 16);  // 1024 items of 64
  const Trace copies = ReadTrace(kFolder + "rocprofv3/memory_copy_trace.csv");
  ASSERT_EQ(copies.gpu.size(), 2u);
  EXPECT_EQ(copies.names[copies.gpu[0].name], "Host-to-Device");
  EXPECT_FALSE(ReadTrace(kFolder + "rocprofv3/hip_runtime_trace.csv").api.empty());
}

TEST(GoldenCsv, ThirdPartyRenderingHasTheSameRows) {
  if (Golden().is_null()) GTEST_SKIP() << "no golden traces at " << kFolder;
  const Trace trace = ReadTrace(kFolder + "nsys/nsys_3.13.2_a100_cloverleaf.sqlite.gz");
  std::multiset<Ns> ends;
  for (const GpuRow& row : trace.gpu) {
    ends.insert(row.start);
    ends.insert(row.end);
  }
  std::multiset<Ns> theirs;
  const std::string csv = ReadWholeFile(kFolder + "csv/cloverleaf_gpu_events.csv.gz");
  std::istringstream lines(csv);
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    std::size_t at = line.find(",gpu_trace,");
    if (at == line.npos) continue;
    at = line.find(',', at + 11) + 1;
    theirs.insert(std::stoll(line.substr(at)));
  }
  EXPECT_EQ(theirs.size(), 3182u);
  EXPECT_EQ(ends, theirs);
}

}  // namespace
}  // namespace assay::timeline
