// The GLM-5.3-Flash architecture as data: sizes, layer kinds, constants. Nothing here is a default
// of a library: presets are complete, and config.json is read field by field (docs/engine.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace assay::engine {

enum class LayerKind : std::uint8_t {
  kKda,  // recurrent: delta attention with one decay per key channel
  kDsa,  // sparse latent attention with a pooled index
};

// Weights trained for one gate give plausible garbage with another: always said, never assumed.
enum class GateKind : std::uint8_t {
  kBounded,    // lower_bound * sigmoid(exp(A_log) (a + dt_bias))
  kUnbounded,  // -exp(A_log) softplus(a + dt_bias)
};

inline constexpr int kStreamCount = 4;  // of mHC
inline constexpr int kMixes = 24;       // 4 pre, 4 post, 16 of the stream matrix
inline constexpr int kConvWidth = 4;    // taps; the window holds one token less
inline constexpr int kPoolTokens = 4;

struct ModelConfig {
  std::string name;
  std::int64_t hidden = 0, vocab = 0, max_positions = 0;
  std::vector<LayerKind> layers;  // of the trunk
  std::int64_t dense_layers = 0;  // the first ones have a dense FFN, the others experts
  bool mtp = true;                // one more DSA + MoE layer, without mHC, drafts tokens
  double rms_eps = 1e-5;

  std::int64_t kda_heads = 0, kda_dim = 0;  // key and value size; also the rank of f and g
  GateKind gate = GateKind::kBounded;
  double gate_lower_bound = -5.0;

  std::int64_t heads = 0, q_lora = 0, kv_lora = 0, nope = 0, v_dim = 0;
  std::int64_t index_heads = 0, index_dim = 0, index_topk = 0;  // topk counts tokens
  double index_norm_eps = 1e-6;
  bool share_mtp_index = true;  // chained MTP rows reuse the selection of the last accepted row

  int sinkhorn_rounds = 20;
  double hc_eps = 1e-6;

  std::int64_t dense_inter = 0, experts = 0, experts_per_token = 0, expert_inter = 0;
  double routed_scale = 2.5, swiglu_limit = 10.0;

  std::int64_t trunk_layers() const { return static_cast<std::int64_t>(layers.size()); }
  // The MTP layer is layer number trunk_layers().
  LayerKind kind(std::int64_t layer) const {
    return layer == trunk_layers() ? LayerKind::kDsa : layers[static_cast<std::size_t>(layer)];
  }
  bool dense(std::int64_t layer) const { return layer < dense_layers; }
  std::int64_t kda_layers() const;
  std::int64_t dsa_layers() const;  // the MTP layer included when there is one
  // Position of a layer among those of its kind: index into caches and states.
  std::int64_t index_in_kind(std::int64_t layer) const;
  std::int64_t kda_channels() const { return kda_heads * kda_dim; }
  std::int64_t topk_pools() const { return index_topk / kPoolTokens; }
};

// "tiny" (CPU tests), "small" (one GPU), "S16", "S20", "S32" (layers 0..n-1 of the real model) or
// "glm-5.3-flash". Throws kInput naming what exists.
ModelConfig PresetConfig(std::string_view name);

// A size that is a positive multiple of something, and its key in config.json.
struct SizeField {
  std::int64_t ModelConfig::*size;
  const char* key;  // "a.b" names member b of member a
  std::int64_t multiple;
};
std::span<const SizeField> SizeFields();

// Throws kInput with one sentence for sizes that the engine cannot run: zero or odd sizes, vector
// lengths that are no multiple of 16 (one matrix instruction), more experts per token than experts.
void ValidateConfig(const ModelConfig& config);

// Reads `config.json` of a checkpoint (its `text_config` when there is one). Throws kInput naming
// the key: missing, of the wrong type, or a value the engine refuses (layer lists that disagree, a
// rotary dimension, uncompressed pools, an unknown scoring function, gate or quantisation).
ModelConfig ReadConfig(std::string_view json, const std::string& where);

// Weights of the trunk, of those that one token touches, and of the MTP layer.
struct ParameterCount {
  std::int64_t trunk = 0, active = 0, mtp = 0;
};
ParameterCount CountParameters(const ModelConfig& config);

}  // namespace assay::engine
