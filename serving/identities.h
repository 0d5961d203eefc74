// What must hold inside one run, and what two aggregates alone can say: factorisation of the
// throughput ratio and ranges of quantile ratios from the quantiles themselves.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/stats.h"
#include "serving/metrics.h"
#include "serving/run.h"

namespace assay::serving {

struct Identity {
  int number = 0;  // 1..10, see docs/serving-ab.md
  std::string what;
  double value = 0, expected = 0;
  bool holds = true;
  bool fatal = false;  // 1..5: the file contradicts itself; others are hints
};
std::vector<Identity> CheckIdentities(const Run& run);

// Little's law, N * mean e2el / D, and the idle time per request it implies for a closed loop of
// `concurrency` lanes, Z = c D / N - mean e2el; NaN unless positive.
double RequestsInFlight(const Run& run);
double ImpliedIdle(const Run& run);

// total tokens per second per GPU = request rate * tokens per request; ratios on / off.
struct Factorisation {
  double total = kMissing, request_rate = kMissing, tokens_per_request = kMissing;
  double output_tokens = kMissing;     // output tokens per second
  double computed_prefill = kMissing;  // prompt tokens that the server computed, per second
  double at_equal_idle = kMissing;     // request rate had the on arm the off arm's idle time
  double prompt_share = kMissing;      // of all tokens, both arms
  double cached_share = kMissing;      // of prompt tokens, both arms
  std::optional<Interval> request_rate_interval, output_tokens_interval;  // batch means
};
std::optional<Factorisation> Factorise(const Run& off, const Run& on);

// 95 % range of on/off of a quantile from two aggregates, requests taken as independent. Each arm:
// the rank interval q +- 1.96 sqrt(q(1-q)/n) read off the log-linear quantile function through the
// given quantiles; combined by the method of variance estimates recovery (Zou and Donner 2008).
std::optional<Interval> RatioRangeFromQuantiles(const Run& off, const Run& on,
                                                const Statistic& statistic);

// Mean rate per window and its standard error by batch means over `windows` equal windows of the
// run (Law and Kelton, Simulation Modeling and Analysis, 9.5). `tokens`: output tokens, else
// requests.
struct BatchRate {
  double rate = 0, standard_error = 0;
  int windows = 0;
};
std::optional<BatchRate> RateByBatchMeans(const Run& run, bool tokens, int windows = 24);

}  // namespace assay::serving
