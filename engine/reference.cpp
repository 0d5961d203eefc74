#include "engine/reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace assay::engine::reference {

namespace {

void Show(const Tap& tap, Value what, const Vec& values) {
  if (tap) tap(what, values);
}

void Append(const Vec& part, Vec& all) { all.insert(all.end(), part.begin(), part.end()); }

}  // namespace

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Silu(double x) { return x * Sigmoid(x); }

Vec LinearRows(const Matrix& w, std::int64_t n0, std::int64_t n1, const Vec& x) {
  Vec y(static_cast<std::size_t>(n1 - n0));
  std::vector<bf16> row(static_cast<std::size_t>(w.k));
  for (std::int64_t i = n0; i < n1; ++i) {
    DecodeRow(w, i, 0, w.k, row.data());
    double sum = 0;
    for (std::int64_t k = 0; k < w.k; ++k) {
      double value = ToFloat(row[static_cast<std::size_t>(k)]);
      if (w.format == WeightFormat::kFP8) value *= BlockScale(w, i, k / kFP8Block);
      sum += value * x[static_cast<std::size_t>(k)];
    }
    if (w.format == WeightFormat::kNVFP4) sum *= w.scale;
    y[static_cast<std::size_t>(i - n0)] = sum;
  }
  return y;
}

Vec Linear(const Matrix& w, const Vec& x) { return LinearRows(w, 0, w.n, x); }

Vec RmsNorm(const Vec& x, const std::vector<float>& weight, double eps) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double rstd = 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  Vec y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * rstd * weight[i];
  return y;
}

Vec LayerNorm(const Vec& x, const std::vector<float>& weight, const std::vector<float>& bias,
              double eps) {
  const double n = static_cast<double>(x.size());
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
  double squares = 0;
  for (const double value : x) squares += (value - mean) * (value - mean);
  const double rstd = 1 / std::sqrt(squares / n + eps);
  Vec y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
  return y;
}

Vec Rotate(const Vec& x) {
  Vec y(x.size(), 0.0);
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t j = 0; j < x.size(); ++j) {
      y[i] += __builtin_popcountll(i & j) % 2 == 0 ? x[j] : -x[j];
    }
    y[i] /= std::sqrt(static_cast<double>(x.size()));
  }
  return y;
}

Hyper HyperOf(const ModelConfig& config, const HyperWeights& w, const Vec& streams) {
  double squares = 0;
  for (const double value : streams) squares += value * value;
  const double r = 1 / std::sqrt(squares / static_cast<double>(streams.size()) + config.rms_eps);
  double m[kMixes];
  for (std::size_t o = 0; o < kMixes; ++o) {
    double sum = 0;
    for (std::size_t i = 0; i < streams.size(); ++i)
      sum += w.fn[o * streams.size() + i] * streams[i];
    m[o] = sum * r;
  }
  Hyper hyper;
  double z[kStreamCount][kStreamCount];
  for (std::size_t j = 0; j < kStreamCount; ++j) {
    hyper.pre[j] = Sigmoid(m[j] * w.scale[0] + w.base[j]) + config.hc_eps;
    hyper.post[j] = 2 * Sigmoid(m[4 + j] * w.scale[1] + w.base[4 + j]);
    for (std::size_t k = 0; k < kStreamCount; ++k) {
      z[j][k] = m[8 + 4 * j + k] * w.scale[2] + w.base[8 + 4 * j + k];
    }
  }
  for (int j = 0; j < kStreamCount; ++j) {
    const double top = *std::max_element(z[j], z[j] + kStreamCount);
    double sum = 0;
    for (int k = 0; k < kStreamCount; ++k) sum += std::exp(z[j][k] - top);
    for (int k = 0; k < kStreamCount; ++k)
      hyper.c[j][k] = std::exp(z[j][k] - top) / sum + config.hc_eps;
  }
  const auto columns = [&] {
    for (int k = 0; k < kStreamCount; ++k) {
      double sum = config.hc_eps;
      for (int i = 0; i < kStreamCount; ++i) sum += hyper.c[i][k];
      for (int j = 0; j < kStreamCount; ++j) hyper.c[j][k] /= sum;
    }
  };
  const auto rows = [&] {
    for (int j = 0; j < kStreamCount; ++j) {
      double sum = config.hc_eps;
      for (int k = 0; k < kStreamCount; ++k) sum += hyper.c[j][k];
      for (int k = 0; k < kStreamCount; ++k) hyper.c[j][k] /= sum;
    }
  };
  columns();
  for (int round = 1; round < config.sinkhorn_rounds; ++round) {
    rows();
    columns();
  }
  return hyper;
}

