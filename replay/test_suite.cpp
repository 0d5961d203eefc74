// Suites: both record forms, what is kept, what is refused and with which sentence, content keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/random.h"
#include "io/file.h"
#include "replay/suite.h"

namespace assay {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two definitions of our own, so that these tests do not depend on which rooms exist.
const Registry& TestRegistry() {
  static const Registry registry = [] {
    Family gemm;
    gemm.name = "gemm";
    gemm.definitions = {{"gemm_k16", {{"K", 16}}, {"M"}}};
    gemm.variants = {"plain", "peaky"};
    Family prefill;
    prefill.name = "prefill";
    prefill.definitions = {{"prefill_h4", {}, {"total_seq_len", "num_seqs", "len_cu_seqlens"}}};
    return Registry({gemm, prefill});
  }();
  return registry;
}

// A file that goes away with the test.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string_view content) { WriteFile(path_, content); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  static std::string UniquePath() {
    static int count = 0;
    const auto name =
        "assay_suite_" + std::to_string(::getpid()) + "_" + std::to_string(count++) + ".jsonl";
    return (std::filesystem::temp_directory_path() / name).string();
  }
  std::string path_ = UniquePath();
};

Suite LoadText(std::string_view content) {
  const TemporaryFile file(content);
  return LoadSuite(file.path(), TestRegistry());
}

constexpr const char* kGood = R"({"uuid":"good","definition":"gemm_k16","axes":{"M":4}})";

// Loads `line` before a good one: the bad line must cost exactly itself.
SuiteProblem ProblemOf(const std::string& line) {
  const Suite suite = LoadText(line + "\n" + kGood + "\n");
  EXPECT_EQ(suite.workloads.size(), 1u) << line;
  EXPECT_EQ(suite.problems.size(), 1u) << line;
  if (suite.problems.size() != 1) return {};
  EXPECT_EQ(suite.problems[0].line, 1);
  EXPECT_THAT(suite.problems[0].file, HasSubstr("assay_suite_"));
  return suite.problems[0];
}

std::string MessageOf(const std::string& line) { return ProblemOf(line).message; }

std::string WithAxes(const std::string& axes, const std::string& definition = "gemm_k16") {
  return R"({"uuid":"u1","definition":")" + definition + R"(","axes":)" + axes + "}";
}

TEST(ContentKey, TestVectors) {
  EXPECT_EQ(ContentKey("f627f3ce-06ab-52e0-b919-0882bb98ba87", 1, 0), 0x6ae517a0963eba55u);
  EXPECT_NE(ContentKey("f627f3ce-06ab-52e0-b919-0882bb98ba87", 1, 1), 0x6ae517a0963eba55u);
  EXPECT_NE(ContentKey("f627f3ce-06ab-52e0-b919-0882bb98ba87", 2, 0), 0x6ae517a0963eba55u);
}

