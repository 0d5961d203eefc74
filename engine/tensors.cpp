// The tensor table of the architecture (engine/model.h).
#include <cmath>

#include "engine/model.h"

namespace assay::engine {
namespace {

// Adds the fields that follow from layer and slot, and hands the tensor on.
class Table {
 public:
  explicit Table(const TensorVisitor& visit) : visit_(visit) {}

  void EnterLayer(std::int64_t layer) {
    layer_ = layer;
    prefix_ = "model.language_model.layers." + std::to_string(layer) + ".";
  }

  void Linear(const std::string& name, int slot, std::int64_t n, std::int64_t k, double sigma,
              Matrix& target, bool may_be_quantised = true, std::int64_t expert = -1) {
    TensorSpec spec = Spec(name, slot, {n, k}, sigma, 0);
    spec.may_be_quantised = may_be_quantised;
    spec.expert = expert;
    visit_.matrix(spec, target);
  }
  void Vector(const std::string& name, int slot, Shape shape, double sigma, double mean,
              std::vector<float>& target) {
    visit_.vector(Spec(name, slot, std::move(shape), sigma, mean), target);
  }
  void Float(const std::string& name, int slot, Shape shape, double sigma, double mean,
             std::vector<float>& target) {
    TensorSpec spec = Spec(name, slot, std::move(shape), sigma, mean);
    spec.fp32 = true;
    visit_.vector(spec, target);
  }

 private:
  TensorSpec Spec(const std::string& name, int slot, Shape shape, double sigma, double mean) const {
    TensorSpec spec;
    spec.name = prefix_ + name;
    spec.shape = std::move(shape);
    spec.layer = layer_;
    spec.slot = slot;
    spec.sigma = sigma, spec.mean = mean;
    spec.tensor_id = slot < 0 ? 0x80000000u + static_cast<std::uint32_t>(-1 - slot)
                              : static_cast<std::uint32_t>(layer_ * 4096 + slot);
    return spec;
  }