Vec MixIn(const Hyper& hyper, const Vec& streams) {
  const std::size_t hidden = streams.size() / kStreamCount;
  Vec x(hidden, 0.0);
  for (std::size_t j = 0; j < kStreamCount; ++j) {
    for (std::size_t i = 0; i < hidden; ++i) x[i] += hyper.pre[j] * streams[j * hidden + i];
  }
  return x;
}

void MixOut(const Hyper& hyper, const Vec& y, Vec& streams) {
  const std::size_t hidden = y.size();
  const Vec old = streams;
  for (std::size_t j = 0; j < kStreamCount; ++j) {
    for (std::size_t i = 0; i < hidden; ++i) {
      double sum = hyper.post[j] * y[i];
      for (std::size_t k = 0; k < kStreamCount; ++k) sum += hyper.c[k][j] * old[k * hidden + i];
      streams[j * hidden + i] = sum;
    }
  }
}

Vec LogDecay(const ModelConfig& config, const KdaWeights& w, std::int64_t head, const Vec& a) {
  Vec gamma(a.size());
  const double rate = std::exp(static_cast<double>(w.a_log[static_cast<std::size_t>(head)]));
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = a[i] + w.dt_bias[static_cast<std::size_t>(head) * a.size() + i];
    gamma[i] = config.gate == GateKind::kBounded ? config.gate_lower_bound * Sigmoid(rate * x)
                                                 : -rate * std::log1p(std::exp(x));
  }
  return gamma;
}

namespace {

// silu of the causal depthwise convolution, from the window and the new pre-convolution values;
// then the window moves on.
Vec Convolve(const ModelConfig& config, const KdaWeights& w, const Vec& x, Vec& window) {
  const auto channels = static_cast<std::size_t>(config.kda_channels());
  Vec z(3 * channels);
  for (std::size_t i = 0; i < 3 * channels; ++i) {
    const std::vector<float>& taps = i < channels       ? w.q_conv
                                     : i < 2 * channels ? w.k_conv
                                                        : w.v_conv;
    const float* tap = taps.data() + (i % channels) * kConvWidth;
    double sum = x[i] * tap[3];
    for (std::size_t t = 0; t < 3; ++t) sum += window[t * 3 * channels + i] * tap[t];
    z[i] = Silu(sum);
  }
  std::copy(window.begin() + static_cast<std::ptrdiff_t>(3 * channels), window.end(),
            window.begin());
  std::copy(x.begin(), x.end(), window.end() - static_cast<std::ptrdiff_t>(3 * channels));
  return z;
}

Vec Slice(const Vec& x, std::size_t begin, std::size_t count) {
  const auto first = x.begin() + static_cast<std::ptrdiff_t>(begin);
  return {first, first + static_cast<std::ptrdiff_t>(count)};
}

Vec Normalised(Vec x) {
  double squares = 1e-6;
  for (const double value : x) squares += value * value;
  for (double& value : x) value /= std::sqrt(squares);
  return x;
}

}  // namespace

Vec DeltaStep(double* s, const Vec& q, const Vec& k, const Vec& v, const Vec& gamma, double beta) {
  const std::size_t dim = q.size();
  Vec o(dim);
  for (std::size_t row = 0; row < dim; ++row) {
    double* state = s + row * dim;
    double predicted = 0;
    for (std::size_t i = 0; i < dim; ++i) {
      state[i] *= std::exp(gamma[i]);
      predicted += state[i] * k[i];
    }
    const double delta = beta * (v[row] - predicted);
    for (std::size_t i = 0; i < dim; ++i) {
      state[i] += delta * k[i];
      o[row] += state[i] * q[i];
    }
  }
  return o;
}

