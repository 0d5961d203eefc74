// Generated inputs of kda_decode and kda_verify: the same bits on every machine (exp and log of
// gdn_decode/tokens.h, square roots, + - * / in a fixed order).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/parallel.h"
#include "base/random.h"
#include "base/simd.h"
#include "ops/gdn_decode/tokens.h"
#include "ops/kda_decode/spec.h"

namespace assay::kda_decode {
namespace {

using gdn_decode::Exp;
using gdn_decode::Log;

// Tensor numbers of the element source: the inputs in declared order, then what belongs to none.
enum TensorNumber : std::uint64_t { kQ, kK, kV, kA, kB, kALog, kDtBias, kState };
constexpr std::uint64_t kHistory = kAuxiliaryTensor + 60;  // + kK..kB: earlier tokens
constexpr std::uint64_t kRegime = kAuxiliaryTensor + 70;
constexpr std::uint64_t kTarget = kAuxiliaryTensor + 71;
constexpr std::uint64_t kChannelScale = kAuxiliaryTensor + 72;
constexpr std::uint64_t kOutlierChannel = kAuxiliaryTensor + 73;

constexpr std::int64_t kHistoryTokens = 64;

std::uint64_t Index(std::int64_t i) { return static_cast<std::uint64_t>(i); }

double Between(double low, double high, double share) { return low + (high - low) * share; }

// What one earlier token does to a head's state.
struct HistoryStep {
  float k[kHeadSize] = {}, v[kHeadSize] = {}, decay[kHeadSize] = {}, beta = 0;
};

class Source {
 public:
  Source(const Problem& problem, std::uint64_t key);

  // Rows [128] of (token, head) `row` = token * heads + h.
  void SiluRow(std::uint64_t tensor, std::int64_t row, bf16* out) const;
  void ValueRow(std::uint64_t tensor, std::int64_t row, bf16* out) const;
  void GateRow(std::uint64_t tensor, std::int64_t row, bf16* out) const;
  bf16 BetaInput(std::uint64_t tensor, std::int64_t row) const {
    return ToBF16(1.5f * UnitNormal(key_, tensor, Index(row)));
  }
  const std::vector<float>& a_log() const { return a_log_; }
  const std::vector<float>& dt_bias() const { return dt_bias_; }

  // The state of row n * heads + h after 64 tokens of its own from zero, [128 (V), 128 (K)].
  void HistoryState(std::int64_t row, float* state) const;

 private:
  double GateCentre(std::int64_t h, std::int64_t channel) const;
  double Rate(std::int64_t h) const;
  HistoryStep StepOf(std::int64_t row, std::int64_t h) const;

