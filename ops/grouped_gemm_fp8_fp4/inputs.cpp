// Definitions, tensors and their storages, cost.
#include <algorithm>

#include "ops/grouped_gemm_fp8_fp4/spec.h"

namespace assay::grouped_gemm_fp8_fp4 {
namespace {

// --- declarations ---

// G = K / 32 is an axis so that the scale tensors can be declared.
Definition Row(const char* name, std::int64_t n, std::int64_t k) {
  return {name, {{"E", 384}, {"N", n}, {"K", k}, {"G", k / kGroup}}, {"M"}};
}

// The default forms; InputLayouts and checks.cpp know the alternatives.
std::vector<TensorSpec> InputSpecs() {
  return {
      {"A", DType::kE4M3, {"M", "K"}},
      {"SFA", DType::kUE8M0, {"M", "G"}},
      {"W", DType::kE2M1, {"E", "N", "K"}},
      {"SFW", DType::kUE8M0, {"E", "N", "G"}},
      {"m_indices", DType::kI32, {"M"}, /*optional=*/true},
      {"expert_offsets", DType::kI32, {"385"}, /*optional=*/true},
  };
}

std::int64_t RoundUp(std::int64_t x, std::int64_t step) { return (x + step - 1) / step * step; }

std::vector<TensorLayout> InputLayouts(const Problem& problem) {
  const Sizes s(problem);
  const std::string& variant = problem.variant;
  const bool packed = variant == "packed_scales";
  // A row of padded scales ends on a multiple of 16 bytes and has at least one byte too many.
  const std::int64_t row = variant == "padded_scales" ? RoundUp(s.g + 1, 16) : s.g;
  std::vector<TensorLayout> layouts = {{"A", DType::kE4M3, {s.m, s.k}}};
  if (packed) {
    layouts.push_back({"SFA", DType::kI32, {s.words(), RoundUp(s.m, kPackedGroups)}});
  } else {
    layouts.push_back({"SFA", DType::kUE8M0, {s.m, row}});
  }
  layouts.push_back({"W", DType::kE2M1, {s.e, s.n, s.k}});
  if (packed) {
    layouts.push_back({"SFW", DType::kI32, {s.e, s.words(), s.n}});
  } else {
    layouts.push_back({"SFW", DType::kUE8M0, {s.e, s.n, row}});
  }
  if (variant == "offsets") {
    layouts.push_back({"expert_offsets", DType::kI32, {s.e + 1}});
  } else if (variant == "offsets_i64") {
    layouts.push_back({"expert_offsets", DType::kI64, {s.e + 1}});
  } else {
    layouts.push_back({"m_indices", DType::kI32, {s.m}});
  }
  return layouts;
}

// At most one expert per row owns weights that exist; the variant `poison` adds a few idle ones.
std::size_t ResidentBytes(const Problem& problem) {
  const Sizes s(problem);
  const std::int64_t touched =
      std::min(s.e, s.m + (problem.variant == "poison" ? kPoisonedExperts : 0));
  std::vector<TensorLayout> layouts = InputLayouts(problem);
  for (TensorLayout& layout : layouts) {
    if (layout.name == "W" || layout.name == "SFW") layout.shape[0] = touched;
  }
  return Bundle::ArenaBytes(layouts);
}

Cost CostOf(const Problem& problem, const Bundle& inputs) {
  const Sizes s(problem);
  const std::vector<std::int64_t> experts = ExpertsOfRows(problem, inputs);
  const std::vector<bool> active = ActiveExperts(s.e, experts);
  const auto active_experts = static_cast<double>(std::count(active.begin(), active.end(), true));
  const auto rows = static_cast<double>(
      std::count_if(experts.begin(), experts.end(), [](std::int64_t e) { return e >= 0; }));
  const auto n = static_cast<double>(s.n), k = static_cast<double>(s.k);
  constexpr double kScale = 1.0 / static_cast<double>(kGroup);  // bytes of scale per element
  Cost cost;
  cost.flops = 2 * rows * n * k;
  cost.bytes = active_experts * n * k * (0.5 + kScale) + rows * k * (1 + kScale) +
               static_cast<double>(s.m) * (2 * n + 4);
  return cost;
}

}  // namespace

Sizes::Sizes(const Problem& problem)
    : m(problem.axis("M")),
      n(problem.axis("N")),
      k(problem.axis("K")),
      e(problem.axis("E")),
      g(problem.axis("K") / kGroup) {}

std::vector<std::int64_t> ExpertsOfRows(const Problem& problem, const Bundle& inputs) {
  std::vector<std::int64_t> experts(static_cast<std::size_t>(problem.axis("M")));
  for (std::size_t m = 0; m < experts.size(); ++m) {
    experts[m] = ExpertOfRow(problem, inputs, static_cast<std::int64_t>(m));
  }
  return experts;
}

std::vector<bool> ActiveExperts(std::int64_t count, const std::vector<std::int64_t>& experts) {
  std::vector<bool> active(static_cast<std::size_t>(count));
  for (const std::int64_t e : experts) {
    if (e >= 0) active[static_cast<std::size_t>(e)] = true;
  }
  return active;
}

bool HasPaddingRows(const Problem& problem) {
  return problem.variant == "padding_rows" || problem.text("padding_rows") != nullptr;
}

Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  const Sizes s(problem);
  Args args;
  args.m = s.m;
  args.n = s.n;
  args.k = s.k;
  args.experts = s.e;
  args.a = inputs["A"].as<e4m3>();
  args.lda = s.k;
  const Tensor& sfa = inputs["SFA"];
  if (sfa.dtype == DType::kI32) {
    args.sfa_packed = sfa.as<std::int32_t>();
    args.sfa_packed_stride = sfa.shape[1];
  } else {
    args.sfa = reinterpret_cast<const ue8m0*>(sfa.data);
    args.sfa_stride = sfa.shape[1];
  }
  args.w = reinterpret_cast<const std::uint8_t*>(inputs["W"].data);
  const Tensor& sfw = inputs["SFW"];
  if (sfw.dtype == DType::kI32) {
    args.sfw_packed = sfw.as<std::int32_t>();
    args.sfw_packed_stride = sfw.shape[2];
  } else {
    args.sfw = reinterpret_cast<const ue8m0*>(sfw.data);
    args.sfw_stride = sfw.shape[2];
  }
  if (const Tensor* rows = inputs.find("m_indices")) args.m_indices = rows->as<std::int32_t>();
  if (const Tensor* offsets = inputs.find("expert_offsets")) {
    if (offsets->dtype == DType::kI64) {
      args.offsets64 = offsets->as<std::int64_t>();
    } else {
      args.offsets32 = offsets->as<std::int32_t>();
    }
  }
  if (HasPaddingRows(problem)) args.padding = PaddingRows::kZero;
  if (Tensor* d = outputs.find("D")) args.d = d->as<bf16>();
  args.ldd = s.n;
  return args;
}

Family MakeFamily() {
  Family family;
  family.name = "grouped_gemm_fp8_fp4";
  family.summary = "expert layers of a mixture of experts: e4m3 rows times e2m1 weights";
  family.definitions = {Row("grouped_gemm_fp8_fp4_e384_n4608_k5120_g32", 4608, 5120),
                        Row("grouped_gemm_fp8_fp4_e384_n5120_k2304_g32", 5120, 2304)};
  family.inputs = InputSpecs();
  family.outputs = {{"D", DType::kBF16, {"M", "N"}}};
  family.attributes = {"padding_rows", "expert_rows"};
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
  family.row_checks = RowChecks;
  family.backends = Backends();
  family.mutants = Mutants();
  return family;
}

}  // namespace assay::grouped_gemm_fp8_fp4
