// Recorder segments to one Nsight-compatible SQLite export (schema 3.25 names).
#pragma once

#include <string>
#include <vector>

namespace assay::timeline {

struct SegmentTotals {
  int processes = 0,
      unfinished = 0;  // unfinished: no end marker, or torn in the middle of a record
  long long kernels = 0, copies = 0, calls = 0, markers = 0;
  unsigned long long dropped = 0;
};

// Reads the segment files and replaces `output`. Torn tails are kept up to the last whole record.
// Throws kInput when a file is no segment, and kDevice when the output cannot be written.
SegmentTotals ConvertSegments(const std::vector<std::string>& segments, const std::string& output);

}  // namespace assay::timeline
