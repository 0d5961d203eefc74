#include "engine/generate.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "engine/philox.h"

namespace assay::engine {
namespace {

class Stopwatch {
 public:
  // Seconds since construction or the last lap.
  double Lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

Generator::Generator(const Model& model, State& state, Dispatcher& dispatcher,
                     const GenerateOptions& options)
    : model_(model), state_(state), dispatcher_(dispatcher), options_(options) {
  if (options_.drafts < 0 || rows() > kMaxRows) {
    BadInput(std::to_string(options_.drafts) + " drafts: 0 to " + std::to_string(kMaxRows - 1) +
             " are possible (one chain, verified with one row more)");
  }
  if (options_.drafts > 0 && !model_.config.mtp) {
    BadInput("model " + model_.config.name + " has no MTP layer to draft with");
  }
  if (rows() > state_.options().rows_per_request) {
    BadInput("a state with room for " + std::to_string(state_.options().rows_per_request) +
             " rows per request; " + std::to_string(options_.drafts) + " drafts need " +
             std::to_string(rows()) + " rows and a ring of " + std::to_string(RingWidth(rows())));
  }
  const bool greedy = options_.rule == AcceptRule::kGreedy;
  if (greedy != (options_.sampling.temperature <= 0)) {
    BadInput("temperature " + std::to_string(options_.sampling.temperature) +
             (greedy ? " with the greedy rule: use coupled or rejection"
                     : " with a sampling rule: use greedy"));
  }
  if (options_.sample_drafts && options_.rule != AcceptRule::kRejection) {
    BadInput("sampled drafts need the rejection rule");
  }
  if (options_.prefix.interval != 0) {
    prefixes_.emplace(state_, options_.prefix, state_.options().rows_per_request);
  }
}

// ---- requests ----

int Generator::Add(const std::vector<std::int32_t>& prompt, std::uint64_t seed) {
  if (prompt.empty()) BadInput("an empty prompt");
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || prompt[i] >= model_.config.vocab) {
      BadInput("prompt token " + std::to_string(i) + " is " + std::to_string(prompt[i]) +
               "; the vocabulary ends at " + std::to_string(model_.config.vocab));
    }
  }
  Request request;
  request.seed = seed;
  request.tokens = prompt;
  MakeSlot();
  const int known = prefixes_ ? prefixes_->Find(prompt) : -1;
  std::vector<bf16> hidden;
  if (known >= 0) hidden = prefixes_->hidden(known);
  request.slot = known >= 0 ? prefixes_->Restore(known) : state_.Create();
  try {
    const std::int64_t length = state_.length(request.slot);
    Reserve(request, static_cast<std::int64_t>(prompt.size()) - length,
            hidden.empty() ? length : length - kPoolTokens);
    if (!hidden.empty()) RepeatMtpRows(request, hidden);
    Prefill(request);
  } catch (...) {
    state_.Free(request.slot);
    throw;
  }
  requests_.push_back(std::move(request));
  return requests() - 1;
}

int Generator::Fork(int request, std::uint64_t seed) {
  MakeSlot();
  const int slot = state_.Fork(at(request).slot);
  requests_.push_back(at(request));
  requests_.back().slot = slot;
  requests_.back().seed = seed;
  return requests() - 1;
}

void Generator::Remove(int request) {
  state_.Free(at(request).slot);
  at(request).slot = -1;
  if (at(request).generated.finish == Finish::kNo) at(request).generated.finish = Finish::kCount;
}

// Snapshots give way to requests: slots and pages.
void Generator::MakeSlot() {
  while (!state_.HasSlot() && prefixes_ && prefixes_->Evict()) {
  }
}

void Generator::Reserve(const Request& request, std::int64_t rows,
                        std::optional<std::int64_t> from) {
  while (!state_.HasRoom(request.slot, rows, from) && prefixes_ && prefixes_->Evict()) {
  }
  state_.Reserve(request.slot, rows, from);
}

// The last MTP row of a prefix has eaten the token that followed it then. Rows of the last pool run
// again with the token that follows now: the ring, which that pool is closed from, is not part of a
// snapshot.
void Generator::RepeatMtpRows(Request& request, const std::vector<bf16>& hidden) {
  const int most = state_.options().rows_per_request;
  const std::int64_t end = state_.length(request.slot), size = model_.config.hidden;
  request.recent_hidden = hidden;
  for (std::int64_t start = end - kPoolTokens; start < end; start += most) {
    const auto count = static_cast<int>(std::min<std::int64_t>(most, end - start));
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(most), 0);
    std::copy_n(request.tokens.begin() + start + 1, count, tokens.begin());
    std::vector<bf16> rows(static_cast<std::size_t>(most * size));
    std::copy_n(hidden.begin() + (start - end + kPoolTokens) * size, count * size, rows.begin());
    dispatcher_.Run(Phase::kPrefill, ProgramKind::kMtp, most, {{request.slot, count, start, {}}},
                    tokens, rows);
  }
}

