// The definitions, the tensors, and the generator of realistic activations and weights.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"
#include "base/simd.h"
#include "ops/dense_gemm_bf16_nt/spec.h"
#include "ops/room.h"

namespace assay::dense_gemm_bf16_nt {
namespace {

constexpr std::uint64_t kTensorA = 0, kTensorB = 1;

struct DefinitionRow {
  const char* name;
  std::int64_t n, k;
  const char* usual_kind;  // of records without a module_path
};
constexpr DefinitionRow kDefinitions[] = {
    {"dense_gemm_bf16_nt_n12288_k4096", 12288, 4096, "gate"},
    {"dense_gemm_bf16_nt_n4096_k4096", 4096, 4096, "to_q"},
    {"dense_gemm_bf16_nt_n4096_k12288", 4096, 12288, "down"},
};

enum class Activation { kNormalised, kPlain, kGated };

// A layer of the transformer: how its activations look, and the gain g of its weights, chosen so
// that outputs reach the magnitudes of the captured ones.
struct Layer {
  const char* kind;
  const char* module_suffix;
  Activation activation;
  float outlier;  // factor of the outlier channels (kGated: of 1/1024 of the elements)
  double weight_gain;
};
constexpr Layer kLayers[] = {
    {"qkv", ".attn", Activation::kNormalised, 20, 8},
    {"to_q", ".attn.to_q", Activation::kNormalised, 20, 8},
    {"to_out", ".attn.to_out.0", Activation::kPlain, 10, 8},
    {"gate", ".img_mlp.gate_layer", Activation::kNormalised, 20, 0.5},
    {"down", ".img_mlp.out", Activation::kGated, 30, 1},
};

// Eight channels spread over k carry the outliers.
constexpr bool IsOutlierChannel(std::int64_t channel, std::int64_t k) {
  return k >= 8 && channel % (k / 8) == k / 16 && channel / (k / 8) < 8;
}

// exp(x) for |x| <= 3.5 from additions and multiplications only: the same bits on every machine,
// which libm does not promise. Taylor on x/16 (next term < 1e-15), then four squarings.
inline double PortableExp(double x) {
  const double y = x * 0.0625;
  double p = 1.0 / 3628800.0;
  for (const double c : {1.0 / 362880.0, 1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0,
                         1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0}) {
    p = p * y + c;
  }
  p = p * p;
  p = p * p;
  p = p * p;
  return p * p;
}

ASSAY_VECTOR_CLONES void FillNormal(std::uint64_t key, std::uint64_t tensor, std::int64_t first,
                                    std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = UnitNormal(key, tensor, static_cast<std::uint64_t>(first + i));
  }
}

ASSAY_VECTOR_CLONES void FillScaled(std::uint64_t key, std::uint64_t tensor, std::int64_t first,
                                    std::int64_t count, float scale, bf16* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = ToBF16(UnitNormal(key, tensor, static_cast<std::uint64_t>(first + i)) * scale);
  }
}

// silu(z) * z' * 2, as behind a gated MLP.
ASSAY_VECTOR_CLONES void FillGated(std::uint64_t key, std::int64_t first, std::int64_t count,
                                   float outlier, bf16* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::uint64_t>(first + i);
    const double z = UnitNormal(key, kTensorA, index);
    const double up = UnitNormal(key, kAuxiliaryTensor + 1, index);
    const bool large = (Mix64(key, kAuxiliaryTensor + 2, index) >> 54) == 0;
    const double value = z / (1.0 + PortableExp(-z)) * up * 2.0;
    out[i] = ToBF16(static_cast<float>(value) * (large ? outlier : 1.0f));
  }
}

ASSAY_VECTOR_CLONES void ScaleRow(const float* z, double mean, double inverse_rms,
                                  const float* channel_gain, std::int64_t count, bf16* out) {
  for (std::int64_t c = 0; c < count; ++c) {
    out[c] = ToBF16(static_cast<float>((z[c] - mean) * inverse_rms * channel_gain[c]));
  }
}

