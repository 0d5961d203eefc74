// FlashInfer-Trace folders end to end: stored inputs and recorded outputs, definitions of a user
// with a plugin as reference, refusals, round trips that keep every byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "io/sha256.h"
#include "tests/cli_process.h"

namespace assay {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr int kRows = 3, kWidth = 8;

const char* const kToy = R"({"name": "toy_scale", "op_type": "toy",
 "axes": {"B": {"type": "var"}, "D": {"type": "const", "value": 8}},
 "inputs": {"x": {"shape": ["B", "D"], "dtype": "float32"},
            "alpha": {"shape": null, "dtype": "float32"},
            "bias": {"shape": ["D"], "dtype": "float32", "optional": true}},
 "outputs": {"out": {"shape": ["B", "D"], "dtype": "float32"}},
 "reference": "def run(x, alpha, bias):\n    return alpha * x + bias", "constraints": ["B < 100"]})";

class Dataset : public ::testing::Test {
 protected:
  Dataset() { Put("definitions/toy/toy_scale.json", kToy); }

  CliResult Run(const std::vector<std::string>& words) { return RunCli(words, folder_.path()); }
  std::string Path(const std::string& path) const { return folder_.path() + "/" + path; }
  void Put(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(Path("ds/" + path)).parent_path());
    folder_.Write("ds/" + path, text);
  }

  // A tensor file named by its SHA-256; its path relative to the dataset.
  std::string Blob(const std::vector<float>& values, const Shape& shape,
                   DType dtype = DType::kF32) {
    std::vector<float> copy = values;
    const Tensor tensor{"tensor", dtype, shape, reinterpret_cast<std::byte*>(copy.data())};
    std::string bytes = SafetensorsPrefix({&tensor, 1});
    bytes.append(reinterpret_cast<const char*>(tensor.data), tensor.bytes());
    const std::string path = "blob/workloads/toy_scale/" + Sha256Hex(bytes) + ".safetensors";
    Put(path, bytes);
    return path;
  }
  static Json Stored(const std::string& path) {
    return {{"type", "safetensors"}, {"path", path}, {"tensor_key", "tensor"}};
  }
  static std::vector<float> Values(int count, std::uint64_t key) {
    std::vector<float> values;
    for (int i = 0; i < count; ++i) {
      values.push_back(UnitNormal(key, 0, static_cast<std::uint64_t>(i)));
    }
    return values;
  }

  // One workload whose inputs are all stored, with the engine's output off by `engine_error` at one
  // place.
  Json StoredWorkload(const std::string& uuid, float engine_error) {
    const std::vector<float> x = Values(kRows * kWidth, 1), bias = Values(kWidth, 2);
    const float alpha = 0.5f;
    std::vector<float> out;
    for (std::size_t i = 0; i < x.size(); ++i) out.push_back(alpha * x[i] + bias[i % kWidth]);
    out[5] += engine_error;
    Json workload = {{"uuid", uuid}, {"axes", {{"B", kRows}}}};
    workload["inputs"] = {{"x", Stored(Blob(x, {kRows, kWidth}))},
                          {"alpha", {{"type", "scalar"}, {"value", alpha}}},
                          {"bias", Stored(Blob(bias, {kWidth}))}};
    workload["expected_output"] = Stored(Blob(out, {kRows, kWidth}));
    return {{"definition", "toy_scale"},
            {"workload", workload},
            {"solution", nullptr},
            {"evaluation", nullptr}};
  }
  void PutWorkloads(const std::vector<Json>& lines) {
    std::string text;
    for (const Json& line : lines) text += line.dump() + "\n";
    Put("workloads/toy/toy_scale.jsonl", text);
  }

  // Results by uuid. Timing is left out by default: a fresh ledger would measure the machine first.
  std::map<std::string, Json> Cases(const std::string& kernels,
                                    const std::vector<std::string>& how = {"--no-timing"}) {
    std::vector<std::string> words = {"run",      "--dataset",   "ds",       "--plugin",
                                      TOY_KERNEL, "--reference", TOY_TRUTH,  "--backend",
                                      kernels,    "--json",      "--ledger", "run.jsonl"};
    words.insert(words.end(), how.begin(), how.end());
    const CliResult run = Run(words);
    EXPECT_TRUE(Json::accept(run.out)) << run.err << run.out;
    std::map<std::string, Json> cases;
    const Json printed = Json::parse(run.out, nullptr, false);
    if (!printed.is_object()) return cases;
    for (const Json& one : printed.at("cases")) cases[one.at("uuid")] = one;
    return cases;
  }

  TemporaryFolder folder_;
};

