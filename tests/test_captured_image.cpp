// Identities of the image model's records: dense GEMM and prefix-cached attention (their pages,
// section 5), over the committed suite.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "tests/captured_records.h"

namespace assay {
namespace {

using List = std::vector<std::int64_t>;

constexpr std::int64_t kEditPrefixRows = 4125;  // 8 text + 4096 reference image + 21 text

bool IsEdit(const Workload& w) { return w.request.find("edit") != std::string::npos; }

std::int64_t LatentTokens(const Workload& w) {
  return (Int(w, "width") / 16) * (Int(w, "height") / 16);
}

std::map<std::int64_t, int> RowCounts(const std::vector<Workload>& workloads) {
  std::map<std::int64_t, int> counts;
  for (const Workload& w : workloads) ++counts[w.axes.at("M")];
  return counts;
}

TEST(CapturedImage, GemmRows) {
  for (const char* name : {"dense_gemm_bf16_nt_n12288_k4096", "dense_gemm_bf16_nt_n4096_k4096",
                           "dense_gemm_bf16_nt_n4096_k12288"}) {
    const std::map<std::int64_t, int> expected = {{4096, 9},  {6144, 3},  {4125, 3}, {8192, 6},
                                                  {16384, 6}, {12288, 2}, {24576, 2}};
    EXPECT_EQ(RowCounts(Captured(name)), expected) << name;
  }
  for (const Workload& w : Captured("dense_gemm_bf16_nt")) {
    const std::int64_t rows = w.axes.at("M");
    const bool edit_prefix = rows == kEditPrefixRows && IsEdit(w) && Int(w, "step") == 0;
    EXPECT_TRUE(edit_prefix || rows == Int(w, "model_batch_size") * LatentTokens(w)) << w.uuid;
    EXPECT_EQ(w.phase, edit_prefix ? "prefix" : "denoise");
    EXPECT_EQ(Text(w, "variant"), "rows_" + std::to_string(rows));
    EXPECT_EQ(w.model, "Qwen/Qwen-Image-2.1-Turbo");
    EXPECT_EQ(w.validation.max_absolute_errors.size(), 1u);
  }
}

TEST(CapturedImage, GemmStepsAndModules) {
  std::map<std::tuple<std::string, std::int64_t, std::int64_t>, std::set<std::string>> triples;
  for (const Workload& w : Captured("dense_gemm_bf16_nt")) {
    const std::int64_t batch = Int(w, "model_batch_size"), step = Int(w, "step");
    const List steps = Ints(w, "capture_steps");
    EXPECT_EQ(Int(w, "requested_outputs"), batch);
    EXPECT_EQ(steps, batch == 1 ? (List{0, 4, 7}) : (List{0, 7}));
    EXPECT_EQ(std::count(steps.begin(), steps.end(), step), 1);
    EXPECT_EQ(Text(w, "operation") == "torch.mm", Text(w, "module_path").ends_with("attn"));
    EXPECT_EQ(w.attributes.contains("reference_image"), IsEdit(w));
    EXPECT_TRUE((triples[{w.request, step, w.axes.at("M")}].insert(w.definition).second));
  }
  for (const auto& [key, definitions] : triples) EXPECT_EQ(definitions.size(), 3u);
}

// Which layer is the first with that (N,K) in the pass.
TEST(CapturedImage, GemmLayers) {
  for (const Workload& w : Captured("dense_gemm_bf16_nt")) {
    const std::string module = Text(w, "module_path");
    const bool single = Int(w, "model_batch_size") == 1 && w.axes.at("M") != kEditPrefixRows;
    const std::string block = "transformer_blocks.0.";
    if (w.definition.ends_with("n4096_k12288")) {
      EXPECT_EQ(module, block + "img_mlp.out");
    } else if (w.definition.ends_with("n12288_k4096")) {
      EXPECT_EQ(module, block + (single ? "attn" : "img_mlp.gate_layer"));
    } else {
      const bool first = w.request == "qwen_image21_square" && Int(w, "step") == 0;
      EXPECT_EQ(module, block + (single && !first ? "attn.to_out.0" : "attn.to_q"));
    }
  }
}

// Equal outputs have equal definition, rows and module, and share the first one's content.
TEST(CapturedImage, GemmOutputsAndContent) {
  std::map<std::string, std::vector<Workload>> by_output;
  std::map<std::string, std::set<std::string>> outputs;
  for (const Workload& w : Captured("dense_gemm_bf16_nt")) {
    by_output[Text(w, "expected_output")].push_back(w);
    outputs[w.definition].insert(Text(w, "expected_output"));
  }
  EXPECT_EQ(outputs["dense_gemm_bf16_nt_n12288_k4096"].size(), 27u);
  EXPECT_EQ(outputs["dense_gemm_bf16_nt_n4096_k4096"].size(), 25u);
  EXPECT_EQ(outputs["dense_gemm_bf16_nt_n4096_k12288"].size(), 29u);
  for (const auto& [output, group] : by_output) {
    for (const Workload& w : group) {
      EXPECT_EQ(w.definition, group[0].definition);
      EXPECT_EQ(w.axes, group[0].axes);
      EXPECT_EQ(Text(w, "module_path"), Text(group[0], "module_path"));
      EXPECT_EQ(w.content_id, w.uuid == group[0].uuid ? "" : group[0].uuid);
    }
  }
  for (const Workload& w : CommittedSuite("serving")) {
    EXPECT_TRUE(w.content_id.empty() || w.definition.starts_with("dense_gemm")) << w.uuid;
  }
}

// start, end, is_image per run: contiguous from 0 to `tokens`.
void ExpectSegments(const Workload& w, std::int64_t tokens) {
  const List segments = Ints(w, "prefix_segments");
  ASSERT_EQ(segments.size() % 3, 0u);
  ASSERT_FALSE(segments.empty());
  std::int64_t position = 0;
  for (std::size_t i = 0; i < segments.size(); i += 3) {
    EXPECT_EQ(segments[i], position);
    position = segments[i + 1];
  }
  EXPECT_EQ(position, tokens);
  const List edit = {0, 8, 0, 8, 4104, 1, 4104, 4125, 0};
  EXPECT_EQ(segments, tokens == kEditPrefixRows ? edit : (List{0, tokens, 0}));
}

TEST(CapturedImage, PrefixCachedAttention) {
  std::map<std::pair<std::int64_t, std::int64_t>, int> cached, prefix_only;
  std::map<std::string, std::set<std::string>> outputs;
  for (const Workload& w : Captured("prefix_cached_block_causal_h32_d128")) {
    const bool is_prefix_pass = w.definition.ends_with("_prefix0");
    const std::int64_t queries = w.axes.at("Nq");
    EXPECT_EQ(w.axes.at("B"), 1);
    EXPECT_EQ(w.phase, is_prefix_pass ? "prefix" : "denoise");
    outputs[w.definition].insert(Text(w, "expected_output"));
    ASSERT_EQ(w.validation.max_absolute_errors.size(), 1u);
    const double error = w.validation.max_absolute_errors[0];
    EXPECT_TRUE(error == 0.015625 || error == 0.03125) << error;
    if (is_prefix_pass) {
      ++prefix_only[{queries, 0}];
      EXPECT_EQ(Int(w, "step"), 0);
      EXPECT_EQ(Text(w, "operation"), "QwenImage21Attention.local_attn (all prefix segments)");
      ExpectSegments(w, queries);
    } else {
      ++cached[{queries, w.axes.at("Np")}];
      EXPECT_EQ(queries, LatentTokens(w));
      EXPECT_EQ(Text(w, "operation"), "QwenImage21Attention.target_attn");
      ExpectSegments(w, w.axes.at("Np"));
    }
  }
  using Counts = std::map<std::pair<std::int64_t, std::int64_t>, int>;
  EXPECT_EQ(cached, (Counts{{{4096, 25}, 7}, {{6144, 30}, 7}, {{4096, 4125}, 7}, {{4096, 32}, 7}}));
  EXPECT_EQ(prefix_only, (Counts{{{25, 0}, 3}, {{30, 0}, 3}, {{32, 0}, 3}, {{4125, 0}, 3}}));
  EXPECT_EQ(outputs["prefix_cached_block_causal_h32_d128"].size(), 12u);
  EXPECT_EQ(outputs["prefix_cached_block_causal_h32_d128_prefix0"].size(), 4u);
}

}  // namespace
}  // namespace assay
