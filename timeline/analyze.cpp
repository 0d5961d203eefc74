// One pass over the GPU rows for the devices, one over the API rows for the host.
#include "timeline/analyze.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "timeline/sweep.h"

namespace assay::timeline {
namespace {

constexpr unsigned kKernels =
    (1u << static_cast<int>(Category::kCompute)) | (1u << static_cast<int>(Category::kComm));

bool IsKernel(const GpuRow& row) { return (1u << row.category) & kKernels; }

// The state of one device while its rows go by.
struct DevicePass {
  MaskSweep sweep;
  DeviceUse use;
  std::vector<Ns> kernel_lengths, queue_delays;
  Ns covered = 0;              // position until which some row was active
  std::int64_t last_row = -1;  // the row that reaches `covered`
  bool seen = false;
};

struct StreamPass {
  std::int64_t rows = 0;
  Ns busy = 0, until = 0;       // union in window positions
  Ns kernel_until = INT64_MIN;  // running maximum end of its kernels, trace time
};

class DevicesPass {
 public:
  DevicesPass(const Trace& trace, const LaunchIndex& index, const WindowMap& map,
              const AnalyzeOptions& options)
      : trace_(trace),
        index_(index),
        map_(map),
        options_(options),
        borders_(map.InnerBorders()),
        devices_(trace.devices.size()),
        streams_(trace.streams.size()),
        charged_(trace.api.size(), 0) {
    for (std::size_t k = 0; k < devices_.size(); ++k) {
      devices_[k].use.device = static_cast<std::uint32_t>(k);
      devices_[k].use.window = map.total();
    }
  }

  std::vector<DeviceUse> Run() {
    for (std::size_t k = 0; k < trace_.gpu.size(); ++k) Row(k);
    std::vector<DeviceUse> uses;
    for (std::size_t k = 0; k < devices_.size(); ++k) uses.push_back(Finish(devices_[k], k));
    DescribeGaps(uses);
    return uses;
  }

 private:
  void Row(std::size_t k) {
    const GpuRow& row = trace_.gpu[k];
    StreamPass& stream = streams_[row.stream];
    const bool kernel = IsKernel(row);
    const bool late = kernel && row.start < stream.kernel_until;
    const Ns free_at = stream.kernel_until;
    if (kernel) stream.kernel_until = std::max(stream.kernel_until, row.end);
    if (!map_.Overlaps(row.start, row.end)) return;
    DevicePass& device = devices_[trace_.DeviceOf(row)];
    DeviceUse& use = device.use;
    const Ns begin = map_.Position(row.start);
    const Ns end = std::max(begin, map_.Position(row.end));
    const int c = static_cast<int>(row.category);
    ++use.overlapping[c];
    use.starting[c] += map_.Contains(row.start);
    use.clipped[c] += end - begin;
    use.full[c] += std::max<Ns>(0, row.end - row.start);
    if (!device.seen) {
      device.seen = true;
      use.first = std::max(row.start, map_.TimeAt(0));
    }
    use.last = std::max(use.last, end);
    ++stream.rows;
    stream.busy += std::max<Ns>(0, end - std::max(begin, stream.until));
    stream.until = std::max(stream.until, end);
    if (kernel) {
      use.zero_rows += row.end <= row.start;
      device.kernel_lengths.push_back(std::max<Ns>(0, row.end - row.start));
      if (late) {
        ++use.same_stream_overlaps;
        use.same_stream_overlap_ns += std::max<Ns>(0, std::min(row.end, free_at) - row.start);
      }
      ++use.launch.kernels;
    }
    Launch(k, row, kernel, device);
    if (end <= begin) return;
    device.sweep.Add(static_cast<Category>(row.category), begin, end);
    if (begin > device.covered)
      AddGaps(device, device.covered, begin, static_cast<std::int64_t>(k));
    if (end > device.covered) {
      device.covered = end;
      device.last_row = static_cast<std::int64_t>(k);
    }
  }

  void Launch(std::size_t k, const GpuRow& row, bool kernel, DevicePass& device) {
    if (!kernel) return;
    const std::uint32_t call = index_.CallOf(k);
    if (call == LaunchIndex::kNone) {
      ++device.use.launch.without_call;
      return;
    }
    if (charged_[call]) return;  // a graph launch is charged to its first kernel only
    charged_[call] = 1;
    const Ns delay = row.start - trace_.api[call].end;
    device.queue_delays.push_back(delay);
    device.use.launch.negative += delay < 0;
  }

