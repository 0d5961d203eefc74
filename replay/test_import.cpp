// The importer on records made here (the captured file itself: tests/test_captured_records.cpp).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/file.h"
#include "replay/import.h"

namespace assay {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using List = std::vector<std::int64_t>;

// Calls `read` with the path of a file that holds `content` and exists only meanwhile.
template <class Read>
auto WithFile(const std::string& content, const Read& read) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("assay_import_" + std::to_string(::getpid()) + ".json");
  WriteFile(path.string(), content);
  struct Remover {
    const std::filesystem::path& path;
    ~Remover() { std::filesystem::remove(path); }
  } remover{path};
  return read(path.string());
}

Suite ImportText(const std::string& content) {
  return WithFile(content, [](const auto& path) { return ImportRecords(path, Registry({})); });
}

std::string Hash(char digit) { return std::string(64, digit); }

json Blob(char digit) {
  return {{"path", "blob/workloads/d/" + Hash(digit) + ".safetensors"},
          {"tensor_key", "tensor"},
          {"type", "safetensors"}};
}

json ImageRecord(const std::string& uuid, std::int64_t rows, char output) {
  return {{"uuid", uuid},
          {"definition", "dense_gemm_bf16_nt_n4096_k4096"},
          {"axes", {{"M", rows}}},
          {"model", "image"},
          {"model_batch_size", 1},
          {"module_path", "transformer_blocks.0.attn.to_q"},
          {"step", 0},
          {"variant", "rows_" + std::to_string(rows)},
          {"request_id", "edit"},
          {"request", {{"prompt", "A red teapot."}, {"size", "1024x768"}, {"n", 1}}},
          {"reference_image_sha256", Hash('9')},
          {"server_command", {"serve", "--port", "1"}},
          {"expected_output", Blob(output)},
          {"validation",
           {{"status", "passed"}, {"max_absolute_errors", {0.25}}, {"tolerances", {{"x", 1}}}}}};
}

TEST(Import, KeepsWhatGeneratorsNeedAndDropsProse) {
  const Suite suite = ImportText(ImageRecord("a", 3072, '1').dump());
  ASSERT_THAT(suite.problems, IsEmpty());
  const Workload& w = suite.workloads.at(0);
  EXPECT_EQ(w.extra, "");
  EXPECT_EQ(w.phase, "denoise");
  EXPECT_EQ(w.request, "edit");
  EXPECT_EQ(w.attributes,
            (Attributes{{"expected_output", Hash('1')},
                        {"height", std::int64_t{768}},
                        {"model_batch_size", std::int64_t{1}},
                        {"module_path", std::string("transformer_blocks.0.attn.to_q")},
                        {"reference_image", std::int64_t{1}},
                        {"step", std::int64_t{0}},
                        {"variant", std::string("rows_3072")},
                        {"width", std::int64_t{1024}}}));
  EXPECT_THAT(WorkloadToJson(w), Not(HasSubstr("teapot")));
}

TEST(Import, PhasesAndSharedContent) {
  const Suite suite = ImportText(
      ImageRecord("a", 3072, '1').dump() + "\n" + ImageRecord("b", 3072, '1').dump() + "\n" +
      ImageRecord("c", 3101, '2').dump() + "\n" + ImageRecord("d", 3072, '1').dump());
  ASSERT_EQ(suite.workloads.size(), 4u);
  EXPECT_EQ(suite.workloads[0].content_id, "");
  EXPECT_EQ(suite.workloads[1].content_id, "a");
  EXPECT_EQ(suite.workloads[2].content_id, "");
  EXPECT_EQ(suite.workloads[3].content_id, "a");
  EXPECT_EQ(suite.workloads[2].phase, "prefix") << "3101 rows are not 64 x 48 latent tokens";
}

TEST(Import, DecodeBatches) {
  const auto member = [](std::int64_t input, std::int64_t output, std::int64_t reusable) {
    return json{{"input_tokens", input},
                {"output_tokens", output},
                {"reusable_prefix_tokens", reusable},
                {"session_id", "secret"}};
  };
  json record = {{"uuid", "a"},
                 {"definition", "qsa"},
                 {"axes", {{"B", 2}}},
                 {"scheduler_mode", "decode"},
                 {"scheduler_sequence_lengths", {12, 22}},
                 {"members", {member(11, 5, 0), member(21, 9, 8)}},
                 {"expected_output", {{"ids", Blob('a')}, {"weights", Blob('b')}}},
                 {"original_physical_page_ids", Blob('c')}};
  const Suite suite = ImportText(record.dump());
  ASSERT_THAT(suite.problems, IsEmpty());
  const Workload& w = suite.workloads.at(0);
  EXPECT_EQ(w.phase, "decode");
  EXPECT_EQ(w.attributes, (Attributes{{"expected_ids", Hash('a')},
                                      {"expected_weights", Hash('b')},
                                      {"member_input_tokens", List{11, 21}},
                                      {"member_output_tokens", List{5, 9}},
                                      {"member_reusable_tokens", List{0, 8}},
                                      {"original_physical_page_ids", std::string(16, 'c')},
                                      {"sequence_lengths", List{12, 22}}}));
}

