// Both stores of the ledger: round trips, resume, foreign and newer files, full disks, shared use,
// and writers that are killed at random moments.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "base/error.h"
#include "base/random.h"
#include "replay/ledger.h"
#include "replay/ledger_test_data.h"
#ifdef ASSAY_HAVE_SQLITE
#include "io/sqlite.h"
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ASSAY_SANITIZED 1
#endif

namespace assay {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

#ifdef ASSAY_SANITIZED
constexpr int kKills = 6;
#else
constexpr int kKills = 30;
#endif

std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Spill(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string MessageOf(const std::function<void()>& action, Fault fault) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), fault) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

// Runs `body` in a child process; returns its process id.
pid_t Fork(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child != 0) return child;
  try {
    body();
  } catch (const std::exception& error) {
    fprintf(stderr, "child: %s\n", error.what());
    _exit(1);
  }
  _exit(0);
}

int ExitCodeOf(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class LedgerTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("assay-ledger-" + std::to_string(getpid()) + "-" +
               std::to_string(std::hash<std::string>{}(
                   testing::UnitTest::GetInstance()->current_test_info()->name())));
    fs::create_directories(folder_);
    path_ = (folder_ / ("ledger" + GetParam())).string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  Ledger Append() const { return Ledger::Open(path_, Ledger::Mode::kAppend); }
  Ledger Read() const { return Ledger::Open(path_, Ledger::Mode::kReadOnly); }
  bool jsonl() const { return GetParam() == ".jsonl"; }

  fs::path folder_;
  std::string path_;
};

TEST_P(LedgerTest, KeepsEveryFieldAndSample) {
  {
    Ledger ledger = Append();
    ledger.BeginRun(TestRun("run-1"), TestCeilings("cpu-x", "2026-11-30"));
    for (int i = 0; i < 5; ++i) ledger.Add("run-1", FullCase(i));
    ledger.FinishRun("run-1", "2026-11-30T11:30:00Z");
  }
  const Ledger ledger = Read();
  const auto runs = ledger.Runs();
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].finished, "2026-11-30T11:30:00Z");
  RunInfo unfinished = runs[0];
  unfinished.finished.clear();
  EXPECT_EQ(RunInfoToJson(unfinished), RunInfoToJson(TestRun("run-1")));
  EXPECT_EQ(CeilingsToJson(ledger.CeilingsOf("run-1")),
            CeilingsToJson(TestCeilings("cpu-x", "2026-11-30")));
  const auto cases = ledger.Cases("run-1");
  ASSERT_EQ(cases.size(), 5u);
  for (int i = 0; i < 5; ++i) ExpectSameCase(cases[static_cast<std::size_t>(i)], FullCase(i));
  EXPECT_TRUE(ledger.Cases("another run").empty());
}

TEST_P(LedgerTest, UntimedFailuresAreResultsToo) {
  CaseResult failed = FullCase(0);
  failed.status = Status::kFailed;
  failed.sub = "signal";
  failed.timing.clear();
  failed.correctness = {};
  failed.flags.clear();
  Ledger ledger = Append();
  ledger.BeginRun(TestRun("r"), {});
  ledger.Add("r", failed);
  ExpectSameCase(ledger.Cases("r").at(0), failed);
  const CaseRow row = ledger.Rows("r").at(0);
  EXPECT_EQ(row.status, Status::kFailed);
  EXPECT_EQ(row.sub, "signal");
  EXPECT_TRUE(row.timing.empty());
  EXPECT_TRUE(row.flags.empty());
}

