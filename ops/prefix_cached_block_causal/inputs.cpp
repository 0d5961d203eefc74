// Definitions, tensors, validation, cost and generated inputs.
#include "ops/attention/inputs.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "ops/attention/rows.h"
#include "ops/prefix_cached_block_causal/spec.h"

namespace assay::prefix_cached_block_causal {
namespace {

constexpr const char* kOperation = "prefix_cached_block_causal";

// Positions in the declared order: the tensor numbers of the element source.
constexpr std::uint64_t kQ = 0, kK = 1, kV = 2, kKPrefix = 3, kVPrefix = 4;
constexpr std::uint64_t kSinks = kAuxiliaryTensor + 129;

constexpr float kTemp = 3;        // standard deviation of the logits
constexpr float kPrefixMean = 2;  // makes 25 prefix values visible among 4096 others
constexpr float kWeightSpread = 0.1f;

[[noreturn]] void Refuse(const std::string& what) {
  BadInput(std::string(kOperation) + ": " + what);
}

// --- declarations ---

void ValidateAxes(const Problem& problem) {
  AttributeSegments(problem, problem.axis(IsPrefixForm(problem) ? "Np" : "Nq"));
}

Shape SuffixShape(const Problem& problem) {
  return {problem.axis("B"), problem.axis("Nq"), problem.axis("H"), problem.axis("D")};
}
Shape PrefixShape(const Problem& problem) {
  return {problem.axis("B"), problem.axis("Np"), problem.axis("H"), problem.axis("D")};
}

std::vector<TensorLayout> InputLayouts(const Problem& problem) {
  std::vector<TensorLayout> layouts;
  for (const char* name : {"Q", "K", "V"}) {
    layouts.push_back({name, DType::kBF16, SuffixShape(problem)});
  }
  if (IsPrefixForm(problem)) {
    for (const char* name : {"K_prefix", "V_prefix"}) {
      layouts.push_back({name, DType::kBF16, PrefixShape(problem)});
    }
  } else if (problem.variant == "image_ids") {
    layouts.push_back({"image_ids", DType::kI32, {problem.axis("Nq")}});
  }
  return layouts;
}

void ValidateInputs(const Problem& problem, const Bundle& inputs) {
  for (const char* name : {"Q", "K", "V"}) {
    attention::RequireTokens(kOperation, inputs, name, SuffixShape(problem));
  }
  for (const char* name : {"K_prefix", "V_prefix"}) {
    if (IsPrefixForm(problem)) {
      attention::RequireTokens(kOperation, inputs, name, PrefixShape(problem));
    } else if (inputs.has(name)) {
      Refuse(std::string(name) + " is not an input of " + problem.definition->name);
    }
  }
  if (inputs.has("mask")) Refuse("a mask is not an input; visibility is given by segments");
  if (!IsPrefixForm(problem)) SegmentsOf(problem, inputs);
}

Cost CostOf(const Problem& problem, const Bundle& inputs) {
  const std::int64_t b = problem.axis("B"), h = problem.axis("H"), d = problem.axis("D");
  const std::int64_t nq = problem.axis("Nq"), np = problem.axis("Np");
  double pairs = static_cast<double>(nq) * static_cast<double>(nq + np);
  if (!IsPrefixForm(problem)) {
    pairs = 0;
    for (std::int64_t limit : Limits(SegmentsOf(problem, inputs))) {
      pairs += static_cast<double>(limit);
    }
  }
  pairs *= static_cast<double>(b * h);
  Cost cost;
  cost.flops = 4 * static_cast<double>(d) * pairs;
  cost.bytes = static_cast<double>(2 * b * h * d) * static_cast<double>(4 * nq + 2 * np);
  cost.exponentials = pairs;
  return cost;
}

std::vector<OutputPolicy> Policies(const Problem&) { return {attention::Policy()}; }

// --- segments ---

std::vector<Segment> IdsOf(const Problem& problem, const Tensor& ids) {
  const std::int64_t b = problem.axis("B"), nq = problem.axis("Nq");
  if (ids.dtype != DType::kI32) {
    Refuse("image_ids is " + std::string(DTypeName(ids.dtype)) + ", supported is int32");
  }
  if (ids.shape != Shape{nq} && ids.shape != Shape{b, nq}) {
    Refuse("image_ids has shape " + ShapeText(ids.shape) + ", supported are [Nq] and [B,Nq] of " +
           ShapeText({b, nq}));
  }
  const auto* data = ids.as<std::int32_t>();
  for (std::int64_t i = nq; i < ids.elements(); ++i) {
    if (data[i] != data[i % nq]) {
      Refuse("image_ids of batch " + std::to_string(i / nq) + " differs from batch 0 at token " +
             std::to_string(i % nq));
    }
  }
  return ids.elements() == 0 ? std::vector<Segment>() : SegmentsFromImageIds(data, nq);
}

// --- generation ---

attention::TokenShape Tokens(const Shape& shape) {
  return {shape[0], shape[1], shape[2], shape[3]};
}

void GenerateKeys(const Problem& problem, std::uint64_t key, std::uint64_t tensor,
                  std::int64_t first_position, Tensor& k) {
  const attention::TokenShape shape = Tokens(k.shape);
  // The prefix comes from the same projection: its channel weights are those of K.
  attention::GenerateProjection({key, tensor, kK, true, kWeightSpread, 1, first_position}, shape,
                                k.as<bf16>());
  attention::LowerLogitsOfKeys(key, shape, k.as<bf16>());
  const bool has_sink = tensor == kKPrefix || !IsPrefixForm(problem);
  if (problem.variant != "sink" || !has_sink || shape.tokens == 0) return;
  // One key per head attracts all queries, as the first text tokens do.
  const std::int64_t candidates = std::min<std::int64_t>(shape.tokens, 8);
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const std::uint64_t random = Mix64(key, kSinks, static_cast<std::uint64_t>(h));
      const auto sink = static_cast<std::int64_t>(random % static_cast<std::uint64_t>(candidates));
      attention::AddSinkKey(key, shape, b, h, sink, k.as<bf16>());
    }
  }
}

