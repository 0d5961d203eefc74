// The definition, tensors, validation and cost.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "base/simd.h"
#include "ops/moe_router_gemm_topk/spec.h"

namespace assay::moe_router_gemm_topk {
namespace {

const std::string kName = "moe_router_gemm_topk: ";

// `num_valid_rows` and `scaling` are scalars of the captured interface, here tensors of rank 0.
std::vector<TensorSpec> InputSpecs() {
  return {
      {"x", DType::kBF16, {"M", "K"}},
      {"W", DType::kBF16, {"E", "K"}},
      {"bias", DType::kF32, {"E"}},
      {"bias_vl", DType::kF32, {"E"}, /*optional=*/true},
      {"is_image", DType::kU8, {"M"}, /*optional=*/true},
      {"num_valid_rows", DType::kI32, {}, /*optional=*/true},
      {"scaling", DType::kF32, {}, /*optional=*/true},
  };
}

// Optional inputs exist in the variants that are about them.
std::vector<TensorLayout> InputLayouts(const Problem& problem) {
  std::vector<TensorLayout> layouts;
  for (const TensorSpec& spec : InputSpecs()) {
    const bool image = spec.name == "bias_vl" || spec.name == "is_image";
    if (image && problem.variant != "images") continue;
    if (spec.name == "num_valid_rows" && problem.variant != "padded") continue;
    if (spec.name == "scaling" && problem.variant != "padded") continue;
    layouts.push_back(Resolve(spec, problem));
  }
  return layouts;
}

void ValidateAxes(const Problem& problem) {
  const auto refuse = [&](const char* axis, const std::string& rule) {
    BadInput(kName + axis + " = " + std::to_string(problem.axis(axis)) + " " + rule);
  };
  const std::int64_t e = problem.axis("E"), chosen = problem.axis("T");
  if (problem.axis("K") % 64 != 0) refuse("K", "is not a multiple of 64");
  if (e % 4 != 0 || e > kMostExperts) refuse("E", "is not a multiple of 4 up to 1024");
  if (chosen < 1 || chosen > std::min(kMostChosen, e)) refuse("T", "experts cannot be chosen");
}

ASSAY_VECTOR_CLONES bool HasNonFinite(const bf16* x, std::int64_t count) {
  unsigned found = 0;
  for (std::int64_t i = 0; i < count; ++i) found |= (x[i].bits & 0x7F80u) == 0x7F80u ? 1u : 0u;
  return found != 0;
}

// A NaN or an infinity in x or W makes NaN logits, which are out of contract.
void RefuseNonFinite(const Tensor& tensor) {
  const std::int64_t rows = tensor.shape[0], k = tensor.shape[1];
  const bf16* data = tensor.as<bf16>();
  std::atomic<std::int64_t> first{rows};
  ParallelRanges(rows, 64, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      if (!HasNonFinite(data + row * k, k)) continue;
      std::int64_t seen = first.load();
      while (row < seen && !first.compare_exchange_weak(seen, row)) {
      }
      return;
    }
  });
  if (first.load() == rows) return;
  const std::int64_t row = first.load();
  std::int64_t at = 0;
  while (std::isfinite(ToFloat(data[row * k + at]))) ++at;
  BadInput(kName + tensor.name + "[" + std::to_string(row) + "," + std::to_string(at) +
           "] = " + std::to_string(ToFloat(data[row * k + at])) + " is not finite");
}

void RefuseNaN(const Tensor& bias) {
  for (std::int64_t e = 0; e < bias.shape[0]; ++e) {
    if (std::isnan(bias.as<float>()[e])) {
      BadInput(kName + bias.name + "[" + std::to_string(e) + "] is NaN");
    }
  }
}

void ValidateInputs(const Problem& problem, const Bundle& inputs) {
  CheckInputLayouts(InputSpecs(), problem, inputs);
  if (inputs.has("is_image") && !inputs.has("bias_vl")) {
    BadInput(kName + "is_image is given without bias_vl");
  }
  if (const Tensor* valid = inputs.find("num_valid_rows")) {
    const std::int64_t rows = valid->as<std::int32_t>()[0];
    if (rows < 0 || rows > problem.axis("M")) {
      BadInput(kName + "num_valid_rows = " + std::to_string(rows) + " is outside 0.." +
               std::to_string(problem.axis("M")));
    }
  }
  if (const Tensor* scaling = inputs.find("scaling")) {
    if (!std::isfinite(scaling->as<float>()[0])) {
      BadInput(kName + "scaling = " + std::to_string(scaling->as<float>()[0]) + " is not finite");
    }
  }
  RefuseNonFinite(inputs["x"]);
  RefuseNonFinite(inputs["W"]);
  RefuseNaN(inputs["bias"]);
  if (const Tensor* bias = inputs.find("bias_vl")) RefuseNaN(*bias);
}

Cost CostOf(const Problem& problem, const Bundle&) {
  const auto m = static_cast<double>(problem.axis("M")), k = static_cast<double>(problem.axis("K"));
  const auto e = static_cast<double>(problem.axis("E")), t = static_cast<double>(problem.axis("T"));
  Cost cost;
  cost.flops = 2 * m * e * k;
  cost.bytes = 2 * e * k + 4 * e + m * (2 * k + 8 * t);
  return cost;
}

}  // namespace

Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  Args args;
  args.m = problem.axis("M");
  args.k = problem.axis("K");
  args.experts = problem.axis("E");
  args.chosen = problem.axis("T");
  args.x = inputs["x"].as<bf16>();
  args.ldx = args.k;
  args.w = inputs["W"].as<bf16>();
  args.bias = inputs["bias"].as<float>();
  if (const Tensor* bias = inputs.find("bias_vl")) args.bias_vl = bias->as<float>();
  if (const Tensor* image = inputs.find("is_image")) args.is_image = image->as<std::uint8_t>();
  if (const Tensor* valid = inputs.find("num_valid_rows")) {
    args.valid_rows = valid->as<std::int32_t>()[0];
  }
  if (const Tensor* scaling = inputs.find("scaling")) args.scaling = scaling->as<float>()[0];
  args.expert_ids = outputs["expert_ids"].as<std::int32_t>();
  args.expert_weights = outputs["expert_weights"].as<float>();
  return args;
}

Family MakeFamily() {
  Family family;
  family.name = "moe_router_gemm_topk";
  family.summary = "expert choice of a mixture of experts: logits, sqrt-softplus, biased top 6";
  family.definitions = {{"moe_router_gemm_topk_deepseek41_d5120_e384_topk6",
                         {{"K", 5120}, {"E", 384}, {"T", 6}},
                         {"M"}}};
  family.inputs = InputSpecs();
  family.outputs = {{"expert_ids", DType::kI32, {"M", "T"}},
                    {"expert_weights", DType::kF32, {"M", "T"}}};
  family.variants = Variants();
  family.validate_axes = ValidateAxes;
  family.validate_inputs = ValidateInputs;
  family.input_layouts = InputLayouts;
  family.generate = Generate;
  family.cost = CostOf;
  family.sample_rows = SampleRows;
  family.reference = Reference;
  family.policies = Policies;
  family.row_checks = RowChecks;
  family.backends = Backends();
  family.mutants = Mutants();
  return family;
}

}  // namespace assay::moe_router_gemm_topk
