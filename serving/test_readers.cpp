// Every format by content, and what malformed, truncated, mixed and empty files are answered with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "serving/accuracy.h"
#include "serving/facts.h"
#include "serving/json_lines.h"
#include "serving/readers.h"

namespace assay::serving {
namespace {

namespace fs = std::filesystem;
using ServingRun = Run;

class Readers : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              (std::string("assay_readers_") + info->name() + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }
  std::string Problem(const std::string& path, const LoadOptions& options = {}) {
    try {
      LoadRun(path, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::kInput);
      return error.what();
    }
    return "no error";
  }
  fs::path folder_;
};

std::string AiperfLine(int turn, const std::string& phase = "\"benchmark_phase\":\"profiling\"",
                       const std::string& extra = "") {
  return R"({"metadata":{"conversation_id":"c","turn_index":)" + std::to_string(turn) + "," +
         phase + R"(,"request_start_ns":)" + std::to_string(1000000000LL * (turn + 1)) +
         R"(},"metrics":{"request_latency":{"value":2000,"unit":"ms"},"time_to_first_token":)" +
         R"({"value":0.5,"unit":"s"},"input_sequence_length":{"value":100,"unit":"tokens"},)" +
         R"("output_sequence_length":{"value":4,"unit":"tokens"}})" + extra + "}\n";
}

TEST_F(Readers, AiperfUnitsComeFromTheFile) {
  const ServingRun run = LoadRun(Write("a.jsonl", AiperfLine(0) + AiperfLine(1)));
  ASSERT_EQ(run.requests.size(), 2u);
  EXPECT_DOUBLE_EQ(run.requests[0].e2e_s, 2);
  EXPECT_DOUBLE_EQ(run.requests[0].ttft_s, 0.5);
  EXPECT_DOUBLE_EQ(run.requests[0].itl_s, 0.5);
  EXPECT_EQ(run.key, KeyKind::kConversationTurn);
  EXPECT_EQ(run.inputs[0].schema, "aiperf records");
  EXPECT_EQ(run.inputs[0].sha256.size(), 64u);
  EXPECT_DOUBLE_EQ(run.Number("duration_s"), 3);
}

TEST_F(Readers, AiperfByteOrderMarkCarriageReturnsAndBlankLines) {
  std::string text = "\xEF\xBB\xBF" + AiperfLine(0) + "\r\n\n" + AiperfLine(1);
  EXPECT_EQ(LoadRun(Write("a.jsonl", text)).requests.size(), 2u);
}

TEST_F(Readers, AiperfErrorsInEverySpelling) {
  const std::string text =
      AiperfLine(0) + AiperfLine(1, "\"benchmark_phase\":\"profiling\"", ",\"error\":null") +
      AiperfLine(2, "\"benchmark_phase\":\"profiling\"",
                 R"(,"error":{"code":500,"type":"X","message":"m"})") +
      AiperfLine(3, "\"benchmark_phase\":\"profiling\",\"was_cancelled\":\"true\"") +
      AiperfLine(4, "\"benchmark_phase\":\"profiling\",\"context_overflow_skip\":true") +
      AiperfLine(5, "\"benchmark_phase\":\"warmup\"");
  const ServingRun run = LoadRun(Write("a.jsonl", text));
  EXPECT_EQ(run.Number("successes"), 2);
  EXPECT_EQ(run.Number("errors"), 3);
  EXPECT_EQ(run.Number("warmup_records"), 1);
  EXPECT_EQ(run.requests[2].outcome, Outcome::kError);
  EXPECT_EQ(run.requests[3].outcome, Outcome::kCancelled);
  EXPECT_EQ(run.requests[4].outcome, Outcome::kOverflow);
}

TEST_F(Readers, TruncatedLastLineIsSkippedAndSaid) {
  const std::string line = AiperfLine(1);
  const ServingRun run = LoadRun(Write("a.jsonl", AiperfLine(0) + line.substr(0, line.size() / 2)));
  EXPECT_EQ(run.requests.size(), 1u);
  EXPECT_THAT(run.notes, testing::ElementsAre("a.jsonl line 2 is cut off and was skipped"));
}

TEST_F(Readers, MalformedMiddleLine) {
  EXPECT_EQ(Problem(Write("a.jsonl", AiperfLine(0) + "{\"metadata\":{]}\n" + AiperfLine(1))),
            "a.jsonl line 2 is not valid JSON at byte 14");
  EXPECT_EQ(Problem(Write("b.jsonl", AiperfLine(0) + "[1,2]\n" + AiperfLine(1))),
            "b.jsonl line 2 is not a JSON object");
  EXPECT_EQ(Problem(Write("c.jsonl", AiperfLine(0) + "{\"x\":1}\n" + AiperfLine(1))),
            "c.jsonl line 2 is no aiperf record: it has no metadata object");
}

TEST_F(Readers, MixedSchemas) {
  EXPECT_EQ(
      Problem(Write("a.jsonl", AiperfLine(0) + AiperfLine(1, "\"credit_phase\":\"profiling\""))),
      "a.jsonl line 2 mixes record schemas: benchmark_phase and credit_phase in one file");
}

TEST_F(Readers, EmptyUnknownMissing) {
  EXPECT_EQ(Problem(Write("empty.json", "")), "empty.json is empty");
  EXPECT_EQ(Problem(Write("blank.json", " \n \n")), "blank.json is empty");
  EXPECT_EQ(Problem(Write("other.json", "{\"a\":1}")),
            "other.json is of no format that assay knows (see docs/serving-ab.md)");
  EXPECT_EQ(Problem(Write("text.txt", "hello\n")),
            "text.txt is of no format that assay knows (see docs/serving-ab.md)");
  EXPECT_THAT(Problem((folder_ / "none.json").string()),
              testing::EndsWith("none.json does not exist"));
  EXPECT_THAT(Problem(Write("cut.json", "{\"request_accounting\": {\"a\"")),
              testing::StartsWith("cut.json is cut off"));
  EXPECT_EQ(Problem(Write("list.json", "[]")), "list.json is an empty list");
  fs::create_directories(folder_ / "nothing");
  EXPECT_EQ(Problem((folder_ / "nothing").string()),
            "nothing holds no result file that assay knows");
}

TEST_F(Readers, GzipDamage) {
  EXPECT_THAT(Problem(Write("bad.json.gz", std::string("\x1f\x8b\x08\0\0\0\0\0\0\x03garbage", 17))),
              testing::HasSubstr("bad.json.gz is"));
}

TEST_F(Readers, AssayRecords) {
  const std::string header =
      R"({"format":"assay-serving-records","version":1,"facts":{"model":"m","tp":4},"numbers":{"gpus":4}})";
  const std::string text =
      header + "\n" +
      R"({"conversation":"a","turn":0,"start_s":1.5,"ttft_s":0.1,"e2e_s":1.1,"isl":10,"osl":11,"cached_tokens":4})"
      "\n"
      R"({"conversation":"a","turn":1,"start_s":"3","ttft_s":0.1,"e2e_s":"NaN","error":"timeout"})"
      "\n"
      R"({"conversation":"a","turn":1,"start_s":4,"ttft_s":0.2,"e2e_s":0.2,"isl":5,"osl":1,"phase":"warmup"})"
      "\n";
  const ServingRun run = LoadRun(Write("r.jsonl", text));
  EXPECT_EQ(run.EvidenceLevel(), 3);
  EXPECT_EQ(run.Fact("tp"), "4");
  EXPECT_EQ(run.Number("gpus"), 4);
  EXPECT_NEAR(run.requests[0].itl_s, 0.1, 1e-12);
  EXPECT_EQ(run.requests[0].start_ns, 1500000000);
  EXPECT_EQ(run.requests[1].outcome, Outcome::kTimeout);
  EXPECT_EQ(run.requests[2].phase, Phase::kWarmup);
  EXPECT_TRUE(std::isnan(run.requests[2].itl_s));
  EXPECT_EQ(run.requests[2].ordinal, 1);  // repeated key
  EXPECT_NEAR(run.Number("server_hit_rate"), 0.4, 1e-12);
  EXPECT_THAT(Problem(Write("v2.jsonl", R"({"format":"assay-serving-records","version":2})"
                                        "\n")),
              testing::HasSubstr("version 2 of the record form"));
  EXPECT_THAT(Problem(Write("bad.jsonl", header + "\n{\"conversation\":\"a\",\"ttft_s\":1}\n")),
              testing::HasSubstr("bad.jsonl line 2 has neither e2e_s nor an error"));
  EXPECT_EQ(Problem(Write("neg.jsonl",
                          header + "\n{\"conversation\":\"a\",\"ttft_s\":-1,\"e2e_s\":2}\n")),
            "neg.jsonl line 2 has a negative time of -1 s");
  EXPECT_EQ(Problem(Write("order.jsonl",
                          header + "\n{\"conversation\":\"a\",\"ttft_s\":3,\"e2e_s\":2}\n")),
            "order.jsonl line 2 has ttft_s 3 above e2e_s 2");
}

TEST_F(Readers, AssayCsvWithColumnNames) {
  LoadOptions options;
  options.columns = {{"e2e_s", "latency"}, {"request_id", "id"}};
  const std::string path =
      Write("r.csv", "id,ttft_s,latency,isl,osl\n\"x,1\",0.1,1.1,10,11\ny,0.1,0.3,10,3\n");
  const ServingRun run = LoadRun(path, options);
  EXPECT_EQ(run.key, KeyKind::kRequestId);
  EXPECT_EQ(run.names[0], "x,1");
  EXPECT_NEAR(run.requests[1].itl_s, 0.1, 1e-12);
  EXPECT_EQ(Problem(Write("s.csv", "ttft_s,e2e_s\n0.1,abc\n")),
            "s.csv line 2: e2e_s is \"abc\", not a number");
  EXPECT_EQ(Problem(Write("t.csv", "ttft_s,e2e_s\n0.1\n0.1,0.2\n")),
            "t.csv line 2 has 1 cells under a header of 2");
}

TEST_F(Readers, VllmDetailedWithoutLatencies) {
  const std::string text = R"({"backend":"vllm","model_id":"m","num_prompts":3,"request_rate":"inf",
    "completed":2,"duration":10.0,"total_input_tokens":30,"total_output_tokens":5,"mean_ttft_ms":1,
    "request_goodput:":null,"input_lens":[10,20,30],"output_lens":[1,4,0],"ttfts":[0.1,0.2,0],
    "itls":[[],[0.1,0.3],[]],"errors":["","","boom"]})";
  const ServingRun run = LoadRun(Write("v.json", text));
  EXPECT_EQ(run.inputs[0].schema, "vllm bench serve (detailed)");
  EXPECT_EQ(run.Fact("request_rate"), "inf");
  EXPECT_TRUE(std::isnan(run.requests[0].itl_s));  // OSL = 1
  EXPECT_NEAR(run.requests[1].e2e_s, 0.6, 1e-12);
  EXPECT_NEAR(run.requests[1].itl_s, 0.4 / 3, 1e-12);
  EXPECT_EQ(run.requests[2].outcome, Outcome::kError);
  EXPECT_THAT(run.notes,
              testing::Contains(testing::HasSubstr("1 of 3 requests have fewer chunks")));
  std::string broken = text;
  broken.replace(broken.find("[10,20,30]"), 10, "[10,20]");
  EXPECT_EQ(Problem(Write("w.json", broken)), "w.json: input_lens has 2 entries where ttfts has 3");
}

