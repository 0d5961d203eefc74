// The program killed at random, twice at once on one ledger, and started by mpirun: nothing is lost
// and nothing is there twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <thread>

#include "base/error.h"
#include "io/file.h"
#include "replay/ledger.h"
#include "tests/cli_process.h"

namespace assay {
namespace {

using ::testing::HasSubstr;

std::string ManyDecodes(int count, const std::string& prefix) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    lines += "{\"definition\": \"gdn_decode_qk4_v8_d128_k_last\", \"workload\": {\"uuid\": \"" +
             prefix + std::to_string(i) + "\", \"axes\": {\"batch_size\": 1}}}\n";
  }
  return lines;
}

// How often each uuid is in the ledger, over all its runs. Throws when it cannot be read.
std::map<std::string, int> Stored(const std::string& path) {
  const Ledger ledger = Ledger::Open(path, Ledger::Mode::kReadOnly);
  std::map<std::string, int> counts;
  for (const RunInfo& run : ledger.Runs()) {
    for (const CaseResult& result : ledger.Cases(run.id)) {
      EXPECT_EQ(result.status, Status::kPassed) << result.reason;
      ++counts[result.uuid];
    }
  }
  return counts;
}

void ExpectAllOnce(const std::map<std::string, int>& counts, std::size_t expected) {
  EXPECT_EQ(counts.size(), expected);
  for (const auto& [uuid, count] : counts) EXPECT_EQ(count, 1) << uuid;
}

// Says when the ledger's files have changed a number of times and some milliseconds more are over.
class AfterWrites {
 public:
  AfterWrites(const std::string& ledger, int writes, int milliseconds)
      : ledger_(ledger), writes_left_(writes), milliseconds_left_(milliseconds) {
    last_ = Size();
  }
  bool operator()() {
    const auto now = Size();
    if (now != last_) --writes_left_;
    last_ = now;
    return writes_left_ <= 0 && milliseconds_left_-- <= 0;
  }

 private:
  std::uintmax_t Size() const {
    std::uintmax_t size = 0;
    for (const char* part : {"", "-wal"}) {
      std::error_code missing;
      const auto bytes = std::filesystem::file_size(ledger_ + part, missing);
      if (!missing) size += bytes;
    }
    return size;
  }

  const std::string ledger_;
  int writes_left_, milliseconds_left_;
  std::uintmax_t last_ = 0;
};

class Kills : public ::testing::TestWithParam<const char*> {
 protected:
  TemporaryFolder folder_;
};

TEST_P(Kills, FiftyRandomOnesLoseAndDoubleNothing) {
  constexpr int kWorkloads = 240, kKills = 50;
  const std::string ledger = folder_.path() + "/ledger" + GetParam();
  const std::vector<std::string> run = {
      "run",       "--suite",  folder_.Write("suite.jsonl", ManyDecodes(kWorkloads, "u-")),
      "--backend", "cpu",      "--no-timing",
      "--resume",  "--ledger", ledger,
      "--threads", "1"};
  std::mt19937 random(20261130);
  std::map<std::string, int> before;
  int killed = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    const AfterWrites ready(ledger, static_cast<int>(random() % 5),
                            static_cast<int>(random() % 40));
    if (RunCliKilled(run, folder_.path(), ready).exit_code == 128 + 9) ++killed;
    if (!std::filesystem::exists(ledger)) continue;  // died before it was made
    std::map<std::string, int> now;
    try {
      now = Stored(ledger);
    } catch (const Error& error) {  // killed while the tables were being made
      EXPECT_TRUE(before.empty()) << error.what();
      continue;
    }
    for (const auto& [uuid, count] : before) EXPECT_EQ(now[uuid], count) << uuid << " was lost";
    before = std::move(now);
  }
  EXPECT_EQ(killed, kKills) << "the suite is too short for this machine";
  EXPECT_FALSE(before.empty());
  RecordProperty("done_when_the_last_kill_came", static_cast<int>(before.size()));
  const CliResult rest = RunCli(run, folder_.path());
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  ExpectAllOnce(Stored(ledger), kWorkloads);
}

