#include "engine/check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <sstream>

#include "base/error.h"
#include "engine/accept.h"
#include "engine/reference_state.h"

namespace assay::engine {
namespace {

using reference::Vec;
using Bytes = std::vector<std::byte>;

struct Part {
  std::string name;
  Bytes bytes;
};

Bytes Copy(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

// What a trunk step leaves behind for its live rows: outputs and uncommitted state.
std::vector<Part> WriteSet(const Step& step, bool outputs) {
  std::vector<Part> parts;
  for (int row = 0; outputs && row < step.program->rows(); ++row) {
    if (!step.live(row)) continue;
    const std::string of = " of row " + std::to_string(row);
    const auto vocab = static_cast<std::size_t>(step.config().vocab);
    const auto hidden = static_cast<std::size_t>(step.config().hidden);
    parts.push_back({"hidden" + of, Copy(std::as_bytes(std::span(
                                        step.workspace->row<bf16>(Buf::kHidden, row), hidden)))});
    parts.push_back({"logits" + of, Copy(std::as_bytes(std::span(
                                        step.workspace->row<float>(Buf::kLogits, row), vocab)))});
  }
  for (std::size_t i = 0; i < step.requests.size(); ++i) {
    const StepRequest& request = step.requests[i];
    if (request.slot < 0) continue;
    step.state->ForEachWritten(
        request.slot, request.rows, [&](const std::string& name, std::span<const std::byte> bytes) {
          parts.push_back({"request " + std::to_string(i) + " " + name, Copy(bytes)});
        });
  }
  return parts;
}

// "logits of row 2, byte 12: 3f8a.. / 3f8b.." or nothing.
std::string FirstDifference(const std::vector<Part>& a, const std::vector<Part>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto [x, y] = std::mismatch(a[i].bytes.begin(), a[i].bytes.end(), b[i].bytes.begin());
    if (x == a[i].bytes.end()) continue;
    std::ostringstream text;
    const std::ptrdiff_t at = (x - a[i].bytes.begin()) / 4 * 4;  // the 32-bit word around it
    text << a[i].name << " at byte " << at << ": " << std::hex;
    for (const Bytes* bytes : {&a[i].bytes, &b[i].bytes}) {
      std::uint32_t word = 0;
      std::memcpy(&word, bytes->data() + at,
                  std::min<std::size_t>(4, bytes->size() - static_cast<std::size_t>(at)));
      text << word << (bytes == &a[i].bytes ? " against " : "");
    }
    return text.str();
  }
  return "";
}

// The bytes of a task's output regions in the workspace.
std::vector<Part> TaskOutputs(const Step& step, const Task& task) {
  std::vector<Part> parts;
  for (const Region& region : task.writes) {
    const Buffer& buffer = step.program->buffer(region.buffer);
    if (buffer.state) continue;
    const std::int64_t size = ElementBytes(buffer.element);
    Part& part = parts.emplace_back();
    part.name = BufName(region.buffer);
    for (std::int64_t row = region.row0; row < region.row1; ++row) {
      const std::byte* begin =
          step.workspace->data(region.buffer) + (row * buffer.columns + region.column0) * size;
      part.bytes.insert(part.bytes.end(), begin, begin + (region.column1 - region.column0) * size);
    }
  }
  return parts;
}

void Restore(const Step& step, const Task& task, const std::vector<Part>& parts) {
  auto part = parts.begin();
  for (const Region& region : task.writes) {
    const Buffer& buffer = step.program->buffer(region.buffer);
    if (buffer.state) continue;
    const std::int64_t bytes = (region.column1 - region.column0) * ElementBytes(buffer.element);
    const std::byte* from = part++->bytes.data();
    for (std::int64_t row = region.row0; row < region.row1; ++row, from += bytes) {
      std::memcpy(step.workspace->data(region.buffer) +
                      (row * buffer.columns + region.column0) * ElementBytes(buffer.element),
                  from, static_cast<std::size_t>(bytes));
    }
  }
}

double RelativeError(const Vec& wanted, const std::function<double(std::size_t)>& seen) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    error += std::pow(seen(i) - wanted[i], 2);
    norm += wanted[i] * wanted[i];
  }
  return std::sqrt(error / std::max(norm, 1e-30));
}

}  // namespace

