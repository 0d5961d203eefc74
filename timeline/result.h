// Everything that was computed about one run, and its writers. Every list has a total order: the
// same input gives the same bytes.
#pragma once

#include <string>
#include <vector>

#include "timeline/collectives.h"
#include "timeline/coverage.h"
#include "timeline/diff.h"
#include "timeline/ranges.h"

namespace assay::timeline {

inline constexpr int kTimelineJsonVersion = 1;

struct ScopeResult {
  ScopeUse use;
  ScopeCoverage coverage;
  std::vector<RangeUse> ranges;
  std::vector<CollectiveUse> collectives;
};

struct TimelineResult {
  const Trace& trace;
  const LaunchIndex& index;
  std::vector<ScopeResult> scopes;
};

TimelineResult AnalyzeRun(const Trace& trace, const LaunchIndex& index,
                          const std::vector<Scope>& scopes, const AnalyzeOptions& options);

// One screen per scope.
std::string SummaryText(const TimelineResult& result, int width, bool colour, int top);
std::string DiffText(const std::vector<ScopeDiff>& diffs, int width, bool colour, int top);
// Stable JSON: version, sources, capability table, scopes. Its scope objects are a superset of the
// profile summaries (top_time, top_count, groups, devices, copies, wait_apis).
std::string ResultToJson(const TimelineResult& result);
std::string DiffToJson(const std::vector<ScopeDiff>& diffs);
// Tables "devices", "groups", "copies", "waits", "gaps", "ranges", "coverage".
std::string ResultToCsv(const TimelineResult& result, const std::string& table);
const std::vector<std::string>& CsvTables();
// Perfetto protobuf: one track per stream (extra lanes where rows overlap), flows from launch to
// kernel, API calls per thread.
std::string ResultToPerfetto(const TimelineResult& result);
// One offline page.
std::string ResultToHtml(const TimelineResult& result);

// The spec's identities on the device rows of a profile summary (JSON text, in ms); one sentence
// per broken one. `rows` counts what was checked.
std::vector<std::string> CheckSummary(const std::string& json, int& rows);

}  // namespace assay::timeline
