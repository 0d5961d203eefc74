// The terminal report: goldens of a typical run, width limits, hostile and missing data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <sstream>

#include "report/terminal.h"
#include "report/test_fixture.h"
#include "report/text.h"

namespace assay {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

void ExpectFits(const std::string& text, int width) {
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    EXPECT_LE(DisplayWidth(line), width) << line;
    EXPECT_EQ(Printable(line), line);
  }
}

std::string WithoutEscapes(std::string text) {
  for (std::size_t at = 0; (at = text.find("\x1b[", at)) != std::string::npos;) {
    text.erase(at, text.find('m', at) - at + 1);
  }
  return text;
}

// clang-format off
constexpr const char* kGolden = R"(definition / axes      backend      verdict               median  +-95 %  x floor    rows  budget
─────────────────────────────────────────────────────────────────────────────────────────────────
dense_gemm_bf16_nt_n4096_k4096   geomean x floor: cpu 1.40, onednn 1.10
  M=1                  cpu          passed captured      93.5 us   0.2 %     1.40  12.5 %    0.31
  M=1                  onednn       passed captured      73.5 us   0.3 %     1.10  12.5 %    0.31
  M=16                 cpu          passed captured      1.08 ms   0.3 %     1.40  12.5 %    0.31
  M=16                 onednn       passed captured       849 us   0.2 %     1.10  12.5 %    0.31
  M=256                cpu          passed captured      16.8 ms   0.3 %     1.40  12.5 %    0.31
  M=256                onednn       incorrect numerical        -       -        -  12.5 %    14.5
  M=4096               cpu          passed captured       269 ms   0.3 %     1.40  12.5 %    0.31
  M=4096               onednn       passed captured       211 ms   0.3 %     1.10  12.5 %    0.31
gdn_prefill_qk4_v8_d128_k_last   geomean x floor: cpu 12.0   (lcs = len_cu_seqlens, ns = num_seqs,
tsl = total_seq_len)
  lcs=2 ns=1 tsl=6     cpu          passed captured      61.0 us   0.2 %     12.0  12.5 %    0.31
  lcs=2 ns=1 tsl=6     plugin:mine  failed signal              -       -        -       -       -
  lcs=2 ns=1 tsl=8192  cpu          passed captured      68.7 ms   0.2 %     12.0  12.5 %    0.31
  lcs=2 ns=1 tsl=8192  plugin:mine  oom                        -       -        -       -       -
sparse_mla_prefill_h64_d512_k128
  M=128 Nkv=128        cpu          unsupported                -       -        -       -       -

Speed-up over cpu (above 1 = faster)
definition / axes  backend  mode       speed-up  95 % interval     time      cpu
────────────────────────────────────────────────────────────────────────────────
dense_gemm_bf16_nt_n4096_k4096   onednn: median 1.27 over 3 workloads
  M=1              onednn   cold_host      1.27   [1.26, 1.28]  73.5 us  93.5 us
  M=16             onednn   cold_host      1.27   [1.27, 1.29]   849 us  1.08 ms
  M=4096           onednn   cold_host      1.27   [1.26, 1.28]   211 ms   269 ms

Failures (3)
  incorrect numerical: dense_gemm_bf16_nt_n4096_k4096 M=256, onednn (6b0f1256)
    out[0, 17, 131]: got -3.40625, expected 1.23981, allowed +-0.0248; 1,024 elements outside
  failed signal: gdn_prefill_qk4_v8_d128_k_last len_cu_seqlens=2 num_seqs=1 total_seq_len=6,
  plugin:mine (77aa1006)
    the worker died of signal 11 (SIGSEGV) while it checked content set 0
  oom: gdn_prefill_qk4_v8_d128_k_last len_cu_seqlens=2 num_seqs=1 total_seq_len=8192, plugin:mine
  (77aa9192)
    needs 107055218688 bytes, 16642998272 are free

13 cases: 9 passed, 1 incorrect, 1 failed, 1 oom, 1 unsupported
  unsupported on cpu: family sparse_mla_prefill is not built (1 case)
)";
// clang-format on

TEST(TerminalReport, Golden) { EXPECT_EQ(TerminalReport(FakeRun()), kGolden); }

TEST(TerminalReport, ColourOnlyWhenAskedAndNothingElseChanges) {
  const std::string plain = TerminalReport(FakeRun());
  const std::string coloured = TerminalReport(FakeRun(), {.colour = true});
  EXPECT_THAT(plain, Not(HasSubstr("\x1b")));
  EXPECT_THAT(coloured, HasSubstr("\x1b[31mincorrect numerical\x1b[0m"));
  EXPECT_EQ(WithoutEscapes(coloured), plain);
}