std::string CheckFindings::Text() const {
  std::ostringstream text;
  text << checked << " steps checked, " << problems.size() << " problems\n";
  for (const std::string& problem : problems) text << "  " << problem << "\n";
  if (rows > 0) {
    text << "against fp64: best token equal in " << same_top << " of " << rows << " rows, "
         << near_ties << " near ties; worst relative error " << worst_error << ", worst divergence "
         << worst_divergence << " nats; " << loose_selections << " selections within rounding\n";
  }
  if (products.products > 0) {
    text << products.products << " matrix products in both arithmetics: worst difference "
         << products.worst << " of one bf16 ulp and 2^-16 sum |w x| (length " << products.worst_k
         << ", task \"" << worst_product << "\"), " << products.worst_proven
         << " of what any operands can give\n";
  }
  return text.str();
}

void Checker::Check(CheckMode mode, Executor& checked) {
  if (runner_.last_step().program->shape.kind != ProgramKind::kTrunk) return;
  ++findings_.checked;
  switch (mode) {
    case CheckMode::kNone:
      break;
    case CheckMode::kShadow:
      return CheckShadow(checked);
    case CheckMode::kUnroll:
      return CheckUnroll();
    case CheckMode::kReference:
      return CheckReference(checked);
    case CheckMode::kProducts:
      return CheckProducts(checked);
  }
}

// ---- a second executor ----

void Checker::CheckShadow(Executor& checked) {
  const Step step = runner_.last_step();
  const std::vector<Part> seen = WriteSet(step, true);
  shadow_.Run(step);
  const std::string difference = FirstDifference(seen, WriteSet(step, true));
  if (difference.empty()) return;
  std::string problem = checked.name() + " and " + shadow_.name() + " differ: " + difference;
  const std::string task = FirstDifferingTask(step, checked);
  if (!task.empty()) problem += "; first in task " + task;
  findings_.problems.push_back(problem);
  checked.Run(step);  // what is committed is the checked executor's
}

// Replays the step task by task: both executors get the same inputs, so the first task whose
// outputs differ is the one to look at.
std::string Checker::FirstDifferingTask(const Step& step, Executor& checked) {
  for (std::size_t t = 0; t < step.program->tasks.size(); ++t) {
    const Task& task = step.program->tasks[t];
    const std::vector<Part> before = TaskOutputs(step, task);
    const bool touches_state =
        std::any_of(task.writes.begin(), task.writes.end(),
                    [&](const Region& r) { return step.program->buffer(r.buffer).state; });
    const auto outputs = [&] {
      std::vector<Part> parts = TaskOutputs(step, task);
      if (!touches_state) return parts;
      for (Part& part : WriteSet(step, false)) parts.push_back(std::move(part));
      return parts;
    };
    if (!shadow_.RunTask(step, task)) return "";
    const std::vector<Part> wanted = outputs();
    Restore(step, task, before);
    if (!checked.RunTask(step, task)) return "";
    const std::string difference = FirstDifference(outputs(), wanted);
    if (!difference.empty()) return "\"" + DescribeTask(*step.program, t) + "\", " + difference;
  }
  return "";
}

// ---- both arithmetics ----

// Replays the step with the tensor core's results, so that every product gets the operands that it
// has in `cpu-bit`; other tasks are the same in both executors.
void Checker::CheckProducts(Executor& checked) {
  Step step = runner_.last_step();
  ComparedMath math;
  step.math = &math;
  const Bodies bodies = EngineBodies();
  for (std::size_t t = 0; t < step.program->tasks.size(); ++t) {
    const double before = math.found().worst;
    const Task& task = step.program->tasks[t];
    bodies[static_cast<std::size_t>(task.op)](step, task);
    if (math.found().worst <= std::max(before, findings_.products.worst)) continue;
    findings_.worst_product = DescribeTask(*step.program, t);
  }
  findings_.products.Add(math.found());
  if (math.found().beyond > 0) {
    findings_.problems.push_back(
        std::to_string(math.found().beyond) +
        " matrix products differ by more than one ulp of bf16 and 2^-16 of "
        "their sum of magnitudes; worst in task \"" +
        findings_.worst_product + "\"");
  }
  checked.Run(step);  // what is committed is the checked executor's
}

// ---- single rows ----

