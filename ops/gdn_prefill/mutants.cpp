// Wrong prefill kernels that verification must reject: one plain recurrence with a mistake switched
// on. Each is a mistake that a real kernel made or could make.
#include <algorithm>
#include <cmath>

#include "ops/gdn_decode/gates.h"
#include "ops/gdn_prefill/spec.h"

namespace assay::gdn_prefill {
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
  kGatesShifted,
  kValueHeadsSwapped,
  kBorderLeaks,
  kLastTokenMissing,
  kLastDecayMissing,
  kStaleChunkState,
  kInitialStateIgnored,
  kOutputOnePercent,
};

constexpr std::int64_t kChunk = 64;  // of the chunk mistakes

class Head {
 public:
  Head(const Args& args, Mistake mistake, std::int64_t s, std::int64_t h)
      : args_(args), mistake_(mistake), s_(s), h_(h), state_(kStateElements) {}

  void Run(const std::vector<float>* leaked) {
    const std::int64_t begin = args_.cu_seqlens[s_], end = args_.cu_seqlens[s_ + 1];
    Load();
    if (leaked != nullptr) state_ = *leaked;
    std::vector<float> chunk_start = state_;
    for (std::int64_t t = begin; t < end; ++t) {
      if ((t - begin) % kChunk == 0 && mistake_ == Mistake::kStaleChunkState) {
        std::swap(chunk_start, state_);  // continues from the state one chunk earlier
      }
      Token(t, t == end - 1);
    }
    for (std::int64_t i = 0; i < kStateElements; ++i) {
      const std::int64_t transposed = i % kHeadSize * kHeadSize + i / kHeadSize;
      Out(args_.new_state)[i] =
          state_[mistake_ == Mistake::kStateTransposed ? static_cast<std::size_t>(transposed)
                                                       : static_cast<std::size_t>(i)];
    }
  }

  const std::vector<float>& state() const { return state_; }

 private:
  template <class T>
  T* Out(T* tensor) const {
    return tensor + (s_ * kValueHeads + h_) * kStateElements;
  }

  void Load() {
    if (args_.state == nullptr || mistake_ == Mistake::kInitialStateIgnored) return;
    std::copy_n(Out(args_.state), kStateElements, state_.begin());
  }

  gdn_decode::Gates GatesOf(std::int64_t t) const {
    if (mistake_ == Mistake::kGatesShifted) t = std::min(t + 1, args_.cu_seqlens[s_ + 1] - 1);
    const bf16 a = args_.a[t * kValueHeads + h_];
    auto gates = gdn_decode::ComputeGates(args_.a_log[h_], a, args_.dt_bias[h_],
                                          args_.b[t * kValueHeads + h_]);
    const float x = ToFloat(a) + args_.dt_bias[h_];
    if (mistake_ == Mistake::kBetaOmitted) gates.beta = 1;
    if (mistake_ == Mistake::kSoftplusMissing) {
      gates.g = std::exp(-std::exp(args_.a_log[h_]) * std::max(x, 0.0f));
    }
    if (mistake_ == Mistake::kALogNotExponentiated) {
      gates.g = std::exp(-std::abs(args_.a_log[h_]) * std::log1p(std::exp(x)));
    }
    return gates;
  }

  void Token(std::int64_t t, bool last) {
    const std::int64_t c = mistake_ == Mistake::kKeyHeadModulo ? h_ % kKeyHeads : h_ / 2;
    const std::int64_t value_head = mistake_ == Mistake::kValueHeadsSwapped ? h_ ^ 1 : h_;
    gdn_decode::Gates gates = GatesOf(t);
    if (last && mistake_ == Mistake::kLastDecayMissing) gates.g = 1;
    float q[kHeadSize], k[kHeadSize];
    for (std::int64_t i = 0; i < kHeadSize; ++i) {
      q[i] = ToFloat(args_.q[(t * kKeyHeads + c) * kHeadSize + i]);
      k[i] = ToFloat(args_.k[(t * kKeyHeads + c) * kHeadSize + i]);
    }
    const bf16* v = args_.v + (t * kValueHeads + value_head) * kHeadSize;
    bf16* output = args_.output + (t * kValueHeads + h_) * kHeadSize;
    const bool forgets = last && mistake_ == Mistake::kLastTokenMissing;
    const std::vector<float> before = forgets ? state_ : std::vector<float>();
    for (std::int64_t row = 0; row < kHeadSize; ++row) {
      output[row] = Row(gates, q, k, ToFloat(v[row]), state_.data() + row * kHeadSize);
    }
    if (forgets) state_ = before;
  }

