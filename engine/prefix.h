// Prefix reuse: what requests held at multiples of an interval, kept for later prompts that begin
// with the same tokens. Pages are shared; the recurrent state, 143 MB in the real model, is a copy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/state.h"

namespace assay::engine {

struct PrefixOptions {
  std::int64_t interval = 0;  // tokens, a multiple of 64; 0 = no snapshots
  int snapshots = 4;          // at a time; each takes a slot of the state
};

struct PrefixCounters {
  std::int64_t taken = 0, restored = 0, evicted = 0;
  std::int64_t reused_tokens = 0;  // that no step had to compute again
  std::string Text() const;        // one line
};

class PrefixCache {
 public:
  // Throws kInput for an interval that is no positive multiple of a page, or no longer than a step
  // of `rows`: then a step could cross two boundaries.
  PrefixCache(State& state, const PrefixOptions& options, int rows);

  // The boundary in (length, length + accepted], or 0.
  std::int64_t Boundary(std::int64_t length, std::int64_t accepted) const;

  // Before `slot` commits: its state after the first `rows` rows of the step that ran last, whose
  // prefix are `tokens`. Evicts when there are too many. Returns a ticket for Publish, or -1 when
  // the prefix is known or the state has no slot left. Nobody finds the snapshot until then.
  std::int64_t Begin(int slot, int rows, std::vector<std::int32_t> tokens);
  // When every byte below the boundary is written, those of the MTP layer included. `hidden` are
  // the final hidden states of the last kPoolTokens positions (for MTP rows that run again; may be
  // empty). Does nothing when the snapshot was evicted meanwhile.
  void Publish(std::int64_t ticket, std::vector<bf16> hidden);

  // The longest published prefix that `prompt` begins with and goes beyond; -1 = none.
  int Find(const std::vector<std::int32_t>& prompt) const;
  // A new slot of the state that continues the snapshot. Throws kInternal when it was not
  // published, kInput when the state has no slot left.
  int Restore(int snapshot);
  const std::vector<bf16>& hidden(int snapshot) const { return at(snapshot).hidden; }

  // Frees the snapshot that was unused longest, with its pages; false when there is none.
  bool Evict();
  const PrefixCounters& counters() const { return counters_; }

 private:
  struct Snapshot {
    int slot = -1;  // -1 = free entry
    bool valid = false;
    std::int64_t ticket = 0, last_use = 0;
    std::vector<std::int32_t> tokens;
    std::vector<bf16> hidden;
  };
  const Snapshot& at(int snapshot) const { return snapshots_[static_cast<std::size_t>(snapshot)]; }
  void Drop(Snapshot& snapshot);

  State& state_;
  PrefixOptions options_;
  std::vector<Snapshot> snapshots_;
  std::int64_t clock_ = 0;
  PrefixCounters counters_;
};

}  // namespace assay::engine
