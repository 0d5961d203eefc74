// The CPU backend of mhc. F (1.5 MB) is read once for all rows, slice by slice; then each row is
// finished on its own. Partial sums are added in the order of the slices: results depend neither
// on the number of threads nor on other rows.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "base/simd.h"
#include "ops/mhc/spec.h"

namespace assay::mhc {
namespace {

constexpr std::int64_t kPartials = kMixes + 1;  // the mixes and the sum of squares
constexpr std::int64_t kLanes = 16;

[[gnu::always_inline]] inline float SumLanes(float (&lanes)[kLanes]) {
  for (std::int64_t step = kLanes / 2; step > 0; step /= 2) {
    for (std::int64_t lane = 0; lane < step; ++lane) lanes[lane] += lanes[lane + step];
  }
  return lanes[0];
}

// Columns [begin, begin + 64) of all four streams of one row: 24 partial mixes and the partial sum
// of squares.
ASSAY_VECTOR_CLONES void SliceOfRow(const Args& args, std::int64_t row, std::int64_t begin,
                                    float* partials) {
  float x[kStreams * kSlice];
  for (std::int64_t j = 0; j < kStreams; ++j) {
    const bf16* stream = args.streams + (row * kStreams + j) * args.n + begin;
    for (std::int64_t i = 0; i < kSlice; ++i) x[j * kSlice + i] = ToFloat(stream[i]);
  }
  for (std::int64_t o = 0; o < kMixes; ++o) {
    float lanes[kLanes] = {};
    for (std::int64_t j = 0; j < kStreams; ++j) {
      const float* f = args.fn + (o * kStreams + j) * args.n + begin;
      for (std::int64_t i = 0; i < kSlice; i += kLanes) {
        for (std::int64_t lane = 0; lane < kLanes; ++lane) {
          lanes[lane] += f[i + lane] * x[j * kSlice + i + lane];
        }
      }
    }
    partials[o] = SumLanes(lanes);
  }
  float lanes[kLanes] = {};
  for (std::int64_t i = 0; i < kStreams * kSlice; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  }
  partials[kMixes] = SumLanes(lanes);
}

float Sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// c [source][destination], logits in, doubly stochastic out.
void Sinkhorn(float* c) {
  for (std::int64_t j = 0; j < 16; j += 4) {
    const float top = std::max(std::max(c[j], c[j + 1]), std::max(c[j + 2], c[j + 3]));
    float sum = 0;
    for (std::int64_t k = j; k < j + 4; ++k) sum += c[k] = std::exp(c[k] - top);
    for (std::int64_t k = j; k < j + 4; ++k) c[k] = c[k] / sum + kMixEps;
  }
  for (int round = 0; round < kSinkhornRounds; ++round) {
    for (std::int64_t j = 0; j < 16 && round > 0; j += 4) {
      const float inverse = 1 / (c[j] + c[j + 1] + c[j + 2] + c[j + 3] + kMixEps);
      for (std::int64_t k = j; k < j + 4; ++k) c[k] *= inverse;
    }
    for (std::int64_t k = 0; k < 4; ++k) {
      const float inverse = 1 / (c[k] + c[4 + k] + c[8 + k] + c[12 + k] + kMixEps);
      for (std::int64_t j = k; j < 16; j += 4) c[j] *= inverse;
    }
  }
}

// u = bf16(x rstd weight) with x = bf16(sum_j pre_j R_j).
ASSAY_VECTOR_CLONES void MixAndNorm(const Args& args, std::int64_t row, const float* pre) {
  const bf16* stream[kStreams];
  for (std::int64_t j = 0; j < kStreams; ++j) {
    stream[j] = args.streams + (row * kStreams + j) * args.n;
  }
  bf16* u = args.u + row * args.n;
  float lanes[kLanes] = {};
  for (std::int64_t i = 0; i < args.n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const std::int64_t at = i + lane;
      const float x = (pre[0] * ToFloat(stream[0][at]) + pre[1] * ToFloat(stream[1][at])) +
                      (pre[2] * ToFloat(stream[2][at]) + pre[3] * ToFloat(stream[3][at]));
      u[at] = ToBF16(x);
      lanes[lane] += ToFloat(u[at]) * ToFloat(u[at]);
    }
  }
  const float factor = 1 / std::sqrt(SumLanes(lanes) / static_cast<float>(args.n) + kNormEps);
  for (std::int64_t i = 0; i < args.n; ++i) {
    u[i] = ToBF16(ToFloat(u[i]) * factor * ToFloat(args.weight[i]));
  }
}

// `partials` [slices, m, 25].
void FinishRow(const Args& args, std::int64_t row, const float* partials) {
  float mix[kPartials] = {};
  for (std::int64_t slice = 0; slice < args.n / kSlice; ++slice) {
    const float* part = partials + (slice * args.m + row) * kPartials;
    for (std::int64_t o = 0; o < kPartials; ++o) mix[o] += part[o];
  }
  const auto count = static_cast<float>(kStreams * args.n);
  const float inverse = 1 / std::sqrt(mix[kMixes] / count + kNormEps);
  for (std::int64_t o = 0; o < kMixes; ++o) {
    mix[o] = mix[o] * inverse * args.scale[o < 4 ? 0 : o < 8 ? 1 : 2] + args.base[o];
  }
  float pre[kStreams];
  for (std::int64_t j = 0; j < kStreams; ++j) {
    pre[j] = Sigmoid(mix[j]) + kMixEps;
    args.post[row * kStreams + j] = 2 * Sigmoid(mix[kStreams + j]);
  }
  Sinkhorn(mix + 2 * kStreams);
  std::copy(mix + 2 * kStreams, mix + kMixes, args.comb + row * kStreams * kStreams);
  MixAndNorm(args, row, pre);
}

}  // namespace

