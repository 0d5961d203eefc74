// The CPU backend: the legal calls, logits by tasks of (rows, experts), then the choice row by row.
#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "ops/moe_router_gemm_topk/spec.h"

#define ASSAY_LANES 4
#include "ops/moe_router_gemm_topk/cpu_logits_lanes.h"

namespace assay::moe_router_gemm_topk {
namespace {

// Experts of a task: from 128, whose 1.3 MB of W a chunk of rows passes over, halved down to 8.
constexpr std::int64_t kMostTaskExperts = 128, kLeastTaskExperts = 8;
constexpr std::int64_t kTasksPerThread = 8;

// --- legal calls ---

bool Misaligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 != 0; }

std::string SizesRefusal(const Args& args) {
  if (args.m < 0) return "M = " + std::to_string(args.m) + " is negative";
  if (args.k <= 0 || args.k % 64 != 0) {
    return "K = " + std::to_string(args.k) + " is not a multiple of 64";
  }
  if (args.experts <= 0 || args.experts % 4 != 0 || args.experts > kMostExperts) {
    return "E = " + std::to_string(args.experts) + " is not a multiple of 4 up to 1024";
  }
  if (args.chosen < 1 || args.chosen > std::min(kMostChosen, args.experts)) {
    return std::to_string(args.chosen) + " experts cannot be chosen of " +
           std::to_string(args.experts) + " (at most 16)";
  }
  if (args.ldx < args.k || args.ldx % 8 != 0) {
    return "the row stride of x, " + std::to_string(args.ldx) +
           ", is not a multiple of 8 of at least K = " + std::to_string(args.k);
  }
  std::int64_t elements = 0;
  if (__builtin_mul_overflow(args.m, args.ldx, &elements) || elements > (1LL << 60)) {
    return "x with M = " + std::to_string(args.m) + " rows passes the address space";
  }
  return "";
}

std::string PointersRefusal(const Args& args) {
  const std::pair<const char*, const void*> tensors[] = {{"x", args.x},
                                                         {"W", args.w},
                                                         {"bias", args.bias},
                                                         {"expert_ids", args.expert_ids},
                                                         {"expert_weights", args.expert_weights}};
  for (const auto& [name, pointer] : tensors) {
    if (pointer == nullptr) return std::string(name) + " is null";
  }
  if (Misaligned(args.x)) return "x is not aligned to 16 bytes";
  if (Misaligned(args.w)) return "W is not aligned to 16 bytes";
  return "";
}

// --- the choice of one row ---

float Score(float logit) { return std::sqrt(logit > 20 ? logit : std::log1p(std::exp(logit))); }

// Order of the choice as one integer: score plus bias first (NaN below everything, -0 as +0), then
// the lower id.
std::uint64_t RankKey(float biased, std::int64_t expert) {
  const auto bits = std::bit_cast<std::uint32_t>(biased + 0.0f);
  std::uint32_t order = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  if (std::isnan(biased)) order = 0;
  return std::uint64_t{order} << 32 | (0xFFFFFFFFu - static_cast<std::uint32_t>(expert));
}

void ChooseRow(const Args& args, std::int64_t m, const float* logits) {
  const std::int64_t chosen = args.chosen;
  std::int32_t* ids = args.expert_ids + m * chosen;
  float* weights = args.expert_weights + m * chosen;
  if (args.valid_rows >= 0 && m >= args.valid_rows) {
    std::fill_n(ids, chosen, -1);
    std::fill_n(weights, chosen, 0.0f);
    return;
  }
  const bool image = args.is_image != nullptr && args.is_image[m] != 0;
  const float* bias = image ? args.bias_vl : args.bias;
  float score[kMostExperts];
  std::uint64_t best[kMostChosen] = {};  // descending; 0 is below every key
  for (std::int64_t e = 0; e < args.experts; ++e) {
    score[e] = Score(logits[e]);
    const std::uint64_t key = RankKey(score[e] + bias[e], e);
    if (key <= best[chosen - 1]) continue;
    std::int64_t at = chosen - 1;
    for (; at > 0 && best[at - 1] < key; --at) best[at] = best[at - 1];
    best[at] = key;
  }
  for (std::int64_t i = 0; i < chosen; ++i) {
    ids[i] = static_cast<std::int32_t>(0xFFFFFFFFu - static_cast<std::uint32_t>(best[i]));
  }
  std::sort(ids, ids + chosen);
  float sum = 0;
  for (std::int64_t i = 0; i < chosen; ++i) sum += score[ids[i]];
  for (std::int64_t i = 0; i < chosen; ++i) {
    weights[i] = score[ids[i]] / (sum + 1e-20f) * args.scaling;
  }
}

// --- logits ---

using LogitsFunction = void (*)(const LogitsTask&);

LogitsFunction LogitsFor(cpu::Isa isa, bool bf16_dots) {
#if defined(__x86_64__)
  if (isa == cpu::Isa::kAvx512) return bf16_dots ? LogitsAvx512Bf16 : LogitsAvx512;
  if (isa == cpu::Isa::kAvx2) return LogitsAvx2;
#endif
  (void)isa;
  (void)bf16_dots;
  return LogitsBaseline;
}

void AllLogits(const Args& args, int threads, LogitsFunction compute, float* logits) {
  const std::int64_t chunks = (args.m + kMostTaskRows - 1) / kMostTaskRows;
  const std::int64_t wanted = kTasksPerThread * (threads > 0 ? threads : HardwareThreads());
  std::int64_t experts = kMostTaskExperts;  // of a task
  while (experts > kLeastTaskExperts && chunks * (args.experts / experts) < wanted) experts /= 2;
  const std::int64_t blocks = (args.experts + experts - 1) / experts;
  ParallelFor(chunks * blocks, threads, [&](std::int64_t index) {
    const std::int64_t chunk = index / blocks, e = index % blocks * experts;
    const std::int64_t begin = args.m * chunk / chunks, end = args.m * (chunk + 1) / chunks;
    LogitsTask task;
    task.k = args.k;
    task.rows = end - begin;
    task.x = args.x + begin * args.ldx;
    task.ldx = args.ldx;
    task.experts = std::min(experts, args.experts - e);
    task.w = args.w + e * args.k;
    task.logits = logits + begin * args.experts + e;
    task.ldl = args.experts;
    compute(task);
  });
}

}  // namespace

