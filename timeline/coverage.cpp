// The audit. Thresholds are decisions of this room, see README.md.
#include "timeline/coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace assay::timeline {
namespace {

constexpr double kAnchorShare = 0.90;   // below: rows are missing
constexpr double kTailShare = 0.05;     // of the window: calls go on, rows do not
constexpr Ns kTailLeast = 10'000'000;   // and at least 10 ms, or short traces all look cut
constexpr double kLostLaunches = 0.02;  // launch calls without a row
constexpr int kBins = 20;

bool Kernel(const GpuRow& row) { return row.category <= static_cast<int>(Category::kComm); }

std::string Percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

}  // namespace

const char* CheckStateName(Check::State state) {
  return state == Check::kOk ? "ok" : state == Check::kSuspect ? "suspect" : "unknown";
}

const char* CoverageName(Coverage coverage) {
  static constexpr const char* kNames[] = {"complete", "truncated", "partial", "unknown"};
  return kNames[static_cast<int>(coverage)];
}

bool ScopeCoverage::complete() const {
  return !devices.empty() && std::all_of(devices.begin(), devices.end(), [](const auto& device) {
    return device.verdict == Coverage::kComplete;
  });
}

std::string ScopeCoverage::Sentence(const Trace& trace) const {
  std::string text;
  for (const DeviceCoverage& device : devices) {
    text += (text.empty() ? "" : "; ") + trace.devices[device.device].label + " " +
            CoverageName(device.verdict);
    if (device.verdict == Coverage::kTruncated) {
      text += fmt::format(" at {:.3f} s", static_cast<double>(device.truncated_at) / 1e9);
    }
    if (device.factor < kAnchorShare) text += fmt::format(" (factor {:.3f})", device.factor);
  }
  return text.empty() ? "no device" : text;
}

std::vector<Anchor> FindAnchors(const Trace& trace, const std::vector<Window>& steps,
                                std::size_t limit) {
  std::vector<Window> sorted = steps;
  std::sort(sorted.begin(), sorted.end(),
            [](const Window& a, const Window& b) { return a.begin < b.begin; });
  const std::size_t devices = trace.devices.size();
  std::map<std::uint32_t, Anchor> by_name;
  for (const GpuRow& row : trace.gpu) {
    if (!Kernel(row)) continue;
    const auto after = std::upper_bound(sorted.begin(), sorted.end(), row.start,
                                        [](Ns t, const Window& w) { return t < w.begin; });
    if (after == sorted.begin()) continue;
    const auto step = static_cast<std::size_t>(after - sorted.begin()) - 1;
    if (row.start >= sorted[step].end) continue;
    Anchor& anchor = by_name[row.name];
    if (anchor.counts.empty()) {
      anchor.name = trace.names[row.name];
      anchor.counts.assign(devices, std::vector<std::int64_t>(sorted.size(), 0));
    }
    ++anchor.counts[trace.DeviceOf(row)][step];
  }
  std::vector<Anchor> anchors;
  for (auto& [name, anchor] : by_name) {
    std::int64_t cells = 0, full = 0;
    for (const auto& device : anchor.counts) {
      for (const std::int64_t count : device) anchor.most = std::max(anchor.most, count);
    }
    for (const auto& device : anchor.counts) {
      for (const std::int64_t count : device) {
        ++cells;
        full += static_cast<double>(count) >= 0.98 * static_cast<double>(anchor.most);
      }
    }
    anchor.steadiness = cells ? static_cast<double>(full) / static_cast<double>(cells) : 0;
    anchors.push_back(std::move(anchor));
  }
  std::sort(anchors.begin(), anchors.end(), [](const Anchor& a, const Anchor& b) {
    if (a.steadiness != b.steadiness) return a.steadiness > b.steadiness;
    return a.most != b.most ? a.most > b.most : a.name < b.name;
  });
  if (anchors.size() > limit) anchors.resize(limit);
  return anchors;
}

double AnchorRatio(const std::vector<Anchor>& anchors, std::size_t device) {
  std::vector<double> ratios;
  for (const Anchor& anchor : anchors) {
    std::int64_t sum = 0;
    for (const std::int64_t count : anchor.counts[device]) sum += count;
    const auto expected = anchor.most * static_cast<std::int64_t>(anchor.counts[device].size());
    if (expected > 0) ratios.push_back(static_cast<double>(sum) / static_cast<double>(expected));
  }
  if (ratios.empty()) return 1;
  std::sort(ratios.begin(), ratios.end());
  return ratios[ratios.size() / 2];
}

