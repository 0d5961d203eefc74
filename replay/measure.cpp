#include "replay/measure.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/error.h"
#include "base/stats.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace assay {
namespace {

using Clock = std::chrono::steady_clock;

// Half-width of the median's interval relative to the median; infinite while n is too small.
double RelativeHalfWidth(const std::vector<double>& samples) {
  const std::vector<double> sorted = Sorted(samples);
  const auto interval = OrderStatisticInterval(sorted, 0.5);
  if (!interval) return 1e9;
  return 0.5 * (interval->high - interval->low) / QuantileSorted(sorted, 0.5);
}

#if defined(__x86_64__)
__attribute__((target("clflushopt"))) void FlushLines(const std::byte* data, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 64) _mm_clflushopt(const_cast<std::byte*>(data + at));
  _mm_sfence();
}
#endif

}  // namespace

double NanosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

std::string StopRule::Decide(const std::vector<double>& samples) {
  const auto n = static_cast<int>(samples.size());
  if (n >= next_look_) {
    next_look_ = std::max(next_look_ + 1, next_look_ * 3 / 2);
    if (RelativeHalfWidth(samples) <= limits_.half_width) return "converged";
  }
  if (n >= limits_.max_samples) return "count";
  if (NanosecondsSince(start_) >= limits_.budget_s * 1e9) return "time";
  return "";
}

bool HasUnwritten(const Bundle& outputs) {
  constexpr std::size_t kPlaces = 16;
  for (const Tensor& tensor : outputs.tensors()) {
    if (!IsFloat(tensor.dtype) || tensor.bytes() == 0) continue;
    const auto size = static_cast<std::size_t>(DTypeBytes(tensor.dtype, 1));
    const std::size_t elements = tensor.bytes() / size;
    for (std::size_t place = 0; place < std::min(kPlaces, elements); ++place) {
      const std::byte* element =
          tensor.data + (elements - 1 - place * (elements / std::min(kPlaces, elements))) * size;
      if (std::all_of(element, element + size, [](std::byte b) { return b == std::byte{0xFF}; })) {
        return true;
      }
    }
  }
  return false;
}

void EvictFromCaches(const Bundle& bundle) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("clflushopt")) {
    for (const Tensor& tensor : bundle.tensors()) {
      for (const auto& [first, last] : bundle.TouchedParts(tensor)) {
        FlushLines(tensor.data + first, last - first);
      }
    }
    return;
  }
#endif
  // Elsewhere: read a buffer of twice any last-level cache in use, which displaces the tensors.
  static const std::vector<std::uint64_t> displacing(64u << 20, 1);
  const std::uint64_t sum = std::accumulate(displacing.begin(), displacing.end(), std::uint64_t{0});
  asm volatile("" : : "r"(sum));  // keep the reads
}

void SetVersion(Slot& slot, std::uint64_t version) {
  ChangeVersion(slot.inputs, slot.version, version);
  slot.version = version;
}

namespace {

// One series in the making.
class HostSeries {
 public:
  HostSeries(bool cold, const std::function<void(Slot&)>& run, MeasuredSeries& result)
      : cold_(cold), run_(run), result_(result) {}

  double Sample(Slot& slot) {
    slot.outputs.Poison();
    if (cold_) {
      EvictFromCaches(slot.inputs);
      EvictFromCaches(slot.outputs);
    }
    const Clock::time_point start = Clock::now();
    run_(slot);
    const double ns = NanosecondsSince(start);
    result_.run_ns += ns;
    ++calls_;
    if (HasUnwritten(slot.outputs)) ++result_.unwritten_calls;
    return ns;
  }
  double MeanNs() const { return calls_ > 0 ? result_.run_ns / calls_ : 0; }

 private:
  const bool cold_;
  const std::function<void(Slot&)>& run_;
  MeasuredSeries& result_;
  int calls_ = 0;
};

}  // namespace

MeasuredSeries MeasureHost(const std::string& mode, std::vector<Slot>& slots,
                           const TimingLimits& limits, bool new_content,
                           const std::function<void(Slot&)>& run) {
  const bool cold = mode == "cold_host";
  if (!cold && mode != "warm_host") BadInput("unknown timing mode '" + mode + "'");
  if (slots.empty()) throw Error(Fault::kInternal, "timing needs at least one slot");
  MeasuredSeries result;
  result.series.mode = mode;
  HostSeries series(cold, run, result);
  const std::size_t slots_used = cold ? slots.size() : 1;
  std::uint64_t version = kFirstTimedVersion;
  const auto sample = [&](std::size_t number) {
    Slot& slot = slots[number % slots_used];
    if (cold && new_content) SetVersion(slot, version++);
    return series.Sample(slot);
  };

  const Clock::time_point warmup = Clock::now();
  for (std::size_t call = 0; static_cast<int>(call) < limits.warmup_calls ||
                             NanosecondsSince(warmup) < limits.warmup_s * 1e9;
       ++call) {
    if (NanosecondsSince(warmup) > limits.budget_s * 1e9) break;  // slow kernel: no time to spare
    sample(call);
  }

  TimingLimits before_the_last = limits;
  const double last_calls_s = static_cast<double>(slots_used) * series.MeanNs() * 1e-9;
  if (cold && new_content) before_the_last.budget_s -= last_calls_s;
  StopRule stop(before_the_last, Clock::now());
  std::vector<double>& samples = result.series.samples_ns;
  while (result.series.stop.empty()) {
    samples.push_back(sample(samples.size()));
    result.series.stop = stop.Decide(samples);
  }
  for (std::size_t slot = 0; cold && new_content && slot < slots.size(); ++slot) {
    SetVersion(slots[slot], slot == 0 ? kJudgedVersion : kOriginalVersion);
    samples.push_back(series.Sample(slots[slot]));
  }
  result.prepare_ns = NanosecondsSince(warmup) - result.run_ns;
  return result;
}

}  // namespace assay
