// Identities of the video model's attention records and of the world-model shapes (page
// noncausal_dense_attention, section 5), over the committed suites.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "tests/captured_records.h"

namespace assay {
namespace {

constexpr std::int64_t kTextTokens = 1024;

std::int64_t VideoTokens(const Workload& w) {
  return ((Int(w, "num_frames") - 1) / 8 + 1) * (Int(w, "height") / 32) * (Int(w, "width") / 32);
}
std::int64_t AudioTokens(const Workload& w) { return 25 * Int(w, "num_frames") / Int(w, "fps"); }

// (Nq, Nk) of a variant.
std::pair<std::int64_t, std::int64_t> TokensOf(const Workload& w) {
  const std::int64_t video = VideoTokens(w), audio = AudioTokens(w);
  const std::map<std::string, std::pair<std::int64_t, std::int64_t>> table = {
      {"attn1", {video, video}},
      {"attn2", {video, kTextTokens}},
      {"audio_attn1", {audio, audio}},
      {"audio_attn2", {audio, kTextTokens}},
      {"audio_to_video_attn", {video, audio}},
      {"video_to_audio_attn", {audio, video}}};
  const auto found = table.find(Text(w, "variant"));
  return found == table.end() ? std::pair<std::int64_t, std::int64_t>{-1, -1} : found->second;
}

TEST(CapturedVideo, DenseAttention) {
  std::map<std::tuple<std::string, std::string, std::int64_t>, int> cases;
  std::map<std::string, int> records;
  std::set<std::string> requests;
  for (const Workload& w : Captured("noncausal_dense_attention_h32")) {
    ++records[w.definition];
    const std::string variant = Text(w, "variant");
    EXPECT_EQ(std::pair(w.axes.at("Nq"), w.axes.at("Nk")), TokensOf(w)) << w.uuid;
    EXPECT_EQ(w.axes.at("B"), Int(w, "requested_outputs"));
    EXPECT_EQ(Text(w, "module_path"), "transformer_blocks.0." + variant);
    EXPECT_EQ(w.definition.ends_with("_d128"), variant == "attn1" || variant == "attn2");
    EXPECT_EQ(w.phase, "denoise");
    EXPECT_EQ(w.attributes.contains("reference_image"),
              w.request.find("image_video") != std::string::npos);
    const std::int64_t step = Int(w, "step");
    EXPECT_TRUE(step == 0 || step == 4 || step == 7);
    requests.insert(w.request);
    ++cases[{w.request, variant, step}];
  }
  EXPECT_EQ(records, (std::map<std::string, int>{{"noncausal_dense_attention_h32_d128", 54},
                                                 {"noncausal_dense_attention_h32_d64", 108}}));
  EXPECT_EQ(requests.size(), 9u);
  EXPECT_EQ(cases.size(), 162u) << "9 requests x 6 variants x 3 steps, each once";
}

TEST(CapturedVideo, TokenCounts) {
  std::set<std::pair<std::int64_t, std::int64_t>> counts;
  for (const Workload& w : Captured("noncausal_dense_attention_h32")) {
    counts.insert({VideoTokens(w), AudioTokens(w)});
  }
  EXPECT_EQ(counts,
            (std::set<std::pair<std::int64_t, std::int64_t>>{{2352, 51}, {1120, 51}, {2560, 126}}));
}

// Outputs are distinct but for audio_attn1 at step 0 of text_video and image_video.
TEST(CapturedVideo, DenseAttentionOutputs) {
  std::map<std::string, std::set<std::string>> outputs;
  std::map<std::string, std::vector<Workload>> users;
  for (const Workload& w : Captured("noncausal_dense_attention_h32")) {
    outputs[w.definition].insert(Text(w, "expected_output"));
    users[Text(w, "expected_output")].push_back(w);
  }
  EXPECT_EQ(outputs["noncausal_dense_attention_h32_d128"].size(), 54u);
  EXPECT_EQ(outputs["noncausal_dense_attention_h32_d64"].size(), 105u);
  for (const auto& [output, group] : users) {
    if (group.size() == 1) continue;
    ASSERT_EQ(group.size(), 2u);
    EXPECT_EQ(group[0].axes, group[1].axes);
    std::set<std::string> requests;
    for (const Workload& w : group) {
      EXPECT_EQ(Text(w, "variant"), "audio_attn1");
      EXPECT_EQ(Int(w, "step"), 0);
      requests.insert(w.request.substr(0, std::string("ltx25_image_video").size()));
    }
    EXPECT_TRUE(requests.contains("ltx25_image_video"));
  }
}

// "704x1280_tp2_sp1" -> 2 * 1.
std::int64_t Parallelism(const std::string& configuration) {
  const std::size_t tp = configuration.find("_tp"), sp = configuration.find("_sp");
  return std::stoll(configuration.substr(tp + 3)) * std::stoll(configuration.substr(sp + 3));
}

TEST(WorldModelSuite, ShapesFollowFromTheStream) {
  const auto& workloads = CommittedSuite("worldmodel");
  ASSERT_EQ(workloads.size(), 24u);
  std::set<std::string> uuids, configurations;
  for (const Workload& w : workloads) {
    const std::int64_t frame_tokens = w.axes.at("Nq") / 3;
    const std::string configuration = Text(w, "configuration");
    EXPECT_EQ(w.axes.at("B"), 1);
    EXPECT_EQ(frame_tokens, configuration.starts_with("480x832") ? 1560 : 3520);
    if (w.request.ends_with("_cross")) {
      EXPECT_EQ(w.axes.at("Nk"), 512);
      EXPECT_EQ(Int(w, "k_buffer"), 512);
    } else {
      const auto start_frames = Ints(w, "start_frames");
      ASSERT_EQ(start_frames.size(), 1u);
      EXPECT_EQ(w.axes.at("Nk"), frame_tokens * std::min<std::int64_t>(18, start_frames[0] + 3));
      EXPECT_EQ(Int(w, "k_buffer"), frame_tokens * 19);
    }
    const std::size_t h = w.definition.find("_h") + 2;
    const std::int64_t heads = std::stoll(w.definition.substr(h));
    for (std::size_t begin = 0; begin < configuration.size();) {
      const std::size_t end = std::min(configuration.find(',', begin), configuration.size());
      const std::string name = configuration.substr(begin, end - begin);
      EXPECT_EQ(heads * Parallelism(name), 40) << name;
      configurations.insert(name);
      begin = end + 1;
    }
    EXPECT_EQ(w.uuid.size(), 36u);
    EXPECT_EQ(w.uuid[14], '8');
    uuids.insert(w.uuid);
  }
  EXPECT_EQ(uuids.size(), 24u);
  EXPECT_EQ(configurations.size(), 12u);
}

}  // namespace
}  // namespace assay