namespace {

class Audit {
 public:
  Audit(const Trace& trace, const LaunchIndex& index, const ScopeUse& use)
      : trace_(trace),
        index_(index),
        use_(use),
        map_(use.scope.steps),
        call_map_(CallWindows(trace, use)) {
    steps_ = use.scope.steps;
    std::erase_if(steps_, [](const Window& w) { return w.end <= w.begin; });
    anchors_ = FindAnchors(trace, steps_);
    FindProcesses();
    CountLaunches();
  }

  ScopeCoverage Run() {
    ScopeCoverage coverage;
    for (const DeviceUse& device : use_.devices) coverage.devices.push_back(OfDevice(device));
    return coverage;
  }

 private:
  // By API name: 1 kernel launch, 2 graph launch.
  static std::vector<std::uint8_t> LaunchKinds(const Trace& trace) {
    std::vector<std::uint8_t> kinds(trace.api_names.size());
    for (std::uint32_t k = 0; k < trace.api_names.size(); ++k) {
      kinds[k] = static_cast<std::uint8_t>((IsKernelLaunch(trace.api_names[k]) ? 1 : 0) |
                                           (IsGraphLaunch(trace.api_names[k]) ? 2 : 0));
    }
    return kinds;
  }

  // The whole trace ends with its last GPU row: of a lost tail, only the calls behind it tell. So
  // calls of that scope count wherever they are; other scopes keep their windows.
  static std::vector<Window> CallWindows(const Trace& trace, const ScopeUse& use) {
    std::vector<Window> windows = Merge(use.scope.steps);
    if (windows != Merge(FullScope(trace).steps)) return windows;
    const std::vector<std::uint8_t> kinds = LaunchKinds(trace);
    for (const ApiRow& row : trace.api) {
      if (kinds[row.name] == 0) continue;
      if (windows.empty()) windows.push_back({row.start, row.start + 1});
      windows.front().begin = std::min(windows.front().begin, row.start);
      windows.back().end = std::max(windows.back().end, row.start + 1);
    }
    return windows;
  }

  // Which processes feed a device, when calls and rows happened.
  void FindProcesses() {
    processes_.resize(trace_.devices.size());
    last_gpu_.assign(trace_.devices.size(), INT64_MIN);
    for (const GpuRow& row : trace_.gpu) {
      if (!map_.Overlaps(row.start, row.end)) continue;
      Ns& last = last_gpu_[trace_.DeviceOf(row)];
      last = std::max(last, row.end);
    }
    for (const Stream& stream : trace_.streams) processes_[stream.device].insert(stream.process);
    devices_of_.resize(trace_.processes.size());
    for (std::size_t d = 0; d < processes_.size(); ++d) {
      for (const std::uint32_t process : processes_[d]) devices_of_[process].push_back(d);
    }
    last_launch_.assign(trace_.processes.size(), INT64_MIN);
  }

  struct Bins {
    std::int64_t calls[kBins] = {}, lost[kBins] = {};
    std::int64_t total = 0, total_lost = 0, graphs = 0, graphs_lost = 0;
    Ns first_lost = INT64_MAX;
  };

  void CountLaunches() {
    bins_.resize(trace_.processes.size());
    const std::vector<std::uint8_t> kinds = LaunchKinds(trace_);
    for (std::size_t k = 0; k < trace_.api.size(); ++k) {
      const ApiRow& row = trace_.api[k];
      if (kinds[row.name] == 0 || !call_map_.Contains(row.start)) continue;
      const std::uint32_t process = trace_.ProcessOf(row);
      last_launch_[process] = std::max(last_launch_[process], row.start);
      Bins& bins = bins_[process];
      const auto bin = static_cast<std::size_t>(static_cast<double>(call_map_.Position(row.start)) *
                                                kBins / static_cast<double>(call_map_.total()));
      const std::size_t at = std::min<std::size_t>(bin, kBins - 1);
      const bool lost = !index_.HasRow(k);
      ++bins.calls[at];
      bins.lost[at] += lost;
      ++bins.total;
      bins.total_lost += lost;
      if (kinds[row.name] & 2) {
        ++bins.graphs;
        bins.graphs_lost += lost;
      }
    }
  }

