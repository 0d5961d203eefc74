#include "engine/prefix.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace assay::engine {

std::string PrefixCounters::Text() const {
  std::ostringstream text;
  text << "prefixes: " << taken << " snapshots taken, " << evicted << " evicted, " << restored
       << " restored, " << reused_tokens << " tokens reused\n";
  return text.str();
}

PrefixCache::PrefixCache(State& state, const PrefixOptions& options, int rows)
    : state_(state), options_(options) {
  if (options.interval <= 0 || options.interval % kPageSlots != 0 || options.interval <= rows) {
    BadInput("snapshots every " + std::to_string(options.interval) + " tokens: a multiple of " +
             std::to_string(kPageSlots) + " above the " + std::to_string(rows) +
             " rows of a step is possible");
  }
  if (options.snapshots < 1) {
    BadInput("room for " + std::to_string(options.snapshots) + " snapshots: at least 1 is needed");
  }
  snapshots_.resize(static_cast<std::size_t>(options.snapshots));
}

std::int64_t PrefixCache::Boundary(std::int64_t length, std::int64_t accepted) const {
  const std::int64_t last = (length + accepted) / options_.interval;
  return last > length / options_.interval ? last * options_.interval : 0;
}

std::int64_t PrefixCache::Begin(int slot, int rows, std::vector<std::int32_t> tokens) {
  const auto find = [&](const auto& is_it) {
    return std::find_if(snapshots_.begin(), snapshots_.end(), is_it);
  };
  ++clock_;
  const auto known = find([&](const Snapshot& snapshot) { return snapshot.tokens == tokens; });
  if (known != snapshots_.end()) {
    known->last_use = clock_;
    return -1;
  }
  const auto is_free = [](const Snapshot& snapshot) { return snapshot.slot < 0; };
  if (find(is_free) == snapshots_.end() || !state_.HasSlot()) Evict();
  if (!state_.HasSlot()) return -1;
  *find(is_free) = {state_.Fork(slot, rows), false, clock_, clock_, std::move(tokens), {}};
  return clock_;
}

void PrefixCache::Publish(std::int64_t ticket, std::vector<bf16> hidden) {
  for (Snapshot& snapshot : snapshots_) {
    if (snapshot.slot < 0 || snapshot.ticket != ticket) continue;
    snapshot.hidden = std::move(hidden);
    snapshot.valid = true;
    ++counters_.taken;
  }
}

int PrefixCache::Find(const std::vector<std::int32_t>& prompt) const {
  int best = -1;
  for (std::size_t i = 0; i < snapshots_.size(); ++i) {
    const std::vector<std::int32_t>& tokens = snapshots_[i].tokens;
    if (!snapshots_[i].valid || tokens.size() >= prompt.size()) continue;
    if (best >= 0 && tokens.size() <= at(best).tokens.size()) continue;
    if (std::equal(tokens.begin(), tokens.end(), prompt.begin())) best = static_cast<int>(i);
  }
  return best;
}

int PrefixCache::Restore(int snapshot) {
  Snapshot& restored = snapshots_[static_cast<std::size_t>(snapshot)];
  if (!restored.valid) {
    throw Error(Fault::kInternal, "snapshot " + std::to_string(snapshot) +
                                      " was not published: its bytes are not there");
  }
  const int slot = state_.Fork(restored.slot);
  restored.last_use = ++clock_;
  ++counters_.restored;
  counters_.reused_tokens += static_cast<std::int64_t>(restored.tokens.size());
  return slot;
}

void PrefixCache::Drop(Snapshot& snapshot) {
  state_.Free(snapshot.slot);
  snapshot = Snapshot{};
}

bool PrefixCache::Evict() {
  Snapshot* oldest = nullptr;
  for (Snapshot& snapshot : snapshots_) {
    if (snapshot.slot < 0) continue;
    if (oldest == nullptr || snapshot.last_use < oldest->last_use) oldest = &snapshot;
  }
  if (oldest == nullptr) return false;
  Drop(*oldest);
  ++counters_.evicted;
  return true;
}

}  // namespace assay::engine
