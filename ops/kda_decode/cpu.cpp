// The CPU backend of kda_decode: the legal calls, the split over threads and the row kernel. Bound
// by memory: every state element is read once and written once.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/parallel.h"
#include "base/simd.h"
#include "ops/gdn_decode/spec.h"
#include "ops/kda_decode/gates.h"
#include "ops/kda_decode/spec.h"

namespace assay::kda_decode {
namespace {

alignas(64) constexpr float kZeroRow[kHeadSize] = {};

// One (request, row, head) in the form that reads a state row once:
//   s_k = S (g k), s_q = S (g q), u = beta (v - s_k), o = s_q + u k.q, S = S diag(g) + u k^T
struct Token {
  alignas(64) float k[kHeadSize], decay[kHeadSize];              // k normalised, g
  alignas(64) float decayed_k[kHeadSize], decayed_q[kHeadSize];  // g k, g q
  alignas(64) float v[kHeadSize];
  float beta = 0, k_dot_q = 0;
};

void Prepare(const Args& args, std::int64_t token, std::int64_t h, Token& out) {
  const std::int64_t at = (token * args.heads + h) * kHeadSize;
  const double rate = args.gate == Gate::kPlain ? 1.0 : std::exp(double{args.a_log[h]});
  float q[kHeadSize];
  if (args.qk_norm) {
    Normalise(args.q + at, kQueryScale, q);
    Normalise(args.k + at, 1, out.k);
  }
  double k_dot_q = 0;
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    if (!args.qk_norm) {
      q[i] = static_cast<float>(ToFloat(args.q[at + i]) * kQueryScale);
      out.k[i] = ToFloat(args.k[at + i]);
    }
    out.decay[i] = Decay(args.gate, args.lower_bound, rate, ToFloat(args.a[at + i]),
                         args.dt_bias[h * kHeadSize + i]);
    out.decayed_k[i] = out.decay[i] * out.k[i];
    out.decayed_q[i] = out.decay[i] * q[i];
    out.v[i] = ToFloat(args.v[at + i]);
    k_dot_q += double{out.k[i]} * q[i];
  }
  out.k_dot_q = static_cast<float>(k_dot_q);
  out.beta = static_cast<float>(Sigmoid(ToFloat(args.b[token * args.heads + h])));
}

// All 128 rows of a head's state; `state` null = zeros, `new_state` may be `state`. Sums run in 16
// lanes, added pairwise at the end: the same bits for every instruction set and call.
ASSAY_VECTOR_CLONES void StepHead(const Token& token, const float* state, float* new_state,
                                  float* out) {
  constexpr int kLanes = 16;
  // The sums of a row separate its reads from its writes, so the hardware sees short bursts: fetch
  // rows ahead of both streams. (Written lines too: they are read for ownership anyway.)
  constexpr std::int64_t kAhead = 4;
  for (std::int64_t row = 0; row < kHeadSize; ++row) {
    const float* s = state != nullptr ? state + row * kHeadSize : kZeroRow;
    const std::int64_t ahead = std::min(row + kAhead, kHeadSize - 1) * kHeadSize;
    for (std::int64_t i = 0; i < kHeadSize; i += kLanes) {
      if (state != nullptr) __builtin_prefetch(state + ahead + i, 0);
      __builtin_prefetch(new_state + ahead + i, 1);
    }
    float sum_k[kLanes] = {}, sum_q[kLanes] = {};
    for (std::int64_t i = 0; i < kHeadSize; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        sum_k[lane] += s[i + lane] * token.decayed_k[i + lane];
        sum_q[lane] += s[i + lane] * token.decayed_q[i + lane];
      }
    }
    for (int step = kLanes / 2; step > 0; step /= 2) {
      for (int lane = 0; lane < step; ++lane) {
        sum_k[lane] += sum_k[lane + step];
        sum_q[lane] += sum_q[lane + step];
      }
    }
    const float u = token.beta * (token.v[row] - sum_k[0]);
    out[row] = sum_q[0] + u * token.k_dot_q;
    float* s_out = new_state + row * kHeadSize;
    for (std::int64_t i = 0; i < kHeadSize; ++i) {
      s_out[i] = s[i] * token.decay[i] + u * token.k[i];
    }
  }
}

