// Task bodies of a KDA layer.
#include <algorithm>
#include <vector>

#include "base/simd.h"
#include "engine/scalar_math.h"
#include "engine/step.h"

namespace assay::engine {
namespace {

using exact::Add;
using exact::Fma;
using exact::Mul;
using exact::Sub;

// One (request, head, half of V) of one layer: where its values live, and which it computes.
struct Unit {
  const Step& step;
  const Task& task;
  const KdaWeights& w;
  std::int64_t kda, dim, channels, head0;  // head0 = first channel of the head
  int slot, first_row, rows;
  bool first_half() const { return task.part == 0; }
};

Unit MakeUnit(const Step& step, const Task& task) {
  const ModelConfig& config = step.config();
  const StepRequest& request = step.request(task.request);
  return {step,
          task,
          step.layer(task).kda,
          config.index_in_kind(task.layer),
          config.kda_dim,
          config.kda_channels(),
          task.index * config.kda_dim,
          request.slot,
          task.request * step.rows_per_request(),
          request.rows};
}

// Copies pre-convolution values of this unit's channels: q and k of the head are the first half's,
// each half owns its v.
void CopyOwnChannels(const Unit& u, const bf16* from, bf16* to) {
  if (u.first_half()) {
    for (const std::int64_t at : {u.head0, u.channels + u.head0}) {
      std::copy(from + at, from + at + u.dim, to + at);
    }
  }
  const std::int64_t v = 2 * u.channels;
  std::copy(from + v + u.task.n0, from + v + u.task.n1, to + v + u.task.n0);
}

// Pre-convolution values of the token `age` before row `row`.
const bf16* InputBefore(const Unit& u, int row, int age) {
  return age <= row ? u.step.workspace->row<bf16>(Buf::kProjected, u.first_row + row - age)
                    : u.step.state->WindowEntry(u.kda, u.slot, age - row - 1);
}

// silu of the convolution of `count` channels that start at `channel` of [q k v], as bf16 values.
void Convolve(const Unit& u, int row, std::int64_t channel, std::int64_t count,
              const std::vector<float>& taps, float* z) {
  const bf16* x[kConvWidth];
  for (int tap = 0; tap < kConvWidth; ++tap) x[tap] = InputBefore(u, row, kConvWidth - 1 - tap);
  for (std::int64_t i = 0; i < count; ++i) {
    const float* tap = taps.data() + (channel % u.channels + i) * kConvWidth;
    float sum = Mul(ToFloat(x[0][channel + i]), tap[0]);
    for (int t = 1; t < kConvWidth; ++t) sum = Fma(ToFloat(x[t][channel + i]), tap[t], sum);
    z[i] = ToFloat(ToBF16(exact::Silu(sum)));
  }
}

void Normalise(float* x, std::int64_t n, float scale) {
  const auto value = [&](std::int64_t i) { return x[i]; };
  const float inverse = exact::InverseSqrt(Add(exact::DotTree(n, value, value), 1e-6f));
  for (std::int64_t i = 0; i < n; ++i) x[i] = Mul(Mul(x[i], inverse), scale);
}

// e^gamma per key channel of the head.
void Decay(const Unit& u, const bf16* a, float* decay) {
  const ModelConfig& config = u.step.config();
  const float rate = exact::Exp(u.w.a_log[static_cast<std::size_t>(u.task.index)]);
  const float* bias = u.w.dt_bias.data() + u.head0;
  const auto bound = static_cast<float>(config.gate_lower_bound);
  for (std::int64_t i = 0; i < u.dim; ++i) {
    const float x = Add(ToFloat(a[i]), bias[i]);
    const float gamma = config.gate == GateKind::kBounded ? Mul(bound, exact::Sigmoid(Mul(rate, x)))
                                                          : Mul(-rate, exact::Softplus(x));
    decay[i] = exact::Exp(gamma);
  }
}

// The head's state as this step finds it: the committed base with the accepted rows of the step
// before re-applied.
ASSAY_VECTOR_CLONES void LoadState(const Unit& u, std::vector<float>& s) {
  const std::int64_t rows0 = u.task.n0 - u.head0, rows1 = u.task.n1 - u.head0;
  const float* base = u.step.state->KdaBase(u.kda, u.slot, u.task.index);
  s.assign(base + rows0 * u.dim, base + rows1 * u.dim);
  for (int row = 0; row < u.step.state->pending(u.slot); ++row) {
    const KdaLog log = u.step.state->PendingLog(u.kda, u.slot, row);
    for (std::int64_t v = rows0; v < rows1; ++v) {
      UpdateStateRow(s.data() + (v - rows0) * u.dim, log.decay + u.head0, log.key + u.head0,
                     log.delta[u.head0 + v], u.dim);
    }
  }
}

// What the next step will find as base, once this one is committed.
void StoreBase(const Unit& u, const std::vector<float>& s) {
  State& state = *u.step.state;
  const std::int64_t row0 = u.task.n0 - u.head0;
  std::copy(s.begin(), s.end(), state.KdaNextBase(u.kda, u.slot, u.task.index) + row0 * u.dim);
  for (int entry = 0; entry < kConvWidth - 1; ++entry) {
    CopyOwnChannels(u, state.WindowEntry(u.kda, u.slot, kConvWidth - 2 - entry),
                    state.NextWindow(u.kda, u.slot, entry));
  }
}

struct RowInputs {
  std::vector<float> q, k, v, decay;
  float beta = 0;
};

RowInputs PrepareRow(const Unit& u, int row, const bf16* a) {
  const std::int64_t half = u.task.n1 - u.task.n0;
  RowInputs in{std::vector<float>(static_cast<std::size_t>(u.dim)),
               std::vector<float>(static_cast<std::size_t>(u.dim)),
               std::vector<float>(static_cast<std::size_t>(half)),
               std::vector<float>(static_cast<std::size_t>(u.dim))};
  Convolve(u, row, u.head0, u.dim, u.w.q_conv, in.q.data());
  Convolve(u, row, u.channels + u.head0, u.dim, u.w.k_conv, in.k.data());
  Convolve(u, row, 2 * u.channels + u.task.n0, half, u.w.v_conv, in.v.data());
  Normalise(in.q.data(), u.dim, exact::InverseSqrt(static_cast<float>(u.dim)));
  Normalise(in.k.data(), u.dim, 1.0f);
  Decay(u, a, in.decay.data());
  in.beta = exact::Sigmoid(
      u.step.workspace->row<float>(Buf::kHeadScale, u.first_row + row)[u.task.index]);
  return in;
}

// S <- S diag(decay); delta = beta (v - S k); S <- S + delta k^T; o = S q. Rows of S are
// independent.
ASSAY_VECTOR_CLONES void Recur(const Unit& u, const RowInputs& in, std::vector<float>& s,
                               float* delta, bf16* o) {
  for (std::size_t v = 0; v < in.v.size(); ++v) {
    float* row = s.data() + v * static_cast<std::size_t>(u.dim);
    const float predicted = exact::DotTree(
        u.dim, [&](std::int64_t i) { return Mul(row[i], in.decay[static_cast<std::size_t>(i)]); },
        [&](std::int64_t i) { return in.k[static_cast<std::size_t>(i)]; });
    delta[v] = Mul(in.beta, Sub(in.v[v], predicted));
    UpdateStateRow(row, in.decay.data(), in.k.data(), delta[v], u.dim);
    o[v] = ToBF16(exact::DotTree(
        u.dim, [&](std::int64_t i) { return row[i]; },
        [&](std::int64_t i) { return in.q[static_cast<std::size_t>(i)]; }));
  }
}

// What a row leaves behind for commit.
void RecordRow(const Unit& u, int row, const RowInputs& in, const std::vector<float>& s,
               const float* delta) {
  State& state = *u.step.state;
  CopyOwnChannels(u, u.step.workspace->row<bf16>(Buf::kProjected, u.first_row + row),
                  state.NextInputs(u.kda, u.slot, row));
  if (state.options().commit == CommitMode::kScratch) {
    float* target = state.KdaScratch(u.kda, u.slot, row, u.task.index);
    std::copy(s.begin(), s.end(), target + (u.task.n0 - u.head0) * u.dim);
    return;
  }
  const KdaLog log = state.NextLog(u.kda, u.slot, row);
  if (u.first_half()) {
    std::copy(in.k.begin(), in.k.end(), log.key + u.head0);
    std::copy(in.decay.begin(), in.decay.end(), log.decay + u.head0);
  }
  std::copy(delta, delta + in.v.size(), log.delta + u.task.n0);
}

}  // namespace

void KdaIn(const Step& step, const Task& task) {
  const ModelConfig& config = step.config();
  const KdaWeights& w = step.layer(task).kda;
  const Matrix* const matrices[kKdaParts] = {&w.q, &w.k, &w.v, &w.f_a, &w.g_a, &w.b};
  const Matrix& matrix = *matrices[task.part];
  const Column column = KdaColumns(config, static_cast<KdaPart>(task.part));
  step.ForLiveRuns([&](int row, int count) {
    const bf16* input = step.workspace->row<bf16>(Buf::kInput, row);
    if (task.part != kPartB) {
      LinearToBF16(step, matrix, task.n0, task.n1, input, config.hidden, count,
                   step.workspace->row<bf16>(Buf::kProjected, row) + column.begin + task.n0,
                   step.program->buffer(Buf::kProjected).columns);
      return;
    }
    const std::int64_t stride = step.program->buffer(Buf::kHeadScale).columns;
    float* b = step.workspace->row<float>(Buf::kHeadScale, row) + task.n0;
    step.math->Linear(matrix, task.n0, task.n1, input, config.hidden, count, b, stride);
    for (int r = 0; r < count; ++r) {
      for (std::int64_t i = 0; i < task.n1 - task.n0; ++i) {
        b[r * stride + i] = ToFloat(ToBF16(b[r * stride + i]));
      }
    }
  });
}

void Kda(const Step& step, const Task& task) {
  const Unit u = MakeUnit(step, task);
  if (u.slot < 0 || u.rows == 0) return;
  const ModelConfig& config = step.config();
  const std::int64_t half = task.n1 - task.n0;
  const std::int64_t stride = step.program->buffer(Buf::kProjected).columns;
  const bf16* projected = step.workspace->row<bf16>(Buf::kProjected, u.first_row);
  std::vector<bf16> a(static_cast<std::size_t>(u.rows * u.dim));
  LinearToBF16(step, u.w.f_b, u.head0, u.head0 + u.dim,
               projected + KdaColumns(config, kPartFa).begin, stride, u.rows, a.data(), u.dim);
  LinearToBF16(step, u.w.g_b, task.n0, task.n1, projected + KdaColumns(config, kPartGa).begin,
               stride, u.rows, step.workspace->row<bf16>(Buf::kGate, u.first_row) + task.n0,
               u.channels);
  std::vector<float> s, delta(static_cast<std::size_t>(half));
  LoadState(u, s);
  if (step.state->options().commit == CommitMode::kReplay) StoreBase(u, s);
  for (int row = 0; row < u.rows; ++row) {
    const RowInputs in = PrepareRow(u, row, a.data() + row * u.dim);
    Recur(u, in, s, delta.data(),
          step.workspace->row<bf16>(Buf::kValues, u.first_row + row) + task.n0);
    RecordRow(u, row, in, s, delta.data());
  }
}

namespace {

// rms(o; o_norm) * sigmoid(g), head by head.
ASSAY_VECTOR_CLONES void GateRow(const ModelConfig& config, const KdaWeights& w, const bf16* o,
                                 const bf16* g, bf16* out) {
  const std::int64_t dim = config.kda_dim;
  for (std::int64_t at = 0; at < config.kda_channels(); at += dim) {
    const auto value = [&](std::int64_t i) { return ToFloat(o[at + i]); };
    const float mean = exact::Div(exact::DotTree(dim, value, value), static_cast<float>(dim));
    const float rstd = exact::InverseSqrt(Add(mean, static_cast<float>(config.rms_eps)));
    for (std::int64_t i = 0; i < dim; ++i) {
      const float normed = Mul(Mul(value(i), rstd), w.o_norm[static_cast<std::size_t>(i)]);
      out[at + i] = ToBF16(Mul(normed, exact::Sigmoid(ToFloat(g[at + i]))));
    }
  }
}

}  // namespace

// Gated norm, then o_proj. Every tile normalises for itself: that is cheaper than one more
// dependent stage.
void KdaOut(const Step& step, const Task& task) {
  const ModelConfig& config = step.config();
  const KdaWeights& w = step.layer(task).kda;
  const std::int64_t channels = config.kda_channels();
  step.ForLiveRuns([&](int row, int count) {
    std::vector<bf16> gated(static_cast<std::size_t>(count * channels));
    for (int r = 0; r < count; ++r) {
      GateRow(config, w, step.workspace->row<bf16>(Buf::kValues, row + r),
              step.workspace->row<bf16>(Buf::kGate, row + r), gated.data() + r * channels);
    }
    LinearToBF16(step, w.o, task.n0, task.n1, gated.data(), channels, count,
                 step.workspace->row<bf16>(Buf::kOutput, row) + task.n0, config.hidden);
  });
}

}  // namespace assay::engine
