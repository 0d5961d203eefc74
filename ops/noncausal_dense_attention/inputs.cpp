// Definitions, tensors, validation, cost and generated inputs.
#include "ops/attention/inputs.h"

#include <algorithm>

#include "base/error.h"
#include "base/random.h"
#include "ops/attention/rows.h"
#include "ops/noncausal_dense_attention/spec.h"

namespace assay::noncausal_dense_attention {
namespace {

constexpr std::string_view kOperation = "noncausal_dense_attention";

// Positions in the declared order: the tensor numbers of the element source.
constexpr std::uint64_t kQ = 0, kK = 1, kV = 2, kMask = 3;
constexpr std::uint64_t kSinks = kAuxiliaryTensor + 129;

constexpr float kTemp = 3;         // captured-like: standard deviation of the logits
constexpr double kVisible = 0.75;  // share of visible keys in per-query masks

bool IsWorldModel(const Problem& problem) { return problem.axis("H") != 32; }

bool IsVariant(const Problem& problem, std::string_view name) { return problem.variant == name; }

// --- declarations ---

Definition Row(const std::string& name, std::int64_t heads, std::int64_t dim) {
  return {"noncausal_dense_attention_" + name, {{"H", heads}, {"D", dim}}, {"B", "Nq", "Nk"}};
}

void ValidateAxes(const Problem& problem) {
  const auto attribute = problem.attributes.find("k_buffer");
  if (attribute == problem.attributes.end()) return;
  const std::int64_t* rows = problem.integer("k_buffer");
  if (rows == nullptr) BadInput(problem.definition->name + ": k_buffer must be an integer");
  if (*rows < problem.axis("Nk")) {
    BadInput(problem.definition->name + ": k_buffer = " + std::to_string(*rows) +
             " is shorter than Nk = " + std::to_string(problem.axis("Nk")));
  }
}

Shape MaskShape(const Problem& problem) {
  const std::int64_t b = problem.axis("B"), nq = problem.axis("Nq"), nk = problem.axis("Nk");
  if (IsVariant(problem, "masked_rows")) return {b, 1, nq, nk};
  if (IsVariant(problem, "masked_heads")) return {b, problem.axis("H"), nq, nk};
  return {b, nk};
}

bool HasMask(const Problem& problem) {
  return problem.variant.starts_with("masked") || IsVariant(problem, "all_visible");
}

std::vector<TensorLayout> InputLayouts(const Problem& problem) {
  const std::int64_t b = problem.axis("B"), h = problem.axis("H"), d = problem.axis("D");
  const Shape keys = {b, KeyBufferRows(problem), h, d};
  std::vector<TensorLayout> layouts = {
      {"Q", DType::kBF16, {b, problem.axis("Nq"), h, d}},
      {"K", DType::kBF16, keys},
      {"V", DType::kBF16, keys},
  };
  if (HasMask(problem)) layouts.push_back({"mask", DType::kBool, MaskShape(problem)});
  return layouts;
}

void ValidateInputs(const Problem& problem, const Bundle& inputs) {
  const std::int64_t b = problem.axis("B"), h = problem.axis("H"), d = problem.axis("D");
  const Shape keys = {b, KeyBufferRows(problem), h, d};
  attention::RequireTokens(kOperation, inputs, "Q", {b, problem.axis("Nq"), h, d});
  attention::RequireTokens(kOperation, inputs, "K", keys);
  attention::RequireTokens(kOperation, inputs, "V", keys);
  BindMask(problem, inputs);
}

// Visible (query, key) pairs over all batches and heads.
double VisiblePairs(const Problem& problem, const Bundle& inputs) {
  const std::int64_t b = problem.axis("B"), h = problem.axis("H");
  const std::int64_t nq = problem.axis("Nq"), nk = problem.axis("Nk");
  const auto all = static_cast<double>(b * h) * static_cast<double>(nq * nk);
  const Tensor* mask = inputs.find("mask");
  if (mask == nullptr || mask->elements() == 0) return all;
  const auto visible = static_cast<double>(std::count_if(
      mask->data, mask->data + mask->elements(), [](std::byte x) { return x != std::byte{0}; }));
  return all * visible / static_cast<double>(mask->elements());
}

Cost CostOf(const Problem& problem, const Bundle& inputs) {
  const double pairs = VisiblePairs(problem, inputs);
  const auto token_bytes = static_cast<double>(2 * problem.axis("H") * problem.axis("D"));
  const auto tokens =
      static_cast<double>(problem.axis("B") * (2 * problem.axis("Nq") + 2 * problem.axis("Nk")));
  Cost cost;
  cost.flops = 4 * static_cast<double>(problem.axis("D")) * pairs;
  cost.bytes = token_bytes * tokens;
  if (const Tensor* mask = inputs.find("mask")) cost.bytes += static_cast<double>(mask->bytes());
  cost.exponentials = pairs;
  return cost;
}

std::vector<OutputPolicy> Policies(const Problem&) { return {attention::Policy()}; }

// --- generation ---

attention::TokenShape KeyShape(const Problem& problem) {
  return {problem.axis("B"), KeyBufferRows(problem), problem.axis("H"), problem.axis("D")};
}
attention::TokenShape QueryShape(const Problem& problem) {
  return {problem.axis("B"), problem.axis("Nq"), problem.axis("H"), problem.axis("D")};
}

float TempOf(const Problem& problem) {
  if (IsVariant(problem, "temp1")) return 1;
  if (IsVariant(problem, "temp6")) return 6;
  return kTemp;
}

void GenerateCaptured(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  const bool per_head = IsWorldModel(problem);
  const attention::ProjectionRecipe q{key, kQ, kQ, per_head, 0.2f, TempOf(problem), 0};
  const attention::ProjectionRecipe k{key, kK, kK, per_head, 0.2f, 1, 0};
  attention::GenerateProjection(q, QueryShape(problem), inputs["Q"].as<bf16>());
  attention::GenerateProjection(k, KeyShape(problem), inputs["K"].as<bf16>());
  attention::LowerLogitsOfQueries(key, QueryShape(problem), inputs["Q"].as<bf16>());
  attention::LowerLogitsOfKeys(key, KeyShape(problem), inputs["K"].as<bf16>());
}

void AddSinks(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  const std::int64_t nk = problem.axis("Nk");
  if (nk == 0) return;
  attention::AddSinkDirection(key, QueryShape(problem), inputs["Q"].as<bf16>());
  for (std::int64_t b = 0; b < problem.axis("B"); ++b) {
    for (std::int64_t h = 0; h < problem.axis("H"); ++h) {
      const auto sink = static_cast<std::int64_t>(
          Mix64(key, kSinks, static_cast<std::uint64_t>(h)) % static_cast<std::uint64_t>(nk));
      attention::AddSinkKey(key, KeyShape(problem), b, h, sink, inputs["K"].as<bf16>());
    }
  }
}

// Every logit near sign * 1.2e5. Q and K are the same +-1 pattern times 104 (d = 128) or 120
// (d = 64) except in channel 0, which holds 1 or 2 in Q and multiples of 1/4 in K: all partial sums
// are multiples of 1/4 below 2^22, hence exact in fp32, and the softmax over channel 0 is an
// ordinary one for every kernel that subtracts the maximum before it scales.
void GenerateExtreme(const Problem& problem, std::uint64_t key, float sign, Bundle& inputs) {
  const std::int64_t dim = problem.axis("D");
  const float size = dim == 128 ? 104 : 120;
  const auto fill = [&](const attention::TokenShape& shape, std::uint64_t tensor, float factor,
                        bf16* x) {
    for (std::int64_t i = 0; i < shape.elements(); ++i) {
      const std::int64_t channel = i % dim, head = i / dim % shape.heads;
      const auto index = static_cast<std::uint64_t>(i / dim);
      float element = factor * attention::HeadDirection(key, head, dim, channel);
      if (channel == 0) {
        const float z = UnitNormal(key, tensor, index);
        const bool query = tensor == kQ;
        element = query ? (z > 0 ? 2.0f : 1.0f) : static_cast<float>(static_cast<int>(48 * z)) / 4;
      }
      x[i] = ToBF16(element);
    }
  };
  fill(QueryShape(problem), kQ, size, inputs["Q"].as<bf16>());
  fill(KeyShape(problem), kK, sign * size, inputs["K"].as<bf16>());
}

void MakeKeysIdentical(const Problem& problem, Bundle& inputs) {
  const attention::TokenShape shape = KeyShape(problem);
  bf16* k = inputs["K"].as<bf16>();
  for (std::int64_t token = 1; token < shape.batch * shape.tokens; ++token) {
    std::copy_n(k, shape.inner(), k + token * shape.inner());
  }
}

// [B,Nk]: a random number of leading keys per batch, the last of several batches sees none.
// Per-query masks: three quarters of the keys at random, the middle query sees none.
void GenerateMask(const Problem& problem, std::uint64_t key, Tensor& mask) {
  const std::int64_t nk = problem.axis("Nk"), nq = problem.axis("Nq"), b = problem.axis("B");
  const bool prefix = IsVariant(problem, "masked"), all = IsVariant(problem, "all_visible");
  const std::int64_t rows = nk == 0 ? 0 : mask.elements() / nk;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto length = static_cast<std::int64_t>(
        1 + Mix64(key, kMask, static_cast<std::uint64_t>(row)) % static_cast<std::uint64_t>(nk));
    for (std::int64_t j = 0; j < nk; ++j) {
      const auto index = static_cast<std::uint64_t>(row * nk + j);
      bool visible = true;
      if (prefix) {
        visible = j < length && (b == 1 || row != b - 1);
      } else if (!all) {
        visible = Uniform(key, kMask, index) < kVisible && row % nq != nq / 2;
      }
      mask.data[index] = static_cast<std::byte>(visible);
    }
  }
}

// Rows of K and V beyond Nk must never be read: NaN bit patterns.
void PoisonBufferTail(const Problem& problem, Bundle& inputs) {
  const attention::TokenShape shape = KeyShape(problem);
  const std::int64_t nk = problem.axis("Nk");
  for (const char* name : {"K", "V"}) {
    bf16* x = inputs[name].as<bf16>();
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      std::fill(x + (b * shape.tokens + nk) * shape.inner(),
                x + (b + 1) * shape.tokens * shape.inner(), bf16{0x7FFF});
    }
  }
}

}  // namespace