TEST_P(LedgerTest, RowsAgreeWithCases) {
  Ledger ledger = Append();
  ledger.BeginRun(TestRun("r"), {});
  for (int i = 0; i < 3; ++i) ledger.Add("r", FullCase(i));
  const auto rows = ledger.Rows("r");
  ASSERT_EQ(rows.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    const CaseRow& got = rows[static_cast<std::size_t>(i)];
    const CaseRow wanted = RowOf(FullCase(i));
    EXPECT_EQ(std::tie(got.uuid, got.definition, got.family, got.backend, got.model, got.phase),
              std::tie(wanted.uuid, wanted.definition, wanted.family, wanted.backend, wanted.model,
                       wanted.phase));
    EXPECT_EQ(std::tie(got.request, got.axes, got.status, got.sub, got.reason, got.grade),
              std::tie(wanted.request, wanted.axes, wanted.status, wanted.sub, wanted.reason,
                       wanted.grade));
    EXPECT_EQ(std::tie(got.flags, got.share_checked, got.floor.flops, got.floor.bytes),
              std::tie(wanted.flags, wanted.share_checked, wanted.floor.flops, wanted.floor.bytes));
    EXPECT_EQ(std::tie(got.floor.ns, got.floor.bound, got.setup_ms, got.seconds, got.overhead_ms),
              std::tie(wanted.floor.ns, wanted.floor.bound, wanted.setup_ms, wanted.seconds,
                       wanted.overhead_ms));
    ASSERT_EQ(got.timing.size(), 2u);
    for (std::size_t m = 0; m < 2; ++m) {
      const TimingSummary &a = got.timing[m], &b = wanted.timing[m];
      EXPECT_EQ(std::tie(a.mode, a.repeats, a.samples, a.median_ns, a.ci_low_ns, a.ci_high_ns),
                std::tie(b.mode, b.repeats, b.samples, b.median_ns, b.ci_low_ns, b.ci_high_ns));
      EXPECT_EQ(std::tie(a.spread, a.min_ns, a.max_ns, a.mean_ns, a.p90_ns, a.p95_ns, a.p99_ns),
                std::tie(b.spread, b.min_ns, b.max_ns, b.mean_ns, b.p90_ns, b.p95_ns, b.p99_ns));
      EXPECT_EQ(a.noisy, b.noisy);
      ASSERT_TRUE(a.ratio_side && b.ratio_side);
      EXPECT_EQ(std::tie(a.ratio_side->low, a.ratio_side->high),
                std::tie(b.ratio_side->low, b.ratio_side->high));
    }
    EXPECT_EQ(std::tie(got.input_source, got.budget_used),
              std::tie(wanted.input_source, wanted.budget_used));
  }
}

TEST_P(LedgerTest, RowsOfFailuresExplainThem) {
  CaseResult failed = FullCase(0);
  failed.status = Status::kIncorrect;
  failed.correctness.outputs.push_back(failed.correctness.outputs[0]);
  failed.correctness.outputs[1].output = "worst";
  failed.correctness.outputs[1].mismatches = 7;
  failed.correctness.outputs[1].budget_used = std::nan("");
  failed.correctness.findings.push_back({"constant_v", false, 2, 1, "O[3] = 2"});
  Ledger ledger = Append();
  ledger.BeginRun(TestRun("r"), {});
  ledger.Add("r", failed);
  CaseResult unchecked = FullCase(1);
  unchecked.correctness = {};
  ledger.Add("r", unchecked);
  const auto rows = ledger.Rows("r");
  ASSERT_TRUE(rows[0].worst && rows[0].budget_used);
  EXPECT_EQ(rows[0].worst->output, "worst");
  EXPECT_EQ(rows[0].worst->mismatches, 7);
  EXPECT_TRUE(std::isnan(*rows[0].budget_used));
  ASSERT_EQ(rows[0].failed_findings.size(), 1u);
  EXPECT_EQ(rows[0].failed_findings[0].detail, "O[3] = 2");
  EXPECT_FALSE(rows[1].budget_used || rows[1].worst);
}

TEST_P(LedgerTest, DoneNamesCasesOfTheSameBuildOnly) {
  Ledger ledger = Append();
  ledger.BeginRun(TestRun("r1", "build-a"), {});
  ledger.Add("r1", FullCase(0));
  ledger.BeginRun(TestRun("r2", "build-b"), {});
  ledger.Add("r2", FullCase(1));
  EXPECT_THAT(ledger.Done("build-a"), testing::ElementsAre(CaseKey{"uuid-0", "cpu", "build-a"}));
  EXPECT_THAT(ledger.Done("build-b"), testing::ElementsAre(CaseKey{"uuid-1", "cpu", "build-b"}));
  EXPECT_TRUE(ledger.Done("build-c").empty());
}

