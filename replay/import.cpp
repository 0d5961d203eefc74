#include "replay/import.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "replay/suite_reader.h"
#include "replay/workload_json.h"

namespace assay {
namespace {

using nlohmann::json;

// Members, at any depth, that are not even stored while parsing: most of the file's bytes. Sorted.
// clang-format off
constexpr std::array<std::string_view, 68> kDropped = {
    "actual_attention_batch", "actual_requested_output_tokens", "adapter", "agentx_dataset",
    "agentx_revision", "audio_precision_adapter", "audio_sdpa_backend", "block_size",
    "branch_id", "cache_predecessor_locator", "comparison", "conversion", "decoder_adapter",
    "device", "engine", "engine_adapter", "engine_expert_ids", "engine_expert_weights",
    "engine_version", "enhance_prompt", "extra_body", "fixture_sha256", "guidance_scale",
    "hash_id_scope", "in_256k_variant", "input_ids_sha256", "input_reference",
    "interface_curation", "label", "locator", "model_revision", "num_inference_steps",
    "output_adapter", "output_format", "overlap_profile", "padded_query", "physical_pages_4",
    "physical_pages_8", "process_id", "prompt", "prompt_reconstruction", "query_adapter",
    "response_format", "reusable_prefix_tokens_256k", "role", "sampling_adapter",
    "sampling_sigmas", "scheduling", "sdpa_backend", "seconds", "seed", "selection",
    "selection_order", "server_command", "serving_environment", "session_id", "source",
    "source_workload", "started_at", "t", "tensor_key", "tolerances", "torch", "type",
    "uncached_tokens", "uncached_tokens_256k", "video_precision_adapter", "video_sdpa_backend"};
// clang-format on

constexpr std::size_t kEvidenceDigits = 16;

const json* Member(const json& object, const char* name) {
  const auto member = object.find(name);
  return member == object.end() || member->is_null() ? nullptr : &*member;
}

std::int64_t IntegerOf(const json& object, const char* name) {
  const json* value = Member(object, name);
  if (value == nullptr || !value->is_number_integer()) {
    BadInput(std::string("'") + name + "' must be an integer");
  }
  return value->get<std::int64_t>();
}

// "768x448" -> width, height.
std::pair<std::int64_t, std::int64_t> ParseSize(const std::string& text) {
  std::int64_t width = 0, height = 0;
  const char* const end = text.data() + text.size();
  const auto [cross, width_error] = std::from_chars(text.data(), end, width);
  if (width_error == std::errc{} && cross != end && *cross == 'x') {
    const auto [rest, height_error] = std::from_chars(cross + 1, end, height);
    if (height_error == std::errc{} && rest == end) return {width, height};
  }
  BadInput("request size '" + text + "' is not <width>x<height>");
}

void AddRequest(const json& record, Attributes& attributes) {
  if (Member(record, "reference_image_sha256") != nullptr) {
    attributes["reference_image"] = std::int64_t{1};
  }
  const json* request = Member(record, "request");
  if (request == nullptr) return;
  if (const json* size = Member(*request, "size"); size != nullptr && size->is_string()) {
    const auto [width, height] = ParseSize(size->get_ref<const std::string&>());
    attributes["width"] = width;
    attributes["height"] = height;
  }
  for (const char* name : {"num_frames", "fps"}) {
    if (Member(*request, name) != nullptr) attributes[name] = IntegerOf(*request, name);
  }
}

// Who was in the decode batch: `members` of an overlap run, or the one profiled request.
void AddMembers(const json& record, Attributes& attributes) {
  const json* members = Member(record, "members");
  const json* single = Member(record, "agentx_profile");
  if (members == nullptr && single == nullptr) return;
  std::vector<std::int64_t> input, output, reusable;
  const auto add = [&](const json& member) {
    input.push_back(IntegerOf(member, "input_tokens"));
    output.push_back(IntegerOf(member, "output_tokens"));
    reusable.push_back(IntegerOf(member, "reusable_prefix_tokens"));
  };
  if (members != nullptr) {
    for (const json& member : *members) add(member);
  } else {
    add(*single);
  }
  attributes["member_input_tokens"] = std::move(input);
  attributes["member_output_tokens"] = std::move(output);
  attributes["member_reusable_tokens"] = std::move(reusable);
}

// The 64 digits of "blob/workloads/<definition>/<SHA-256>.safetensors".
std::string BlobHash(const json& reference) {
  constexpr std::string_view kSuffix = ".safetensors";
  const json* path = Member(reference, "path");
  if (path == nullptr || !path->is_string()) BadInput("a blob reference has no path");
  const std::string& text = path->get_ref<const std::string&>();
  const std::size_t start = text.rfind('/') + 1;  // npos + 1 = 0
  const std::string hash = text.substr(start, 64);
  if (text.size() != start + 64 + kSuffix.size() || !text.ends_with(kSuffix) ||
      hash.find_first_not_of("0123456789abcdef") != std::string::npos) {
    BadInput("blob path '" + text + "' is not named by a SHA-256");
  }
  return hash;
}

void AddBlobs(const json& record, Attributes& attributes) {
  if (const json* output = Member(record, "expected_output")) {
    if (output->contains("path")) {
      attributes["expected_output"] = BlobHash(*output);
    } else {
      for (const auto& [name, part] : output->items()) {
        attributes["expected_" + name] = BlobHash(part);
      }
    }
  }
  for (const char* name : {"engine_block_ids", "original_physical_page_ids"}) {
    if (const json* blob = Member(record, name)) {
      attributes[name] = BlobHash(*blob).substr(0, kEvidenceDigits);
    }
  }
}

template <class T>
T AttributeOr(const Attributes& attributes, std::string_view name, T fallback) {
  const auto it = attributes.find(name);
  if (it == attributes.end()) return fallback;
  const T* value = std::get_if<T>(&it->second);
  return value == nullptr ? fallback : *value;
}

// The image model works on a latent of one token per 16x16 pixels. A GEMM over any other number of
// rows belongs to the pass over the edit request's text and reference image, done once at step 0.
bool IsImagePrefix(const Workload& workload) {
  if (workload.definition.ends_with("_prefix0")) return true;
  if (!workload.definition.starts_with("dense_gemm_")) return false;
  const auto number = [&](const char* name) {
    return AttributeOr<std::int64_t>(workload.attributes, name, 0);
  };
  const auto rows = workload.axes.find("M");
  return rows != workload.axes.end() && rows->second != number("model_batch_size") *
                                                            (number("width") / 16) *
                                                            (number("height") / 16);
}

std::string PhaseOf(const Workload& workload) {
  if (!workload.phase.empty()) return workload.phase;  // the scheduler's mode
  if (workload.definition.starts_with("gdn_decode")) return "decode";
  if (workload.definition.starts_with("gdn_prefill")) return "prefill";
  if (IsImagePrefix(workload)) return "prefix";
  const auto module = AttributeOr<std::string>(workload.attributes, "module_path", "");
  return module.starts_with("diffusion_decoder") ? "vae" : "denoise";
}

Workload Compact(json& record) {
  Workload workload = TakeWorkload(record);
  AddRequest(record, workload.attributes);
  AddMembers(record, workload.attributes);
  AddBlobs(record, workload.attributes);
  workload.phase = PhaseOf(workload);
  return workload;
}

// Dense products of equal inputs are equal and, in bf16 with random data, only those.
void ShareContent(std::vector<Workload>& workloads) {
  std::map<std::pair<std::string, std::string>, std::string> first;
  for (Workload& workload : workloads) {
    if (!workload.definition.starts_with("dense_gemm_")) continue;
    const auto output = AttributeOr<std::string>(workload.attributes, "expected_output", "");
    if (output.empty()) continue;
    const auto [owner, added] =
        first.emplace(std::pair(workload.definition, output), workload.uuid);
    if (!added) workload.content_id = owner->second;
  }
}

// One smoke case: the first captured workload of the definition with these axes.
struct SmokeChoice {
  const char* definition;
  Axes axes;
};

const std::vector<SmokeChoice>& SmokeChoices() {
  static const std::vector<SmokeChoice> choices = {
      // The two smallest captured row counts; 4125 has a ragged tail.
      {"dense_gemm_bf16_nt_n12288_k4096", {{"M", 4096}}},
      {"dense_gemm_bf16_nt_n12288_k4096", {{"M", 4125}}},
      {"dense_gemm_bf16_nt_n4096_k4096", {{"M", 4096}}},
      {"dense_gemm_bf16_nt_n4096_k4096", {{"M", 4125}}},
      {"dense_gemm_bf16_nt_n4096_k12288", {{"M", 4096}}},
      {"dense_gemm_bf16_nt_n4096_k12288", {{"M", 4125}}},
      // Self and cross attention of one small video, in both head sizes and both directions.
      {"noncausal_dense_attention_h32_d128", {{"B", 1}, {"Nk", 1120}, {"Nq", 1120}}},
      {"noncausal_dense_attention_h32_d128", {{"B", 1}, {"Nk", 1024}, {"Nq", 1120}}},
      {"noncausal_dense_attention_h32_d64", {{"B", 1}, {"Nk", 51}, {"Nq", 51}}},
      {"noncausal_dense_attention_h32_d64", {{"B", 1}, {"Nk", 1120}, {"Nq", 51}}},
      {"noncausal_dense_attention_h32_d64", {{"B", 1}, {"Nk", 126}, {"Nq", 2560}}},
      {"prefix_cached_block_causal_h32_d128", {{"B", 1}, {"Np", 25}, {"Nq", 4096}}},
      {"prefix_cached_block_causal_h32_d128", {{"B", 1}, {"Np", 32}, {"Nq", 4096}}},
      // Pure text, then text - reference image - text.
      {"prefix_cached_block_causal_h32_d128_prefix0", {{"B", 1}, {"Nq", 25}}},
      {"prefix_cached_block_causal_h32_d128_prefix0", {{"B", 1}, {"Nq", 32}}},
      {"prefix_cached_block_causal_h32_d128_prefix0", {{"B", 1}, {"Nq", 4125}}},
      {"gdn_decode_qk4_v8_d128_k_last", {{"batch_size", 1}}},
      {"gdn_decode_qk4_v8_d128_k_last", {{"batch_size", 8}}},
      {"gdn_decode_qk4_v8_d128_k_last", {{"batch_size", 64}}},
      // One short sequence, one longer than two chunks, ragged batches, one long.
      {"gdn_prefill_qk4_v8_d128_k_last",
       {{"len_cu_seqlens", 2}, {"num_seqs", 1}, {"total_seq_len", 6}}},
      {"gdn_prefill_qk4_v8_d128_k_last",
       {{"len_cu_seqlens", 2}, {"num_seqs", 1}, {"total_seq_len", 134}}},
      {"gdn_prefill_qk4_v8_d128_k_last",
       {{"len_cu_seqlens", 5}, {"num_seqs", 4}, {"total_seq_len", 959}}},
      {"gdn_prefill_qk4_v8_d128_k_last",
       {{"len_cu_seqlens", 2}, {"num_seqs", 1}, {"total_seq_len", 2107}}},
      // A cold prompt whose lists are short, in both ratios; windows alone, cold and behind a
      // prefix.
      {"sparse_mla_prefill_h64_d512_k640", {{"M", 128}, {"Nkv", 192}}},
      {"sparse_mla_prefill_h64_d512_k640", {{"M", 128}, {"Nkv", 256}}},
      {"sparse_mla_prefill_h64_d512_k128", {{"M", 128}, {"Nkv", 128}}},
      {"sparse_mla_prefill_h64_d512_k128", {{"M", 448}, {"Nkv", 575}}},
      // One short request, one long, three with a common prefix.
      {"mixed_mla_decode_deepseek41_h64_d512_k8128_k4512",
       {{"B", 1}, {"N4", 1}, {"N8", 1}, {"P4", 128}, {"P8", 256}}},
      {"mixed_mla_decode_deepseek41_h64_d512_k8128_k4512",
       {{"B", 1}, {"N4", 457}, {"N8", 1}, {"P4", 128}, {"P8", 256}}},
      {"mixed_mla_decode_deepseek41_h64_d512_k8128_k4512",
       {{"B", 3}, {"N4", 146}, {"N8", 4}, {"P4", 128}, {"P8", 256}}},
      // One token, and prefills of one tile and of several.
      {"moe_router_gemm_topk_deepseek41_d5120_e384_topk6", {{"M", 1}}},
      {"moe_router_gemm_topk_deepseek41_d5120_e384_topk6", {{"M", 128}}},
      {"moe_router_gemm_topk_deepseek41_d5120_e384_topk6", {{"M", 448}}},
      // One and two tokens: the weights of 6 and of up to 12 experts.
      {"grouped_gemm_fp8_fp4_e384_n4608_k5120_g32", {{"M", 6}}},
      {"grouped_gemm_fp8_fp4_e384_n4608_k5120_g32", {{"M", 12}}},
      {"grouped_gemm_fp8_fp4_e384_n5120_k2304_g32", {{"M", 6}}},
      {"grouped_gemm_fp8_fp4_e384_n5120_k2304_g32", {{"M", 12}}},
      // A row that keeps everything, one that selects, three that share a prefix, nine rows.
      {"qsa_index_topk_decode_qwen38_h4_d128_topk512_c4",
       {{"B", 1}, {"MP", 2}, {"NP", 2}, {"P", 16}}},
      {"qsa_index_topk_decode_qwen38_h4_d128_topk512_c4",
       {{"B", 1}, {"MP", 46}, {"NP", 46}, {"P", 16}}},
      {"qsa_index_topk_decode_qwen38_h4_d128_topk512_c4",
       {{"B", 3}, {"MP", 554}, {"NP", 580}, {"P", 16}}},
      {"qsa_index_topk_decode_qwen38_h4_d128_topk512_c4",
       {{"B", 9}, {"MP", 505}, {"NP", 891}, {"P", 16}}},
      {"qsa_sparse_gqa_decode_qwen38_h24_kv2_d256_topk512_c4",
       {{"B", 1}, {"MP", 3}, {"NP", 3}, {"P", 64}}},
      {"qsa_sparse_gqa_decode_qwen38_h24_kv2_d256_topk512_c4",
       {{"B", 1}, {"MP", 47}, {"NP", 47}, {"P", 64}}},
      {"qsa_sparse_gqa_decode_qwen38_h24_kv2_d256_topk512_c4",
       {{"B", 3}, {"MP", 555}, {"NP", 583}, {"P", 64}}},
      // The two smallest grids of each stage. (The last stage's smallest is 0.7 TFLOP: left out.)
      {"neighborhood_attention_3d_h32_d64_kt3_ky7_kx7", {{"B", 1}, {"T", 9}, {"X", 16}, {"Y", 10}}},
      {"neighborhood_attention_3d_h32_d64_kt3_ky7_kx7", {{"B", 1}, {"T", 9}, {"X", 24}, {"Y", 14}}},
      {"neighborhood_attention_3d_h16_d64_kt3_ky7_kx7", {{"B", 1}, {"T", 9}, {"X", 32}, {"Y", 20}}},
      {"neighborhood_attention_3d_h16_d64_kt3_ky7_kx7",
       {{"B", 1}, {"T", 18}, {"X", 32}, {"Y", 20}}},
      {"neighborhood_attention_3d_h8_d64_kt3_ky5_kx5", {{"B", 1}, {"T", 17}, {"X", 32}, {"Y", 20}}},
      {"neighborhood_attention_3d_h8_d64_kt3_ky5_kx5", {{"B", 1}, {"T", 35}, {"X", 32}, {"Y", 20}}},
  };
  return choices;
}

}  // namespace

Suite ImportRecords(const std::string& path, const Registry& registry) {
  Suite suite = ReadRecords(path, registry, kDropped, Compact);
  ShareContent(suite.workloads);
  return suite;
}

std::vector<Workload> SmokeWorkloads(const std::vector<Workload>& captured) {
  std::vector<Workload> chosen;
  for (const SmokeChoice& choice : SmokeChoices()) {
    const auto found =
        std::find_if(captured.begin(), captured.end(), [&](const Workload& workload) {
          return workload.definition == choice.definition && workload.axes == choice.axes;
        });
    if (found == captured.end()) {
      BadInput(std::string("no captured workload of ") + choice.definition +
               " has the axes that the smoke suite wants");
    }
    chosen.push_back(*found);
  }
  return chosen;
}

}  // namespace assay
