#include "engine/check_tasks.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace assay::engine {
namespace {

using reference::Value;
using reference::Vec;

// Elements [begin, begin + seen.size()) of a value, as a task left them.
struct Probe {
  std::int64_t layer;
  int site;
  Value what;
  std::int64_t begin;
  Vec seen;
};

// What one task has just written for one row.
class Probes {
 public:
  Probes(const Step& step, const Task& task, int row) : step_(step), task_(task), row_(row) {
    if ((task.row < 0 || task.row == row) &&
        (task.request < 0 || task.request == row / step.rows_per_request())) {
      Collect();
    }
  }
  const std::vector<Probe>& list() const { return list_; }

 private:
  const ModelConfig& config() const { return step_.config(); }

  template <class T>
  void Take(int site, Value what, const T* from, std::int64_t count, std::int64_t begin) {
    Probe& probe = list_.emplace_back(Probe{task_.layer, site, what, begin, {}});
    for (std::int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<T, bf16>) {
        probe.seen.push_back(ToFloat(from[i]));
      } else {
        probe.seen.push_back(from[i]);
      }
    }
  }
  // Columns [n0, n1) of the row in a buffer, which are those of the value.
  template <class T>
  void Tile(int site, Value what, Buf buffer, std::int64_t begin = 0) {
    Take(site, what, step_.workspace->row<T>(buffer, row_) + begin + task_.n0, task_.n1 - task_.n0,
         begin + task_.n0);
  }

  void Collect() {
    switch (task_.op) {
      case Op::kMix:
        return Streams();
      case Op::kMixIn:
        Take(task_.part, Value::kHyper, step_.workspace->row<float>(Buf::kHyper, row_),
             kStreamCount * (kStreamCount + 1), 0);
        return Take(task_.part, Value::kInput, step_.workspace->row<bf16>(Buf::kInput, row_),
                    config().hidden, 0);
      case Op::kKdaIn:
        if (task_.part == kPartB) return Tile<float>(0, Value::kKdaBeta, Buf::kHeadScale);
        return Tile<bf16>(0, Value::kKdaProjected, Buf::kProjected,
                          KdaColumns(config(), static_cast<KdaPart>(task_.part)).begin);
      case Op::kKda:
        Tile<bf16>(0, Value::kKdaGate, Buf::kGate);
        return Tile<bf16>(0, Value::kKdaOutput, Buf::kValues);
      case Op::kDsaIn:
        if (task_.part == kPartIndexHead) return Tile<float>(0, Value::kIndexHead, Buf::kHeadScale);
        return Tile<bf16>(0, Value::kDsaProjected, Buf::kProjected,
                          DsaColumns(config(), static_cast<DsaPart>(task_.part)).begin);
      case Op::kAppend:
        return Appended();
      case Op::kQuery:
        return Head(Value::kQuery, Buf::kQuery, config().kv_lora);
      case Op::kValues:
        return Head(Value::kAttended, Buf::kValues, config().v_dim);
      case Op::kKdaOut:
      case Op::kDsaOut:
        return Tile<bf16>(0, Value::kOutput, Buf::kOutput);
      case Op::kDenseUp:
      case Op::kSharedUp:
        return Tile<bf16>(1, Value::kActivated, Buf::kActivated);
      case Op::kDenseDown:
      case Op::kSharedDown:
        return Tile<bf16>(1, Value::kOutput, Buf::kOutput);
      case Op::kRouter:
        return Tile<float>(1, Value::kRouterLogits, Buf::kRouterLogits);
      case Op::kRoute:
        return Take(1, Value::kRouteWeights, step_.workspace->row<float>(Buf::kRouteWeights, row_),
                    config().experts_per_token, 0);
      case Op::kExpertUp:
        return Expert(Value::kExpertActivated, Buf::kExpertAct, config().expert_inter);
      case Op::kExpertDown:
        return Expert(Value::kExpertOutput, Buf::kExpertOut, config().hidden);
      case Op::kEnd:
        Take(0, Value::kHidden, step_.workspace->row<bf16>(Buf::kHidden, row_), config().hidden, 0);
        return BelongsToTheEnd();
      case Op::kHead:
        Tile<float>(0, Value::kLogits, Buf::kLogits);
        return BelongsToTheEnd();
      default:
        return;
    }
  }