std::string Refusal(const Args& args) {
  if (args.m < 0 || args.n < kSlice || args.n % kSlice != 0) {
    return "N = " + std::to_string(args.n) +
           " is not a positive multiple of 64, or M = " + std::to_string(args.m) + " is negative";
  }
  if (args.m == 0) return "";
  const std::pair<const char*, const void*> pointers[] = {
      {"streams", args.streams}, {"fn", args.fn}, {"base", args.base}, {"scale", args.scale},
      {"weight", args.weight},   {"u", args.u},   {"post", args.post}, {"comb", args.comb}};
  for (const auto& [name, pointer] : pointers) {
    if (pointer == nullptr) return std::string(name) + " is missing";
  }
  return "";
}

void RunCpu(const Args& args, int threads) {
  const std::string refusal = Refusal(args);
  if (!refusal.empty()) BadInput("mhc: " + refusal);
  const std::int64_t slices = args.n / kSlice;
  std::vector<float> partials(static_cast<std::size_t>(slices * args.m * kPartials));
  // 8 slices are 200 KB of F: enough work to pay for a thread.
  ParallelRanges(slices, 8, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t slice = begin; slice < end; ++slice) {
      for (std::int64_t row = 0; row < args.m; ++row) {
        SliceOfRow(args, row, slice * kSlice, partials.data() + (slice * args.m + row) * kPartials);
      }
    }
  });
  ParallelRanges(args.m, 4, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) FinishRow(args, row, partials.data());
  });
}

std::vector<Backend> Backends() {
  Backend backend;
  backend.name = "cpu";
  backend.summary = "F read once in slices of 64 columns for all rows, threads over slices";
  backend.supports = [](const Problem&, const Bundle&) { return std::string(); };
  backend.run = [](const Problem& problem, const Bundle& inputs, Bundle& outputs,
                   const RunContext& context) {
    RunCpu(Bind(problem, inputs, outputs), context.threads);
  };
  return {backend};
}

}  // namespace assay::mhc
