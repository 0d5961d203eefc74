#include "engine/config.h"

#include <algorithm>

#include "base/error.h"
#include "engine/model.h"

namespace assay::engine {
namespace {

// DSA on every fourth layer, KDA elsewhere.
std::vector<LayerKind> HybridLayers(std::int64_t count) {
  std::vector<LayerKind> layers;
  for (std::int64_t layer = 0; layer < count; ++layer) {
    layers.push_back(layer % 4 == 3 ? LayerKind::kDsa : LayerKind::kKda);
  }
  return layers;
}

ModelConfig Tiny() {
  ModelConfig c;
  c.name = "tiny";
  c.hidden = 128, c.vocab = 257, c.max_positions = 1 << 20;
  c.layers = HybridLayers(5), c.dense_layers = 1;
  c.kda_heads = 2, c.kda_dim = 32;
  c.heads = 2, c.q_lora = 48, c.kv_lora = 64, c.nope = 32, c.v_dim = 32;
  c.index_heads = 2, c.index_dim = 32, c.index_topk = 16;
  c.dense_inter = 192, c.experts = 12, c.experts_per_token = 3, c.expert_inter = 64;
  return c;
}

ModelConfig Small() {
  ModelConfig c;
  c.name = "small";
  c.hidden = 2048, c.vocab = 32768, c.max_positions = 1 << 20;
  c.layers = HybridLayers(12), c.dense_layers = 1;
  c.kda_heads = 16, c.kda_dim = 128;
  c.heads = 16, c.q_lora = 768, c.kv_lora = 512, c.nope = 128, c.v_dim = 128;
  c.index_heads = 16, c.index_dim = 128, c.index_topk = 512;
  c.dense_inter = 6144, c.experts = 64, c.experts_per_token = 8, c.expert_inter = 512;
  return c;
}

ModelConfig Real(std::string name, std::int64_t layers) {
  ModelConfig c;
  c.name = std::move(name);
  c.hidden = 4096, c.vocab = 154880, c.max_positions = 1 << 20;
  c.layers = HybridLayers(layers), c.dense_layers = 3;
  c.kda_heads = 64, c.kda_dim = 128;
  c.heads = 64, c.q_lora = 1536, c.kv_lora = 512, c.nope = 256, c.v_dim = 256;
  c.index_heads = 32, c.index_dim = 128, c.index_topk = 2048;
  c.dense_inter = 12288, c.experts = 288, c.experts_per_token = 8, c.expert_inter = 2048;
  return c;
}

std::int64_t CountKind(const ModelConfig& config, LayerKind kind) {
  return std::count(config.layers.begin(), config.layers.end(), kind);
}

}  // namespace

std::int64_t ModelConfig::kda_layers() const { return CountKind(*this, LayerKind::kKda); }

std::int64_t ModelConfig::dsa_layers() const {
  return CountKind(*this, LayerKind::kDsa) + (mtp ? 1 : 0);
}

std::int64_t ModelConfig::index_in_kind(std::int64_t layer) const {
  return std::count(layers.begin(), layers.begin() + layer, kind(layer));
}

ModelConfig PresetConfig(std::string_view name) {
  if (name == "tiny") return Tiny();
  if (name == "small") return Small();
  if (name == "S16") return Real("S16", 16);
  if (name == "S20") return Real("S20", 20);
  if (name == "S32") return Real("S32", 32);
  if (name == "glm-5.3-flash") return Real("glm-5.3-flash", 45);
  BadInput("model \"" + std::string(name) +
           "\" is none of tiny, small, S16, S20, S32, glm-5.3-flash");
}

std::span<const SizeField> SizeFields() {
  // 16 = the K of one matrix instruction; 32 = the lanes of the fixed reduction trees; 64 = a slice
  // of the hidden size in an mHC task.
  static constexpr SizeField kFields[] = {
      {&ModelConfig::hidden, "hidden_size", 64},
      {&ModelConfig::vocab, "vocab_size", 1},
      {&ModelConfig::max_positions, "max_position_embeddings", 1},
      {&ModelConfig::kda_heads, "linear_attn_config.num_heads", 1},
      {&ModelConfig::kda_dim, "linear_attn_config.head_dim", 32},
      {&ModelConfig::heads, "num_attention_heads", 1},
      {&ModelConfig::q_lora, "q_lora_rank", 16},
      {&ModelConfig::kv_lora, "kv_lora_rank", 16},
      {&ModelConfig::nope, "qk_nope_head_dim", 16},
      {&ModelConfig::v_dim, "v_head_dim", 16},
      {&ModelConfig::index_heads, "index_n_heads", 1},
      {&ModelConfig::index_dim, "index_head_dim", 32},
      {&ModelConfig::index_topk, "index_topk", kPoolTokens},
      {&ModelConfig::dense_inter, "intermediate_size", 16},
      {&ModelConfig::experts, "n_routed_experts", 1},
      {&ModelConfig::experts_per_token, "num_experts_per_tok", 1},
      {&ModelConfig::expert_inter, "moe_intermediate_size", 16}};
  return kFields;
}

void ValidateConfig(const ModelConfig& c) {
  for (const SizeField& field : SizeFields()) {
    const std::int64_t size = c.*field.size;
    if (size <= 0 || size % field.multiple != 0) {
      BadInput("model " + c.name + ": " + field.key + " is " + std::to_string(size) +
               ", wanted a positive multiple of " + std::to_string(field.multiple));
    }
  }
  if (c.layers.empty()) BadInput("model " + c.name + ": num_hidden_layers is 0");
  if (c.dense_layers < 0 || c.dense_layers > c.trunk_layers()) {
    BadInput("model " + c.name + ": first_k_dense_replace is " + std::to_string(c.dense_layers) +
             ", wanted 0 to " + std::to_string(c.trunk_layers()));
  }
  if (c.sinkhorn_rounds < 1) {
    BadInput("model " + c.name + ": hc_sinkhorn_iters is " + std::to_string(c.sinkhorn_rounds) +
             ", wanted at least 1");
  }
  if ((c.index_dim & (c.index_dim - 1)) != 0) {
    BadInput("model " + c.name + ": index_head_dim is " + std::to_string(c.index_dim) +
             ", wanted a power of two (it is rotated by a Hadamard matrix)");
  }
  if (c.experts_per_token > c.experts) {
    BadInput("model " + c.name + ": num_experts_per_tok " + std::to_string(c.experts_per_token) +
             " exceeds n_routed_experts " + std::to_string(c.experts));
  }
  if (c.gate == GateKind::kBounded && !(c.gate_lower_bound < 0)) {
    BadInput("model " + c.name + ": gate_lower_bound is " + std::to_string(c.gate_lower_bound) +
             ", wanted a negative number");
  }
}

ParameterCount CountParameters(const ModelConfig& config) {
  ParameterCount count;
  Model model;
  const auto add = [&](const TensorSpec& spec) {
    const std::int64_t elements = ElementCount(spec.shape);
    if (spec.layer == config.trunk_layers()) {
      count.mtp += elements;
      return;
    }
    count.trunk += elements;
    const bool embedding = spec.slot == Slot::kEmbed;
    if (spec.expert < 0) {
      count.active += embedding ? config.hidden : elements;
    } else if (spec.expert < config.experts_per_token) {
      count.active += elements;
    }
  };
  VisitTensors(config, model,
               {[&](const TensorSpec& spec, Matrix&) { add(spec); },
                [&](const TensorSpec& spec, std::vector<float>&) { add(spec); }});
  return count;
}

}  // namespace assay::engine