  // A gap is cut at the borders between windows: time outside the scope is no gap.
  void AddGaps(DevicePass& device, Ns begin, Ns end, std::int64_t after) {
    std::int64_t before = device.last_row;
    for (auto border = std::upper_bound(borders_.begin(), borders_.end(), begin);
         border != borders_.end() && *border < end; ++border) {
      AddGap(device, begin, *border, before, -1);
      begin = *border;
      before = -1;
    }
    AddGap(device, begin, end, before, after);
  }

  void AddGap(DevicePass& device, Ns begin, Ns end, std::int64_t before, std::int64_t after) {
    if (end <= begin) return;
    Gap gap;
    gap.begin = map_.TimeAt(begin);
    gap.end = gap.begin + (end - begin);
    gap.before = before;
    gap.after = after;
    if (after >= 0) {
      const std::uint32_t call = index_.CallOf(static_cast<std::size_t>(after));
      gap.waited_for_launch = call != LaunchIndex::kNone && trace_.api[call].end > gap.begin;
      if (gap.waited_for_launch) device.use.launch.bound_ns += end - begin;
    }
    int decade = 0;
    for (Ns limit = 1000; decade < 7 && end - begin >= limit; limit *= 10) ++decade;
    ++device.use.gap_histogram[static_cast<std::size_t>(decade)];
    ++device.use.gap_count;
    KeepLargest(device.use.gaps, std::move(gap));
  }

  static bool Larger(const Gap& a, const Gap& b) {
    const Ns la = a.end - a.begin, lb = b.end - b.begin;
    return la != lb ? la > lb : a.begin < b.begin;
  }

  // A heap with the smallest kept gap on top.
  void KeepLargest(std::vector<Gap>& gaps, Gap gap) const {
    const auto limit = static_cast<std::size_t>(std::max(0, options_.top_gaps));
    if (gaps.size() < limit) {
      gaps.push_back(std::move(gap));
      std::push_heap(gaps.begin(), gaps.end(), Larger);
    } else if (limit > 0 && Larger(gap, gaps.front())) {
      std::pop_heap(gaps.begin(), gaps.end(), Larger);
      gaps.back() = std::move(gap);
      std::push_heap(gaps.begin(), gaps.end(), Larger);
    }
  }

  DeviceUse Finish(DevicePass& pass, std::size_t device) {
    if (map_.total() > pass.covered) AddGaps(pass, pass.covered, map_.total(), -1);
    DeviceUse& use = pass.use;
    use.buckets = pass.sweep.Finish(map_.total());
    use.last = pass.seen ? std::max(use.first, map_.TimeAt(std::max<Ns>(0, use.last - 1)) + 1) : 0;
    use.kernel_length = QuantilesOf(pass.kernel_lengths);
    use.launch.queue_delay = QuantilesOf(pass.queue_delays);
    std::sort(use.gaps.begin(), use.gaps.end(), Larger);
    for (std::size_t k = 0; k < streams_.size(); ++k) {
      if (trace_.streams[k].device == device && streams_[k].rows > 0) {
        use.streams.push_back({static_cast<std::uint32_t>(k), streams_[k].rows, streams_[k].busy});
      }
    }
    std::sort(use.streams.begin(), use.streams.end(), [](const StreamUse& a, const StreamUse& b) {
      return a.busy != b.busy ? a.busy > b.busy : a.stream < b.stream;
    });
    return std::move(use);
  }

