#include "report/json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "replay/ledger.h"
#include "report/analysis.h"

namespace assay {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;

// A time or factor that does not exist is null, never 0.
Json OrNull(double value) { return value > 0 ? Json(value) : Json(nullptr); }

Json IntervalJson(const std::optional<Interval>& interval) {
  return interval ? Json::array({interval->low, interval->high}) : Json(nullptr);
}

Json SummaryJson(const RunReport& report) {
  const Analysis analysis = Analyse(report);
  Json statuses = Json::object();
  for (const auto& [status, count] : analysis.counts) statuses[StatusName(status)] = count;
  Json definitions = Json::array();
  for (const DefinitionSummary& summary : analysis.definitions) {
    definitions.push_back({{"definition", summary.definition},
                           {"backend", summary.backend},
                           {"input_source", summary.input_source},
                           {"cases", summary.cases},
                           {"passed", summary.passed},
                           {"failures", summary.failures},
                           {"timed", summary.timed},
                           {"noisy", summary.noisy},
                           {"median_ns", OrNull(summary.median_ns)},
                           {"geomean_x_floor", OrNull(summary.geomean_x_floor)},
                           {"best_x_floor", OrNull(summary.best_x_floor)},
                           {"worst_x_floor", OrNull(summary.worst_x_floor)}});
  }
  Json comparisons = Json::array();
  for (const DefinitionComparison& comparison : analysis.comparisons) {
    comparisons.push_back({{"definition", comparison.definition},
                           {"backend", comparison.backend},
                           {"baseline", analysis.baseline},
                           {"workloads", comparison.workloads.size()},
                           {"median_speedup", comparison.median},
                           {"interval", IntervalJson(comparison.interval)},
                           {"worst", comparison.worst},
                           {"best", comparison.best}});
  }
  return {{"cases", report.cases.size()},
          {"statuses", statuses},
          {"definitions", definitions},
          {"comparisons", comparisons}};
}

}  // namespace

std::string RunToJson(const RunReport& report) {
  const std::string summary =
      SummaryJson(report).dump(-1, ' ', false, Json::error_handler_t::replace);
  // The parts are complete JSON documents already; parsing every sample again only to print it
  // would double the time.
  std::string out =
      fmt::format(R"({{"schema":{},"run":{},"ceilings":{},"summary":{},"cases":[)", kSchema,
                  RunInfoToJson(report.run), CeilingsToJson(report.ceilings), summary);
  const char* separator = "\n";
  for (const CaseResult& result : report.cases) {
    out += separator;
    out += CaseResultToJson(result, report.run.id);
    separator = ",\n";
  }
  return out + "]}";
}

}  // namespace assay
