// Wrong kernels that verification must reject: one plain recurrence with a mistake switched on.
// Each is a mistake that a real kernel made or could make.
#include <algorithm>
#include <cmath>

#include "ops/kda_decode/gates.h"
#include "ops/kda_decode/spec.h"

namespace assay::kda_decode {
namespace {

enum class Mistake {
  kOldStateRead,
  kOtherGate,
  kBoundClamps,
  kALogNotExponentiated,
  kALogOmitted,
  kDtBiasOmitted,
  kDecayPerHead,
  kDecayAlongV,
  kDecayAfterUpdate,
  kKeyNotNormalised,
  kQueryNotNormalised,
  kQueryScaleOmitted,
  kBetaOmitted,
  kValueHeadsSwapped,
  kStateTransposed,
  kStateNotWritten,
  kOutputOnePercent,
  kStateOnePercent,
};

struct Head {
  float beta = 0;
  float q[kHeadSize] = {}, k[kHeadSize] = {}, v[kHeadSize] = {}, decay[kHeadSize] = {};
};

void SetDecays(const Args& args, Mistake mistake, std::int64_t token, std::int64_t h, Head& head) {
  double rate = args.gate == Gate::kPlain ? 1.0 : std::exp(double{args.a_log[h]});
  if (mistake == Mistake::kALogNotExponentiated) rate = std::abs(args.a_log[h]);
  if (mistake == Mistake::kALogOmitted) rate = 1;
  Gate gate = args.gate;
  if (mistake == Mistake::kOtherGate) {
    gate = gate == Gate::kUnbounded ? Gate::kBounded : Gate::kUnbounded;
  }
  double sum = 0;
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    const double a = ToFloat(args.a[(token * args.heads + h) * kHeadSize + i]);
    const double bias =
        mistake == Mistake::kDtBiasOmitted ? 0.0 : double{args.dt_bias[h * kHeadSize + i]};
    head.decay[i] = Decay(gate, args.lower_bound, rate, a, bias);
    if (mistake == Mistake::kBoundClamps) {
      head.decay[i] =
          std::max(Decay(Gate::kUnbounded, 0, rate, a, bias), std::exp(args.lower_bound));
    }
    sum += std::log(double{head.decay[i]});
  }
  if (mistake == Mistake::kDecayPerHead) {  // one gate per head, as GDN has
    const auto mean = static_cast<float>(std::exp(sum / kHeadSize));
    std::fill(head.decay, head.decay + kHeadSize, mean);
  }
}

Head ReadHead(const Args& args, Mistake mistake, std::int64_t n, std::int64_t h) {
  const std::int64_t token = n, at = (token * args.heads + h) * kHeadSize;
  const std::int64_t v_head = mistake == Mistake::kValueHeadsSwapped ? h ^ 1 : h;
  Head head;
  SetDecays(args, mistake, token, h, head);
  const double scale = mistake == Mistake::kQueryScaleOmitted ? 1.0 : kQueryScale;
  Normalise(args.q + at, scale, head.q);
  Normalise(args.k + at, 1, head.k);
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    if (mistake == Mistake::kQueryNotNormalised) {
      head.q[i] = static_cast<float>(ToFloat(args.q[at + i]) * scale);
    }
    if (mistake == Mistake::kKeyNotNormalised) head.k[i] = ToFloat(args.k[at + i]);
    head.v[i] = ToFloat(args.v[(token * args.heads + v_head) * kHeadSize + i]);
  }
  head.beta = static_cast<float>(Sigmoid(ToFloat(args.b[token * args.heads + h])));
  if (mistake == Mistake::kBetaOmitted) head.beta = 1;
  return head;
}

