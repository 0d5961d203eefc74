// Nsight Compute CSV: details page and raw page, with the plausibility checks of the spec.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "timeline/csv.h"
#include "timeline/replays.h"

namespace assay::timeline {

std::optional<double> NcuNumber(std::string_view text, bool decimal_comma) {
  std::string plain;
  for (const char c : text) {
    if (c == (decimal_comma ? '.' : ',')) continue;  // thousands
    plain += c == ',' ? '.' : c;
  }
  double value = 0;
  const auto [end, problem] = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (problem != std::errc() || end != plain.data() + plain.size()) return std::nullopt;
  return value;
}

const NcuMetric* NcuLaunch::Find(std::string_view name) const {
  for (const NcuMetric& metric : metrics) {
    if (metric.name == name) return &metric;
  }
  return nullptr;
}

namespace {

// "12.319.469" has two points, "4.963.609,95" a comma behind a point: a European locale.
bool UsesDecimalComma(const CsvTable& table, int value) {
  for (std::size_t k = 0; k < table.rows.size(); ++k) {
    const std::string_view text = table.Cell(k, value);
    const auto points = std::count(text.begin(), text.end(), '.');
    const auto commas = std::count(text.begin(), text.end(), ',');
    if (points > 1 || (points == 1 && commas == 1 && text.find('.') < text.find(','))) return true;
    if (commas > 1 || (points == 1 && commas == 1)) return false;
  }
  return false;
}

NcuLaunch& LaunchOf(std::vector<NcuLaunch>& launches, const CsvTable& table, std::size_t row) {
  const std::string id(table.Cell(row, table.Column("ID")));
  if (launches.empty() || launches.back().id != id) {
    NcuLaunch launch;
    launch.id = id;
    launch.kernel = std::string(table.Cell(row, table.Column("Kernel Name")));
    launch.grid = std::string(table.Cell(row, table.Column("Grid Size")));
    launch.block = std::string(table.Cell(row, table.Column("Block Size")));
    launch.device = std::string(table.Cell(row, table.Column("Device")));
    launches.push_back(std::move(launch));
  }
  return launches.back();
}

}  // namespace

std::vector<NcuLaunch> ParseNcuCsv(std::string_view text, const std::string& path) {
  const CsvTable table = ParseCsv(text, "ID");
  if (table.header.empty()) {
    BadInput(path + " has no line that begins with \"ID\": not a table of Nsight Compute");
  }
  std::vector<NcuLaunch> launches;
  if (const int value = table.Column("Metric Value"); value >= 0) {
    const bool comma = UsesDecimalComma(table, value);
    for (std::size_t k = 0; k < table.rows.size(); ++k) {
      NcuLaunch& launch = LaunchOf(launches, table, k);
      const auto number = NcuNumber(table.Cell(k, value), comma);
      if (!number) continue;  // rules and text metrics
      launch.metrics.push_back({std::string(table.Cell(k, table.Column("Section Name"))),
                                std::string(table.Cell(k, table.Column("Metric Name"))),
                                std::string(table.Cell(k, table.Column("Metric Unit"))), *number});
    }
    return launches;
  }
  // Raw page: one launch a row, units in the first row.
  if (table.rows.empty()) return launches;
  for (std::size_t k = 1; k < table.rows.size(); ++k) {
    NcuLaunch& launch = LaunchOf(launches, table, k);
    for (std::size_t c = 0; c < table.header.size(); ++c) {
      if (table.header[c].find("__") == std::string::npos) continue;
      const auto number = NcuNumber(table.Cell(k, static_cast<int>(c)), false);
      if (!number) continue;
      launch.metrics.push_back(
          {"", table.header[c], std::string(table.Cell(0, static_cast<int>(c))), *number});
    }
  }
  return launches;
}

std::vector<std::string> NcuProblems(const NcuLaunch& launch) {
  std::vector<std::string> problems;
  const auto value = [&](std::string_view name) -> std::optional<double> {
    const NcuMetric* metric = launch.Find(name);
    return metric ? std::optional<double>(metric->value) : std::nullopt;
  };
  const auto either = [&](std::string_view a, std::string_view b) {
    const auto first = value(a);
    return first ? first : value(b);
  };
  const auto registers = either("Registers Per Thread", "launch__registers_per_thread");
  const auto threads = either("Block Size", "launch__block_size");
  if (registers && threads && *registers * *threads > 65'536) {
    problems.push_back(fmt::format("launch {}: {} registers x {} threads exceed the register file",
                                   launch.id, *registers, *threads));
  }
  const auto sum = value("dram__bytes.sum.per_second"), avg = value("dram__bytes.avg.per_second");
  if (sum && avg && *avg > 0) {
    const double units = *sum / *avg;
    if (std::fabs(units - std::round(units)) > 0.01 * units || units < 1) {
      problems.push_back(
          fmt::format("launch {}: sum / avg of dram__bytes is {:.2f}, not a number of memory units",
                      launch.id, units));
    }
  }
  for (const NcuMetric& metric : launch.metrics) {
    if (metric.unit == "%" && (metric.value < 0 || metric.value > 400)) {
      problems.push_back(
          fmt::format("launch {}: {} is {} %", launch.id, metric.name, metric.value));
    }
  }
  return problems;
}

ForeignRun NcuRun(const std::vector<NcuLaunch>& launches, const std::string& path) {
  ForeignRun out;
  const std::string file = path.substr(path.rfind('/') + 1);
  out.run.id = "foreign-ncu-" + file;
  out.run.command = "imported from " + file;
  out.run.device_id = "foreign";
  for (const NcuLaunch& launch : launches) {
    CaseResult result;
    result.uuid = "ncu-" + file + "-" + launch.id;
    result.definition = launch.kernel;
    result.family = "foreign_kernel";
    result.backend = "ncu";
    result.status = Status::kPendingAudit;
    result.reason = "profiled once under counters: no timing claim, nothing verified";
    result.flags = {"foreign", "gate:null", "grid:" + launch.grid, "block:" + launch.block};
    for (const NcuMetric& metric : launch.metrics) {
      result.flags.push_back(fmt::format("{}={:.6g} {}", metric.name, metric.value, metric.unit));
    }
    for (const std::string& problem : NcuProblems(launch)) {
      result.flags.push_back("implausible:" + problem);
    }
    out.cases.push_back(std::move(result));
  }
  return out;
}

}  // namespace assay::timeline
