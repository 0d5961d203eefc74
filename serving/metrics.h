// The metrics of a serving run. Every one is reduced to a time per request ("cost"): ttft, e2el,
// itl, e2e per token. A rate is the inverse of its time, so that P90 of a rate is the value that
// 90 % of requests reach or beat: 1 / P90 of the time (the slow side).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serving/run.h"

namespace assay::serving {

enum class Metric {
  kIntvty,         // 1 / itl, tokens/s per user
  kE2eNormIntvty,  // osl / e2el, tokens/s per user; includes queueing and prefill
  kTtft,           // s
  kE2el,           // s
  kItl,            // s per token; = tpot
  kE2ePerToken,    // e2el / osl, s
};
std::string_view NameOf(Metric metric);
bool IsRate(Metric metric);
std::optional<Metric> MetricNamed(std::string_view name);  // accepts tpot, e2e, e2e_norm, ...

// A statistic of a metric: quantile q, or the mean (q = 0). The mean of a rate is harmonic.
struct Statistic {
  Metric metric = Metric::kE2eNormIntvty;
  double q = 0.9;
};
std::string NameOf(const Statistic& statistic);  // "p90:e2e_norm_intvty", "mean:ttft"
// Throws for an unknown metric or percentile.
Statistic ParseStatistic(std::string_view text);

// The time of one request behind a metric, NaN when it cannot be formed (osl < 2 for itl).
double Cost(const Request& request, Metric metric);
// From a cost to the metric's own scale: 1/x for rates.
double FromCost(Metric metric, double cost);

// Linear interpolation between order statistics (Hyndman and Fan type 7) of sorted values.
double QuantileType7(std::span<const double> sorted, double q);
// The statistic of costs (any order): quantile or mean, as a cost.
double CostStatistic(std::span<const double> costs, double q);

// Costs of the measured requests (successful, profiling), NaN left out.
std::vector<double> Costs(const Run& run, Metric metric);
// The statistic from requests where there are any, else from the aggregate; NaN when absent.
double Value(const Run& run, const Statistic& statistic);
// Number of requests behind it.
double CountOf(const Run& run, Metric metric);

}  // namespace assay::serving
