// The captured file itself: what the pages say about its records as a whole, and that the committed
// suites are exactly what the importer makes of it. Skipped where the file is absent.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "io/file.h"
#include "replay/import.h"
#include "tests/captured_records.h"

namespace assay {
namespace {

using nlohmann::json;

constexpr const char* kRecords = "serving_workloads.jsonl";
constexpr const char* kReplays = "worldmodel_attention_replays.json";

const std::vector<json>& Records() {
  static const std::vector<json> records = [] {
    std::vector<json> parsed;
    const std::string content = ReadFile(CapturedFile(kRecords));
    for (std::size_t begin = 0; begin < content.size();) {
      const std::size_t end = std::min(content.find('\n', begin), content.size());
      parsed.push_back(json::parse(content.begin() + static_cast<std::ptrdiff_t>(begin),
                                   content.begin() + static_cast<std::ptrdiff_t>(end)));
      begin = end + 1;
    }
    return parsed;
  }();
  return records;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kWriteBackStride = 8;  // every eighth record: sanitizers slow JSON down 20x
#else
constexpr std::size_t kWriteBackStride = 1;
#endif

bool IsOf(const json& record, const char* prefix) {
  return record.at("definition").get<std::string>().starts_with(prefix);
}

std::string TextOf(const std::vector<Workload>& workloads) {
  std::string text;
  for (const Workload& workload : workloads) text += WorkloadToJson(workload) + "\n";
  return text;
}

std::string Committed(const std::string& name) {
  return ReadFile(std::string(ASSAY_SOURCE_DIR "/suites/") + name + ".jsonl");
}

TEST(CapturedFile, HasTheDocumentedRecords) {
  ASSAY_NEED_CAPTURED(kRecords);
  EXPECT_NE(ReadFile(CapturedFile(kRecords)).back(), '\n');
  ASSERT_EQ(Records().size(), 1104u);
  std::map<std::string, int> definitions, uuid_versions;
  std::set<std::string> models, uuids;
  std::map<std::string, std::set<std::string>> users_of_output;
  for (const json& record : Records()) {
    ++definitions[record.at("definition")];
    const std::string uuid = record.at("uuid");
    uuids.insert(uuid);
    ++uuid_versions[uuid.substr(14, 1)];
    models.insert(record.at("model"));
    EXPECT_EQ(record.at("validation").at("axes"), record.at("axes"));
    EXPECT_EQ(record.at("validation").at("uuid"), uuid);
    EXPECT_EQ(record.at("validation").at("status"), "passed");
    if (record.contains("expected_output") && record["expected_output"].contains("path")) {
      users_of_output[record["expected_output"]["path"]].insert(uuid);
    }
  }
  EXPECT_EQ(uuids.size(), 1104u);
  EXPECT_EQ(definitions.size(), 21u);
  EXPECT_EQ(models.size(), 5u);
  EXPECT_EQ(uuid_versions, (std::map<std::string, int>{{"4", 154}, {"5", 950}}));
  int shared = 0, sharing = 0;
  for (const auto& [path, users] : users_of_output) {
    if (users.size() < 2) continue;
    ++shared;
    sharing += static_cast<int>(users.size());
  }
  EXPECT_EQ(shared, 22);
  EXPECT_EQ(sharing, 63);
}

TEST(CapturedFile, CommittedSuitesAreRegeneratedByteForByte) {
  ASSAY_NEED_CAPTURED(kRecords);
  ASSAY_NEED_CAPTURED(kReplays);
  const Suite suite = ImportRecords(CapturedFile(kRecords), BuiltInRegistry());
  EXPECT_TRUE(suite.problems.empty());
  EXPECT_TRUE(TextOf(suite.workloads) == Committed("serving")) << "regenerate suites/serving.jsonl";
  EXPECT_EQ(TextOf(SmokeWorkloads(suite.workloads)), Committed("smoke"));
  EXPECT_EQ(TextOf(WorldModelWorkloads(CapturedFile(kReplays))), Committed("worldmodel"));
}

TEST(StepSuite, IsRegeneratedByteForByte) {
  EXPECT_TRUE(TextOf(StepWorkloads()) == Committed("step")) << "regenerate suites/step.jsonl";
  EXPECT_EQ(CommittedSuite("step").size(), StepWorkloads().size());
}

// Nothing of a record is lost by loading and writing it back, and nothing changes by doing it
// twice.
TEST(CapturedFile, LoadsAsASuiteAndWritesBack) {
  ASSAY_NEED_CAPTURED(kRecords);
  const Suite suite = LoadSuite(CapturedFile(kRecords), BuiltInRegistry());
  EXPECT_TRUE(suite.problems.empty());
  ASSERT_EQ(suite.workloads.size(), Records().size());
  for (std::size_t i = 0; i < suite.workloads.size(); i += kWriteBackStride) {
    const std::string written = WorkloadToJson(suite.workloads[i]);
    EXPECT_EQ(WorkloadToJson(WorkloadFromJson(written)), written);
    const json back = json::parse(written);
    for (const auto& [name, value] : Records()[i].items()) {
      const bool moved = name == "uuid" || name == "axes";
      const bool attribute = back.contains("attributes") && back["attributes"].contains(name);
      const std::string now = name == "scheduler_sequence_lengths" ? "sequence_lengths" : name;
      if (name == "prefix_segments") continue;  // flattened; compared in test_captured_image.cpp
      EXPECT_EQ(moved                                    ? back["workload"][name]
                : attribute || now == "sequence_lengths" ? back["attributes"][now]
                                                         : back[name],
                value)
          << name;
    }
  }
}

// Facts of the five pages that only the full records hold.
TEST(CapturedFile, DenseGemmRequests) {
  ASSAY_NEED_CAPTURED(kRecords);
  for (const json& record : Records()) {
    if (!IsOf(record, "dense_gemm_bf16_nt")) continue;
    EXPECT_EQ(record["request"]["n"], record["model_batch_size"]);
    EXPECT_EQ(record["request"]["num_inference_steps"], 8);
    EXPECT_EQ(record["sampling_sigmas"].size(), 8u);
    EXPECT_EQ(record["validation"]["tolerances"]["bfloat16"],
              (json{{"atol", 0.005}, {"rtol", 0.016}}));
  }
}

TEST(CapturedFile, AttentionCuration) {
  ASSAY_NEED_CAPTURED(kRecords);
  int curated = 0;
  for (const json& record : Records()) {
    const bool dense = IsOf(record, "noncausal_dense_attention");
    const bool prefix = IsOf(record, "prefix_cached_block_causal");
    EXPECT_EQ(record.contains("interface_curation"), dense || prefix);
    if (!dense && !prefix) continue;
    ++curated;
    const json& curation = record["interface_curation"];
    const json& removed = curation["removed_capture_only_inputs"];
    const json& replay = curation["previous_replay"];
    EXPECT_EQ(replay["max_absolute_errors"], record["validation"]["max_absolute_errors"]);
    if (dense) {
      EXPECT_EQ(removed, json({"sm_scale"}));
      EXPECT_EQ(replay["axes"], record["axes"]);
      EXPECT_EQ(record["actual_attention_batch"], record["axes"]["B"]);
      EXPECT_EQ(record["request"]["num_outputs_per_prompt"], record["axes"]["B"]);
      for (const char* name : {"sdpa_backend", "video_sdpa_backend", "audio_sdpa_backend"}) {
        EXPECT_EQ(record[name], "math");
      }
    } else {
      const bool empty_prefix = !record["axes"].contains("Np");
      const std::int64_t prefix_tokens =
          empty_prefix ? 0 : record["axes"]["Np"].get<std::int64_t>();
      EXPECT_EQ(replay["axes"]["Nall"], prefix_tokens + record["axes"]["Nq"].get<std::int64_t>());
      EXPECT_EQ(removed, empty_prefix ? json({"K_prefix", "V_prefix", "key_valid", "sm_scale"})
                                      : json({"image_ids", "key_valid", "sm_scale"}));
    }
  }
  EXPECT_EQ(curated, 202);
}

TEST(CapturedFile, GdnRecords) {
  ASSAY_NEED_CAPTURED(kRecords);
  int records = 0;
  for (const json& record : Records()) {
    EXPECT_EQ(record.contains("source_workload"), IsOf(record, "gdn_"));
    if (!IsOf(record, "gdn_")) continue;
    ++records;
    EXPECT_EQ(record["source_workload"], record["uuid"]);
    EXPECT_FALSE(record.contains("expected_output"));
    EXPECT_FALSE(record["validation"].contains("tolerances"));
    EXPECT_TRUE(record["model"].get<std::string>().starts_with("Qwen3-Next (TP=4), "));
    EXPECT_TRUE(record["validation"]["comparison"].get<std::string>().starts_with(
        "reference outputs have the declared shapes and dtypes and are finite"));
  }
  EXPECT_EQ(records, 154);
}

TEST(CapturedFile, WorldModelReplays) {
  ASSAY_NEED_CAPTURED(kReplays);
  const json entries = json::parse(ReadFile(CapturedFile(kReplays)));
  EXPECT_EQ(entries.size(), 1116u);
  int measured = 0, out_of_memory = 0, pending = 0;
  std::set<std::string> runs, configurations;
  for (const json& entry : entries) {
    measured += entry["status"] == "measured";
    pending += entry["audit_status"] == "pending";
    runs.insert(entry["replay_directory"]);
    configurations.insert(entry["configuration"]);
    if (entry["status"] == "measured") {
      EXPECT_EQ(entry["repeats"].size(), 3u);
      for (const json& repeat : entry["repeats"]) EXPECT_EQ(repeat["n"], 300);
    } else {
      ++out_of_memory;
      EXPECT_EQ(entry["backend"], "sdpa_math");
      EXPECT_EQ(entry["q_shape"][1], 40);
      EXPECT_GE(entry["k_len"], 42240);
    }
  }
  EXPECT_EQ(measured, 1112);
  EXPECT_EQ(out_of_memory, 4);
  EXPECT_EQ(pending, 72);
  EXPECT_EQ(runs.size(), 14u);
  EXPECT_EQ(configurations.size(), 12u);
}

}  // namespace
}  // namespace assay
