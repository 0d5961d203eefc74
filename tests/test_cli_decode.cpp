// `assay decode` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tests/cli_process.h"

namespace assay {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

class CliDecode : public ::testing::Test {
 protected:
  CliResult Run(std::vector<std::string> words) {
    words.insert(words.begin(), {"decode", "--threads", "2"});
    return RunCli(words, folder_.path());
  }
  Json RunJson(std::vector<std::string> words) {
    words.insert(words.end(), {"--prompt-tokens", "20", "--max-new", "24", "--json"});
    const CliResult result = Run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out);
  }
  TemporaryFolder folder_;
};

TEST_F(CliDecode, SpeculationChangesTimeOnly) {
  const Json plain = RunJson({"--requests", "2"});
  const Json fast = RunJson({"--requests", "2", "--mtp", "3", "--check", "unroll:3"});
  const Json bit =
      RunJson({"--requests", "2", "--mtp", "3", "--commit", "scratch", "--check", "shadow:3"});
  for (int request = 0; request < 2; ++request) {
    EXPECT_EQ(plain["requests"][request]["tokens"].size(), 24u);
    EXPECT_EQ(plain["requests"][request]["tokens"], fast["requests"][request]["tokens"]);
    EXPECT_EQ(plain["requests"][request]["tokens"], bit["requests"][request]["tokens"]);
  }
  EXPECT_LT(fast["cycles"], plain["cycles"]);
  EXPECT_GT(fast["check"]["steps"], 0);
  EXPECT_EQ(fast["check"]["problems"], Json::array());
  EXPECT_EQ(bit["check"]["problems"], Json::array());
  EXPECT_EQ(fast["steps"]["fault"], 0);
  EXPECT_EQ(fast["steps"]["mixed_rows"], 0);
}

TEST_F(CliDecode, PromptsThatBeginAlikeReuseTheirPrefix) {
  std::string trunk;
  for (int token = 0; token < 70; ++token) trunk += std::to_string(3 * token) + " ";
  const std::string prompts = folder_.Write("prompts.txt", trunk + "1 2\n" + trunk + "3 4 5\n");
  const std::vector<std::string> words = {"--tokens", prompts, "--requests", "2", "--mtp", "3"};
  std::vector<std::string> reusing = words;
  reusing.insert(reusing.end(), {"--prefix-interval", "64"});
  const Json plain = RunJson(words), fast = RunJson(reusing);
  EXPECT_EQ(plain["requests"], fast["requests"]);
  EXPECT_EQ(fast["prefixes"]["reused_tokens"], 64);
  EXPECT_FALSE(plain.contains("prefixes"));
}

TEST_F(CliDecode, ExecutorsAndTextOutput) {
  const CliResult text = Run({"--executor", "cpu-bit", "--prompt-tokens", "12", "--max-new", "8",
                              "--mtp", "2", "--check", "ref:2"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("steps on the primary executor"));
  EXPECT_THAT(text.out, HasSubstr("against fp64: best token equal in"));
  EXPECT_THAT(text.out, HasSubstr("index_score"));
  const CliResult products =
      Run({"--prompt-tokens", "12", "--max-new", "4", "--check", "products:2"});
  EXPECT_EQ(products.exit_code, 0) << products.out;
  EXPECT_THAT(products.out, HasSubstr("matrix products in both arithmetics: worst difference"));
  EXPECT_EQ(Run({"--executor", "cpu-ref64", "--prompt-tokens", "6", "--max-new", "4"}).exit_code,
            0);
  EXPECT_THAT(Run({"--mtp", "3", "--print-program", "text"}).out, HasSubstr("kda_out x 2"));
}

TEST_F(CliDecode, RefusesBadInputWithASentence) {
  const auto refusal = [&](const std::vector<std::string>& words) {
    const CliResult result = Run(words);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(refusal({"--model", "huge"}), HasSubstr("is none of tiny, small"));
  // 641 GB of weights: a machine that has room for them would begin to make them.
  if (static_cast<double>(sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE)) < 640e9) {
    EXPECT_THAT(refusal({"--model", "glm-5.3-flash"}), HasSubstr("GB are free"));
  }
  EXPECT_THAT(refusal({"--mtp", "16"}), HasSubstr("16 drafts: 0 to 15 are possible"));
  EXPECT_THAT(refusal({"--check", "shadow:0"}), HasSubstr("--check shadow:0"));
  EXPECT_THAT(refusal({"--check", "ref:2x"}), HasSubstr("--check ref:2x"));
  EXPECT_THAT(refusal({"--prefix-interval", "100"}), HasSubstr("snapshots every 100 tokens"));
  EXPECT_THAT(refusal({"--accept", "coupled"}), HasSubstr("temperature 0"));
  EXPECT_THAT(refusal({"--executor", "mono"}), HasSubstr("cpu, cpu-bit and cpu-ref64 exist"));
  EXPECT_THAT(refusal({"--capacity", "1", "--prompt-tokens", "400"}),
              HasSubstr("out of cache pages"));
  const std::string prompts = folder_.Write("prompts.txt", "1 2 3\n4 five\n");
  EXPECT_THAT(refusal({"--tokens", prompts}), HasSubstr("line 2 is no list of token ids"));
  EXPECT_THAT(refusal({"--tokens", folder_.Write("big.txt", "1 999\n")}),
              HasSubstr("prompt token 1 is 999"));
}

}  // namespace
}  // namespace assay
