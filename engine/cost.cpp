#include "engine/cost.h"

#include <algorithm>

namespace assay::engine {
namespace {

std::int64_t Sum(std::initializer_list<const Matrix*> matrices) {
  std::int64_t bytes = 0;
  for (const Matrix* matrix : matrices) bytes += matrix->bytes();
  return bytes;
}

std::int64_t MlpBytes(const MlpWeights& w) { return Sum({&w.gate, &w.up, &w.down}); }

}  // namespace

StepBytes TrunkStepBytes(const Model& model, int requests, int rows, std::int64_t context,
                         std::int64_t distinct_experts) {
  const ModelConfig& c = model.config;
  StepBytes bytes;
  bytes.head = model.head.bytes();
  for (std::int64_t layer = 0; layer < c.trunk_layers(); ++layer) {
    const LayerWeights& w = model.layers[static_cast<std::size_t>(layer)];
    bytes.mixes += static_cast<std::int64_t>(4 * (w.attention_mix.fn.size() + w.ffn_mix.fn.size()));
    if (c.kind(layer) == LayerKind::kKda) {
      bytes.kda += Sum({&w.kda.q, &w.kda.k, &w.kda.v, &w.kda.b, &w.kda.f_a, &w.kda.f_b, &w.kda.g_a,
                        &w.kda.g_b, &w.kda.o});
      bytes.kda_state += 2 * 4 * requests * c.kda_channels() * c.kda_dim;
    } else {
      bytes.dsa += Sum({&w.dsa.q_a, &w.dsa.q_b, &w.dsa.kv_a, &w.dsa.kv_b, &w.dsa.o, &w.dsa.index_q,
                        &w.dsa.index_k, &w.dsa.index_head, &w.dsa.pool_gate});
      bytes.latents += 2 * rows * c.kv_lora * std::min(context, c.index_topk + kPoolTokens - 1);
      bytes.pools += requests * (context / kPoolTokens) * (c.index_dim + 4);
    }
    if (c.dense(layer)) {
      bytes.dense += MlpBytes(w.dense);
    } else {
      bytes.routers += w.moe.router.bytes();
      bytes.experts += MlpBytes(w.moe.shared);
    }
  }
  if (c.dense_layers < c.trunk_layers()) {
    const MoeWeights& moe = model.layers[static_cast<std::size_t>(c.dense_layers)].moe;
    bytes.experts += distinct_experts * MlpBytes(moe.experts.front());
  }
  return bytes;
}

}  // namespace assay::engine