TEST(ContentKey, ElementSourceTestVectors) {
  EXPECT_EQ(Mix64(0, 0, 0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(Mix64(0, 0, 1), 0x6e789e6aa1b965f4u);
  EXPECT_EQ(Mix64(0, 1, 0), 0x669d2519adab1d2bu);
  EXPECT_EQ(Mix64(0x0123456789abcdef, 2, 1000003), 0x733035214cd102f3u);
}

TEST(LoadSuite, ReadsFlatLines) {
  const Suite suite = LoadText(
      R"({"uuid":"a","definition":"gemm_k16","axes":{"M":4},"model":"m","request_id":"r","step":7,)"
      R"("variant":"rows_4","prefix_segments":[[0,8,false],[8,12,true]],"scheduler_mode":"decode",)"
      R"("scheduler_sequence_lengths":[5,6],"validation":{"status":"passed",)"
      R"("max_absolute_errors":[0.5,1],"seconds":2},"note":{"deep":[1.5]}})");
  ASSERT_THAT(suite.problems, IsEmpty());
  ASSERT_EQ(suite.workloads.size(), 1u);
  const Workload& w = suite.workloads[0];
  EXPECT_EQ(w.uuid, "a");
  EXPECT_EQ(w.axes, (Axes{{"M", 4}}));
  EXPECT_EQ(w.model, "m");
  EXPECT_EQ(w.request, "r");
  EXPECT_EQ(w.phase, "decode");
  EXPECT_EQ(w.variant, "") << "the label of a record is not a generator variant";
  using List = std::vector<std::int64_t>;
  EXPECT_EQ(w.attributes, (Attributes{{"step", std::int64_t{7}},
                                      {"variant", std::string("rows_4")},
                                      {"sequence_lengths", List{5, 6}},
                                      {"prefix_segments", List{0, 8, 0, 8, 12, 1}}}));
  EXPECT_EQ(w.validation.status, "passed");
  EXPECT_THAT(w.validation.max_absolute_errors, ElementsAre(0.5, 1.0));
  EXPECT_EQ(json::parse(w.extra), json::parse(R"({"note":{"deep":[1.5]},"scheduler_mode":"decode",)"
                                              R"("validation":{"seconds":2}})"));
}

TEST(LoadSuite, ReadsNestedLines) {
  const Suite suite =
      LoadText(R"({"definition":"gemm_k16","workload":{"uuid":"a","axes":{"M":4,"K":16},)"
               R"("inputs":{"A":{"type":"random"}}},"attributes":{"lower_bound":-5.5,"mine":"x",)"
               R"("odd":{"k":1}},"generator_variant":"peaky","solution":null,"content_id":"c"})");
  ASSERT_THAT(suite.problems, IsEmpty());
  const Workload& w = suite.workloads.at(0);
  EXPECT_EQ(w.axes, (Axes{{"K", 16}, {"M", 4}}));
  EXPECT_EQ(w.variant, "peaky");
  EXPECT_EQ(w.content_id, "c");
  EXPECT_EQ(w.attributes, (Attributes{{"lower_bound", -5.5}, {"mine", std::string("x")}}));
  EXPECT_EQ(json::parse(w.extra), json::parse(R"({"workload":{"inputs":{"A":{"type":"random"}}},)"
                                              R"("attributes":{"odd":{"k":1}},"solution":null})"));
}

TEST(LoadSuite, WritesBackEverything) {
  const std::string flat =
      R"({"uuid":"a","definition":"other","axes":{"M":4},"request":{"n":1},"request_id":"r",)"
      R"("expected_output":{"path":"p"},"validation":{"status":"passed","axes":{"M":4}},)"
      R"("attributes":{"step":3,"odd":[{}]},"model":"m \u00e9"})";
  const Workload once = WorkloadFromJson(flat);
  const std::string written = WorkloadToJson(once);
  EXPECT_EQ(json::parse(written),
            json::parse(R"({"workload":{"uuid":"a","axes":{"M":4}},"definition":"other",)"
                        R"("request":{"n":1},"request_id":"r","expected_output":{"path":"p"},)"
                        R"("validation":{"status":"passed","axes":{"M":4}},)"
                        R"("attributes":{"step":3,"odd":[{}]},"model":"m \u00e9"})"));
  EXPECT_EQ(WorkloadToJson(WorkloadFromJson(written)), written);
}

TEST(LoadSuite, WriteSuiteRoundTrips) {
  const Suite suite = LoadText(std::string(kGood) + "\n" +
                               R"({"uuid":"b","definition":"elsewhere","axes":{"P":0},"x":[1]})");
  const TemporaryFile file("");
  WriteSuite(file.path(), suite.workloads);
  const Suite again = LoadSuite(file.path(), TestRegistry());
  ASSERT_EQ(again.workloads.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(WorkloadToJson(again.workloads[i]), WorkloadToJson(suite.workloads[i]));
  }
  EXPECT_THAT([&] { WriteSuite("/nowhere/x.jsonl", suite.workloads); },
              testing::ThrowsMessage<Error>(HasSubstr("cannot write '/nowhere/x.jsonl'")));
}

TEST(LoadSuite, KeepsUnknownDefinitions) {
  const Suite suite = LoadText(WithAxes(R"({"B":1,"NP":0})", "not_built_yet"));
  EXPECT_THAT(suite.problems, IsEmpty());
  EXPECT_EQ(suite.workloads.at(0).definition, "not_built_yet");
}

TEST(LoadSuite, MalformedJsonHasLineAndColumn) {
  const SuiteProblem problem = ProblemOf(R"({"uuid": "u1",, "axes": {}})");
  EXPECT_EQ(problem.column, 15);
  EXPECT_THAT(problem.message, HasSubstr("malformed JSON: syntax error"));
  const Suite suite = LoadText(std::string(kGood) + "\n\n  \r\n{\"uuid\" 1}\n");
  ASSERT_EQ(suite.problems.size(), 1u);
  EXPECT_EQ(suite.problems[0].line, 4);
  EXPECT_EQ(suite.problems[0].column, 9);
}

TEST(LoadSuite, ToleratesATruncatedLastLine) {
  const std::string line = kGood;
  for (std::size_t size = 1; size < line.size(); ++size) {
    const Suite suite = LoadText(WithAxes(R"({"M":1})") + "\n" + line.substr(0, size));
    ASSERT_EQ(suite.workloads.size(), 1u);
    ASSERT_EQ(suite.problems.size(), 1u);
    EXPECT_EQ(suite.problems[0].line, 2);
    EXPECT_THAT(suite.problems[0].message, HasSubstr("last line is cut off"));
  }
  EXPECT_EQ(LoadText(line).workloads.size(), 1u) << "a whole last line needs no newline";
}

TEST(LoadSuite, RefusesDuplicateUuids) {
  const Suite suite =
      LoadText(WithAxes(R"({"M":1})") + "\n" + kGood + "\n" + WithAxes(R"({"M":2})"));
  EXPECT_EQ(suite.workloads.size(), 2u);
  EXPECT_EQ(suite.workloads[0].axes.at("M"), 1);
  ASSERT_EQ(suite.problems.size(), 1u);
  EXPECT_EQ(suite.problems[0].line, 3);
  EXPECT_THAT(suite.problems[0].message, HasSubstr("duplicate uuid u1, first on line 1"));
}

TEST(LoadSuite, RefusesBadAxesInOneSentence) {
  EXPECT_THAT(MessageOf(WithAxes("{}")), HasSubstr("record u1: gemm_k16: axis M is missing"));
  EXPECT_THAT(MessageOf(WithAxes(R"({"M":1,"Q":2})")), HasSubstr("unknown axis Q = 2"));
  EXPECT_THAT(MessageOf(WithAxes(R"({"M":-3})")), HasSubstr("axis M = -3 is outside 0.."));
  EXPECT_THAT(MessageOf(WithAxes(R"({"M":1.5})")), HasSubstr("axis M = 1.5 is not an integer"));
  EXPECT_THAT(MessageOf(WithAxes(R"({"M":4.0})")), HasSubstr("axis M = 4.0 is not an integer"));
  EXPECT_THAT(MessageOf(WithAxes(R"({"M":"4"})")), HasSubstr("axis M = \"4\" is not an integer"));
  EXPECT_THAT(MessageOf(WithAxes(R"({"M":true})")), HasSubstr("axis M = true is not an integer"));
  EXPECT_THAT(MessageOf(WithAxes(R"({"M":null})")), HasSubstr("axis M = null is not an integer"));
  EXPECT_THAT(MessageOf(WithAxes(R"({"M":2000000000000})")),
              HasSubstr("axis M = 2000000000000 is"));
  EXPECT_THAT(MessageOf(WithAxes(R"({"M":18446744073709551615})")), HasSubstr("absurdly large"));
  EXPECT_THAT(MessageOf(WithAxes(R"({"M":123456789012345678901234567890})")),
              HasSubstr("absurdly large"));
  EXPECT_THAT(MessageOf(WithAxes(R"({"M":1,"K":17})")), HasSubstr("the definition fixes it at 16"));
  EXPECT_THAT(MessageOf(WithAxes(R"({"B":-1})", "not_built_yet")), HasSubstr("axis B = -1"));
  EXPECT_THAT(MessageOf(WithAxes("[1]")), HasSubstr("'axes' must be an object, not [1]"));
}

TEST(LoadSuite, RefusesWrongCuSeqlensLength) {
  const std::string axes = R"({"total_seq_len":6,"num_seqs":2,"len_cu_seqlens":2})";
  for (const char* definition : {"prefill_h4", "not_built_yet"}) {
    EXPECT_THAT(MessageOf(WithAxes(axes, definition)),
                HasSubstr("axis len_cu_seqlens = 2 must be num_seqs + 1 = 3"));
  }
}

TEST(LoadSuite, RefusesIncompleteOrMistypedRecords) {
  EXPECT_THAT(MessageOf("[]"), HasSubstr("a record must be a JSON object, not []"));
  EXPECT_THAT(MessageOf(R"({"definition":"gemm_k16","axes":{"M":1}})"), HasSubstr("no 'uuid'"));
  EXPECT_THAT(MessageOf(R"({"uuid":"u1","axes":{"M":1}})"), HasSubstr("no 'definition'"));
  EXPECT_THAT(MessageOf(R"({"uuid":"u1","definition":"gemm_k16"})"), HasSubstr("no 'axes'"));
  EXPECT_THAT(MessageOf(R"({"uuid":7,"definition":"gemm_k16","axes":{}})"),
              HasSubstr("'uuid' must be a text, not 7"));
  EXPECT_THAT(MessageOf(R"({"uuid":"u1","definition":"gemm_k16","workload":3})"),
              HasSubstr("'workload' must be an object, not 3"));
  EXPECT_THAT(MessageOf(R"({"uuid":"u1","uuid":"u2","definition":"gemm_k16","axes":{"M":1}})"),
              HasSubstr("key 'uuid' appears twice"));
  EXPECT_THAT(MessageOf(R"({"uuid":"u1","definition":"gemm_k16","axes":{"M":1},"attributes":2})"),
              HasSubstr("'attributes' must be an object"));
  EXPECT_THAT(MessageOf(R"({"uuid":"u1","definition":"gemm_k16","axes":{"M":1},)"
                        R"("prefix_segments":[[0,"x",true]]})"),
              HasSubstr("attribute prefix_segments = [[0,\"x\",true]] is neither"));
  EXPECT_THAT(MessageOf(R"({"uuid":"u1","definition":"gemm_k16","axes":{"M":1},)"
                        R"("generator_variant":"odd"})"),
              HasSubstr("unknown generator variant 'odd'"));
  EXPECT_THAT(MessageOf(R"({"uuid":"u1","a":)" + std::string(100000, '[')),
              HasSubstr("nested deeper"));
}

// Whatever happens to a line, loading goes on: each damaged line is a workload or a problem.
TEST(LoadSuite, SurvivesRandomDamage) {
  const std::string flat =
      R"({"uuid":"u1","definition":"prefill_h4","axes":{"total_seq_len":6,"num_seqs":1,)"
      R"("len_cu_seqlens":2},"prefix_segments":[[0,8,false]],"validation":{"status":"passed",)"
      R"("max_absolute_errors":[0.5]},"step":-1.5e3,"model":"m\u00e9"})";
  const std::string nested =
      R"({"definition":"gemm_k16","workload":{"uuid":"u2","axes":{"M":4}},"attributes":{"a":[1],)"
      R"("b":"x","c":{}},"generator_variant":"peaky","extra":[null,{"k":[{}]}]})";
  constexpr std::string_view kAlphabet = "{}[]\",:-+.eE0129tfn\\u \xff\x01";
  std::uint64_t draw = 0;
  const auto random = [&](std::size_t bound) { return Mix64(20, 0, draw++) % bound; };
  std::string file;
  constexpr std::size_t kLines = 4000;
  for (std::size_t n = 0; n < kLines; ++n) {
    std::string line = n % 2 == 0 ? flat : nested;
    line.insert(line.find("\"u") + 8, std::to_string(n));  // at the start of the uuid
    for (std::size_t edits = 1 + random(3); edits > 0; --edits) {
      const std::size_t at = random(line.size());
      const char letter = kAlphabet[random(kAlphabet.size())];
      switch (random(4)) {
        case 0:
          line[at] = letter;
          break;
        case 1:
          line.insert(at, 1, letter);
          break;
        case 2:
          line.erase(at, 1 + random(8));
          break;
        default:
          line.insert(at, line.substr(random(line.size()), random(12)));
          break;
      }
    }
    file += line + "\n";
  }
  const Suite suite = LoadText(file);
  EXPECT_EQ(suite.workloads.size() + suite.problems.size(), kLines);
  EXPECT_GT(suite.problems.size(), kLines / 4);
  EXPECT_GT(suite.workloads.size(), kLines / 8) << "damage outside the syntax must be seen too";
  for (const Workload& workload : suite.workloads) {
    const std::string written = WorkloadToJson(workload);
    EXPECT_EQ(WorkloadToJson(WorkloadFromJson(written)), written);
  }
}

TEST(LoadSuite, NeedsAReadableFile) {
  EXPECT_THAT([] { LoadSuite("/nowhere/a.jsonl", TestRegistry()); },
              testing::ThrowsMessage<Error>(HasSubstr("cannot read '/nowhere/a.jsonl'")));
  EXPECT_THAT(LoadText("").workloads, IsEmpty());
}

TEST(LoadSuite, WorkloadFromJsonNamesTheColumn) {
  EXPECT_THAT([] { WorkloadFromJson(R"({"uuid": u})"); },
              testing::ThrowsMessage<Error>(HasSubstr("column 10: syntax error")));
}

TEST(SuitePath, FilesBuiltInNamesAndNeither) {
  const TemporaryFile file(kGood);
  EXPECT_EQ(SuitePath(file.path()), file.path());
  EXPECT_THAT(
      [] { SuitePath("smokee"); },
      testing::ThrowsMessage<Error>(HasSubstr(
          "'smokee' is neither a file nor a built-in suite (smoke, serving, step, worldmodel)")));
  EXPECT_THAT(BuiltInSuites(), ElementsAre("smoke", "serving", "step", "worldmodel"));
}

}  // namespace
}  // namespace assay