  DeviceCoverage OfDevice(const DeviceUse& device) {
    DeviceCoverage out;
    out.device = device.device;
    out.active = device.active();
    cut_ = INT64_MAX;
    Anchors(device, out);
    Tail(device, out);
    Launches(device, out);
    Diagnostics(device, out);
    Graphs(device, out);
    OddRows(device, out);
    Steps(device, out);
    EndMarker(device, out);
    bool suspect = false, evidence = false;
    for (const Check& check : out.checks) {
      suspect |= check.state == Check::kSuspect && check.id != "rows";
      evidence |= check.state == Check::kOk && check.id != "rows" && check.id != "graphs" &&
                  check.id != "diagnostics";
    }
    if (cut_ != INT64_MAX) {
      out.verdict = Coverage::kTruncated;
      out.truncated_at = cut_;
    } else {
      out.verdict = suspect    ? Coverage::kPartial
                    : evidence ? Coverage::kComplete
                               : Coverage::kUnknown;
    }
    return out;
  }

  static void Say(DeviceCoverage& out, const char* id, Check::State state, std::string text) {
    out.checks.push_back({state, id, std::move(text)});
  }

  void Anchors(const DeviceUse& device, DeviceCoverage& out) {
    const bool comparable = steps_.size() >= 2 || use_.devices.size() >= 2;
    if (anchors_.empty() || !comparable) {
      return Say(out, "anchors", Check::kUnknown,
                 anchors_.empty() ? "no kernel rows to compare"
                                  : "one device and one window: nothing to compare counts with");
    }
    // A rank in graph mode hides its kernels: only its own other steps are comparable then.
    std::vector<Anchor> anchors = anchors_;
    if (device.overlapping[static_cast<int>(Category::kGraph)] > 0) {
      if (steps_.size() < 2) {
        return Say(out, "anchors", Check::kUnknown,
                   "graph launches hide kernels and there is one window only");
      }
      for (Anchor& anchor : anchors) {
        const auto& own = anchor.counts[device.device];
        anchor.most = *std::max_element(own.begin(), own.end());
      }
    }
    const double ratio = AnchorRatio(anchors, device.device);
    // Windows of unequal work vary too. Loss looks different: either most cells are equal and this
    // device is not, or whole steps are (nearly) empty.
    std::size_t hollow = 0;
    for (const Anchor& anchor : anchors) {
      const auto& own = anchor.counts[device.device];
      hollow += 2 * *std::min_element(own.begin(), own.end()) < anchor.most;
    }
    const bool judged = anchors.front().steadiness >= 0.5 || 2 * hollow > anchors.size();
    out.factor = judged ? std::min(1.0, ratio) : 1;
    Say(out, "anchors",
        !judged                ? Check::kUnknown
        : ratio < kAnchorShare ? Check::kSuspect
                               : Check::kOk,
        fmt::format("{} of the expected rows of {} anchor kernels are there{}", Percent(ratio),
                    anchors.size(), judged ? "" : ", but their counts vary from window to window"));
  }

  void Tail(const DeviceUse& device, DeviceCoverage& out) {
    Ns launch = INT64_MIN;
    for (const std::uint32_t process : processes_[device.device]) {
      // Calls of a process that feeds several devices prove nothing about one of them.
      if (devices_of_[process].size() == 1) launch = std::max(launch, last_launch_[process]);
    }
    Ns others = INT64_MIN;
    for (std::size_t d = 0; d < last_gpu_.size(); ++d) {
      if (d != device.device) others = std::max(others, last_gpu_[d]);
    }
    const Ns last = last_gpu_[device.device];
    const Ns limit = std::max<Ns>(
        kTailLeast, static_cast<Ns>(kTailShare * static_cast<double>(call_map_.total())));
    if (last == INT64_MIN) {
      const bool expected = launch != INT64_MIN || others != INT64_MIN;
      return Say(out, "tail", expected ? Check::kSuspect : Check::kUnknown,
                 "no GPU row of this device in the scope");
    }
    const Ns reference = launch != INT64_MIN ? launch : others;
    if (reference == INT64_MIN) {
      return Say(out, "tail", Check::kUnknown, "neither launch calls nor other devices to compare");
    }
    // Time between windows is no silence.
    const Ns silence = call_map_.Position(reference) - call_map_.Position(last);
    const bool cut = silence > limit;
    if (cut) cut_ = std::min(cut_, last);
    Say(out, "tail", cut ? Check::kSuspect : Check::kOk,
        fmt::format("the last GPU row ends {:.3f} ms {} the last {}",
                    std::abs(static_cast<double>(silence)) / 1e6, silence > 0 ? "before" : "after",
                    launch != INT64_MIN ? "launch call" : "row of the other devices"));
  }