TEST_F(Readers, NanAndInfinityLiterals) {
  const std::string text =
      R"({"backend":"sglang","dataset_name":"random","request_rate":Infinity,"completed":2,)"
      R"("mean_ttft_ms":NaN,"median_ttft_ms":5.0,"duration":1.0})"
      "\n";
  const ServingRun run = LoadRun(Write("s.jsonl", text));
  EXPECT_EQ(run.Fact("request_rate"), "inf");
  EXPECT_DOUBLE_EQ(run.aggregate.at("ttft").At(0.5), 0.005);
  EXPECT_EQ(run.Fact("client"), "sglang bench_serving");
}

TEST_F(Readers, GenaiPerfTimeStamps) {
  const ServingRun run = LoadRun(Write("g.json", R"({"experiments":[{"requests":[
    {"timestamp":1000000000,"response_timestamps":[1100000000,1500000000]},
    {"timestamp":2000000000,"response_timestamps":[]}]}]})"));
  EXPECT_DOUBLE_EQ(run.requests[0].ttft_s, 0.1);
  EXPECT_DOUBLE_EQ(run.requests[0].e2e_s, 0.5);
  EXPECT_EQ(run.requests[1].outcome, Outcome::kError);
}

TEST_F(Readers, MlperfLogAndValidity) {
  const ServingRun run =
      LoadRun(Write("mlperf_log_detail.txt",
                    ":::MLLOG {\"key\": \"result_mean_latency_ns\", \"value\": 2000000000}\n"
                    ":::MLLOG {\"key\": \"result_validity\", \"value\": \"INVALID\"}\n"));
  EXPECT_DOUBLE_EQ(run.aggregate.at("e2el").mean, 2);
  EXPECT_EQ(run.Fact("invalid"), "MLPerf LoadGen says INVALID");
}

