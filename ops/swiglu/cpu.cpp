// The CPU backend of swiglu: one pass, element by element.
#include <bit>

#include "base/error.h"
#include "base/parallel.h"
#include "base/simd.h"
#include "ops/swiglu/spec.h"

namespace assay::swiglu {
namespace {

// Elements that a thread takes at a time; below it a thread costs more than it saves.
constexpr std::int64_t kElementsPerTask = 1 << 15;

// e^x within 2 ulp for -104 <= x <= 0: x = n ln 2 + r with |r| <= ln 2 / 2, Taylor to degree 7,
// two exact scalings. Plain arithmetic, so that loops over it are vectorised.
[[gnu::always_inline]] inline float Exp(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding and subtracting it rounds to integer
  const float n = (x * 1.44269504f + kRound) - kRound;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const auto whole = static_cast<std::int32_t>(n), half = whole / 2;
  const auto power = [](std::int32_t e) { return std::bit_cast<float>((e + 127) << 23); };
  return p * power(half) * power(whole - half);
}

ASSAY_VECTOR_CLONES void Activate(const bf16* gate, const bf16* up, std::int64_t count, float limit,
                                  bf16* y) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = ToFloat(gate[i]) > limit ? limit : ToFloat(gate[i]);
    float u = ToFloat(up[i]) > limit ? limit : ToFloat(up[i]);
    u = u < -limit ? -limit : u;
    // silu = g / (1 + e^-g) = g e^g / (1 + e^g): the form whose exponential cannot overflow. Below
    // -104 it is 0; a NaN gets there as well and comes back through g.
    float t = g < 0 ? g : -g;
    t = t > -104.0f ? t : -104.0f;
    const float e = Exp(t);
    y[i] = ToBF16((g < 0 ? g * e : g) / (1 + e) * u);
  }
}

}  // namespace

std::string Refusal(const Args& args) {
  if (args.m < 0 || args.n < 0) {
    return "M = " + std::to_string(args.m) + " and N = " + std::to_string(args.n) +
           " are no shape of rows";
  }
  if (!(args.limit > 0)) return "limit = " + std::to_string(args.limit) + " is not positive";
  const std::int64_t elements = args.m * args.n;
  if (elements == 0) return "";
  if (args.y == nullptr) return "y is missing";
  for (const auto& [name, x] : {std::pair("gate", args.gate), std::pair("up", args.up)}) {
    if (x == nullptr) return std::string(name) + " is missing";
    const bool overlap = x < args.y + elements && args.y < x + elements;
    if (overlap && x != args.y) return std::string("y overlaps a part of ") + name;
  }
  return "";
}

void RunCpu(const Args& args, int threads) {
  const std::string refusal = Refusal(args);
  if (!refusal.empty()) BadInput("swiglu: " + refusal);
  ParallelRanges(
      args.m * args.n, kElementsPerTask, threads, [&](std::int64_t begin, std::int64_t end) {
        Activate(args.gate + begin, args.up + begin, end - begin, args.limit, args.y + begin);
      });
}

std::vector<Backend> Backends() {
  Backend backend;
  backend.name = "cpu";
  backend.summary = "one vectorised pass, threads over runs of 32,768 elements";
  backend.supports = [](const Problem&, const Bundle&) { return std::string(); };
  backend.run = [](const Problem& problem, const Bundle& inputs, Bundle& outputs,
                   const RunContext& context) {
    RunCpu(Bind(problem, inputs, outputs), context.threads);
  };
  return {backend};
}

}  // namespace assay::swiglu
