// Identities of the language-model records: GDN (its two pages, section 5), and what every decode
// record must hold for the generators of paged attention. Also the shape of the smoke suite.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/captured_records.h"

namespace assay {
namespace {

using List = std::vector<std::int64_t>;

TEST(CapturedGdn, DecodeBatchSizes) {
  std::map<std::int64_t, int> counts;
  for (const Workload& w : Captured("gdn_decode")) {
    ++counts[w.axes.at("batch_size")];
    EXPECT_EQ(w.phase, "decode");
  }
  EXPECT_EQ(counts, (std::map<std::int64_t, int>{
                        {1, 10}, {4, 8}, {8, 7}, {16, 7}, {32, 7}, {48, 7}, {64, 8}}));
}

// num_seqs -> all total_seq_len, sorted, repeated as often as captured.
std::map<std::int64_t, List> PrefillTable() {
  return {
      {1, {6,  12, 13, 14, 16, 16, 16, 18, 23, 24, 30,  30,  30,  31,  35,   35,  48,
           49, 49, 49, 61, 67, 68, 79, 92, 97, 97, 116, 134, 134, 525, 1377, 2107}},
      {2, {28,  32,  35,  35,  40,  42,  46,  76,  76,  76,  81,  85,   91,   91,
           114, 114, 118, 132, 185, 248, 341, 461, 574, 983, 983, 2040, 3271, 5709}},
      {3, {82, 139, 139, 202, 239, 255, 294, 661, 973, 973, 1592, 1796, 1800, 1800, 2284, 2857}},
      {4, {401, 832, 959, 959}},
      {5, {3028}},
      {13, {3999}},
      {15, {4124}},
      {20, {8192}},
      {25, {8192}},
      {32, {8192, 8192}},
      {34, {8192, 8192}},
      {35, {8192}},
      {37, {8192}},
      {38, {8192, 8192}},
      {39, {8192}},
      {43, {8192, 8192}},
      {48, {8192}},
      {56, {8192}},
      {57, {8192}}};
}

TEST(CapturedGdn, PrefillShapes) {
  std::map<std::int64_t, List> shapes;
  std::set<std::pair<std::int64_t, std::int64_t>> distinct;
  int up_to_150 = 0, below_64 = 0;
  for (const Workload& w : Captured("gdn_prefill")) {
    const std::int64_t tokens = w.axes.at("total_seq_len"), sequences = w.axes.at("num_seqs");
    EXPECT_EQ(w.axes.at("len_cu_seqlens"), sequences + 1);
    EXPECT_EQ(w.phase, "prefill");
    shapes[sequences].push_back(tokens);
    distinct.insert({tokens, sequences});
    up_to_150 += tokens <= 150;
    below_64 += tokens < 64;
  }
  for (auto& [sequences, tokens] : shapes) std::sort(tokens.begin(), tokens.end());
  EXPECT_EQ(shapes, PrefillTable());
  EXPECT_EQ(distinct.size(), 77u);
  EXPECT_EQ(up_to_150, 51);
  EXPECT_EQ(below_64, 28);
}

// A member decodes at `step` iff output_tokens - 1 > step; its length is input + 1 + step.
TEST(CapturedDecode, LengthsFollowFromMembersAndStep) {
  int records = 0;
  for (const Workload& w : CommittedSuite("serving")) {
    if (w.phase != "decode" || w.definition.starts_with("gdn_")) continue;
    ++records;
    const List input = Ints(w, "member_input_tokens"), output = Ints(w, "member_output_tokens");
    ASSERT_EQ(input.size(), output.size());
    EXPECT_EQ(Ints(w, "member_reusable_tokens").size(), input.size());
    const std::int64_t step = Int(w, "step");
    List lengths;
    for (std::size_t i = 0; i < input.size(); ++i) {
      if (output[i] - 1 > step) lengths.push_back(input[i] + 1 + step);
    }
    EXPECT_EQ(Ints(w, "sequence_lengths"), lengths) << w.uuid;
    if (w.axes.contains("B")) {
      EXPECT_EQ(w.axes.at("B"), static_cast<std::int64_t>(lengths.size()));
    }
  }
  EXPECT_EQ(records, 552);
}

TEST(CapturedRecords, EveryRecordIsKept) {
  const std::map<std::string, int> expected = {
      {"dense_gemm_bf16_nt_n12288_k4096", 31},
      {"dense_gemm_bf16_nt_n4096_k4096", 31},
      {"dense_gemm_bf16_nt_n4096_k12288", 31},
      {"prefix_cached_block_causal_h32_d128", 28},
      {"prefix_cached_block_causal_h32_d128_prefix0", 12},
      {"noncausal_dense_attention_h32_d128", 54},
      {"noncausal_dense_attention_h32_d64", 108},
      {"neighborhood_attention_3d_h32_d64_kt3_ky7_kx7", 9},
      {"neighborhood_attention_3d_h16_d64_kt3_ky7_kx7", 9},
      {"neighborhood_attention_3d_h8_d64_kt3_ky5_kx5", 18},
      {"neighborhood_attention_3d_h4_d64_kt11_ky11_kx11", 9},
      {"qsa_index_topk_decode_qwen38_h4_d128_topk512_c4", 192},
      {"qsa_sparse_gqa_decode_qwen38_h24_kv2_d256_topk512_c4", 192},
      {"sparse_mla_prefill_h64_d512_k128", 10},
      {"sparse_mla_prefill_h64_d512_k640", 20},
      {"moe_router_gemm_topk_deepseek41_d5120_e384_topk6", 50},
      {"grouped_gemm_fp8_fp4_e384_n4608_k5120_g32", 52},
      {"grouped_gemm_fp8_fp4_e384_n5120_k2304_g32", 52},
      {"mixed_mla_decode_deepseek41_h64_d512_k8128_k4512", 42},
      {"gdn_decode_qk4_v8_d128_k_last", 54},
      {"gdn_prefill_qk4_v8_d128_k_last", 100}};
  std::map<std::string, int> definitions, phases;
  for (const Workload& w : CommittedSuite("serving")) {
    ++definitions[w.definition];
    ++phases[w.phase];
    EXPECT_EQ(w.validation.status, "passed");
    EXPECT_EQ(w.extra, "");
  }
  EXPECT_EQ(definitions, expected);
  // 93 GEMM - 9 + 28 + 162 denoise; 9 GEMM + 12 attention prefix; 58 + 100 prefill.
  EXPECT_EQ(phases,
            (std::map<std::string, int>{
                {"decode", 606}, {"denoise", 274}, {"prefill", 158}, {"prefix", 21}, {"vae", 45}}));
}

TEST(SmokeSuite, HoldsCapturedWorkloadsOfEveryDefinition) {
  std::map<std::string, std::string> captured;
  for (const Workload& w : CommittedSuite("serving")) captured[w.uuid] = WorkloadToJson(w);
  std::map<std::string, int> definitions;
  for (const Workload& w : CommittedSuite("smoke")) {
    ++definitions[w.definition];
    EXPECT_EQ(captured[w.uuid], WorkloadToJson(w));
  }
  for (const Workload& w : CommittedSuite("serving")) {
    if (BuiltInRegistry().FindDefinition(w.definition).family == nullptr) continue;
    // Its smallest captured case is 0.7 TFLOP.
    if (w.definition == "neighborhood_attention_3d_h4_d64_kt11_ky11_kx11") continue;
    EXPECT_GE(definitions[w.definition], 2) << w.definition;
  }
}

}  // namespace
}  // namespace assay