TEST_F(Readers, BundleWithSidecars) {
  Write("run/profile_export.jsonl", AiperfLine(0) + AiperfLine(1));
  Write(
      "run/facts.json",
      R"({"facts":{"image":"img:1","model_revision":"r1"},"numbers":{"treated_step_share":0.9}})");
  Write("run/server.log",
        "INFO max_total_num_tokens=123456\nDecode batch, accept len: 2.5\nDecode batch, accept "
        "len: 3.5\n");
  Write("run/clocks.csv", "timestamp, clocks.current.sm [MHz]\n1, 1800 MHz\n2, 1700 MHz\n");
  Write("run/vllm_command.txt",
        "vllm serve the/model --tensor-parallel-size=8 --port 1 --kv-cache-dtype fp8\n");
  Write("run/notes.md", "anything\n");
  const ServingRun run = LoadRun((folder_ / "run").string());
  EXPECT_EQ(run.inputs.size(), 5u);
  EXPECT_EQ(run.Fact("image"), "img:1");
  EXPECT_EQ(run.Fact("tp"), "8");
  EXPECT_EQ(run.Fact("model"), "the/model");
  EXPECT_EQ(run.Fact("server.kv-cache-dtype"), "fp8");
  EXPECT_EQ(run.Fact("server.port"), "");
  EXPECT_DOUBLE_EQ(run.Number("accept_length"), 3);
  EXPECT_DOUBLE_EQ(run.Number("kv_pool_tokens"), 123456);
  EXPECT_DOUBLE_EQ(run.Number("sm_clock_mhz"), 1750);
  Write("run/again.jsonl", AiperfLine(0));
  EXPECT_EQ(Problem((folder_ / "run").string()),
            "run holds 2 files with requests: a bundle is one run");
}