// Called before `accepted` rows, whose hidden states are given, are committed. `emitted` are tokens
// that the request does not have yet.
Generator::Pending Generator::BeginSnapshot(Request& request, int accepted, const bf16* hidden,
                                            const std::vector<std::int32_t>& emitted) {
  Pending pending;
  if (!prefixes_) return pending;
  const std::int64_t size = model_.config.hidden, length = state_.length(request.slot);
  const auto keep_recent = [&](std::int64_t row0, std::int64_t row1) {
    std::vector<bf16>& recent = request.recent_hidden;
    recent.insert(recent.end(), hidden + row0 * size, hidden + row1 * size);
    const auto extra = static_cast<std::int64_t>(recent.size()) - kPoolTokens * size;
    if (extra > 0) recent.erase(recent.begin(), recent.begin() + extra);
  };
  const std::int64_t boundary = prefixes_->Boundary(length, accepted);
  const std::int64_t below = boundary > 0 ? boundary - length : 0;
  keep_recent(0, below);
  if (boundary > 0) {
    std::vector<std::int32_t> tokens = request.tokens;
    tokens.insert(tokens.end(), emitted.begin(), emitted.end());
    tokens.resize(static_cast<std::size_t>(boundary));
    pending.ticket = prefixes_->Begin(request.slot, static_cast<int>(below), std::move(tokens));
    if (options_.drafts > 0) pending.hidden = request.recent_hidden;
  }
  keep_recent(below, accepted);
  return pending;
}

void Generator::PublishSnapshot(Pending& pending) {
  if (pending.ticket >= 0) prefixes_->Publish(pending.ticket, std::move(pending.hidden));
}

// The prompt in steps of as many rows as the state has room for; MTP rows follow each step.
void Generator::Prefill(Request& request) {
  const int most = state_.options().rows_per_request;
  const auto prompt = static_cast<std::int64_t>(request.tokens.size());
  for (std::int64_t start = state_.length(request.slot); start < prompt; start += most) {
    const int count = static_cast<int>(std::min<std::int64_t>(most, prompt - start));
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(most), 0);
    std::copy_n(request.tokens.begin() + start, count, tokens.begin());
    const StepOutput output = dispatcher_.Run(Phase::kPrefill, ProgramKind::kTrunk, most,
                                              {{request.slot, count, start, {}}}, tokens);
    const std::int64_t size = model_.config.hidden;
    std::vector<bf16> hidden(static_cast<std::size_t>(most * size));
    for (int row = 0; row < count; ++row) {
      std::copy_n(output.hidden(row).begin(), size, hidden.begin() + row * size);
    }
    Pending pending = BeginSnapshot(request, count, hidden.data(), {});
    state_.Commit(request.slot, count);
    if (start + count == prompt) {
      AcceptInput first{options_.rule, options_.sampling, request.seed, prompt - 1, {}, {}, {}};
      first.logits.push_back(output.logits(count - 1));
      Emit(request, Accept(first));
    }
    if (options_.drafts > 0) {
      for (int row = 0; row < count; ++row) {
        tokens[static_cast<std::size_t>(row)] =
            request.tokens[static_cast<std::size_t>(start + row) + 1];
      }
      const StepOutput drafted =
          dispatcher_.Run(Phase::kPrefill, ProgramKind::kMtp, most,
                          {{request.slot, count, start, {}}}, tokens, hidden);
      KeepDraftSeed(request, drafted, count - 1);
    }
    PublishSnapshot(pending);
  }
}

void Generator::Emit(Request& request, const std::vector<std::int32_t>& tokens) {
  request.tokens.insert(request.tokens.end(), tokens.begin(), tokens.end());
  std::vector<std::int32_t>& emitted = request.generated.tokens;
  for (const std::int32_t token : tokens) {
    if (static_cast<std::int64_t>(emitted.size()) < options_.max_new) emitted.push_back(token);
  }
  if (static_cast<std::int64_t>(emitted.size()) == options_.max_new) {
    request.generated.finish = Finish::kCount;
  } else if (state_.length(request.slot) >= model_.config.max_positions) {
    request.generated.finish = Finish::kLength;
  }
}