void GenerateIds(const Problem& problem, Tensor& ids) {
  std::vector<Segment> segments = AttributeSegments(problem, problem.axis("Nq"));
  if (segments.empty()) segments = {{0, problem.axis("Nq"), false}};
  std::int32_t next_block = 0;
  for (const Segment& segment : segments) {
    std::fill(ids.as<std::int32_t>() + segment.start, ids.as<std::int32_t>() + segment.end,
              segment.is_image ? next_block++ : -1);
  }
}

}  // namespace

bool IsPrefixForm(const Problem& problem) { return !problem.definition->name.ends_with("prefix0"); }

void CheckSegments(const std::vector<Segment>& segments, std::int64_t tokens) {
  std::int64_t covered = 0;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const std::string name = "segment " + std::to_string(s) + " [" +
                             std::to_string(segments[s].start) + "," +
                             std::to_string(segments[s].end) + ")";
    if (segments[s].start != covered) {
      Refuse(name + " does not start at " + std::to_string(covered) +
             ", where the one before it ends");
    }
    if (segments[s].end <= segments[s].start) Refuse(name + " is empty");
    if (segments[s].end > tokens)
      Refuse(name + " ends beyond " + std::to_string(tokens) + " tokens");
    covered = segments[s].end;
  }
  if (covered != tokens) {
    Refuse("segments cover " + std::to_string(covered) + " of " + std::to_string(tokens) +
           " tokens (the last is segment " +
           std::to_string(static_cast<std::int64_t>(segments.size()) - 1) + ")");
  }
}

std::vector<Segment> SegmentsFromImageIds(const std::int32_t* ids, std::int64_t tokens) {
  std::vector<Segment> segments;
  std::set<std::int32_t> used;
  for (std::int64_t i = 0; i < tokens; ++i) {
    const bool continues = i > 0 && ids[i] == ids[i - 1];
    if (continues) {
      ++segments.back().end;
      continue;
    }
    if (ids[i] < -1) {
      Refuse("image_ids[" + std::to_string(i) + "] = " + std::to_string(ids[i]) +
             ", supported are -1 (text) and block numbers from 0");
    }
    if (ids[i] >= 0 && !used.insert(ids[i]).second) {
      Refuse("image_ids[" + std::to_string(i) + "] = " + std::to_string(ids[i]) +
             " belongs to a block that has already ended");
    }
    segments.push_back({i, i + 1, ids[i] >= 0});
  }
  return segments;
}

std::vector<std::int64_t> Limits(const std::vector<Segment>& segments) {
  std::vector<std::int64_t> limits;
  for (const Segment& segment : segments) {
    for (std::int64_t i = segment.start; i < segment.end; ++i) {
      limits.push_back(segment.is_image ? segment.end : i + 1);
    }
  }
  return limits;
}