TEST(TerminalReport, FitsNarrowTerminals) {
  for (const int width : {80, 100, 140}) ExpectFits(TerminalReport(FakeRun(), {width}), width);
}

TEST(TerminalReport, NoCases) { EXPECT_EQ(TerminalReport(FakeEnvironment()), "no cases\n"); }

TEST(TerminalReport, EveryDefinitionOfTheCaptureFits) {
  RunReport report = FakeEnvironment();
  const Axes mixed = {{"B", 64}, {"N4", 422126}, {"N8", 83743}, {"P4", 128}, {"P8", 256}};
  report.cases.push_back(FakeCase("a", "mixed_mla_decode_deepseek41_h64_d512_k8128_k4512", mixed,
                                  "torch.flash_mla_with_kvcache", 1e6, 5e5));
  report.cases.push_back(FakeFailure(report.cases.back()));
  report.cases.back().backend = "plugin:somebody_elses_kernel_v2";
  const std::string text = TerminalReport(report);
  ExpectFits(text, 100);
  EXPECT_THAT(text, HasSubstr("mixed_mla_decode_deepseek41_h64_d512_k8128_k4512"));
  for (const char* part : {"B=64", "N4=422126", "N8=83743", "P4=128", "P8=256"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(TerminalReport, LongAxisNamesBecomeInitialsWithALegend) {
  RunReport report = FakeEnvironment();
  const Axes axes = {{"total_seq_len", 131072}, {"num_seqs", 1024}, {"len_cu_seqlens", 1025}};
  report.cases.push_back(FakeCase("b", "gdn_prefill_qk4_v8_d128_k_last", axes, "cpu", 1e9, 5e8));
  const std::string text = TerminalReport(report);
  ExpectFits(text, 100);
  EXPECT_THAT(text, HasSubstr("lcs=1025 ns=1024 tsl=131072"));
  EXPECT_THAT(text, HasSubstr("(lcs = len_cu_seqlens, ns = num_seqs, tsl = total_seq_len)"));
}

TEST(TerminalReport, SameAxesAreToldApartByUuid) {
  RunReport report = FakeEnvironment();
  report.cases.push_back(FakeCase("11111111-x", "d", {{"M", 1}}, "cpu", 1e6, 5e5));
  report.cases.push_back(FakeCase("22222222-x", "d", {{"M", 1}}, "cpu", 1e6, 5e5));
  EXPECT_THAT(TerminalReport(report), HasSubstr("M=1 11111111"));
  EXPECT_THAT(TerminalReport(report), HasSubstr("M=1 22222222"));
}

TEST(TerminalReport, HostileTextIsHarmless) {
  RunReport report = FakeRun();
  for (CaseResult& result : report.cases) {
    result.definition += "\x1b[2J\xff\n" + std::string(500, 'x');
    result.backend = "b\r\t\u202E" + result.backend + std::string(200, 'y');
    result.reason = "語" + std::string(5000, 'z');
    result.sub += "\x07";
  }
  ExpectFits(TerminalReport(report), 100);
}

TEST(TerminalReport, NonFiniteValuesAreShown) {
  RunReport report = FakeEnvironment();
  CaseResult result = FakeFailure(FakeCase("a", "d", {{"M", 1}}, "cpu", 1e6, 5e5));
  result.correctness.outputs[0].worst.got = NAN;
  result.correctness.outputs[0].budget_used = INFINITY;
  report.cases = {result};
  EXPECT_THAT(TerminalReport(report), HasSubstr("got nan, expected 1.23981"));
}

TEST(TerminalReport, NoisyTimingsAreMarked) {
  RunReport report = FakeEnvironment();
  report.cases = {FakeCase("a", "d", {{"M", 1}}, "cpu", 1e6, 5e5)};
  report.cases[0].timing[1].stop = "time";
  EXPECT_THAT(TerminalReport(report), HasSubstr("% noisy"));
  EXPECT_THAT(TerminalReport(report), HasSubstr("1 passed; 1 noisy"));
}

TEST(TerminalReport, FewSamplesHaveNoInterval) {
  RunReport report = FakeEnvironment();
  report.cases = {FakeCase("a", "d", {{"M", 1}}, "cpu", 1e6, 5e5)};
  report.cases[0].timing = {{"cold_host", 0, "time", {1e6}}};
  EXPECT_THAT(TerminalReport(report), HasSubstr("n = 1 noisy"));
  EXPECT_THAT(CaseDetails(report.cases[0]), Not(HasSubstr("..")));
  EXPECT_FALSE(Analyse(report).cases[0].half_width());
}

TEST(TerminalReport, TimesBelowTheFloorAreMarked) {
  RunReport report = FakeEnvironment();
  report.cases = {FakeCase("a", "d", {{"M", 1}}, "cpu", 4e5, 1e6)};
  EXPECT_THAT(TerminalReport(report, {.colour = true}), HasSubstr("\x1b[33m   0.40\x1b[0m"));
}

TEST(Comparison, NeverAcrossModesAndNeverWithFailures) {
  RunReport report = FakeEnvironment();
  report.cases = {FakeCase("a", "d", {{"M", 1}}, "cpu", 2e6, 5e5),
                  FakeCase("a", "d", {{"M", 1}}, "peer", 1e6, 5e5)};
  Analysis analysis = Analyse(report);
  ASSERT_EQ(analysis.comparisons.size(), 1u);
  const Comparison& comparison = analysis.comparisons[0].workloads[0];
  EXPECT_NEAR(comparison.speedup, 2, 0.02);
  ASSERT_TRUE(comparison.interval);
  EXPECT_LT(comparison.interval->low, comparison.speedup);
  EXPECT_GT(comparison.interval->high, comparison.speedup);
  EXPECT_EQ(analysis.baseline, "cpu");
  EXPECT_NEAR(Analyse(report, "peer").comparisons[0].workloads[0].speedup, 0.5, 0.01);

  report.cases[1].status = Status::kSuspicious;
  EXPECT_TRUE(Analyse(report).comparisons.empty());
  report.cases[1].status = Status::kPassed;
  for (TimingSeries& series : report.cases[1].timing) series.mode = "warm_host";
  EXPECT_TRUE(Analyse(report).comparisons.empty());
}

TEST(Comparison, IntervalCoversTheSpreadOfRepeats) {
  RunReport report = FakeEnvironment();
  report.cases = {FakeCase("a", "d", {{"M", 1}}, "cpu", 2e6, 5e5),
                  FakeCase("a", "d", {{"M", 1}}, "peer", 1e6, 5e5)};
  // One process of three ran 30 % slower: the interval must admit it.
  for (double& sample : report.cases[1].timing[2].samples_ns) sample *= 1.3;
  const Comparison comparison = Analyse(report).comparisons[0].workloads[0];
  ASSERT_TRUE(comparison.interval);
  EXPECT_LT(comparison.interval->low, 2 / 1.29);
}

TEST(Analysis, CountsAndMeans) {
  const Analysis analysis = Analyse(FakeRun());
  EXPECT_EQ(analysis.cases.size(), 13u);
  ASSERT_EQ(analysis.definitions.size(), 5u);
  const DefinitionSummary& onednn = analysis.definitions[1];
  EXPECT_EQ(onednn.backend, "onednn");
  EXPECT_EQ(onednn.cases, 4);
  EXPECT_EQ(onednn.passed, 3);
  EXPECT_EQ(onednn.failures, 1);
  EXPECT_EQ(onednn.with_floor, 3);
  EXPECT_NEAR(onednn.geomean_x_floor, 1.1, 0.01);
}

TEST(Analysis, GeneratedAndStoredInputsShareNoMean) {
  RunReport report = FakeEnvironment();
  report.cases = {FakeCase("a", "d", {{"M", 1}}, "cpu", 2e6, 5e5),
                  FakeCase("b", "d", {{"M", 2}}, "cpu", 1e6, 5e5)};
  report.cases[1].input_source = "blob";
  const Analysis analysis = Analyse(report);
  EXPECT_TRUE(analysis.mixed_sources);
  EXPECT_EQ(analysis.definitions.size(), 2u);
}

TEST(CaseDetails, ShowsChecksAndTimings) {
  const std::string text = CaseDetails(FakeRun().cases[0]);
  ExpectFits(text, 100);
  EXPECT_THAT(text, HasSubstr("512 of 4,096"));
  EXPECT_THAT(text, HasSubstr("cold_host"));
  EXPECT_THAT(CaseDetails(FakeRun().cases[5]), HasSubstr("out[0, 17, 131]: got -3.40625"));
  ExpectFits(CaseDetails(CaseResult{}), 100);
}

TEST(TerminalReport, TenThousandCasesInASecond) {
  RunReport report = FakeEnvironment();
  for (int i = 0; i < 10000; ++i) {
    report.cases.push_back(FakeCase(std::to_string(100000000 + i),
                                    "definition_" + std::to_string(i % 21), {{"M", i}},
                                    i % 2 == 0 ? "cpu" : "peer", 1e6, 5e5));
  }
  // Processor time: tests share the machine.
  const std::clock_t start = std::clock();
  const std::string text = TerminalReport(report);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_THAT(text, HasSubstr("10,000 cases"));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(seconds, 1.0);
#endif
  RecordProperty("milliseconds", static_cast<int>(1000 * seconds));
}

}  // namespace
}  // namespace assay
