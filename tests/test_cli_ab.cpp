// `assay ab` end to end: pages, files and exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "io/file.h"
#include "serving/simulate.h"
#include "tests/cli_process.h"

namespace assay {
namespace {

using ::testing::HasSubstr;

// Two arms as record files, with facts that let every configuration gate pass.
class CliAb : public ::testing::Test {
 protected:
  void SetUp() override {
    serving::SimulationOptions o;
    o.clusters = 30;
    o.noise_sd = 0.02;
    o.stall_share = 0;
    o.speedup = 1.3;
    const serving::Round round = serving::SimulateRound(o, 3);
    off_ = Write("off.jsonl", round.off, "old");
    on_ = Write("on.jsonl", round.on, "new");
    other_ = Write("other.jsonl", round.on, "new", R"(,"tp":8)");
  }

  std::string Write(const std::string& name, const serving::Run& run, const std::string& kernel,
                    const std::string& more = R"(,"tp":4)") {
    std::string text =
        R"({"format":"assay-serving-records","version":1,"facts":{"model":"m","kernel":")" +
        kernel + "\"" + more + "}}\n";
    for (const serving::Request& r : run.requests) {
      text += R"({"conversation":")" + run.names[static_cast<std::size_t>(r.conversation)] +
              R"(","turn":)" + std::to_string(r.turn) + R"(,"start_ns":)" +
              std::to_string(r.start_ns) + R"(,"ttft_s":)" + std::to_string(r.ttft_s) +
              R"(,"e2e_s":)" + std::to_string(r.e2e_s) + R"(,"isl":)" + std::to_string(r.isl) +
              R"(,"osl":)" + std::to_string(r.osl) + "}\n";
    }
    return folder_.Write(name, text);
  }
  CliResult Ab(std::vector<std::string> words) {
    words.insert(words.begin(), "ab");
    return RunCli(words, folder_.path());
  }

  TemporaryFolder folder_;
  std::string off_, on_, other_;
};

TEST_F(CliAb, CompareWritesEveryPage) {
  const CliResult result =
      Ab({"compare", "--off", off_, "--on", on_, "--treatment", "kernel=new", "--resamples", "500",
          "--html", "page.html", "--json", "out.json", "--markdown", "comment.md"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ::testing::StartsWith("FASTER"));
  EXPECT_THAT(ReadFile(folder_.path() + "/page.html"), HasSubstr("assay ab compare"));
  EXPECT_THAT(ReadFile(folder_.path() + "/out.json"), HasSubstr("\"tool\": \"assay ab\""));
  EXPECT_THAT(ReadFile(folder_.path() + "/comment.md"), HasSubstr("FASTER"));
}

TEST_F(CliAb, ExitCodes) {
  const auto compare = [&](const std::string& off, const std::string& on) {
    return Ab({"compare", "--off", off, "--on", on, "--treatment", "kernel", "--resamples", "300"});
  };
  EXPECT_EQ(compare(off_, off_).exit_code, 0);
  EXPECT_EQ(compare(on_, off_).exit_code, 1);
  EXPECT_EQ(compare(off_, other_).exit_code, 6);
  const CliResult missing = compare(off_, folder_.path() + "/none.jsonl");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("none.jsonl does not exist"));
  const std::string aggregate = folder_.Write(
      "a.json", R"({"completed":10,"mean_ttft_ms":5.0,"median_ttft_ms":4.0,"duration":2.0})");
  EXPECT_EQ(compare(aggregate, aggregate).exit_code, 5);
  EXPECT_EQ(Ab({"compare", "--off", off_, "--on", on_, "--metric", "fast"}).exit_code, 2);
  EXPECT_EQ(Ab({"compare", "--off", off_, "--on", on_, "--margin", "x"}).exit_code, 2);
  EXPECT_EQ(Ab({"compare", "--off", off_}).exit_code, 2);
}

TEST_F(CliAb, InspectPlanSimulateCollect) {
  const CliResult inspect = Ab({"inspect", off_});
  EXPECT_EQ(inspect.exit_code, 0) << inspect.err;
  EXPECT_THAT(inspect.out, HasSubstr("evidence L3"));
  const CliResult plan = Ab({"plan", "--off", off_, "--on", on_, "--effect", "5%"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("turns per arm"));
  const CliResult simulate = Ab({"simulate", "--off", off_, "--on", on_, "--effect", "20%",
                                 "--trials", "20", "--resamples", "200"});
  EXPECT_EQ(simulate.exit_code, 0) << simulate.err;
  EXPECT_THAT(simulate.out, HasSubstr("excludes 1"));
  EXPECT_EQ(Ab({"collect", "--url", "http://127.0.0.1:1"}).exit_code, 2);
}

}  // namespace
}  // namespace assay