// Gain of every channel: 1 + 0.3 z for normalised layers, 2 for plain ones, times the outliers.
std::vector<float> ChannelGains(std::uint64_t key, const Layer& layer, std::int64_t k) {
  std::vector<float> gains(static_cast<std::size_t>(k), 2.0f);
  for (std::int64_t c = 0; c < k; ++c) {
    float& gain = gains[static_cast<std::size_t>(c)];
    if (layer.activation == Activation::kNormalised) {
      gain = 1.0f + 0.3f * UnitNormal(key, kAuxiliaryTensor, static_cast<std::uint64_t>(c));
    }
    if (IsOutlierChannel(c, k)) gain *= layer.outlier;
  }
  return gains;
}

// One row of A: z, for normalised layers minus its mean and over its rms (LayerNorm without affine;
// sums in index order), times the channel gains.
void FillChannelRow(std::uint64_t key, const Layer& layer, std::int64_t m, std::int64_t k,
                    const std::vector<float>& gains, std::vector<float>& z, bf16* row) {
  FillNormal(key, kTensorA, m * k, k, z.data());
  double mean = 0, inverse_rms = 1;
  if (layer.activation == Activation::kNormalised) {
    for (const float x : z) mean += x;
    mean /= static_cast<double>(k);
    double squares = 0;
    for (const float x : z) squares += (x - mean) * (x - mean);
    inverse_rms = 1.0 / std::sqrt(squares / static_cast<double>(k));
  }
  ScaleRow(z.data(), mean, inverse_rms, gains.data(), k, row);
}

constexpr std::int64_t kRowsPerTask = 16;

void GenerateLayer(std::uint64_t key, const Layer& layer, Tensor& a, Tensor& b) {
  const std::int64_t m = a.shape[0], n = b.shape[0], k = b.shape[1];
  const std::vector<float> gains = ChannelGains(key, layer, k);
  bf16* const a_data = a.as<bf16>();
  ParallelRanges(m, kRowsPerTask, 0, [&](std::int64_t begin, std::int64_t end) {
    if (layer.activation == Activation::kGated) {
      FillGated(key, begin * k, (end - begin) * k, layer.outlier, a_data + begin * k);
      return;
    }
    std::vector<float> z(static_cast<std::size_t>(k));
    for (std::int64_t row = begin; row < end; ++row) {
      FillChannelRow(key, layer, row, k, gains, z, a_data + row * k);
    }
  });
  const auto scale = static_cast<float>(layer.weight_gain / std::sqrt(static_cast<double>(k)));
  bf16* const b_data = b.as<bf16>();
  ParallelRanges(n, kRowsPerTask, 0, [&](std::int64_t begin, std::int64_t end) {
    FillScaled(key, kTensorB, begin * k, (end - begin) * k, scale, b_data + begin * k);
  });
}

// Integers in [-2, 2]: every fp32 sum is exact, so C must be the rounded integer, bit for bit.
void GenerateIntegers(std::uint64_t key, std::uint64_t number, Tensor& tensor) {
  bf16* const data = tensor.as<bf16>();
  ParallelRanges(tensor.elements(), 1 << 16, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto value =
          static_cast<int>(Mix64(key, number, static_cast<std::uint64_t>(i)) % 5) - 2;
      data[i] = ToBF16(static_cast<float>(value));
    }
  });
}

void Fill(Tensor& tensor, bf16 value) { std::fill_n(tensor.as<bf16>(), tensor.elements(), value); }

// Exponents far apart; row m/2 of A is NaN (m >= 2), the last row is zero (m >= 3).
void GenerateMagnitude(std::uint64_t key, Tensor& a, Tensor& b) {
  const std::int64_t m = a.shape[0], k = a.shape[1];
  FillScaled(key, kTensorA, 0, a.elements(), 0x1p-60f, a.as<bf16>());
  FillScaled(key, kTensorB, 0, b.elements(), 0x1p60f, b.as<bf16>());
  if (m >= 2) std::fill_n(a.as<bf16>() + m / 2 * k, k, bf16{0x7FC0});
  if (m >= 3) std::fill_n(a.as<bf16>() + (m - 1) * k, k, bf16{});
}

const Layer* FindLayer(const std::string& kind) {
  for (const Layer& layer : kLayers) {
    if (kind == layer.kind) return &layer;
  }
  return nullptr;
}