Vec KdaRow(const ModelConfig& config, const KdaWeights& w, const Vec& u, KdaState& state,
           const Tap& tap) {
  const auto channels = static_cast<std::size_t>(config.kda_channels());
  const auto dim = static_cast<std::size_t>(config.kda_dim);
  Vec x = Linear(w.q, u);
  for (const Matrix* matrix : {&w.k, &w.v}) Append(Linear(*matrix, u), x);
  const Vec b = Linear(w.b, u), f_a = Linear(w.f_a, u), g_a = Linear(w.g_a, u);
  const Vec a = Linear(w.f_b, f_a), g = Linear(w.g_b, g_a);
  const Vec z = Convolve(config, w, x, state.window);
  Vec outputs, gated(channels);
  for (std::size_t head = 0; head < static_cast<std::size_t>(config.kda_heads); ++head) {
    const std::size_t at = head * dim;
    Vec q = Normalised(Slice(z, at, dim));
    for (double& value : q) value /= std::sqrt(static_cast<double>(dim));
    const Vec k = Normalised(Slice(z, channels + at, dim));
    const Vec gamma = LogDecay(config, w, static_cast<std::int64_t>(head), Slice(a, at, dim));
    const Vec o = DeltaStep(state.s.data() + at * dim, q, k, Slice(z, 2 * channels + at, dim),
                            gamma, Sigmoid(b[head]));
    const Vec normed = RmsNorm(o, w.o_norm, config.rms_eps);
    for (std::size_t i = 0; i < dim; ++i) gated[at + i] = normed[i] * Sigmoid(g[at + i]);
    Append(o, outputs);
  }
  const Vec y = Linear(w.o, gated);
  if (tap) {
    Append(f_a, x);
    Append(g_a, x);
    tap(Value::kKdaProjected, x);
    tap(Value::kKdaBeta, b);
    tap(Value::kKdaGate, g);
    tap(Value::kKdaOutput, outputs);
    tap(Value::kOutput, y);
  }
  return y;
}

namespace {

// Softmax over the four tokens, per dimension, of gate + ape; then the mean of the keys.
Vec ClosePool(const DsaWeights& w, const DsaCache& cache, std::int64_t pool) {
  const std::size_t dim = cache.tail.at(kPoolTokens * pool).first.size();
  Vec key(dim, 0.0);
  for (std::size_t d = 0; d < dim; ++d) {
    double logit[kPoolTokens], sum = 0;
    for (std::size_t i = 0; i < kPoolTokens; ++i) {
      const auto& gate = cache.tail.at(kPoolTokens * pool + static_cast<std::int64_t>(i)).second;
      logit[i] = gate[d] + w.pool_ape[i * dim + d];
    }
    const double top = *std::max_element(logit, logit + kPoolTokens);
    for (double& value : logit) sum += value = std::exp(value - top);
    for (std::size_t i = 0; i < kPoolTokens; ++i) {
      const auto& k = cache.tail.at(kPoolTokens * pool + static_cast<std::int64_t>(i)).first;
      key[d] += logit[i] / sum * k[d];
    }
  }
  return key;
}

}  // namespace