TEST_P(Kills, TwoRunsShareOneLedger) {
  const std::string ledger = folder_.path() + "/ledger" + GetParam();
  TemporaryFolder folders[2];
  CliResult results[2];
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      const std::string suite =
          folders[i].Write("suite.jsonl", ManyDecodes(100, i == 0 ? "a-" : "b-"));
      results[i] = RunCli({"run", "--suite", suite, "--backend", "cpu", "--no-timing", "--ledger",
                           ledger, "--threads", "1"},
                          folders[i].path());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const CliResult& result : results) EXPECT_EQ(result.exit_code, 0) << result.err;
  ExpectAllOnce(Stored(ledger), 200);
  EXPECT_EQ(Ledger::Open(ledger, Ledger::Mode::kReadOnly).Runs().size(), 2u);
}

#ifdef ASSAY_HAVE_SQLITE
INSTANTIATE_TEST_SUITE_P(BothStores, Kills, ::testing::Values(".jsonl", ".sqlite"));
#else
INSTANTIATE_TEST_SUITE_P(BothStores, Kills, ::testing::Values(".jsonl"));
#endif

TEST(Launchers, MpirunSplitsASuite) {
  if (std::system("command -v mpirun >/dev/null") != 0) {
    GTEST_SKIP() << "no mpirun on this machine (Debian: openmpi-bin)";
  }
  const TemporaryFolder folder;
  const std::string suite = folder.Write("suite.jsonl", ManyDecodes(7, "u-"));
  const std::string rank = "'" ASSAY_PROGRAM " run --suite " + suite +
                           " --backend cpu --no-timing --threads 1 --shard auto --ledger "
                           "part$OMPI_COMM_WORLD_RANK.jsonl'";
  const std::string command =
      "cd " + folder.path() +
      " && OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 2 "
      "sh -c " +
      rank + " >log 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << ReadFile(folder.path() + "/log");
  const auto first = Stored(folder.path() + "/part0.jsonl");
  EXPECT_EQ(first.size(), 4u);
  EXPECT_EQ(Stored(folder.path() + "/part1.jsonl").size(), 3u);
  const CliResult merged =
      RunCli({"merge", "all.jsonl", "part0.jsonl", "part1.jsonl"}, folder.path());
  EXPECT_EQ(merged.exit_code, 0) << merged.err;
  ExpectAllOnce(Stored(folder.path() + "/all.jsonl"), 7);
}

TEST(Launchers, SlurmsVariablesSplitASuite) {
  const TemporaryFolder folder;
  const std::string suite = folder.Write("suite.jsonl", ManyDecodes(7, "u-"));
  setenv("SLURM_NTASKS", "2", 1);
  for (const char* rank : {"0", "1"}) {
    setenv("SLURM_PROCID", rank, 1);
    const CliResult run = RunCli({"run", "--suite", suite, "--backend", "cpu", "--no-timing",
                                  "--threads", "1", "--shard", "auto", "--ledger", "all.jsonl"},
                                 folder.path());
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(Stored(folder.path() + "/all.jsonl").size(), rank[0] == '0' ? 4u : 7u);
  }
  unsetenv("SLURM_NTASKS");
  unsetenv("SLURM_PROCID");
  ExpectAllOnce(Stored(folder.path() + "/all.jsonl"), 7);
}

TEST(Jobs, VerifySideBySideAndRefuseToTime) {
  const TemporaryFolder folder;
  const std::string suite = folder.Write("suite.jsonl", ManyDecodes(20, "u-"));
  const std::string ledger = folder.path() + "/ledger.jsonl";
  std::vector<std::string> run = {"run",      "--suite", suite,    "--backend", "cpu",
                                  "--ledger", ledger,    "--jobs", "2"};
  const CliResult timed = RunCli(run, folder.path());
  EXPECT_EQ(timed.exit_code, 2);
  EXPECT_THAT(timed.err, HasSubstr("--jobs 2 shares the machine between cases"));
  run.push_back("--no-timing");
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one core";
  const CliResult verified = RunCli(run, folder.path());
  EXPECT_EQ(verified.exit_code, 0) << verified.err;
  ExpectAllOnce(Stored(ledger), 20);
}

}  // namespace
}  // namespace assay
