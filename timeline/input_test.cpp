// Every schema version, and everything that can be wrong with a file: exact sentences, no crash.
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/random.h"
#include "timeline/analyze.h"
#include "timeline/read.h"
#include "timeline/synthetic.h"
#include "timeline/windows.h"

namespace assay::timeline {
namespace {

namespace fs = std::filesystem;

class Folder : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              (std::string("assay_timeline_") + info->name() + "_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  std::string Write(const std::string& name, const std::string& content) const {
    std::ofstream(Path(name), std::ios::binary) << content;
    return Path(name);
  }
  std::string Export(const std::string& name, const SyntheticTrace& spec) const {
    WriteSyntheticExport(Path(name), spec);
    return Path(name);
  }
  void Sql(const std::string& path, const std::string& sql) const {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
    char* problem = nullptr;
    EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, &problem), SQLITE_OK)
        << (problem ? problem : "");
    sqlite3_free(problem);
    sqlite3_close(db);
  }
  fs::path folder_;
};
using Schemas = Folder;
using BadFiles = Folder;
using Merging = Folder;

std::string Sentence(const std::string& path) {
  try {
    ReadTrace(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::kInput);
    return error.what();
  }
  return "no error";
}

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(Schemas, EveryVersionGivesTheSameTotals) {
  std::vector<Ns> first;
  for (const char* schema : {"2.9.1", "3.13.2", "3.20.2", "3.24.14", "3.25.0", "3.28.0"}) {
    SyntheticTrace spec;
    spec.schema = schema;
    spec.nvtx_per_kernel = 0.25;
    const Trace trace = ReadTrace(Export("t.sqlite", spec));
    const LaunchIndex index(trace);
    const ScopeUse use = Analyze(trace, index, FullScope(trace));
    ASSERT_EQ(trace.devices.size(), 2u) << schema;
    EXPECT_EQ(trace.sources[0].schema, schema);
    EXPECT_TRUE(trace.sources[0].warnings.empty()) << trace.sources[0].warnings[0];
    EXPECT_TRUE(trace.sources[0].system_clock.has_value());
    EXPECT_EQ(trace.sources[0].system_clock_assumed, std::string(schema) < "3.24") << schema;
    EXPECT_EQ(trace.ranges.size(), 250u);
    std::vector<Ns> totals;
    for (const DeviceUse& device : use.devices) {
      totals.insert(totals.end(), {device.compute(), device.comm(), device.memcpy(),
                                   device.memset(), device.busy(), device.gap()});
      EXPECT_EQ(device.launch.without_call, 0);
    }
    if (first.empty()) first = totals;
    EXPECT_EQ(totals, first) << schema;
    // Process ids and ordinals: from 3.20 on both processes call their GPU 0.
    EXPECT_NE(trace.devices[0].key, trace.devices[1].key);
  }
}