std::int64_t KeyBufferRows(const Problem& problem) {
  const std::int64_t* rows = problem.integer("k_buffer");
  return rows == nullptr ? problem.axis("Nk") : *rows;
}

std::pair<const std::uint8_t*, MaskStrides> BindMask(const Problem& problem, const Bundle& inputs) {
  const Tensor* mask = inputs.find("mask");
  if (mask == nullptr) return {nullptr, {}};
  const std::int64_t b = problem.axis("B"), h = problem.axis("H");
  const std::int64_t nq = problem.axis("Nq"), nk = problem.axis("Nk");
  if (mask->dtype != DType::kBool) {
    BadInput(std::string(kOperation) + ": mask is " + std::string(DTypeName(mask->dtype)) +
             ", supported is bool (additive masks are another operator)");
  }
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(mask->data);
  if (mask->shape == Shape{b, nk}) return {bytes, {nk, 0, 0, 1}};
  if (mask->shape == Shape{b, h, nq, nk}) return {bytes, {h * nq * nk, nq * nk, nk, 1}};
  if (mask->shape == Shape{b, 1, nq, nk}) return {bytes, {nq * nk, 0, nk, 1}};
  BadInput(std::string(kOperation) + ": mask has shape " + ShapeText(mask->shape) +
           ", supported are [B,Nk], [B,1,Nq,Nk] and [B,H,Nq,Nk] of " + ShapeText({b, h, nq, nk}));
}

