// Who this machine is, and what it can do at most: the ceilings behind every floor.
#pragma once

#include <string>

#include "replay/result.h"

namespace assay {

// Identity and environment, without measuring: host, CPU model, threads, compiler, commit, OS.
RunInfo DescribeRun(const std::string& command, int threads);

// Measures copy, read and write bandwidth, the bf16 and fp32 matrix rates and the cost of a
// parallel launch, on `threads` threads (0 = all). Takes about three seconds.
Ceilings MeasureCeilings(int threads);

// "Intel(R) Xeon(R) Processor, 2 threads" and its stable identity (a hash prefix).
std::string DeviceName(int threads);
std::string DeviceId(int threads);

// Bytes that can be allocated now without swapping (MemAvailable); 0 when unknown.
std::int64_t AvailableMemoryBytes();

// UTC, ISO 8601, seconds: "2026-11-30T11:45:00Z".
std::string Timestamp();

}  // namespace assay
