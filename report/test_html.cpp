// The HTML page as text: offline, escaped, complete, small; test_browser.cpp opens it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "report/analysis.h"
#include "report/html.h"
#include "report/test_fixture.h"
#include "report/text.h"

namespace assay {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

const HtmlOptions kNoCharts = {.chartjs = "none"};

// The text between the tags of the data block.
std::string DataBlock(const std::string& page) {
  const std::string open = "id=\"data\">";
  const std::size_t first = page.find(open) + open.size();
  return page.substr(first, page.find("</script>", first) - first);
}

std::size_t Count(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

// Whether an attribute `name` anywhere in the page (scripts included) holds an address.
bool HoldsAddress(const std::string& page, const std::string& name) {
  for (std::size_t at = 0; (at = page.find(name, at)) != std::string::npos;) {
    at = page.find_first_not_of(" \t\n", at + name.size());
    if (at == std::string::npos || page[at] != '=') continue;
    const std::size_t value = page.find_first_not_of(" \t\n\"'`", at + 1);
    if (value == std::string::npos) return false;
    if (page.compare(value, 4, "http") == 0 || page.compare(value, 2, "//") == 0) return true;
  }
  return false;
}

void ExpectOffline(const std::string& page) {
  for (const char* name : {"src", "href", "action", "poster", "srcset"}) {
    EXPECT_FALSE(HoldsAddress(page, name)) << name;
  }
  EXPECT_THAT(page, Not(HasSubstr("@import")));
  EXPECT_THAT(page, Not(HasSubstr("<script src")));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
}

TEST(HtmlReport, TheOfflineCheckCanFail) {
  EXPECT_TRUE(HoldsAddress("<img src = \"https://example.org\">", "src"));
  EXPECT_TRUE(HoldsAddress("<a href=//example.org>", "href"));
  EXPECT_FALSE(HoldsAddress("<a href=\"#cases\">", "href"));
}

TEST(HtmlReport, IsOfflineWithAndWithoutChartJs) {
  ExpectOffline(HtmlReport(FakeRun(), kNoCharts));
  ExpectOffline(HtmlReport(FakeRun()));
}

TEST(HtmlReport, HoldsTheNumbersOfTheRun) {
  const RunReport report = FakeRun();
  const Json data = Json::parse(DataBlock(HtmlReport(report, kNoCharts)));
  const Analysis analysis = Analyse(report);
  ASSERT_EQ(data["cases"].size(), report.cases.size());
  for (std::size_t i = 0; i < analysis.cases.size(); ++i) {
    const CaseView& view = analysis.cases[i];
    const Json& row = data["cases"][i];
    EXPECT_EQ(row[0], view.result->uuid);
    EXPECT_EQ(data["strings"][row[5].get<std::size_t>()], StatusName(view.result->status));
    if (view.headline == nullptr) {
      EXPECT_EQ(row[14], -1);
      continue;
    }
    const Json& timing = row[15][row[14].get<std::size_t>()];
    EXPECT_DOUBLE_EQ(timing[1].get<double>(), view.headline->median_ns);
    EXPECT_DOUBLE_EQ(timing[2].get<double>(), view.headline->ci_low_ns);
    EXPECT_EQ(timing[5], view.headline->samples);
    EXPECT_EQ(row[19].size(), 3u);         // repeats
    EXPECT_EQ(row[19][0][4].size(), 40u);  // every sample
    EXPECT_EQ(row[20][0].size(), 2u);      // hash of an input
  }
  EXPECT_EQ(data["note"], "");
}

TEST(HtmlReport, HostileTextStaysText) {
  RunReport report = FakeRun();
  const std::string hostile = "</script><script>alert(1)</script><!--<b>&\"'\x01\xff\u202E{{js}}";
  report.run.id = report.run.command = report.run.device = hostile;
  for (CaseResult& result : report.cases) {
    result.definition += hostile;
    result.backend += hostile;
    result.uuid += hostile;
    result.reason = result.model = result.request = hostile;
    result.flags = {hostile};
    result.axes[hostile] = 1;
    for (OutputCheck& check : result.correctness.outputs) check.output = check.problem = hostile;
  }
  const std::string page = HtmlReport(report, kNoCharts);
  EXPECT_EQ(Count(page, "</script"), Count(HtmlReport(FakeRun(), kNoCharts), "</script"));
  EXPECT_EQ(Count(page, "<script>alert"), 0u);
  EXPECT_EQ(Count(page, "<!--"), 0u);
  EXPECT_EQ(Printable(page.substr(0, 2000)).find("\uFFFD\\u202e") != std::string::npos, true);
  const Json data = Json::parse(DataBlock(page));
  EXPECT_THAT(data["strings"].dump(), HasSubstr("</script><script>alert(1)</script><!--<b>&"));
  EXPECT_THAT(data["strings"].dump(), HasSubstr("{{js}}"));
}

TEST(HtmlReport, VeryLongNames) {
  RunReport report = FakeRun();
  for (CaseResult& result : report.cases) result.definition += std::string(100000, 'x');
  // Names are stored once, however many cases share them.
  EXPECT_LT(HtmlReport(report, kNoCharts).size(), 1000000u);
}

TEST(HtmlReport, ZeroCases) {
  const std::string page = HtmlReport(FakeEnvironment(), kNoCharts);
  ExpectOffline(page);
  EXPECT_EQ(Json::parse(DataBlock(page))["cases"].size(), 0u);
  EXPECT_EQ(Json::parse(DataBlock(HtmlReport(RunReport{}, kNoCharts)))["cases"].size(), 0u);
}

TEST(HtmlReport, NonFiniteNumbersSurvive) {
  RunReport report = FakeRun();
  report.cases = {report.cases[5]};
  OutputCheck& check = report.cases[0].correctness.outputs[0];
  check.worst.got = NAN;
  check.worst.expected = -INFINITY;
  check.budget_used = INFINITY;
  const Json row = Json::parse(DataBlock(HtmlReport(report, kNoCharts)))["cases"][0][12][0];
  EXPECT_EQ(row[7], "Infinity");
  EXPECT_EQ(row[10], "NaN");
  EXPECT_EQ(row[11], "-Infinity");
}

TEST(HtmlReport, ChartJsComesFromTheParameterThenTheEnvironment) {
  EXPECT_THROW(HtmlReport(FakeRun(), {.chartjs = "/no/such/chart.js"}), Error);
  ASSERT_EQ(setenv("ASSAY_CHARTJS", "/no/such/other.js", 1), 0);
  EXPECT_THROW(HtmlReport(FakeRun()), Error);
  EXPECT_NO_THROW(HtmlReport(FakeRun(), kNoCharts));
  ASSERT_EQ(setenv("ASSAY_CHARTJS", "none", 1), 0);
  EXPECT_EQ(HtmlReport(FakeRun()).size(), HtmlReport(FakeRun(), kNoCharts).size());
  unsetenv("ASSAY_CHARTJS");
  // A file that would end the script block early is refused, not inlined.
  EXPECT_THROW(HtmlReport(FakeRun(), {.chartjs = ASSAY_SOURCE_DIR "/report/page/page.html"}),
               Error);
}

TEST(HtmlReport, ManySamplesAreThinnedEvenlyAndTheNoteSaysSo) {
  RunReport report = FakeEnvironment();
  for (int i = 0; i < 100; ++i) {
    report.cases.push_back(FakeCase(std::to_string(i), "d", {{"M", i}}, "cpu", 1e6, 5e5, 1000));
  }
  HtmlOptions options = kNoCharts;
  options.max_samples = 30000;  // of 300,000
  const Json data = Json::parse(DataBlock(HtmlReport(report, options)));
  EXPECT_THAT(data["note"].get<std::string>(), HasSubstr("at most 100 samples"));
  const Json& series = data["cases"][0][19][0];
  EXPECT_EQ(series[3], 1000);
  EXPECT_EQ(series[4].size(), 100u);
  options.max_samples = 1000;
  const Json without = Json::parse(DataBlock(HtmlReport(report, options)));
  EXPECT_TRUE(without["cases"][0][19].empty());
  EXPECT_THAT(without["note"].get<std::string>(), HasSubstr("left out"));
}

TEST(HtmlReport, TenThousandCasesStaySmallAndFast) {
  const RunReport report = FakeLargeRun(10000);
  // Processor time: tests share the machine.
  const std::clock_t start = std::clock();
  const std::string page = HtmlReport(report);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_LT(page.size(), 5u << 20);
  RecordProperty("bytes", static_cast<int>(page.size()));
  RecordProperty("milliseconds", static_cast<int>(1000 * seconds));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(seconds, 1.0);
#endif
}

TEST(HtmlReport, ARunOnAGpuIsNamedAfterItAndHeldAgainstItsCeilings) {
  RunReport report = FakeRun();
  EXPECT_TRUE(Json::parse(DataBlock(HtmlReport(report, kNoCharts))).at("gpu_ceilings").is_null());
  report.run.accelerator = "NVIDIA H200, driver 580";
  report.gpu.copy_bytes = 4e12;
  const std::string page = HtmlReport(report, kNoCharts);
  EXPECT_THAT(page.substr(0, page.find("</title>")), HasSubstr("NVIDIA H200, driver 580"));
  const Json data = Json::parse(DataBlock(page));
  EXPECT_EQ(data.at("gpu_ceilings").at("copy_bytes"), 4e12);
  EXPECT_EQ(data.at("ceilings").at("copy_bytes"), 21.3e9);
}

}  // namespace
}  // namespace assay