void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  if (IsVariant(problem, "extreme_negative")) {
    GenerateExtreme(problem, key, -1, inputs);
  } else if (IsVariant(problem, "extreme_positive")) {
    GenerateExtreme(problem, key, 1, inputs);
  } else {
    GenerateCaptured(problem, key, inputs);
  }
  if (IsVariant(problem, "sink")) AddSinks(problem, key, inputs);
  if (IsVariant(problem, "identical_keys")) MakeKeysIdentical(problem, inputs);
  attention::GenerateValues({key, kV, kV, 0}, KeyShape(problem), inputs["V"].as<bf16>());
  if (Tensor* mask = inputs.find("mask")) GenerateMask(problem, key, *mask);
  PoisonBufferTail(problem, inputs);
}

Family MakeFamily() {
  Family family;
  family.name = kOperation;
  family.summary = "full attention of video, audio and world models, bf16, heads of 64 or 128";
  family.definitions = {Row("h32_d128", 32, 128), Row("h32_d64", 32, 64), Row("h10_d128", 10, 128),
                        Row("h20_d128", 20, 128), Row("h40_d128", 40, 128)};
  family.inputs = {{"Q", DType::kBF16, {"B", "Nq", "H", "D"}},
                   {"K", DType::kBF16, {"B", "Nk", "H", "D"}},
                   {"V", DType::kBF16, {"B", "Nk", "H", "D"}},
                   {"mask", DType::kBool, {"B", "Nk"}, true}};
  family.outputs = {{"O", DType::kBF16, {"B", "Nq", "H", "D"}, false, 3}};
  family.attributes = {"k_buffer"};
  family.variants = {"captured",
                     "temp1",
                     "temp6",
                     "sink",
                     "masked",
                     "masked_rows",
                     "masked_heads",
                     "all_visible",
                     "extreme_negative",
                     "extreme_positive",
                     "identical_keys"};
  family.validate_axes = ValidateAxes;
  family.validate_inputs = ValidateInputs;
  family.input_layouts = InputLayouts;
  family.generate = Generate;
  family.cost = CostOf;
  family.sample_rows = SampleRows;
  family.reference = Reference;
  family.policies = Policies;
  family.backends = {CpuBackend()};
  family.mutants = Mutants();
  return family;
}

}  // namespace assay::noncausal_dense_attention
