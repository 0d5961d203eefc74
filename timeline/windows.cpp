// Window lists and their sources.
#include "timeline/windows.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "timeline/json_cursor.h"

namespace assay::timeline {

std::vector<Window> Merge(std::vector<Window> windows) {
  std::erase_if(windows, [](const Window& w) { return w.end <= w.begin; });
  std::sort(windows.begin(), windows.end(),
            [](const Window& a, const Window& b) { return a.begin < b.begin; });
  std::vector<Window> merged;
  for (const Window& window : windows) {
    if (!merged.empty() && window.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, window.end);
    } else {
      merged.push_back(window);
    }
  }
  return merged;
}

WindowMap::WindowMap(std::vector<Window> windows) : windows_(Merge(std::move(windows))) {
  bases_.push_back(0);
  for (const Window& window : windows_) bases_.push_back(bases_.back() + window.end - window.begin);
}

Ns WindowMap::Position(Ns time) const {
  if (windows_.empty() || time <= windows_.front().begin) return 0;
  if (windows_.size() == 1) return std::min(time, windows_[0].end) - windows_[0].begin;
  const auto after = std::upper_bound(windows_.begin(), windows_.end(), time,
                                      [](Ns t, const Window& w) { return t < w.begin; });
  const auto k = static_cast<std::size_t>(after - windows_.begin()) - 1;
  return bases_[k] + std::min(time, windows_[k].end) - windows_[k].begin;
}

Ns WindowMap::TimeAt(Ns position) const {
  if (windows_.empty()) return 0;
  const auto after = std::upper_bound(bases_.begin(), bases_.end() - 1, position);
  const auto k = static_cast<std::size_t>(after - bases_.begin()) - 1;
  return windows_[k].begin + position - bases_[k];
}

bool WindowMap::Overlaps(Ns start, Ns end) const {
  return end > start ? Position(end) > Position(start) : Contains(start);
}

bool WindowMap::Contains(Ns time) const {
  const auto after = std::upper_bound(windows_.begin(), windows_.end(), time,
                                      [](Ns t, const Window& w) { return t < w.begin; });
  return after != windows_.begin() && time < std::prev(after)->end;
}

std::vector<Ns> WindowMap::InnerBorders() const {
  if (bases_.size() <= 2) return {};
  return {bases_.begin() + 1, bases_.end() - 1};
}

Scope FullScope(const Trace& trace) {
  Scope scope{"full", {}, "first to last GPU row over all devices"};
  if (trace.gpu.empty()) return scope;
  Window window{trace.gpu.front().start, trace.gpu.front().end};
  for (const GpuRow& row : trace.gpu) window.end = std::max(window.end, row.end);
  scope.steps.push_back(window);
  return scope;
}

namespace {

std::pair<std::string_view, std::string_view> Halves(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == text.npos) {
    BadInput("window '" + std::string(text) + "' is not START:END");
  }
  return {text.substr(0, colon), text.substr(colon + 1)};
}

// Decimal seconds as text to ns, exactly: thousandths three times.
Ns SecondsToNs(std::string_view text, std::string_view whole) {
  const std::size_t dot = text.find('.');
  std::string digits(text.substr(0, dot));
  std::string fraction = dot == text.npos ? "" : std::string(text.substr(dot + 1));
  const bool round_up = fraction.size() > 9 && fraction[9] >= '5';
  fraction.resize(9, '0');
  const bool numeric =
      !fraction.empty() &&
      std::all_of(fraction.begin(), fraction.end(), [](char c) { return c >= '0' && c <= '9'; });
  const auto value = numeric ? Integer(digits + fraction) : std::nullopt;
  if (!value || digits.empty() || digits.find_first_not_of("-0123456789") != digits.npos) {
    BadInput("window '" + std::string(whole) + "': '" + std::string(text) +
             "' is not a number of seconds");
  }
  return *value + (round_up ? (digits[0] == '-' ? -1 : 1) : 0);
}

Ns MapClock(const Trace& trace, std::string_view clock, Ns time, std::string& note) {
  const SourceInfo& source = trace.sources.front();
  if (clock == "trace_ns") return time;
  if (clock == "epoch") {
    if (!source.utc_epoch) BadInput(source.path + " records no wall-clock time for a window");
    return time - *source.utc_epoch;
  }
  if (clock != "host" && clock != "host_ns") {
    BadInput("clock '" + std::string(clock) + "' is none of host, host_ns, epoch, trace_ns");
  }
  if (!source.system_clock) {
    BadInput(source.path +
             " records no session clock (systemClockNs), so a host-clock window "
             "cannot be mapped; give trace ns or an NVTX range");
  }
  if (source.system_clock_assumed) {
    note = "host clock mapped through ANALYSIS_DETAILS.startTime (assumed equal to systemClockNs)";
  }
  return time - *source.system_clock;
}

