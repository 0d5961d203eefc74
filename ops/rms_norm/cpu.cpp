// The CPU backend of rms_norm: two passes over a row, the second from cache.
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "base/simd.h"
#include "ops/rms_norm/spec.h"

namespace assay::rms_norm {
namespace {

// Below this many elements a thread costs more than it saves.
constexpr std::int64_t kElementsPerThread = 1 << 17;

// Squares are summed in 32 lanes, added pairwise at the end: the same bits for every instruction
// set and number of threads.
ASSAY_VECTOR_CLONES void NormRow(const bf16* x, const bf16* weight, std::int64_t n, float eps,
                                 bf16* y) {
  constexpr std::int64_t kLanes = 32;
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const float value = ToFloat(x[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (std::int64_t lane = 0; i + lane < n; ++lane) {
    const float value = ToFloat(x[i + lane]);
    lanes[lane] += value * value;
  }
  for (std::int64_t step = kLanes / 2; step > 0; step /= 2) {
    for (std::int64_t lane = 0; lane < step; ++lane) lanes[lane] += lanes[lane + step];
  }
  const float factor = 1 / std::sqrt(lanes[0] / static_cast<float>(n) + eps);
  for (i = 0; i < n; ++i) y[i] = ToBF16(ToFloat(x[i]) * factor * ToFloat(weight[i]));
}

}  // namespace

std::string Refusal(const Args& args) {
  if (args.m < 0 || args.n < 1) {
    return "M = " + std::to_string(args.m) + " and N = " + std::to_string(args.n) +
           " are no shape of rows";
  }
  if (!(args.eps > 0 && std::isfinite(args.eps))) {
    return "eps = " + std::to_string(args.eps) + " is not a positive number";
  }
  if (args.m == 0) return "";
  for (const auto& [name, pointer] :
       {std::pair<const char*, const void*>{"x", args.x}, {"weight", args.weight}, {"y", args.y}}) {
    if (pointer == nullptr) return std::string(name) + " is missing";
  }
  const std::int64_t elements = args.m * args.n;
  const bool overlap = args.x < args.y + elements && args.y < args.x + elements;
  return overlap && args.x != args.y ? "y overlaps a part of x" : "";
}

void RunCpu(const Args& args, int threads) {
  const std::string refusal = Refusal(args);
  if (!refusal.empty()) BadInput("rms_norm: " + refusal);
  const std::int64_t grain = 1 + kElementsPerThread / args.n;
  ParallelRanges(args.m, grain, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      NormRow(args.x + row * args.n, args.weight, args.n, args.eps, args.y + row * args.n);
    }
  });
}

std::vector<Backend> Backends() {
  Backend backend;
  backend.name = "cpu";
  backend.summary = "fp32 in 32 lanes, threads over rows where there are enough";
  backend.supports = [](const Problem&, const Bundle&) { return std::string(); };
  backend.run = [](const Problem& problem, const Bundle& inputs, Bundle& outputs,
                   const RunContext& context) {
    RunCpu(Bind(problem, inputs, outputs), context.threads);
  };
  return {backend};
}

}  // namespace assay::rms_norm