void Checker::CheckUnroll() {
  const Step step = runner_.last_step();
  State& state = *step.state;
  const std::vector<Part> seen = WriteSet(step, true);
  for (int i = 0; i < step.program->shape.requests; ++i) {
    const StepRequest& request = step.request(i);
    if (request.slot < 0) continue;
    const int fork = state.Fork(request.slot);
    for (int r = 0; r < request.rows; ++r) {
      const int row = i * step.rows_per_request() + r;
      const StepOutput single =
          runner_.Run(ProgramKind::kTrunk, 1, {{fork, 1, request.start + r, {}}},
                      {step.tokens[static_cast<std::size_t>(row)]});
      const auto differ = [&](const char* what, std::span<const std::byte> wanted,
                              const void* verified) {
        if (std::memcmp(wanted.data(), verified, wanted.size()) == 0) return;
        findings_.problems.push_back("request " + std::to_string(i) + ", row " + std::to_string(r) +
                                     ": " + what + " of the " +
                                     std::to_string(step.rows_per_request()) +
                                     "-row step differ from single rows");
      };
      differ("logits", std::as_bytes(single.logits(0)),
             step.workspace->row<float>(Buf::kLogits, row));
      differ("hidden states", std::as_bytes(single.hidden(0)),
             step.workspace->row<bf16>(Buf::kHidden, row));
      state.Commit(fork, 1);
    }
    state.Free(fork);
  }
  // Of one row alone this is the comparison itself: the single row ran in the step's own workspace.
  const std::string changed = FirstDifference(seen, WriteSet(step, true));
  if (!changed.empty()) findings_.problems.push_back("unrolling changed " + changed);
}

// ---- fp64 ----

namespace {

// What a serial replay sees of one row: selections, and the streams after each layer.
struct RowTrace {
  reference::Choices choices;
  std::vector<Vec> streams;  // by layer
};

void Record(const Step& step, const Task& task, std::vector<RowTrace>& rows) {
  const ModelConfig& config = step.config();
  if (task.op == Op::kSelect) {
    const SelectedTokens selected = Selected(step, task.row);
    rows[static_cast<std::size_t>(task.row)].choices.pools.emplace_back(
        selected.pools, selected.pools + (step.live(task.row) ? *selected.pool_count : 0));
  } else if (task.op == Op::kRoute) {
    const RouteTable routes = Routes(step);
    for (int row = 0; row < step.program->rows(); ++row) {
      auto& list = rows[static_cast<std::size_t>(row)].choices.experts.emplace_back();
      for (std::int64_t e = 0; step.live(row) && e < config.experts_per_token; ++e) {
        list.push_back(routes.experts[routes.slots[row * config.experts_per_token + e]]);
      }
    }
  } else if (task.op == Op::kMix && task.part != 1 && !(task.layer == 0 && task.part == 0) &&
             task.index == step.program->slices() - 1) {
    const bf16* streams = step.workspace->row<bf16>(Buf::kStreams, task.row);
    Vec& values = rows[static_cast<std::size_t>(task.row)].streams.emplace_back();
    for (std::int64_t i = 0; i < kStreamCount * config.hidden; ++i)
      values.push_back(ToFloat(streams[i]));
  }
}

// Chosen ids whose score lies below the border of the reference's own choice by more than the
// slack: a share of the spread, or four standard deviations of both scores' noise.
int CountIllegal(const Vec& scores, const Vec& noise, const std::vector<std::int64_t>& chosen,
                 std::int64_t* loose) {
  if (chosen.empty() || scores.size() <= chosen.size()) return 0;
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  const std::size_t border = order[chosen.size() - 1];
  const double spread = scores[order.front()] - scores[order.back()];
  int illegal = 0;
  for (const std::int64_t id : chosen) {
    const auto index = static_cast<std::size_t>(id);
    double slack = kSelectionSlack * spread;
    if (!noise.empty()) slack = std::max(slack, 4 * std::hypot(noise[index], noise[border]));
    const double below = scores[border] - scores[index];
    *loose += below > 0 && below <= slack;
    illegal += below > slack;
  }
  return illegal;
}

// KL(reference, seen) of the softmax distributions.
double Divergence(const Vec& wanted, const float* seen) {
  double top_w = wanted[0], top_s = seen[0], sum_w = 0, sum_s = 0, kl = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    top_w = std::max(top_w, wanted[i]), top_s = std::max(top_s, static_cast<double>(seen[i]));
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    sum_w += std::exp(wanted[i] - top_w), sum_s += std::exp(seen[i] - top_s);
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double log_p = wanted[i] - top_w - std::log(sum_w);
    kl += std::exp(log_p) * (log_p - (seen[i] - top_s - std::log(sum_s)));
  }
  return kl;
}

}  // namespace

