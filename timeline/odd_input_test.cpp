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

#include "base/error.h"
#include "base/random.h"
#include "timeline/analyze.h"
#include "timeline/coverage.h"
#include "timeline/read.h"
#include "timeline/replays.h"
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

constexpr const char* kRocprofCsv =
    "\"Kind\",\"Agent_Id\",\"Queue_Id\",\"Kernel_Name\",\"Correlation_Id\",\"Start_Timestamp\","
    "\"End_Timestamp\",\"Workgroup_Size_X\",\"Grid_Size_X\"\n"
    "\"KERNEL_DISPATCH\",4,1,\"void a<int, \"\"b\"\">(float*)\",1,1000,2000,64,256\n"
    "\"KERNEL_DISPATCH\",5,2,\"rccl_reduce\",2,1500,1600,64,64\n";

constexpr const char* kRocprofJson = R"({"rocprofiler-sdk-tool": [{
"agents": [{"id": {"handle": 9}, "name": "gfx942"}],
"kernel_symbols": [{"kernel_id": 3, "formatted_kernel_name": "a<int>"}],
"buffer_records": {"kernel_dispatch": [
{"start_timestamp": 1000, "end_timestamp": 2000, "correlation_id": {"internal": 1},
 "dispatch_info": {"agent_id": {"handle": 9}, "queue_id": {"handle": 1}, "kernel_id": 3,
  "workgroup_size": {"x": 64, "y": 1, "z": 1}, "grid_size": {"x": 256, "y": 1, "z": 1}}}]}}]})";

constexpr const char* kNcu =
    "==PROF== Connected\n\"ID\",\"Kernel Name\",\"Section Name\",\"Metric Name\",\"Metric Unit\","
    "\"Metric Value\"\n\"0\",\"k\",\"s\",\"Cycles\",\"cycle\",\"12,319,469\"\n"
    "\"0\",\"k\",\"s\",\"Rate\",\"Gbyte/s\",\"1,234.5\"\n";

constexpr const char* kReplays = R"([{"configuration": "c", "status": "ok", "backend": "b"}])";

// Prefixes and random bytes: a trace or one sentence, never a crash.
template <class Parse>
void ExpectSurvives(const std::string& good, const Parse& parse) {
  const auto attempt = [&](const std::string& bad) {
    try {
      parse(bad);
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::kInput);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  };
  for (std::size_t length = 1; length < good.size(); length += 2) attempt(good.substr(0, length));
  for (std::uint64_t round = 0; round < 500; ++round) {
    std::string bad = good;
    for (std::uint64_t k = 0; k < 1 + round % 4; ++k) {
      const std::uint64_t random = Mix64(21, k, round);
      // Bytes of the text itself break its structure more often than any others do.
      bad[random % bad.size()] =
          random >> 63 ? good[(random >> 32) % good.size()] : static_cast<char>(random >> 40);
    }
    attempt(bad);
  }
}

TEST_F(OddInput, DamagedRocprofFiles) {
  const auto read = [&](const std::string& text) {
    std::ofstream(Path("r"), std::ios::binary) << text;
    const Trace trace = ReadTrace(Path("r"));
    const LaunchIndex index(trace);
    Analyze(trace, index, FullScope(trace));
    return trace.gpu.size();
  };
  EXPECT_EQ(read(kRocprofCsv), 2u);
  EXPECT_EQ(read(kRocprofJson), 1u);
  ExpectSurvives(kRocprofCsv, read);
  ExpectSurvives(kRocprofJson, read);
  // Handles inside handles, deeper than any stack.
  std::string deep = R"({"rocprofiler-sdk-tool": [{"agents": [{"id": )";
  for (int k = 0; k < 300'000; ++k) deep += R"({"handle":)";
  EXPECT_NO_THROW(read(deep));
}

TEST_F(OddInput, DamagedTablesOfOthers) {
  EXPECT_EQ(ParseNcuCsv(kNcu, "n").size(), 1u);
  ExpectSurvives(kNcu, [](const std::string& text) {
    for (const NcuLaunch& launch : ParseNcuCsv(text, "n")) NcuProblems(launch);
  });
  ExpectSurvives(kReplays, [](const std::string& text) { ParseReplays(text, "r"); });
  EXPECT_THROW(ParseReplays(std::string(1'000'000, '['), "r"), Error);
}

}  // namespace
}  // namespace assay::timeline
