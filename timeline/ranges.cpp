// Ranges are sorted per thread and domain; the calls of a range are one slice of its thread's calls
// sorted by start, and each call knows its GPU rows through a slice of (call, row) pairs.
#include "timeline/ranges.h"

#include <algorithm>
#include <unordered_map>

namespace assay::timeline {
namespace {

struct ThreadCalls {
  std::vector<Ns> starts;            // of calls that launched GPU rows
  std::vector<std::uint32_t> calls;  // index into Trace::api
};

class RangesPass {
 public:
  RangesPass(const Trace& trace, const LaunchIndex& index, const WindowMap& map)
      : trace_(trace), map_(map) {
    SortCalls(index);
  }

  std::vector<RangeUse> Run() {
    std::vector<std::uint32_t> order;
    last_of_thread_ = LastEvents();
    for (std::uint32_t k = 0; k < trace_.ranges.size(); ++k) {
      if (!trace_.ranges[k].mark && map_.Contains(trace_.ranges[k].start)) order.push_back(k);
    }
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      const RangeRow &x = trace_.ranges[a], &y = trace_.ranges[b];
      if (x.thread != y.thread) return x.thread < y.thread;
      if (x.domain != y.domain) return x.domain < y.domain;
      if (x.start != y.start) return x.start < y.start;
      const Ns ex = EndOf(x), ey = EndOf(y);
      return ex != ey ? ex > ey : a < b;
    });
    std::vector<Open> stack;
    std::uint64_t lane = ~std::uint64_t{0};
    for (const std::uint32_t k : order) {
      const RangeRow& row = trace_.ranges[k];
      const std::uint64_t here = (std::uint64_t{row.thread} << 32) | row.domain;
      if (here != lane) stack.clear();
      lane = here;
      while (!stack.empty() && stack.back().end <= row.start) stack.pop_back();
      Add(row, stack);
    }
    std::vector<RangeUse> uses;
    for (auto& [key, use] : uses_) uses.push_back(std::move(use));
    std::sort(uses.begin(), uses.end(), [](const RangeUse& a, const RangeUse& b) {
      if (a.gpu_sum_ns != b.gpu_sum_ns) return a.gpu_sum_ns > b.gpu_sum_ns;
      if (a.host_ns != b.host_ns) return a.host_ns > b.host_ns;
      return a.name != b.name ? a.name < b.name : a.domain < b.domain;
    });
    return uses;
  }

 private:
  struct Open {
    Ns end;
    RangeUse* use;
  };

  Ns EndOf(const RangeRow& row) const {
    return row.end == kOpenEnd ? std::max(row.start, last_of_thread_[row.thread]) : row.end;
  }

  // An unclosed range ends at its thread's last event.
  std::vector<Ns> LastEvents() const {
    std::vector<Ns> last(trace_.threads.size() + 1, INT64_MIN);
    const auto reach = [&](std::uint16_t thread, Ns time) {
      last[thread] = std::max(last[thread], time);
    };
    for (const ApiRow& row : trace_.api) reach(row.thread, row.end);
    for (const RangeRow& row : trace_.ranges) {
      reach(row.thread, row.end == kOpenEnd ? row.start : row.end);
    }
    for (const OsRow& row : trace_.os) reach(row.thread, row.end);
    return last;
  }

  void SortCalls(const LaunchIndex& index) {
    for (std::uint32_t k = 0; k < trace_.gpu.size(); ++k) {
      if (index.CallOf(k) != LaunchIndex::kNone) rows_.emplace_back(index.CallOf(k), k);
    }
    std::sort(rows_.begin(), rows_.end());
    calls_.resize(trace_.threads.size() + 1);
    std::vector<std::pair<Ns, std::uint32_t>> launching;
    for (std::size_t k = 0; k < rows_.size(); ++k) {
      if (k > 0 && rows_[k].first == rows_[k - 1].first) continue;
      launching.emplace_back(trace_.api[rows_[k].first].start, rows_[k].first);
    }
    std::sort(launching.begin(), launching.end());
    for (const auto& [start, call] : launching) {
      ThreadCalls& calls = calls_[trace_.api[call].thread];
      calls.starts.push_back(start);
      calls.calls.push_back(call);
    }
  }

  void Add(const RangeRow& row, std::vector<Open>& stack) {
    RangeUse& use = uses_[(std::uint64_t{row.name} << 32) | row.domain];
    const Ns end = EndOf(row);
    const auto depth = static_cast<std::int64_t>(stack.size());
    if (use.count == 0) {
      use.name = trace_.names[row.name];
      use.domain = trace_.names[row.domain];
      use.depth = depth;
    }
    use.depth = std::min(use.depth, depth);
    ++use.count;
    use.unclosed += row.end == kOpenEnd;
    const Ns length = std::max<Ns>(0, end - row.start);
    use.host_ns += length;
    use.self_ns += length;
    if (row.nested) {
      if (!stack.empty()) stack.back().use->self_ns -= std::min(end, stack.back().end) - row.start;
      stack.push_back({end, &use});
    }
    Project(row, end, use);
  }

  void Project(const RangeRow& row, Ns end, RangeUse& use) {
    const ThreadCalls& calls = calls_[row.thread];
    const auto first = std::lower_bound(calls.starts.begin(), calls.starts.end(), row.start);
    const auto last = std::lower_bound(first, calls.starts.end(), end);
    intervals_.clear();
    for (auto at = first; at != last; ++at) {
      const std::uint32_t call = calls.calls[static_cast<std::size_t>(at - calls.starts.begin())];
      for (auto pair = std::lower_bound(rows_.begin(), rows_.end(), std::pair(call, 0u));
           pair != rows_.end() && pair->first == call; ++pair) {
        const GpuRow& gpu = trace_.gpu[pair->second];
        ++use.gpu_rows;
        use.gpu_sum_ns += std::max<Ns>(0, gpu.end - gpu.start);
        if (use.gpu_rows == 1) use.gpu_first = gpu.start;
        use.gpu_first = std::min(use.gpu_first, gpu.start);
        use.gpu_last = std::max(use.gpu_last, gpu.end);
        intervals_.push_back({gpu.start, gpu.end});
      }
    }
    for (const Window& window : Merge(std::move(intervals_))) {
      use.gpu_union_ns += window.end - window.begin;
    }
  }

  const Trace& trace_;
  const WindowMap& map_;
  std::vector<Ns> last_of_thread_;
  std::vector<ThreadCalls> calls_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> rows_;  // (call, gpu row)
  std::unordered_map<std::uint64_t, RangeUse> uses_;
  std::vector<Window> intervals_;
};

}  // namespace

std::vector<RangeUse> AnalyzeRanges(const Trace& trace, const LaunchIndex& index,
                                    const WindowMap& map) {
  return RangesPass(trace, index, map).Run();
}

}  // namespace assay::timeline