// Relative path -> bytes of everything below a folder.
std::map<std::string, std::string> Snapshot(const std::string& root) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file()) continue;
    files[entry.path().lexically_relative(root)] = ReadFile(entry.path());
  }
  return files;
}

TEST_F(Dataset, StoredInputsAreJudgedAndTheEnginesOutputIsComparedBeside) {
  PutWorkloads({StoredWorkload("exact", 0), StoredWorkload("engine-off", 0.25f)});
  const auto cases = Cases("toy_good");
  ASSERT_EQ(cases.size(), 2u);
  const Json& exact = cases.at("exact");
  EXPECT_EQ(exact.at("status"), "passed") << exact.dump();
  EXPECT_EQ(exact.at("input_source"), "blob");
  EXPECT_EQ(exact.at("correctness").at("content_sets"), 3);
  EXPECT_EQ(exact.at("input_hashes").size(), 3u);
  const Json& agreement = exact.at("engine_correctness").at(0);
  EXPECT_EQ(agreement.at("output"), "out");
  EXPECT_EQ(agreement.at("max_abs"), 0.0);
  EXPECT_EQ(agreement.at("elements"), kRows * kWidth);
  // The engine's error is the engine's: it is reported and changes no verdict.
  const Json& off = cases.at("engine-off");
  EXPECT_EQ(off.at("status"), "passed");
  EXPECT_NEAR(off.at("engine_correctness").at(0).at("max_abs"), 0.25, 1e-6);
  EXPECT_EQ(off.at("engine_correctness").at(0).at("differing"), 1);
}

TEST_F(Dataset, WrongKernelsAreCaughtOnStoredInputs) {
  PutWorkloads({StoredWorkload("w", 0)});
  EXPECT_EQ(Cases("toy_biasless").at("w").at("status"), "incorrect");
  const Json memo = Cases("toy_memo").at("w");  // stored content is varied between the sets
  EXPECT_EQ(memo.at("status"), "incorrect");
  EXPECT_THAT(memo.at("reason").get<std::string>(), HasSubstr("content set 1"));
}

TEST_F(Dataset, RandomInputsAreGeneratedAndMayBeMixedWithStoredOnes) {
  Json all = StoredWorkload("all-random", 0), some = StoredWorkload("some-random", 0);
  all["workload"]["inputs"] = {{"x", {{"type", "random"}}}, {"alpha", {{"type", "random"}}}};
  some["workload"]["inputs"]["x"] = {{"type", "random"}};
  PutWorkloads({all, some});
  const auto cases = Cases("toy_good");
  EXPECT_EQ(cases.at("all-random").at("status"), "passed") << cases.at("all-random").dump();
  EXPECT_EQ(cases.at("all-random").at("input_source"), "generated");
  EXPECT_EQ(cases.at("some-random").at("status"), "passed");
  EXPECT_EQ(cases.at("some-random").at("input_source"), "blob");
  EXPECT_FALSE(cases.at("some-random").contains("engine_correctness"));  // not the engine's inputs
}

