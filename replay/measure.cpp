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

MeasuredSeries MeasureHost(const std::string& mode, std::vector<Slot>& slots,
                           const TimingLimits& limits, const std::function<void(Slot&)>& run) {
  const bool cold = mode == "cold_host";
  if (!cold && mode != "warm_host") BadInput("unknown timing mode '" + mode + "'");
  if (slots.empty()) throw Error(Fault::kInternal, "timing needs at least one slot");
  MeasuredSeries result;
  result.series.mode = mode;
  const auto sample = [&](Slot& slot) {
    slot.outputs.Poison();
    if (cold) {
      EvictFromCaches(slot.inputs);
      EvictFromCaches(slot.outputs);
    }
    const Clock::time_point start = Clock::now();
    run(slot);
    const double ns = NanosecondsSince(start);
    result.run_ns += ns;
    if (HasUnwritten(slot.outputs)) ++result.unwritten_calls;
    return ns;
  };

  const std::size_t slots_used = cold ? slots.size() : 1;
  const Clock::time_point warmup = Clock::now();
  for (int call = 0; call < limits.warmup_calls || NanosecondsSince(warmup) < limits.warmup_s * 1e9;
       ++call) {
    if (NanosecondsSince(warmup) > limits.budget_s * 1e9) break;  // slow kernel: no time to spare
    sample(slots[static_cast<std::size_t>(call) % slots_used]);
  }

  StopRule stop(limits, Clock::now());
  std::vector<double>& samples = result.series.samples_ns;
  while (result.series.stop.empty()) {
    samples.push_back(sample(slots[samples.size() % slots_used]));
    result.series.stop = stop.Decide(samples);
  }
  result.prepare_ns = NanosecondsSince(warmup) - result.run_ns;
  return result;
}

}  // namespace assay
