// The comparison of two arms: everything that the pages print, and the verdict.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/stats.h"
#include "serving/accuracy.h"
#include "serving/gates.h"
#include "serving/identities.h"
#include "serving/metrics.h"
#include "serving/pairing.h"
#include "serving/rank_tests.h"
#include "serving/run.h"

namespace assay::serving {

struct CompareOptions {
  Statistic primary;                             // p90:e2e_norm_intvty
  double margin = 0.02;                          // relative effect of no interest
  std::map<std::string, std::string> treatment;  // declared differences: fact -> value, "" = any
  std::set<std::string> allow;                   // gate codes that may not refuse
  double accuracy_margin = 0.02;                 // share of problems
  int resamples = 10000;
  std::uint64_t seed = 0;  // 0: from the hashes of the inputs
};

struct Round {
  Run off, on;
  bool swapped = false;  // the arms ran on each other's hardware
};

struct CompareInput {
  std::vector<Round> rounds;  // at least one
  std::optional<Round> control;
  std::optional<AccuracyRun> accuracy_off, accuracy_on;
};

// One statistic on one population. Ratios are on / off of the metric as named; `effect` > 0 always
// means better (rates up, times down), as a natural logarithm.
struct MetricResult {
  Statistic statistic;
  std::string population;  // both, all, both with equal output
  std::string method;
  double off = kMissing, on = kMissing;
  double effect = kMissing;
  std::optional<Interval> effect_interval;  // 95 %
  std::optional<Interval> effect_90;        // for equivalence
  std::optional<HodgesLehmann> typical;     // paired, of effects
  std::optional<MannWhitney> unpaired;
  std::int64_t n_off = 0, n_on = 0;
  std::int32_t clusters = 0;
  double units = 0;  // independent units behind the interval
  double standard_error = kMissing, p = kMissing, p_adjusted = kMissing, mde = kMissing;
  std::string suppressed;  // why there is no number
  double Ratio() const;    // on / off in the metric's own scale
  Interval RatioInterval() const;
};

struct ShiftPoint {
  double q = 0;
  double effect = 0;
  Interval band;  // simultaneous, 95 %
};

struct RoundResult {
  std::string off, on;
  bool swapped = false;
  double effect = kMissing;
};

struct RunLevel {
  std::vector<RoundResult> rounds;
  std::optional<Interval> interval;              // t, needs 3 rounds
  double mean = kMissing, deviation = kMissing;  // of the effects
  std::optional<double> crossover, set_effect;   // swapped sets
};

struct Ledger {
  std::int64_t both = 0, off_only = 0, on_only = 0;
  KeyKind key = KeyKind::kNone;
  std::string note;
  double rank_leverage = 0;  // (1 - q) (n_all - n_both): ranks by which the target moves
  struct Row {
    std::string population;
    std::int64_t count = 0;
    double isl = kMissing, osl = kMissing, primary = kMissing;  // means, and the primary statistic
  };
  std::vector<Row> rows;
};

struct Stationarity {
  std::vector<double> quarter_effects;
  std::optional<Interval> half_ratio;  // second half's effect - first half's, with 95 %
  std::int64_t mser_off = 0, mser_on = 0;
  double effective_pairs = kMissing, rho1 = kMissing;
};

enum class Verdict {
  kFaster,
  kFasterTailNotHelped,
  kEquivalent,
  kSlower,
  kMixed,
  kInconclusive,
  kPointEstimateOnly,
  kNotComparable,
};
std::string_view NameOf(Verdict verdict);

struct PointEstimate {  // aggregates only
  Statistic statistic;
  double off = kMissing, on = kMissing;
  std::optional<Interval> range;  // of the ratio, from the quantiles alone
};

struct Comparison {
  CompareOptions options;
  int level = 1;
  std::vector<const Run*> off_runs, on_runs;  // into the caller's CompareInput
  std::vector<Gate> gates;
  std::vector<std::pair<std::string, std::vector<Identity>>> identities;  // by run label
  std::vector<MetricResult> metrics;                                      // primary first
  std::vector<ShiftPoint> shift;
  Ledger ledger;
  Stationarity stationarity;
  RunLevel run_level;
  std::optional<Factorisation> factorisation;
  std::vector<PointEstimate> points;
  double floor = 0;          // smallest effect that the noise cannot make, log scale
  std::string floor_source;  // "control", "spread of the off runs", "margin only"
  std::optional<MetricResult> control;
  std::optional<AccuracyResult> accuracy;
  Verdict verdict = Verdict::kInconclusive;
  int exit_code = 5;
  std::string sentence;              // the verdict line
  std::vector<std::string> caveats;  // in the verdict's scope
  std::vector<std::string> missing;  // what would be needed, with the flag or file
  std::uint64_t seed = 0;

  const MetricResult* Find(const Statistic& statistic, std::string_view population) const;
  const MetricResult* Primary() const { return metrics.empty() ? nullptr : &metrics.front(); }
};

Comparison Compare(const CompareInput& input, const CompareOptions& options);

// Smallest effect found with 80 % power at two-sided 5 %: (critical value + 0.84) SE; 2.80 SE with
// many units.
double MinimumDetectableEffect(double standard_error, double units);

// Fills verdict, exit code, sentence, caveats and missing items from the rest.
void Decide(Comparison& comparison);

}  // namespace assay::serving
