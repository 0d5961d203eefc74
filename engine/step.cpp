#include "engine/step.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace assay::engine {

std::int64_t ElementBytes(Element element) {
  switch (element) {
    case Element::kBF16:
      return 2;
    case Element::kF32:
      return 4;
    case Element::kI32:
      return 4;
    case Element::kE4M3:
      return 1;
    case Element::kState:
      return 0;
  }
  return 0;
}

Workspace::Workspace(const Program& program) {
  constexpr std::int64_t kLine = 128;
  std::int64_t total = 0;
  for (const Buffer& buffer : program.buffers) {
    const std::int64_t bytes = buffer.rows * buffer.columns * ElementBytes(buffer.element);
    offsets_.push_back(total);
    sizes_.push_back(bytes);
    columns_.push_back(buffer.columns);
    total += (bytes + kLine - 1) / kLine * kLine;
  }
  memory_.resize(static_cast<std::size_t>(total));
}

void Workspace::Poison() { std::fill(memory_.begin(), memory_.end(), std::byte{0xFF}); }

void Step::ForLiveRuns(const std::function<void(int row, int count)>& body) const {
  const int rows = program->rows();
  for (int row = 0; row < rows;) {
    int end = row;
    while (end < rows && live(end)) ++end;
    if (end > row) body(row, end - row);
    row = end + 1;
  }
}

namespace {

void CheckRequest(const Step& step, int index) {
  const StepRequest& request = step.request(index);
  if (request.slot < 0) return;
  const std::string who = "request " + std::to_string(index) + " of the step";
  if (request.rows < 0 || request.rows > step.rows_per_request()) {
    BadInput(who + " has " + std::to_string(request.rows) + " rows; the program has room for " +
             std::to_string(step.rows_per_request()));
  }
  if (!step.state->live(request.slot)) {
    BadInput(who + " names state slot " + std::to_string(request.slot) + ", which is free");
  }
  const std::int64_t end = request.start + request.rows, length = step.state->length(request.slot);
  // Trunk rows follow what is committed; MTP rows repeat committed positions or run ahead as
  // drafts.
  const bool trunk = step.program->shape.kind == ProgramKind::kTrunk;
  const std::int64_t latest = length + step.state->options().rows_per_request;
  if (request.start < 0 || (trunk && request.start != length) || request.start > latest) {
    BadInput(who + " starts at position " + std::to_string(request.start) + ", but " +
             std::to_string(length) + " tokens are committed");
  }
  if (end > step.program->shape.context) {
    BadInput(who + " reaches " + std::to_string(end) + " tokens; the program is for " +
             std::to_string(step.program->shape.context));
  }
}

}  // namespace

void CheckStep(const Step& step) {
  const Program& program = *step.program;
  if (static_cast<int>(step.requests.size()) != program.shape.requests ||
      static_cast<int>(step.tokens.size()) != program.rows()) {
    BadInput("a step with " + std::to_string(step.requests.size()) + " requests and " +
             std::to_string(step.tokens.size()) + " tokens on a program for " +
             std::to_string(program.shape.requests) + " and " + std::to_string(program.rows()));
  }
  const int v = program.shape.rows_per_request;
  if (v > step.state->options().rows_per_request) {
    BadInput("a step of " + std::to_string(v) + " rows per request; the state's logs are for " +
             std::to_string(step.state->options().rows_per_request));
  }
  if (step.state->ring_width() < RingWidth(v)) {
    BadInput("a ring of " + std::to_string(step.state->ring_width()) + " entries; a step of " +
             std::to_string(v) + " rows per request needs " + std::to_string(RingWidth(v)));
  }
  for (int index = 0; index < program.shape.requests; ++index) CheckRequest(step, index);
  for (int row = 0; row < program.rows(); ++row) {
    const std::int32_t token = step.tokens[static_cast<std::size_t>(row)];
    if (step.live(row) && (token < 0 || token >= step.config().vocab)) {
      BadInput("row " + std::to_string(row) + " of the step has token " + std::to_string(token) +
               "; the vocabulary ends at " + std::to_string(step.config().vocab));
    }
  }
  if (program.shape.kind != ProgramKind::kTrunk &&
      static_cast<std::int64_t>(step.hidden.size()) != program.rows() * step.config().hidden) {
    BadInput("an MTP step without the hidden states of its rows");
  }
}

RouteTable Routes(const Step& step) {
  auto* table = step.workspace->row<std::int32_t>(Buf::kRoutes);
  const std::int64_t slots = step.program->buffer(Buf::kExpertAct).rows / step.program->rows();
  return {table, table + 1, table + 1 + slots, table + 1 + 2 * slots};
}

SelectedTokens Selected(const Step& step, int row) {
  auto* selected = step.workspace->row<std::int32_t>(Buf::kSelected, row);
  return {selected, selected + 1, selected + 2, selected + 2 + step.config().topk_pools()};
}

Bodies EngineBodies() {
  Bodies bodies(static_cast<std::size_t>(Op::kCount));
  const auto set = [&](Op op, Body body) {
    bodies[static_cast<std::size_t>(op)] = std::move(body);
  };
  set(Op::kMix, Mix);
  set(Op::kMixIn, MixIn);
  set(Op::kKdaIn, KdaIn);
  set(Op::kKda, Kda);
  set(Op::kKdaOut, KdaOut);
  set(Op::kDsaIn, DsaIn);
  set(Op::kAppend, Append);
  set(Op::kQuery, Query);
  set(Op::kIndexQuery, IndexQuery);
  set(Op::kIndexScore, IndexScore);
  set(Op::kSelect, Select);
  set(Op::kAttend, Attend);
  set(Op::kValues, Values);
  set(Op::kDsaOut, DsaOut);
  set(Op::kDenseUp, DenseUp);
  set(Op::kDenseDown, DenseDown);
  set(Op::kRouter, Router);
  set(Op::kRoute, Route);
  set(Op::kSharedUp, SharedUp);
  set(Op::kSharedDown, SharedDown);
  set(Op::kExpertUp, ExpertUp);
  set(Op::kExpertDown, ExpertDown);
  set(Op::kEnd, End);
  set(Op::kHead, Head);
  set(Op::kMtpEmbed, MtpEmbed);
  set(Op::kMtpProject, MtpProject);
  set(Op::kMtpResidual, MtpResidual);
  return bodies;
}

}  // namespace assay::engine