  const TensorVisitor& visit_;
  std::int64_t layer_ = -1;
  std::string prefix_;
};

constexpr double kNormSigma = 0.1;  // RMSNorm weights scatter around 1

void VisitHyper(const ModelConfig& c, Table& table, const std::string& site, int slot,
                HyperWeights& w) {
  table.Vector("hc_" + site + "_fn", slot + Slot::kHcFn, {kMixes, kStreamCount * c.hidden},
               1 / std::sqrt(4.0 * static_cast<double>(c.hidden)), 0, w.fn);
  table.Float("hc_" + site + "_base", slot + Slot::kHcBase, {kMixes}, 0.5, 0, w.base);
  table.Float("hc_" + site + "_scale", slot + Slot::kHcScale, {3}, 0.1, 1, w.scale);
}

void VisitKda(const ModelConfig& c, Table& table, double h, double kap, KdaWeights& w) {
  const std::int64_t channels = c.kda_channels(), rank = c.kda_dim;
  const double low_rank = 1 / std::sqrt(static_cast<double>(rank));
  table.Linear("self_attn.q_proj.weight", Slot::kQ, channels, c.hidden, h, w.q);
  table.Linear("self_attn.k_proj.weight", Slot::kK, channels, c.hidden, h, w.k);
  table.Linear("self_attn.v_proj.weight", Slot::kV, channels, c.hidden, h, w.v);
  table.Linear("self_attn.b_proj.weight", Slot::kB, c.kda_heads, c.hidden, h, w.b);
  table.Linear("self_attn.f_a_proj.weight", Slot::kFa, rank, c.hidden, h, w.f_a);
  table.Linear("self_attn.f_b_proj.weight", Slot::kFb, channels, rank, low_rank, w.f_b);
  table.Linear("self_attn.g_a_proj.weight", Slot::kGa, rank, c.hidden, h, w.g_a);
  table.Linear("self_attn.g_b_proj.weight", Slot::kGb, channels, rank, low_rank, w.g_b);
  table.Linear("self_attn.o_proj.weight", Slot::kO, c.hidden, channels,
               0.5 * kap / std::sqrt(static_cast<double>(channels)), w.o);
  table.Vector("self_attn.q_conv1d.weight", Slot::kConvQ, {channels, 1, kConvWidth}, 0.4, 0,
               w.q_conv);
  table.Vector("self_attn.k_conv1d.weight", Slot::kConvK, {channels, 1, kConvWidth}, 0.4, 0,
               w.k_conv);
  table.Vector("self_attn.v_conv1d.weight", Slot::kConvV, {channels, 1, kConvWidth}, 0.4, 0,
               w.v_conv);
  table.Float("self_attn.dt_bias", Slot::kDtBias, {channels}, 2, -4, w.dt_bias);
  table.Float("self_attn.A_log", Slot::kALog, {c.kda_heads}, 0.3, 0, w.a_log);
  table.Vector("self_attn.o_norm.weight", Slot::kONorm, {c.kda_dim}, kNormSigma, 1, w.o_norm);
}

void VisitDsa(const ModelConfig& c, Table& table, double h, double kap, DsaWeights& w) {
  const double q_rank = std::sqrt(static_cast<double>(c.q_lora));
  const std::int64_t values = c.heads * c.v_dim;
  table.Linear("self_attn.q_a_proj.weight", Slot::kQa, c.q_lora, c.hidden, h, w.q_a);
  table.Vector("self_attn.q_a_layernorm.weight", Slot::kQaNorm, {c.q_lora}, kNormSigma, 1,
               w.q_norm);
  table.Linear("self_attn.q_b_proj.weight", Slot::kQb, c.heads * c.nope, c.q_lora, 2 / q_rank,
               w.q_b);
  table.Linear("self_attn.kv_a_proj_with_mqa.weight", Slot::kKvA, c.kv_lora, c.hidden, h, w.kv_a);
  table.Vector("self_attn.kv_a_layernorm.weight", Slot::kKvANorm, {c.kv_lora}, kNormSigma, 1,
               w.kv_norm);
  // Read by rows and by columns: stays bf16 (as it does in the published checkpoints).
  table.Linear("self_attn.kv_b_proj.weight", Slot::kKvB, c.heads * (c.nope + c.v_dim), c.kv_lora,
               1 / std::sqrt(static_cast<double>(c.kv_lora)), w.kv_b, false);
  table.Linear("self_attn.o_proj.weight", Slot::kO, c.hidden, values,
               0.6 * kap / std::sqrt(static_cast<double>(values)), w.o);
  const std::string indexer = "self_attn.indexer.";
  table.Linear(indexer + "wq_b.weight", Slot::kIndexQ, c.index_heads * c.index_dim, c.q_lora,
               1 / q_rank, w.index_q);
  table.Linear(indexer + "wk.weight", Slot::kIndexK, c.index_dim, c.hidden, h, w.index_k);
  table.Linear(indexer + "weights_proj.weight", Slot::kIndexHead, c.index_heads, c.hidden, h,
               w.index_head);
  table.Vector(indexer + "k_norm.weight", Slot::kIndexNorm, {c.index_dim}, 0.1, 1, w.index_k_norm);
  table.Vector(indexer + "k_norm.bias", Slot::kIndexBias, {c.index_dim}, 0.1, 0, w.index_k_bias);
  table.Linear(indexer + "index_kpool_compress_gate", Slot::kPoolGate, c.index_dim, c.hidden, h,
               w.pool_gate);
  table.Vector(indexer + "index_kpool_compress_ape", Slot::kPoolApe, {kPoolTokens, c.index_dim},
               0.5, 0, w.pool_ape);
}

void VisitMlp(Table& table, const std::string& prefix, int slot, std::int64_t hidden,
              std::int64_t inter, double h, double down, MlpWeights& w, std::int64_t expert = -1) {
  table.Linear(prefix + "gate_proj.weight", slot, inter, hidden, 4 * h, w.gate, true, expert);
  table.Linear(prefix + "up_proj.weight", slot + 1, inter, hidden, 4 * h, w.up, true, expert);
  table.Linear(prefix + "down_proj.weight", slot + 2, hidden, inter, down, w.down, true, expert);
}

void VisitMoe(const ModelConfig& c, Table& table, double h, double kap, MoeWeights& w) {
  const double down = 0.02 * kap / std::sqrt(static_cast<double>(c.expert_inter));
  table.Linear("mlp.gate.weight", Slot::kRouter, c.experts, c.hidden, h, w.router);
  table.Float("mlp.gate.e_score_correction_bias", Slot::kRouterBias, {c.experts}, 0.05, 0, w.bias);
  w.experts.resize(static_cast<std::size_t>(c.experts));
  for (std::int64_t e = 0; e < c.experts; ++e) {
    VisitMlp(table, "mlp.experts." + std::to_string(e) + ".",
             Slot::kExpert + 3 * static_cast<int>(e), c.hidden, c.expert_inter, h, down,
             w.experts[static_cast<std::size_t>(e)], e);
  }
  VisitMlp(table, "mlp.shared_experts.", Slot::kShared, c.hidden, c.expert_inter, h, down,
           w.shared);
}

void VisitMtp(const ModelConfig& c, Table& table, double h, MtpWeights& w) {
  table.Vector("enorm.weight", Slot::kEmbedNorm, {c.hidden}, kNormSigma, 1, w.embed_norm);
  table.Vector("hnorm.weight", Slot::kHiddenNorm, {c.hidden}, kNormSigma, 1, w.hidden_norm);
  table.Linear("eh_proj.weight", Slot::kProject, c.hidden, 2 * c.hidden, 0.5 * h, w.project);
  table.Vector("shared_head.norm.weight", Slot::kFinalNorm, {c.hidden}, kNormSigma, 1,
               w.final_norm);
}

void VisitLayer(const ModelConfig& c, Table& table, std::int64_t layer, double h, double kap,
                LayerWeights& w) {
  table.EnterLayer(layer);
  if (layer < c.trunk_layers()) {
    VisitHyper(c, table, "attn", 0, w.attention_mix);
    VisitHyper(c, table, "ffn", 3, w.ffn_mix);
  }
  table.Vector("input_layernorm.weight", Slot::kInputNorm, {c.hidden}, kNormSigma, 1, w.input_norm);
  table.Vector("post_attention_layernorm.weight", Slot::kFfnNorm, {c.hidden}, kNormSigma, 1,
               w.ffn_norm);
  if (c.kind(layer) == LayerKind::kKda) {
    VisitKda(c, table, h, kap, w.kda);
  } else {
    VisitDsa(c, table, h, kap, w.dsa);
  }
  if (c.dense(layer)) {
    VisitMlp(table, "mlp.", Slot::kDense, c.hidden, c.dense_inter, h,
             0.03 * kap / std::sqrt(static_cast<double>(c.dense_inter)), w.dense);
  } else {
    VisitMoe(c, table, h, kap, w.moe);
  }
}

}  // namespace

void VisitTensors(const ModelConfig& c, Model& model, const TensorVisitor& visit) {
  const double h = 1 / std::sqrt(static_cast<double>(c.hidden));
  const double kap = std::sqrt(24.0 / static_cast<double>(c.trunk_layers()));
  Table table(visit);
  table.Linear("model.language_model.embed_tokens.weight", Slot::kEmbed, c.vocab, c.hidden, 1,
               model.embed, false);
  table.Vector("model.language_model.norm.weight", Slot::kNorm, {c.hidden}, kNormSigma, 1,
               model.norm);
  table.Linear("lm_head.weight", Slot::kHead, c.vocab, c.hidden, h, model.head);
  model.layers.resize(static_cast<std::size_t>(c.trunk_layers() + (c.mtp ? 1 : 0)));
  for (std::int64_t layer = 0; layer < c.trunk_layers(); ++layer) {
    VisitLayer(c, table, layer, h, kap, model.layers[static_cast<std::size_t>(layer)]);
  }
  if (!c.mtp) return;
  VisitLayer(c, table, c.trunk_layers(), h, kap, model.layers.back());
  VisitMtp(c, table, h, model.mtp);
}

}  // namespace assay::engine
