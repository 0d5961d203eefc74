#include "replay/timing_selftest.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/stats.h"
#include "replay/measure_device.h"
#include "replay/spans.h"

namespace assay {
namespace {

constexpr double kShare = 0.03, kSlackNs = 300;  // of the known length
constexpr std::size_t kReadBytes = 20 << 20, kCopyBytes = 256 << 20;
// Beyond both, a copy was not the copy that was asked for: half of the slowest and the datasheet
// rate of the fastest memory of this generation, read plus write.
constexpr double kSlowestCopy = 1e12, kFastestCopy = 4.8e12;
constexpr double kColdOverWarm = 1.3;
// Two streams join by events: a fork and a join cost a few microseconds more than one kernel.
constexpr double kJoinNs = 12e3;
constexpr double kMostEmptyNs = 5e3;
constexpr int kSettlingTimes = 20;  // of some 0.1 s

class Trials {
 public:
  Trials(Accelerator& gpu, TimingProbes& probes) : gpu_(gpu), probes_(probes) {}

  std::vector<TimingTrial> Run() {
    Settle();
    for (const char* mode : {"cold", "warm"}) {
      Accept(fmt::format("empty kernel, {}", mode),
             Measure(mode, [&](Stream s) { probes_.Empty(s); }).median, 0, kMostEmptyNs);
      for (const double ns : {2e3, 10e3, 100e3, 1000e3}) Spin(mode, ns);
    }
    DependentPair();
    Copy();
    Parallel();
    Refusal("side stream that never joins", [&](Stream s) { probes_.UnjoinedSpin(s, 10e3); });
    Refusal("work outside the given stream", [&](Stream) { probes_.SpinElsewhere(10e3); });
    ColdAgainstWarm("read of 20 MB", [&](Stream s) { probes_.Read(s, kReadBytes); });
    ColdAgainstWarm("read of 20 MB that pins its lines",
                    [&](Stream s) { probes_.PinnedRead(s, kReadBytes); });
    gpu_.TakePersistingLimit();
    Spans();
    return std::move(trials_);
  }

 private:
  struct Measured {
    std::string mode;
    double median = 0;
  };

  Measured Measure(const std::string& mode, const DeviceCall& call) {
    DeviceTimer timer(gpu_, {call}, FlushKind::kRead);
    TimingLimits limits;
    limits.budget_s = 0.5;
    const TimingSeries series = timer.Measure(mode, limits).series;
    last_mode_ = series.mode;
    return {series.mode, QuantileSorted(Sorted(series.samples_ns), 0.5)};
  }

  TimingTrial& Accept(const std::string& name, double median, double low, double high) {
    const bool inside = median >= low && median <= high;
    trials_.push_back({name, last_mode_, 0, median, low, high, "", inside});
    return trials_.back();
  }

  // What a spin takes by our timing and by the device's own clock, read inside the kernel.
  struct Length {
    double measured_ns = 0, known_ns = 0;
  };

  Length SpinLength(const std::string& mode, double ns) {
    probes_.SpinTimes();
    const double measured = Measure(mode, [&](Stream s) { probes_.Spin(s, ns); }).median;
    return {measured, Mean(probes_.SpinTimes())};
  }

  // In its first seconds of load a chip that was idle changes its clocks, and with them what a
  // launch costs: by 0.3 us on an H200.
  void Settle() {
    for (int times = 0; times < kSettlingTimes; ++times) SpinLength("cold", 100e3);
  }

  // Against the same kernel without a spin, measured just before: what a kernel costs beyond its
  // loop (a node in a graph, reading clocks, storing the times) is in both. Events around one call
  // also hold the start of a graph, which is within the share allowed.
  void Spin(const std::string& mode, double ns) {
    const Length none = SpinLength(mode, 0);
    const Length spin = SpinLength(mode, ns);
    const double known = spin.known_ns - none.known_ns;
    const double slack = std::max(kSlackNs, kShare * known);
    Accept(fmt::format("spin {:g} us, {}", ns * 1e-3, mode), spin.measured_ns - none.measured_ns,
           known - slack, known + slack)
        .known_ns = known;
  }