TEST_F(Dataset, EachBadRecordIsRefusedWithItsReason) {
  const std::string x = Blob(Values(kRows * kWidth, 1), {kRows, kWidth});
  const std::string short_x = Blob(Values(kWidth, 1), {1, kWidth});
  const std::string tampered = "blob/" + std::string(64, '0') + ".safetensors";
  Put(tampered, ReadFile(Path("ds/" + x)));
  std::string truncated = ReadFile(Path("ds/" + x));
  truncated.resize(truncated.size() - 4);
  Put("blob/truncated.safetensors", truncated);
  fs::create_symlink("/etc/hostname", Path("ds/blob/link"));
  const std::map<std::string, std::pair<Json, std::string>> bad = {
      {"hash", {Stored(tampered), "not that of its name"}},
      {"short", {Stored(short_x), "input 'x' is float32[1,8], expected float32[3,8]"}},
      {"truncated", {Stored("blob/truncated.safetensors"), "bytes of data"}},
      {"escape", {Stored("../secret.safetensors"), "leads out of the dataset by '..'"}},
      {"absolute", {Stored("/etc/hostname"), "is absolute"}},
      {"link", {Stored("blob/link"), "is a link out of the dataset"}},
      {"nowhere", {Stored("blob/none.safetensors"), "names no file of the dataset"}},
      {"key", {{{"type", "safetensors"}, {"path", x}, {"tensor_key", "y"}}, "no tensor 'y'"}},
      {"keyless", {{{"type", "safetensors"}, {"path", x}}, "has no text 'tensor_key'"}},
      {"type", {{{"type", "pickle"}, {"path", x}}, "unknown type 'pickle'"}},
      {"scalar", {{{"type", "scalar"}, {"value", 1}}, "is a scalar in the record and a tensor"}},
  };
  std::vector<Json> lines;
  for (const auto& [uuid, input] : bad) {
    Json line = StoredWorkload(uuid, 0);
    line["workload"]["inputs"]["x"] = input.first;
    lines.push_back(line);
  }
  Json missing = StoredWorkload("missing", 0), extra = StoredWorkload("extra", 0);
  missing["workload"]["inputs"].erase("x");
  extra["workload"]["inputs"]["z"] = {{"type", "random"}};
  Json number = StoredWorkload("number", 0), engine = StoredWorkload("engine", 0);
  number["workload"]["inputs"]["alpha"] = {{"type", "scalar"}, {"value", "half"}};
  engine["workload"]["expected_output"] = {{"result", Stored(x)}};
  lines.insert(lines.end(), {missing, extra, number, engine, StoredWorkload("good", 0)});
  PutWorkloads(lines);
  const auto cases = Cases("toy_good");
  ASSERT_EQ(cases.size(), lines.size());
  EXPECT_EQ(cases.at("good").at("status"), "passed");
  const auto expect = [&](const std::string& uuid, const std::string& sentence) {
    EXPECT_EQ(cases.at(uuid).at("status"), "invalid_record") << uuid;
    EXPECT_THAT(cases.at(uuid).at("reason").get<std::string>(), HasSubstr(sentence)) << uuid;
  };
  for (const auto& [uuid, input] : bad) expect(uuid, input.second);
  expect("missing", "input 'x' is missing from the record");
  expect("extra", "input 'z' is not declared by toy_scale");
  expect("number", "scalar 'alpha' has no value that is a number");
  expect("engine", "expected_output 'result' is no output of toy_scale");
  // The same through `check`, without running anything.
  const CliResult check = Run({"dataset", "check", "ds"});
  EXPECT_EQ(check.exit_code, 2);
  for (const auto& [uuid, input] : bad) EXPECT_THAT(check.err, HasSubstr(input.second)) << uuid;
}

TEST_F(Dataset, AxesAreCheckedWhenTheFileIsRead) {
  Json without = StoredWorkload("without", 0), many = StoredWorkload("many", 0),
       fixed = StoredWorkload("fixed", 0);
  without["workload"]["axes"] = Json::object();
  many["workload"]["axes"]["B"] = 100;
  fixed["workload"]["axes"]["D"] = 9;
  PutWorkloads({without, many, fixed, StoredWorkload("good", 0), StoredWorkload("good", 0)});
  const CliResult check = Run({"dataset", "check", "ds"});
  EXPECT_EQ(check.exit_code, 2);
  EXPECT_THAT(check.err,
              HasSubstr("toy_scale.jsonl:1: record without: toy_scale: axis B is missing"));
  EXPECT_THAT(check.err, HasSubstr("the axes violate the constraint 'B < 100'"));
  EXPECT_THAT(check.err, HasSubstr("axis D = 9, but the definition fixes it at 8"));
  EXPECT_THAT(check.err, HasSubstr("duplicate uuid good"));
}

TEST_F(Dataset, DefinitionsThatCannotBeServedAreRefused) {
  PutWorkloads({StoredWorkload("w", 0)});
  const CliResult none = Run({"run", "--dataset", "ds", "--plugin", TOY_KERNEL});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("definition toy_scale of the dataset has no fp64 reference"));
  std::string changed = kToy;
  changed.replace(changed.find("toy_scale"), 9, "gdn_decode_qk4_v8_d128_k_last");
  Put("definitions/toy/gdn.json", changed);
  EXPECT_THAT(Run({"dataset", "check", "ds"}).err,
              HasSubstr("is built in; input 'x' of the dataset is unknown there"));
}

TEST_F(Dataset, ACrashingReferenceJudgesNobody) {
  PutWorkloads({StoredWorkload("w", 0)});
  setenv("TOY_REFERENCE_CRASHES", "1", 1);
  const Json one = Cases("toy_good").at("w");
  unsetenv("TOY_REFERENCE_CRASHES");
  EXPECT_EQ(one.at("status"), "invalid_reference");
  EXPECT_THAT(one.at("reason").get<std::string>(), HasSubstr("toy_truth failed"));
}

