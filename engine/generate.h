// Speculative decoding with the model's own MTP layer: draft, verify, accept, commit, extend. With
// no drafts the same loop is plain decoding.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/accept.h"
#include "engine/dispatch.h"
#include "engine/prefix.h"

namespace assay::engine {

struct GenerateOptions {
  int drafts = 0;  // a chain of this many per cycle; verify has one row more
  AcceptRule rule = AcceptRule::kGreedy;
  SamplingOptions sampling = {};
  bool sample_drafts = false;  // kRejection: drafts are drawn from the MTP layer's distribution
  std::optional<bool> share_index = {};            // default: what the model says
  std::optional<SimulatedLengths> simulated = {};  // speed runs: accepted lengths are given
  std::int64_t max_new = 16;                       // tokens per request
  PrefixOptions prefix = {};                       // reuse of what earlier requests computed
};

enum class Finish : std::uint8_t { kNo, kCount, kLength };  // max_new reached; positions exhausted

struct Generated {
  std::vector<std::int32_t> tokens;  // emitted so far, at most max_new
  std::vector<int> lengths;          // emitted per cycle
  Finish finish = Finish::kNo;
};

// Where the time of all cycles went, in seconds.
struct CycleTimes {
  double draft = 0, verify = 0, commit = 0, extend = 0;
  double total() const { return draft + verify + commit + extend; }
};

// Lets tests plant drafts: (request, tokens of the context and emitted so far) -> chain, or nothing
// for the model's own.
using DraftSource =
    std::function<std::vector<std::int32_t>(int request, const std::vector<std::int32_t>& tokens)>;

class Generator {
 public:
  // Throws kInput for options that cannot work: drafts without an MTP layer, more rows than a step
  // or the state has, a rule that contradicts the temperature.
  Generator(const Model& model, State& state, Dispatcher& dispatcher,
            const GenerateOptions& options);

  // A request with this prompt; its randomness is keyed by `seed`. Runs the prompt, from the end of
  // the longest known prefix on. Throws kInput
  // (nothing changed) for an empty prompt, tokens outside the vocabulary, no room.
  int Add(const std::vector<std::int32_t>& prompt, std::uint64_t seed);
  // A request that continues a copy of another's context (prefix reuse).
  int Fork(int request, std::uint64_t seed);
  // One cycle of all unfinished requests; false when there are none.
  bool Cycle();
  void Remove(int request);

  const Generated& result(int request) const { return at(request).generated; }
  int slot(int request) const { return at(request).slot; }
  int requests() const { return static_cast<int>(requests_.size()); }
  std::int64_t cycles() const { return cycles_; }
  const CycleTimes& times() const { return times_; }
  // Nothing when snapshots are off.
  const PrefixCounters* prefixes() const { return prefixes_ ? &prefixes_->counters() : nullptr; }
  void set_draft_source(DraftSource source) { draft_source_ = std::move(source); }

 private:
  struct Request {
    int slot = -1;
    std::uint64_t seed = 0;
    std::vector<std::int32_t> tokens;  // prompt and emitted; the last one is in no cache yet
    std::vector<float> draft_logits;   // of the last MTP row
    std::vector<bf16> draft_hidden;
    SeededSelection selection;
    std::vector<bf16> recent_hidden;  // of the last positions, kPoolTokens at most (prefixes)
    Generated generated;
  };
  // A snapshot that was begun before a commit, to be published when its MTP rows are written.
  struct Pending {
    std::int64_t ticket = -1;  // none
    std::vector<bf16> hidden;
  };
  // One request's part of a cycle.
  struct Turn {
    int request = 0;
    std::int64_t length = 0;  // committed tokens
    int rows = 0;             // live verify rows
    std::vector<std::int32_t> drafts, emitted;
    std::vector<Distribution> draft_distributions;
    Pending snapshot;
  };

  const Request& at(int request) const { return requests_[static_cast<std::size_t>(request)]; }
  Request& at(int request) { return requests_[static_cast<std::size_t>(request)]; }
  int rows() const { return options_.drafts + 1; }
  void MakeSlot();
  void Reserve(const Request& request, std::int64_t rows,
               std::optional<std::int64_t> from = std::nullopt);
  void RepeatMtpRows(Request& request, const std::vector<bf16>& hidden);
  void Prefill(Request& request);
  Pending BeginSnapshot(Request& request, int accepted, const bf16* hidden,
                        const std::vector<std::int32_t>& emitted);
  void PublishSnapshot(Pending& pending);
  void RunGroup(const std::vector<int>& group);
  void Draft(std::vector<Turn>& turns);
  void ChainRow(std::vector<Turn>& turns, int step);
  void TakeDraft(Turn& turn);
  StepOutput Verify(const std::vector<Turn>& turns);
  void AcceptRows(const StepOutput& verified, std::vector<Turn>& turns);
  void Extend(const std::vector<Turn>& turns, const std::vector<bf16>& hidden);
  void KeepDraftSeed(Request& request, const StepOutput& output, int row);
  void Emit(Request& request, const std::vector<std::int32_t>& tokens);

  const Model& model_;
  State& state_;
  Dispatcher& dispatcher_;
  GenerateOptions options_;
  DraftSource draft_source_;
  std::optional<PrefixCache> prefixes_;
  std::vector<Request> requests_;
  std::int64_t cycles_ = 0;
  CycleTimes times_;
};

// Mean emitted tokens per cycle, over cycles and over requests; P(emitted > j) for j = 0, 1, ..
struct AcceptStats {
  double mean_over_cycles = 0, mean_over_requests = 0;
  std::vector<std::int64_t> histogram;  // [emitted - 1]
};
AcceptStats StatsOf(const std::vector<const Generated*>& results, int drafts);

}  // namespace assay::engine
