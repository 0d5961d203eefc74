// What people and machines read: line and column limits, stable JSON, one offline HTML file that a
// browser renders.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "report/text.h"
#include "serving/pages.h"
#include "serving/readers.h"
#include "serving/simulate.h"

namespace assay::serving {
namespace {

struct Fixture {
  CompareInput input;
  Comparison comparison;
};

Fixture& Rich() {
  static Fixture fixture = [] {
    Fixture f;
    SimulationOptions o;
    o.speedup = 1.1;
    o.extra_easy_turns = 2;
    for (std::uint64_t seed : {1, 2, 3}) {
      f.input.rounds.push_back(SimulateRound(o, seed));
      f.input.rounds.back().swapped = seed == 2;
    }
    f.input.rounds[0].on.label = "on <script>alert(1)</script>";
    f.input.control = SimulateRound({}, 9);
    AccuracyRun accuracy;
    for (int i = 0; i < 50; ++i)
      accuracy.problems.push_back({std::to_string(i), {i % 3 == 0 ? 0. : 1.}});
    f.input.accuracy_off = f.input.accuracy_on = accuracy;
    CompareOptions options;
    options.treatment["kernel"] = "new";
    options.resamples = 500;
    f.comparison = Compare(f.input, options);
    return f;
  }();
  return fixture;
}

void ExpectFits(const std::string& page) {
  std::istringstream stream(page);
  int lines = 0;
  for (std::string line; std::getline(stream, line); ++lines) {
    EXPECT_LE(DisplayWidth(line), 100) << line;
  }
  EXPECT_LE(lines, 40) << page;
}

TEST(Pages, TextFitsFortyLinesOfAHundredColumns) {
  const std::string page = TextPage(Rich().comparison);
  ExpectFits(page);
  for (const char* part : {"gates", "p90:e2e_norm_intvty", "both", "all", "on only", "shift",
                           "throughput", "accuracy", "rounds", "crossover", "stationarity"}) {
    EXPECT_THAT(page, testing::HasSubstr(part));
  }
}

TEST(Pages, EveryComparisonFits) {
  const std::string data = std::string(ASSAY_SOURCE_DIR) + "/../shared/data/agentx/";
  if (!std::filesystem::exists(data)) GTEST_SKIP() << "../shared/data is absent";
  for (const char* point : {"c1", "c4", "c16"}) {
    CompareInput input;
    input.rounds.push_back(
        {LoadRun(data + point + "_off.json"), LoadRun(data + point + "_on.json"), false});
    const std::string page = TextPage(Compare(input, {}));
    ExpectFits(page);
    EXPECT_THAT(page, testing::HasSubstr("POINT-ESTIMATE ONLY"));
    EXPECT_THAT(page, testing::HasSubstr("throughput: total tok/s/GPU x1."));
    EXPECT_THAT(page, testing::HasSubstr("missing:"));
  }
}

TEST(Pages, JsonIsStable) {
  const std::string text = JsonPage(Rich().comparison);
  EXPECT_EQ(text, JsonPage(Rich().comparison));
  const auto j = nlohmann::ordered_json::parse(text);
  std::vector<std::string> keys;
  for (const auto& [key, value] : j.items()) keys.push_back(key);
  EXPECT_THAT(keys, testing::ElementsAre("tool", "version", "inputs", "evidence_level", "seed",
                                         "resamples", "margin", "treatment", "gates", "populations",
                                         "metrics", "point_estimates", "shift", "factorisation",
                                         "identities", "control", "floor", "rounds", "stationarity",
                                         "accuracy", "checklist", "verdict", "caveats", "missing"));
  EXPECT_EQ(j.at("gates").size(), 24u);
  EXPECT_EQ(j.at("metrics")[0].at("name"), "p90:e2e_norm_intvty");
  EXPECT_EQ(j.at("rounds").at("rounds").size(), 3u);
}

TEST(Pages, Markdown) {
  const std::string text = MarkdownPage(Rich().comparison);
  EXPECT_THAT(text, testing::StartsWith("### Serving A/B"));
  EXPECT_THAT(text, testing::HasSubstr("| p90:e2e_norm_intvty | both |"));
}

TEST(Pages, Inspect) {
  const std::string page = InspectPage(Rich().input.rounds[0].off);
  EXPECT_THAT(page, testing::HasSubstr("evidence L3"));
  EXPECT_THAT(page, testing::HasSubstr("requests in flight"));
}

TEST(Pages, HtmlIsOneOfflineFile) {
  const std::string html =
      HtmlPage(Rich().comparison, Rich().input, "assay ab compare --off a --on b");
  for (const char* id : {"verdict", "gates", "configuration", "metrics", "ledger", "checklist"}) {
    EXPECT_THAT(html, testing::HasSubstr(std::string("id=\"") + id + "\""));
  }
  EXPECT_THAT(html, testing::Not(testing::HasSubstr("<script")));
  EXPECT_THAT(html, testing::Not(testing::HasSubstr("http")));
  EXPECT_THAT(html, testing::Not(testing::HasSubstr("nan\"")));
  EXPECT_LT(html.size(), std::size_t{3} << 20);
}

std::string Output(const std::string& command) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return text;
  std::array<char, 4096> block{};
  while (const std::size_t got = std::fread(block.data(), 1, block.size(), pipe))
    text.append(block.data(), got);
  pclose(pipe);
  return text;
}

TEST(Pages, BrowserRendersTheFile) {
  if (std::system("command -v chromium >/dev/null 2>&1") != 0) GTEST_SKIP() << "no chromium here";
  const auto folder =
      std::filesystem::temp_directory_path() / ("assay_ab_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string file = (folder / "ab.html").string();
  std::ofstream(file) << HtmlPage(Rich().comparison, Rich().input, "assay ab compare");
  const std::string base =
      "timeout 60 chromium --headless --no-sandbox --disable-gpu --user-data-dir=" +
      (folder / "profile").string() + " ";
  const std::string dom = Output(base + "--dump-dom file://" + file + " 2>/dev/null");
  std::size_t plots = 0;
  for (std::size_t at = dom.find("<svg"); at != std::string::npos; at = dom.find("<svg", at + 1))
    ++plots;
  EXPECT_GE(plots, 10u);
  EXPECT_THAT(dom, testing::HasSubstr("id=\"checklist\""));
  Output(base + "--window-size=1240,5200 --screenshot=" + (folder / "ab.png").string() +
         " file://" + file + " 2>/dev/null");
  ASSERT_TRUE(std::filesystem::exists(folder / "ab.png"));
  EXPECT_GT(std::filesystem::file_size(folder / "ab.png"), 50000u);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace assay::serving
