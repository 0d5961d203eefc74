// How much of the recording is missing. A profiler that is killed loses its tail silently: 87 % of
// the rows and every kernel name can be there while the last steps are empty. Each check yields
// ok, suspect or unknown with its numbers; their verdict goes with every figure of the scope.
#pragma once

#include <string>
#include <vector>

#include "timeline/analyze.h"

namespace assay::timeline {

struct Check {
  enum State { kOk, kSuspect, kUnknown } state = kUnknown;
  std::string id;  // "anchors", "tail", "launches", "diagnostics", "graphs", "rows", "steps", "end"
  std::string text;  // one sentence with the numbers
};
const char* CheckStateName(Check::State state);

enum class Coverage { kComplete, kTruncated, kPartial, kUnknown };
const char* CoverageName(Coverage coverage);

struct DeviceCoverage {
  std::uint32_t device = 0;
  Coverage verdict = Coverage::kUnknown;
  Ns truncated_at = 0;  // with kTruncated
  double factor = 1;    // recorded share of the anchor kernels that were to be expected
  bool active = false;  // any row in the scope
  std::vector<Check> checks;
};

struct ScopeCoverage {
  std::vector<DeviceCoverage> devices;
  bool complete() const;  // every device complete: only then verdicts may use the scope
  std::string Sentence(const Trace& trace) const;
};

// Counts per (device, step) of one kernel name, and how even they are.
struct Anchor {
  std::string name;
  std::vector<std::vector<std::int64_t>> counts;  // [device][step]
  std::int64_t most = 0;  // largest count of a cell: what a step should have
  double steadiness = 0;  // share of cells with at least 98 % of `most`
};
// The names with the steadiest count, best first, at most `limit`.
std::vector<Anchor> FindAnchors(const Trace& trace, const std::vector<Window>& steps,
                                std::size_t limit = 5);
// Median over anchors of count / (most * steps) of one device.
double AnchorRatio(const std::vector<Anchor>& anchors, std::size_t device);

ScopeCoverage AuditCoverage(const Trace& trace, const LaunchIndex& index, const ScopeUse& use);

}  // namespace assay::timeline
