// How many turns, minutes and rounds a wanted effect needs, from pilot runs.
#pragma once

#include <string>
#include <vector>

#include "serving/compare.h"

namespace assay::serving {

struct PlanRow {
  double effect = 0;          // relative, 0.05 = 5 %
  double turns = 0;           // per arm and run, for 80 % power within one pair of runs
  double minutes = 0;         // at the pilot's rate
  double power_of_pilot = 0;  // power of a repetition with the pilot's size
  double rounds = kMissing;   // paired rounds for the same power against run-to-run variance
};

struct Plan {
  Statistic statistic;
  double margin = 0.02, power = 0.8;
  double pilot_turns = 0, pilot_minutes = 0, units = 0;
  double standard_error = 0;        // ln, of the pilot's size
  double mde = 0;                   // ln
  double run_deviation = kMissing;  // ln, of one round's effect, from repeated pilots
  std::string source;               // what the standard error was taken from
  std::vector<PlanRow> rows;
};

// Probability that the 95 % interval excludes no effect and the estimate exceeds the margin, for a
// true effect (ln) and a normal estimate.
double PowerOf(double effect, double standard_error, double units, double margin);

// One pilot per arm (paired standard error), or off runs only (two independent runs like the
// pilot). Two or more pilots of an arm give the run-to-run deviation.
Plan MakePlan(const std::vector<Run>& off, const std::vector<Run>& on, const Statistic& statistic,
              const std::vector<double>& effects, double margin, double power,
              std::uint64_t seed = 1);

}  // namespace assay::serving
