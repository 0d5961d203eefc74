#include "engine/runner.h"

#include <algorithm>

#include "base/error.h"

namespace assay::engine {

std::span<const float> StepOutput::logits(int row) const {
  return {loaded_->workspace.row<float>(Buf::kLogits, row),
          static_cast<std::size_t>(loaded_->program.model.vocab)};
}

std::span<const bf16> StepOutput::hidden(int row) const {
  return {loaded_->workspace.row<bf16>(Buf::kHidden, row),
          static_cast<std::size_t>(loaded_->program.model.hidden)};
}

std::vector<std::int32_t> StepOutput::pools(int row) const {
  const std::int32_t* selected = loaded_->workspace.row<std::int32_t>(Buf::kSelected, row);
  return {selected + 2, selected + 2 + selected[0]};
}

std::int64_t Runner::ContextBucket(const ModelConfig& model, std::int64_t tokens) {
  std::int64_t bucket = 256;
  while (bucket < tokens) bucket *= 2;
  return std::min(bucket, model.max_positions);
}

LoadedProgram& Runner::Load(ProgramKind kind, int requests, int rows_per_request,
                            std::int64_t context) {
  auto& loaded = programs_[{kind, requests, rows_per_request, context}];
  if (!loaded) {
    Program program = BuildProgram(model_.config, {.kind = kind,
                                                   .requests = requests,
                                                   .rows_per_request = rows_per_request,
                                                   .context = context});
    const std::vector<std::string> problems = Validate(program, 1);
    if (!problems.empty()) {
      throw Error(Fault::kInternal, "the step program is wrong: " + problems.front());
    }
    loaded = std::make_unique<LoadedProgram>(std::move(program));
  }
  return *loaded;
}

StepOutput Runner::Run(ProgramKind kind, int rows_per_request, std::vector<StepRequest> requests,
                       std::vector<std::int32_t> tokens, std::vector<bf16> hidden) {
  std::int64_t reach = rows_per_request;
  for (const StepRequest& request : requests) {
    if (request.slot >= 0) reach = std::max(reach, request.start + request.rows);
  }
  const std::int64_t context = ContextBucket(model_.config, reach);
  LoadedProgram& loaded = Load(kind, static_cast<int>(requests.size()), rows_per_request, context);
  step_ = {.model = &model_,
           .program = &loaded.program,
           .state = &state_,
           .workspace = &loaded.workspace,
           .math = nullptr,
           .requests = std::move(requests),
           .tokens = std::move(tokens),
           .hidden = std::move(hidden)};
  CheckStep(step_);
  for (const StepRequest& request : step_.requests) {
    if (request.slot < 0) continue;
    // Rows of the MTP layer run over positions that are committed, or reserved by the trunk.
    const std::int64_t beyond = request.start + request.rows - state_.length(request.slot);
    if (beyond > 0) state_.Reserve(request.slot, beyond);
  }
  stats_ = executor_->Run(step_);
  return StepOutput(loaded);
}

}  // namespace assay::engine
