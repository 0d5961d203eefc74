// The timing loop of a worker on the CPU: when to sample, when to stop. docs/measuring.md explains
// the choices.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "ops/family.h"
#include "replay/fresh_inputs.h"
#include "replay/result.h"

namespace assay {

struct TimingLimits {
  double budget_s = 2;   // per series; at least one sample is always taken
  int min_samples = 30;  // before convergence may stop the series
  int max_samples = 2000;
  double half_width = 0.005;  // of the median's 95 % interval, relative
  double warmup_s = 0.02;     // and at least `warmup_calls`
  int warmup_calls = 3;
};

double NanosecondsSince(std::chrono::steady_clock::time_point start);

// When a series ends. The interval of the median is looked at after `min_samples` and then at
// powers of 1.5: sorting at every sample would cost more than a short kernel.
class StopRule {
 public:
  StopRule(const TimingLimits& limits, std::chrono::steady_clock::time_point start)
      : limits_(limits), start_(start), next_look_(limits.min_samples) {}
  // "converged", "count", "time"; "" = go on.
  std::string Decide(const std::vector<double>& samples);

 private:
  const TimingLimits& limits_;
  std::chrono::steady_clock::time_point start_;
  int next_look_;
};

// One content set in the worker.
struct Slot {
  Bundle inputs, outputs;
  std::uint64_t version = kOriginalVersion;  // of the inputs
};

// Changes the slot's inputs to a version of their content.
void SetVersion(Slot& slot, std::uint64_t version);

struct MeasuredSeries {
  TimingSeries series;
  double run_ns = 0;                 // inside kernel calls, warm-up included
  double prepare_ns = 0;             // the rest of the loop: poisoning, flushing, reading the clock
  std::int64_t unwritten_calls = 0;  // calls after which HasUnwritten was true
};

// "cold_host": slots in turn, every line of inputs and outputs evicted before each sample. With
// `new_content` every call meets a version of its inputs that was never there before; each slot's
// last call meets one that the runner knows (the first slot kJudgedVersion, the others the
// original).
// "warm_host": the first slot again and again.
// Outputs are poisoned before each sample, outside the timed interval, so that a kernel which skips
// work on repeated input leaves a visible hole. `run` computes one slot.
MeasuredSeries MeasureHost(const std::string& mode, std::vector<Slot>& slots,
                           const TimingLimits& limits, bool new_content,
                           const std::function<void(Slot&)>& run);

// Looks at a few places of every floating-point tensor, the end first, for the poison that a call
// must have overwritten by the time it returns.
bool HasUnwritten(const Bundle& outputs);

// Pushes every cache line of the tensors to memory.
void EvictFromCaches(const Bundle& bundle);

}  // namespace assay
