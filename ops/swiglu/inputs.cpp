// The definitions, tensors, generator, cost and verification policy of swiglu.

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"
#include "ops/room.h"
#include "ops/swiglu/spec.h"

namespace assay::swiglu {
namespace {

enum TensorNumber : std::uint64_t { kGate, kUp };

std::vector<TensorSpec> InputSpecs() {
  return {{"gate", DType::kBF16, {"M", "N"}}, {"up", DType::kBF16, {"M", "N"}}};
}

void ValidateAxes(const Problem& problem) {
  const float limit = LimitOf(problem);
  if (!(limit > 0)) {
    BadInput(problem.definition->name + ": swiglu_limit = " + std::to_string(limit) +
             " is not positive");
  }
}

void ValidateInputs(const Problem& problem, const Bundle& inputs) {
  CheckInputLayouts(InputSpecs(), problem, inputs);
}

// Normals of 0.4 limit, so that 0.6 % of the gates and 1.2 % of the ups are clamped, as in the
// model (standard deviation 4, limit 10). `wide`: of 4 limit, most are; gates go far below -limit.
void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  const std::int64_t n = problem.axis("N");
  const float scale = LimitOf(problem) * (problem.variant == "wide" ? 4.0f : 0.4f);
  bf16* gate = inputs["gate"].as<bf16>();
  bf16* up = inputs["up"].as<bf16>();
  ParallelFor(problem.axis("M"), 0, [&](std::int64_t row) {
    for (std::int64_t i = row * n; i < (row + 1) * n; ++i) {
      gate[i] = ToBF16(scale * UnitNormal(key, kGate, static_cast<std::uint64_t>(i)));
      up[i] = ToBF16(scale * UnitNormal(key, kUp, static_cast<std::uint64_t>(i)));
    }
  });
}

// Three clamps, one addition, one division and one multiplication beside the exponential.
Cost CostOf(const Problem& problem, const Bundle&) {
  const auto elements = static_cast<double>(problem.axis("M") * problem.axis("N"));
  Cost cost;
  cost.flops = 6 * elements;
  cost.exponentials = elements;
  cost.bytes = 6 * elements;
  return cost;
}

// All rows of a step, a sample of longer batches.
RowLists SampleRows(const Problem& problem, const Bundle&, std::uint64_t seed) {
  return {SpreadRows(problem.axis("M"), 256, seed)};
}

// Half a unit of bf16 for the one rounding; 2^-14 of the value for fp32 before it (README.md);
// 2^-110 for gates below -88, where e^-gate overflows fp32 and the form of the formula gives 0.
std::vector<OutputPolicy> Policies(const Problem&) {
  OutputPolicy y;
  y.grades = {{"strict", 0x1p-110, 0x1p-14, 0, 0.5}};
  return {y};
}

}  // namespace

float LimitOf(const Problem& problem) { return problem.number("swiglu_limit", kDefaultLimit); }

Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  Args args;
  args.m = problem.axis("M");
  args.n = problem.axis("N");
  args.limit = LimitOf(problem);
  args.gate = inputs["gate"].as<bf16>();
  args.up = inputs["up"].as<bf16>();
  args.y = outputs["y"].as<bf16>();
  return args;
}

Family MakeFamily() {
  Family family;
  family.name = "swiglu";
  family.summary = "y = silu(min(gate, limit)) * clamp(up, -limit, limit), one rounding to bf16";
  // GLM-5.3-Flash: an expert, the dense feed-forward layers.
  for (const std::int64_t n : {2048, 12288}) {
    family.definitions.push_back({"swiglu_n" + std::to_string(n), {{"N", n}}, {"M"}});
  }
  family.inputs = InputSpecs();
  family.outputs = {{"y", DType::kBF16, {"M", "N"}}};
  family.attributes = {"swiglu_limit"};
  family.variants = {"default", "wide"};
  family.validate_axes = ValidateAxes;
  family.validate_inputs = ValidateInputs;
  family.input_layouts = [](const Problem& problem) { return LayoutsOf(InputSpecs(), problem); };
  family.generate = Generate;
  family.cost = CostOf;
  family.sample_rows = SampleRows;
  family.reference = Reference;
  family.policies = Policies;
  family.backends = Backends();
  family.mutants = Mutants();
  return family;
}

}  // namespace assay::swiglu