void Checker::CheckReference(Executor& checked) {
  const Step step = runner_.last_step();
  std::vector<RowTrace> traces(static_cast<std::size_t>(step.program->rows()));
  for (const Task& task : step.program->tasks) {
    if (!checked.RunTask(step, task)) {
      throw Error(Fault::kUnsupported, "executor " + checked.name() + " has no tasks to check");
    }
    Record(step, task, traces);
  }
  std::vector<CheckedRow> rows;
  for (int i = 0; i < step.program->shape.requests; ++i) {
    const StepRequest& request = step.request(i);
    if (request.slot < 0) continue;
    reference::State state = LoadReferenceState(step.config(), *step.state, request.slot);
    for (int r = 0; r < request.rows; ++r) {
      const int row = i * step.rows_per_request() + r;
      const RowTrace& trace = traces[static_cast<std::size_t>(row)];
      CheckedRow& checked_row = rows.emplace_back();
      checked_row.row = row;
      checked_row.who = "request " + std::to_string(i) + ", row " + std::to_string(r) + ": ";
      const reference::Row truth =
          TrunkRow(*step.model, step.tokens[static_cast<std::size_t>(row)], state, &trace.choices,
                   [&](std::int64_t layer, int site, reference::Value what, const Vec& value) {
                     checked_row.values[{layer, site, what}] = value;
                   });
      const std::size_t before = findings_.problems.size();
      CompareStreams(checked_row, trace.streams);
      CompareLogits(step, row, checked_row.who, truth);
      checked_row.wrong = findings_.problems.size() > before;
    }
  }
  CompareTasks(step, checked, rows);
}

void Checker::CompareStreams(const CheckedRow& row, const std::vector<Vec>& streams) {
  for (std::size_t layer = 0; layer < streams.size(); ++layer) {
    const Vec& wanted =
        row.values.at({static_cast<std::int64_t>(layer), 1, reference::Value::kStreams});
    const double error = RelativeError(wanted, [&](std::size_t at) { return streams[layer][at]; });
    findings_.worst_error = std::max(findings_.worst_error, error);
    if (error <= kStreamBound) continue;
    findings_.problems.push_back(row.who + "streams after layer " + std::to_string(layer) +
                                 " are off by " + std::to_string(error));
    return;  // later layers only inherit it
  }
}

// Where rows have problems, adds the tasks that they begin with.
void Checker::CompareTasks(const Step& step, Executor& checked,
                           const std::vector<CheckedRow>& rows) {
  std::vector<const RowTruth*> truth(static_cast<std::size_t>(step.program->rows()), nullptr);
  for (const CheckedRow& row : rows) truth[static_cast<std::size_t>(row.row)] = &row.values;
  const std::vector<TaskErrors> errors = ErrorsOfTasks(step, checked, truth);
  for (const CheckedRow& row : rows) {
    const TaskErrors& own = errors[static_cast<std::size_t>(row.row)];
    findings_.worst_task_error = std::max(findings_.worst_task_error, own.worst.error);
    if (!row.wrong) continue;
    const TaskError& named = own.first ? *own.first : own.worst;
    findings_.problems.push_back(row.who + (own.first ? "first" : "most") + " wrong in task \"" +
                                 DescribeTask(*step.program, named.task) + "\", off by " +
                                 std::to_string(named.error));
  }
}

void Checker::CompareLogits(const Step& step, int row, const std::string& who,
                            const reference::Row& truth) {
  const float* logits = step.workspace->row<float>(Buf::kLogits, row);
  const double error =
      RelativeError(truth.logits, [&](std::size_t i) { return static_cast<double>(logits[i]); });
  findings_.worst_error = std::max(findings_.worst_error, error);
  if (!(error <= kLogitBound)) {
    findings_.problems.push_back(who + "logits are off by " + std::to_string(error));
  }
  findings_.worst_divergence =
      std::max(findings_.worst_divergence, Divergence(truth.logits, logits));
  int illegal = 0;
  for (const reference::Selection& pools : truth.pools) {
    illegal += CountIllegal(pools.scores, pools.noise, pools.pools, &findings_.loose_selections);
  }
  for (const reference::Routing& experts : truth.experts) {
    illegal += CountIllegal(experts.scores, {}, experts.experts, &findings_.loose_selections);
  }
  if (illegal > 0) {
    findings_.problems.push_back(who + std::to_string(illegal) +
                                 " pools or experts were not among the best");
  }
  ++findings_.rows;
  const std::size_t vocab = truth.logits.size();
  const std::int64_t best = reference::ArgMax(truth.logits), seen = Greedy({logits, vocab});
  if (best == seen) {
    ++findings_.same_top;
    return;
  }
  // Equal but for rounding: the gap is no larger than the error of these logits.
  double norm = 0;
  for (const double value : truth.logits) norm += value * value;
  const double gap =
      truth.logits[static_cast<std::size_t>(best)] - truth.logits[static_cast<std::size_t>(seen)];
  if (gap <= 2 * error * std::sqrt(norm)) {
    ++findings_.near_ties;
  } else {
    findings_.problems.push_back(who + "best token is " + std::to_string(seen) + " instead of " +
                                 std::to_string(best) + ", which leads by " + std::to_string(gap));
  }
}

}  // namespace assay::engine