  void Launches(const DeviceUse& device, DeviceCoverage& out) {
    Bins sum;
    for (const std::uint32_t process : processes_[device.device]) {
      const Bins& bins = bins_[process];
      for (int k = 0; k < kBins; ++k) {
        sum.calls[k] += bins.calls[k];
        sum.lost[k] += bins.lost[k];
      }
      sum.total += bins.total;
      sum.total_lost += bins.total_lost;
      sum.graphs += bins.graphs;
      sum.graphs_lost += bins.graphs_lost;
    }
    if (sum.total == 0) {
      return Say(out, "launches", Check::kUnknown, "no launch calls were recorded");
    }
    const double lost = static_cast<double>(sum.total_lost) / static_cast<double>(sum.total);
    // A rising share at the end is a lost tail: every bin from some point on is mostly lost.
    int first_lost = kBins;
    while (first_lost > 0 && 2 * sum.lost[first_lost - 1] >= sum.calls[first_lost - 1])
      --first_lost;
    while (first_lost < kBins && sum.calls[first_lost] == 0) ++first_lost;
    // Rows whose own calls are missing can stand in for calls whose rows are.
    const std::int64_t orphans = device.launch.without_call;
    const bool graph_rows_apart = sum.graphs_lost > 0 && orphans >= sum.graphs_lost;
    const double unexplained =
        graph_rows_apart
            ? static_cast<double>(sum.total_lost - sum.graphs_lost) / static_cast<double>(sum.total)
            : lost;
    const bool graph_loss =
        sum.graphs_lost > 0 && !graph_rows_apart && 20 * sum.graphs_lost > sum.graphs;
    const bool tail =
        first_lost < kBins && unexplained > kLostLaunches && last_gpu_[device.device] != INT64_MIN;
    if (tail) cut_ = std::min(cut_, last_gpu_[device.device]);
    Say(out, "launches", unexplained > kLostLaunches || graph_loss ? Check::kSuspect : Check::kOk,
        fmt::format(
            "{} of {} launch calls have no GPU row{}{}; {} kernels have no call", sum.total_lost,
            sum.total,
            sum.graphs_lost ? fmt::format(" ({} of them graph launches)", sum.graphs_lost) : "",
            tail ? fmt::format(", mostly after {} of the scope",
                               Percent(static_cast<double>(first_lost) / kBins))
                 : "",
            orphans));
  }

  bool Mine(const DeviceUse& device, std::int64_t pid) const {
    for (const std::uint32_t process : processes_[device.device]) {
      if (trace_.processes[process].pid == pid) return true;
    }
    return false;
  }

  void Diagnostics(const DeviceUse& device, DeviceCoverage& out) {
    std::int64_t notes = 0;
    std::string worst;
    bool loss = false;
    for (const Diagnostic& row : trace_.diagnostics) {
      if (row.severity < 2 || (row.pid != 0 && !Mine(device, row.pid))) continue;
      ++notes;
      const auto says = [&](const char* part) { return row.text.find(part) != row.text.npos; };
      const bool about_gpu = says("CUDA") || says("CUPTI") || says("GPU");
      const bool hint = about_gpu && (says("might have been") || says("ropped") || says("lost") ||
                                      says("incomplete"));
      if (hint && !loss) worst = row.text;
      loss |= hint;
      if (worst.empty()) worst = row.text;
    }
    worst = worst.substr(0, worst.find('\n')).substr(0, 120);
    if (notes == 0) {
      return Say(
          out, "diagnostics", trace_.diagnostics.empty() ? Check::kUnknown : Check::kOk,
          trace_.diagnostics.empty() ? "the trace holds no diagnostics" : "no warning or error");
    }
    Say(out, "diagnostics", loss ? Check::kSuspect : Check::kOk,
        fmt::format("{} warnings or errors, e.g. \"{}\"", notes, worst));
  }

