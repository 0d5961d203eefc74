// The suite `step`: one decode step of GLM-5.3-Flash, operator by operator. Nothing of it was
// captured, so shapes come from the model's sizes and uuids from the shapes.
#include "replay/import.h"

namespace assay {
namespace {

// Rows of a step: decode of 1 to 16 requests, or drafts of 1, 2 or 4 requests being verified.
constexpr std::int64_t kRows[] = {1, 2, 4, 8, 16};
constexpr const char* kSelected = "nope_mla_decode_h64_d512_top512_c4";

Workload StepWorkload(const std::string& definition, Axes axes, Attributes attributes = {}) {
  Workload workload;
  workload.definition = definition;
  std::string name = "assay/step/" + definition;
  for (const auto& [axis, value] : axes) name += "/" + axis + "=" + std::to_string(value);
  workload.uuid = UuidOfName(name);
  workload.axes = std::move(axes);
  workload.attributes = std::move(attributes);
  workload.model = "GLM-5.3-Flash";
  workload.phase = "decode";
  workload.request = "step";
  return workload;
}

// Index scores over contexts of 8 to 128 thousand tokens: decoding, and drafts being verified.
void AddIndexWorkloads(std::vector<Workload>& workloads) {
  struct Shape {
    std::int64_t requests, rows, tokens;
  };
  constexpr Shape kShapes[] = {{1, 1, 8192},  {1, 1, 32768}, {1, 1, 131072}, {4, 1, 8192},
                               {4, 1, 32768}, {16, 1, 8192}, {1, 4, 32768},  {4, 4, 8192}};
  constexpr std::int64_t kPageTokens = 256;
  for (const auto& [requests, rows, tokens] : kShapes) {
    // Each request is 37 tokens shorter than the one before, so that tails and pages differ.
    std::vector<std::int64_t> lengths;
    std::int64_t pages = 0;
    for (std::int64_t b = 0; b < requests; ++b) {
      lengths.push_back(tokens - 37 * b);
      pages += (lengths.back() / 4 + 63) / 64;
    }
    workloads.push_back(
        StepWorkload("kpool_index_decode_h32_d128_topk512_c4",
                     {{"B", requests}, {"V", rows}, {"MP", tokens / kPageTokens}, {"NP", pages}},
                     {{"sequence_lengths", lengths}}));
  }
}

}  // namespace

std::vector<Workload> StepWorkloads() {
  std::vector<Workload> workloads;
  // The recurrence; the other head counts are what one GPU holds at tensor parallel 2, 4, 8.
  for (const std::int64_t heads : {64, 32, 16, 8}) {
    for (const std::int64_t rows : kRows) {
      workloads.push_back(StepWorkload("kda_decode_h" + std::to_string(heads) + "_d128",
                                       {{"batch_size", rows}},
                                       {{"gate_kind", "bounded"}, {"lower_bound", -5.0}}));
    }
  }
  // The recurrence of drafts: 1, 2 or 4 requests with 2 to 8 rows each.
  for (const std::int64_t requests : {1, 2, 4}) {
    for (const std::int64_t rows : {2, 4, 6, 8}) {
      workloads.push_back(StepWorkload("kda_verify_h64_d128",
                                       {{"batch_size", requests}, {"rows", rows}},
                                       {{"gate_kind", "bounded"}, {"lower_bound", -5.0}}));
    }
  }
  // Latent attention at 8,192 tokens (decode, then verify with 3 drafts), at 131,072, and of
  // contexts that need no selection.
  const auto attend = [&](const std::string& definition, std::int64_t requests, std::int64_t rows,
                          std::int64_t pages) {
    workloads.push_back(StepWorkload(
        definition, {{"B", requests}, {"MP", pages}, {"NP", requests * pages}, {"V", rows}}));
  };
  for (const std::int64_t rows : kRows) attend(kSelected, rows, 1, 128);
  for (const std::int64_t requests : {1, 2, 4}) attend(kSelected, requests, 4, 128);
  for (const std::int64_t rows : {1, 4}) attend(kSelected, 1, rows, 2048);
  for (const std::int64_t requests : {1, 4})
    attend("nope_mla_decode_h64_d512_all", requests, 1, 32);
  for (const char* format : {"w8_decode_fp8", "w4_decode_mxfp4", "w4_decode_nvfp4"}) {
    for (const std::int64_t rows : kRows) {
      workloads.push_back(
          StepWorkload(std::string("moe_") + format + "_e288_h4096_i2048_k8", {{"M", rows}}));
    }
  }
  for (const std::int64_t rows : kRows) {
    // Every sublayer's input; the norms of low ranks, latent and end; expert and dense activations
    // (an expert row is a token and expert: 8 routed ones a token).
    workloads.push_back(StepWorkload("mhc_mix_n4096_s4", {{"M", rows}}));
    for (const char* definition : {"rms_norm_n4096", "rms_norm_n1536", "rms_norm_n512"}) {
      workloads.push_back(StepWorkload(definition, {{"M", rows}}));
    }
    workloads.push_back(StepWorkload("swiglu_n2048", {{"M", 8 * rows}}));
    workloads.push_back(StepWorkload("swiglu_n12288", {{"M", rows}}));
  }
  AddIndexWorkloads(workloads);
  return workloads;
}

}  // namespace assay
