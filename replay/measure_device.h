// The timing loop of a worker on a GPU: replays of recorded work, never single launches from the
// host. docs/measuring.md explains the choices.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/accelerator.h"
#include "ops/family.h"
#include "replay/measure.h"

namespace assay {

// Times the calls of one case, one call per content set. Modes:
//   "cold"  a flush of the L2 cache before every call, content sets in turn, each with new content
//           where it has versions
//   "warm"  the first content set again and again
// A short operator becomes the series "cold_graph" / "warm_graph": n calls in one graph, and what
// the same graph costs without the calls (or with half of them) is subtracted. A long one becomes
// "cold_event" / "warm_event": two events around one recorded call, which adds the cost of starting
// a graph, some 3.3 us.
class DeviceTimer {
 public:
  // From this length on, events around one call are within 0.6 % of the call.
  static constexpr double kLongNs = 600e3;

  // `versions`: of each call's inputs, or empty: contents then repeat. They must outlive the timer.
  DeviceTimer(Accelerator& gpu, std::vector<DeviceCall> calls, FlushKind flush,
              std::vector<ContentVersions*> versions = {})
      : gpu_(gpu), calls_(std::move(calls)), flush_(flush), versions_(std::move(versions)) {}

  // Throws kInput for an unknown mode, kUnsupported when the calls cannot be recorded, DeviceError.
  MeasuredSeries Measure(const std::string& mode, const TimingLimits& limits);
  // Every call once, through the very graphs that were timed last where they hold all of them. The
  // last call of each finds its content in the version given for it (where it has versions).
  void ReplayAll(const std::vector<std::uint64_t>& last_versions = {});

 private:
  // Work whose time is the wanted one, and what must be subtracted from it.
  struct Sampler {
    std::string mode;
    std::vector<std::shared_ptr<Recording>> with, without;  // replayed in turn
    std::vector<std::unique_ptr<Recording>> before;         // outside the timed interval, in turn
    int calls = 1;                                          // in the difference
  };
  Sampler MakeSampler(const std::string& mode);
  Sampler LongSampler(bool cold);
  Sampler ColdSampler(int calls);
  Sampler WarmSampler(int calls);
  void EnqueueFlush(Stream stream, std::size_t set);
  double Sample(Sampler& sampler, std::size_t number, MeasuredSeries& series);
  double CallNs();

  Accelerator& gpu_;
  std::vector<DeviceCall> calls_;
  FlushKind flush_;
  std::vector<ContentVersions*> versions_;
  double call_ns_ = 0;
  std::vector<std::shared_ptr<Recording>> single_;  // one call each
  Sampler last_cold_;
};

}  // namespace assay
