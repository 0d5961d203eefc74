// The CPU backend of gdn_decode: the legal calls, the split over threads and the choice of the
// instruction set. Bound by memory: every state element is read once and written once.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/parallel.h"
#include "ops/gdn_decode/cpu_rows.h"
#include "ops/gdn_decode/gates.h"
#include "ops/gdn_decode/spec.h"

#define ASSAY_LANES 4
#include "ops/gdn_decode/cpu_rows_lanes.h"

namespace assay::gdn_decode {
namespace {

// 32 rows are 16 KB in and 16 KB out: they stay in L1 between their two uses, and one (n, h) gives
// work to four threads.
constexpr std::int64_t kRowsPerTask = 32;

bool Misaligned(const void* p, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes != 0;
}

std::string AlignmentProblem(const Args& args) {
  const std::pair<const char*, const void*> tensors[] = {{"q", args.q}, {"k", args.k},
                                                         {"v", args.v}, {"A_log", args.a_log},
                                                         {"a", args.a}, {"dt_bias", args.dt_bias},
                                                         {"b", args.b}, {"output", args.output}};
  for (const auto& [name, pointer] : tensors) {
    if (Misaligned(pointer, 8)) return std::string(name) + " is not aligned to 8 bytes";
  }
  if (Misaligned(args.state, 16)) return "state is not aligned to 16 bytes";
  if (Misaligned(args.new_state, 16)) return "new_state is not aligned to 16 bytes";
  return "";
}

void RunTask(const Args& args, std::int64_t task, void (*step_rows)(const RowTask&)) {
  constexpr std::int64_t kTasksPerHead = kHeadSize / kRowsPerTask;
  const std::int64_t head = task / kTasksPerHead;  // n * 8 + h
  const std::int64_t n = head / kValueHeads, h = head % kValueHeads, c = h / 2;
  RowTask rows;
  rows.row_begin = task % kTasksPerHead * kRowsPerTask;
  rows.row_end = rows.row_begin + kRowsPerTask;
  rows.output = args.output + head * kHeadSize;
  std::int64_t slot = n;
  if (args.slot != nullptr) {
    slot = args.slot[n];
    if (slot < 0) {
      std::fill(rows.output + rows.row_begin, rows.output + rows.row_end, bf16{});
      return;
    }
  }
  const std::int64_t state_at = (slot * kValueHeads + h) * kStateElements;
  rows.q = args.q + (n * kKeyHeads + c) * kHeadSize;
  rows.k = args.k + (n * kKeyHeads + c) * kHeadSize;
  rows.v = args.v + head * kHeadSize;
  if (args.state != nullptr) rows.state = args.state + state_at;
  rows.new_state = args.new_state + state_at;
  const Gates gates = ComputeGates(args.a_log[h], args.a[head], args.dt_bias[h], args.b[head]);
  rows.g = gates.g;
  rows.beta = gates.beta;
  rows.scale = args.scale == 0 ? kDefaultScale : args.scale;
  step_rows(rows);
}

auto StepRowsFor(cpu::Isa isa) -> void (*)(const RowTask&) {
#if defined(__x86_64__)
  if (isa == cpu::Isa::kAvx512) return StepRowsAvx512;
  if (isa == cpu::Isa::kAvx2) return StepRowsAvx2;
#endif
  (void)isa;
  return StepRowsBaseline;
}

}  // namespace

void StepRowsBaseline(const RowTask& task) { StepRows(task); }

std::string SlotProblem(const std::int64_t* slot, std::int64_t batch, std::int64_t slots) {
  std::vector<std::int64_t> used;
  for (std::int64_t n = 0; n < batch; ++n) {
    if (slot[n] >= slots) {
      return "slot[" + std::to_string(n) + "] = " + std::to_string(slot[n]) +
             " is outside the pool of " + std::to_string(slots) + " states";
    }
    if (slot[n] >= 0) used.push_back(slot[n]);
  }
  std::sort(used.begin(), used.end());
  const auto twice = std::adjacent_find(used.begin(), used.end());
  if (twice == used.end()) return "";
  return "slot " + std::to_string(*twice) + " is used by two rows";
}

std::string PointerRefusal(const Args& args) {
  if (args.batch == 0) return "";
  const std::string alignment = AlignmentProblem(args);
  if (!alignment.empty()) return alignment;
  const std::int64_t slots = args.slot != nullptr ? args.slots : args.batch;
  const std::int64_t elements = slots * kValueHeads * kStateElements;
  const bool overlap = args.state != nullptr && args.state < args.new_state + elements &&
                       args.new_state < args.state + elements;
  if (overlap && args.state != args.new_state) return "new_state overlaps a part of state";
  return "";
}

std::string Refusal(const Args& args) {
  const std::string refusal = PointerRefusal(args);
  if (!refusal.empty() || args.slot == nullptr) return refusal;
  return SlotProblem(args.slot, args.batch, args.slots);
}

void RunCpu(const Args& args, int threads, cpu::Isa isa) {
  const std::string refusal = Refusal(args);
  if (!refusal.empty()) BadInput("gdn_decode: " + refusal);
  const auto step_rows = StepRowsFor(isa);
  const std::int64_t tasks = args.batch * kValueHeads * (kHeadSize / kRowsPerTask);
  ParallelFor(tasks, threads, [&](std::int64_t task) { RunTask(args, task, step_rows); });
}

void RunCpu(const Args& args, int threads) { RunCpu(args, threads, cpu::BestIsa()); }

std::vector<Backend> Backends() {
  Backend backend;
  backend.name = "cpu";
  backend.summary = "one pass over each state row, SIMD along K, threads over (n, h, 32 rows)";
  backend.supports = [](const Problem&, const Bundle&) { return std::string(); };
  backend.run = [](const Problem& problem, const Bundle& inputs, Bundle& outputs,
                   const RunContext& context) {
    RunCpu(Bind(problem, inputs, outputs), context.threads);
  };
  return {backend};
}

}  // namespace assay::gdn_decode