// What the next cycle's first draft comes from: the last accepted row, gathered per request.
void Generator::KeepDraftSeed(Request& request, const StepOutput& output, int row) {
  request.draft_logits.assign(output.logits(row).begin(), output.logits(row).end());
  request.draft_hidden.assign(output.hidden(row).begin(), output.hidden(row).end());
  request.selection.pools = output.pools(row);
}

// ---- one cycle ----

bool Generator::Cycle() {
  std::vector<int> group;
  bool any = false;
  const auto run = [&] {
    if (!group.empty()) RunGroup(group);
    any = any || !group.empty();
    group.clear();
  };
  for (int request = 0; request < requests(); ++request) {
    if (at(request).slot < 0 || at(request).generated.finish != Finish::kNo) continue;
    group.push_back(request);
    if (static_cast<int>(group.size() + 1) * rows() > kMaxRows) run();
  }
  run();
  if (any) ++cycles_;
  return any;
}

void Generator::RunGroup(const std::vector<int>& group) {
  std::vector<Turn> turns;
  for (const int index : group) {
    Turn turn;
    turn.request = index;
    turn.length = state_.length(at(index).slot);
    turn.rows =
        static_cast<int>(std::min<std::int64_t>(rows(), model_.config.max_positions - turn.length));
    turns.push_back(std::move(turn));
  }
  for (const Turn& turn : turns) Reserve(at(turn.request), turn.rows);
  Stopwatch watch;
  if (options_.drafts > 0) Draft(turns);
  times_.draft += watch.Lap();
  const StepOutput verified = Verify(turns);
  times_.verify += watch.Lap();
  std::vector<bf16> hidden;
  for (int row = 0; row < static_cast<int>(turns.size()) * rows(); ++row) {
    hidden.insert(hidden.end(), verified.hidden(row).begin(), verified.hidden(row).end());
  }
  AcceptRows(verified, turns);
  for (std::size_t i = 0; i < turns.size(); ++i) {
    Turn& turn = turns[i];
    const bf16* own = hidden.data() + static_cast<std::int64_t>(i) * rows() * model_.config.hidden;
    turn.snapshot =
        BeginSnapshot(at(turn.request), static_cast<int>(turn.emitted.size()), own, turn.emitted);
    state_.Commit(at(turn.request).slot, static_cast<int>(turn.emitted.size()));
    at(turn.request).generated.lengths.push_back(static_cast<int>(turn.emitted.size()));
    Emit(at(turn.request), turn.emitted);
  }
  times_.commit += watch.Lap();
  if (options_.drafts > 0) Extend(turns, hidden);
  for (Turn& turn : turns) PublishSnapshot(turn.snapshot);
  times_.extend += watch.Lap();
}

void Generator::Draft(std::vector<Turn>& turns) {
  for (Turn& turn : turns) {
    if (draft_source_) turn.drafts = draft_source_(turn.request, at(turn.request).tokens);
    if (turn.drafts.empty()) TakeDraft(turn);
  }
  for (int step = 2; step <= options_.drafts; ++step) ChainRow(turns, step);
  for (Turn& turn : turns) turn.drafts.resize(static_cast<std::size_t>(turn.rows) - 1);
}

// The next draft from the request's newest MTP logits.
void Generator::TakeDraft(Turn& turn) {
  const Request& request = at(turn.request);
  if (!options_.sample_drafts) {
    turn.drafts.push_back(Greedy(request.draft_logits));
    return;
  }
  const auto position =
      static_cast<std::uint64_t>(turn.length) + turn.drafts.size() + 1;  // of the drafted token
  const Distribution& q =
      turn.draft_distributions.emplace_back(request.draft_logits, options_.sampling);
  turn.drafts.push_back(q.Draw(PhiloxUniform(request.seed, position, kDrawDraft)));
}

