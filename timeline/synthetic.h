// Writes Nsight Systems exports for tests and measurements: every schema version of the spec, any
// size, and the odd things that real recordings hold. Nothing here comes from a profiler.
#pragma once

#include <cstdint>
#include <string>

namespace assay::timeline {

struct SyntheticTrace {
  std::string schema =
      "3.25.0";                 // 2.9.1, 3.13.2, 3.20.2, 3.24.14, 3.25.0, 3.28.0 or anything later
  std::int64_t kernels = 1000;  // over all devices
  int devices = 2;              // one process each
  int streams = 2;              // per device
  double api_per_kernel = 2.0;  // the launch call and others
  double nvtx_per_kernel = 0.0;
  int names = 100;
  double lost_tail = 0.0;  // share of the last device's GPU rows that were never delivered
  double slower = 1.0;     // factor on kernel lengths of name 0
  std::uint64_t seed = 1;
};

// Overwrites `path`.
void WriteSyntheticExport(const std::string& path, const SyntheticTrace& spec);

}  // namespace assay::timeline