  std::uint64_t key_;
  Gate gate_;
  bool qk_norm_;
  double lower_bound_;
  std::int64_t heads_;
  std::vector<float> a_log_, dt_bias_;  // [heads], [heads, 128]
  std::vector<float> channel_scale_;    // of v, [heads, 128]
  std::vector<double> centre_;          // of a, [heads, 128]
};

Source::Source(const Problem& problem, std::uint64_t key)
    : key_(key),
      gate_(GateOf(problem)),
      qk_norm_(QkNormOf(problem)),
      lower_bound_(LowerBoundOf(problem)),
      heads_(problem.axis("H")) {
  const double most_rate = gate_ == Gate::kUnbounded ? 16 : 8;
  const float v_factor = problem.variant == "v10" ? 10.0f : problem.variant == "v50" ? 50.0f : 1.0f;
  for (std::int64_t h = 0; h < heads_; ++h) {
    a_log_.push_back(static_cast<float>(Log(Between(1, most_rate, Uniform(key, kALog, Index(h))))));
  }
  for (std::int64_t i = 0; i < heads_ * kHeadSize; ++i) {
    dt_bias_.push_back(UnitNormal(key, kDtBias, Index(i)));
    const bool outlier = Uniform(key, kOutlierChannel, Index(i)) < 0.02;
    const double scale = Exp(0.5 * UnitNormal(key, kChannelScale, Index(i))) * (outlier ? 10 : 1);
    channel_scale_.push_back(static_cast<float>(scale) * v_factor);
  }
  for (std::int64_t i = 0; i < heads_ * kHeadSize; ++i) {
    centre_.push_back(GateCentre(i / kHeadSize, i % kHeadSize));
  }
}

double Source::Rate(std::int64_t h) const {
  return gate_ == Gate::kPlain ? 1.0 : Exp(a_log_[static_cast<std::size_t>(h)]);
}

// The centre of a: a third of the channels each keeps nearly everything, decays by a factor of a
// few, and forgets at once. Uniform gates near the bound alone would hide overflow.
double Source::GateCentre(std::int64_t h, std::int64_t channel) const {
  const std::uint64_t at = Index(h * kHeadSize + channel);
  const std::uint64_t regime = Mix64(key_, kRegime, at) % 3;
  const double share = Uniform(key_, kTarget, at), rate = Rate(h);
  double x = 0;  // of sigmoid(rate x) or softplus(x)
  if (gate_ == Gate::kUnbounded) {
    const double decay = regime == 0   ? Between(2e-4, 1.7e-3, share)
                         : regime == 1 ? Between(0.3, 1.2, share)
                                       : Between(4.8, 50, share);  // = -ln g
    x = Log(Exp(decay / rate) - 1);
  } else {
    const double of_bound = regime == 0   ? Between(4e-5, 3.4e-4, share)
                            : regime == 1 ? Between(0.06, 0.24, share)
                                          : Between(0.993, 0.9998, share);  // = ln g / lower_bound
    x = Log(of_bound / (1 - of_bound)) / rate;
  }
  return x - dt_bias_[static_cast<std::size_t>(at)];
}

// 2 silu(z), divided by its norm when the operator does not normalise.
void Source::SiluRow(std::uint64_t tensor, std::int64_t row, bf16* out) const {
  double x[kHeadSize], squares = 1e-6;
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    const double z = UnitNormal(key_, tensor, Index(row * kHeadSize + i));
    x[i] = 2 * z / (1 + Exp(-z));
    squares += x[i] * x[i];
  }
  const double norm = qk_norm_ ? 1.0 : std::sqrt(squares);
  for (std::int64_t i = 0; i < kHeadSize; ++i) out[i] = ToBF16(x[i] / norm);
}

void Source::ValueRow(std::uint64_t tensor, std::int64_t row, bf16* out) const {
  const float* scale = channel_scale_.data() + row % heads_ * kHeadSize;
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    out[i] = ToBF16(UnitNormal(key_, tensor, Index(row * kHeadSize + i)) * scale[i]);
  }
}

// Half a unit of noise around the centre: in a itself for softplus, in the sigmoid's argument for
// the bounded gates, whose rate of up to 8 would otherwise wash the three regimes out.
void Source::GateRow(std::uint64_t tensor, std::int64_t row, bf16* out) const {
  const std::int64_t h = row % heads_;
  const double* centre = centre_.data() + h * kHeadSize;
  const double noise = gate_ == Gate::kUnbounded ? 0.5 : 0.5 / Rate(h);
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    out[i] = ToBF16(centre[i] + noise * UnitNormal(key_, tensor, Index(row * kHeadSize + i)));
  }
}

HistoryStep Source::StepOf(std::int64_t row, std::int64_t h) const {
  HistoryStep step;
  bf16 k[kHeadSize], v[kHeadSize], a[kHeadSize];
  SiluRow(kHistory + kK, row, k);
  ValueRow(kHistory + kV, row, v);
  GateRow(kHistory + kA, row, a);
  double squares = 1e-6;
  for (const bf16 x : k) squares += static_cast<double>(ToFloat(x)) * ToFloat(x);
  const double norm = qk_norm_ ? std::sqrt(squares) : 1.0, rate = Rate(h);
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    step.k[i] = static_cast<float>(ToFloat(k[i]) / norm);
    step.v[i] = ToFloat(v[i]);
    const double x = ToFloat(a[i]) + double{dt_bias_[static_cast<std::size_t>(h * kHeadSize + i)]};
    const double log_decay = gate_ == Gate::kUnbounded ? -rate * (x > 20 ? x : Log(1 + Exp(x)))
                                                       : lower_bound_ / (1 + Exp(-rate * x));
    step.decay[i] = static_cast<float>(Exp(log_decay));
  }
  step.beta = static_cast<float>(1 / (1 + Exp(-ToFloat(BetaInput(kHistory + kB, row)))));
  return step;
}