// Row `step` of the chain: eats draft step - 1 at position L + step - 2, gives draft `step`.
void Generator::ChainRow(std::vector<Turn>& turns, int step) {
  const bool share = options_.share_index.value_or(model_.config.share_mtp_index);
  std::vector<StepRequest> requests;
  std::vector<std::int32_t> tokens;
  std::vector<bf16> hidden;
  for (const Turn& turn : turns) {
    const Request& request = at(turn.request);
    const std::int64_t position = turn.length + step - 2;
    const bool live = step <= turn.rows - 1;
    StepRequest& row = requests.emplace_back();
    row = {live ? request.slot : -1, live ? 1 : 0, position, request.selection};
    row.seed.open_from = turn.length / kPoolTokens * kPoolTokens;
    tokens.push_back(turn.drafts[static_cast<std::size_t>(
        std::min<int>(step - 2, static_cast<int>(turn.drafts.size()) - 1))]);
    hidden.insert(hidden.end(), request.draft_hidden.begin(), request.draft_hidden.end());
  }
  const StepOutput output =
      dispatcher_.Run(Phase::kDraft, share ? ProgramKind::kMtpChain : ProgramKind::kMtp, 1,
                      requests, tokens, hidden);
  for (std::size_t i = 0; i < turns.size(); ++i) {
    if (requests[i].slot < 0) continue;
    Request& request = at(turns[i].request);
    const auto row = static_cast<int>(i);
    request.draft_logits.assign(output.logits(row).begin(), output.logits(row).end());
    request.draft_hidden.assign(output.hidden(row).begin(), output.hidden(row).end());
    if (static_cast<int>(turns[i].drafts.size()) < step) TakeDraft(turns[i]);
  }
}

StepOutput Generator::Verify(const std::vector<Turn>& turns) {
  std::vector<StepRequest> requests;
  std::vector<std::int32_t> tokens;
  for (const Turn& turn : turns) {
    requests.push_back({at(turn.request).slot, turn.rows, turn.length, {}});
    tokens.push_back(at(turn.request).tokens.back());
    tokens.insert(tokens.end(), turn.drafts.begin(), turn.drafts.end());
    tokens.resize(requests.size() * static_cast<std::size_t>(rows()), 0);
  }
  return dispatcher_.Run(Phase::kVerify, ProgramKind::kTrunk, rows(), requests, tokens);
}

void Generator::AcceptRows(const StepOutput& verified, std::vector<Turn>& turns) {
  for (std::size_t i = 0; i < turns.size(); ++i) {
    Turn& turn = turns[i];
    AcceptInput input{
        options_.rule, options_.sampling,       at(turn.request).seed, turn.length, {},
        turn.drafts,   turn.draft_distributions};
    for (int row = 0; row < turn.rows; ++row) {
      input.logits.push_back(verified.logits(static_cast<int>(i) * rows() + row));
    }
    if (options_.simulated) {
      const int length =
          SimulatedLength(*options_.simulated, options_.drafts, cycles_, turn.request, requests());
      turn.emitted = AcceptSimulated(input, std::min(length, turn.rows) - 1);
    } else {
      turn.emitted = Accept(input);
    }
  }
}

// MTP rows of the accepted positions, from the trunk's hidden states: they overwrite what the chain
// wrote there. Rows beyond are padding.
void Generator::Extend(const std::vector<Turn>& turns, const std::vector<bf16>& hidden) {
  std::vector<StepRequest> requests;
  std::vector<std::int32_t> tokens;
  for (const Turn& turn : turns) {
    requests.push_back(
        {at(turn.request).slot, static_cast<int>(turn.emitted.size()), turn.length, {}});
    tokens.insert(tokens.end(), turn.emitted.begin(), turn.emitted.end());
    tokens.resize(requests.size() * static_cast<std::size_t>(rows()), 0);
  }
  const StepOutput output =
      dispatcher_.Run(Phase::kDraft, ProgramKind::kMtp, rows(), requests, tokens, hidden);
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const int row = static_cast<int>(i) * rows() + static_cast<int>(turns[i].emitted.size()) - 1;
    KeepDraftSeed(at(turns[i].request), output, row);
  }
}

AcceptStats StatsOf(const std::vector<const Generated*>& results, int drafts) {
  AcceptStats stats;
  stats.histogram.assign(static_cast<std::size_t>(drafts) + 1, 0);
  double sum = 0, cycles = 0, requests = 0;
  for (const Generated* result : results) {
    if (result->lengths.empty()) continue;
    double own = 0;
    for (const int length : result->lengths) {
      own += length;
      ++stats.histogram[static_cast<std::size_t>(length) - 1];
    }
    const auto count = static_cast<double>(result->lengths.size());
    sum += own, cycles += count;
    stats.mean_over_requests += own / count;
    ++requests;
  }
  if (cycles > 0) stats.mean_over_cycles = sum / cycles;
  if (requests > 0) stats.mean_over_requests /= requests;
  return stats;
}

}  // namespace assay::engine