void StepRow(const Head& head, Mistake mistake, const float* state_in, std::int64_t row,
             float* state_out, bf16& output) {
  const bool late_decay = mistake == Mistake::kDecayAfterUpdate;
  const auto at = [&](std::int64_t i) {
    return mistake == Mistake::kStateTransposed ? i * kHeadSize + row : row * kHeadSize + i;
  };
  const auto decay = [&](std::int64_t i) {
    return head.decay[mistake == Mistake::kDecayAlongV ? row : i];
  };
  float s[kHeadSize], old_q = 0, predicted = 0, out = 0;
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    s[i] = state_in != nullptr ? state_in[at(i)] : 0;
    if (!late_decay) s[i] *= decay(i);
    predicted += s[i] * head.k[i];
    old_q += s[i] * head.q[i];
  }
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    s[i] += head.beta * (head.v[row] - predicted) * head.k[i];
    if (late_decay) s[i] *= decay(i);
    out += s[i] * head.q[i];
  }
  if (mistake == Mistake::kOldStateRead) out = old_q;
  if (mistake == Mistake::kOutputOnePercent) out *= 1.01f;
  output = ToBF16(out);
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    if (mistake == Mistake::kStateOnePercent) s[i] *= 1.01f;
    if (mistake == Mistake::kStateNotWritten) s[i] = state_in != nullptr ? state_in[at(i)] : 0;
    state_out[at(i)] = s[i];
  }
}

void RunMutant(Mistake mistake, const Args& args) {
  for (std::int64_t row = 0; row < args.batch * args.heads; ++row) {
    const Head head = ReadHead(args, mistake, row / args.heads, row % args.heads);
    const float* state = args.state != nullptr ? args.state + row * kStateElements : nullptr;
    for (std::int64_t v = 0; v < kHeadSize; ++v) {
      StepRow(head, mistake, state, v, args.new_state + row * kStateElements,
              args.output[row * kHeadSize + v]);
    }
  }
}

Mutant Make(const char* name, const char* what, Mistake mistake,
            bool (*applies)(const Problem&) = nullptr) {
  Mutant mutant;
  mutant.name = name;
  mutant.mistake = what;
  mutant.run = [mistake](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
    RunMutant(mistake, Bind(problem, inputs, outputs));
  };
  mutant.applies = applies;
  return mutant;
}

bool HasALog(const Problem& problem) { return GateOf(problem) != Gate::kPlain; }
bool HasBound(const Problem& problem) { return GateOf(problem) != Gate::kUnbounded; }
bool Normalises(const Problem& problem) { return QkNormOf(problem); }

}  // namespace

std::vector<Mutant> Mutants() {
  return {
      Make("old_state_read", "output reads the state before the update", Mistake::kOldStateRead),
      Make("other_gate", "runs the model with the other family's gate", Mistake::kOtherGate),
      Make("bound_clamps", "clamps the unbounded gate at lower_bound instead of scaling by it",
           Mistake::kBoundClamps, HasBound),
      Make("a_log_not_exponentiated", "uses A_log where exp(A_log) belongs",
           Mistake::kALogNotExponentiated, HasALog),
      Make("a_log_omitted", "computes the plain gate", Mistake::kALogOmitted, HasALog),
      Make("dt_bias_omitted", "leaves dt_bias out", Mistake::kDtBiasOmitted),
      Make("decay_per_head", "decays a whole head by its mean, as GDN", Mistake::kDecayPerHead),
      Make("decay_along_v", "decays rows of the state instead of columns", Mistake::kDecayAlongV),
      Make("decay_after_update", "decays after the rank-one update", Mistake::kDecayAfterUpdate),
      Make("key_not_normalised", "uses k as it arrives", Mistake::kKeyNotNormalised, Normalises),
      Make("query_not_normalised", "uses q as it arrives", Mistake::kQueryNotNormalised,
           Normalises),
      Make("query_scale_omitted", "leaves 1/sqrt(128) out", Mistake::kQueryScaleOmitted),
      Make("beta_omitted", "takes all of the new value", Mistake::kBetaOmitted),
      Make("value_heads_swapped", "reads the value of the neighbour head",
           Mistake::kValueHeadsSwapped),
      Make("state_transposed", "reads and writes the state as [K, V]", Mistake::kStateTransposed),
      Make("state_not_written", "returns the old state", Mistake::kStateNotWritten),
      Make("output_one_percent", "output is 1 percent too large", Mistake::kOutputOnePercent),
      Make("state_one_percent", "state is 1 percent too large", Mistake::kStateOnePercent),
  };
}

}  // namespace assay::kda_decode