TEST_P(LedgerTest, NewestCeilingsOfTheDeviceWin) {
  Ledger ledger = Append();
  EXPECT_FALSE(ledger.FindCeilings("cpu-x"));
  ledger.StoreCeilings(TestCeilings("cpu-x", "2026-11-02"));
  ledger.StoreCeilings(TestCeilings("cpu-x", "2026-11-01"));
  ledger.StoreCeilings(TestCeilings("cpu-y", "2026-11-03"));
  EXPECT_EQ(ledger.FindCeilings("cpu-x")->measured, "2026-11-02");
  // Ceilings copied into a run are evidence of that run, not a measurement.
  ledger.BeginRun(TestRun("r"), TestCeilings("cpu-x", "2026-11-09"));
  EXPECT_EQ(ledger.FindCeilings("cpu-x")->measured, "2026-11-02");
}

TEST_P(LedgerTest, AppendsAcrossProcessesOfOneLedger) {
  for (const char* id : {"r1", "r2"}) {
    Ledger ledger = Append();
    ledger.BeginRun(TestRun(id), {});
    ledger.Add(id, FullCase(0));
  }
  EXPECT_EQ(Read().Runs().size(), 2u);
}

TEST_P(LedgerTest, MissingFileIsBadInputForReadersOnly) {
  EXPECT_THAT(MessageOf([&] { Read(); }, Fault::kInput), HasSubstr(path_));
  EXPECT_FALSE(fs::exists(path_));
  Append();
  EXPECT_TRUE(fs::exists(path_));
}

TEST_P(LedgerTest, MissingFolderAndFolderAsFileAreBadInput) {
  const std::string nowhere = (folder_ / "none" / ("x" + GetParam())).string();
  EXPECT_THAT(MessageOf([&] { Ledger::Open(nowhere, Ledger::Mode::kAppend); }, Fault::kInput),
              HasSubstr(nowhere));
  fs::create_directory(path_);
  EXPECT_THAT(MessageOf([&] { Append(); }, Fault::kInput), HasSubstr(path_));
  EXPECT_THAT(MessageOf([&] { Read(); }, Fault::kInput), HasSubstr(path_));
}

TEST_P(LedgerTest, OtherFilesAreNotLedgers) {
  const std::string foreign = "{\"uuid\":\"x\",\"definition\":\"y\"}\nand some more text\n";
  Spill(path_, foreign);
  for (const auto mode : {Ledger::Mode::kReadOnly, Ledger::Mode::kAppend}) {
    MessageOf([&] { Ledger::Open(path_, mode); }, Fault::kInput);
    EXPECT_EQ(Slurp(path_), foreign) << "a foreign file was changed";
  }
}

// Two processes create one ledger and write to it at the same time; a third one reads.
TEST_P(LedgerTest, TwoRunsShareOneLedger) {
  constexpr int kCases = 40;
  std::vector<pid_t> writers;
  for (const char* id : {"r1", "r2"}) {
    writers.push_back(Fork([this, id] {
      Ledger ledger = Append();
      ledger.BeginRun(TestRun(id), {});
      for (int i = 0; i < kCases; ++i) ledger.Add(id, FullCase(i));
    }));
  }
  for (const pid_t writer : writers) EXPECT_EQ(ExitCodeOf(writer), 0);
  for (const char* id : {"r1", "r2"}) {
    const auto cases = Read().Cases(id);
    ASSERT_EQ(cases.size(), static_cast<std::size_t>(kCases)) << id;
    for (int i = 0; i < kCases; ++i) {
      ExpectSameSeries(cases[static_cast<std::size_t>(i)], FullCase(i));
    }
  }
}