std::vector<Segment> AttributeSegments(const Problem& problem, std::int64_t tokens) {
  if (!problem.attributes.contains("prefix_segments")) return {};
  const std::vector<std::int64_t>* flat = problem.integers("prefix_segments");
  if (flat == nullptr || flat->size() % 3 != 0) {
    Refuse("prefix_segments is not a list of [start, end, is_image]");
  }
  std::vector<Segment> segments;
  for (std::size_t at = 0; at < flat->size(); at += 3) {
    const std::int64_t is_image = (*flat)[at + 2];
    if (is_image != 0 && is_image != 1) {
      Refuse("segment " + std::to_string(at / 3) + " has is_image = " + std::to_string(is_image) +
             ", supported are 0 and 1");
    }
    segments.push_back({(*flat)[at], (*flat)[at + 1], is_image == 1});
  }
  CheckSegments(segments, tokens);
  return segments;
}

std::vector<Segment> SegmentsOf(const Problem& problem, const Bundle& inputs) {
  const std::int64_t nq = problem.axis("Nq");
  if (nq == 0) return {};
  const std::vector<Segment> stated = AttributeSegments(problem, nq);
  const Tensor* ids = inputs.find("image_ids");
  if (ids == nullptr) return stated.empty() ? std::vector<Segment>{{0, nq, false}} : stated;
  const std::vector<Segment> from_ids = IdsOf(problem, *ids);
  if (stated.empty() || from_ids.empty()) return from_ids.empty() ? stated : from_ids;
  const std::vector<std::int64_t> a = Limits(stated), b = Limits(from_ids);
  const auto differ = std::mismatch(a.begin(), a.end(), b.begin()).first;
  if (differ != a.end()) {
    Refuse("prefix_segments and image_ids disagree at token " + std::to_string(differ - a.begin()));
  }
  return stated;
}

void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  const std::int64_t np = problem.axis("Np");
  const attention::TokenShape suffix = Tokens(SuffixShape(problem));
  const float temp = problem.variant == "temp1" ? 1 : kTemp;
  bf16* q = inputs["Q"].as<bf16>();
  attention::GenerateProjection({key, kQ, kQ, true, kWeightSpread, temp, np}, suffix, q);
  attention::LowerLogitsOfQueries(key, suffix, q);
  if (problem.variant == "sink") attention::AddSinkDirection(key, suffix, q);
  GenerateKeys(problem, key, kK, np, inputs["K"]);
  attention::GenerateValues({key, kV, kV, 0}, suffix, inputs["V"].as<bf16>());
  if (IsPrefixForm(problem)) {
    GenerateKeys(problem, key, kKPrefix, 0, inputs["K_prefix"]);
    attention::GenerateValues({key, kVPrefix, kV, kPrefixMean}, Tokens(PrefixShape(problem)),
                              inputs["V_prefix"].as<bf16>());
  }
  if (Tensor* ids = inputs.find("image_ids")) GenerateIds(problem, *ids);
}

Family MakeFamily() {
  Family family;
  family.name = kOperation;
  family.summary =
      "image-model attention over a cached text/image prefix, and the pass that fills it";
  family.definitions = {
      {"prefix_cached_block_causal_h32_d128", {{"H", 32}, {"D", 128}}, {"B", "Np", "Nq"}},
      {"prefix_cached_block_causal_h32_d128_prefix0",
       {{"H", 32}, {"D", 128}, {"Np", 0}},
       {"B", "Nq"}}};
  family.inputs = {{"Q", DType::kBF16, {"B", "Nq", "H", "D"}},
                   {"K", DType::kBF16, {"B", "Nq", "H", "D"}},
                   {"V", DType::kBF16, {"B", "Nq", "H", "D"}},
                   {"K_prefix", DType::kBF16, {"B", "Np", "H", "D"}, true},
                   {"V_prefix", DType::kBF16, {"B", "Np", "H", "D"}, true},
                   {"image_ids", DType::kI32, {"Nq"}, true}};
  family.outputs = {{"O", DType::kBF16, {"B", "Nq", "H", "D"}, false, 3}};
  family.attributes = {"prefix_segments"};
  family.variants = {"captured", "temp1", "sink", "image_ids"};
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

}  // namespace assay::prefix_cached_block_causal