  // A mix updates the streams with the output of the site before its own.
  void Streams() {
    if (task_.layer == 0 && task_.part == 0) return;  // embeddings
    const bf16* streams = step_.workspace->row<bf16>(Buf::kStreams, row_);
    for (std::int64_t j = 0; j < kStreamCount; ++j) {
      const std::int64_t begin = j * config().hidden + task_.n0;
      Take(task_.part == 1 ? 0 : 1, Value::kStreams, streams + begin, task_.n1 - task_.n0, begin);
      if (task_.part == 0) --list_.back().layer;
    }
  }

  void BelongsToTheEnd() { list_.back().layer = config().trunk_layers(); }

  void Appended() {
    const std::int64_t dsa = config().index_in_kind(task_.layer);
    const int slot = step_.request(task_.request).slot;
    const std::int64_t position = step_.position(row_);
    Take(0, Value::kLatent, step_.state->Latent(dsa, slot, position), config().kv_lora, 0);
    Take(0, Value::kIndexKey, step_.state->Ring(dsa, slot, position), config().index_dim, 0);
  }

  void Head(Value what, Buf buffer, std::int64_t size) {
    const std::int64_t begin = task_.index * size;
    Take(0, what, step_.workspace->row<bf16>(buffer, row_) + begin, size, begin);
  }

  // The task's slot of the compact list, if the row has it: which of the row's experts is it?
  void Expert(Value what, Buf buffer, std::int64_t size) {
    const std::int64_t k = config().experts_per_token;
    const std::int32_t* slots = Routes(step_).slots + row_ * k;
    for (std::int64_t e = 0; e < k; ++e) {
      if (slots[e] != task_.index || task_.index >= *Routes(step_).count) continue;
      const bf16* from =
          step_.workspace->row<bf16>(buffer, task_.index * step_.program->rows() + row_);
      Take(1, what, from + task_.n0, task_.n1 - task_.n0, e * size + task_.n0);
    }
  }

  const Step& step_;
  const Task& task_;
  int row_;
  std::vector<Probe> list_;
};

double ErrorOf(const Probe& probe, const RowTruth& truth) {
  const auto found = truth.find({probe.layer, probe.site, probe.what});
  if (found == truth.end()) return 0;
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < probe.seen.size(); ++i) {
    const double wanted = found->second[static_cast<std::size_t>(probe.begin) + i];
    error += std::pow(probe.seen[i] - wanted, 2);
  }
  for (const double value : found->second) norm += value * value;
  const double share =
      static_cast<double>(found->second.size()) / static_cast<double>(probe.seen.size());
  const double relative = std::sqrt(error * share / std::max(norm, 1e-30));
  return std::isnan(relative) ? INFINITY : relative;
}

}  // namespace

std::vector<TaskErrors> ErrorsOfTasks(const Step& step, Executor& checked,
                                      const std::vector<const RowTruth*>& truth) {
  std::vector<TaskErrors> errors(truth.size());
  for (std::size_t t = 0; t < step.program->tasks.size(); ++t) {
    const Task& task = step.program->tasks[t];
    if (!checked.RunTask(step, task)) break;
    for (std::size_t row = 0; row < truth.size(); ++row) {
      if (truth[row] == nullptr) continue;
      const Probes probes(step, task, static_cast<int>(row));
      for (const Probe& probe : probes.list()) {
        const TaskError error{t, ErrorOf(probe, *truth[row])};
        if (error.error > errors[row].worst.error) errors[row].worst = error;
        if (!errors[row].first && error.error > kTaskBound) errors[row].first = error;
      }
    }
  }
  return errors;
}

}  // namespace assay::engine
