// FlashInfer-Trace records: what is read, what is refused and with which sentence; constraints;
// paths that must stay inside the folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "io/axis_expression.h"
#include "io/file.h"
#include "io/trace_dataset.h"

namespace assay {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Work>
std::string RefusalOf(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::kInput);
    return error.what();
  }
  return "accepted";
}

// `text` with the first `from` replaced.
std::string With(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

const std::string kDefinition = R"({"name": "mix", "op_type": "blend", "tags": ["status:ok"],
 "axes": {"B": {"type": "var"}, "D": {"type": "const", "value": 8, "description": "width"}},
 "inputs": {"z": {"shape": ["B", "D"], "dtype": "bfloat16"},
            "a": {"shape": ["B"], "dtype": "int8", "optional": true},
            "alpha": {"shape": null, "dtype": "float32", "init": "ones"}},
 "outputs": {"out": {"shape": ["B", "D"], "dtype": "float16"}},
 "reference": "import torch\ndef run(z, a, alpha):\n    return z", "constraints": ["B <= 64"]})";

TEST(TraceDefinition, IsReadInArgumentOrder) {
  const TraceDefinition definition = ParseTraceDefinition(kDefinition);
  EXPECT_EQ(definition.name, "mix");
  EXPECT_EQ(definition.op_type, "blend");
  ASSERT_EQ(definition.axes.size(), 2u);
  EXPECT_FALSE(definition.axes[0].value.has_value());
  EXPECT_EQ(definition.axes[1].value, 8);
  ASSERT_EQ(definition.inputs.size(), 3u);
  EXPECT_EQ(definition.inputs[0].name, "z");  // not sorted
  EXPECT_EQ(definition.inputs[1].dtype, DType::kI8);
  EXPECT_TRUE(definition.inputs[1].optional);
  EXPECT_TRUE(definition.inputs[2].shape.empty());
  EXPECT_THAT(definition.outputs[0].shape, ElementsAre("B", "D"));
  EXPECT_THAT(definition.constraints, ElementsAre("B <= 64"));
}

TEST(TraceDefinition, OlderNamesAreUnderstood) {
  const std::string older =
      With(With(kDefinition, "\"op_type\"", "\"type\""), "\"int8\"", "\"float8_e4m3\"");
  EXPECT_EQ(ParseTraceDefinition(older).op_type, "blend");
  EXPECT_EQ(ParseTraceDefinition(older).inputs[1].dtype, DType::kE4M3);
}

TEST(TraceDefinition, RefusesWithOneSentence) {
  const struct {
    const char *from, *to, *sentence;
  } cases[] = {
      {"\"mix\"", "\"\"", "there is no 'name'"},
      {"\"blend\"", "null", "there is no 'op_type'"},
      {"bfloat16", "bfloat17", "tensor 'z' has the unknown dtype 'bfloat17'"},
      {"[\"B\", \"D\"]", "[\"B\", \"E\"]", "uses axis 'E', which is not declared"},
      {"\"shape\": [\"B\"], ", "", "tensor 'a' has no 'shape'"},
      {"\"value\": 8", "\"value\": -8", "const axis 'D' has no value that is a non-negative"},
      {"\"type\": \"var\"", "\"type\": \"free\"", "axis 'B' has the unknown type 'free'"},
      {"def run", "def walk", "'reference' defines no function 'run'"},
      {"[\"B <= 64\"]", "[64]", "'constraints' is not a list of texts"},
      {"\"axes\": {", "\"axes\": {\"B\": {\"type\": \"var\"}, ", "key 'B' appears twice"},
  };
  for (const auto& one : cases) {
    const std::string text = With(kDefinition, one.from, one.to);
    EXPECT_THAT(RefusalOf([&] { ParseTraceDefinition(text); }), HasSubstr(one.sentence));
  }
  EXPECT_THAT(RefusalOf([] { ParseTraceDefinition("[]"); }), HasSubstr("not a JSON object"));
  EXPECT_THAT(RefusalOf([] { ParseTraceDefinition("{\"name\": "); }), HasSubstr("column"));
}

