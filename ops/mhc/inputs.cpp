// The definition, tensors, generator, cost and verification policy of mhc.
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"
#include "ops/mhc/spec.h"
#include "ops/room.h"

namespace assay::mhc {
namespace {

enum TensorNumber : std::uint64_t { kStreamsTensor, kFn, kBase, kScale, kWeight };
constexpr std::uint64_t kCommon = kAuxiliaryTensor + 90;

std::vector<TensorSpec> InputSpecs() {
  return {
      {"streams", DType::kBF16, {"M", "4", "N"}},
      {"fn", DType::kF32, {"24", "4", "N"}},
      {"base", DType::kF32, {"24"}},
      {"scale", DType::kF32, {"3"}},
      {"weight", DType::kBF16, {"N"}},
  };
}

std::vector<TensorSpec> OutputSpecs() {
  return {{"u", DType::kBF16, {"M", "N"}},
          {"post", DType::kF32, {"M", "4"}},
          {"comb", DType::kF32, {"M", "4", "4"}}};
}

void ValidateInputs(const Problem& problem, const Bundle& inputs) {
  CheckInputLayouts(InputSpecs(), problem, inputs);
}

// Offsets of the mixes: streams that matter differently, and a stream matrix near a cyclic shift of
// the identity, so that a transposed one, or rounds that are missing, show.
float BaseOffset(std::uint64_t o) {
  constexpr float kPre[] = {1, -1, 0.5f, -0.5f}, kPost[] = {-1.5f, 1.5f, -0.5f, 0.5f};
  if (o < 4) return kPre[o];
  if (o < 8) return kPost[o - 4];
  const std::uint64_t source = (o - 8) / 4, destination = (o - 8) % 4;
  return source == destination ? 5.0f : destination == (source + 1) % 4 ? 2.5f : 0.0f;
}

// Streams share nine tenths of their content, as the model's do (cosine about 0.9); one channel in
// a hundred is 16 times larger. Rows differ in size, which the norms must take out.
void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  const std::int64_t n = problem.axis("N");
  constexpr float kSizes[] = {1.0f, 0x1p-7f, 0x1p5f, 2.0f};
  const auto at = [](std::int64_t i) { return static_cast<std::uint64_t>(i); };
  bf16* streams = inputs["streams"].as<bf16>();
  ParallelFor(problem.axis("M"), 0, [&](std::int64_t row) {
    for (std::int64_t i = 0; i < n; ++i) {
      const float outlier = Uniform(key, kCommon + 1, at(i)) < 0.01 ? 16.0f : 1.0f;
      const float common = 0.9f * UnitNormal(key, kCommon, at(row * n + i));
      for (std::int64_t j = 0; j < kStreams; ++j) {
        const std::int64_t element = (row * kStreams + j) * n + i;
        const float own = 0.45f * UnitNormal(key, kStreamsTensor, at(element));
        streams[element] = ToBF16(kSizes[row % 4] * outlier * (common + own));
      }
    }
  });
  float* fn = inputs["fn"].as<float>();
  const float deviation = 1 / std::sqrt(static_cast<float>(kStreams * n));
  for (std::int64_t i = 0; i < kMixes * kStreams * n; ++i) {
    fn[i] = ToFloat(ToBF16(deviation * UnitNormal(key, kFn, at(i))));  // bf16 in the checkpoint
  }
  for (std::uint64_t o = 0; o < kMixes; ++o) {
    inputs["base"].as<float>()[o] = BaseOffset(o) + 0.5f * UnitNormal(key, kBase, o);
  }
  for (std::uint64_t i = 0; i < 3; ++i) {
    inputs["scale"].as<float>()[i] = 1 + 0.1f * UnitNormal(key, kScale, i);
  }
  for (std::int64_t i = 0; i < n; ++i) {
    inputs["weight"].as<bf16>()[i] = ToBF16(1 + 0.1f * UnitNormal(key, kWeight, at(i)));
  }
}

Cost CostOf(const Problem& problem, const Bundle&) {
  const auto m = static_cast<double>(problem.axis("M")), n = static_cast<double>(problem.axis("N"));
  Cost cost;
  cost.flops = m * n * kStreams * (2 * kMixes + 2 + 2) + m * n * 4;
  cost.bytes = m * n * (2 * kStreams + 2) + m * 20 * 4;
  if (m > 0) cost.bytes += n * kStreams * kMixes * 4 + n * 2 + (kMixes + 3) * 4;
  return cost;
}

// A row of the reference is 1.6 MFLOP in fp64: all rows of a step, 64 of longer batches.
RowLists SampleRows(const Problem& problem, const Bundle&, std::uint64_t seed) {
  const std::vector<std::int64_t> rows = SpreadRows(problem.axis("M"), 64, seed);
  return {rows, rows, rows};
}

// Where the numbers come from: README.md, Verification.
std::vector<OutputPolicy> Policies(const Problem&) {
  OutputPolicy u, post, comb;
  u.grades = {{"strict", 0, 0x1p-8 + 0x1p-10, 0x1p-18, 0.5}};
  u.slice_rel_l2 = 4e-3;
  post.grades = {{"strict", 1e-5, 0, 0, 0}};
  comb.grades = {{"strict", 1e-6, 4e-5, 0, 0}};
  return {u, post, comb};
}

}  // namespace

Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  Args args;
  args.m = problem.axis("M");
  args.n = problem.axis("N");
  args.streams = inputs["streams"].as<bf16>();
  args.fn = inputs["fn"].as<float>();
  args.base = inputs["base"].as<float>();
  args.scale = inputs["scale"].as<float>();
  args.weight = inputs["weight"].as<bf16>();
  args.u = outputs["u"].as<bf16>();
  args.post = outputs["post"].as<float>();
  args.comb = outputs["comb"].as<float>();
  return args;
}

Family MakeFamily() {
  Family family;
  family.name = "mhc";
  family.summary = "hyper-connections: mixes 4 residual streams, normalises, Sinkhorn weights";
  family.definitions = {{"mhc_mix_n4096_s4", {{"N", 4096}}, {"M"}}};
  family.inputs = InputSpecs();
  family.outputs = OutputSpecs();
  family.variants = {"default"};
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

}  // namespace assay::mhc
