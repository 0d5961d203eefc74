// Which executor a step runs on, and why: the primary one for what it was built for, a fallback for
// everything else. Counters prove which path ran.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "engine/runner.h"

namespace assay::engine {

// What a step is for. Only verify (and decode, its one-row form) is the primary executor's work.
enum class Phase : std::uint8_t { kPrefill, kVerify, kDraft, kCount };

enum class Fallback : std::uint8_t {
  kNone,  // the primary executor ran it
  kPrefill,
  kMixedRows,  // a request with fewer rows than the others: near its end
  kTooWide,    // more rows than the primary executor takes
  kContext,    // longer than the primary executor's bucket
  kDraft,
  kFault,  // the primary executor failed; the step was repeated
  kDisabled,
  kCount,
};
const char* FallbackName(Fallback reason);

struct PathCounters {
  std::array<std::int64_t, static_cast<std::size_t>(Fallback::kCount)> steps = {};
  std::map<std::pair<int, int>, std::int64_t> shapes;  // primary: (requests, rows) -> steps
  std::array<std::int64_t, static_cast<std::size_t>(Phase::kCount)> by_phase = {};
  std::int64_t mtp_indexer_runs = 0;
  std::int64_t of(Phase phase) const { return by_phase[static_cast<std::size_t>(phase)]; }
  std::int64_t of(Fallback reason) const { return steps[static_cast<std::size_t>(reason)]; }
  std::string Text() const;  // one line each
};

struct DispatchOptions {
  int width = kMaxRows;          // rows of a step
  std::int64_t max_context = 0;  // 0 = what the model can
  bool disabled = false;
  bool drafts_on_primary = false;  // CPU executors run MTP rows as well as any
};

class Dispatcher {
 public:
  // `fallback` must give the same bits as `primary` (the same arithmetic, for example in program
  // order on one thread).
  Dispatcher(const Model& model, State& state, Executor& primary, Executor& fallback,
             const DispatchOptions& options);

  // As Runner::Run. A failing primary executor is counted, and the step runs on the fallback: it
  // left committed state untouched.
  StepOutput Run(Phase phase, ProgramKind kind, int rows_per_request,
                 std::vector<StepRequest> requests, std::vector<std::int32_t> tokens,
                 std::vector<bf16> hidden = {});

  // Called after each verify (or decode) step, before it is committed: check mode.
  using AfterVerify = std::function<void(Executor& executor)>;
  void set_after_verify(AfterVerify after) { after_verify_ = std::move(after); }

  const PathCounters& counters() const { return counters_; }
  const StepStats& stats(Phase phase) const { return stats_[static_cast<std::size_t>(phase)]; }
  Runner& runner() { return runner_; }

 private:
  StepOutput RunOn(Executor& executor, Phase phase, ProgramKind kind, int rows_per_request,
                   const std::vector<StepRequest>& requests,
                   const std::vector<std::int32_t>& tokens, const std::vector<bf16>& hidden);
  Fallback Choose(Phase phase, int rows_per_request,
                  const std::vector<StepRequest>& requests) const;

  Runner runner_;
  Executor& primary_;
  Executor& fallback_;
  DispatchOptions options_;
  std::array<StepStats, static_cast<std::size_t>(Phase::kCount)> stats_;
  PathCounters counters_;
  AfterVerify after_verify_;
};

}  // namespace assay::engine
