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
  return workloads;
}

}  // namespace assay
