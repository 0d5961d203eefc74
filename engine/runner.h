// Runs steps: builds the program that a step needs, keeps it with its workspace, collects costs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "engine/executor.h"

namespace assay::engine {

// A program and its memory; outputs stay valid until the next step of the same shape.
struct LoadedProgram {
  Program program;
  Workspace workspace;
  explicit LoadedProgram(Program built) : program(std::move(built)), workspace(program) {}
};

class StepOutput {
 public:
  StepOutput(LoadedProgram& loaded) : loaded_(&loaded) {}
  std::span<const float> logits(int row) const;
  std::span<const bf16> hidden(int row) const;
  std::vector<std::int32_t> pools(int row) const;  // selected by the last DSA layer, ascending
  LoadedProgram& loaded() const { return *loaded_; }

 private:
  LoadedProgram* loaded_;
};

class Runner {
 public:
  Runner(const Model& model, State& state, Executor& executor)
      : model_(model), state_(state), executor_(&executor) {}

  // One step: `rows_per_request` rows for each of `requests`, tokens row by row (padding rows: any
  // value), `hidden` for MTP kinds. Pages for new trunk rows are reserved here. Throws kInput, with
  // nothing changed, when the step is impossible.
  StepOutput Run(ProgramKind kind, int rows_per_request, std::vector<StepRequest> requests,
                 std::vector<std::int32_t> tokens, std::vector<bf16> hidden = {});

  // The step as Run would see it, for checks: `loaded` is another program of the same shape.
  const Step& last_step() const { return step_; }
  const StepStats& last_stats() const { return stats_; }
  void set_executor(Executor& executor) { executor_ = &executor; }
  Executor& executor() const { return *executor_; }
  const Model& model() const { return model_; }
  State& state() const { return state_; }
  // Contexts are rounded up to powers of two, so that a growing request needs few programs.
  static std::int64_t ContextBucket(const ModelConfig& model, std::int64_t tokens);
  LoadedProgram& Load(ProgramKind kind, int requests, int rows_per_request, std::int64_t context);

 private:
  const Model& model_;
  State& state_;
  Executor* executor_;
  std::map<std::tuple<ProgramKind, int, int, std::int64_t>, std::unique_ptr<LoadedProgram>>
      programs_;
  Step step_;
  StepStats stats_;
};

}  // namespace assay::engine
