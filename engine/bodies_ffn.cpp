// Task bodies of the FFN sites, and the vocabulary.
#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/scalar_math.h"
#include "engine/step.h"

namespace assay::engine {
namespace {

using exact::Add;
using exact::Div;
using exact::Mul;

// Columns [n0, n1) of silu(min(g, limit)) * clamp(up): the gate is clamped above only, before silu.
void GateUp(const Step& step, const MlpWeights& w, std::int64_t n0, std::int64_t n1, const bf16* x,
            int count, bf16* y, std::int64_t y_stride) {
  const ModelConfig& config = step.config();
  const auto limit = static_cast<float>(config.swiglu_limit);
  const std::int64_t n = n1 - n0;
  std::vector<bf16> gate(static_cast<std::size_t>(n * count)), up(gate.size());
  LinearToBF16(step, w.gate, n0, n1, x, config.hidden, count, gate.data(), n);
  LinearToBF16(step, w.up, n0, n1, x, config.hidden, count, up.data(), n);
  for (std::int64_t i = 0; i < n * count; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const float g = exact::Min(ToFloat(gate[index]), limit);
    const float u = exact::Max(exact::Min(ToFloat(up[index]), limit), -limit);
    y[i / n * y_stride + i % n] = ToBF16(Mul(exact::Silu(g), u));
  }
}

void MlpUp(const Step& step, const Task& task, const MlpWeights& w) {
  step.ForLiveRuns([&](int row, int count) {
    GateUp(step, w, task.n0, task.n1, step.workspace->row<bf16>(Buf::kInput, row), count,
           step.workspace->row<bf16>(Buf::kActivated, row) + task.n0,
           step.program->buffer(Buf::kActivated).columns);
  });
}

void MlpDown(const Step& step, const Task& task, const MlpWeights& w) {
  step.ForLiveRuns([&](int row, int count) {
    LinearToBF16(step, w.down, task.n0, task.n1, step.workspace->row<bf16>(Buf::kActivated, row),
                 step.program->buffer(Buf::kActivated).columns, count,
                 step.workspace->row<bf16>(Buf::kOutput, row) + task.n0, step.config().hidden);
  });
}

// The k best experts of a row by score + bias (ties: lower id), ascending.
std::vector<std::int32_t> BestExperts(const std::vector<float>& choice, std::int64_t k) {
  std::vector<std::int32_t> ids(choice.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
    return choice[static_cast<std::size_t>(a)] > choice[static_cast<std::size_t>(b)];
  });
  ids.resize(static_cast<std::size_t>(k));
  std::sort(ids.begin(), ids.end());
  return ids;
}

// Experts of one row, and their weights 2.5 s_e / sum of s, without bias.
std::vector<std::int32_t> RouteRow(const Step& step, const Task& task, int row) {
  const ModelConfig& config = step.config();
  const std::vector<float>& bias = step.layer(task).moe.bias;
  const float* logits = step.workspace->row<float>(Buf::kRouterLogits, row);
  std::vector<float> score(bias.size()), choice(bias.size());
  for (std::size_t e = 0; e < bias.size(); ++e) {
    score[e] = exact::Sigmoid(logits[e]);
    choice[e] = Add(score[e], bias[e]);
  }
  const std::vector<std::int32_t> experts = BestExperts(choice, config.experts_per_token);
  float sum = 0;
  for (const std::int32_t e : experts) sum = Add(sum, score[static_cast<std::size_t>(e)]);
  float* weights = step.workspace->row<float>(Buf::kRouteWeights, row);
  for (std::size_t i = 0; i < experts.size(); ++i) {
    weights[i] = Mul(static_cast<float>(config.routed_scale),
                     Div(score[static_cast<std::size_t>(experts[i])], sum));
  }
  return experts;
}

// The rows of a slot of the compact list, one by one (they are rarely neighbours).
template <class Body>
void ForSlotRows(const Step& step, int slot, const Body& body) {
  const RouteTable routes = Routes(step);
  if (slot >= *routes.count) return;
  for (int row = 0; row < step.program->rows(); ++row) {
    if ((routes.rows[slot] >> row & 1) != 0) body(row, routes.experts[slot]);
  }
}

}  // namespace

