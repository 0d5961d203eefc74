// Definitions, tensors, binding and cost of the two families.
#include <algorithm>

#include "base/error.h"
#include "ops/moe_decode/spec.h"
#include "ops/room.h"

namespace assay::moe_decode {
namespace {

// Matrices by the names of their tensors.
constexpr const char* kNames[] = {"gate", "up", "down"};

std::vector<TensorSpec> InputSpecs(bool four_bits) {
  const DType codes = four_bits ? DType::kE2M1 : DType::kE4M3;
  const DType scales = four_bits ? DType::kU8 : DType::kF32;
  std::vector<TensorSpec> specs = {{"x", DType::kBF16, {"M", "H"}},
                                   {"topk_ids", DType::kI32, {"M", "K"}},
                                   {"topk_weights", DType::kF32, {"M", "K"}}};
  for (const char* name : kNames) {
    const bool down = name == kNames[2];
    const std::string n = down ? "H" : "I", k = down ? "I" : "H";
    specs.push_back({std::string("w_") + name, codes, {"W", n, k}});
    specs.push_back({std::string("s_") + name, scales, {"W", four_bits ? n : n + "B", k + "G"}});
  }
  if (four_bits) specs.push_back({"global_scales", DType::kF32, {"3", "W"}, /*optional=*/true});
  return specs;
}

std::vector<TensorLayout> InputLayouts(const Problem& problem) {
  std::vector<TensorLayout> layouts;
  for (const TensorSpec& spec : InputSpecs(FourBits(FormatOf(problem)))) {
    if (spec.optional && FormatOf(problem) != Format::kNVFP4) continue;
    layouts.push_back(Resolve(spec, problem));
  }
  return layouts;
}

// Weights of experts without rows stay holes; the variant `poison` touches scales of a few.
std::size_t ResidentBytes(const Problem& problem) {
  const std::int64_t poisoned = problem.variant == "poison" ? kPoisonedExperts : 0;
  const std::int64_t touched =
      std::min(problem.axis("W"), problem.axis("M") * problem.axis("K") + 1 + poisoned);
  std::vector<TensorLayout> layouts = InputLayouts(problem);
  for (TensorLayout& layout : layouts) {
    if (layout.name.starts_with("w_") || layout.name.starts_with("s_")) layout.shape[0] = touched;
  }
  return Bundle::ArenaBytes(layouts);
}

double MatrixBytes(const Matrix& w) {
  const auto n = static_cast<double>(w.n), k = static_cast<double>(w.k);
  if (w.format == Format::kFP8) return n * k + 4 * n * k / (kBlock * kBlock);
  return n * k / 2 + n * k / static_cast<double>(ScaleGroup(w.format));
}

Cost CostOf(const Problem& problem, const Bundle& inputs) {
  const Args args = BindInputs(problem, inputs);
  const std::vector<bool> active = ActiveExperts(args);
  const auto experts = static_cast<double>(std::count(active.begin(), active.end(), true));
  const auto m = static_cast<double>(args.m), k = static_cast<double>(args.top_k);
  const auto hidden = static_cast<double>(args.hidden), inter = static_cast<double>(args.inter);
  Cost cost;
  cost.flops = 6 * m * (k + 1) * hidden * inter;
  cost.exponentials = m * (k + 1) * inter;
  cost.bytes = experts * (MatrixBytes(args.gate) + MatrixBytes(args.up) + MatrixBytes(args.down)) +
               m * (4 * hidden + 8 * k);
  return cost;
}

Family MakeFamily(bool four_bits) {
  Family family;
  family.name = four_bits ? "moe_w4_decode" : "moe_w8_decode";
  family.summary = four_bits ? "experts of a decode step: bf16 rows, 4-bit weights, shared expert"
                             : "experts of a decode step: bf16 rows, 8-bit weights, shared expert";
  family.inputs = InputSpecs(four_bits);
  family.outputs = {{"y", DType::kBF16, {"M", "H"}}};
  family.variants = Variants();
  family.validate_axes = ValidateAxes;
  family.validate_inputs = ValidateInputs;
  family.input_layouts = InputLayouts;
  family.resident_bytes = ResidentBytes;
  family.generate = Generate;
  family.cost = CostOf;
  family.sample_rows = SampleRows;
  family.reference = Reference;
  family.policies = Policies;
  family.backends = Backends();
  family.mutants = Mutants(four_bits);
  return family;
}

const Tensor& Required(const Problem& problem, const Bundle& inputs, const std::string& name,
                       DType dtype, const Shape& shape) {
  return *RequireTensor(problem, inputs, name, dtype, {shape});
}

Matrix BindMatrix(const Problem& problem, const Bundle& inputs, int which, std::int64_t n,
                  std::int64_t k) {
  const std::int64_t experts = problem.axis("W");
  const std::string name = kNames[which];
  Matrix w;
  w.format = FormatOf(problem);
  w.n = n;
  w.k = k;
  const bool four_bits = FourBits(w.format);
  w.decode = four_bits ? DecodeFP4 : DecodeFP8;
  w.codes = reinterpret_cast<const std::uint8_t*>(Required(problem, inputs, "w_" + name,
                                                           four_bits ? DType::kE2M1 : DType::kE4M3,
                                                           {experts, n, k})
                                                      .data);
  if (four_bits) {
    w.groups =
        Required(problem, inputs, "s_" + name, DType::kU8, {experts, n, k / ScaleGroup(w.format)})
            .as<std::uint8_t>();
  } else {
    w.blocks =
        Required(problem, inputs, "s_" + name, DType::kF32, {experts, n / kBlock, k / kBlock})
            .as<float>();
  }
  if (w.format == Format::kNVFP4) {
    w.global = Required(problem, inputs, "global_scales", DType::kF32, {3, experts}).as<float>() +
               which * experts;
  }
  return w;
}

}  // namespace

Format FormatOf(const Problem& problem) {
  const std::int64_t group = problem.axis("G");
  return group == kBlock ? Format::kFP8 : group == 32 ? Format::kMXFP4 : Format::kNVFP4;
}

// Axes beyond the sizes exist so that tensors can be declared: W = routed experts and the shared
// one, HG and IG = scales along H and I, HB and IB = blocks of rows that share one (FP8).
Definition DefinitionOf(std::string name, Format format, std::int64_t routed, std::int64_t hidden,
                        std::int64_t inter, std::int64_t top_k) {
  const std::int64_t group = ScaleGroup(format);
  Axes axes = {{"E", routed}, {"W", routed + 1}, {"H", hidden},          {"I", inter},
               {"K", top_k},  {"G", group},      {"HG", hidden / group}, {"IG", inter / group}};
  if (format == Format::kFP8) {
    axes["HB"] = hidden / kBlock;
    axes["IB"] = inter / kBlock;
  }
  return {std::move(name), std::move(axes), {"M"}};
}

std::vector<bool> ActiveExperts(const Args& args) {
  std::vector<bool> active(static_cast<std::size_t>(args.experts + 1));
  for (std::int64_t i = 0; i < args.m * args.top_k; ++i) {
    active[static_cast<std::size_t>(args.ids[i])] = true;
  }
  active.back() = args.m > 0;
  return active;
}

Args BindInputs(const Problem& problem, const Bundle& inputs) {
  Args args;
  args.m = problem.axis("M");
  args.hidden = problem.axis("H");
  args.inter = problem.axis("I");
  args.experts = problem.axis("E");
  args.top_k = problem.axis("K");
  args.x = Required(problem, inputs, "x", DType::kBF16, {args.m, args.hidden}).as<bf16>();
  args.ids =
      Required(problem, inputs, "topk_ids", DType::kI32, {args.m, args.top_k}).as<std::int32_t>();
  args.weights =
      Required(problem, inputs, "topk_weights", DType::kF32, {args.m, args.top_k}).as<float>();
  args.gate = BindMatrix(problem, inputs, 0, args.inter, args.hidden);
  args.up = BindMatrix(problem, inputs, 1, args.inter, args.hidden);
  args.down = BindMatrix(problem, inputs, 2, args.hidden, args.inter);
  return args;
}

Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  Args args = BindInputs(problem, inputs);
  args.y = outputs["y"].as<bf16>();
  return args;
}

// The real model's layer (GLM-5.3-Flash) and that of the engine's size `small`.
Family MakeW8Family() {
  Family family = MakeFamily(false);
  family.definitions = {
      DefinitionOf("moe_w8_decode_fp8_e288_h4096_i2048_k8", Format::kFP8, 288, 4096, 2048, 8),
      DefinitionOf("moe_w8_decode_fp8_e64_h2048_i512_k8", Format::kFP8, 64, 2048, 512, 8)};
  return family;
}

Family MakeW4Family() {
  Family family = MakeFamily(true);
  for (const auto& [tag, format] :
       {std::pair{"mxfp4", Format::kMXFP4}, std::pair{"nvfp4", Format::kNVFP4}}) {
    const std::string name = std::string("moe_w4_decode_") + tag;
    family.definitions.push_back(
        DefinitionOf(name + "_e288_h4096_i2048_k8", format, 288, 4096, 2048, 8));
    family.definitions.push_back(
        DefinitionOf(name + "_e64_h2048_i512_k8", format, 64, 2048, 512, 8));
  }
  return family;
}

}  // namespace assay::moe_decode