std::vector<std::int64_t> BestIds(const Vec& scores, std::int64_t count) {
  std::vector<std::int64_t> ids(scores.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](std::int64_t a, std::int64_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  ids.resize(std::min(ids.size(), static_cast<std::size_t>(count)));
  std::sort(ids.begin(), ids.end());
  return ids;
}

Vec PoolScores(const ModelConfig& config, const Vec& q, const Vec& om,
               const std::vector<Vec>& pools, std::int64_t visible) {
  const auto dim = static_cast<std::size_t>(config.index_dim);
  Vec scores(static_cast<std::size_t>(visible), 0.0);
  for (std::size_t pool = 0; pool < scores.size(); ++pool) {
    for (std::size_t h = 0; h < om.size(); ++h) {
      double dot = 0;
      for (std::size_t d = 0; d < dim; ++d) dot += q[h * dim + d] * pools[pool][d];
      scores[pool] += om[h] * std::max(0.0, dot);
    }
  }
  return scores;
}

namespace {

// Standard deviation of each score when rotated query and keys are rounded to e4m3: both factors of
// every product move by up to 2^-4 of themselves, uniformly.
Vec ScoreNoise(const ModelConfig& config, const Vec& q, const Vec& om,
               const std::vector<Vec>& pools, std::int64_t visible) {
  const auto dim = static_cast<std::size_t>(config.index_dim);
  const double step = std::sqrt(2.0 / 3.0) / 16;
  std::vector<Vec> queries;
  for (std::size_t h = 0; h < om.size(); ++h) queries.push_back(Rotate(Slice(q, h * dim, dim)));
  Vec noise;
  for (std::size_t pool = 0; pool < static_cast<std::size_t>(visible); ++pool) {
    const Vec key = Rotate(pools[pool]);
    double squares = 0;
    for (std::size_t h = 0; h < om.size(); ++h) {
      for (std::size_t d = 0; d < dim; ++d) squares += std::pow(om[h] * queries[h][d] * key[d], 2);
    }
    noise.push_back(step * std::sqrt(squares));
  }
  return noise;
}

// Attention of all heads over `tokens` of the latent cache; the output projection follows.
Vec Attend(const ModelConfig& config, const DsaWeights& w, const Vec& q_r, const Vec& latents,
           const std::vector<std::int64_t>& tokens, const Tap& tap) {
  const auto lora = static_cast<std::size_t>(config.kv_lora);
  const double scale = 1 / std::sqrt(static_cast<double>(config.nope));
  Vec values, queries;
  for (std::int64_t h = 0; h < config.heads; ++h) {
    const Vec q = LinearRows(w.q_b, h * config.nope, (h + 1) * config.nope, q_r);
    Vec latent_q(lora, 0.0);
    const std::int64_t key_row = h * (config.nope + config.v_dim);
    for (std::int64_t i = 0; i < config.nope; ++i) {
      for (std::size_t d = 0; d < lora; ++d) {
        latent_q[d] += WeightValue(w.kv_b, key_row + i, static_cast<std::int64_t>(d)) *
                       q[static_cast<std::size_t>(i)];
      }
    }
    Vec weights;
    for (const std::int64_t token : tokens) {
      const double* c = latents.data() + static_cast<std::size_t>(token) * lora;
      weights.push_back(scale * std::inner_product(latent_q.begin(), latent_q.end(), c, 0.0));
    }
    const double top = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - top);
    Vec mixed(lora, 0.0);
    for (std::size_t j = 0; j < tokens.size(); ++j) {
      const double* c = latents.data() + static_cast<std::size_t>(tokens[j]) * lora;
      for (std::size_t d = 0; d < lora; ++d) mixed[d] += weights[j] / sum * c[d];
    }
    Append(latent_q, queries);
    Append(LinearRows(w.kv_b, key_row + config.nope, key_row + config.nope + config.v_dim, mixed),
           values);
  }
  Show(tap, Value::kQuery, queries);
  Show(tap, Value::kAttended, values);
  return Linear(w.o, values);
}

}  // namespace

Vec DsaRow(const ModelConfig& config, const DsaWeights& w, const Vec& u, std::int64_t position,
           DsaCache& cache, const std::vector<std::int64_t>* forced, Selection* selection,
           std::optional<std::int64_t> open_from, bool with_noise, const Tap& tap) {
  const auto lora = static_cast<std::size_t>(config.kv_lora);
  const std::int64_t length = position + 1, visible = length / kPoolTokens;
  const Vec q_a = Linear(w.q_a, u), kv_a = Linear(w.kv_a, u);
  const Vec key = Linear(w.index_k, u), gate = Linear(w.pool_gate, u);
  const Vec q_r = RmsNorm(q_a, w.q_norm, config.rms_eps);
  const Vec latent = RmsNorm(kv_a, w.kv_norm, config.rms_eps);
  cache.latents.resize(static_cast<std::size_t>(position) * lora);
  cache.latents.insert(cache.latents.end(), latent.begin(), latent.end());
  cache.tail[position] = {LayerNorm(key, w.index_k_norm, w.index_k_bias, config.index_norm_eps),
                          gate};
  if (tap) {
    Vec projected = q_a;
    for (const Vec* part : {&kv_a, &key, &gate}) Append(*part, projected);
    tap(Value::kDsaProjected, projected);
    tap(Value::kLatent, latent);
    tap(Value::kIndexKey, cache.tail[position].first);
  }
  if (length % kPoolTokens == 0) {
    cache.pools.resize(static_cast<std::size_t>(visible));
    cache.pools.back() = ClosePool(w, cache, visible - 1);
  }
  Selection chosen;
  if (!open_from) {
    const Vec q = Linear(w.index_q, q_r);
    Vec om = Linear(w.index_head, u);
    Show(tap, Value::kIndexHead, om);
    for (double& weight : om) {
      weight /= std::sqrt(static_cast<double>(config.index_heads) *
                          static_cast<double>(config.index_dim));
    }
    chosen.scores = PoolScores(config, q, om, cache.pools, visible);
    if (with_noise) chosen.noise = ScoreNoise(config, q, om, cache.pools, visible);
    chosen.pools = BestIds(chosen.scores, config.topk_pools());
  }
  if (forced) chosen.pools = *forced;
  std::vector<std::int64_t> tokens;
  for (const std::int64_t pool : chosen.pools) {
    for (std::int64_t i = 0; i < kPoolTokens; ++i) tokens.push_back(kPoolTokens * pool + i);
  }
  for (std::int64_t t = open_from.value_or(kPoolTokens * visible); t < length; ++t)
    tokens.push_back(t);
  if (selection) *selection = std::move(chosen);
  const Vec y = Attend(config, w, q_r, cache.latents, tokens, tap);
  Show(tap, Value::kOutput, y);
  return y;
}