TEST(Import, BadRecordsAreReportedAndSkipped) {
  json bad_size = ImageRecord("s", 3072, '1');
  bad_size["request"]["size"] = "1024*768";
  json bad_blob = ImageRecord("b", 3072, '1');
  bad_blob["expected_output"]["path"] = "blob/short.safetensors";
  const Suite suite = ImportText(bad_size.dump() + "\n" + bad_blob.dump() + "\n" +
                                 ImageRecord("a", 3072, '1').dump() + "\n{\"uuid\":");
  EXPECT_EQ(suite.workloads.size(), 1u);
  ASSERT_EQ(suite.problems.size(), 3u);
  EXPECT_THAT(suite.problems[0].message, HasSubstr("'1024*768' is not <width>x<height>"));
  EXPECT_THAT(suite.problems[1].message, HasSubstr("'blob/short.safetensors' is not named by"));
  EXPECT_THAT(suite.problems[2].message, HasSubstr("last line is cut off"));
}

// A member of any other form costs at most its own record, never the import.
TEST(Import, SurvivesEveryMemberOfAnyForm) {
  json record = ImageRecord("a", 3072, '1');
  record["members"] = {{{"input_tokens", 1}, {"output_tokens", 2}, {"reusable_prefix_tokens", 3}}};
  record["scheduler_sequence_lengths"] = {4, 5};
  record["engine_block_ids"] = Blob('b');
  const json forms = {
      nullptr,       true,           7,          -1.5,          "x",
      json::array(), json::object(), {{1}, "y"}, {{"path", 1}}, {{"size", 3}, {"status", {}}}};
  std::string file;
  std::size_t lines = 0;
  for (const auto& member : record.items()) {
    for (const json& form : forms) {
      json changed = record;
      changed["uuid"] = std::to_string(lines++);
      changed[member.key()] = form;
      file += changed.dump() + "\n";
    }
  }
  const Suite suite = ImportText(file);
  EXPECT_EQ(suite.workloads.size() + suite.problems.size(), lines);
  for (const SuiteProblem& problem : suite.problems) {
    EXPECT_THAT(problem.message, Not(HasSubstr("json.exception"))) << problem.line;
  }
}

TEST(Import, SmokeNeedsItsCapturedWorkloads) {
  EXPECT_THAT([] { SmokeWorkloads({}); },
              testing::ThrowsMessage<Error>(HasSubstr("no captured workload of dense_gemm")));
}

json ReplayEntry(std::int64_t heads, std::int64_t q_len, std::int64_t k_len, std::int64_t buffer) {
  return {{"context", {{"role", "self"}, {"layer", "blocks.0"}, {"start_frame", 9}}},
          {"q_shape", {q_len, heads, 128}},
          {"k_shape", {buffer, heads, 128}},
          {"q_len", q_len},
          {"k_len", k_len},
          {"configuration", "480x832_tp4_sp1"},
          {"audit_status", "pending"}};
}

std::vector<Workload> WorldModelOf(const json& entries) {
  return WithFile(entries.dump(), [](const auto& path) { return WorldModelWorkloads(path); });
}

TEST(WorldModel, OneWorkloadPerShape) {
  const json again = ReplayEntry(10, 30, 40, 190);
  const auto workloads = WorldModelOf({again, ReplayEntry(20, 30, 40, 190), again});
  ASSERT_EQ(workloads.size(), 2u);
  EXPECT_EQ(workloads[0].definition, "noncausal_dense_attention_h10_d128");
  EXPECT_EQ(workloads[0].axes, (Axes{{"B", 1}, {"Nk", 40}, {"Nq", 30}}));
  EXPECT_EQ(workloads[0].attributes.at("k_buffer"), AttributeValue(std::int64_t{190}));
  EXPECT_EQ(workloads[0].attributes.at("audit_pending"), AttributeValue(std::int64_t{2}));
  EXPECT_EQ(workloads[0].request, "worldmodel_480x832_self");
  // sha256sum of "assay/worldmodel/noncausal_dense_attention_h10_d128/30/40".
  EXPECT_EQ(workloads[0].uuid, "8628db6c-d52f-81e7-b876-e773e29c20a3");
}

TEST(WorldModel, BadFilesNameTheEntry) {
  EXPECT_THAT([] { WorldModelOf(json::object()); },
              testing::ThrowsMessage<Error>(HasSubstr("is not a list of replays")));
  EXPECT_THAT(
      [] {
        WorldModelOf({ReplayEntry(1, 2, 3, 4), json{{"context", 1}}});
      },
      testing::ThrowsMessage<Error>(HasSubstr("entry 1: ")));
  EXPECT_THAT(
      [] {
        WorldModelOf({ReplayEntry(1, 2, 3, 4), ReplayEntry(1, 2, 3, 5)});
      },
      testing::ThrowsMessage<Error>(HasSubstr("disagree")));
}

}  // namespace
}  // namespace assay