TEST_F(Readers, SidecarBesideAFile) {
  Write(
      "q.commands",
      R"({"client_command":"python3 benchmark_serving.py --seed 7 --model=m","gpu_type":"H200 x 2"})");
  const ServingRun run =
      LoadRun(Write("q.json", R"({"completed":2,"mean_ttft_ms":1,"duration":1})"));
  EXPECT_EQ(run.Fact("seed"), "7");
  EXPECT_EQ(run.Fact("node_type"), "H200");
  EXPECT_EQ(run.Fact("node_count"), "2");
}

TEST_F(Readers, SubagentsBelongToTheirRootsPlay) {
  const auto line = [](const std::string& conversation, const std::string& root, int turn,
                       int start) {
    return R"({"metadata":{"conversation_id":")" + conversation +
           R"(","source_trace_id":"t","turn_index":)" + std::to_string(turn) +
           R"(,"root_correlation_id":")" + root + R"(","request_start_ns":)" +
           std::to_string(start) +
           R"(,"benchmark_phase":"profiling"},"metrics":{"request_latency":)" +
           R"({"value":1,"unit":"ms"}}})"
           "\n";
  };
  const ServingRun run =
      LoadRun(Write("a.jsonl", line("t", "r1", 0, 10) + line("t::sa:x", "r1", 0, 20) +
                                   line("t", "r2", 0, 30) + line("t", "r2", 1, 40)));
  EXPECT_EQ(run.names[static_cast<std::size_t>(run.requests[0].cluster)], "t#0");
  EXPECT_EQ(run.requests[1].cluster, run.requests[0].cluster);
  EXPECT_NE(run.requests[1].conversation, run.requests[0].conversation);
  EXPECT_EQ(run.names[static_cast<std::size_t>(run.requests[2].cluster)], "t#1");
  EXPECT_EQ(run.requests[2].ordinal, 1);
  EXPECT_EQ(run.requests[3].ordinal, 1);
}

TEST_F(Readers, AccuracyFiles) {
  const AccuracyRun csv =
      ReadAccuracy(Write("a.csv", "problem,sample,correct\np1,0,1\np1,1,0\np2,0,1\n"));
  ASSERT_EQ(csv.problems.size(), 2u);
  EXPECT_EQ(csv.problems[0].scores.size(), 2u);
  const AccuracyRun json = ReadAccuracy(
      Write("a.jsonl", "{\"simulated_acceptance\":true}\n{\"problem\":\"p\",\"correct\":true}\n"));
  EXPECT_TRUE(json.simulated_acceptance);
  EXPECT_THROW(ReadAccuracy(Write("b.csv", "problem,correct\np1,7\n")), Error);
}

TEST(JsonLines, NumbersWrittenAsText) {
  EXPECT_EQ(NumberOfText("inf"), std::numeric_limits<double>::infinity());
  EXPECT_EQ(NumberOfText(" 4.5 "), 4.5);
  EXPECT_EQ(NumberOfText("true"), 1);
  EXPECT_TRUE(std::isnan(NumberOfText("4.5x")));
  EXPECT_TRUE(std::isnan(NumberOfText("")));
}

TEST(Facts, NormalisedValuesAndCommands) {
  EXPECT_EQ(NormaliseFact("4.0"), "4");
  EXPECT_EQ(NormaliseFact("True"), "true");
  EXPECT_EQ(NormaliseFact(" x "), "x");
  EXPECT_EQ(NormaliseFact("0012"), "0012");
  EXPECT_EQ(NormaliseFact("1e10"), "1e10");  // may be a commit
  EXPECT_THAT(SplitCommand("a 'b c' \"d\\\" e\\ f"), testing::SizeIs(testing::Ge(3u)));
  EXPECT_THAT(SplitCommand("x --a='1 2' b\\ c"), testing::ElementsAre("x", "--a=1 2", "b c"));
  EXPECT_EQ(GateOfFact("tp"), "G03");
  EXPECT_EQ(GateOfFact("server.block-size"), "G01");
}

}  // namespace
}  // namespace assay::serving