  bf16 Row(const gdn_decode::Gates& gates, const float* q, const float* k, float v, float* s) {
    const bool late_decay = mistake_ == Mistake::kDecayAfterUpdate;
    float r = 0, old_q = 0, out = 0;
    for (std::int64_t i = 0; i < kHeadSize; ++i) {
      if (!late_decay) s[i] *= gates.g;
      r += s[i] * k[i];
      old_q += s[i] * q[i];
    }
    for (std::int64_t i = 0; i < kHeadSize; ++i) {
      s[i] += gates.beta * (v - r) * k[i];
      if (late_decay) s[i] *= gates.g;
      out += s[i] * q[i];
    }
    if (mistake_ == Mistake::kOldStateRead) out = old_q;
    if (mistake_ == Mistake::kOutputOnePercent) out *= 1.01f;
    const float scale = args_.scale == 0 ? kDefaultScale : args_.scale;
    return ToBF16(mistake_ == Mistake::kScaleOmitted ? out : out * scale);
  }

  const Args& args_;
  const Mistake mistake_;
  const std::int64_t s_, h_;
  std::vector<float> state_;  // [128 (V), 128 (K)]
};

void Run(const Args& args, Mistake mistake) {
  for (std::int64_t h = 0; h < kValueHeads; ++h) {
    std::vector<float> previous;
    for (std::int64_t s = 0; s < args.sequences; ++s) {
      Head head(args, mistake, s, h);
      const bool leak = mistake == Mistake::kBorderLeaks && s > 0;
      head.Run(leak ? &previous : nullptr);
      previous = head.state();
    }
  }
}

Mutant Make(const char* name, const char* text, Mistake mistake,
            bool (*applies)(const Problem&) = nullptr) {
  return {name, text,
          [mistake](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
            Run(Bind(problem, inputs, outputs), mistake);
          },
          applies};
}

}  // namespace

std::vector<Mutant> Mutants() {
  return {
      Make("old_state_read", "computes outputs before the update", Mistake::kOldStateRead),
      Make("key_head_modulo", "pairs value head h with key head h mod 4 instead of h / 2",
           Mistake::kKeyHeadModulo),
      Make("beta_omitted", "writes the whole correction, beta = 1", Mistake::kBetaOmitted),
      Make("decay_after_update", "applies g after the update instead of before it",
           Mistake::kDecayAfterUpdate),
      Make("state_transposed", "writes the final state as [K, V]", Mistake::kStateTransposed),
      Make("scale_omitted", "forgets to scale the output", Mistake::kScaleOmitted),
      Make("softplus_missing", "uses max(x, 0) instead of softplus(x)", Mistake::kSoftplusMissing),
      Make("a_log_not_exponentiated", "takes A_log for A", Mistake::kALogNotExponentiated),
      Make("gates_shifted", "uses the gates of the next token", Mistake::kGatesShifted),
      Make("value_heads_swapped", "reads v of the other value head of the same key head",
           Mistake::kValueHeadsSwapped),
      Make("border_leaks", "starts a sequence from the final state of the one before it",
           Mistake::kBorderLeaks,
           [](const Problem& problem) { return problem.axis("num_seqs") > 1; }),
      Make("last_token_missing", "writes the state before the last token",
           Mistake::kLastTokenMissing),
      Make("last_decay_missing", "leaves out the decay of the last token of a sequence",
           Mistake::kLastDecayMissing),
      Make("stale_chunk_state", "starts a 64-token chunk from the state of the chunk before it",
           Mistake::kStaleChunkState,
           // Then some sequence is longer than a chunk.
           [](const Problem& problem) {
             return problem.axis("total_seq_len") > 64 * problem.axis("num_seqs");
           }),
      Make("initial_state_ignored", "starts every sequence from zeros",
           Mistake::kInitialStateIgnored),
      Make("output_one_percent", "output is 1 percent too large", Mistake::kOutputOnePercent),
  };
}

}  // namespace assay::gdn_prefill
