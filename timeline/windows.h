// Scopes: named lists of half-open windows [begin, end) in trace ns, and where they come from.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "timeline/trace.h"

namespace assay::timeline {

struct Window {
  Ns begin = 0, end = 0;
  bool operator==(const Window&) const = default;
};

// Sorted, non-overlapping, touching ones joined; empty windows dropped.
std::vector<Window> Merge(std::vector<Window> windows);

// Puts the windows of a scope end to end. Position is monotone, so clipping a row to the windows
// is taking the positions of its ends, and unions and overlaps survive the mapping.
class WindowMap {
 public:
  explicit WindowMap(std::vector<Window> windows);
  const std::vector<Window>& windows() const { return windows_; }
  Ns total() const { return bases_.back(); }
  Ns Position(Ns time) const;    // ns of window in front of `time`
  Ns TimeAt(Ns position) const;  // inverse; at a border the later window
  // A row with length overlaps when it shares time with a window; one without, when it starts in
  // one.
  bool Overlaps(Ns start, Ns end) const;
  bool Contains(Ns time) const;
  // Borders between windows, as positions, without 0 and total.
  std::vector<Ns> InnerBorders() const;

 private:
  std::vector<Window> windows_;
  std::vector<Ns> bases_;  // windows_.size() + 1 partial sums
};

struct Scope {
  std::string name;
  std::vector<Window> steps;  // as declared: repeats of one piece of work
  std::string note;
};

// First to last GPU row of all devices. Empty windows when the trace has no GPU row.
Scope FullScope(const Trace& trace);
// "START:END" in trace ns.
Window ParseWindow(std::string_view text);
// "START:END" in seconds of perf_counter (clock "host") or since 1970 (clock "epoch"), mapped
// through the first file's session clock. `note` tells when that mapping is assumed.
Window ParseClockWindow(const Trace& trace, std::string_view clock, std::string_view text,
                        std::string& note);
// "NAME" (every range of that name) or "NAME#k" (the k-th by start, from 1).
Scope NvtxScope(const Trace& trace, std::string_view text);
// JSONL lines {"name": ..., "t": ..., "clock": "host"|"epoch"|"host_ns"|"trace_ns"}: the first
// line of a name opens a window, the second closes it, and so on. Default clock: host.
std::vector<Scope> LogScopes(const Trace& trace, std::string_view jsonl, const std::string& path);

}  // namespace assay::timeline