// The writer reports every case that Add() has promised; a killed writer may lose none of them, and
// what it leaves must be whole cases, readable and appendable.
TEST_P(LedgerTest, KilledWriterLosesAtMostTheCaseInFlight) {
  int seen_cases = 0;
  for (int kill_number = 0; kill_number < kKills; ++kill_number) {
    fs::remove(path_);
    fs::remove(path_ + "-wal");
    fs::remove(path_ + "-shm");
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t writer = Fork([&] {
      Ledger ledger = Append();
      ledger.BeginRun(TestRun("r"), {});
      for (int i = 0; i < 100'000; ++i) {
        ledger.Add("r", FullCase(i));
        if (write(ends[1], "x", 1) != 1) return;
      }
    });
    close(ends[1]);
    // Even kills hit the creation of the ledger or whatever the writer has come to; odd ones wait
    // for some cases first, so that on a slow machine, too, they hit a writer in the middle of its
    // work.
    const std::uint64_t random = Mix64(7, 0, static_cast<std::uint64_t>(kill_number));
    const std::size_t wait_for = kill_number % 2 == 0 ? 0 : 1 + random % 8;
    std::size_t promised = 0;
    char buffer[4096];
    while (promised < wait_for && read(ends[0], buffer, 1) == 1) ++promised;
    std::this_thread::sleep_for(std::chrono::microseconds(random / 8 % 20'000));
    kill(writer, SIGKILL);
    waitpid(writer, nullptr, 0);
    for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;) {
      promised += static_cast<std::size_t>(n);
    }
    ASSERT_GE(promised, wait_for) << "the writer stopped by itself";
    close(ends[0]);

    Ledger ledger = Append();  // also repairs what a kill during creation left
    const auto cases = ledger.Cases("r");
    ASSERT_GE(cases.size(), promised) << "kill " << kill_number;
    ASSERT_LE(cases.size(), promised + 1);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      ExpectSameSeries(cases[i], FullCase(static_cast<int>(i)));
    }
    ledger.BeginRun(TestRun("resumed"), {});
    ledger.Add("resumed", FullCase(0));
    ExpectSameCase(ledger.Cases("resumed").at(0), FullCase(0));
    seen_cases += static_cast<int>(cases.size());
  }
  EXPECT_GE(seen_cases, kKills / 2) << "the writers were killed before they did anything";
}

// A file size limit stands in for a full disk: the kernel refuses the write in the same place.
TEST_P(LedgerTest, FullDiskIsADeviceFaultAndTheLedgerStaysReadable) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t writer = Fork([&] {
    Ledger ledger = Append();
    ledger.BeginRun(TestRun("r"), {});
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{300'000, 300'000};
    setrlimit(RLIMIT_FSIZE, &limit);
    for (int i = 0; i < 10'000; ++i) {
      try {
        ledger.Add("r", FullCase(i));
      } catch (const Error& error) {
        const bool named = std::string(error.what()).find(path_) != std::string::npos;
        const bool device = error.fault() == Fault::kDevice;
        // The writer's own view must stay good as well.
        const bool readable = ledger.Cases("r").size() == static_cast<std::size_t>(i);
        if (write(ends[1], &i, sizeof i) != sizeof i) _exit(1);
        _exit(named && device && readable ? 0 : 2);
      }
    }
    _exit(3);
  });
  close(ends[1]);
  EXPECT_EQ(ExitCodeOf(writer), 0);
  int stored = 0;
  ASSERT_EQ(read(ends[0], &stored, sizeof stored), static_cast<ssize_t>(sizeof stored));
  close(ends[0]);
  EXPECT_GT(stored, 3);
  EXPECT_EQ(Read().Cases("r").size(), static_cast<std::size_t>(stored));
  Ledger again = Append();
  again.Add("r", FullCase(stored));
  EXPECT_EQ(again.Cases("r").size(), static_cast<std::size_t>(stored) + 1);
}

INSTANTIATE_TEST_SUITE_P(Jsonl, LedgerTest, testing::Values(".jsonl"));
#ifdef ASSAY_HAVE_SQLITE
INSTANTIATE_TEST_SUITE_P(Sqlite, LedgerTest, testing::Values(".sqlite"));
#endif

class JsonlLedgerTest : public LedgerTest {};
INSTANTIATE_TEST_SUITE_P(Files, JsonlLedgerTest, testing::Values(".jsonl"));

TEST_P(JsonlLedgerTest, OneObjectALineWithItsTypeFirst) {
  Ledger ledger = Append();
  ledger.StoreCeilings(TestCeilings("cpu-x", "2026-11-02"));
  ledger.BeginRun(TestRun("r"), {});
  ledger.Add("r", FullCase(0));
  ledger.FinishRun("r", "later");
  std::istringstream text(Slurp(path_));
  std::vector<std::string> starts;
  for (std::string line; std::getline(text, line);) starts.push_back(line.substr(0, 15));
  EXPECT_THAT(starts, testing::ElementsAre("{\"type\":\"ceilin", "{\"type\":\"run\",\"",
                                           "{\"type\":\"ceilin", "{\"type\":\"case\",",
                                           "{\"type\":\"finish"));
}

