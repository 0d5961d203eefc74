// Opens the page in headless Chromium (skipped where there is none): no console message, filter,
// sorting, keyboard and details work, and the numbers are those of the run. The page tests itself
// when its address ends in ?selftest, see page/selftest.js.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "report/analysis.h"
#include "report/html.h"
#include "report/test_fixture.h"

namespace assay {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string Output(const std::string& command) {
  std::string out;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return out;
  char buffer[1 << 16];
  for (std::size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
  pclose(pipe);
  return out;
}

std::string FindBrowser() {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
    std::string path = Output(std::string("command -v ") + name);
    if (path.empty()) continue;
    path.erase(path.find_last_not_of('\n') + 1);
    return path;
  }
  return "";
}

void ReplaceAll(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

class Browser : public ::testing::Test {
 protected:
  void SetUp() override {
    browser_ = FindBrowser();
    if (browser_.empty()) GTEST_SKIP() << "no chromium on this machine";
    std::string name = (fs::temp_directory_path() / "assay-report-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }

  void TearDown() override {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }

  // The result of the page's self-test; null when the page never got that far.
  Json SelfTest(const std::string& page) {
    std::ofstream(folder_ / "report.html", std::ios::binary) << page;
    const std::string log = (folder_ / "log").string();
    std::string dom =
        Output("timeout 100 " + browser_ +
               " --headless --no-sandbox --disable-gpu --disable-dev-shm-usage" +
               " --user-data-dir=" + (folder_ / "profile").string() +
               " --enable-logging=stderr --virtual-time-budget=20000 --dump-dom 'file://" +
               (folder_ / "report.html").string() + "?selftest' 2>" + log);
    std::ifstream lines(log);
    for (std::string line; std::getline(lines, line);) {
      EXPECT_EQ(line.find("CONSOLE"), std::string::npos) << line;
    }
    const std::string open = "<pre id=\"selftest\">";
    const std::size_t first = dom.rfind(open);
    if (first == std::string::npos || dom.find("</pre>", first) == std::string::npos)
      return nullptr;
    std::string text = dom.substr(first + open.size());
    text.resize(text.find("</pre>"));
    ReplaceAll(text, "&lt;", "<");
    ReplaceAll(text, "&gt;", ">");
    ReplaceAll(text, "&amp;", "&");
    return Json::parse(text, nullptr, false);
  }

  static void ExpectGood(const Json& result) {
    ASSERT_TRUE(result.is_object()) << "the page did not finish its self-test";
    EXPECT_TRUE(result["ok"]) << result["failed"].dump(2);
  }

  std::string browser_;
  fs::path folder_;
};

TEST_F(Browser, FilterSortKeyboardAndNumbers) {
  const RunReport report = FakeRun();
  const std::string page = HtmlReport(report);
  const Json result = SelfTest(page);
  ExpectGood(result);
  EXPECT_GE(result["checks"], 30);
  if (page.find("Chart.js v3") != std::string::npos) {
    EXPECT_EQ(result["chart"], "chart.js");
    EXPECT_EQ(result["canvases"], 1);
  }
  const Analysis analysis = Analyse(report);
  for (std::size_t i = 0; i < analysis.cases.size(); ++i) {
    const TimingSummary* timing = analysis.cases[i].headline;
    const Json& median = result["medians"][i];
    ASSERT_EQ(median.is_null(), timing == nullptr);
    if (timing == nullptr) continue;
    EXPECT_DOUBLE_EQ(median.get<double>(), timing->median_ns);
  }
}

TEST_F(Browser, AnotherRunIsComparedAndEngineErrorsAreShown) {
  RunReport here = FakeRun(), there = FakeRun();
  there.run.id = "the-other-run";
  there.run.threads = here.run.threads + 1;
  std::size_t slower = 0, broken = 0;
  for (CaseResult& result : here.cases) {
    result.engine = {{"out", 0.5, 0.25, 0.01, 3, 100}};
    if (result.status != Status::kPassed || result.timing.empty()) continue;
    if (broken == 0) {
      result = FakeFailure(result);
      ++broken;
      continue;
    }
    ++slower;
    for (TimingSeries& series : result.timing) {
      for (double& ns : series.samples_ns) ns *= 2;
    }
  }
  ASSERT_GE(slower, 1u);
  const Json result = SelfTest(HtmlReport(here, {.chartjs = "none", .against = &there}));
  ExpectGood(result);
  EXPECT_EQ(result["changes"], slower + broken);
  EXPECT_EQ(result["differences"], 1);
}

TEST_F(Browser, HostileTextAndPlainSvg) {
  RunReport report = FakeRun();
  const std::string hostile = "</script><img src=x onerror=alert(1)><!--\x01\xff\u202E'\"&lt;";
  report.run.id = report.run.command = hostile;
  for (CaseResult& result : report.cases) {
    result.definition += hostile;
    result.backend += hostile;
    result.reason = result.model = hostile;
    result.axes[hostile] = 1;
  }
  const Json result = SelfTest(HtmlReport(report, {.chartjs = "none"}));
  ExpectGood(result);
  EXPECT_EQ(result["chart"], "svg");
  EXPECT_EQ(result["plots"], 1);
}

TEST_F(Browser, NoCases) {
  const Json result = SelfTest(HtmlReport(RunReport{}, {.chartjs = "none"}));
  ExpectGood(result);
  EXPECT_EQ(result["plots"], 0);
}

TEST_F(Browser, TenThousandCasesStayFluid) {
  const Json result = SelfTest(HtmlReport(FakeLargeRun(10000)));
  ExpectGood(result);
  // Some forty filters, sorts and redraws of the whole table, with room for a slow machine.
  EXPECT_LT(result["milliseconds"], 20000) << result.dump();
  RecordProperty("milliseconds", result["milliseconds"].get<int>());
}

}  // namespace
}  // namespace assay
