// Plugins as an outside user meets them: installed header, own CMake file, shared library, verdict.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "io/file.h"
#include "tests/cli_process.h"

namespace assay {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

class Plugin : public ::testing::Test {
 protected:
  CliResult Run(const std::vector<std::string>& words) { return RunCli(words, folder_.path()); }

  // Builds the CMake project in `source` against an installed copy of the header.
  std::string Build(const std::string& source, const std::string& library) {
    const std::string prefix = folder_.path() + "/prefix", build = folder_.path() + "/build";
    const std::string cmake = ASSAY_CMAKE;
    Shell(cmake + " --install " ASSAY_BUILD_DIR " --component plugin --prefix " + prefix);
    Shell(cmake + " -S " + source + " -B " + build + " -DCMAKE_PREFIX_PATH=" + prefix);
    Shell(cmake + " --build " + build);
    return build + "/" + library;
  }
  void Shell(const std::string& command) {
    const std::string log = folder_.path() + "/log";
    EXPECT_EQ(std::system((command + " >" + log + " 2>&1").c_str()), 0) << command << "\n"
                                                                        << ReadFile(log);
  }
  std::string Suite() {
    return folder_.Write("suite.jsonl",
                         "{\"definition\": \"gdn_decode_qk4_v8_d128_k_last\", \"workload\": "
                         "{\"uuid\": \"u-1\", \"axes\": {\"batch_size\": 2}}}\n"
                         "{\"definition\": \"dense_gemm_bf16_nt_n4096_k4096\", \"workload\": "
                         "{\"uuid\": \"u-2\", \"axes\": {\"M\": 4096}}}\n");
  }
  Json Cases(const std::vector<std::string>& words) {
    const CliResult run = Run(words);
    EXPECT_EQ(run.err, "");
    return Json::parse(run.out).at("cases");
  }
  TemporaryFolder folder_;
};

TEST_F(Plugin, TheExampleBuildsOutsideAndPasses) {
  const std::string library = Build(ASSAY_SOURCE_DIR "/examples/plugin", "gdn_decode_example.so");
  EXPECT_THAT(Run({"plugin", "list", library}).out, HasSubstr("plain loops, one thread"));
  // Only the plugin's kernel runs, and only where it computes something.
  const Json cases =
      Cases({"run", "--suite", Suite(), "--plugin", library, "--json", "--budget", "0.2"});
  ASSERT_EQ(cases.size(), 1u);
  EXPECT_EQ(cases[0].at("backend").at("name"), "example");
  EXPECT_EQ(cases[0].at("status"), "passed") << cases[0].dump();
  // Beside a built-in one when both are named.
  const Json both =
      Cases({"run", "--suite", Suite(), "--plugin", library, "--backend", "cpu,example", "--family",
             "gdn_decode", "--json", "--no-timing", "--ledger", "both.jsonl"});
  EXPECT_EQ(both.size(), 2u);
}

TEST_F(Plugin, TheSkeletonBuildsAndSaysThatItIsEmpty) {
  EXPECT_EQ(
      Run({"plugin", "new", "mine", "--definition", "gdn_decode_qk4_v8_d128_k_last"}).exit_code, 0);
  const std::string folder = folder_.path() + "/mine";
  EXPECT_THAT(ReadFile(folder + "/mine.cpp"), HasSubstr("output  new_state"));
  const std::string library = Build(folder, "mine.so");
  const Json cases =
      Cases({"run", "--suite", Suite(), "--plugin", library, "--json", "--no-timing"});
  ASSERT_EQ(cases.size(), 1u);
  EXPECT_EQ(cases[0].at("status"), "failed");
  EXPECT_EQ(cases[0].at("reason"), "mine returned 1: not written yet");
}

TEST_F(Plugin, BadNamesAndFilesGetOneSentence) {
  const auto refused = [&](const std::vector<std::string>& words, const char* sentence) {
    const CliResult result = Run(words);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_THAT(result.err, HasSubstr(sentence));
  };
  refused({"plugin", "new", "no-dash", "--definition", "gdn_decode"}, "plugin name 'no-dash'");
  refused({"plugin", "new", "mine", "--definition", "nothing"}, "'nothing'");
  refused({"plugin", "list", "/nowhere.so"}, "assay: plugin /nowhere.so: ");
  refused({"plugin", "list", "libm.so.6"}, "plugin libm.so.6: ");
  refused({"run", "--suite", Suite(), "--plugin", "/nowhere.so"}, "plugin /nowhere.so: ");
  folder_.Write("mine", "in the way");
  refused({"plugin", "new", "mine", "--definition", "gdn_decode"}, "mine exists already");
}

TEST_F(Plugin, EveryHazardIsCaught) {
  const CliResult result = Run({"selftest", "hazards"});
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr(" 0 missed"));
}

}  // namespace
}  // namespace assay
