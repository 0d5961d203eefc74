// Readers: one function per input format, and the one that looks at a file and picks.
#pragma once

#include <string>
#include <vector>

#include "timeline/trace.h"

namespace assay::timeline {

struct ReadOptions {
  CommRules comm;
  bool use_pages = true;  // false: read SQLite tables through SQLite only
};

// Nsight Systems SQLite export, schema 2.9 to 3.28, and what our recorder writes.
Trace ReadNsys(const std::string& path, const ReadOptions& options = {});
// PyTorch / Kineto Chrome trace, already decompressed. `path` is for messages.
Trace ReadKineto(const std::string& path, std::string_view json, const ReadOptions& options = {});
// rocprofv3 JSON (rocprofiler-sdk-tool) and CSV (kernel_trace, memory_copy_trace, hip_api_trace).
Trace ReadRocprofJson(const std::string& path, std::string_view json,
                      const ReadOptions& options = {});
Trace ReadRocprofCsv(const std::string& path, std::string_view text,
                     const ReadOptions& options = {});

// The whole file, gunzipped when it is gzip. Throws kInput with one sentence.
std::string ReadWholeFile(const std::string& path);

// Looks at the content. A gzipped SQLite export is unpacked to a temporary file first.
Trace ReadTrace(const std::string& path, const ReadOptions& options = {});

// Several files of one run on one clock: CLOCK_MONOTONIC when all files have it and were on one
// host, else the wall clock; refuses when there is neither.
Trace ReadRun(const std::vector<std::string>& paths, const ReadOptions& options = {});

}  // namespace assay::timeline
