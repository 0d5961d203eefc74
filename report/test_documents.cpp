// JSON and Markdown of a run, the table of operators: stable keys, deterministic text, nothing
// lost, nothing unescaped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "replay/ledger.h"
#include "report/json.h"
#include "report/markdown.h"
#include "report/operators.h"
#include "report/test_fixture.h"

namespace assay {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

TEST(RunToJson, HasStableKeysAndEveryCase) {
  const RunReport report = FakeRun();
  const Json json = Json::parse(RunToJson(report));
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["run"]["id"], report.run.id);
  ASSERT_EQ(json["cases"].size(), 13u);
  EXPECT_EQ(json["summary"]["cases"], 13);
  const Json statuses = {
      {"passed", 9}, {"incorrect", 1}, {"failed", 1}, {"oom", 1}, {"unsupported", 1}};
  EXPECT_EQ(json["summary"]["statuses"], statuses);
  const Json& gemm = json["summary"]["definitions"][1];
  EXPECT_EQ(gemm["backend"], "onednn");
  EXPECT_EQ(gemm["passed"], 3);
  EXPECT_NEAR(gemm["geomean_x_floor"], 1.1, 0.01);
  EXPECT_EQ(json["summary"]["comparisons"][0]["baseline"], "cpu");
  // What was never timed is null, not 0.
  EXPECT_TRUE(json["summary"]["definitions"][3]["median_ns"].is_null());
}

TEST(RunToJson, CasesReadBackWithEverySample) {
  const RunReport report = FakeRun();
  const Json json = Json::parse(RunToJson(report));
  for (std::size_t i = 0; i < report.cases.size(); ++i) {
    const CaseResult read = CaseResultFromJson(json["cases"][i].dump());
    EXPECT_EQ(read.uuid, report.cases[i].uuid);
    EXPECT_EQ(read.status, report.cases[i].status);
    ASSERT_EQ(read.timing.size(), report.cases[i].timing.size());
    for (std::size_t t = 0; t < read.timing.size(); ++t) {
      EXPECT_EQ(read.timing[t].samples_ns, report.cases[i].timing[t].samples_ns);
    }
  }
}

TEST(RunToJson, HostileTextAndNonFiniteNumbersStayValid) {
  RunReport report = FakeRun();
  report.run.command = report.cases[0].definition = "\xff\"\\\n</script>\x01";
  report.cases[5].correctness.outputs[0].worst.got = NAN;
  report.cases[5].correctness.outputs[0].budget_used = INFINITY;
  const Json json = Json::parse(RunToJson(report), nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json["run"]["command"], "\uFFFD\"\\\n</script>\x01");
}

TEST(RunToJson, NoCases) {
  const Json json = Json::parse(RunToJson(RunReport{}));
  EXPECT_EQ(json["summary"]["cases"], 0);
  EXPECT_TRUE(json["cases"].empty());
}

TEST(MarkdownReport, Golden) {
  EXPECT_THAT(
      MarkdownReport(FakeRun()),
      StartsWith(
          "| definition | backend | workloads | passed | median | of floor | speed-up over cpu |\n"
          "|---|---|---:|---:|---:|---:|---|\n"
          "| dense_gemm_bf16_nt_n4096_k4096 | cpu | 4 | 4 | 8.96 ms | 71.6 % | 1 |\n"
          "| dense_gemm_bf16_nt_n4096_k4096 | onednn | 4 | 3 | 849 us | 91.1 % | "
          "1.27 (range 1.27 to 1.27, n = 3) |\n"
          "| gdn_prefill_qk4_v8_d128_k_last | cpu | 2 | 2 | 34.4 ms | 8.35 % | 1 |\n"
          "| gdn_prefill_qk4_v8_d128_k_last | plugin:mine | 2 | 0 | - | - | - |\n"
          "| sparse_mla_prefill_h64_d512_k128 | cpu | 1 | 0 | - | - | - |\n"
          "\nNot passed:\n\n- incorrect numerical: dense_gemm_bf16_nt_n4096_k4096 M=256, "
          "onednn (6b0f1256). out\\[0, 17, 131\\]: got -3.40625, expected 1.23981"));
}