TEST_F(Schemas, PageReaderAndSqliteAgree) {
  SyntheticTrace spec;
  spec.kernels = 5'000;
  spec.nvtx_per_kernel = 0.5;
  const std::string path = Export("t.sqlite", spec);
  // Rows with overflow pages, and columns that were added later.
  Sql(path, "INSERT INTO NVTX_EVENTS(start,end,eventType,text,globalTid,domainId) VALUES(5,9,59,'" +
                std::string(20'000, 'x') +
                "',281475664420000,0);"
                "ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME ADD COLUMN extra INTEGER");
  ReadOptions slow;
  slow.use_pages = false;
  const Trace a = ReadNsys(path), b = ReadNsys(path, slow);
  ASSERT_EQ(a.gpu.size(), b.gpu.size());
  for (std::size_t k = 0; k < a.gpu.size(); ++k) {
    ASSERT_EQ(a.gpu[k].start, b.gpu[k].start);
    ASSERT_EQ(a.gpu[k].end, b.gpu[k].end);
    ASSERT_EQ(a.names[a.gpu[k].name], b.names[b.gpu[k].name]);
    ASSERT_EQ(a.gpu[k].correlation, b.gpu[k].correlation);
  }
  ASSERT_EQ(a.api.size(), b.api.size());
  ASSERT_EQ(a.ranges.size(), b.ranges.size());
  EXPECT_EQ(a.names[a.ranges.back().name].size(), 20'000u);
  EXPECT_EQ(a.names[a.ranges.back().name], b.names[b.ranges.back().name]);
}

TEST_F(Schemas, MissingTablesStringsAndFutureVersionsAreToldNotFatal) {
  SyntheticTrace spec;
  spec.schema = "4.1.0";
  const std::string path = Export("t.sqlite", spec);
  Sql(path,
      "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME; DELETE FROM StringIds WHERE id = 3;"
      "DROP TABLE TARGET_INFO_GPU; CREATE TABLE FUTURE_THINGS(x)");
  const Trace trace = ReadTrace(path);
  ASSERT_EQ(trace.sources[0].warnings.size(), 1u);
  EXPECT_EQ(trace.sources[0].warnings[0],
            "schema 4.1.0 is newer than 3.28, the newest known: only known tables and columns were "
            "read");
  EXPECT_TRUE(trace.api.empty());
  bool numbered = false;
  for (std::uint32_t k = 0; k < trace.names.size(); ++k) numbered |= trace.names[k] == "string 3";
  EXPECT_TRUE(numbered);
}

TEST_F(Schemas, SuffixedTablesAreTakenInTheirNewestVersion) {
  const std::string path = Export("t.sqlite", {});
  Sql(path,
      "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL_V2 AS SELECT * FROM "
      "CUPTI_ACTIVITY_KIND_KERNEL LIMIT 10");
  std::int64_t kernels = 0;
  const Trace trace = ReadTrace(path);
  for (const GpuRow& row : trace.gpu) kernels += row.category <= 1;
  EXPECT_EQ(kernels, 10);
}

TEST_F(BadFiles, WrongFilesGetOneSentence) {
  EXPECT_EQ(Sentence(Write("empty", "")), Path("empty") + " is empty");
  EXPECT_EQ(Sentence(Write("e.sqlite", "")), Path("e.sqlite") + " is empty");
  EXPECT_EQ(Sentence(Path("absent")),
            "cannot open " + Path("absent") + ": No such file or directory");
  EXPECT_EQ(Sentence(Write("run.nsys-rep", "anything")),
            Path("run.nsys-rep") +
                " is a profiler report; export it first: nsys export --type "
                "sqlite --output " +
                Path("run.sqlite") + " " + Path("run.nsys-rep"));
  EXPECT_EQ(Sentence(Write("zero.sqlite", std::string(8192, '\0'))),
            Path("zero.sqlite") +
                " begins with zeros instead of SQLite's header: the export was "
                "interrupted, run nsys export again");
  EXPECT_EQ(Sentence(Write("text", "hello\nworld\n")),
            Path("text") +
                " is no trace that Assay knows (Nsight Systems SQLite export, Kineto "
                "JSON, rocprofv3 JSON or CSV)");
  EXPECT_EQ(Sentence(Write("t.sqlite", "hello")), Path("t.sqlite") + " is not an SQLite database");
  EXPECT_EQ(Sentence(Write("o.json", "{\"a\": 1}")),
            Path("o.json") + " is JSON without a traceEvents list: it is not a Chrome trace");
  EXPECT_EQ(Sentence(folder_.string()), folder_.string() + " is a folder, not a trace file");
}

TEST_F(BadFiles, DatabasesOfOthersAndMissingColumns) {
  const std::string other = Path("other.sqlite");
  Sql(other, "CREATE TABLE people(name TEXT)");
  EXPECT_EQ(Sentence(other), other +
                                 " is an SQLite database without any Nsight Systems table (it "
                                 "has 1 tables, such as people)");
  const std::string cut = Path("cut.sqlite");
  Sql(cut, "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start, \"end\", deviceId, shortName)");
  EXPECT_EQ(Sentence(cut), cut +
                               ": table CUPTI_ACTIVITY_KIND_KERNEL has no column streamId, which "
                               "every known schema has");
  const std::string nameless = Path("nameless.sqlite");
  Sql(nameless, "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start, \"end\", deviceId, streamId)");
  EXPECT_EQ(Sentence(nameless),
            nameless +
                ": table CUPTI_ACTIVITY_KIND_KERNEL has none of the columns demangledName, "
                "shortName, mangledName");
}

TEST_F(BadFiles, TruncatedAndScribbledDatabasesNeverCrash) {
  SyntheticTrace spec;
  spec.kernels = 2'000;
  const std::string good = Content(Export("good.sqlite", spec));
  int refused = 0;
  constexpr int kRounds = 150;
  for (int round = 0; round < kRounds; ++round) {
    std::string bad = good;
    const auto r = [&](std::uint64_t n) { return Mix64(11, n, static_cast<std::uint64_t>(round)); };
    if (round % 3 == 0) {
      bad.resize(r(0) % bad.size());
    } else {
      for (std::uint64_t k = 0; k < 1 + r(1) % 40; ++k) {
        bad[Mix64(13, k, static_cast<std::uint64_t>(round)) % bad.size()] =
            static_cast<char>(r(k + 5));
      }
      if (round % 3 == 2) {  // a page of zeros, as interrupted copies have
        const std::size_t page = r(3) % (bad.size() / 4096);
        std::fill_n(bad.begin() + static_cast<std::ptrdiff_t>(page * 4096), 4096, '\0');
      }
    }
    const std::string path = Write("bad.sqlite", bad);
    try {
      const Trace trace = ReadNsys(path);
      const LaunchIndex index(trace);
      Analyze(trace, index, FullScope(trace));
    } catch (const Error& error) {
      ++refused;
      EXPECT_EQ(error.fault(), Fault::kInput);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
  EXPECT_GT(refused, kRounds / 4);
}

constexpr const char* kEvents =
    R"({"traceEvents": [
{"ph": "X", "cat": "kernel", "name": "a<b>\u00e9", "pid": 0, "tid": 7, "ts": 10.5, "dur": 2, "args": {"device": 0, "stream": 7, "correlation": 1, "grid": [2, 1, 1], "block": [64, 1, 1]}},
{"ph": "X", "cat": "kernel", "name": "bad "quote" here", "pid": 0, "tid": 7, "ts": 11, "dur": 1, "args": {}},
{"ph": "X", "cat": "kernel", "name": "b", "pid": 0, "tid": 7, "ts": 11.5, "dur": 0, "args": {"device": 0, "stream": 7, "correlation": 2}},
{"ph": "X", "cat": "cuda_sync", "name": "Stream Sync", "pid": 0, "tid": 7, "ts": 0, "dur": 99, "args": {"device": 0, "stream": 7}},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 5, "tid": "Spans", "ts": 1, "dur": 1, "args": {"correlation": 1}},
{"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernelEx", "pid": 5, "tid": 9, "ts": 2, "dur": 1, "args": {"correlation": 2}}
]})";

