// Two recordings compared: per kernel key and per category, with the cause of each change, a noise
// estimate from repeated windows, and a verdict that is refused when coverage differs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/stats.h"
#include "timeline/coverage.h"

namespace assay::timeline {

struct DiffOptions {
  double threshold = 0.05;    // relative change of step time that counts
  double noise_floor = 0.02;  // never believe less than this
  int resamples = 10'000;
};

struct KeyDelta {
  std::string name, short_name, shape;  // shape: grid x block, "" for graphs
  Category category = Category::kCompute;
  std::int64_t count_a = 0, count_b = 0;
  Ns total_a = 0, total_b = 0;
  Ns median_a = 0, median_b = 0;      // per call, unclipped
  std::string cause;                  // "new", "gone", "more launches", "fewer launches", "slower",
                                      // "faster", "same"
  Ns from_count = 0, from_speed = 0;  // how the change splits between number and length of calls
  std::optional<Interval> total_ratio;  // B / A per step, when both have repeated windows
  Ns delta() const { return total_b - total_a; }
};

struct CategoryDelta {
  std::string quantity;  // "window", "busy", "gap", "compute", "comm", "exposed comm", ...
  Ns a = 0, b = 0;       // summed over the mapped devices, per step
};

enum class Verdict { kNeutral, kImprovement, kRegression, kInconclusive, kNotComparable };
const char* VerdictName(Verdict verdict);
int VerdictExitCode(Verdict verdict);  // 0, 0, 1, 5, 6

struct ScopeDiff {
  std::string scope;
  Verdict verdict = Verdict::kInconclusive;
  std::string reason;              // one sentence
  double comparability = 0;        // 0 to 1
  std::vector<std::string> notes;  // what lowers it, causes among the categories
  double change = 0;               // of the step's wall time: B / A - 1
  double noise = 0;
  std::optional<Interval> change_interval;
  std::size_t steps_a = 0, steps_b = 0;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> devices;  // A's and B's
  std::vector<CategoryDelta> categories;
  std::vector<KeyDelta> keys;  // largest absolute change first
};

// What a diff needs of one side.
struct Recording {
  const Trace& trace;
  const LaunchIndex& index;
};

ScopeDiff DiffScope(const Recording& a, const Scope& scope_a, const Recording& b,
                    const Scope& scope_b, const DiffOptions& options = {});

}  // namespace assay::timeline
