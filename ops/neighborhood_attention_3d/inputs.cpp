// Definitions, tensors, validation and cost.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "ops/neighborhood_attention_3d/spec.h"
#include "ops/room.h"

namespace assay::neighborhood_attention_3d {
namespace {

Definition Row(const std::string& name, std::int64_t heads, std::int64_t kt, std::int64_t ky,
               std::int64_t kx) {
  return {"neighborhood_attention_3d_" + name,
          {{"H", heads}, {"D", kHeadDim}, {"kt", kt}, {"ky", ky}, {"kx", kx}},
          {"B", "T", "Y", "X"}};
}

bool ClampsWindow(const Problem& problem) {
  const auto attribute = problem.attributes.find("clamp_window");
  if (attribute == problem.attributes.end()) return false;
  const std::int64_t* value = problem.integer("clamp_window");
  if (value == nullptr || (*value != 0 && *value != 1)) {
    BadInput(problem.definition->name + ": clamp_window must be 0 or 1");
  }
  return *value == 1;
}

void ValidateAxes(const Problem& problem) {
  for (const char* axis : {"T", "Y", "X"}) {
    const std::int64_t length = problem.axis(axis), window = EffectiveWindow(problem, axis);
    if (length < std::max<std::int64_t>(window, 1)) {
      BadInput(problem.definition->name + ": axis " + axis + ": length " + std::to_string(length) +
               " smaller than window " + std::to_string(std::max<std::int64_t>(window, 1)));
    }
  }
}

std::vector<TensorSpec> InputSpecs() {
  const std::vector<std::string> shape = {"B", "T", "Y", "X", "H", "D"};
  return {{"Q", DType::kBF16, shape}, {"K", DType::kBF16, shape}, {"V", DType::kBF16, shape}};
}

void ValidateInputs(const Problem& problem, const Bundle& inputs) {
  CheckInputLayouts(InputSpecs(), problem, inputs);
}

Cost CostOf(const Problem& problem, const Bundle&) {
  double points = static_cast<double>(problem.axis("B") * problem.axis("H"));
  double keys = 1;
  for (const char* axis : {"T", "Y", "X"}) {
    points *= static_cast<double>(problem.axis(axis));
    keys *= static_cast<double>(EffectiveWindow(problem, axis));
  }
  Cost cost;
  cost.flops = 4 * static_cast<double>(kHeadDim) * points * keys;
  cost.bytes = 4 * 2 * static_cast<double>(kHeadDim) * points;
  cost.exponentials = points * keys;
  return cost;
}

}  // namespace

std::int64_t EffectiveWindow(const Problem& problem, const char* axis) {
  const std::string constant = std::string("k") + static_cast<char>(*axis - 'A' + 'a');
  const std::int64_t window = problem.axis(constant);
  return ClampsWindow(problem) ? std::min(window, problem.axis(axis)) : window;
}

Family MakeFamily() {
  Family family;
  family.name = "neighborhood_attention_3d";
  family.summary =
      "attention over a window of a video's (time, height, width) grid, bf16, heads of 64";
  family.definitions = {
      Row("h32_d64_kt3_ky7_kx7", 32, 3, 7, 7), Row("h16_d64_kt3_ky7_kx7", 16, 3, 7, 7),
      Row("h8_d64_kt3_ky5_kx5", 8, 3, 5, 5), Row("h4_d64_kt11_ky11_kx11", 4, 11, 11, 11)};
  family.inputs = InputSpecs();
  family.outputs = {{"O", DType::kBF16, {"B", "T", "Y", "X", "H", "D"}, false, 5}};
  family.attributes = {"clamp_window"};
  family.variants = {"captured",       "aligned",     "zero_query",
                     "constant_value", "delta_value", "nan_voxel"};
  family.validate_axes = ValidateAxes;
  family.validate_inputs = ValidateInputs;
  family.input_layouts = [](const Problem& problem) { return LayoutsOf(InputSpecs(), problem); };
  family.generate = Generate;
  family.cost = CostOf;
  family.sample_rows = SampleRows;
  family.reference = Reference;
  family.policies = Policies;
  family.backends = {CpuBackend()};
  family.mutants = Mutants();
  return family;
}

}  // namespace assay::neighborhood_attention_3d