const std::string kSolution = R"({"name": "fast", "definition": "mix", "author": "me",
 "spec": {"language": "cuda", "target_hardware": ["NVIDIA H200"], "entry_point": "k.cu::run",
          "dependencies": ["cutlass"], "destination_passing_style": true, "binding": "torch"},
 "sources": [{"path": "k.cu", "content": "void run();"}, {"path": "k.h", "content": ""}]})";

TEST(TraceSolution, HasAnIdentity) {
  const TraceSolution solution = ParseTraceSolution(kSolution);
  // printf 'mixcudak.cu::runtorchcutlassk.cuvoid run();k.h' | sha1sum
  EXPECT_EQ(solution.Identity(), "77e5711c32b68e79e9465cbf1199eae00f1bf2b0");
  EXPECT_NE(ParseTraceSolution(With(kSolution, "void run", "void ruin")).Identity(),
            solution.Identity());
  EXPECT_EQ(ParseTraceSolution(With(kSolution, "fast", "faster")).Identity(), solution.Identity());
}

TEST(TraceSolution, RefusesWithOneSentence) {
  const auto refusal = [](const char* from, const char* to) {
    return RefusalOf([&] { ParseTraceSolution(With(kSolution, from, to)); });
  };
  EXPECT_THAT(refusal("\"cuda\"", "\"rust\""), HasSubstr("unknown language 'rust'"));
  EXPECT_THAT(refusal("[\"NVIDIA H200\"]", "[]"), HasSubstr("'target_hardware' names nothing"));
  EXPECT_THAT(refusal("k.cu::run", "k.cu"), HasSubstr("not of the form file::function"));
  EXPECT_THAT(refusal("k.cu::run", "x.cu::run"), HasSubstr("'x.cu' is not among the sources"));
}

const std::string kTrace = R"({"definition": "mix", "workload": {"uuid": "u-1", "axes": {"B": 2},
 "inputs": {"z": {"type": "random"}}}, "solution": "fast", "evaluation": {"status": "PASSED",
 "environment": {"hardware": "NVIDIA H200", "libs": {}}, "timestamp": "2026-01-01T00:00:00",
 "log": "", "correctness": {"max_relative_error": "Infinity", "max_absolute_error": 0.5},
 "performance": {"latency_ms": 0.25, "reference_latency_ms": 1, "speedup_factor": 4}}})";

TEST(TraceLine, IsRead) {
  const auto line = ParseTraceLine(kTrace);
  ASSERT_TRUE(line.has_value());
  EXPECT_EQ(line->uuid, "u-1");
  EXPECT_EQ(line->status, "PASSED");
  EXPECT_TRUE(std::isinf(line->max_relative_error));
  EXPECT_EQ(line->max_absolute_error, 0.5);
  EXPECT_EQ(line->latency_ms, 0.25);
  EXPECT_FALSE(ParseTraceLine(R"({"definition": "mix", "workload": {"uuid": "u", "axes": {}},
    "solution": null, "evaluation": null})"));
}

TEST(TraceLine, StatusDecidesWhatMustBeThere) {
  const auto refusal = [](const std::string& text) {
    return RefusalOf([&] { ParseTraceLine(text); });
  };
  EXPECT_THAT(refusal(With(kTrace, "PASSED", "GLORIOUS")), HasSubstr("status 'GLORIOUS'"));
  EXPECT_THAT(refusal(With(kTrace, "PASSED", "INCORRECT_NUMERICAL")),
              HasSubstr("INCORRECT_NUMERICAL may not have 'performance'"));
  EXPECT_THAT(refusal(With(kTrace, "PASSED", "TIMEOUT")),
              HasSubstr("TIMEOUT may not have 'correctness'"));
  EXPECT_THAT(refusal(With(kTrace, "\"correctness\"", "\"correct\"")),
              HasSubstr("PASSED needs 'correctness'"));
  EXPECT_THAT(refusal(With(kTrace, "\"Infinity\"", "\"lots\"")), HasSubstr("not a number"));
  EXPECT_THAT(refusal(With(kTrace, "\"fast\"", "null")), HasSubstr("there is no 'solution'"));
}

