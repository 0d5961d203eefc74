#include "engine/dispatch.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"

namespace assay::engine {

const char* FallbackName(Fallback reason) {
  constexpr const char* kNames[] = {"primary", "prefill", "mixed_rows", "too_wide",
                                    "context", "draft",   "fault",      "disabled"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Fallback::kCount), "one name each");
  return kNames[static_cast<std::size_t>(reason)];
}

std::string PathCounters::Text() const {
  std::ostringstream text;
  text << "steps on the primary executor: " << of(Fallback::kNone) << "\n";
  for (const auto& [shape, count] : shapes) {
    text << "  " << shape.first << " requests x " << shape.second << " rows: " << count << "\n";
  }
  for (std::size_t reason = 1; reason < steps.size(); ++reason) {
    if (steps[reason] == 0) continue;
    text << "steps on the fallback, " << FallbackName(static_cast<Fallback>(reason)) << ": "
         << steps[reason] << "\n";
  }
  return text.str();
}

Dispatcher::Dispatcher(const Model& model, State& state, Executor& primary, Executor& fallback,
                       const DispatchOptions& options)
    : runner_(model, state, fallback), primary_(primary), fallback_(fallback), options_(options) {
  if (options_.width < 1 || options_.width > kMaxRows) {
    BadInput("a width of " + std::to_string(options_.width) + " rows: 1 to " +
             std::to_string(kMaxRows) + " are possible");
  }
  if (options_.max_context == 0) options_.max_context = model.config.max_positions;
}

Fallback Dispatcher::Choose(Phase phase, int rows_per_request,
                            const std::vector<StepRequest>& requests) const {
  if (options_.disabled) return Fallback::kDisabled;
  if (phase == Phase::kPrefill) return Fallback::kPrefill;
  if (phase == Phase::kDraft && !options_.drafts_on_primary) return Fallback::kDraft;
  if (static_cast<int>(requests.size()) * rows_per_request > options_.width)
    return Fallback::kTooWide;
  for (const StepRequest& request : requests) {
    if (request.slot < 0) continue;
    if (phase == Phase::kVerify && request.rows != rows_per_request) return Fallback::kMixedRows;
    if (request.start + request.rows > options_.max_context) return Fallback::kContext;
  }
  return Fallback::kNone;
}

StepOutput Dispatcher::RunOn(Executor& executor, Phase phase, ProgramKind kind,
                             int rows_per_request, const std::vector<StepRequest>& requests,
                             const std::vector<std::int32_t>& tokens,
                             const std::vector<bf16>& hidden) {
  runner_.set_executor(executor);
  const StepOutput output = runner_.Run(kind, rows_per_request, requests, tokens, hidden);
  stats_[static_cast<std::size_t>(phase)].Add(runner_.last_stats());
  if (phase == Phase::kVerify && after_verify_) after_verify_(executor);
  return output;
}

StepOutput Dispatcher::Run(Phase phase, ProgramKind kind, int rows_per_request,
                           std::vector<StepRequest> requests, std::vector<std::int32_t> tokens,
                           std::vector<bf16> hidden) {
  Fallback reason = Choose(phase, rows_per_request, requests);
  if (kind == ProgramKind::kMtp) ++counters_.mtp_indexer_runs;
  const auto run = [&](Executor& executor) {
    const StepOutput output =
        RunOn(executor, phase, kind, rows_per_request, requests, tokens, hidden);
    ++counters_.steps[static_cast<std::size_t>(reason)];
    ++counters_.by_phase[static_cast<std::size_t>(phase)];
    return output;
  };
  if (reason == Fallback::kNone) {
    try {
      const StepOutput output = run(primary_);
      ++counters_.shapes[{static_cast<int>(requests.size()), rows_per_request}];
      return output;
    } catch (const Error& error) {
      if (error.fault() == Fault::kInput) throw;  // the fallback would refuse it as well
      reason = Fallback::kFault;
    }
  }
  return run(fallback_);
}

}  // namespace assay::engine