  void Graphs(const DeviceUse& device, DeviceCoverage& out) {
    const std::int64_t rows = device.overlapping[static_cast<int>(Category::kGraph)];
    std::int64_t launches = 0;
    for (const std::uint32_t process : processes_[device.device]) {
      launches += bins_[process].graphs;
    }
    const bool node_rows =
        std::any_of(trace_.configs.begin(), trace_.configs.end(),
                    [](const KernelConfig& config) { return config.graph_node; });
    if (launches == 0 && rows == 0) {
      return Say(out, "graphs", Check::kOk, "no graph launches");
    }
    const bool blind = trace_.graph_mode == "Graph" && launches > 0 && rows == 0 && !node_rows;
    Say(out, "graphs", blind || trace_.graphs_untimed > 0 ? Check::kSuspect : Check::kOk,
        fmt::format(
            "{} graph launches, {} graph rows{}{}{}", launches, rows,
            rows ? " (kernels inside are hidden)" : "",
            trace_.graphs_untimed ? fmt::format(", {} without times", trace_.graphs_untimed) : "",
            blind ? ": graph-level tracing without rows undercounts busy time" : ""));
  }

  void OddRows(const DeviceUse& device, DeviceCoverage& out) {
    const Ns busy = device.busy();
    const bool giant =
        busy > 0 && 2 * device.kernel_length.max > busy && device.kernel_length.count > 1;
    const bool odd = giant || trace_.reversed_rows > 0 || trace_.outside_session > 0;
    Say(out, "rows", odd ? Check::kSuspect : Check::kOk,
        fmt::format("{} kernels without length, {} rows with end before start in the file, {} "
                    "outside the recorded session{}",
                    device.zero_rows, trace_.reversed_rows, trace_.outside_session,
                    giant ? fmt::format(", one kernel of {:.3f} ms is over half of the busy time",
                                        static_cast<double>(device.kernel_length.max) / 1e6)
                          : ""));
  }

  void Steps(const DeviceUse& device, DeviceCoverage& out) {
    if (steps_.size() < 2) {
      return Say(out, "steps", Check::kUnknown, "the scope has one window only");
    }
    std::int64_t empty = 0;
    std::size_t first_empty = steps_.size();
    std::vector<bool> present(steps_.size(), false);
    for (const GpuRow& row : trace_.gpu) {
      if (trace_.DeviceOf(row) != device.device) continue;
      for (std::size_t k = 0; k < steps_.size(); ++k) {
        if (row.start < steps_[k].end && row.end > steps_[k].begin) present[k] = true;
      }
    }
    for (std::size_t k = 0; k < present.size(); ++k) {
      if (!present[k]) {
        ++empty;
        first_empty = std::min(first_empty, k);
      }
    }
    Say(out, "steps", empty ? Check::kSuspect : Check::kOk,
        empty ? fmt::format("{} of {} windows hold no GPU row, the first is number {}", empty,
                            steps_.size(), first_empty + 1)
              : fmt::format("all {} windows hold GPU rows", steps_.size()));
  }

  void EndMarker(const DeviceUse& device, DeviceCoverage& out) {
    for (const Segment& segment : trace_.segments) {
      if (!Mine(device, segment.pid)) continue;
      const bool good = segment.flushed && segment.dropped == 0;
      if (!segment.flushed) cut_ = std::min(cut_, std::max<Ns>(0, segment.last_gpu));
      return Say(out, "end", good ? Check::kOk : Check::kSuspect,
                 fmt::format("the recorder {} at its end and dropped {} records",
                             segment.flushed ? "flushed" : "did not flush", segment.dropped));
    }
    Say(out, "end", Check::kUnknown, "no end marker (only our own recorder writes one)");
  }

  const Trace& trace_;
  const LaunchIndex& index_;
  const ScopeUse& use_;
  WindowMap map_, call_map_;
  std::vector<Window> steps_;
  std::vector<Anchor> anchors_;
  std::vector<std::set<std::uint32_t>> processes_;
  std::vector<std::vector<std::size_t>> devices_of_;
  std::vector<Ns> last_gpu_, last_launch_;
  std::vector<Bins> bins_;
  Ns cut_ = INT64_MAX;
};

}  // namespace

ScopeCoverage AuditCoverage(const Trace& trace, const LaunchIndex& index, const ScopeUse& use) {
  return Audit(trace, index, use).Run();
}

}  // namespace assay::timeline
