// Verify equals successive decode, bit for bit: a property over layouts, contexts, commit modes,
// orders and thread counts. A failing case is shrunk and printed with its seed.
#include <algorithm>
#include <functional>
#include <optional>

#include "base/error.h"
#include "engine/philox.h"
#include "engine/test_support.h"

namespace assay::engine {
namespace {

struct Case {
  Arithmetic arithmetic = Arithmetic::kFast;
  CommitMode commit = CommitMode::kReplay;
  int requests = 1, rows = 1, threads = 1;
  std::vector<std::int64_t> lengths{0};
  std::vector<int> live{1};  // rows that are not padding
  std::vector<int> accepted{1};
  bool absent = false;  // one request more in the step that is not there
  std::optional<std::uint64_t> order;

  std::string Text() const {
    std::string text = std::string(CommitModeName(commit)) + ", " + std::to_string(requests) +
                       " requests x " + std::to_string(rows) + " rows, " + std::to_string(threads) +
                       " threads, order " + (order ? std::to_string(*order) : "of the program") +
                       ", length/accepted";
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      text += " " + std::to_string(lengths[i]) + "/" + std::to_string(live[i]) + "/" +
              std::to_string(accepted[i]);
    }
    return text;
  }
};

// Requests of one state, grown once and forked by every case that wants their length.
class Prefixes {
 public:
  Prefixes(Arithmetic arithmetic, CommitMode commit)
      : state_(TinyModel().config,
               {.slots = 80, .rows_per_request = 9, .commit = commit, .tokens = 1 << 14}),
        executor_(MakeCpuExecutor({.arithmetic = arithmetic})),
        runner_(TinyModel(), state_, *executor_) {}

  Runner& runner() { return runner_; }
  State& state() { return state_; }
  int Fork(std::uint64_t seed, std::int64_t length) {
    int& slot = slots_.try_emplace({seed, length}, -1).first->second;
    if (slot < 0) {
      const auto shorter = std::find_if(slots_.begin(), slots_.end(), [&](const auto& entry) {
        return entry.first.first == seed && entry.first.second <= length && entry.second >= 0;
      });
      slot = shorter == slots_.end() ? state_.Create() : state_.Fork(shorter->second);
      Grow(runner_, slot, seed, length);
    }
    return state_.Fork(slot);
  }
  static Prefixes& Of(Arithmetic arithmetic, CommitMode commit) {
    static Prefixes all[4] = {{Arithmetic::kFast, CommitMode::kReplay},
                              {Arithmetic::kFast, CommitMode::kScratch},
                              {Arithmetic::kTensorCore, CommitMode::kReplay},
                              {Arithmetic::kTensorCore, CommitMode::kScratch}};
    return all[2 * static_cast<int>(arithmetic == Arithmetic::kTensorCore) +
               static_cast<int>(commit == CommitMode::kScratch)];
  }

 private:
  State state_;
  std::unique_ptr<Executor> executor_;
  Runner runner_;
  std::map<std::pair<std::uint64_t, std::int64_t>, int> slots_;
};

struct Expected {
  std::vector<RowResult> rows;
  std::vector<std::uint64_t> prints;  // after 0, 1, .. rows
};

Expected DecodeRows(Prefixes& prefixes, std::uint64_t seed, std::int64_t length, int rows) {
  Expected expected;
  const int slot = prefixes.Fork(seed, length);
  expected.prints.push_back(prefixes.state().Fingerprint(slot, false));
  for (int i = 0; i < rows; ++i) {
    expected.rows.push_back(Decode(prefixes.runner(), slot, seed, 1).front());
    expected.prints.push_back(prefixes.state().Fingerprint(slot, false));
  }
  prefixes.state().Free(slot);
  return expected;
}

// The step of a case on the executor of the case, from poisoned memory.
StepOutput RunStep(const Case& c, Prefixes& prefixes, const std::vector<StepRequest>& requests,
                   const std::vector<std::int32_t>& tokens) {
  const auto executor = MakeCpuExecutor({.arithmetic = c.arithmetic,
                                         .threads = c.threads,
                                         .order_seed = c.order,
                                         .check_order = true});
  Runner& runner = prefixes.runner();
  Executor& plain = runner.executor();
  prefixes.state().PoisonUnreadable();
  std::int64_t reach = c.rows;
  for (const StepRequest& request : requests) reach = std::max(reach, request.start + request.rows);
  runner
      .Load(ProgramKind::kTrunk, static_cast<int>(requests.size()), c.rows,
            Runner::ContextBucket(TinyModel().config, reach))
      .workspace.Poison();
  runner.set_executor(*executor);
  const StepOutput output = runner.Run(ProgramKind::kTrunk, c.rows, requests, tokens);
  runner.set_executor(plain);
  return output;
}

// Empty when the property holds.
std::string Check(const Case& c) {
  Prefixes& prefixes = Prefixes::Of(c.arithmetic, c.commit);
  State& state = prefixes.state();
  std::vector<Expected> expected;
  std::vector<StepRequest> requests;
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < c.requests; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const auto seed = static_cast<std::uint64_t>(i);
    expected.push_back(DecodeRows(prefixes, seed, c.lengths[index], c.live[index]));
    requests.push_back(
        {prefixes.Fork(seed, c.lengths[index]), c.live[index], c.lengths[index], {}});
    for (int r = 0; r < c.rows; ++r) tokens.push_back(TokenAt(seed, c.lengths[index] + r));
  }
  if (c.absent) {
    requests.push_back({-1, 0, 0, {}});
    tokens.resize(tokens.size() + static_cast<std::size_t>(c.rows), -1);
  }
  const StepOutput output = RunStep(c, prefixes, requests, tokens);
  std::string problem;
  for (int i = 0; i < c.requests; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const int slot = requests[index].slot, accepted = c.accepted[index];
    const std::string who = "request " + std::to_string(i);
    for (int r = 0; r < c.live[index]; ++r) {
      if (ResultOf(output, i * c.rows + r) != expected[index].rows[static_cast<std::size_t>(r)]) {
        problem = who + " row " + std::to_string(r) + " differs from decode";
      }
    }
    if (state.Fingerprint(slot, false) != expected[index].prints[0]) {
      problem = who + ": verify changed committed state";
    }
    state.Commit(slot, accepted);
    const std::uint64_t wanted = expected[index].prints[static_cast<std::size_t>(accepted)];
    if (state.Fingerprint(slot, false) != wanted) problem = who + ": state after commit differs";
    state.Flush(slot);
    if (state.Fingerprint(slot, false) != wanted) problem = who + ": state after flush differs";
    state.Free(slot);
  }
  return problem;
}