TEST(MarkdownReport, DoesNotDependOnTheOrderOfCases) {
  RunReport report = FakeRun();
  const std::string text = MarkdownReport(report);
  std::reverse(report.cases.begin(), report.cases.end());
  EXPECT_EQ(MarkdownReport(report), text);
}

TEST(MarkdownReport, NoMarkupFromData) {
  RunReport report = FakeRun();
  for (CaseResult& result : report.cases) result.definition += "|<b>*x*\n# `y` [z](http://w)";
  report.run.device = "<script>";
  const std::string text = MarkdownReport(report);
  EXPECT_THAT(text, Not(HasSubstr("<b>")));
  EXPECT_THAT(text, Not(HasSubstr("<script>")));
  EXPECT_THAT(text, Not(HasSubstr("\n#")));
  EXPECT_THAT(text, HasSubstr("\\|&lt;b>\\*x\\*\\\\n\\# \\`y\\` \\[z\\](http"));
}

// Plugins beside `cpu` count no workload twice; CPU backends of a run with a GPU are companions.
TEST(OperatorTable, CpuOfOneRunAndGpuOfAnother) {
  RunReport cpu, gpu;
  gpu.run.accelerator = "a GPU";
  for (const char* uuid : {"w1", "w2"}) {
    const auto add = [&](RunReport& to, const char* backend, const char* device, double us) {
      CaseResult result = FakeCase(uuid, "gemm_n1", {{"M", 1}}, backend, us * 1e3, 50e3);
      result.device = device;
      to.cases.push_back(std::move(result));
    };
    add(cpu, "cpu", "cpu", 100);
    add(cpu, "plugin:mine", "cpu", 60);
    add(gpu, "cpu", "cpu", 70);
    add(gpu, "cuda", "cuda", 100);
    add(gpu, "cublaslt", "cuda", 80);
  }
  EXPECT_THAT(
      OperatorTable({cpu, gpu}),
      ::testing::ContainsRegex(
          "ops/gemm/\\) \\| 2 of 2 \\| (99|100)[.0-9]* us, [45][0-9.]* % \\| "
          "`cublaslt` (79|80)[.0-9]* us, 6[0-9.]* % \\| 0\\.80x \\(worst 0\\.[78][0-9]x, n = 2"));
}

TEST(MarkdownReport, NoCases) { EXPECT_THAT(MarkdownReport(RunReport{}), StartsWith("No cases.")); }

TEST(OperatorTable, ComparesOurKernelWithTheBestPeerOfEachWorkload) {
  RunReport host = FakeEnvironment(), gpu = FakeEnvironment();
  gpu.run.accelerator = "One GPU";
  const auto add = [](RunReport& report, const std::string& uuid, const std::string& backend,
                      const std::string& device, double ns) {
    report.cases.push_back(FakeCase(uuid, "gemm_n1", {{"M", 1}}, backend, ns, ns / 2));
    report.cases.back().family = "gemm";
    report.cases.back().device = device;
    report.cases.back().timing = {{"cold", 0, "converged", std::vector<double>(40, ns)}};
  };
  for (const char* uuid : {"u-1", "u-2"}) add(host, uuid, "cpu", "cpu", 8e3);
  add(gpu, "u-1", "cpu", "cpu", 1);  // a companion on another CPU: not the CPU column's
  add(gpu, "u-1", "cuda", "cuda", 200e3);
  add(gpu, "u-1", "peer", "cuda", 100e3);
  add(gpu, "u-1", "other", "cuda", 150e3);
  add(gpu, "u-2", "cuda", "cuda", 100e3);
  add(gpu, "u-2", "peer", "cuda", 120e3);
  add(gpu, "u-2", "other", "cuda", 110e3);
  add(gpu, "u-3", "peer", "cuda", 1e3);  // nobody else was timed on it
  gpu.cases.back().status = Status::kIncorrect;
  const std::string table = OperatorTable({host, gpu});
  EXPECT_THAT(table, HasSubstr("| [gemm_n1](ops/gemm/) | 2 of 2 | 8.00 us, 50.0 % |"));
  EXPECT_THAT(table, HasSubstr("| `peer` 110 us, 50.0 % |"));
  // 100/200 and 110/100: geometric mean 0.74.
  EXPECT_THAT(table, HasSubstr("| 0.74x (worst 0.50x, n = 2) |"));
}

}  // namespace
}  // namespace assay
