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

void ValidateConfig(const ModelConfig& c) {
  struct Size {
    const char* name;
    std::int64_t value, multiple;
  };
  // 16 = the K of one matrix instruction; 32 = the lanes of the fixed reduction trees; 64 = a slice
  // of the hidden size in an mHC task.
  const Size sizes[] = {{"hidden_size", c.hidden, 64},
                        {"vocab_size", c.vocab, 1},
                        {"max_position_embeddings", c.max_positions, 1},
                        {"num_hidden_layers", c.trunk_layers(), 1},
                        {"linear_attn_config.num_heads", c.kda_heads, 1},
                        {"linear_attn_config.head_dim", c.kda_dim, 32},
                        {"num_attention_heads", c.heads, 1},
                        {"q_lora_rank", c.q_lora, 16},
                        {"kv_lora_rank", c.kv_lora, 16},
                        {"qk_nope_head_dim", c.nope, 16},
                        {"v_head_dim", c.v_dim, 16},
                        {"index_n_heads", c.index_heads, 1},
                        {"index_head_dim", c.index_dim, 32},
                        {"index_topk", c.index_topk, kPoolTokens},
                        {"intermediate_size", c.dense_inter, 16},
                        {"n_routed_experts", c.experts, 1},
                        {"num_experts_per_tok", c.experts_per_token, 1},
                        {"moe_intermediate_size", c.expert_inter, 16}};
  for (const Size& size : sizes) {
    if (size.value <= 0 || size.value % size.multiple != 0) {
      BadInput("model " + c.name + ": " + size.name + " is " + std::to_string(size.value) +
               ", wanted a positive multiple of " + std::to_string(size.multiple));
    }
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
