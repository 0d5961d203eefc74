#include "replay/spans.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"

namespace assay {
namespace {

constexpr int kWarmup = 3;
// From the replay page: an empty kernel's and a short one's times agree within 1 us. The share is
// for power-limited chips, whose clock in a timing loop is not that of calls with pauses between.
constexpr double kSlackNs = 1000, kShare = 0.1;

std::string Names(const std::vector<Activity>& activities) {
  std::vector<std::string> names;
  for (const Activity& activity : activities) names.push_back(activity.name);
  std::sort(names.begin(), names.end());  // those of parallel branches start in any order
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

double SpanNs(const std::vector<Activity>& activities) {
  std::int64_t first = activities.front().start_ns, last = activities.front().end_ns;
  for (const Activity& activity : activities) {
    first = std::min(first, activity.start_ns);
    last = std::max(last, activity.end_ns);
  }
  return static_cast<double>(last - first);
}

}  // namespace

MeasuredSeries MeasureSpans(Accelerator& gpu, const std::vector<DeviceCall>& calls, FlushKind flush,
                            int samples) {
  const auto begin = std::chrono::steady_clock::now();
  std::string why_not;
  const std::unique_ptr<ActivityRecorder> recorder = gpu.RecordActivities(why_not);
  if (recorder == nullptr) throw Error(Fault::kUnsupported, why_not);
  // Recorded only now: of graphs that are older than its tracing CUPTI may not show the nodes.
  const auto flushes = gpu.Record([&](Stream stream) { gpu.EnqueueFlush(stream, flush); });
  std::vector<std::unique_ptr<Recording>> recordings;
  for (const DeviceCall& call : calls) recordings.push_back(gpu.Record(call));
  std::vector<std::string> names(calls.size());
  MeasuredSeries result;
  result.series.mode = "cold_span";
  result.series.stop = "count";
  for (int sample = -kWarmup; sample < samples; ++sample) {
    const std::size_t set = static_cast<std::size_t>(sample + kWarmup) % calls.size();
    flushes->Replay();
    recorder->Take();
    result.run_ns += recordings[set]->Replay();
    const std::vector<Activity> activities = recorder->Take();
    if (activities.empty()) {
      throw Error(Fault::kUnsupported, "CUPTI shows no activity of a call on the device");
    }
    const std::string now = Names(activities);
    if (names[set].empty()) names[set] = now;
    if (now != names[set]) {
      throw Error(Fault::kUnsupported, "the work of a call changes from one time to the next: " +
                                           names[set] + "; then " + now);
    }
    if (sample >= 0) result.series.samples_ns.push_back(SpanNs(activities));
  }
  result.prepare_ns = std::max(0.0, NanosecondsSince(begin) - result.run_ns);
  return result;
}

bool SpanDiffers(double cold_ns, double span_ns) {
  return std::abs(cold_ns - span_ns) > kSlackNs + kShare * cold_ns;
}

}  // namespace assay
