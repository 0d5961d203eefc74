// Foreign replays and Nsight Compute tables: the real files, and what must not be believed.
#include "timeline/replays.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "timeline/read.h"

namespace assay::timeline {
namespace {

const std::string kData = std::string(ASSAY_SOURCE_DIR) + "/../shared/data/";

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Replays, RealFileKeepsFailuresAndAuditStates) {
  const std::string path = kData + "worldmodel_attention_replays.json";
  const std::string text = Content(path);
  if (text.empty()) GTEST_SKIP() << "no " << path;
  const std::vector<ForeignReplay> replays = ParseReplays(text, path);
  ASSERT_EQ(replays.size(), 1116u);
  std::map<std::string, int> states;
  for (const ForeignReplay& r : replays) {
    ++states[r.status + "/" + r.audit];
    if (r.status == "oom") {
      EXPECT_EQ(r.p50_ms(), 0);
      EXPECT_FALSE(r.gate().has_value());
      EXPECT_NE(r.error.find("out of memory"), std::string::npos);
      EXPECT_FALSE(Speedup(r, replays[0]).has_value());
    }
  }
  EXPECT_EQ(states, (std::map<std::string, int>{{"measured/verified", 1040},
                                                {"measured/pending", 72},
                                                {"oom/recorded_failure", 4}}));
  const std::vector<ReplayRow> rows = ReplayMatrix(replays);
  EXPECT_EQ(rows.size(), 162u);
  for (const ReplayRow& row : rows) {
    ASSERT_FALSE(row.backends.empty());
    for (std::size_t k = 1; k < row.backends.size(); ++k) {
      const double before = row.backends[k - 1]->p50_ms(), here = row.backends[k]->p50_ms();
      EXPECT_TRUE(here == 0 || (before > 0 && before <= here));
    }
    if (row.winner) {
      EXPECT_EQ(row.winner->audit, "verified");
      EXPECT_EQ(row.winner->gate(), true);
    }
  }
  // First entry by hand: 40 heads x 10,560 x 512 x 128, median of 0.326816, 0.324512, ... ms.
  EXPECT_NEAR(replays[0].tflops(),
              4.0 * 40 * 10560 * 512 * 128 / (replays[0].p50_ms() * 1e-3) / 1e12, 1e-9);
  const std::string table = ReplayText(replays, "vllm_fa2", 160, false);
  EXPECT_NE(table.find("sdpa_math oom"), std::string::npos);
  EXPECT_NE(table.find("1116 replays: 1112 measured, 4 out of memory"), std::string::npos) << table;
  const std::vector<ForeignRun> runs = ReplayRuns(replays, path);
  std::size_t cases = 0, oom = 0;
  for (const ForeignRun& run : runs) {
    cases += run.cases.size();
    for (const CaseResult& c : run.cases) {
      oom += c.status == Status::kOom;
      EXPECT_EQ(c.uuid.size(), 36u);
    }
  }
  EXPECT_EQ(runs.size(), 12u);
  EXPECT_EQ(cases, 1116u);
  EXPECT_EQ(oom, 4u);
}

TEST(Replays, NoSpeedupWithoutATrueGate) {
  ForeignReplay fast, slow;
  fast.repeats = {{1, 1, 1, 1, 300}};
  slow.repeats = {{3, 3, 3, 3, 300}};
  EXPECT_FALSE(Speedup(fast, slow).has_value());
  const ErrorFigures good{0, 0, 0, true, true}, bad{0, 0, 0, true, false};
  fast.reference = fast.oracle = slow.reference = slow.oracle = good;
  EXPECT_EQ(Speedup(fast, slow), 3.0);
  fast.oracle = bad;
  EXPECT_FALSE(Speedup(fast, slow).has_value());
  EXPECT_EQ(fast.gate(), false);
}

TEST(Replays, BadEntriesAreNamed) {
  try {
    ParseReplays(R"([{"configuration": "c"}])", "r.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).rfind("r.json, entry 0: ", 0), 0u) << error.what();
  }
  EXPECT_THROW(ParseReplays("{", "r.json"), Error);
}

TEST(Ncu, RealDetailsPage) {
  const std::string path = kData + "traces/csv/ncu_details_t4_copy_blocked.csv.gz";
  if (!std::ifstream(path)) GTEST_SKIP() << "no " << path;
  const std::vector<NcuLaunch> launches = ParseNcuCsv(ReadWholeFile(path), path);
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_NEAR(launches[0].Find("DRAM Frequency")->value, 4963609951.19, 1e-3);
  EXPECT_EQ(launches[0].Find("Elapsed Cycles")->value, 12319469);
  EXPECT_TRUE(NcuProblems(launches[0]).empty());
  const ForeignRun run = NcuRun(launches, path);
  ASSERT_EQ(run.cases.size(), 1u);
  EXPECT_EQ(run.cases[0].status, Status::kPendingAudit);
  EXPECT_FALSE(run.cases[0].timed());
}

TEST(Ncu, LocalesTextLinesAndRawPages) {
  const std::vector<NcuLaunch> european = ParseNcuCsv(
      "==PROF== Connected\n\"ID\",\"Kernel Name\",\"Section Name\",\"Metric Name\",\"Metric "
      "Unit\",\"Metric Value\"\n\"0\",\"k\",\"s\",\"Cycles\",\"cycle\",\"12.319.469\"\n"
      "\"0\",\"k\",\"s\",\"Rate\",\"Gbyte/s\",\"1.234,5\"\n",
      "e.csv");
  ASSERT_EQ(european.size(), 1u);
  EXPECT_EQ(european[0].Find("Cycles")->value, 12319469);
  EXPECT_EQ(european[0].Find("Rate")->value, 1234.5);
  const std::vector<NcuLaunch> raw = ParseNcuCsv(
      "\"ID\",\"Kernel Name\",\"dram__bytes.sum.per_second\",\"dram__bytes.avg.per_second\"\n"
      "\"\",\"\",\"Gbyte/s\",\"Gbyte/s\"\n\"0\",\"a\",\"2.322581\",\"0.048387\"\n"
      "\"1\",\"b\",\"100\",\"3\"\n",
      "r.csv");
  ASSERT_EQ(raw.size(), 2u);
  EXPECT_TRUE(NcuProblems(raw[0]).empty());  // 48 memory units of an H200
  EXPECT_EQ(NcuProblems(raw[1]).size(), 1u);
  EXPECT_THROW(ParseNcuCsv("nothing", "n.csv"), Error);
}

TEST(Ncu, RealCountersHaveFortyEightMemoryUnits) {
  const std::string text = Content(kData + "worldmodel_ncu_counters.json");
  if (text.empty()) GTEST_SKIP() << "no counters in " << kData;
  for (const nlohmann::json& kernel : nlohmann::json::parse(text)) {
    NcuLaunch launch;
    for (const auto& [name, metric] : kernel["metrics"].items()) {
      const auto value = NcuNumber(metric["value"].get<std::string>(), false);
      if (value) launch.metrics.push_back({"", name, metric["unit"].get<std::string>(), *value});
    }
    EXPECT_EQ(NcuProblems(launch), std::vector<std::string>{});
    const NcuMetric* sum = launch.Find("dram__bytes.sum.per_second");
    const NcuMetric* avg = launch.Find("dram__bytes.avg.per_second");
    if (sum && avg) {
      EXPECT_NEAR(sum->value / avg->value, 48, 0.1);
    }
  }
}

}  // namespace
}  // namespace assay::timeline