// The rows of one request and head, each from the state that the row before left.
void RunHead(const Args& args, std::int64_t n, std::int64_t h) {
  const std::int64_t slot = args.slot != nullptr ? args.slot[n] : n;
  const std::int64_t state_at = (slot * args.heads + h) * kStateElements;
  const float* state = args.state != nullptr && slot >= 0 ? args.state + state_at : nullptr;
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const std::int64_t token = n * args.rows + row;
    bf16* output = args.output + (token * args.heads + h) * kHeadSize;
    if (slot < 0) {
      std::fill(output, output + kHeadSize, bf16{});
      continue;
    }
    float* target = args.scratch != nullptr
                        ? args.scratch + (token * args.heads + h) * kStateElements
                        : args.new_state + state_at;
    Token prepared;
    float out[kHeadSize];
    Prepare(args, token, h, prepared);
    StepHead(prepared, state, target, out);
    std::transform(out, out + kHeadSize, output, [](float x) { return ToBF16(x); });
    state = target;
  }
}

bool Misaligned(const void* p, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes != 0;
}

// Missing and misaligned pointers.
std::string PointerProblem(const Args& args) {
  struct Pointer {
    const char* name;
    const void* at;
    std::uintptr_t alignment;
    bool optional;
  };
  const Pointer pointers[] = {
      {"q", args.q, 8, false},
      {"k", args.k, 8, false},
      {"v", args.v, 8, false},
      {"a", args.a, 8, false},
      {"b", args.b, 2, false},
      {"A_log", args.a_log, 4, args.gate == Gate::kPlain},
      {"dt_bias", args.dt_bias, 8, false},
      {"output", args.output, 8, false},
      {"state", args.state, 16, true},
      {"new_state", args.new_state, 16, true},
      {"scratch", args.scratch, 16, true},
  };
  for (const Pointer& p : pointers) {
    if (p.at == nullptr && !p.optional) return std::string(p.name) + " is missing";
    if (Misaligned(p.at, p.alignment)) {
      return std::string(p.name) + " is not aligned to " + std::to_string(p.alignment) + " bytes";
    }
  }
  return "";
}

std::string OverlapProblem(const Args& args) {
  const std::int64_t head_elements = args.heads * kStateElements;
  const std::int64_t states = (args.slot != nullptr ? args.slots : args.batch) * head_elements;
  const bool verify = args.scratch != nullptr;
  const float* target = verify ? args.scratch : args.new_state;
  const std::int64_t written = verify ? args.batch * args.rows * head_elements : states;
  const bool overlap =
      args.state != nullptr && args.state < target + written && target < args.state + states;
  if (!overlap) return "";
  if (verify) return "scratch overlaps state, which verifying leaves as it was";
  return args.state != args.new_state ? "new_state overlaps a part of state" : "";
}

}  // namespace

std::string PointerRefusal(const Args& args) {
  if (args.batch == 0) return "";
  if (args.rows < 1 || args.heads < 1) {
    return "rows = " + std::to_string(args.rows) + " and heads = " + std::to_string(args.heads) +
           " must be positive";
  }
  if (args.gate != Gate::kUnbounded && !(args.lower_bound < 0 && std::isfinite(args.lower_bound))) {
    return "lower_bound = " + std::to_string(args.lower_bound) + " is not a negative number";
  }
  if ((args.new_state != nullptr) == (args.scratch != nullptr)) {
    return "exactly one of new_state and scratch must be given";
  }
  if (args.rows > 1 && args.scratch == nullptr) {
    return std::to_string(args.rows) + " rows per request need scratch, not new_state";
  }
  const std::string problem = PointerProblem(args);
  return problem.empty() ? OverlapProblem(args) : problem;
}

std::string Refusal(const Args& args) {
  const std::string refusal = PointerRefusal(args);
  if (!refusal.empty() || args.slot == nullptr) return refusal;
  return gdn_decode::SlotProblem(args.slot, args.batch, args.slots);
}

void RunCpu(const Args& args, int threads) {
  const std::string refusal = Refusal(args);
  if (!refusal.empty()) BadInput("kda_decode: " + refusal);
  ParallelFor(args.batch * args.heads, threads,
              [&](std::int64_t i) { RunHead(args, i / args.heads, i % args.heads); });
}

std::vector<Backend> Backends() {
  Backend backend;
  backend.name = "cpu";
  backend.summary = "one pass over each state row, SIMD along K, threads over (n, h)";
  backend.supports = [](const Problem&, const Bundle&) { return std::string(); };
  backend.run = [](const Problem& problem, const Bundle& inputs, Bundle& outputs,
                   const RunContext& context) {
    RunCpu(Bind(problem, inputs, outputs), context.threads);
  };
  return {backend};
}

}  // namespace assay::kda_decode
