#include "replay/measure_device.h"

#include <algorithm>

#include "base/error.h"

namespace assay {
namespace {

using Clock = std::chrono::steady_clock;

// Calls in one graph: enough that the resolution of events (32 ns on an H200) and the jitter of a
// graph's start, a few hundred ns, are spread thin; fewer where the calls themselves are long.
constexpr int kManyCalls = 10, kFewCalls = 4;
constexpr double kFewFromNs = 150e3;
constexpr int kProbes = 3;

}  // namespace

double DeviceTimer::CallNs() {
  if (call_ns_ > 0) return call_ns_;
  if (calls_.empty()) throw Error(Fault::kInternal, "timing needs at least one call");
  for (const DeviceCall& call : calls_) {
    call(gpu_.stream());  // lazy set-up (module loading, attributes) happens outside the capture
    gpu_.Synchronize();
    single_.push_back(gpu_.Record(call));
  }
  std::vector<double> probes;
  for (int probe = 0; probe < kProbes; ++probe) probes.push_back(single_.front()->Replay());
  call_ns_ = *std::min_element(probes.begin(), probes.end());
  return call_ns_;
}

DeviceTimer::Sampler DeviceTimer::LongSampler(bool cold) {
  Sampler sampler;
  sampler.mode = cold ? "cold_event" : "warm_event";
  sampler.with.assign(single_.begin(), cold ? single_.end() : single_.begin() + 1);
  for (std::size_t set = 0; cold && set < calls_.size(); ++set) {
    sampler.before.push_back(gpu_.Record([&](Stream stream) { EnqueueFlush(stream, set); }));
  }
  return sampler;
}

// What comes before a cold call: new content, and the flush. The change of content costs the same
// with and without the calls between only if it finds the same caches: the call before it was on
// another content set, or another flush comes first.
void DeviceTimer::EnqueueFlush(Stream stream, std::size_t set) {
  if (!versions_.empty()) {
    if (calls_.size() == 1) gpu_.EnqueueFlush(stream, flush_);
    versions_[set]->EnqueueNext(stream);
  }
  gpu_.EnqueueFlush(stream, flush_);
}

// n x (flush, call) minus n x flush.
DeviceTimer::Sampler DeviceTimer::ColdSampler(int calls) {
  Sampler sampler;
  sampler.mode = "cold_graph";
  sampler.calls = calls;
  sampler.with.push_back(gpu_.Record([&](Stream stream) {
    for (int c = 0; c < calls; ++c) {
      const std::size_t set = static_cast<std::size_t>(c) % calls_.size();
      EnqueueFlush(stream, set);
      calls_[set](stream);
    }
  }));
  sampler.without.push_back(gpu_.Record([&](Stream stream) {
    for (int c = 0; c < calls; ++c)
      EnqueueFlush(stream, static_cast<std::size_t>(c) % calls_.size());
  }));
  return sampler;
}

// 2n calls minus n calls: the start of a graph drops out.
DeviceTimer::Sampler DeviceTimer::WarmSampler(int calls) {
  const auto repeat = [&](int times) {
    return gpu_.Record([&, times](Stream stream) {
      for (int c = 0; c < times; ++c) calls_.front()(stream);
    });
  };
  Sampler sampler;
  sampler.mode = "warm_graph";
  sampler.calls = calls;
  sampler.with.push_back(repeat(2 * calls));
  sampler.without.push_back(repeat(calls));
  return sampler;
}

DeviceTimer::Sampler DeviceTimer::MakeSampler(const std::string& mode) {
  const bool cold = mode == "cold";
  if (!cold && mode != "warm") BadInput("unknown timing mode '" + mode + "' of a device backend");
  const double call_ns = CallNs();
  if (call_ns >= kLongNs) return LongSampler(cold);
  const int calls = call_ns >= kFewFromNs ? kFewCalls : kManyCalls;
  return cold ? ColdSampler(calls) : WarmSampler(calls);
}

// The noise of a difference may exceed an almost empty kernel: such a sample counts as 0.
double DeviceTimer::Sample(Sampler& sampler, std::size_t number, MeasuredSeries& series) {
  if (!sampler.before.empty()) sampler.before[number % sampler.before.size()]->Replay();
  const double with = sampler.with[number % sampler.with.size()]->Replay();
  const double without =
      sampler.without.empty() ? 0 : sampler.without[number % sampler.without.size()]->Replay();
  series.run_ns += with - without;
  return std::max(0.0, with - without) / sampler.calls;
}

MeasuredSeries DeviceTimer::Measure(const std::string& mode, const TimingLimits& limits) {
  const Clock::time_point begin = Clock::now();
  Sampler sampler = MakeSampler(mode);
  MeasuredSeries result;
  result.series.mode = sampler.mode;
  gpu_.ResetPersistingLines();
  const Clock::time_point warmup = Clock::now();
  for (int call = 0; call < limits.warmup_calls || NanosecondsSince(warmup) < limits.warmup_s * 1e9;
       ++call) {
    if (NanosecondsSince(warmup) > limits.budget_s * 1e9) break;  // slow kernel: no time to spare
    Sample(sampler, static_cast<std::size_t>(call), result);
  }
  StopRule stop(limits, Clock::now());
  std::vector<double>& samples = result.series.samples_ns;
  while (result.series.stop.empty()) {
    if (mode == "cold") gpu_.ResetPersistingLines();
    samples.push_back(Sample(sampler, samples.size(), result));
    result.series.stop = stop.Decide(samples);
  }
  result.prepare_ns = std::max(0.0, NanosecondsSince(begin) - result.run_ns);
  if (mode == "cold") last_cold_ = std::move(sampler);
  return result;
}

void DeviceTimer::ReplayAll(const std::vector<std::uint64_t>& last_versions) {
  CallNs();
  const auto sets = static_cast<int>(calls_.size());
  const bool timed = !last_cold_.with.empty() &&
                     (last_cold_.calls >= sets || last_cold_.with.size() == calls_.size());
  // One graph changes the content of a set as often as it calls it; of single calls none does.
  const bool changes = timed && last_cold_.before.empty();
  for (int set = 0; !versions_.empty() && set < sets; ++set) {
    const auto index = static_cast<std::size_t>(set);
    const int changes_of_set = changes ? (last_cold_.calls - set - 1) / sets + 1 : 1;
    versions_[index]->SetNext(last_versions.at(index) -
                              static_cast<std::uint64_t>(changes_of_set - 1));
    if (!changes) versions_[index]->EnqueueNext(gpu_.stream());
  }
  for (const auto& recording : timed ? last_cold_.with : single_) recording->Replay();
}

}  // namespace assay