  // For the kept gaps: which calls the launching thread was in meanwhile.
  void DescribeGaps(std::vector<DeviceUse>& uses) const {
    std::map<std::uint16_t, std::vector<Gap*>> by_thread;
    for (DeviceUse& use : uses) {
      for (Gap& gap : use.gaps) {
        if (gap.after < 0) continue;
        const std::uint32_t call = index_.CallOf(static_cast<std::size_t>(gap.after));
        if (call != LaunchIndex::kNone) by_thread[trace_.api[call].thread].push_back(&gap);
      }
    }
    if (by_thread.empty()) return;
    // Gaps of one thread may overlap (it feeds several devices): sorted by begin, with the running
    // maximum of their ends, a call that touches none is seen by one binary search.
    std::map<const Gap*, std::map<std::string, Ns>> found;
    std::map<std::uint16_t, std::vector<Ns>> reach;
    for (auto& [thread, gaps] : by_thread) {
      std::sort(gaps.begin(), gaps.end(),
                [](const Gap* a, const Gap* b) { return a->begin < b->begin; });
      for (const Gap* gap : gaps) {
        std::vector<Ns>& ends = reach[thread];
        ends.push_back(ends.empty() ? gap->end : std::max(ends.back(), gap->end));
      }
    }
    const auto note = [&](std::uint16_t thread, Ns start, Ns end, const std::string& name) {
      const std::vector<Gap*>& gaps = by_thread[thread];
      const std::vector<Ns>& ends = reach[thread];
      auto k = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), start) -
                                        ends.begin());
      for (; k < gaps.size() && gaps[k]->begin < end; ++k) {
        const Ns shared = std::min(end, gaps[k]->end) - std::max(start, gaps[k]->begin);
        if (shared > 0) found[gaps[k]][name] += shared;
      }
    };
    // Threads without a gap are skipped before names are touched: this runs over all API rows.
    std::vector<std::uint8_t> wanted(trace_.threads.size() + 1, 0);
    for (const auto& [thread, gaps] : by_thread) wanted[thread] = 1;
    Ns low = INT64_MAX, high = INT64_MIN;
    for (const auto& [thread, gaps] : by_thread) {
      for (const Gap* gap : gaps) {
        low = std::min(low, gap->begin);
        high = std::max(high, gap->end);
      }
    }
    for (const ApiRow& row : trace_.api) {
      if (row.end > low && row.start < high && wanted[row.thread]) {
        note(row.thread, row.start, row.end, trace_.api_names[row.name]);
      }
    }
    for (const OsRow& row : trace_.os) {
      if (wanted[row.thread]) note(row.thread, row.start, row.end, trace_.names[row.name]);
    }
    for (DeviceUse& use : uses) {
      for (Gap& gap : use.gaps) {
        const auto names = found.find(&gap);
        if (names != found.end()) gap.host = LongestThree(names->second);
      }
    }
  }

  static std::vector<std::string> LongestThree(const std::map<std::string, Ns>& times) {
    std::vector<std::pair<Ns, std::string>> order;
    for (const auto& [name, ns] : times) order.emplace_back(-ns, name);
    std::sort(order.begin(), order.end());
    std::vector<std::string> names;
    for (std::size_t k = 0; k < order.size() && k < 3; ++k) names.push_back(order[k].second);
    return names;
  }

  const Trace& trace_;
  const LaunchIndex& index_;
  const WindowMap& map_;
  const AnalyzeOptions& options_;
  std::vector<Ns> borders_;
  std::vector<DevicePass> devices_;
  std::vector<StreamPass> streams_;
  std::vector<std::uint8_t> charged_;
};

struct NameUse {
  WaitUse use;
  std::vector<std::uint8_t> threads;
  bool seen = false;
  std::uint8_t kind = 0;  // 1 kernel launch, 2 graph launch, 4 sync
};

void AddCall(NameUse& use, std::uint16_t thread, std::size_t threads, Ns clipped, Ns full) {
  use.seen = true;
  if (use.threads.empty()) use.threads.resize(threads + 1, 0);
  use.use.threads += !use.threads[thread];
  use.threads[thread] = 1;
  ++use.use.count;
  use.use.thread_ns += clipped;
  use.use.max_ns = std::max(use.use.max_ns, full);
}

