// Does the timing of devices tell the truth? Work of known length, timed as a backend would be.
#pragma once

#include <string>
#include <vector>

#include "cuda/accelerator.h"
#include "cuda/timing_probes.h"

namespace assay {

struct TimingTrial {
  std::string name;                // "spin 10 us, cold"
  std::string mode;                // the series' mode, e.g. "cold_graph"; "" when nothing was timed
  double known_ns = 0;             // what must come out; 0 = only a range is known
  double median_ns = 0;            // what came out
  double low_ns = 0, high_ns = 0;  // what is accepted
  std::string answer;              // a refusal's words, else ""
  bool passed = false;
};

// About ten seconds. Spins of 2, 10, 100 and 1000 us beyond an empty kernel must come out within 3
// % or 0.3 us of what the device's own clock says (the cost of a node in a graph, which the empty
// kernel shows, belongs to every operator and is not subtracted from results); a dependent pair, a
// copy, parallel streams within what their parts allow; work on a stream that never joins, and work
// outside the given stream, must be refused; a read of 20 MB must be slower cold than warm, also
// when it pins its lines.
std::vector<TimingTrial> TryTiming(Accelerator& gpu, TimingProbes& probes);

}  // namespace assay
