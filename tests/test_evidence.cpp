// The tables under results/ are what the program makes of the ledgers beside them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/file.h"
#include "tests/cli_process.h"

namespace assay {
namespace {

using ::testing::HasSubstr;

struct Table {
  const char* ledger;
  const char* run;  // a unique prefix
  const char* markdown;
};

constexpr Table kTables[] = {
    {"cpu-xeon-16t/runs.jsonl", "2026-11-30T13:36", "cpu-xeon-16t/smoke.md"},
    {"cpu-xeon-16t/runs.jsonl", "2026-11-30T13:39", "cpu-xeon-16t/gdn.md"},
    {"cpu-epyc-2t/serving.jsonl", "2026-11-30T16:35", "cpu-epyc-2t/serving.md"},
};

TEST(Evidence, RegeneratingChangesNothing) {
  const std::string results = ASSAY_SOURCE_DIR "/results/";
  TemporaryFolder folder;
  for (const Table& table : kTables) {
    const CliResult report =
        RunCli({"report", table.run, "--ledger", results + table.ledger, "--markdown", "-"},
               folder.path());
    EXPECT_EQ(report.exit_code, 0) << report.err;
    EXPECT_EQ(report.out, ReadFile(results + table.markdown)) << table.markdown;
  }
}

// Of a definition that several of them have, README.md shows the last.
constexpr const char* kInTheReadme[] = {"attention", "serving",    "gdn",
                                        "prefix",    "worldmodel", "gemm"};

// README.md and docs/results.md hold what the program prints, between sentences of their own.
TEST(Evidence, TheReadmesTableIsThePrograms) {
  const std::string results = ASSAY_SOURCE_DIR "/results/";
  TemporaryFolder folder;
  std::string ledgers = results + "cpu-epyc-2t/serving.jsonl";
  for (const char* name : kInTheReadme) ledgers += "," + results + "h200/" + name + ".jsonl";
  const CliResult table = RunCli({"report", "--operators", ledgers}, folder.path());
  ASSERT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(ReadFile(ASSAY_SOURCE_DIR "/README.md"), HasSubstr(table.out));
}

TEST(Evidence, ThePageOfResultsIsThePrograms) {
  const std::string results = ASSAY_SOURCE_DIR "/results/";
  const std::string page = ReadFile(ASSAY_SOURCE_DIR "/docs/results.md");
  TemporaryFolder folder;
  std::vector<std::string> ledgers = {"cpu-epyc-2t/serving.jsonl"};
  for (const char* name : kInTheReadme) ledgers.push_back(std::string("h200/") + name + ".jsonl");
  for (const std::string& ledger : ledgers) {
    const CliResult report =
        RunCli({"report", "--ledger", results + ledger, "--markdown", "-"}, folder.path());
    ASSERT_EQ(report.exit_code, 0) << report.err;
    EXPECT_THAT(page, HasSubstr(report.out)) << ledger;
  }
}

}  // namespace
}  // namespace assay
