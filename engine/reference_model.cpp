// The fp64 model put together: token by token, and layer by layer.
#include <algorithm>
#include <cmath>

#include "engine/reference.h"

namespace assay::engine::reference {
namespace {

Vec EmbeddingRow(const Model& model, std::int32_t token) {
  const bf16* row = model.embed.row(token);
  Vec x;
  for (std::int64_t i = 0; i < model.config.hidden; ++i) x.push_back(ToFloat(row[i]));
  return x;
}

Vec StartStreams(const Model& model, std::int32_t token) {
  const Vec x = EmbeddingRow(model, token);
  Vec streams;
  for (int j = 0; j < kStreamCount; ++j) streams.insert(streams.end(), x.begin(), x.end());
  return streams;
}

double RootMeanSquare(const Vec& x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  return std::sqrt(squares / static_cast<double>(x.size()));
}

// f = rms(mean of the streams).
Vec FinalHidden(const Model& model, const Vec& streams) {
  const auto hidden = static_cast<std::size_t>(model.config.hidden);
  Vec h(hidden, 0.0);
  for (std::size_t i = 0; i < streams.size(); ++i) h[i % hidden] += streams[i] / kStreamCount;
  return RmsNorm(h, model.norm, model.config.rms_eps);
}

const std::vector<std::int64_t>* At(const std::vector<std::vector<std::int64_t>>& lists,
                                    std::size_t index) {
  return index < lists.size() ? &lists[index] : nullptr;
}

void Add(const Vec& y, Vec& x) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

}  // namespace

Row TrunkRow(const Model& model, std::int32_t token, State& state, const Choices* forced,
             const Observer& observe) {
  const ModelConfig& config = model.config;
  Row row;
  Vec streams = StartStreams(model, token);
  std::int64_t layer = 0;
  int site = 0;
  Tap tap;
  if (observe) tap = [&](Value what, const Vec& values) { observe(layer, site, what, values); };
  const auto enter = [&](const HyperWeights& w, const std::vector<float>& norm, Hyper& hyper) {
    hyper = HyperOf(config, w, streams);
    const Vec u = RmsNorm(MixIn(hyper, streams), norm, config.rms_eps);
    if (tap) {
      Vec mix(hyper.post, hyper.post + kStreamCount);
      mix.insert(mix.end(), &hyper.c[0][0], &hyper.c[0][0] + kStreamCount * kStreamCount);
      tap(Value::kHyper, mix);
      tap(Value::kInput, u);
    }
    return u;
  };
  const auto leave = [&](const Hyper& hyper, const Vec& y) {
    MixOut(hyper, y, streams);
    if (tap) tap(Value::kStreams, streams);
  };
  for (; layer < config.trunk_layers(); ++layer) {
    const LayerWeights& w = model.layers[static_cast<std::size_t>(layer)];
    const auto index = static_cast<std::size_t>(config.index_in_kind(layer));
    Hyper hyper;
    site = 0;
    const Vec u = enter(w.attention_mix, w.input_norm, hyper);
    if (config.kind(layer) == LayerKind::kKda) {
      leave(hyper, KdaRow(config, w.kda, u, state.kda[index], tap));
    } else {
      Selection& selection = row.pools.emplace_back();
      leave(hyper, DsaRow(config, w.dsa, u, state.length, state.dsa[index],
                          forced ? At(forced->pools, index) : nullptr, &selection, std::nullopt,
                          forced != nullptr, tap));
    }
    site = 1;
    const Vec v = enter(w.ffn_mix, w.ffn_norm, hyper);
    if (config.dense(layer)) {
      leave(hyper, Mlp(config, w.dense, v, tap));
    } else {
      row.experts.push_back(RouteRow(
          config, w.moe, v, forced ? At(forced->experts, row.experts.size()) : nullptr, tap));
      leave(hyper, MoeRow(config, w.moe, v, row.experts.back(), tap));
    }
    row.stream_rms.push_back(RootMeanSquare(streams));
  }
  ++state.length;
  row.hidden = FinalHidden(model, streams);
  row.logits = Linear(model.head, row.hidden);
  if (tap) {
    site = 0;
    tap(Value::kHidden, row.hidden);
    tap(Value::kLogits, row.logits);
  }
  return row;
}

MtpRow MtpStep(const Model& model, std::int64_t position, std::int32_t token, const Vec& hidden,
               DsaCache& cache, const std::vector<std::int64_t>* forced_pools,
               std::optional<std::int64_t> open_from,
               const std::vector<std::int64_t>* forced_experts) {
  const ModelConfig& config = model.config;
  const LayerWeights& w = model.layers.back();
  Vec both = RmsNorm(EmbeddingRow(model, token), model.mtp.embed_norm, config.rms_eps);
  if (position == 0) std::fill(both.begin(), both.end(), 0.0);
  const Vec f = RmsNorm(hidden, model.mtp.hidden_norm, config.rms_eps);
  both.insert(both.end(), f.begin(), f.end());
  Vec x = Linear(model.mtp.project, both);
  MtpRow row;
  Add(DsaRow(config, w.dsa, RmsNorm(x, w.input_norm, config.rms_eps), position, cache, forced_pools,
             &row.pools, open_from),
      x);
  const Vec v = RmsNorm(x, w.ffn_norm, config.rms_eps);
  row.experts = RouteRow(config, w.moe, v, forced_experts);
  Add(MoeRow(config, w.moe, v, row.experts), x);
  row.hidden = RmsNorm(x, model.mtp.final_norm, config.rms_eps);
  row.logits = Linear(model.head, row.hidden);
  return row;
}

Sequence WholeSequence(const Model& model, const std::vector<std::int32_t>& tokens) {
  const ModelConfig& config = model.config;
  Sequence sequence;
  sequence.state = EmptyState(config);
  std::vector<Vec> streams;
  for (const std::int32_t token : tokens) streams.push_back(StartStreams(model, token));
  for (std::int64_t layer = 0; layer < config.trunk_layers(); ++layer) {
    const LayerWeights& w = model.layers[static_cast<std::size_t>(layer)];
    const auto index = static_cast<std::size_t>(config.index_in_kind(layer));
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const Hyper hyper = HyperOf(config, w.attention_mix, streams[t]);
      const Vec u = RmsNorm(MixIn(hyper, streams[t]), w.input_norm, config.rms_eps);
      MixOut(hyper,
             config.kind(layer) == LayerKind::kKda
                 ? KdaRow(config, w.kda, u, sequence.state.kda[index])
                 : DsaRow(config, w.dsa, u, static_cast<std::int64_t>(t), sequence.state.dsa[index],
                          nullptr, nullptr),
             streams[t]);
    }
    for (Vec& row : streams) {
      const Hyper hyper = HyperOf(config, w.ffn_mix, row);
      const Vec v = RmsNorm(MixIn(hyper, row), w.ffn_norm, config.rms_eps);
      MixOut(hyper,
             config.dense(layer) ? Mlp(config, w.dense, v)
                                 : MoeRow(config, w.moe, v, RouteRow(config, w.moe, v, nullptr)),
             row);
    }
  }
  sequence.state.length = static_cast<std::int64_t>(tokens.size());
  for (const Vec& row : streams) {
    sequence.hidden.push_back(FinalHidden(model, row));
    sequence.logits.push_back(Linear(model.head, sequence.hidden.back()));
  }
  return sequence;
}

}  // namespace assay::engine::reference
