// Rows that are legal but odd: none is lost, each is told. Small traces made here; the same on real
// files is in golden_test.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "timeline/analyze.h"
#include "timeline/coverage.h"
#include "timeline/read.h"
#include "timeline/synthetic.h"

namespace assay::timeline {
namespace {

namespace fs = std::filesystem;

class OddInput : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              (std::string("assay_odd_") + info->name() + "_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  // A Kineto trace of the given events.
  Trace Kineto(const std::string& events) const {
    std::ofstream(Path("t.json"), std::ios::binary) << "{\"traceEvents\": [" << events << "]}";
    return ReadTrace(Path("t.json"));
  }
  // A synthetic export after some SQL.
  std::string Export(const std::string& name, const std::string& sql) const {
    WriteSyntheticExport(Path(name), {});
    sqlite3* db = nullptr;
    EXPECT_EQ(sqlite3_open(Path(name).c_str(), &db), SQLITE_OK);
    char* problem = nullptr;
    EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, &problem), SQLITE_OK)
        << (problem != nullptr ? problem : "");
    sqlite3_free(problem);
    sqlite3_close(db);
    return Path(name);
  }
  fs::path folder_;
};

std::string Kernel(const std::string& name, int stream, double ts, double dur, int correlation) {
  return fmt::format(
      R"({{"ph":"X","cat":"kernel","name":"{}","pid":0,"tid":{},"ts":{},"dur":{},"args":{{"device":0,"stream":{},"correlation":{}}}}})",
      name, stream, ts, dur, stream, correlation);
}

// Programmatic dependent launch: a kernel starts before its stream is free.
TEST_F(OddInput, OverlapOnOneStreamIsKeptAndCounted) {
  const Trace trace = Kineto(Kernel("a", 7, 10, 5, 1) + "," + Kernel("b", 7, 13, 5, 2) + "," +
                             Kernel("c", 7, 18, 1, 3) + "," + Kernel("d", 8, 14, 2, 4));
  ASSERT_EQ(trace.gpu.size(), 4u);
  const LaunchIndex index(trace);
  const ScopeUse use = Analyze(trace, index, FullScope(trace));
  EXPECT_EQ(use.devices[0].same_stream_overlaps, 1);  // c begins where b ends, d has its own stream
  EXPECT_EQ(use.devices[0].same_stream_overlap_ns, 2'000);
  EXPECT_EQ(use.devices[0].busy(), 9'000);
  EXPECT_EQ(use.devices[0].overlapping[0], 4);
  EXPECT_TRUE(BrokenInvariants(trace, use).empty());
}

// Both processes of the export use the same correlation ids: every row finds its own call.
TEST_F(OddInput, CorrelationIdsBelongToAProcess) {
  const Trace trace = ReadTrace(
      Export("t.sqlite",
             "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = correlationId % 400;"
             "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET correlationId = correlationId % 400"));
  std::map<std::uint32_t, std::set<std::uint32_t>> processes;  // by correlation id
  for (const GpuRow& row : trace.gpu) {
    processes[row.correlation].insert(trace.streams[row.stream].process);
  }
  int shared = 0;
  for (const auto& [id, list] : processes) shared += list.size() > 1;
  ASSERT_GT(shared, 100);
  const LaunchIndex index(trace);
  int joined = 0;
  for (std::size_t row = 0; row < trace.gpu.size(); ++row) {
    const std::uint32_t call = index.CallOf(row);
    if (call == LaunchIndex::kNone) continue;
    ++joined;
    EXPECT_EQ(trace.threads[trace.api[call].thread].process,
              trace.streams[trace.gpu[row].stream].process);
    EXPECT_EQ(trace.api[call].correlation, trace.gpu[row].correlation);
  }
  EXPECT_GT(joined, 900);
}

// globalTid holds 24 bits of process and 24 bits of thread.
TEST_F(OddInput, WideThreadIds) {
  const Trace trace = ReadTrace(Export(
      "t.sqlite",
      "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET globalTid = (globalTid & ~16777215) | 16777215 "
      "WHERE rowid % 2 = 0"));
  std::size_t widest = 0;
  for (const ApiRow& row : trace.api) widest += trace.threads[row.thread].tid == 16'777'215;
  EXPECT_EQ(widest, trace.api.size() / 2);
  const LaunchIndex index(trace);  // and the process was not touched
  for (const DeviceUse& device : Analyze(trace, index, FullScope(trace)).devices) {
    EXPECT_EQ(device.launch.without_call, 0);
  }
}

TEST_F(OddInput, RowsOutsideTheSessionAreToldAndKept) {
  const Trace good = ReadTrace(Export("good.sqlite", "SELECT 1"));
  EXPECT_EQ(good.outside_session, 0);
  const Trace trace = ReadTrace(
      Export("t.sqlite",
             "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = -900, \"end\" = -100 WHERE rowid = 1;"
             "UPDATE ANALYSIS_DETAILS SET duration = "
             "(SELECT \"end\" - 1 FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY \"end\" DESC LIMIT 1)"));
  EXPECT_EQ(trace.gpu.size(), good.gpu.size());
  EXPECT_EQ(trace.outside_session, 2);
  const LaunchIndex index(trace);
  const ScopeUse use = Analyze(trace, index, FullScope(trace));
  for (const DeviceCoverage& device : AuditCoverage(trace, index, use).devices) {
    const auto rows = std::find_if(device.checks.begin(), device.checks.end(),
                                   [](const Check& check) { return check.id == "rows"; });
    ASSERT_NE(rows, device.checks.end());
    EXPECT_EQ(rows->state, Check::kSuspect);
    EXPECT_NE(rows->text.find("2 outside the recorded session"), std::string::npos) << rows->text;
  }
}

// The wall clock may step between two recordings of one host. Up to two seconds the clock that
// cannot step decides; beyond that the files count as those of two hosts, and wall time decides.
TEST_F(OddInput, SteppedClocks) {
  const std::string a = Export("a.sqlite", "SELECT 1");
  const auto shift_of = [&](const char* utc_change) {
    const std::string b =
        Export("b.sqlite", fmt::format("UPDATE TARGET_INFO_SESSION_START_TIME SET systemClockNs = "
                                       "systemClockNs + 3000000, utcEpochNs = utcEpochNs + {};"
                                       "UPDATE TARGET_INFO_CUDA_DEVICE SET uuid = uuid || 'b'",
                                       utc_change));
    return ReadRun({a, b}).sources[1].shift;
  };
  EXPECT_EQ(shift_of("3000000"), 3'000'000);
  EXPECT_EQ(shift_of("3000000 + 900000000"), 3'000'000);  // adjusted by 0.9 s
  EXPECT_EQ(shift_of("3600000000000"), 3'600'000'000'000);
}

TEST_F(OddInput, NamesThatAreNotUtf8) {
  const Trace json = Kineto(Kernel("bad\xFF\xC3name", 7, 10, 5, 1));
  EXPECT_EQ(json.names[json.gpu[0].name], "bad\xEF\xBF\xBD\xEF\xBF\xBDname");
  const Trace sqlite =
      ReadTrace(Export("t.sqlite",
                       "UPDATE StringIds SET value = CAST(x'61FF62' AS TEXT) WHERE id = "
                       "(SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL LIMIT 1)"));
  bool replaced = false;
  for (const GpuRow& row : sqlite.gpu) {
    replaced |= sqlite.names[row.name] == "a\xEF\xBF\xBD\x62";
  }
  EXPECT_TRUE(replaced);
}

}  // namespace
}  // namespace assay::timeline