TEST_P(JsonlLedgerTest, TruncatedLastLineIsTolerated) {
  {
    Ledger ledger = Append();
    ledger.BeginRun(TestRun("r"), {});
    ledger.Add("r", FullCase(0));
    ledger.Add("r", FullCase(1));
  }
  const std::string whole = Slurp(path_);
  const std::size_t second = whole.rfind("{\"type\":\"case\"");
  for (const std::size_t keep : {second + 1, second + 30, whole.size() - 2, whole.size() - 1}) {
    Spill(path_, whole.substr(0, keep));
    // Only the newline is missing: the case is complete and counts.
    const std::size_t complete = keep == whole.size() - 1 ? 2 : 1;
    EXPECT_EQ(Read().Cases("r").size(), complete) << keep;
    EXPECT_EQ(Slurp(path_).size(), keep) << "a reader changed the file";
    Ledger ledger = Append();
    ledger.Add("r", FullCase(2));
    EXPECT_EQ(ledger.Cases("r").size(), complete + 1) << keep;
  }
}

TEST_P(JsonlLedgerTest, TruncationInsideTheFirstLineLeavesAnEmptyLedger) {
  {
    Ledger ledger = Append();
    ledger.BeginRun(TestRun("r"), {});
  }
  Spill(path_, Slurp(path_).substr(0, 40));
  EXPECT_TRUE(Read().Runs().empty());
  Append().BeginRun(TestRun("r2"), {});
  EXPECT_EQ(Read().Runs().size(), 1u);
}

TEST_P(JsonlLedgerTest, DamagedLineIsNamed) {
  {
    Ledger ledger = Append();
    ledger.BeginRun(TestRun("r"), {});
    ledger.Add("r", FullCase(0));
  }
  const std::string whole = Slurp(path_);
  const std::size_t last = whole.rfind("{\"type\":\"case\"");
  Spill(path_, whole.substr(0, last) + "{\"type\":\"case\",oops}\n" + whole.substr(last));
  EXPECT_THAT(MessageOf([&] { Read().Cases("r"); }, Fault::kInput), HasSubstr(path_ + ", line 3"));
}

TEST_P(JsonlLedgerTest, NewerVersionIsRefused) {
  Spill(path_, "{\"type\":\"run\",\"schema\":2,\"id\":\"r\"}\n");
  EXPECT_THAT(MessageOf([&] { Read(); }, Fault::kInput),
              HasSubstr("newer assay (ledger version 2, this one reads up to 1)"));
}

TEST_P(JsonlLedgerTest, DevicesAndPipesAreRefused) {
  fs::create_symlink("/dev/zero", path_);
  EXPECT_THAT(MessageOf([&] { Append(); }, Fault::kInput), HasSubstr("not a regular file"));
}

#ifdef ASSAY_HAVE_SQLITE
class SqliteLedgerTest : public LedgerTest {};
INSTANTIATE_TEST_SUITE_P(Files, SqliteLedgerTest, testing::Values(".sqlite"));

TEST_P(SqliteLedgerTest, NewerVersionIsRefused) {
  Append();
  SqliteDatabase(path_, SqliteDatabase::Mode::kReadWrite).Execute("PRAGMA user_version = 3");
  for (const auto mode : {Ledger::Mode::kReadOnly, Ledger::Mode::kAppend}) {
    EXPECT_THAT(MessageOf([&] { Ledger::Open(path_, mode); }, Fault::kInput),
                HasSubstr("newer assay (ledger version 3, this one reads up to 2)"));
  }
}

// A ledger of the first table version: as it was before ratio intervals and budgets had columns.
void MakeOld(const std::string& path) {
  SqliteDatabase database(path, SqliteDatabase::Mode::kReadWrite);
  for (const char* column : {"cases DROP COLUMN input_source", "cases DROP COLUMN outputs_checked",
                             "cases DROP COLUMN budget_used", "timings DROP COLUMN ratio_low_ns",
                             "timings DROP COLUMN ratio_high_ns"}) {
    database.Execute(std::string("ALTER TABLE ") + column);
  }
  database.Execute("PRAGMA user_version = 1");
}

