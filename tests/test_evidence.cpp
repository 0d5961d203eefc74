// The tables under results/ are what the program makes of the ledgers beside them.
#include <gtest/gtest.h>

#include "io/file.h"
#include "tests/cli_process.h"

namespace assay {
namespace {

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

}  // namespace
}  // namespace assay