void LogitsBaseline(const LogitsTask& task) { ComputeLogits<cpu::WidenedPairs>(task); }

std::string Refusal(const Args& args) {
  std::string refusal = SizesRefusal(args);
  if (!refusal.empty()) return refusal;
  if (args.is_image != nullptr && args.bias_vl == nullptr) {
    return "is_image is given without bias_vl";
  }
  if (args.valid_rows > args.m) {
    return "num_valid_rows = " + std::to_string(args.valid_rows) +
           " is above M = " + std::to_string(args.m);
  }
  return args.m == 0 ? "" : PointersRefusal(args);
}

void RunCpu(const Args& args, int threads, cpu::Isa isa, bool bf16_dots) {
  const std::string refusal = Refusal(args);
  if (!refusal.empty()) BadInput("moe_router_gemm_topk: " + refusal);
  if (args.m == 0) return;
  std::vector<float> own;
  float* logits = args.logits;
  if (logits == nullptr) {
    own.resize(static_cast<std::size_t>(args.m * args.experts));
    logits = own.data();
  }
  AllLogits(args, threads, LogitsFor(isa, bf16_dots), logits);
  ParallelRanges(args.m, 16, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t m = begin; m < end; ++m) ChooseRow(args, m, logits + m * args.experts);
  });
}

void RunCpu(const Args& args, int threads) {
  RunCpu(args, threads, cpu::BestIsa(), cpu::HasAvx512Bf16());
}

void FromEngineConvention(std::int64_t m, std::int64_t chosen, float scaling, std::int32_t* ids,
                          float* weights) {
  std::vector<std::pair<std::int32_t, float>> row(static_cast<std::size_t>(chosen));
  for (std::int64_t first = 0; first < m * chosen; first += chosen) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i] = {ids[first + static_cast<std::int64_t>(i)],
                weights[first + static_cast<std::int64_t>(i)] * scaling};
    }
    std::sort(row.begin(), row.end());
    for (std::size_t i = 0; i < row.size(); ++i) {
      ids[first + static_cast<std::int64_t>(i)] = row[i].first;
      weights[first + static_cast<std::int64_t>(i)] = row[i].second;
    }
  }
}

std::vector<Backend> Backends() {
  Backend backend;
  backend.name = "cpu";
  backend.summary = "fp32 logits by dots along K, one insertion list per row";
  backend.supports = [](const Problem&, const Bundle&) { return std::string(); };
  backend.run = [](const Problem& problem, const Bundle& inputs, Bundle& outputs,
                   const RunContext& context) {
    RunCpu(Bind(problem, inputs, outputs), context.threads);
  };
  return {backend};
}

}  // namespace assay::moe_router_gemm_topk
