// Collectives over ranks: the same call on several devices, its latency and its skew.
#pragma once

#include <string>
#include <vector>

#include "timeline/windows.h"

namespace assay::timeline {

struct CollectiveUse {
  std::string name;
  std::int64_t calls = 0;  // matched on all of its devices
  std::int64_t devices = 0;
  std::int64_t unmatched = 0;     // rows of devices that have more of them than others
  Ns latency_p50 = 0;             // min duration over ranks: what the transfer itself took
  Ns skew_p50 = 0, skew_max = 0;  // spread of starts: what ranks waited for each other
  Ns waited = 0;                  // sum over calls and ranks of duration - latency
};

// Communication kernels are matched by order per (name, stream order): the k-th call of a name on
// one device is the k-th on every other. Empty with fewer than two devices.
std::vector<CollectiveUse> AnalyzeCollectives(const Trace& trace, const WindowMap& map);

}  // namespace assay::timeline
