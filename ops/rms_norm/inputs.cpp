// The definitions, tensors, generator, cost and verification policy of rms_norm.
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"
#include "ops/rms_norm/spec.h"
#include "ops/room.h"

namespace assay::rms_norm {
namespace {

enum TensorNumber : std::uint64_t { kX, kWeight };
constexpr std::uint64_t kChannelScale = kAuxiliaryTensor + 80;

std::vector<TensorSpec> InputSpecs() {
  return {{"x", DType::kBF16, {"M", "N"}}, {"weight", DType::kBF16, {"N"}}};
}

void ValidateAxes(const Problem& problem) {
  const float eps = EpsOf(problem);
  if (!(eps > 0 && std::isfinite(eps))) {
    BadInput(problem.definition->name + ": eps = " + std::to_string(eps) +
             " is not a positive number");
  }
}

void ValidateInputs(const Problem& problem, const Bundle& inputs) {
  CheckInputLayouts(InputSpecs(), problem, inputs);
}

// The size of a row: row 0 is so small that eps decides (its mean square is near 1e-5), others are
// ordinary, large, or in between.
float RowScale(const std::string& variant, std::int64_t row) {
  constexpr float kScales[] = {0x1p-8f, 1.0f, 0x1p4f, 0x1p-4f};
  if (variant == "tiny") return 0x1p-20f;
  if (variant == "large") return 0x1p20f;
  return kScales[row % 4];
}

// Normals with 1 % of the channels 16 times larger, as residual streams have; weights around 1.
void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  const std::int64_t n = problem.axis("N");
  bf16* x = inputs["x"].as<bf16>();
  bf16* weight = inputs["weight"].as<bf16>();
  ParallelFor(problem.axis("M"), 0, [&](std::int64_t row) {
    const bool zero = problem.variant == "zero_row" && row % 2 == 0;
    const float scale = zero ? 0.0f : RowScale(problem.variant, row);
    for (std::int64_t i = 0; i < n; ++i) {
      const float outlier =
          Uniform(key, kChannelScale, static_cast<std::uint64_t>(i)) < 0.01 ? 16.0f : 1.0f;
      x[row * n + i] =
          ToBF16(scale * outlier * UnitNormal(key, kX, static_cast<std::uint64_t>(row * n + i)));
    }
  });
  for (std::int64_t i = 0; i < n; ++i) {
    weight[i] = ToBF16(1 + 0.1f * UnitNormal(key, kWeight, static_cast<std::uint64_t>(i)));
  }
}

// Square and add, then two multiplications.
Cost CostOf(const Problem& problem, const Bundle&) {
  const auto m = static_cast<double>(problem.axis("M")), n = static_cast<double>(problem.axis("N"));
  Cost cost;
  cost.flops = 4 * m * n;
  cost.bytes = 4 * m * n + (m > 0 ? 2 * n : 0);
  return cost;
}

// At most 16 rows in a step: always all. A sample for the long batches of others.
RowLists SampleRows(const Problem& problem, const Bundle&, std::uint64_t seed) {
  return {SpreadRows(problem.axis("M"), 256, seed)};
}

// Half a unit of bf16 for the one rounding; 2^-14 of the value for fp32 before it (README.md).
std::vector<OutputPolicy> Policies(const Problem&) {
  OutputPolicy y;
  y.grades = {{"strict", 0, 0x1p-14, 0, 0.5}};
  return {y};
}

}  // namespace

float EpsOf(const Problem& problem) { return problem.number("eps", kDefaultEps); }

Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  Args args;
  args.m = problem.axis("M");
  args.n = problem.axis("N");
  args.eps = EpsOf(problem);
  args.x = inputs["x"].as<bf16>();
  args.weight = inputs["weight"].as<bf16>();
  args.y = outputs["y"].as<bf16>();
  return args;
}

Family MakeFamily() {
  Family family;
  family.name = "rms_norm";
  family.summary = "y = x / rms(x) * weight, one rounding to bf16";
  // GLM-5.3-Flash: hidden size; the low ranks of queries and of the latent.
  for (const std::int64_t n : {4096, 1536, 512}) {
    family.definitions.push_back({"rms_norm_n" + std::to_string(n), {{"N", n}}, {"M"}});
  }
  family.inputs = InputSpecs();
  family.outputs = {{"y", DType::kBF16, {"M", "N"}}};
  family.attributes = {"eps"};
  family.variants = {"default", "tiny", "large", "zero_row"};
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

}  // namespace assay::rms_norm