Vec Activate(const ModelConfig& config, const Vec& gate, const Vec& up) {
  Vec y(gate.size());
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = Silu(std::min(gate[i], config.swiglu_limit)) *
           std::clamp(up[i], -config.swiglu_limit, config.swiglu_limit);
  }
  return y;
}

Vec Mlp(const ModelConfig& config, const MlpWeights& w, const Vec& u, const Tap& tap) {
  const Vec activated = Activate(config, Linear(w.gate, u), Linear(w.up, u));
  const Vec y = Linear(w.down, activated);
  Show(tap, Value::kActivated, activated);
  Show(tap, Value::kOutput, y);
  return y;
}

Routing RouteRow(const ModelConfig& config, const MoeWeights& w, const Vec& u,
                 const std::vector<std::int64_t>* forced, const Tap& tap) {
  Vec score = Linear(w.router, u);
  Show(tap, Value::kRouterLogits, score);
  Routing routing;
  for (std::size_t e = 0; e < score.size(); ++e) {
    score[e] = Sigmoid(score[e]);
    routing.scores.push_back(score[e] + w.bias[e]);
  }
  routing.experts = forced ? *forced : BestIds(routing.scores, config.experts_per_token);
  double sum = 0;
  for (const std::int64_t e : routing.experts) sum += score[static_cast<std::size_t>(e)];
  for (const std::int64_t e : routing.experts) {
    routing.weights.push_back(config.routed_scale * score[static_cast<std::size_t>(e)] / sum);
  }
  Show(tap, Value::kRouteWeights, routing.weights);
  return routing;
}

Vec MoeRow(const ModelConfig& config, const MoeWeights& w, const Vec& u, const Routing& routing,
           const Tap& tap) {
  Vec y = Mlp(config, w.shared, u, tap);
  Vec activated, outputs;
  const Tap collect = [&](Value what, const Vec& values) {
    Append(values, what == Value::kActivated ? activated : outputs);
  };
  for (std::size_t i = 0; i < routing.experts.size(); ++i) {
    const Vec e = Mlp(config, w.experts[static_cast<std::size_t>(routing.experts[i])], u, collect);
    for (std::size_t d = 0; d < y.size(); ++d) y[d] += routing.weights[i] * e[d];
  }
  Show(tap, Value::kExpertActivated, activated);
  Show(tap, Value::kExpertOutput, outputs);
  return y;
}

State EmptyState(const ModelConfig& config) {
  const auto channels = static_cast<std::size_t>(config.kda_channels());
  State state;
  state.kda.resize(static_cast<std::size_t>(config.kda_layers()));
  for (KdaState& kda : state.kda) {
    kda.s.assign(channels * static_cast<std::size_t>(config.kda_dim), 0.0);
    kda.window.assign(3 * 3 * channels, 0.0);
  }
  state.dsa.resize(static_cast<std::size_t>(config.dsa_layers()));
  return state;
}

std::int64_t ArgMax(const Vec& logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

}  // namespace assay::engine::reference
