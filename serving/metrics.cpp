#include "serving/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/stats.h"
#include "serving/json_lines.h"

namespace assay::serving {
namespace {

struct MetricName {
  Metric metric;
  std::string_view name;
};
// The first name of a metric is the one that is printed.
constexpr MetricName kNames[] = {
    {Metric::kIntvty, "intvty"},
    {Metric::kIntvty, "interactivity"},
    {Metric::kE2eNormIntvty, "e2e_norm_intvty"},
    {Metric::kE2eNormIntvty, "e2e_norm"},
    {Metric::kTtft, "ttft"},
    {Metric::kE2el, "e2el"},
    {Metric::kE2el, "e2e"},
    {Metric::kItl, "itl"},
    {Metric::kItl, "tpot"},
    {Metric::kE2ePerToken, "e2e_per_token"},
};

double Find(const Run& run, const char* name, double q) {
  const auto found = run.aggregate.find(name);
  if (found == run.aggregate.end()) return kMissing;
  return q == 0 ? found->second.mean : found->second.At(q);
}

}  // namespace

std::string_view NameOf(Metric metric) {
  for (const MetricName& entry : kNames) {
    if (entry.metric == metric) return entry.name;
  }
  return "";
}

bool IsRate(Metric metric) { return metric == Metric::kIntvty || metric == Metric::kE2eNormIntvty; }

std::optional<Metric> MetricNamed(std::string_view name) {
  for (const MetricName& entry : kNames) {
    if (entry.name == name) return entry.metric;
  }
  return std::nullopt;
}

std::string NameOf(const Statistic& statistic) {
  if (statistic.q == 0) return fmt::format("mean:{}", NameOf(statistic.metric));
  return fmt::format("p{:.10g}:{}", 100 * statistic.q, NameOf(statistic.metric));
}

Statistic ParseStatistic(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view rank = text.substr(0, colon);
  const std::optional<Metric> metric =
      colon == std::string_view::npos ? std::nullopt : MetricNamed(text.substr(colon + 1));
  if (metric.has_value() && rank == "mean") return {*metric, 0};
  const double percent = rank.starts_with('p') ? NumberOfText(rank.substr(1)) : kMissing;
  if (!metric.has_value() || !(percent > 0 && percent < 100)) {
    BadInput(fmt::format("\"{}\" is no metric: write p90:e2e_norm_intvty, p50:ttft, mean:itl ...",
                         text));
  }
  return {*metric, percent / 100};
}

double Cost(const Request& request, Metric metric) {
  switch (metric) {
    case Metric::kTtft:
      return request.ttft_s;
    case Metric::kE2el:
      return request.e2e_s;
    case Metric::kItl:
    case Metric::kIntvty:
      return request.itl_s > 0 ? request.itl_s : kMissing;
    case Metric::kE2ePerToken:
    case Metric::kE2eNormIntvty:
      return request.osl >= 1 ? request.e2e_s / request.osl : kMissing;
  }
  return kMissing;
}

double FromCost(Metric metric, double cost) { return IsRate(metric) ? 1 / cost : cost; }

double QuantileType7(std::span<const double> sorted, double q) {
  if (sorted.empty()) return kMissing;
  const double h = static_cast<double>(sorted.size() - 1) * q;
  const auto low = static_cast<std::size_t>(std::floor(h));
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (h - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

double CostStatistic(std::span<const double> costs, double q) {
  return q == 0 ? Mean(costs) : QuantileType7(Sorted(costs), q);
}

std::vector<double> Costs(const Run& run, Metric metric) {
  std::vector<double> costs;
  for (const Request& request : run.requests) {
    if (!request.Measured()) continue;
    const double cost = Cost(request, metric);
    if (!std::isnan(cost)) costs.push_back(cost);
  }
  return costs;
}

double Value(const Run& run, const Statistic& statistic) {
  if (run.EvidenceLevel() > 1) {
    return FromCost(statistic.metric, CostStatistic(Costs(run, statistic.metric), statistic.q));
  }
  const double q = statistic.q;
  switch (statistic.metric) {
    case Metric::kTtft:
      return Find(run, "ttft", q);
    case Metric::kE2el:
      return Find(run, "e2el", q);
    case Metric::kItl:
      return Find(run, "itl", q);
    case Metric::kIntvty: {
      // The aggregate's own rate has more digits than 1 / (itl rounded to 10 us).
      const double own = Find(run, "intvty", q);
      return std::isnan(own) ? 1 / Find(run, "itl", q) : own;
    }
    case Metric::kE2ePerToken: {
      const double own = Find(run, "e2e_per_token", q);
      return std::isnan(own) ? 1 / Find(run, "e2e_norm_intvty", q) : own;
    }
    case Metric::kE2eNormIntvty: {
      const double own = Find(run, "e2e_norm_intvty", q);
      return std::isnan(own) ? 1 / Find(run, "e2e_per_token", q) : own;
    }
  }
  return kMissing;
}

double CountOf(const Run& run, Metric metric) {
  if (run.EvidenceLevel() > 1) return static_cast<double>(Costs(run, metric).size());
  return run.Number("successes");
}

}  // namespace assay::serving