TEST_F(BadFiles, BrokenJsonEventsCostOnlyThemselves) {
  const Trace trace = ReadTrace(Write("t.json", kEvents));
  ASSERT_EQ(trace.gpu.size(), 2u);  // cuda_sync is never GPU time
  EXPECT_EQ(trace.rejected_events, 1);
  EXPECT_EQ(trace.names[trace.gpu[0].name], "a<b>\xC3\xA9");
  EXPECT_EQ(trace.gpu[0].start, 10'500);
  EXPECT_EQ(trace.gpu[0].end, 12'500);
  EXPECT_EQ(trace.api.size(), 2u);
  const LaunchIndex index(trace);
  EXPECT_NE(index.CallOf(0), LaunchIndex::kNone);
  const ScopeUse use = Analyze(trace, index, FullScope(trace));
  EXPECT_EQ(use.launch_calls, 0);  // the calls lie in front of the GPU window
  EXPECT_EQ(use.devices[0].zero_rows, 1);
}

TEST_F(BadFiles, JsonTailsAndRandomDamageAreSurvived) {
  const std::string good = kEvents;
  for (std::size_t length = 1; length < good.size(); length += 3) {
    const std::string path = Write("t.json", good.substr(0, length));
    try {
      const Trace trace = ReadTrace(path);
      EXPECT_LE(trace.gpu.size(), 2u);
      EXPECT_FALSE(trace.sources[0].warnings.empty());
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::kInput);
    }
  }
  for (std::uint64_t round = 0; round < 500; ++round) {
    std::string bad = good;
    for (std::uint64_t k = 0; k < 4; ++k) {
      bad[Mix64(5, k, round) % bad.size()] = static_cast<char>(Mix64(6, k, round));
    }
    try {
      ReadTrace(Write("t.json", bad));
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::kInput);
    }
  }
  // A million open brackets must not overflow the stack.
  EXPECT_NO_THROW(
      ReadTrace(Write("deep.json", "{\"traceEvents\": [{\"ph\": \"X\", \"args\": {\"x\": " +
                                       std::string(1'000'000, '['))));
}

