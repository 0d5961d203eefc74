// Generated serving runs with known truth, for tests, benches and checks of the method; and the
// method's false-positive rate and power on a user's own pairs.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "serving/compare.h"
#include "serving/run.h"

namespace assay::serving {

struct SimulationOptions {
  int clusters = 40;                  // conversations (root traces)
  int turns = 25;                     // turns per conversation that both arms reach
  double cluster_sd = 0.3;            // ln, difficulty of a conversation, the same in both arms
  double cluster_effect_sd = 0.03;    // ln, how much the effect differs between conversations
  double noise_sd = 0.10;             // ln, per turn and arm
  double autocorrelation = 0.5;       // of that noise along a conversation
  double stall_share = 0.02;          // heavy tail: share of turns that take three times as long
  double speedup = 1.0;               // off time / on time of treated turns
  double treated_share = 1.0;         // share of turns on the treated path
  bool hard_turns_fall_back = false;  // the other turns are the hardest ones, else random ones
  int extra_easy_turns = 0;  // on arm only: further turns per conversation, 1.6 times faster
  double run_sd = 0.0;       // ln, one random factor per run
  double off_factor = 1.0;   // time factor of the whole off arm (hardware set, clocks, drift)
  double on_factor = 1.0;
  double drift_per_hour = 0.0;  // ln, both arms slow down with time
  int concurrency = 4;
  double start_offset_s = 0;  // the on arm starts that much later
};

// Two runs of one experiment; their facts are complete, so that every gate can pass; they
// differ in the fact `kernel`, the treatment.
Round SimulateRound(const SimulationOptions& options, std::uint64_t seed);

// One comparison reduced to its primary interval; effects are ln, > 0 = better.
struct Trial {
  double effect = 0;
  Interval interval;
  double standard_error = 0, units = 0;
  bool from_swaps = false;  // the interval's method
};
Trial RunTrial(const Round& round, const Statistic& statistic, int resamples, std::uint64_t seed);

struct ErrorRates {
  int trials = 0, faster = 0, slower = 0;
  double Share() const { return trials > 0 ? static_cast<double>(faster + slower) / trials : 0; }
};

// On the user's own pairs: arms are swapped at random per unit after the centre of the effects was
// removed (so there is no effect), then the on arm is made faster by `effect` (ln). Counts how
// often the 95 % interval excludes "no effect".
ErrorRates ErrorRatesOnData(const Round& data, const Statistic& statistic, double effect,
                            int trials, int resamples, std::uint64_t seed);

}  // namespace assay::serving
