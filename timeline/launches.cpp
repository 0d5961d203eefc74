// The join of GPU rows with the calls that launched them, and what kind of call a name is.
#include <algorithm>
#include <limits>

#include "timeline/analyze.h"

namespace assay::timeline {
namespace {

// The API rows of one process by correlation id: an array while ids are dense (they count up from
// one in every profiler), else sorted pairs.
class ProcessCalls {
 public:
  void Count(std::uint32_t correlation) {
    ++count_;
    low_ = std::min(low_, correlation);
    high_ = std::max(high_, correlation);
  }
  void Allocate() {
    if (count_ == 0) return;
    const std::uint64_t span = std::uint64_t{high_} - low_ + 1;
    dense_ = span <= 8 * count_ + 1024;
    if (dense_) {
      rows_.assign(span, 0);
    } else {
      sorted_.reserve(count_);
    }
  }
  // False when the id is there already (only known at once for dense ids).
  bool Add(std::uint32_t correlation, std::uint32_t row) {
    if (!dense_) {
      sorted_.emplace_back(correlation, row);
      return true;
    }
    std::uint32_t& slot = rows_[correlation - low_];
    if (slot != 0) return false;
    slot = row + 1;
    return true;
  }
  std::int64_t Seal() {
    std::stable_sort(sorted_.begin(), sorted_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    const std::size_t before = sorted_.size();
    sorted_.erase(std::unique(sorted_.begin(), sorted_.end(),
                              [](const auto& a, const auto& b) { return a.first == b.first; }),
                  sorted_.end());
    return static_cast<std::int64_t>(before - sorted_.size());
  }
  std::uint32_t Find(std::uint32_t correlation) const {
    if (count_ == 0 || correlation < low_ || correlation > high_) return LaunchIndex::kNone;
    if (dense_) {
      const std::uint32_t slot = rows_[correlation - low_];
      return slot == 0 ? LaunchIndex::kNone : slot - 1;
    }
    const auto found =
        std::lower_bound(sorted_.begin(), sorted_.end(), correlation,
                         [](const auto& entry, std::uint32_t id) { return entry.first < id; });
    return found != sorted_.end() && found->first == correlation ? found->second
                                                                 : LaunchIndex::kNone;
  }

 private:
  std::uint64_t count_ = 0;
  std::uint32_t low_ = std::numeric_limits<std::uint32_t>::max(), high_ = 0;
  bool dense_ = true;
  std::vector<std::uint32_t> rows_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> sorted_;
};

}  // namespace

LaunchIndex::LaunchIndex(const Trace& trace) {
  std::vector<ProcessCalls> calls(trace.processes.size());
  for (const ApiRow& row : trace.api) {
    if (row.correlation != kNoCorrelation) calls[trace.ProcessOf(row)].Count(row.correlation);
  }
  for (ProcessCalls& process : calls) process.Allocate();
  for (std::size_t k = 0; k < trace.api.size(); ++k) {
    const ApiRow& row = trace.api[k];
    if (row.correlation == kNoCorrelation) continue;
    duplicates_ += !calls[trace.ProcessOf(row)].Add(row.correlation, static_cast<std::uint32_t>(k));
  }
  for (ProcessCalls& process : calls) duplicates_ += process.Seal();
  call_of_row_.assign(trace.gpu.size(), kNone);
  has_row_.assign(trace.api.size(), 0);
  for (std::size_t k = 0; k < trace.gpu.size(); ++k) {
    const GpuRow& row = trace.gpu[k];
    if (row.correlation == kNoCorrelation) continue;
    const std::uint32_t call = calls[trace.ProcessOf(row)].Find(row.correlation);
    call_of_row_[k] = call;
    if (call != kNone) has_row_[call] = 1;
  }
}

namespace {
bool Contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }
}  // namespace

bool IsKernelLaunch(std::string_view api) {
  return Contains(api, "LaunchKernel") || Contains(api, "LaunchCooperativeKernel") ||
         api == "cudaLaunch" || api == "cuLaunch" || api == "cuLaunchGrid" ||
         api == "cuLaunchGridAsync" || Contains(api, "LaunchMultiKernel");
}

bool IsGraphLaunch(std::string_view api) { return Contains(api, "GraphLaunch"); }

std::string_view WaitKind(std::string_view api) {
  // cudaStreamWaitEvent only enqueues a wait: the thread goes on.
  if (Contains(api, "StreamWaitEvent") || Contains(api, "WaitExternalSemaphores")) return "enqueue";
  if (Contains(api, "Synchronize") || Contains(api, "StreamWaitValue")) return "sync";
  if (IsKernelLaunch(api) || IsGraphLaunch(api)) return "launch";
  if (Contains(api, "Memcpy") || Contains(api, "Memset")) return "copy";
  return "api";
}

}  // namespace assay::timeline