TEST_F(BadFiles, TruncatedGzipGivesItsBeginning) {
  const std::string path = Path("t.json.gz");
  gzFile file = gzopen(path.c_str(), "wb");
  std::string body = kEvents;
  body.insert(body.size() - 2, std::string(100'000, ' '));
  gzwrite(file, body.data(), static_cast<unsigned>(body.size()));
  gzclose(file);
  fs::resize_file(path, fs::file_size(path) - 12);
  const Trace trace = ReadTrace(path);
  EXPECT_EQ(trace.gpu.size(), 2u);
}

TEST_F(BadFiles, OddRowsAreCountedNotDropped) {
  const std::string path = Export("t.sqlite", {});
  Sql(path,
      "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET \"end\" = start - 50 WHERE rowid = 5;"
      "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = -1000 WHERE rowid = 6;"
      "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = NULL WHERE rowid = 7;"
      "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET eventClass = 67 WHERE rowid = 3;"
      "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET globalTid = 16777215 WHERE rowid = 4");
  const Trace trace = ReadTrace(path);
  const LaunchIndex index(trace);
  EXPECT_EQ(trace.reversed_rows, 1);
  EXPECT_EQ(trace.api_other_class, 1);
  EXPECT_EQ(trace.gpu.front().start, -1000);
  const ScopeUse use = Analyze(trace, index, FullScope(trace));
  std::int64_t kernels = 0;
  for (const DeviceUse& device : use.devices) {
    kernels += device.overlapping[0] + device.overlapping[1];
  }
  EXPECT_EQ(kernels, 1000);
  EXPECT_TRUE(BrokenInvariants(trace, use).empty());
}

std::string WindowSentence(auto call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(BadFiles, WindowsAreChecked) {
  const Trace trace = ReadTrace(Export("t.sqlite", {}));
  const LaunchIndex index(trace);
  EXPECT_EQ(WindowSentence([] { ParseWindow("5"); }), "window '5' is not START:END");
  EXPECT_EQ(WindowSentence([] { ParseWindow("a:b"); }),
            "window 'a:b' is not START:END in whole trace nanoseconds");
  EXPECT_EQ(WindowSentence([] { ParseWindow("9:5"); }), "window '9:5' ends before it starts");
  std::string note;
  EXPECT_EQ(ParseClockWindow(trace, "host", "5.000001:5.000002500", note), (Window{1000, 2500}));
  EXPECT_EQ(note, "");
  EXPECT_EQ(ParseClockWindow(trace, "epoch", "1790000000.000000001:1790000001", note),
            (Window{1, 1'000'000'000}));
  EXPECT_EQ(WindowSentence([&] { NvtxScope(trace, "nothing"); }),
            "no closed range is called 'nothing' in " + Path("t.sqlite"));
  // Outside the trace and of no length: an explicit state, never 0 % or 100 %.
  for (const Window& window : {Window{-10'000, -5'000}, Window{100, 100}}) {
    const ScopeUse use = Analyze(trace, index, {"w", {window}, ""});
    for (const DeviceUse& device : use.devices) {
      EXPECT_FALSE(device.active());
      EXPECT_EQ(device.busy(), 0);
    }
  }
}

TEST_F(BadFiles, WindowLogsAreMappedAndChecked) {
  const Trace trace = ReadTrace(Export("t.sqlite", {}));
  const std::string log =
      "{\"name\": \"steady\", \"t\": 5.001}\n{\"name\": \"steady\", \"t\": 5.002}\n\n"
      "{\"name\": \"other\", \"t\": 7, \"clock\": \"trace_ns\"}\n"
      "{\"name\": \"other\", \"t\": 19, \"clock\": \"trace_ns\"}\n";
  const std::vector<Scope> scopes = LogScopes(trace, log, "log");
  ASSERT_EQ(scopes.size(), 2u);
  EXPECT_EQ(scopes[0].steps, (std::vector<Window>{{1'000'000, 2'000'000}}));
  EXPECT_EQ(scopes[1].steps, (std::vector<Window>{{7, 19}}));
  EXPECT_EQ(WindowSentence([&] { LogScopes(trace, "{\"name\": \"a\", \"t\": 1}\n", "log"); }),
            "log: window 'a' is opened but never closed");
  EXPECT_EQ(WindowSentence([&] { LogScopes(trace, "nonsense\n", "log"); }),
            "log line 1 is not {\"name\": ..., \"t\": ...}");
}

TEST_F(Merging, FilesOfOneRunShareAClock) {
  SyntheticTrace spec;
  const std::string a = Export("a.sqlite", spec), b = Export("b.sqlite", spec);
  // The second session began 3 ms later on the same host, on other GPUs.
  Sql(b,
      "UPDATE TARGET_INFO_SESSION_START_TIME SET systemClockNs = systemClockNs + 3000000, "
      "utcEpochNs = utcEpochNs + 3000100;"
      "UPDATE TARGET_INFO_CUDA_DEVICE SET uuid = uuid || 'b'");
  const Trace one = ReadTrace(a), both = ReadRun({a, b});
  EXPECT_EQ(both.gpu.size(), 2 * one.gpu.size());
  EXPECT_EQ(both.devices.size(), 4u);
  EXPECT_EQ(both.sources[1].shift, 3'000'000);
  const LaunchIndex index(both);
  const ScopeUse use = Analyze(both, index, FullScope(both));
  EXPECT_EQ(use.devices[0].compute(), use.devices[2].compute());
  EXPECT_EQ(use.devices[2].first - use.devices[0].first, 3'000'000);
  EXPECT_EQ(use.devices[2].launch.without_call, 0);
  EXPECT_TRUE(BrokenInvariants(both, use).empty());
}

TEST_F(Merging, FilesWithoutAClockAreRefused) {
  const std::string a = Write("a.json", "[]"), b = Write("b.json", "[]");
  EXPECT_EQ(WindowSentence([&] {
              ReadRun({a, b});
            }),
            "cannot put " + b + " on the clock of " + a + ": " + a + " records no wall-clock time");
}

}  // namespace
}  // namespace assay::timeline