void DenseUp(const Step& step, const Task& task) { MlpUp(step, task, step.layer(task).dense); }
void DenseDown(const Step& step, const Task& task) { MlpDown(step, task, step.layer(task).dense); }
void SharedUp(const Step& step, const Task& task) {
  MlpUp(step, task, step.layer(task).moe.shared);
}
void SharedDown(const Step& step, const Task& task) {
  MlpDown(step, task, step.layer(task).moe.shared);
}

void Router(const Step& step, const Task& task) {
  step.ForLiveRuns([&](int row, int count) {
    step.math->Linear(step.layer(task).moe.router, task.n0, task.n1,
                      step.workspace->row<bf16>(Buf::kInput, row), step.config().hidden, count,
                      step.workspace->row<float>(Buf::kRouterLogits, row) + task.n0,
                      step.config().experts);
  });
}

void Route(const Step& step, const Task& task) {
  const std::int64_t k = step.config().experts_per_token;
  std::vector<std::int32_t> row_mask(static_cast<std::size_t>(step.config().experts), 0);
  std::vector<std::vector<std::int32_t>> chosen(static_cast<std::size_t>(step.program->rows()));
  for (int row = 0; row < step.program->rows(); ++row) {
    if (!step.live(row)) continue;
    chosen[static_cast<std::size_t>(row)] = RouteRow(step, task, row);
    for (const std::int32_t e : chosen[static_cast<std::size_t>(row)]) {
      row_mask[static_cast<std::size_t>(e)] |= 1 << row;
    }
  }
  const RouteTable routes = Routes(step);
  std::vector<std::int32_t> slot_of(row_mask.size(), -1);
  *routes.count = 0;
  for (std::size_t e = 0; e < row_mask.size(); ++e) {
    if (row_mask[e] == 0) continue;
    slot_of[e] = *routes.count;
    routes.experts[*routes.count] = static_cast<std::int32_t>(e);
    routes.rows[*routes.count] = row_mask[e];
    ++*routes.count;
  }
  for (std::size_t row = 0; row < chosen.size(); ++row) {
    for (std::size_t i = 0; i < chosen[row].size(); ++i) {
      routes.slots[row * static_cast<std::size_t>(k) + i] =
          slot_of[static_cast<std::size_t>(chosen[row][i])];
    }
  }
}

void ExpertUp(const Step& step, const Task& task) {
  const MoeWeights& moe = step.layer(task).moe;
  ForSlotRows(step, task.index, [&](int row, std::int32_t expert) {
    GateUp(step, moe.experts[static_cast<std::size_t>(expert)], task.n0, task.n1,
           step.workspace->row<bf16>(Buf::kInput, row), 1,
           step.workspace->row<bf16>(Buf::kExpertAct, task.index * step.program->rows() + row) +
               task.n0,
           step.config().expert_inter);
  });
}

void ExpertDown(const Step& step, const Task& task) {
  const MoeWeights& moe = step.layer(task).moe;
  const ModelConfig& config = step.config();
  ForSlotRows(step, task.index, [&](int row, std::int32_t expert) {
    const int at = task.index * step.program->rows() + row;
    LinearToBF16(step, moe.experts[static_cast<std::size_t>(expert)].down, task.n0, task.n1,
                 step.workspace->row<bf16>(Buf::kExpertAct, at), config.expert_inter, 1,
                 step.workspace->row<bf16>(Buf::kExpertOut, at) + task.n0, config.hidden);
  });
}

void Head(const Step& step, const Task& task) {
  step.ForLiveRuns([&](int row, int count) {
    step.math->Linear(step.model->head, task.n0, task.n1,
                      step.workspace->row<bf16>(Buf::kHidden, row), step.config().hidden, count,
                      step.workspace->row<float>(Buf::kLogits, row) + task.n0, step.config().vocab);
  });
}

}  // namespace assay::engine
