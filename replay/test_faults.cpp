// Workers that fail at every stage of the protocol, disks that are full at every write, clocks that
// step back, ledgers with many rows, workloads side by side.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "io/file.h"
#include "replay/fault_cases.h"
#include "replay/faulty_family.h"
#include "replay/ledger_test_data.h"

namespace assay {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "assay-faults-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::vector<Workload> Sums(int count) {
  std::vector<Workload> workloads;
  for (int i = 0; i < count; ++i) {
    workloads.push_back(FaultySum(100 + i % 7, "u-" + std::to_string(i)));
  }
  return workloads;
}

std::vector<CaseResult> RunSums(int count, RunOptions options) {
  if (options.backends.empty()) options.backends = {"good"};
  return RunSuite(FaultyRegistry(), Sums(count), options);
}

std::size_t OpenDescriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

TEST(WorkerFaults, AtEveryStageCostOneCase) {
  const Folder folder;
  RunOptions options;
  options.budget_s = 0.01;
  options.repeats = 1;
  const std::size_t before = OpenDescriptors();
  for (const char* stage : {"open", "slot", "time", "run", "close"}) {
    for (const char* fault : {"die", "die_after", "half", "hang_up", "nonsense"}) {
      const std::string name = std::string(fault) + " at " + stage;
      options.worker_command = {FAULTY_WORKER, fault, stage, folder / name};
      const std::vector<CaseResult> results = RunSums(2, options);
      ASSERT_EQ(results.size(), 2u) << name;
      EXPECT_TRUE(fs::exists(folder / name)) << name;
      EXPECT_EQ(results[0].status, Status::kFailed) << name << ": " << results[0].reason;
      EXPECT_THAT(results[0].sub, AnyOf("signal", "exit", "protocol")) << name;
      EXPECT_TRUE(results[0].timing.empty()) << name;
      EXPECT_EQ(results[1].status, Status::kPassed) << name << ": " << results[1].reason;
    }
  }
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a worker was left behind";
}

TEST(WorkerFaults, MemoryCannotBeCutOff) {
  const Folder folder;
  RunOptions options;
  options.timing = false;
  options.worker_command = {FAULTY_WORKER, "cut_memory", "slot", folder / "marker"};
  const std::vector<CaseResult> results = RunSums(1, options);
  EXPECT_EQ(results.at(0).status, Status::kPassed) << results.at(0).reason;
  EXPECT_TRUE(fs::exists(folder / "marker"));
}

TEST(ManyCases, LeaveNothingBehind) {
  RunOptions options;
  options.timing = false;
  options.worker_command = {FAULTY_WORKER};
  const std::size_t before = OpenDescriptors();
  const std::vector<CaseResult> results = RunSums(2000, options);
  ASSERT_EQ(results.size(), 2000u);
  for (const CaseResult& result : results) ASSERT_EQ(result.status, Status::kPassed);
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(Jobs, EveryWorkloadOnceOnItsShareOfTheCores) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  RunOptions options;
  options.timing = false;
  options.worker_command = {FAULTY_WORKER};
  options.jobs = CPU_COUNT(&allowed) + 1;
  EXPECT_THROW(RunSums(1, options), Error);
  if (CPU_COUNT(&allowed) < 2) GTEST_SKIP() << "this process has one core";
  options.jobs = 2;
  options.backends = {"good", "segfault"};
  std::set<std::pair<std::string, std::string>> seen;
  for (const CaseResult& result : RunSums(40, options)) {
    EXPECT_TRUE(seen.emplace(result.uuid, result.backend).second);
    EXPECT_EQ(result.status, result.backend == "good" ? Status::kPassed : Status::kFailed);
  }
  EXPECT_EQ(seen.size(), 80u);
  options.timing = true;
  EXPECT_THROW(RunSums(1, options), Error);
}

// In a child whose files may grow to `limit` bytes: adds cases until it is refused, and exits with
// the number of accepted ones, or 200 + the fault when it was not refused as a full disk is.
int AddUntilFull(const std::string& path, std::size_t limit) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit bytes{limit, limit};
    setrlimit(RLIMIT_FSIZE, &bytes);
    int accepted = 0;
    try {
      Ledger ledger = Ledger::Open(path, Ledger::Mode::kAppend);
      ledger.BeginRun(TestRun("r"), {});
      for (; accepted < 100; ++accepted) {
        ledger.Add("r", FullCase(accepted));
      }
    } catch (const Error& error) {
      _exit(error.fault() == Fault::kDevice ? accepted : 200 + static_cast<int>(error.fault()));
    }
    _exit(199);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void FillAtEveryWrite(const std::string& ending, std::size_t first, std::size_t last,
                      std::size_t step) {
  const Folder folder;
  int with_cases = 0;
  for (std::size_t limit = first; limit < last; limit += step) {
    const std::string path = folder / std::to_string(limit) + ending;
    const int accepted = AddUntilFull(path, limit);
    ASSERT_GE(accepted, 0) << limit;
    ASSERT_LT(accepted, 100) << limit << " bytes";
    if (accepted == 0) continue;  // not even the tables fit
    ++with_cases;
    const Ledger ledger = Ledger::Open(path, Ledger::Mode::kReadOnly);
    EXPECT_EQ(ledger.Cases("r").size(), static_cast<std::size_t>(accepted)) << limit;
  }
  EXPECT_GT(with_cases, 10);
}

TEST(FullDisk, JsonlLedgersKeepEveryAcceptedCase) { FillAtEveryWrite(".jsonl", 0, 40000, 997); }

#ifdef ASSAY_HAVE_SQLITE
TEST(FullDisk, SqliteLedgersKeepEveryAcceptedCase) {
  FillAtEveryWrite(".sqlite", 4096, 400000, 9973);
}
#endif

TEST(FullDisk, WholeFilesAreReplacedOrLeft) {
  const Folder folder;
  WriteFile(folder / "page", "old");
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit bytes{1000, 1000};
    setrlimit(RLIMIT_FSIZE, &bytes);
    try {
      WriteFile(folder / "page", std::string(5000, 'x'));
    } catch (const Error& error) {
      _exit(static_cast<int>(error.fault()));
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(Fault::kDevice));
  EXPECT_EQ(ReadFile(folder / "page"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / ""), fs::directory_iterator()), 1);
}

class Ledgers : public ::testing::TestWithParam<const char*> {};

TEST_P(Ledgers, TheLastRunIsTheOneThatBeganLastWhateverTheClockSaid) {
  const Folder folder;
  const std::string path = folder / "ledger" + GetParam();
  Ledger ledger = Ledger::Open(path, Ledger::Mode::kAppend);
  RunInfo first = TestRun("b"), second = TestRun("a");
  first.started = "2026-11-30T12:00:00Z";
  second.started = "2026-11-30T11:59:59Z";
  ledger.BeginRun(first, {});
  ledger.BeginRun(second, {});
  ASSERT_EQ(ledger.Runs().size(), 2u);
  EXPECT_EQ(ledger.Runs().back().id, "a");
}

#ifdef ASSAY_HAVE_SQLITE
INSTANTIATE_TEST_SUITE_P(BothStores, Ledgers, ::testing::Values(".jsonl", ".sqlite"));
#else
INSTANTIATE_TEST_SUITE_P(BothStores, Ledgers, ::testing::Values(".jsonl"));
#endif

}  // namespace
}  // namespace assay
