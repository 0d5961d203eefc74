// What a GPU can do at most, measured on the spot: the figures behind floors and fractions.
#pragma once

#include <string>
#include <vector>

namespace assay {

struct Ceiling {
  std::string name;  // "read", "l2_read", "grid_barrier", ...: stable, for tables and the ledger
  double value = 0;  // median of n samples
  std::string unit;  // "B/s", "FLOP/s" or "ns"
  std::string how;   // sizes, grids, what was subtracted
  int n = 0;         // samples
  double low = 0, high = 0;  // smallest and largest sample
};

// Bandwidth of memory and L2, costs of launches and barriers, latencies, on the current device of
// this process; about three seconds. Every kernel's result is checked: one that skips work throws
// kInternal. Throws DeviceError when CUDA fails. Nothing else should run on the device.
std::vector<Ceiling> MeasureDeviceCeilings();

// The parts of it.
std::vector<Ceiling> MeasureBandwidth();  // ceilings_bandwidth.cu
std::vector<Ceiling> MeasureLaunches();   // ceilings_latency.cu
std::vector<Ceiling> MeasureLatencies();  // ceilings_latency.cu

}  // namespace assay
