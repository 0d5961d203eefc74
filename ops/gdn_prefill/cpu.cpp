// The CPU backend of gdn_prefill: the legal calls, the split over threads and the choice of the
// instruction set.
#include <algorithm>
#include <numeric>
#include <string>

#include "base/error.h"
#include "base/parallel.h"
#include "ops/gdn_prefill/cpu_sequence.h"
#include "ops/gdn_prefill/spec.h"

#define ASSAY_LANES 4
#include "ops/gdn_prefill/cpu_sequence_lanes.h"

namespace assay::gdn_prefill {
namespace {

bool Misaligned(const void* p, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes != 0;
}

std::string AlignmentProblem(const Args& args) {
  const std::pair<const char*, const void*> tensors[] = {
      {"q", args.q},          {"k", args.k},
      {"v", args.v},          {"A_log", args.a_log},
      {"a", args.a},          {"dt_bias", args.dt_bias},
      {"b", args.b},          {"cu_seqlens", args.cu_seqlens},
      {"output", args.output}};
  for (const auto& [name, pointer] : tensors) {
    if (Misaligned(pointer, 8)) return std::string(name) + " is not aligned to 8 bytes";
  }
  if (Misaligned(args.state, 16)) return "state is not aligned to 16 bytes";
  if (Misaligned(args.new_state, 16)) return "new_state is not aligned to 16 bytes";
  return "";
}

// Rows of a head that one task advances. All 128 share the widening of q and k; fewer only when
// there would be less than four tasks a thread. Rows are independent: no bit depends on the choice.
std::int64_t RowsPerTask(std::int64_t heads, int threads) {
  if (threads <= 0) threads = HardwareThreads();
  std::int64_t rows = kHeadSize;
  while (rows > 32 && heads * (kHeadSize / rows) < 4 * std::int64_t{threads}) rows /= 2;
  return rows;
}

void FinishEmptySequence(const Args& args, std::int64_t s) {
  constexpr std::int64_t kElements = kValueHeads * kStateElements;
  float* to = args.new_state + s * kElements;
  if (args.state == nullptr || args.zero_empty_states) {
    std::fill(to, to + kElements, 0.0f);
  } else if (args.state != args.new_state) {
    std::copy(args.state + s * kElements, args.state + (s + 1) * kElements, to);
  }
}

SequenceTask MakeTask(const Args& args, std::int64_t s, std::int64_t h) {
  const std::int64_t begin = args.cu_seqlens[s], c = h / 2;
  const std::int64_t state_at = (s * kValueHeads + h) * kStateElements;
  SequenceTask task;
  task.tokens = args.cu_seqlens[s + 1] - begin;
  task.q = args.q + (begin * kKeyHeads + c) * kHeadSize;
  task.k = args.k + (begin * kKeyHeads + c) * kHeadSize;
  task.v = args.v + (begin * kValueHeads + h) * kHeadSize;
  task.a = args.a + begin * kValueHeads + h;
  task.b = args.b + begin * kValueHeads + h;
  task.a_log = args.a_log[h];
  task.dt_bias = args.dt_bias[h];
  task.scale = args.scale == 0 ? kDefaultScale : args.scale;
  if (args.state != nullptr) task.state = args.state + state_at;
  task.output = args.output + (begin * kValueHeads + h) * kHeadSize;
  task.new_state = args.new_state + state_at;
  return task;
}

// Sequences with tokens, longest first: the last task to be claimed should be a short one.
std::vector<std::int64_t> LongestFirst(const Args& args) {
  std::vector<std::int64_t> order;
  for (std::int64_t s = 0; s < args.sequences; ++s) {
    if (args.cu_seqlens[s + 1] > args.cu_seqlens[s]) order.push_back(s);
  }
  const auto length = [&](std::int64_t s) { return args.cu_seqlens[s + 1] - args.cu_seqlens[s]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t x, std::int64_t y) { return length(x) > length(y); });
  return order;
}

auto RunSequenceFor(cpu::Isa isa) -> void (*)(const SequenceTask&) {
#if defined(__x86_64__)
  if (isa == cpu::Isa::kAvx512) return RunSequenceAvx512;
  if (isa == cpu::Isa::kAvx2) return RunSequenceAvx2;
#endif
  (void)isa;
  return RunSequenceBaseline;
}

}  // namespace

void RunSequenceBaseline(const SequenceTask& task) { RunSequence(task); }

std::string Refusal(const Args& args) {
  if (args.sequences == 0 && args.tokens == 0) return "";
  const std::string alignment = AlignmentProblem(args);
  if (!alignment.empty()) return alignment;
  const std::int64_t elements = args.sequences * kValueHeads * kStateElements;
  const bool overlap = args.state != nullptr && args.state < args.new_state + elements &&
                       args.new_state < args.state + elements;
  if (overlap && args.state != args.new_state) return "new_state overlaps a part of state";
  return CuSeqlensProblem(args.cu_seqlens, args.sequences, args.tokens);
}

void RunCpu(const Args& args, int threads, cpu::Isa isa) {
  const std::string refusal = Refusal(args);
  if (!refusal.empty()) BadInput("gdn_prefill: " + refusal);
  const auto run_sequence = RunSequenceFor(isa);
  const std::vector<std::int64_t> order = LongestFirst(args);
  const std::int64_t heads = static_cast<std::int64_t>(order.size()) * kValueHeads;
  const std::int64_t rows = RowsPerTask(heads, threads), parts = kHeadSize / rows;
  ParallelFor(heads * parts, threads, [&](std::int64_t index) {
    const std::int64_t head = index / parts;
    SequenceTask task =
        MakeTask(args, order[static_cast<std::size_t>(head / kValueHeads)], head % kValueHeads);
    task.row_begin = index % parts * rows;
    task.row_end = task.row_begin + rows;
    run_sequence(task);
  });
  for (std::int64_t s = 0; s < args.sequences; ++s) {
    if (args.cu_seqlens[s + 1] == args.cu_seqlens[s]) FinishEmptySequence(args, s);
  }
}

void RunCpu(const Args& args, int threads) { RunCpu(args, threads, cpu::BestIsa()); }

std::vector<Backend> Backends() {
  Backend backend;
  backend.name = "cpu";
  backend.summary = "recurrence in chunks of 4 tokens, SIMD along V, threads over (s, h, rows)";
  backend.supports = [](const Problem&, const Bundle&) { return std::string(); };
  backend.run = [](const Problem& problem, const Bundle& inputs, Bundle& outputs,
                   const RunContext& context) {
    RunCpu(Bind(problem, inputs, outputs), context.threads);
  };
  return {backend};
}

}  // namespace assay::gdn_prefill
