// Accuracy by problem: paired bootstrap over problems and non-inferiority at a margin.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/stats.h"

namespace assay::serving {

struct AccuracyRun {
  std::string label;
  struct Problem {
    std::string name;
    std::vector<double> scores;  // one per sample, 0..1
  };
  std::vector<Problem> problems;
  bool simulated_acceptance = false;  // then the outputs are not the model's
};
// JSONL or CSV with columns problem, correct (0/1, true/false or a score) and optional sample.
AccuracyRun ReadAccuracy(const std::string& path);

struct AccuracyResult {
  std::int64_t problems = 0, samples = 0;
  double off = 0, on = 0, difference = 0;  // shares
  Interval interval;                       // 95 %, paired by problem
  double one_sided_low = 0;                // 95 % lower bound
  double margin = 0;
  bool non_inferior = false;  // one_sided_low > -margin
  bool worse = false;         // interval entirely below 0
  std::int64_t off_only = 0, on_only = 0;
};
AccuracyResult CompareAccuracy(const AccuracyRun& off, const AccuracyRun& on, double margin,
                               std::uint64_t seed, int resamples = 10000);

}  // namespace assay::serving