TEST_F(Dataset, AForeignFolderComesBackByteForByte) {
  PutWorkloads({StoredWorkload("w", 0)});
  Put("definitions/odd/spaced.json", std::string(kToy).replace(10, 9, "toy_spare") + "\n\n");
  Put("solutions/me/fast.json", "{\"name\":\"fast\" ,\"later\": [1.50, 1e3]}");
  Put("traces/toy/odd.jsonl", "\n{\"half\": \n");
  Put("README.md", "notes of a stranger\r\n");
  const CliResult run = Run({"dataset", "export", "copy", "--from", "ds"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(Snapshot(Path("ds")), Snapshot(Path("copy")));
  EXPECT_EQ(Run({"dataset", "export", "copy", "--from", "ds"}).exit_code, 2);  // not empty any more
  EXPECT_THAT(Run({"dataset", "export", "two", "--from", "ds", "--write-inputs"}).err,
              HasSubstr("inputs cannot be written"));
  EXPECT_THAT(Run({"dataset", "export", "three", "--from", "ds", "--suite", "smoke"}).err,
              HasSubstr("not from both"));
}

TEST_F(Dataset, ARunBecomesTracesOfTheDataset) {
  PutWorkloads({StoredWorkload("w", 0)});
  Cases("toy_good,toy_biasless", {"--budget", "0.1", "--repeats", "1"});
  const CliResult run =
      Run({"dataset", "export", "more", "--from", "ds", "--run", "last", "--ledger", "run.jsonl"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const CliResult check = Run({"dataset", "check", "more"});
  EXPECT_EQ(check.exit_code, 0) << check.err;
  EXPECT_THAT(check.out, HasSubstr("1 workloads, 2 solutions, 2 traces; 0 problems"));
  // Read back as a run: what others claim is not a verdict of ours.
  EXPECT_EQ(Run({"dataset", "import", "more", "--ledger", "back.jsonl"}).exit_code, 0);
  const Json back = Json::parse(Run({"show", "--json", "--ledger", "back.jsonl"}).out).at("cases");
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[0].at("status"), "pending-audit");
  EXPECT_EQ(back[1].at("status"), "incorrect");
  EXPECT_GT(back[0].at("timing").at(0).at("median_ns"), 0);
}

TEST_F(Dataset, ExportedWorkloadsImportToTheSameBytes) {
  folder_.Write("suite.jsonl",
                "{\"definition\": \"gdn_decode_qk4_v8_d128_k_last\", \"workload\": {\"uuid\": "
                "\"u-1\", \"axes\": {\"batch_size\": 1}}, \"model\": \"m\", \"note\": [1, 2]}\n");
  const std::vector<std::string> run = {"run", "--suite",  "suite.jsonl", "--backend",
                                        "cpu", "--budget", "0.1",         "--repeats",
                                        "1",   "--json"};
  auto with = [](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const Json generated = Json::parse(Run(with(run, {"--ledger", "a.jsonl"})).out).at("cases").at(0);
  const auto exported = [&](const std::string& folder, const std::string& suite) {
    const CliResult result = Run({"dataset", "export", folder, "--suite", suite, "--run", "last",
                                  "--ledger", "a.jsonl", "--write-inputs"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Snapshot(Path(folder));
  };
  const auto first = exported("one", "suite.jsonl");
  EXPECT_EQ(Run({"dataset", "check", "one"}).exit_code, 0) << Run({"dataset", "check", "one"}).err;
  // The folder as inputs: the same bytes as generated, now from files.
  const Json stored = Json::parse(Run({"run", "--dataset", "one", "--backend", "cpu", "--json",
                                       "--no-timing", "--ledger", "b.jsonl"})
                                      .out)
                          .at("cases")
                          .at(0);
  EXPECT_EQ(stored.at("status"), "passed") << stored.dump();
  EXPECT_EQ(stored.at("input_source"), "blob");
  EXPECT_EQ(stored.at("input_hashes"), generated.at("input_hashes"));
  // Through a suite file and out again.
  EXPECT_EQ(Run({"dataset", "import", "one", "--suite", "again.jsonl"}).exit_code, 0);
  EXPECT_EQ(exported("two", "again.jsonl"), first);
  EXPECT_EQ(Run({"dataset", "check", "two"}).exit_code, 0) << Run({"dataset", "check", "two"}).err;
  // What an engine recorded beside the inputs is often not published; an input must be there.
  Json line = Json::parse(ReadFile(Path("again.jsonl")));
  line["engine_block_ids"] = Stored("blob/nowhere.safetensors");
  exported("three", folder_.Write("evidence.jsonl", line.dump() + "\n"));
  line["workload"]["inputs"]["q"] = Stored("blob/nowhere.safetensors");
  const std::string lost = folder_.Write("lost.jsonl", line.dump() + "\n");
  EXPECT_THAT(Run({"dataset", "export", "four", "--suite", lost}).err,
              HasSubstr("blob path 'blob/nowhere.safetensors' names no file of the dataset"));
}

}  // namespace
}  // namespace assay