void CheckTensor(const Bundle& bundle, const TensorLayout& wanted) {
  const Tensor* tensor = bundle.find(wanted.name);
  if (tensor == nullptr) BadInput("dense_gemm_bf16_nt: input " + wanted.name + " is missing");
  if (tensor->dtype != wanted.dtype) {
    BadInput("dense_gemm_bf16_nt: " + wanted.name + " is " + std::string(DTypeName(tensor->dtype)) +
             ", not bfloat16");
  }
  if (tensor->shape != wanted.shape) {
    BadInput("dense_gemm_bf16_nt: " + wanted.name + " has shape " + ShapeText(tensor->shape) +
             ", not " + ShapeText(wanted.shape));
  }
}

std::vector<TensorSpec> InputSpecs() {
  return {{"A", DType::kBF16, {"M", "K"}}, {"B", DType::kBF16, {"N", "K"}}};
}

}  // namespace

std::vector<Definition> Definitions() {
  std::vector<Definition> definitions;
  for (const DefinitionRow& row : kDefinitions) {
    definitions.push_back({row.name, {{"N", row.n}, {"K", row.k}}, {"M"}});
  }
  return definitions;
}

std::vector<std::string> Variants() {
  std::vector<std::string> variants = {"layer"};  // by module_path
  for (const Layer& layer : kLayers) variants.emplace_back(layer.kind);
  for (const char* special : {"integers", "ones", "magnitude"}) variants.emplace_back(special);
  return variants;
}

std::string KindOf(const Problem& problem) {
  if (!problem.variant.empty() && problem.variant != "layer") return problem.variant;
  if (const std::string* path = problem.text("module_path")) {
    for (const Layer& layer : kLayers) {
      if (path->ends_with(layer.module_suffix)) return layer.kind;
    }
  }
  for (const DefinitionRow& row : kDefinitions) {
    if (problem.definition->name == row.name) return row.usual_kind;
  }
  throw Error(Fault::kInternal, "no usual layer for " + problem.definition->name);
}

// NaN, infinities and subnormals are legal and propagate; only the form can be wrong.
void ValidateInputs(const Problem& problem, const Bundle& inputs) {
  for (const TensorLayout& layout : LayoutsOf(InputSpecs(), problem)) CheckTensor(inputs, layout);
}

void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  Tensor& a = inputs["A"];
  Tensor& b = inputs["B"];
  const std::string kind = KindOf(problem);
  if (const Layer* layer = FindLayer(kind)) {
    GenerateLayer(key, *layer, a, b);
  } else if (kind == "integers") {
    GenerateIntegers(key, kTensorA, a);
    GenerateIntegers(key, kTensorB, b);
  } else if (kind == "ones") {
    Fill(a, ToBF16(1.0f));
    Fill(b, ToBF16(1.0f));
  } else {
    GenerateMagnitude(key, a, b);
  }
}

Cost CostOf(const Problem& problem, const Bundle&) {
  const auto m = static_cast<double>(problem.axis("M"));
  const auto n = static_cast<double>(problem.axis("N"));
  const auto k = static_cast<double>(problem.axis("K"));
  return {2 * m * n * k, 2 * (m * k + n * k + m * n), 0};
}

Family MakeFamily() {
  Family family;
  family.name = "dense_gemm_bf16_nt";
  family.summary = "bf16 linear layers of an image diffusion transformer: C = A B^T";
  family.definitions = Definitions();
  family.inputs = InputSpecs();
  family.outputs = {{"C", DType::kBF16, {"M", "N"}}};
  family.attributes = {"module_path"};
  family.variants = Variants();
  family.validate_inputs = ValidateInputs;  // axes: any M >= 0 is legal
  family.input_layouts = [](const Problem& problem) { return LayoutsOf(InputSpecs(), problem); };
  family.generate = Generate;
  family.cost = CostOf;
  family.sample_rows = SampleRows;
  family.reference = Reference;
  family.policies = Policies;
  family.whole_checks = WholeChecks;
  family.backends = {CpuBackend()};
  family.mutants = Mutants();
  return family;
}

}  // namespace assay::dense_gemm_bf16_nt