void HostPass(const Trace& trace, const LaunchIndex& index, const WindowMap& map, ScopeUse& out) {
  std::vector<NameUse> apis(trace.api_names.size());
  for (std::uint32_t k = 0; k < trace.api_names.size(); ++k) {
    const std::string& name = trace.api_names[k];
    apis[k].use.api = name;
    apis[k].use.kind = std::string(WaitKind(name));
    apis[k].kind =
        static_cast<std::uint8_t>((IsKernelLaunch(name) ? 1 : 0) | (IsGraphLaunch(name) ? 2 : 0) |
                                  (apis[k].use.kind == "sync" ? 4 : 0));
  }
  std::vector<ThreadUse> threads(trace.threads.size() + 1);
  for (std::size_t k = 0; k < trace.api.size(); ++k) {
    const ApiRow& row = trace.api[k];
    NameUse& name = apis[row.name];
    if (map.Contains(row.start)) {
      if (name.kind & 1) {
        ++out.launch_calls;
        out.launch_calls_without_row += !index.HasRow(k);
      }
      if (name.kind & 2) {
        ++out.graph_launch_calls;
        out.graph_launches_without_row += !index.HasRow(k);
      }
    }
    if (!map.Overlaps(row.start, row.end)) continue;
    const Ns clipped = map.Position(std::max(row.start, row.end)) - map.Position(row.start);
    AddCall(name, row.thread, trace.threads.size(), clipped, std::max<Ns>(0, row.end - row.start));
    ThreadUse& thread = threads[row.thread];
    ++thread.calls;
    thread.api_ns += clipped;
    if (name.kind & 4) thread.sync_ns += clipped;
  }
  std::map<std::uint32_t, NameUse> os;
  for (const OsRow& row : trace.os) {
    if (!map.Overlaps(row.start, row.end)) continue;
    const Ns clipped = map.Position(std::max(row.start, row.end)) - map.Position(row.start);
    NameUse& name = os[row.name];
    name.use.api = trace.names[row.name];
    name.use.kind = "os";
    AddCall(name, row.thread, trace.threads.size(), clipped, std::max<Ns>(0, row.end - row.start));
    threads[row.thread].os_ns += clipped;
    ++threads[row.thread].calls;
  }
  for (NameUse& name : apis) {
    if (name.seen) out.waits.push_back(std::move(name.use));
  }
  for (auto& [id, name] : os) out.waits.push_back(std::move(name.use));
  std::sort(out.waits.begin(), out.waits.end(), [](const WaitUse& a, const WaitUse& b) {
    if (a.thread_ns != b.thread_ns) return a.thread_ns > b.thread_ns;
    return a.api != b.api ? a.api < b.api : a.kind < b.kind;
  });
  for (std::size_t k = 0; k < threads.size(); ++k) {
    threads[k].thread = static_cast<std::uint32_t>(k);
    if (threads[k].calls > 0) out.threads.push_back(threads[k]);
  }
  std::sort(out.threads.begin(), out.threads.end(), [](const ThreadUse& a, const ThreadUse& b) {
    const Ns wa = a.sync_ns + a.os_ns, wb = b.sync_ns + b.os_ns;
    return wa != wb ? wa > wb : a.thread < b.thread;
  });
}

}  // namespace

Ns DeviceUse::kernel_memcpy() const { return buckets.Both(kKernels, Bit(Category::kMemcpy)); }
Ns DeviceUse::kernel_memset() const { return buckets.Both(kKernels, Bit(Category::kMemset)); }
Ns DeviceUse::busy_kernel_memcpy() const { return buckets.Any(kKernels | Bit(Category::kMemcpy)); }

ScopeUse Analyze(const Trace& trace, const LaunchIndex& index, const Scope& scope,
                 const AnalyzeOptions& options) {
  const WindowMap map(scope.steps);
  ScopeUse use;
  use.scope = scope;
  use.window = map.total();
  use.devices = DevicesPass(trace, index, map, options).Run();
  use.groups = GroupsOf(trace, map, options, -1);
  use.copies = CopiesOf(trace, map, -1);
  HostPass(trace, index, map, use);
  return use;
}

std::vector<std::string> BrokenInvariants(const Trace& trace, const ScopeUse& use) {
  std::vector<std::string> broken;
  const WindowMap map(use.scope.steps);
  for (const DeviceUse& device : use.devices) {
    const std::string who = "device " + trace.devices[device.device].label + ": ";
    const auto check = [&](bool holds, const std::string& what) {
      if (!holds) broken.push_back(who + what);
    };
    check(device.busy_kernel_memcpy() == device.compute() + device.comm() - device.compute_comm() +
                                             device.memcpy() - device.kernel_memcpy(),
          "busy is not the union of kernels and copies");
    check(device.window == device.busy() + device.gap(), "window is not busy + gap");
    check(device.buckets.total() == device.window, "the buckets do not sum to the window");
    for (int c = 0; c < kCategories; ++c) {
      check(device.buckets.Any(1u << c) <= device.clipped[static_cast<std::size_t>(c)],
            std::string("the union of ") + CategoryName(static_cast<Category>(c)) +
                " exceeds the sum of its rows");
    }
    Ns copies = 0;
    for (const CopyUse& copy : CopiesOf(trace, map, device.device)) {
      if (copy.category == Category::kMemcpy) copies += copy.clipped;
    }
    check(copies == device.clipped[static_cast<int>(Category::kMemcpy)],
          "the directions of copies do not sum to all copies");
    check(device.buckets.Any(Bit(Category::kMemcpy)) <= copies, "memcpy union exceeds its sum");
  }
  for (const Group& group : use.groups) {
    const double total = group.mean_ns() * static_cast<double>(group.count);
    const double error = total - static_cast<double>(group.total);
    if (error > 1e-6 * total + 1 || error < -1e-6 * total - 1) {
      broken.push_back("group " + group.name + ": mean times count is not the total");
    }
  }
  return broken;
}

}  // namespace assay::timeline