// s is [K][V]: inner loops run over independent rows of the state, so every instruction set gives
// the same bits.
ASSAY_VECTOR_CLONES void Update(const HistoryStep& step, float (*s)[kHeadSize]) {
  float u[kHeadSize] = {};
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    const float k = step.k[i] * step.decay[i];
    for (std::int64_t j = 0; j < kHeadSize; ++j) u[j] += s[i][j] * k;
  }
  for (std::int64_t j = 0; j < kHeadSize; ++j) u[j] = step.beta * (step.v[j] - u[j]);
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    const float k = step.k[i], g = step.decay[i];
    for (std::int64_t j = 0; j < kHeadSize; ++j) s[i][j] = g * s[i][j] + u[j] * k;
  }
}

void Source::HistoryState(std::int64_t row, float* state) const {
  alignas(64) float s[kHeadSize][kHeadSize] = {};
  const std::int64_t n = row / heads_, h = row % heads_;
  for (std::int64_t token = n * kHistoryTokens; token < (n + 1) * kHistoryTokens; ++token) {
    Update(StepOf(token * heads_ + h, h), s);
  }
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    for (std::int64_t j = 0; j < kHeadSize; ++j) state[j * kHeadSize + i] = s[i][j];
  }
}

void FillState(const Problem& problem, std::uint64_t key, const Source& source, std::int64_t row,
               float* state) {
  if (problem.variant == "state_zeros") {
    std::memset(state, 0, kStateElements * sizeof(float));
  } else if (problem.variant == "state_noise") {
    for (std::int64_t i = 0; i < kStateElements; ++i) {
      state[i] = 0.1f * UnitNormal(key, kState, Index(row * kStateElements + i));
    }
  } else {
    source.HistoryState(row, state);
  }
}

// Saturated gates: a = +-1e4 decays by the bound or not at all (the unbounded gate: wipes), b =
// +-80 takes all or nothing of the new value. Ordinary ones between.
void MakeGatesExtreme(std::int64_t row, bf16* a, bf16& b) {
  constexpr float kExtremeB[] = {0, 80, -80};
  if (row % 3 != 0) b = ToBF16(kExtremeB[row % 3]);
  for (std::int64_t i = row % 5; i < kHeadSize; i += 5) a[i] = ToBF16(i % 2 == 0 ? 1e4f : -1e4f);
}

}  // namespace

void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  const Source source(problem, key);
  const std::int64_t states = problem.axis("batch_size") * problem.axis("H");
  const std::int64_t rows = states * RowsOf(problem);
  bf16* q = inputs["q"].as<bf16>();
  bf16* k = inputs["k"].as<bf16>();
  bf16* v = inputs["v"].as<bf16>();
  bf16* a = inputs["a"].as<bf16>();
  bf16* b = inputs["b"].as<bf16>();
  Tensor* state = inputs.find("state");
  ParallelFor(rows, 0, [&](std::int64_t row) {
    const std::int64_t at = row * kHeadSize;
    source.SiluRow(kQ, row, q + at);
    source.SiluRow(kK, row, k + at);
    source.ValueRow(kV, row, v + at);
    source.GateRow(kA, row, a + at);
    b[row] = source.BetaInput(kB, row);
    if (problem.variant == "extreme_gates") MakeGatesExtreme(row, a + at, b[row]);
    // A zero query and a zero key: the epsilon keeps both finite; the head only decays.
    if (problem.variant == "zero_rows" && row % 3 == 1)
      std::fill(k + at, k + at + kHeadSize, bf16{});
    if (problem.variant == "zero_rows" && row % 3 == 2)
      std::fill(q + at, q + at + kHeadSize, bf16{});
  });
  ParallelFor(state != nullptr ? states : 0, 0, [&](std::int64_t row) {
    FillState(problem, key, source, row, state->as<float>() + row * kStateElements);
  });
  if (Tensor* a_log = inputs.find("A_log")) {
    std::copy(source.a_log().begin(), source.a_log().end(), a_log->as<float>());
  }
  std::copy(source.dt_bias().begin(), source.dt_bias().end(), inputs["dt_bias"].as<float>());
}

}  // namespace assay::kda_decode
