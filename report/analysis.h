// What every report shows, computed once: headline timings, distance from the floor, counts,
// summaries per definition, speed-ups between backends. Views point into the analysis's rows and
// into the RunReport that it was made of.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/stats.h"
#include "replay/ledger.h"
#include "report/report.h"

namespace assay {

struct CaseView {
  const CaseRow* row = nullptr;
  const CaseResult* result = nullptr;       // null in an analysis of rows
  std::size_t index = 0;                    // in the run
  const TimingSummary* headline = nullptr;  // in row->timing; null = not timed
  double x_floor = 0;                       // headline median / floor; 0 = unknown

  // Half-width of the headline's interval relative to its median; empty when not timed
  // or with too few samples for an interval.
  std::optional<double> half_width() const;
};

// Cases of one definition, backend and input source (generated and stored inputs never share a
// mean). Timings are those of `passed` cases only.
struct DefinitionSummary {
  std::string definition, backend, input_source;
  std::int64_t cases = 0, passed = 0, failures = 0, timed = 0, noisy = 0;
  double median_ns = 0;  // median of the cases' medians; 0 = none timed
  std::int64_t with_floor = 0;
  double geomean_x_floor = 0, best_x_floor = 0, worst_x_floor = 0;  // 0 = no floor known
};

// One workload on two backends, both `passed` and timed in the same mode.
struct Comparison {
  std::size_t base = 0, other = 0;  // indices into Analysis::cases
  std::string mode;
  double speedup = 0;                // base median / other median: above 1 = `other` is faster
  std::optional<Interval> interval;  // 95 %; empty with too few samples
};

struct DefinitionComparison {
  std::string definition, backend;
  std::vector<Comparison> workloads = {};  // in table order
  double median = 0, worst = 0, best = 0;
  std::optional<Interval> interval = {};  // 95 %, of the median over workloads; empty below 6
};

struct Analysis {
  std::shared_ptr<const std::vector<CaseRow>> rows;  // in the order of the run; what views show
  std::vector<CaseView> cases;  // by definition (first seen first), axes, uuid, backend
  std::vector<std::pair<Status, std::int64_t>> counts;  // statuses that occur, in enum order
  std::vector<DefinitionSummary> definitions;           // same order as `cases`
  std::string baseline;                                 // "" when there is only one backend
  std::vector<DefinitionComparison> comparisons;
  bool mixed_sources = false;  // generated and stored inputs in one run
};

// `baseline`: the backend that others are compared with; "" = the one with the most timed cases,
// then the first by name.
Analysis Analyse(const RunReport& report, const std::string& baseline = "");
Analysis Analyse(std::vector<CaseRow> rows, const std::string& baseline = "");

// "B=1 Np=25 Nq=4096". With `brief`, names of several words become initials (num_seqs -> ns) where
// they stay unique.
std::string AxesText(const Axes& axes, bool brief = false);
std::string BriefAxisName(const Axes& axes, const std::string& name);

// "passed captured", "incorrect numerical".
std::string VerdictText(const CaseRow& row);

// "out[17, 3]"; the bare name when no element is known.
std::string ElementText(const OutputCheck& check);

// One or two sentences: the worst element with both values, the reason, failed whole-output checks.
std::string FailureText(const CaseView& view);

// The first 8 characters of a uuid; the whole when shorter.
std::string ShortUuid(const std::string& uuid);

}  // namespace assay
