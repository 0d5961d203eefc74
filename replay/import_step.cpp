// The suite `step`: one decode step of GLM-5.3-Flash, operator by operator. Nothing of it was
// captured, so shapes come from the model's sizes and uuids from the shapes.
#include "replay/import.h"

namespace assay {
namespace {

// Rows of a step: decode of 1 to 16 requests, or drafts of 1, 2 or 4 requests being verified.
constexpr std::int64_t kRows[] = {1, 2, 4, 8, 16};

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
  return workloads;
}

}  // namespace assay