// The smallest case that still fails, by one simplification at a time.
Case Shrink(Case failing) {
  for (bool smaller = true; smaller;) {
    smaller = false;
    const auto attempt = [&](const std::function<void(Case&)>& simplify) {
      Case candidate = failing;
      simplify(candidate);
      if (smaller || candidate.Text() == failing.Text() || Check(candidate).empty()) return;
      failing = candidate;
      smaller = true;
    };
    attempt([](Case& c) { c.threads = 1; });
    attempt([](Case& c) { c.order.reset(); });
    attempt([](Case& c) { c.absent = false; });
    attempt([](Case& c) {
      c.requests = 1, c.lengths.resize(1), c.live.resize(1), c.accepted.resize(1);
    });
    attempt([](Case& c) {
      c.rows = std::max(1, c.rows - 1);
      for (int& rows : c.live) rows = std::min(rows, c.rows);
      for (int& a : c.accepted) a = std::min(a, c.rows);
    });
    for (std::size_t i = 0; i < failing.lengths.size(); ++i) {
      attempt([i](Case& c) { c.lengths[i] /= 2; });
      attempt([i](Case& c) { c.accepted[i] = std::max(0, c.accepted[i] - 1); });
    }
  }
  return failing;
}

Case RandomCase(std::uint64_t seed, Arithmetic arithmetic) {
  std::uint32_t counter = 0;
  const auto pick = [&](std::uint32_t below) { return Philox(seed, {counter++})[0] % below; };
  // Page, pool, window, selection (16 tokens) and pool-page borders, and their neighbours.
  constexpr std::int64_t kLengths[] = {0,  1,  2,  3,  5,  7,  12,  15, 16,
                                       17, 30, 57, 62, 63, 64, 250, 254};
  Case c;
  c.arithmetic = arithmetic;
  c.commit = pick(2) == 0 ? CommitMode::kReplay : CommitMode::kScratch;
  c.rows = 1 + static_cast<int>(pick(9));
  c.requests = std::min(1 << pick(3), kMaxRows / c.rows);
  c.absent = (c.requests + 1) * c.rows <= kMaxRows && pick(3) == 0;
  c.threads = 1 + static_cast<int>(pick(3));
  c.order = seed;
  c.lengths.clear(), c.live.clear(), c.accepted.clear();
  for (int i = 0; i < c.requests; ++i) {
    c.lengths.push_back(kLengths[pick(std::size(kLengths))]);
    const bool padded = pick(4) == 0;
    c.live.push_back(padded ? 1 + static_cast<int>(pick(static_cast<std::uint32_t>(c.rows)))
                            : c.rows);
    c.accepted.push_back(static_cast<int>(pick(static_cast<std::uint32_t>(c.live.back()) + 1)));
  }
  return c;
}

void CheckSeeds(Arithmetic arithmetic, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Case c = RandomCase(seed, arithmetic);
    if (Check(c).empty()) continue;
    const Case small = Shrink(c);
    FAIL() << "seed " << seed << ": " << Check(c) << "\n  case " << c.Text() << "\n  shrunk to "
           << small.Text() << "\n  " << Check(small);
  }
}

TEST(Verify, EqualsDecodeBitForBitFast) { CheckSeeds(Arithmetic::kFast, 1, 30); }
TEST(Verify, EqualsDecodeBitForBitTensorCore) { CheckSeeds(Arithmetic::kTensorCore, 1001, 6); }

}  // namespace
}  // namespace assay::engine