TEST_P(SqliteLedgerTest, OlderOnesAreReadAndContinued) {
  {
    Ledger ledger = Append();
    ledger.BeginRun(TestRun("r"), {});
    ledger.Add("r", FullCase(0));
  }
  MakeOld(path_);
  const auto expect_rows = [&](int count) {
    const auto rows = Read().Rows("r");
    ASSERT_EQ(rows.size(), static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
      const CaseRow &got = rows[static_cast<std::size_t>(i)], wanted = RowOf(FullCase(i));
      EXPECT_EQ(got.uuid, wanted.uuid);
      EXPECT_EQ(got.budget_used, wanted.budget_used);
      EXPECT_EQ(got.timing.at(1).ratio_side->high, wanted.timing.at(1).ratio_side->high);
    }
  };
  expect_rows(1);
  Append().Add("r", FullCase(1));  // adds the columns; the first case has nothing in them
  expect_rows(2);
}

TEST_P(SqliteLedgerTest, OtherDatabasesAreNotLedgers) {
  SqliteDatabase(path_, SqliteDatabase::Mode::kCreate).Execute("CREATE TABLE t(x)");
  EXPECT_THAT(MessageOf([&] { Append(); }, Fault::kInput), HasSubstr("not an assay ledger"));
}

TEST_P(SqliteLedgerTest, SamplesAreLittleEndianDoubles) {
  Ledger ledger = Append();
  ledger.BeginRun(TestRun("r"), {});
  CaseResult result = FullCase(0);
  result.timing = {{"cold_host", 0, "count", {1.0}}};
  ledger.Add("r", result);
  SqliteDatabase database(path_, SqliteDatabase::Mode::kReadOnly);
  SqliteStatement row(database, "SELECT hex(ns), mode, typeof(ns) FROM samples");
  ASSERT_TRUE(row.Step());
  EXPECT_EQ(row.Text(0), "000000000000F03F");
  EXPECT_EQ(row.Text(2), "blob");
  SqliteStatement columns(database, "SELECT status, definition, median_ns FROM cases");
  ASSERT_TRUE(columns.Step());
  EXPECT_EQ(columns.Text(0), "passed");
  EXPECT_EQ(columns.Real(2), 1.0);
}

TEST_P(SqliteLedgerTest, CaseOfAnUnknownRunIsAnInternalError) {
  Ledger ledger = Append();
  MessageOf([&] { ledger.Add("no such run", FullCase(0)); }, Fault::kInternal);
}

// Results on a read-only share, read by a user who may not write there.
TEST_P(SqliteLedgerTest, ReadableInAReadOnlyFolder) {
  {
    Ledger ledger = Append();
    ledger.BeginRun(TestRun("r"), {});
    ledger.Add("r", FullCase(0));
  }
  fs::permissions(path_, fs::perms(0444));
  fs::permissions(folder_, fs::perms(0555));
  const pid_t reader = Fork([&] {
    constexpr uid_t kNobody = 65534;
    if (geteuid() == 0 && setuid(kNobody) != 0) _exit(77);
    const bool refused =
        MessageOf([&] { Append(); }, Fault::kInput).find(path_) != std::string::npos;
    _exit(refused && Read().Cases("r").size() == 1 ? 0 : 1);
  });
  const int code = ExitCodeOf(reader);
  fs::permissions(folder_, fs::perms::owner_all);
  if (code == 77) GTEST_SKIP() << "cannot give up root's rights here";
  EXPECT_EQ(code, 0);
}

TEST_P(SqliteLedgerTest, TenThousandRowsAreFast) {
#ifdef ASSAY_SANITIZED
  constexpr int kCases = 300;
#else
  constexpr int kCases = 10'000;
#endif
  Ledger ledger = Append();
  ledger.BeginRun(TestRun("r"), {});
  for (int i = 0; i < kCases; ++i) ledger.Add("r", FullCase(i));
  // Processor time, so that other work on the machine cannot fail the test.
  const std::clock_t start = std::clock();
  const auto rows = ledger.Rows("r");
  const double took_ms = 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_EQ(rows.size(), static_cast<std::size_t>(kCases));
  EXPECT_EQ(rows.back().timing.size(), 2u);
  RecordProperty("rows_cpu_ms", std::to_string(took_ms));
#ifndef ASSAY_SANITIZED
  EXPECT_LT(took_ms, 200);
#endif
}
#else
TEST(Ledger, WithoutSqliteThePathMustBeJsonl) {
  const std::string message =
      MessageOf([] { Ledger::Open("x.sqlite", Ledger::Mode::kAppend); }, Fault::kUnsupported);
  EXPECT_THAT(message, HasSubstr(".jsonl"));
}
#endif

}  // namespace
}  // namespace assay