Window Checked(Window window, std::string_view text) {
  if (window.end < window.begin) {
    BadInput("window '" + std::string(text) + "' ends before it starts");
  }
  return window;
}

}  // namespace

Window ParseWindow(std::string_view text) {
  const auto [first, second] = Halves(text);
  const auto begin = Integer(first), end = Integer(second);
  if (!begin || !end) {
    BadInput("window '" + std::string(text) + "' is not START:END in whole trace nanoseconds");
  }
  return Checked({*begin, *end}, text);
}

Window ParseClockWindow(const Trace& trace, std::string_view clock, std::string_view text,
                        std::string& note) {
  const auto [first, second] = Halves(text);
  return Checked({MapClock(trace, clock, SecondsToNs(first, text), note),
                  MapClock(trace, clock, SecondsToNs(second, text), note)},
                 text);
}

Scope NvtxScope(const Trace& trace, std::string_view text) {
  std::string name(text);
  std::int64_t wanted = 0;
  if (const std::size_t hash = text.rfind('#'); hash != text.npos) {
    if (const auto k = Integer(text.substr(hash + 1)); k && *k > 0) {
      wanted = *k;
      name = std::string(text.substr(0, hash));
    }
  }
  Scope scope{std::string(text), {}, "NVTX range"};
  int unclosed = 0;
  for (const RangeRow& row : trace.ranges) {
    if (row.mark || trace.names[row.name] != name) continue;
    if (row.end == kOpenEnd) {
      ++unclosed;
    } else {
      scope.steps.push_back({row.start, row.end});
    }
  }
  std::sort(scope.steps.begin(), scope.steps.end(),
            [](const Window& a, const Window& b) { return a.begin < b.begin; });
  if (scope.steps.empty()) {
    BadInput("no closed range is called '" + name + "' in " + trace.sources.front().path +
             (unclosed ? " (" + std::to_string(unclosed) + " were never closed)" : ""));
  }
  if (wanted > static_cast<std::int64_t>(scope.steps.size())) {
    BadInput("range '" + name + "' occurs " + std::to_string(scope.steps.size()) +
             " times, so there is no #" + std::to_string(wanted));
  }
  if (wanted > 0) scope.steps = {scope.steps[static_cast<std::size_t>(wanted) - 1]};
  if (unclosed) scope.note += "; " + std::to_string(unclosed) + " unclosed ranges left out";
  return scope;
}

std::vector<Scope> LogScopes(const Trace& trace, std::string_view jsonl, const std::string& path) {
  std::vector<Scope> scopes;
  std::map<std::string, Ns> open;
  int line_number = 0;
  while (!jsonl.empty()) {
    const std::size_t newline = jsonl.find('\n');
    const std::string line(jsonl.substr(0, newline));
    jsonl = newline == jsonl.npos ? std::string_view() : jsonl.substr(newline + 1);
    ++line_number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    // The number must be taken from its text: perf_counter seconds need 16 digits.
    JsonCursor cursor(line);
    std::string name, clock = "host";
    std::string_view time;
    const bool whole = ForEachMember(cursor, [&](std::string_view key) {
      if (key == "name" && cursor.Peek('"')) return cursor.String(name);
      if (key == "clock" && cursor.Peek('"')) return cursor.String(clock);
      if (key == "t") return cursor.Scalar(time);
      return cursor.Skip();
    });
    const std::string where = path + " line " + std::to_string(line_number);
    if (!whole || name.empty() || time.empty()) {
      BadInput(where + " is not {\"name\": ..., \"t\": ...}");
    }
    std::string note;
    const bool nanoseconds = clock == "host_ns" || clock == "trace_ns";
    const auto number = nanoseconds ? Integer(time) : std::optional<Ns>(SecondsToNs(time, where));
    if (!number) BadInput(where + ": t is not a whole number of ns");
    const Ns at = MapClock(trace, clock, *number, note);
    const auto [it, opened] = open.try_emplace(name, at);
    if (opened) continue;
    if (at < it->second) BadInput(where + ": window '" + name + "' ends before it starts");
    auto scope =
        std::find_if(scopes.begin(), scopes.end(), [&](const Scope& s) { return s.name == name; });
    if (scope == scopes.end()) {
      scopes.push_back({name, {}, note.empty() ? "windows from a log" : note});
      scope = scopes.end() - 1;
    }
    scope->steps.push_back({it->second, at});
    open.erase(it);
  }
  if (!open.empty()) {
    BadInput(path + ": window '" + open.begin()->first + "' is opened but never closed");
  }
  if (scopes.empty()) BadInput(path + " holds no windows");
  return scopes;
}

}  // namespace assay::timeline
