// The program end to end, as a user meets it: outputs, exit codes, bad input, interruption, resume.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "io/file.h"
#include "tests/cli_process.h"

namespace assay {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

// Workloads that take milliseconds.
std::string DecodeLine(const std::string& uuid, int batch) {
  return "{\"definition\": \"gdn_decode_qk4_v8_d128_k_last\", \"workload\": {\"uuid\": \"" + uuid +
         "\", \"axes\": {\"batch_size\": " + std::to_string(batch) + "}}}\n";
}
std::string TinySuite() { return DecodeLine("u-1", 1) + DecodeLine("u-2", 2); }

class Cli : public ::testing::Test {
 protected:
  CliResult Run(const std::vector<std::string>& words) { return RunCli(words, folder_.path()); }
  // `assay run` on a suite file, verification only unless told otherwise.
  CliResult RunSuite(const std::string& suite, std::vector<std::string> more = {"--no-timing"}) {
    std::vector<std::string> words = {"run", "--suite", suite, "--backend", "cpu"};
    words.insert(words.end(), more.begin(), more.end());
    return Run(words);
  }
  TemporaryFolder folder_;
};

TEST_F(Cli, HelpListsExitCodesAndExamples) {
  const CliResult result = Run({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("Exit codes"));
  EXPECT_THAT(result.out, HasSubstr("assay run --suite smoke"));
  EXPECT_EQ(Run({"run", "--help"}).exit_code, 0);
}

TEST_F(Cli, NoVerbOrUnknownFlagIsBadInput) {
  EXPECT_EQ(Run({}).exit_code, 2);
  EXPECT_EQ(Run({"run", "--no-such-flag"}).exit_code, 2);
  EXPECT_EQ(Run({"frobnicate"}).exit_code, 2);
}

TEST_F(Cli, ListNamesDefinitionsBackendsAndSuites) {
  EXPECT_THAT(Run({"list"}).out, HasSubstr("gdn_decode_qk4_v8_d128_k_last"));
  EXPECT_THAT(Run({"list", "backends"}).out, HasSubstr("cpu"));
  EXPECT_THAT(Run({"list", "suites"}).out, HasSubstr("smoke"));
  const Json definitions = Json::parse(Run({"list", "--json"}).out);
  ASSERT_GE(definitions.size(), 9u);
  for (const auto& definition : definitions) EXPECT_FALSE(definition.at("backends").empty());
}

TEST_F(Cli, RunVerifiesTimesStoresAndReports) {
  const std::string suite = folder_.Write("tiny.jsonl", TinySuite());
  const CliResult run = RunSuite(suite, {"--budget", "0.2", "--html", "page.html"});
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("passed"));
  EXPECT_THAT(ReadFile(folder_.path() + "/page.html"), HasSubstr("gdn_decode"));
  const CliResult json = Run({"show", "--json"});
  EXPECT_EQ(json.exit_code, 0) << json.err;
  const Json stored = Json::parse(json.out);
  ASSERT_EQ(stored.at("cases").size(), 2u);
  for (const auto& one : stored.at("cases")) EXPECT_EQ(one.at("status"), "passed");
  EXPECT_EQ(Run({"show"}).exit_code, 0);
  EXPECT_THAT(Run({"show", "--uuid", "u-2"}).out, HasSubstr("u-2"));
  EXPECT_THAT(Run({"show", "--runs"}).out, HasSubstr("assay run --suite"));
  EXPECT_EQ(Run({"show", "--uuid", "nope"}).exit_code, 2);
  EXPECT_EQ(Run({"report", "--markdown", "-"}).exit_code, 0);
  EXPECT_EQ(Run({"report"}).exit_code, 2);
}

TEST_F(Cli, JsonlLedgersWorkLikeSqliteOnes) {
  const std::string suite = folder_.Write("tiny.jsonl", TinySuite());
  const CliResult run = RunSuite(suite, {"--no-timing", "--ledger", "out.jsonl"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(Json::parse(Run({"show", "--json", "--ledger", "out.jsonl"}).out).at("cases").size(),
            2u);
}

TEST_F(Cli, BadLinesAreReportedAndTheRestRuns) {
  const std::string suite = folder_.Write(
      "mixed.jsonl", DecodeLine("u-1", 1) + "{\"definition\": \n" + DecodeLine("u-1", 4) +
                         DecodeLine("u-3", -1) +
                         "{\"definition\": \"unheard_of\", \"axes\": {}, \"uuid\": \"u-4\"}\n" +
                         DecodeLine("u-5", 1));
  const CliResult run = RunSuite(suite, {"--no-timing", "--json"});
  EXPECT_THAT(run.err, HasSubstr("mixed.jsonl:2:"));
  EXPECT_THAT(run.err, HasSubstr("mixed.jsonl:3:"));  // duplicate uuid
  EXPECT_THAT(run.err, HasSubstr("batch_size"));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  std::map<std::string, std::string> status;
  const Json printed = Json::parse(run.out);
  for (const auto& one : printed.at("cases")) status[one.at("uuid")] = one.at("status");
  EXPECT_EQ(status["u-1"], "passed");
  EXPECT_EQ(status["u-4"], "unsupported");
  EXPECT_EQ(status["u-5"], "passed");
}

TEST_F(Cli, FiltersThatMatchNothingAreRefused) {
  const std::string suite = folder_.Write("tiny.jsonl", TinySuite());
  for (const char* flag : {"--definition", "--family", "--model", "--uuid"}) {
    const CliResult run = RunSuite(suite, {"--no-timing", flag, "zzz"});
    EXPECT_EQ(run.exit_code, 2) << flag;
    EXPECT_THAT(run.err, HasSubstr("zzz matches no workload")) << flag;
  }
  EXPECT_THAT(RunSuite(suite, {"--backend", "gpu9000"}).err, HasSubstr("unknown backend"));
  EXPECT_EQ(RunSuite("no-such-suite").exit_code, 2);
  EXPECT_THAT(RunSuite("no-such-suite").err, HasSubstr("smoke"));
}

TEST_F(Cli, VariantsMakeOtherWorkloads) {
  const std::string suite = folder_.Write("one.jsonl", DecodeLine("u-1", 4));
  const CliResult run = RunSuite(suite, {"--no-timing", "--json", "--variant", "zero_key"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(Json::parse(run.out).at("cases").at(0).at("uuid"), "u-1@zero_key");
  const CliResult none = RunSuite(suite, {"--no-timing", "--variant", "zzz"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("--variant zzz: no operator family"));
}

TEST_F(Cli, UnwritablePlacesAreRefusedBeforeAnyWork) {
  const std::string suite = folder_.Write("tiny.jsonl", TinySuite());
  for (const char* flag : {"--ledger", "--html"}) {
    const CliResult run = RunSuite(suite, {"--no-timing", flag, "/no/such/folder/file.jsonl"});
    EXPECT_EQ(run.exit_code, 2) << flag << run.err;
    EXPECT_THAT(run.err, HasSubstr("/no/such/folder/file.jsonl")) << flag;
  }
}

TEST_F(Cli, WorkloadsBeyondMemoryAreOomWithTheBytes) {
  const std::string suite = folder_.Write("big.jsonl", DecodeLine("u-1", 100'000'000));
  const CliResult run = RunSuite(suite, {"--no-timing", "--json"});
  EXPECT_EQ(run.exit_code, 1) << run.err;
  const Json one = Json::parse(run.out).at("cases").at(0);
  EXPECT_EQ(one.at("status"), "oom");
  EXPECT_THAT(one.at("reason").get<std::string>(), HasSubstr("bytes"));
}

TEST_F(Cli, InterruptedRunsEndCleanlyAndResume) {
  std::string lines;
  for (int i = 0; i < 60; ++i) lines += DecodeLine("u-" + std::to_string(i), 4);
  const std::string suite = folder_.Write("many.jsonl", lines);
  const std::string ledger = folder_.path() + "/ledger.jsonl";
  const std::vector<std::string> words = {"run", "--suite",  suite,      "--budget",
                                          "0.3", "--resume", "--ledger", ledger};
  TemporaryFolder elsewhere;  // the observer must not write over the run's own output files
  const auto stored = [&] {
    const CliResult shown = RunCli({"show", "--json", "--ledger", ledger}, elsewhere.path());
    return shown.exit_code == 0 ? Json::parse(shown.out).at("cases").size() : 0;
  };
  const CliResult first = RunCliInterrupted(words, folder_.path(), [&] { return stored() >= 2; });
  EXPECT_EQ(first.exit_code, 130) << first.err;
  EXPECT_THAT(first.err, HasSubstr("--resume"));
  EXPECT_LT(stored(), 60u);
  std::vector<std::string> rest = words;
  rest.push_back("--no-timing");
  EXPECT_EQ(Run(rest).exit_code, 0);
  const Json all = Json::parse(Run({"show", "--json", "--ledger", ledger}).out);
  std::set<std::string> uuids;
  for (const auto& one : all.at("cases")) uuids.insert(one.at("uuid"));
  EXPECT_EQ(all.at("cases").size(), 60u) << "no case lost or doubled";
  EXPECT_EQ(uuids.size(), 60u);
}

// What a shell may hand over: every answer is an exit code of the list, never a signal.
TEST_F(Cli, RandomWordsAreRefusedOrDone) {
  const std::vector<std::vector<std::string>> verbs = {{"show"},
                                                       {"report"},
                                                       {"best"},
                                                       {"diff"},
                                                       {"merge"},
                                                       {"import"},
                                                       {"dataset", "check"},
                                                       {"plugin", "list"},
                                                       {"dataset", "export"},
                                                       {"list"}};
  const std::vector<std::string> words = {
      "",          "-",      "--",    "--ledger", "last",    "--json",   std::string(5000, 'x'),
      "\xff\xfe",  "--run",  "-1",    "1e99",     "0/0",     "..",       "/",
      "/dev/null", "--html", "--cpp", "=",        "--suite", "--margin", "nan",
      "*",         "--out",  "$HOME"};
  std::uint64_t random = 20261130;
  const auto next = [&](std::size_t count) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(random >> 33) % count;
  };
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<std::string> all = verbs[next(verbs.size())];
    for (std::size_t w = next(5); w > 0; --w) all.push_back(words[next(words.size())]);
    const CliResult result = Run(all);
    EXPECT_THAT(result.exit_code, ::testing::AnyOf(0, 1, 2, 3, 4, 6))
        << ::testing::PrintToString(all) << result.err;
  }
}

TEST_F(Cli, ColoursOnlyOnTerminals) {
  const std::string suite = folder_.Write("tiny.jsonl", TinySuite());
  EXPECT_THAT(RunSuite(suite).out, Not(HasSubstr("\x1b[")));
}

TEST_F(Cli, OutputStaysWithin100Columns) {
  const std::string suite = folder_.Write("tiny.jsonl", TinySuite());
  std::istringstream lines(RunSuite(suite).out);
  for (std::string line; std::getline(lines, line);) {
    std::size_t cells = 0;  // UTF-8 continuation bytes take no column
    for (char c : line) cells += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    EXPECT_LE(cells, 100u) << line;
  }
}

TEST_F(Cli, DistinctKeepsOneWorkloadPerCall) {
  const auto prefill = [](const std::string& uuid, const std::string& attributes) {
    return "{\"definition\": \"gdn_prefill_qk4_v8_d128_k_last\", \"attributes\": {" + attributes +
           "}, \"workload\": {\"uuid\": \"" + uuid + "\", \"axes\": {\"total_seq_len\": 4, " +
           "\"num_seqs\": 1, \"len_cu_seqlens\": 2}}}\n";
  };
  const std::string suite = folder_.Write(
      "suite.jsonl", TinySuite() + DecodeLine("u-3", 1) + DecodeLine("u-4", 2) +
                         prefill("u-5", "\"step\": 1") + prefill("u-6", "\"step\": 2") +
                         prefill("u-7", "\"step\": 2, \"empty_state\": \"zero\""));
  const Json all = Json::parse(RunSuite(suite, {"--no-timing", "--json"}).out);
  EXPECT_EQ(all.at("cases").size(), 7u);
  const Json distinct = Json::parse(RunSuite(suite, {"--no-timing", "--json", "--distinct"}).out);
  std::vector<std::string> kept;
  for (const Json& one : distinct.at("cases")) kept.push_back(one.at("uuid"));
  // The operator does not read `step`, but it reads `empty_state`.
  EXPECT_THAT(kept, ::testing::ElementsAre("u-1", "u-2", "u-5", "u-7"));
}

// The checker's part is played by a script: what counts is how its findings become an exit code.
TEST_F(Cli, SanitizeRunsWorkersUnderTheToolAndReadsItsSummaries) {
  const std::string tool = folder_.Write("compute-sanitizer",
                                         "#!/bin/sh\n"
                                         "while [ \"$1\" != --print-limit ]; do\n"
                                         "  [ \"$1\" = --log-file ] && log=$2\n"
                                         "  shift\n"
                                         "done\n"
                                         "shift 2\n"
                                         "\"$@\"\n"
                                         "file=$(echo \"$log\" | sed \"s/%p/$$/\")\n"
                                         "echo \"========= ERROR SUMMARY: $FAULTS errors\" > "
                                         "\"$file\"\n");
  ASSERT_EQ(chmod(tool.c_str(), 0755), 0);
  const std::string path = std::getenv("PATH");
  setenv("PATH", (folder_.path() + ":" + path).c_str(), 1);
  const std::string suite = folder_.Write("suite.jsonl", TinySuite());
  setenv("FAULTS", "0", 1);
  const CliResult clean = RunSuite(suite, {"--sanitize", "memcheck"});
  setenv("FAULTS", "30", 1);
  const CliResult guilty = RunSuite(suite, {"--sanitize", "memcheck"});
  setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(clean.exit_code, 0) << clean.err;
  EXPECT_THAT(clean.out, HasSubstr("memcheck: 1 of 1 workers ended without a finding"));
  EXPECT_EQ(guilty.exit_code, 1) << guilty.err;
  EXPECT_THAT(guilty.out, HasSubstr("ERROR SUMMARY: 30 errors"));
  EXPECT_EQ(RunSuite(suite, {"--sanitize", "guesswork"}).exit_code, 2);
}

}  // namespace
}  // namespace assay
