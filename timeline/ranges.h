// NVTX ranges (and Kineto annotations) with the GPU time that calls made inside them caused.
#pragma once

#include <string>
#include <vector>

#include "timeline/analyze.h"

namespace assay::timeline {

struct RangeUse {
  std::string name, domain;
  std::int64_t count = 0, unclosed = 0;
  std::int64_t depth = 0;          // smallest nesting depth seen
  Ns host_ns = 0;                  // summed over threads, whole ranges
  Ns self_ns = 0;                  // without nested ranges of the same thread and domain
  std::int64_t gpu_rows = 0;       // rows launched from inside
  Ns gpu_sum_ns = 0;               // their lengths
  Ns gpu_union_ns = 0;             // union per range instance, summed
  Ns gpu_first = 0, gpu_last = 0;  // extent of all of them; 0, 0 without rows
};

// All closed and unclosed ranges that start inside the scope, by name and domain; largest GPU time
// first. Stack sweep per (thread, domain): O(N log N), never a join of ranges with rows by time.
std::vector<RangeUse> AnalyzeRanges(const Trace& trace, const LaunchIndex& index,
                                    const WindowMap& map);

}  // namespace assay::timeline