  void DependentPair() {
    const auto pair = [&](double ns) {
      probes_.SpinTimes();
      const double measured = Measure("warm", [&, ns](Stream s) {
                                probes_.Spin(s, ns);
                                probes_.Spin(s, ns);
                              }).median;
      return Length{measured, 2 * Mean(probes_.SpinTimes())};
    };
    const Length none = pair(0), both = pair(5e3);
    const double known = both.known_ns - none.known_ns;
    const double slack = std::max(kSlackNs, kShare * known);
    Accept("two dependent spins of 5 us", both.measured_ns - none.measured_ns, known - slack,
           known + slack)
        .known_ns = known;
  }

  void Copy() {
    const double median = Measure("cold", [&](Stream s) { probes_.Copy(s, kCopyBytes); }).median;
    const double bytes = 2.0 * kCopyBytes;
    Accept("copy of 256 MiB and nothing else", median, bytes / kFastestCopy * 1e9,
           bytes / kSlowestCopy * 1e9);
  }

  void Parallel() {
    constexpr double kNs = 100e3;
    const double median = Measure("warm", [&](Stream s) { probes_.ParallelSpins(s, kNs); }).median;
    const double known = Mean(probes_.SpinTimes());
    Accept("two spins of 100 us on two streams", median, known, known + kJoinNs).known_ns = known;
  }

  void Refusal(const std::string& name, const DeviceCall& call) {
    TimingTrial trial;
    trial.name = name;
    try {
      trial.median_ns = Measure("warm", call).median;
      trial.answer = "was timed";
    } catch (const Error& error) {
      trial.answer = error.what();
      trial.passed = error.fault() == Fault::kUnsupported;
    }
    trials_.push_back(trial);
  }

  void ColdAgainstWarm(const std::string& name, const DeviceCall& call) {
    const double warm = Measure("warm", call).median;
    const double cold = Measure("cold", call).median;
    Accept(name + ": cold against warm", cold, kColdOverWarm * warm, 10 * warm).known_ns = warm;
  }

  // The second clock against the device's own. Last: tracing may slow what comes after it.
  void Spans() {
    try {
      const Length none = SpanLengthByRecords(0);
      Accept("kernel without a loop, records of CUPTI", none.measured_ns, 0, kMostEmptyNs);
      for (const double ns : {2e3, 10e3, 100e3}) {
        const Length spin = SpanLengthByRecords(ns);
        const double known = spin.known_ns - none.known_ns;
        const double slack = std::max(kSlackNs, kShare * known);
        Accept(fmt::format("spin {:g} us, records of CUPTI", ns * 1e-3),
               spin.measured_ns - none.measured_ns, known - slack, known + slack)
            .known_ns = known;
      }
    } catch (const Error& error) {
      if (error.fault() != Fault::kUnsupported) throw;
      TimingTrial trial;
      trial.name = "spins, records of CUPTI";
      trial.answer = error.what();
      trial.passed = true;  // a machine without CUPTI is no fault of the timing
      trials_.push_back(trial);
    }
  }

  Length SpanLengthByRecords(double ns) {
    constexpr int kSamples = 31;
    probes_.SpinTimes();
    const DeviceCall call = [&](Stream s) { probes_.Spin(s, ns); };
    const TimingSeries series = MeasureSpans(gpu_, {call}, FlushKind::kRead, kSamples).series;
    last_mode_ = series.mode;
    return {QuantileSorted(Sorted(series.samples_ns), 0.5), Mean(probes_.SpinTimes())};
  }

  Accelerator& gpu_;
  TimingProbes& probes_;
  std::string last_mode_;
  std::vector<TimingTrial> trials_;
};

}  // namespace

std::vector<TimingTrial> TryTiming(Accelerator& gpu, TimingProbes& probes) {
  return Trials(gpu, probes).Run();
}

}  // namespace assay
