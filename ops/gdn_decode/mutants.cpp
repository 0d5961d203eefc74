// Wrong decode kernels that verification must reject: one plain recurrence with a mistake switched
// on. Each is a mistake that a real kernel made or could make.
#include <cmath>

#include "ops/gdn_decode/gates.h"
#include "ops/gdn_decode/spec.h"

namespace assay::gdn_decode {
namespace {

enum class Mistake {
  kOldStateRead,
  kKeyHeadModulo,
  kBetaOmitted,
  kDecayAfterUpdate,
  kStateTransposed,
  kScaleOmitted,
  kSoftplusMissing,
  kALogNotExponentiated,
  kValueHeadsSwapped,
  kBetaNotSigmoid,
  kNormalisesAgain,
  kStateNotWritten,
  kOutputOnePercent,
  kStateOnePercent,
};

struct Head {
  float g = 0, beta = 0, scale = 0;
  float q[kHeadSize] = {}, k[kHeadSize] = {}, v[kHeadSize] = {};
};

void SetGates(const Args& args, Mistake mistake, std::int64_t n, std::int64_t h, Head& head) {
  const bf16 a = args.a[n * kValueHeads + h], b = args.b[n * kValueHeads + h];
  const Gates gates = ComputeGates(args.a_log[h], a, args.dt_bias[h], b);
  head.g = gates.g;
  head.beta = gates.beta;
  const float x = ToFloat(a) + args.dt_bias[h];
  const float softplus = x > 20 ? x : std::log1p(std::exp(x));
  if (mistake == Mistake::kSoftplusMissing) {
    head.g = std::exp(-std::exp(args.a_log[h]) * std::max(x, 0.0f));
  } else if (mistake == Mistake::kALogNotExponentiated) {
    head.g = std::exp(-std::abs(args.a_log[h]) * softplus);
  } else if (mistake == Mistake::kBetaOmitted) {
    head.beta = 1;
  } else if (mistake == Mistake::kBetaNotSigmoid) {
    head.beta = std::min(std::max(ToFloat(b), 0.0f), 1.0f);
  }
}

// kNormalisesAgain: the default of a public decode API; 2 percent off at norm 1 would be needed to
// see it on normalised inputs, so the mutant divides by the sum of squares plus a large epsilon.
void Normalise(float* x) {
  float sum = 0;
  for (std::int64_t i = 0; i < kHeadSize; ++i) sum += x[i] * x[i];
  for (std::int64_t i = 0; i < kHeadSize; ++i) x[i] /= std::sqrt(sum + 0.1f);
}

Head ReadHead(const Args& args, Mistake mistake, std::int64_t n, std::int64_t h) {
  Head head;
  SetGates(args, mistake, n, h, head);
  head.scale = args.scale == 0 ? kDefaultScale : args.scale;
  if (mistake == Mistake::kScaleOmitted) head.scale = 1;
  const std::int64_t c = mistake == Mistake::kKeyHeadModulo ? h % kKeyHeads : h / 2;
  const std::int64_t value_head = mistake == Mistake::kValueHeadsSwapped ? h ^ 1 : h;
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    head.q[i] = ToFloat(args.q[(n * kKeyHeads + c) * kHeadSize + i]);
    head.k[i] = ToFloat(args.k[(n * kKeyHeads + c) * kHeadSize + i]);
    head.v[i] = ToFloat(args.v[(n * kValueHeads + value_head) * kHeadSize + i]);
  }
  if (mistake == Mistake::kNormalisesAgain) {
    Normalise(head.q);
    Normalise(head.k);
  }
  return head;
}

void StepRow(const Head& head, Mistake mistake, const float* state_in, std::int64_t row,
             float* state_out, bf16& output) {
  const bool transposed = mistake == Mistake::kStateTransposed;
  const bool late_decay = mistake == Mistake::kDecayAfterUpdate;
  float s[kHeadSize], old_q = 0, r = 0, out = 0;
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    const std::int64_t at = transposed ? i * kHeadSize + row : row * kHeadSize + i;
    s[i] = state_in != nullptr ? state_in[at] : 0;
    if (!late_decay) s[i] *= head.g;
    r += s[i] * head.k[i];
    old_q += s[i] * head.q[i];
  }
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    s[i] += head.beta * (head.v[row] - r) * head.k[i];
    if (late_decay) s[i] *= head.g;
    out += s[i] * head.q[i];
  }
  if (mistake == Mistake::kOldStateRead) out = old_q;
  if (mistake == Mistake::kOutputOnePercent) out *= 1.01f;
  output = ToBF16(head.scale * out);
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    const std::int64_t at = transposed ? i * kHeadSize + row : row * kHeadSize + i;
    state_out[at] = s[i];
    if (mistake == Mistake::kStateOnePercent) state_out[at] *= 1.01f;
    if (mistake == Mistake::kStateNotWritten && state_in != nullptr) state_out[at] = state_in[at];
  }
}

void Run(const Args& args, Mistake mistake) {
  for (std::int64_t n = 0; n < args.batch; ++n) {
    for (std::int64_t h = 0; h < kValueHeads; ++h) {
      const Head head = ReadHead(args, mistake, n, h);
      const std::int64_t index = n * kValueHeads + h;
      const float* state = args.state == nullptr ? nullptr : args.state + index * kStateElements;
      for (std::int64_t row = 0; row < kHeadSize; ++row) {
        StepRow(head, mistake, state, row, args.new_state + index * kStateElements,
                args.output[index * kHeadSize + row]);
      }
    }
  }
}

Mutant Make(const char* name, const char* text, Mistake mistake) {
  return {name, text, [mistake](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
            Run(Bind(problem, inputs, outputs), mistake);
          }};
}

}  // namespace

std::vector<Mutant> Mutants() {
  return {
      Make("old_state_read", "computes the output before the update", Mistake::kOldStateRead),
      Make("key_head_modulo", "pairs value head h with key head h mod 4 instead of h / 2",
           Mistake::kKeyHeadModulo),
      Make("beta_omitted", "writes the whole correction, beta = 1", Mistake::kBetaOmitted),
      Make("decay_after_update", "applies g after the update instead of before it",
           Mistake::kDecayAfterUpdate),
      Make("state_transposed", "reads and writes the state as [K, V]", Mistake::kStateTransposed),
      Make("scale_omitted", "forgets to scale the output", Mistake::kScaleOmitted),
      Make("softplus_missing", "uses max(x, 0) instead of softplus(x)", Mistake::kSoftplusMissing),
      Make("a_log_not_exponentiated", "takes A_log for A", Mistake::kALogNotExponentiated),
      Make("value_heads_swapped", "reads v of the other value head of the same key head",
           Mistake::kValueHeadsSwapped),
      Make("beta_not_sigmoid", "clamps b to 0..1 instead of taking the sigmoid",
           Mistake::kBetaNotSigmoid),
      Make("normalises_again", "normalises q and k inside with an epsilon of 0.1",
           Mistake::kNormalisesAgain),
      Make("state_not_written", "returns the old state", Mistake::kStateNotWritten),
      Make("output_one_percent", "output is 1 percent too large", Mistake::kOutputOnePercent),
      Make("state_one_percent", "state is 1 percent too large", Mistake::kStateOnePercent),
  };
}

}  // namespace assay::gdn_decode
