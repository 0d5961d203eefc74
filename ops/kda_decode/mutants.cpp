// Wrong kernels that verification must reject: one plain recurrence with a mistake switched on.
// Each is a mistake that a real kernel made or could make.
#include <algorithm>
#include <cmath>

#include "base/parallel.h"
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
  kRowsFromCommitted,
  kSlotsOffByOne,
  kRowsSwapped,
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

Head ReadHead(const Args& args, Mistake mistake, std::int64_t token, std::int64_t h) {
  const std::int64_t at = (token * args.heads + h) * kHeadSize;
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

// The rows of (n, h), each from the state that the row before left.
void RunHead(Mistake mistake, const Args& args, std::int64_t n, std::int64_t h) {
  const float* committed =
      args.state != nullptr ? args.state + (n * args.heads + h) * kStateElements : nullptr;
  std::vector<float> state(kStateElements), next(kStateElements);
  if (committed != nullptr) std::copy_n(committed, kStateElements, state.begin());
  float* states = args.scratch != nullptr ? args.scratch : args.new_state;
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const std::int64_t token = n * args.rows + row;
    const std::int64_t read =
        mistake == Mistake::kRowsSwapped ? n * args.rows + args.rows - 1 - row : token;
    const Head head = ReadHead(args, mistake, read, h);
    const bool restart = mistake == Mistake::kRowsFromCommitted && committed != nullptr;
    for (std::int64_t v = 0; v < kHeadSize; ++v) {
      StepRow(head, mistake, restart ? committed : state.data(), v, next.data(),
              args.output[(token * args.heads + h) * kHeadSize + v]);
    }
    std::swap(state, next);
    const std::int64_t slot =
        mistake == Mistake::kSlotsOffByOne ? n * args.rows + (row + 1) % args.rows : token;
    std::copy(state.begin(), state.end(), states + (slot * args.heads + h) * kStateElements);
  }
}

void RunMutant(Mistake mistake, const Args& args) {
  ParallelFor(args.batch * args.heads, 0,
              [&](std::int64_t i) { RunHead(mistake, args, i / args.heads, i % args.heads); });
}

Mutant Make(const char* name, const char* what, Mistake mistake,
            bool (*applies)(const Problem&) = nullptr) {
  const auto run = [mistake](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
    RunMutant(mistake, Bind(problem, inputs, outputs));
  };
  return {name, what, run, applies};
}

bool HasALog(const Problem& problem) { return GateOf(problem) != Gate::kPlain; }
bool HasBound(const Problem& problem) { return GateOf(problem) != Gate::kUnbounded; }
bool Normalises(const Problem& problem) { return QkNormOf(problem); }
bool Verifies(const Problem& problem) { return RowsOf(problem) > 1; }

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
      Make("rows_from_committed", "starts every row of a draft from the committed state",
           Mistake::kRowsFromCommitted, Verifies),
      Make("slots_off_by_one", "leaves each row's state in the scratch of the next row",
           Mistake::kSlotsOffByOne, Verifies),
      Make("rows_swapped", "takes the rows of a draft in reverse order", Mistake::kRowsSwapped,
           Verifies),
  };
}

}  // namespace assay::kda_decode
