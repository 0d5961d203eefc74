// Task bodies of a DSA layer: latent attention over the tokens of the best pools.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "engine/scalar_math.h"
#include "engine/step.h"

namespace assay::engine {
namespace {

using exact::Add;
using exact::Div;
using exact::Exp;
using exact::Fma;
using exact::Mul;
using exact::Sub;

// rms(q_a) of `count` rows: every task that needs it computes it (cheaper than a stage).
std::vector<bf16> NormedQuery(const Step& step, const Task& task, int row, int count) {
  const ModelConfig& config = step.config();
  std::vector<bf16> normed(static_cast<std::size_t>(count * config.q_lora));
  for (int r = 0; r < count; ++r) {
    RmsNormRow(step.workspace->row<bf16>(Buf::kProjected, row + r),
               step.layer(task).dsa.q_norm.data(), config.q_lora, config.rms_eps,
               normed.data() + r * config.q_lora);
  }
  return normed;
}

void IndexKey(const Step& step, const Task& task, const bf16* x, bf16* key) {
  const std::int64_t n = step.config().index_dim;
  const DsaWeights& w = step.layer(task).dsa;
  const auto count = static_cast<float>(n);
  const float mean = Div(exact::SumTree(n, [&](std::int64_t i) { return ToFloat(x[i]); }), count);
  const auto centred = [&](std::int64_t i) { return Sub(ToFloat(x[i]), mean); };
  const float variance = Div(exact::DotTree(n, centred, centred), count);
  const float rstd =
      exact::InverseSqrt(Add(variance, static_cast<float>(step.config().index_norm_eps)));
  for (std::int64_t i = 0; i < n; ++i) {
    const auto index = static_cast<std::size_t>(i);
    key[i] = ToBF16(Fma(Mul(centred(i), rstd), w.index_k_norm[index], w.index_k_bias[index]));
  }
}

// Softmax over the pool's four tokens per dimension, of gate + position; mean of the keys; rotated
// and quantised.
void ClosePool(const Step& step, const Task& task, std::int64_t dsa, int slot, std::int64_t pool) {
  const std::int64_t dim = step.config().index_dim;
  const std::vector<float>& ape = step.layer(task).dsa.pool_ape;
  std::vector<bf16> key(static_cast<std::size_t>(dim));
  const bf16* entries[kPoolTokens];
  for (int i = 0; i < kPoolTokens; ++i) {
    entries[i] = step.state->Ring(dsa, slot, kPoolTokens * pool + i);
  }
  for (std::int64_t d = 0; d < dim; ++d) {
    float weight[kPoolTokens], top = 0, sum = 0, mixed = 0;
    for (int i = 0; i < kPoolTokens; ++i) {
      weight[i] = Add(ToFloat(entries[i][dim + d]), ape[static_cast<std::size_t>(i * dim + d)]);
      top = i == 0 ? weight[0] : exact::Max(top, weight[i]);
    }
    for (float& value : weight) sum = Add(sum, value = Exp(Sub(value, top)));
    for (int i = 0; i < kPoolTokens; ++i) {
      mixed = Fma(Div(weight[i], sum), ToFloat(entries[i][d]), mixed);
    }
    key[static_cast<std::size_t>(d)] = ToBF16(mixed);
  }
  const PoolEntry entry = step.state->Pool(dsa, slot, pool);
  *entry.scale = RotateAndQuantise(key.data(), dim, entry.key);
}

}  // namespace

void DsaIn(const Step& step, const Task& task) {
  const ModelConfig& config = step.config();
  const DsaWeights& w = step.layer(task).dsa;
  const Matrix* const matrices[kDsaParts] = {&w.q_a, &w.kv_a, &w.index_k, &w.pool_gate,
                                             &w.index_head};
  const Matrix& matrix = *matrices[task.part];
  const Column column = DsaColumns(config, static_cast<DsaPart>(task.part));
  step.ForLiveRuns([&](int row, int count) {
    const bf16* input = step.workspace->row<bf16>(Buf::kInput, row);
    if (task.part == kPartIndexHead) {  // kept in fp32
      step.math->Linear(matrix, task.n0, task.n1, input, config.hidden, count,
                        step.workspace->row<float>(Buf::kHeadScale, row) + task.n0,
                        step.program->buffer(Buf::kHeadScale).columns);
      return;
    }
    LinearToBF16(step, matrix, task.n0, task.n1, input, config.hidden, count,
                 step.workspace->row<bf16>(Buf::kProjected, row) + column.begin + task.n0,
                 step.program->buffer(Buf::kProjected).columns);
  });
}

void Append(const Step& step, const Task& task) {
  const StepRequest& request = step.request(task.request);
  if (request.slot < 0) return;
  const ModelConfig& config = step.config();
  const std::int64_t dsa = config.index_in_kind(task.layer);
  const DsaWeights& w = step.layer(task).dsa;
  for (int i = 0; i < request.rows; ++i) {
    const std::int64_t position = request.start + i;
    const bf16* projected =
        step.workspace->row<bf16>(Buf::kProjected, task.request * step.rows_per_request() + i);
    RmsNormRow(projected + DsaColumns(config, kPartKvA).begin, w.kv_norm.data(), config.kv_lora,
               config.rms_eps, step.state->Latent(dsa, request.slot, position));
    bf16* ring = step.state->Ring(dsa, request.slot, position);
    IndexKey(step, task, projected + DsaColumns(config, kPartIndexKey).begin, ring);
    const bf16* gate = projected + DsaColumns(config, kPartPoolGate).begin;
    std::copy(gate, gate + config.index_dim, ring + config.index_dim);
    if ((position + 1) % kPoolTokens == 0) {
      ClosePool(step, task, dsa, request.slot, position / kPoolTokens);
    }
  }
}

// q of one head, and K^T q: the query in latent space.
void Query(const Step& step, const Task& task) {
  const ModelConfig& config = step.config();
  const DsaWeights& w = step.layer(task).dsa;
  const std::int64_t q0 = task.index * config.nope;
  const std::int64_t key_row = task.index * (config.nope + config.v_dim);
  std::vector<const bf16*> keys;
  for (std::int64_t i = 0; i < config.nope; ++i) keys.push_back(w.kv_b.row(key_row + i));
  step.ForLiveRuns([&](int row, int count) {
    const std::vector<bf16> normed = NormedQuery(step, task, row, count);
    std::vector<bf16> q(static_cast<std::size_t>(count * config.nope));
    LinearToBF16(step, w.q_b, q0, q0 + config.nope, normed.data(), config.q_lora, count, q.data(),
                 config.nope);
    std::vector<float> latent(static_cast<std::size_t>(config.kv_lora));
    for (int r = 0; r < count; ++r) {
      step.math->Combine(q.data() + r * config.nope, keys.data(), config.nope, config.kv_lora,
                         latent.data());
      bf16* target = step.workspace->row<bf16>(Buf::kQuery, row + r) + task.index * config.kv_lora;
      std::transform(latent.begin(), latent.end(), target, [](float x) { return ToBF16(x); });
    }
  });
}

void IndexQuery(const Step& step, const Task& task) {
  const ModelConfig& config = step.config();
  const std::int64_t dim = config.index_dim, n0 = task.index * dim;
  const auto scale = static_cast<float>(
      1 / std::sqrt(static_cast<double>(config.index_heads) * static_cast<double>(dim)));
  step.ForLiveRuns([&](int row, int count) {
    const std::vector<bf16> normed = NormedQuery(step, task, row, count);
    std::vector<bf16> q(static_cast<std::size_t>(count * dim));
    LinearToBF16(step, step.layer(task).dsa.index_q, n0, n0 + dim, normed.data(), config.q_lora,
                 count, q.data(), dim);
    for (int r = 0; r < count; ++r) {
      const float quantum = RotateAndQuantise(
          q.data() + r * dim, dim, step.workspace->row<e4m3>(Buf::kIndexQuery, row + r) + n0);
      const float head = step.workspace->row<float>(Buf::kHeadScale, row + r)[task.index];
      step.workspace->row<float>(Buf::kIndexWeight, row + r)[task.index] =
          Mul(Mul(head, scale), quantum);
    }
  });
}

namespace {

void ToBF16Vector(const e4m3* from, std::int64_t n, bf16* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = ToBF16(ToFloat(from[i]));  // exact
}

}  // namespace

// A tile of pools is loaded once for all rows of its request. I_P = scale_P * sum over heads,
// ascending, of weight_h max(0, q_h . K_P).
void IndexScore(const Step& step, const Task& task) {
  const StepRequest& request = step.request(task.request);
  if (request.slot < 0 || request.rows == 0) return;
  const ModelConfig& config = step.config();
  const std::int64_t dsa = config.index_in_kind(task.layer), dim = config.index_dim;
  const std::int64_t closed = (request.start + request.rows) / kPoolTokens;  // for the last row
  const std::int64_t end = std::min<std::int64_t>(task.n1, closed);
  if (end <= task.n0) return;
  const auto pools = static_cast<std::size_t>(end - task.n0);
  std::vector<bf16> keys(pools * static_cast<std::size_t>(dim)), q(static_cast<std::size_t>(dim));
  std::vector<float> scales(pools), dots(pools), sums(pools);
  std::vector<const bf16*> key_rows(pools);
  for (std::size_t i = 0; i < pools; ++i) {
    const PoolEntry entry = step.state->Pool(dsa, request.slot, task.n0 + static_cast<int>(i));
    scales[i] = *entry.scale;
    bf16* key = keys.data() + i * static_cast<std::size_t>(dim);
    ToBF16Vector(entry.key, dim, key);
    key_rows[i] = key;
  }
  for (int i = 0; i < request.rows; ++i) {
    const int row = task.request * step.rows_per_request() + i;
    const std::int64_t visible = (request.start + i + 1) / kPoolTokens;
    const std::int64_t count = std::min(visible, end) - task.n0;
    if (count <= 0) continue;
    const e4m3* query = step.workspace->row<e4m3>(Buf::kIndexQuery, row);
    const float* weights = step.workspace->row<float>(Buf::kIndexWeight, row);
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (std::int64_t h = 0; h < config.index_heads; ++h) {
      ToBF16Vector(query + h * dim, dim, q.data());
      step.math->Dots(q.data(), key_rows.data(), count, dim, dots.data());
      for (std::size_t p = 0; p < static_cast<std::size_t>(count); ++p) {
        sums[p] = Fma(weights[h], exact::Max(0.0f, dots[p]), sums[p]);
      }
    }
    float* scores = step.workspace->row<float>(Buf::kScores, row) + task.n0;
    for (std::size_t p = 0; p < static_cast<std::size_t>(count); ++p)
      scores[p] = Mul(scales[p], sums[p]);
  }
}

namespace {

// Ids of the `k` best scores, ascending. Total order: score descending, then id ascending; NaN
// last.
std::vector<std::int32_t> BestPools(const float* scores, std::int64_t count, std::int64_t k) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  const auto better = [&](std::int32_t a, std::int32_t b) {
    const bool nan_a = std::isnan(scores[a]), nan_b = std::isnan(scores[b]);
    if (nan_a != nan_b) return nan_b;
    if (!nan_a && scores[a] != scores[b]) return scores[a] > scores[b];
    return a < b;
  };
  if (count > k) {
    std::nth_element(ids.begin(), ids.begin() + k, ids.end(), better);
    ids.resize(static_cast<std::size_t>(k));
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace

void Select(const Step& step, const Task& task) {
  if (!step.live(task.row)) return;
  const std::int64_t length = step.position(task.row) + 1, visible = length / kPoolTokens;
  const SelectedTokens selected = Selected(step, task.row);
  std::vector<std::int32_t> pools;
  std::int64_t open_from = visible * kPoolTokens;
  if (step.program->shape.kind == ProgramKind::kMtpChain) {
    const SeededSelection& seed = step.request(task.request).seed;
    pools = seed.pools;
    open_from = seed.open_from;
  } else if (visible > 0) {
    pools = BestPools(step.workspace->row<float>(Buf::kScores, task.row), visible,
                      step.config().topk_pools());
  }
  std::int32_t count = 0;
  for (const std::int32_t pool : pools) {
    for (int i = 0; i < kPoolTokens; ++i) selected.tokens[count++] = pool * kPoolTokens + i;
  }
  for (std::int64_t t = open_from; t < length; ++t) {
    selected.tokens[count++] = static_cast<std::int32_t>(t);
  }
  std::copy(pools.begin(), pools.end(), selected.pools);
  *selected.pool_count = static_cast<std::int32_t>(pools.size());
  *selected.token_count = count;
}

// One chunk of a row's tokens, all heads: scores, their maximum, unnormalised weights as bf16, the
// weighted sum of latents in fp32, and the sum of the unrounded weights.
void Attend(const Step& step, const Task& task) {
  if (!step.live(task.row)) return;
  const ModelConfig& config = step.config();
  const SelectedTokens selected = Selected(step, task.row);
  const std::int64_t begin = task.index * kAttendChunk;
  const std::int64_t count =
      std::min(begin + kAttendChunk, std::int64_t{*selected.token_count}) - begin;
  if (count <= 0) return;
  const std::int64_t dsa = config.index_in_kind(task.layer);
  const int slot = step.request(task.request).slot;
  std::vector<const bf16*> latents;
  for (std::int64_t j = 0; j < count; ++j) {
    latents.push_back(step.state->Latent(dsa, slot, selected.tokens[begin + j]));
  }
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config.nope)));
  std::vector<float> scores(static_cast<std::size_t>(count));
  std::vector<bf16> weights(static_cast<std::size_t>(count));
  float* stats =
      step.workspace->row<float>(Buf::kChunkStats, task.row) + task.index * 2 * config.heads;
  float* sums = step.workspace->row<float>(Buf::kChunkSums, task.row) +
                task.index * config.heads * config.kv_lora;
  for (std::int64_t h = 0; h < config.heads; ++h) {
    const bf16* q = step.workspace->row<bf16>(Buf::kQuery, task.row) + h * config.kv_lora;
    step.math->Dots(q, latents.data(), count, config.kv_lora, scores.data());
    float top = Mul(scores[0], scale);
    for (float& score : scores) top = exact::Max(top, score = Mul(score, scale));
    for (std::size_t j = 0; j < scores.size(); ++j) {
      scores[j] = Exp(Sub(scores[j], top));
      weights[j] = ToBF16(scores[j]);
    }
    stats[2 * h] = top;
    stats[2 * h + 1] =
        exact::SumTree(count, [&](std::int64_t j) { return scores[static_cast<std::size_t>(j)]; });
    step.math->Combine(weights.data(), latents.data(), count, config.kv_lora,
                       sums + h * config.kv_lora);
  }
}