TEST(AxisExpression, ComputesLikePython) {
  const std::map<std::string, std::int64_t, std::less<>> axes = {
      {"n", 7}, {"m", -3}, {"big", INT64_MAX}};
  const std::pair<const char*, int> cases[] = {
      {"n == 7", 1},
      {"n + 1 == 2 * 4", 1},
      {"n // 2 == 3 and n % 2 == 1", 1},
      {"m // 2 == -2 and m % 2 == 1", 1},  // towards minus infinity
      {"1 <= n < 7", 0},
      {"not n == 7 or (n != 7) or n > 100", 0},
      {"-(n - 8) == 1", 1},
      {"n", 1},
      {"len(n) == 1", -1},
      {"total == indptr[-1].item()", -1},
      {"n == unknown", -1},
      {"n / 2 == 3", -1},
      {"n ** 2 == 49", -1},
      {"n % 0 == 0", -1},
      {"big + 1 > 0", -1},
      {"n ==", -1},
      {"", -1},
      {"n == 7 7", -1},
  };
  for (const auto& [text, wanted] : cases) {
    const auto holds = HoldsForAxes(text, axes);
    EXPECT_EQ(holds ? static_cast<int>(*holds) : -1, wanted) << text;
  }
  EXPECT_FALSE(HoldsForAxes(std::string(100000, '('), axes));
  EXPECT_FALSE(HoldsForAxes(std::string(100000, '-'), axes));
}

class TraceFolder : public ::testing::Test {
 protected:
  TraceFolder() {
    std::string name = (fs::temp_directory_path() / "assay-trace-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  ~TraceFolder() override { fs::remove_all(root_); }

  void Put(const std::string& path, const std::string& text) {
    fs::create_directories((fs::path(root_) / path).parent_path());
    WriteFile(root_ + "/" + path, text);
  }

  std::string root_;
};

TEST_F(TraceFolder, LoadsWhatIsGoodAndNamesTheRest) {
  Put("definitions/blend/mix.json", kDefinition);
  Put("definitions/blend/twin.json", kDefinition);
  Put("definitions/notes.txt", "not JSON");
  std::string line = kTrace;
  std::replace(line.begin(), line.end(), '\n', ' ');
  Put("traces/a.jsonl", line + "\n\n{\"definition\": \"mix\"\n");
  std::vector<TraceProblem> problems;
  EXPECT_EQ(LoadTraceDefinitions(root_, problems).size(), 1u);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].file, "definitions/blend/twin.json");
  EXPECT_THAT(problems[0].message, HasSubstr("'mix' is taken by definitions/blend/mix.json"));
  problems.clear();
  EXPECT_EQ(LoadTraceLines(root_, problems).size(), 1u);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].line, 3);
  EXPECT_TRUE(LoadTraceSolutions(root_, problems).empty());
  EXPECT_THAT(RefusalOf([&] { TraceFiles(root_ + "/nowhere", "", ""); }),
              HasSubstr("is not a folder"));
}

TEST_F(TraceFolder, PathsStayInside) {
  Put("blob/x.safetensors", "data");
  fs::create_symlink("/etc/hostname", root_ + "/blob/outside");
  fs::create_symlink("x.safetensors", root_ + "/blob/inside");
  EXPECT_THAT(TraceBlobPath(root_, "./blob/x.safetensors"), HasSubstr("/blob/x.safetensors"));
  EXPECT_THAT(TraceBlobPath(root_, "blob/inside"), HasSubstr("/blob/x.safetensors"));
  const std::pair<std::string, const char*> cases[] = {
      {"", "is empty"},
      {"/etc/hostname", "is absolute"},
      {"blob/../../secret", "leads out of the dataset by '..'"},
      {"blob/outside", "is a link out of the dataset"},
      {"blob/missing", "names no file"},
      {std::string("blob/x\0y", 8), "zero byte"},
  };
  for (const auto& [path, sentence] : cases) {
    EXPECT_THAT(RefusalOf([&, &p = path] { TraceBlobPath(root_, p); }), HasSubstr(sentence));
  }
}

}  // namespace
}  // namespace assay