// Chunks from left to right with running maximum and sum; then the head's value rows.
void Values(const Step& step, const Task& task) {
  if (!step.live(task.row)) return;
  const ModelConfig& config = step.config();
  const std::int64_t h = task.index, lora = config.kv_lora;
  const float* stats = step.workspace->row<float>(Buf::kChunkStats, task.row);
  const float* sums = step.workspace->row<float>(Buf::kChunkSums, task.row);
  const std::int64_t tokens = *Selected(step, task.row).token_count;
  const std::int64_t chunks = (tokens + kAttendChunk - 1) / kAttendChunk;
  float top = stats[2 * h], sum = stats[2 * h + 1];
  std::vector<float> mixed(sums + h * lora, sums + (h + 1) * lora);
  for (std::int64_t chunk = 1; chunk < chunks; ++chunk) {
    const float* stat = stats + (chunk * config.heads + h) * 2;
    const float* part = sums + (chunk * config.heads + h) * lora;
    const float higher = exact::Max(top, stat[0]);
    const float old_share = Exp(Sub(top, higher)), new_share = Exp(Sub(stat[0], higher));
    sum = Fma(new_share, stat[1], Mul(old_share, sum));
    for (std::int64_t d = 0; d < lora; ++d) {
      float& value = mixed[static_cast<std::size_t>(d)];
      value = Fma(new_share, part[d], Mul(old_share, value));
    }
    top = higher;
  }
  std::vector<bf16> latent(static_cast<std::size_t>(lora));
  for (std::int64_t d = 0; d < lora; ++d) {
    latent[static_cast<std::size_t>(d)] = ToBF16(Div(mixed[static_cast<std::size_t>(d)], sum));
  }
  const std::int64_t value_row = h * (config.nope + config.v_dim) + config.nope;
  LinearToBF16(step, step.layer(task).dsa.kv_b, value_row, value_row + config.v_dim, latent.data(),
               lora, 1, step.workspace->row<bf16>(Buf::kValues, task.row) + h * config.v_dim,
               config.v_dim);
}

void DsaOut(const Step& step, const Task& task) {
  const ModelConfig& config = step.config();
  step.ForLiveRuns([&](int row, int count) {
    LinearToBF16(step, step.layer(task).dsa.o, task.n0, task.n1,
                 step.workspace->row<bf16>(Buf::kValues, row),
                 step.program->buffer(Buf::kValues).columns, count,
                 step.workspace->row<bf16>(Buf::kOutput, row) + task.n0, config.hidden);
  });
}

}  // namespace assay::engine
