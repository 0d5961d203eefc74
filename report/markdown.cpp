#include "report/markdown.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "report/analysis.h"
#include "report/table.h"
#include "report/text.h"

namespace assay {
namespace {

std::string SpeedupText(const Analysis& analysis, const DefinitionSummary& summary) {
  if (summary.backend == analysis.baseline) return summary.timed > 0 ? "1" : "-";
  for (const DefinitionComparison& comparison : analysis.comparisons) {
    if (comparison.definition != summary.definition || comparison.backend != summary.backend) {
      continue;
    }
    const auto count = static_cast<std::int64_t>(comparison.workloads.size());
    // A single workload has an interval of its own; several have one of their median.
    const auto& interval = count == 1 ? comparison.workloads[0].interval : comparison.interval;
    const std::string range =
        interval
            ? fmt::format("{} to {}", FormatFactor(interval->low), FormatFactor(interval->high))
            : fmt::format("range {} to {}", FormatFactor(comparison.worst),
                          FormatFactor(comparison.best));
    return fmt::format("{} ({}, n = {})", FormatFactor(comparison.median), range,
                       FormatCount(count));
  }
  return "-";
}

std::string DefinitionTable(const Analysis& analysis) {
  std::vector<Column> columns = {{.title = "definition"},
                                 {.title = "backend"},
                                 {.title = "workloads", .align = Align::kRight},
                                 {.title = "passed", .align = Align::kRight},
                                 {.title = "median", .align = Align::kRight},
                                 {.title = "of floor", .align = Align::kRight}};
  if (analysis.mixed_sources) columns.push_back({.title = "inputs"});
  if (!analysis.baseline.empty()) {
    columns.push_back({.title = fmt::format("speed-up over {}", analysis.baseline)});
  }
  std::vector<DefinitionSummary> rows = analysis.definitions;
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return std::tie(a.definition, a.backend, a.input_source) <
           std::tie(b.definition, b.backend, b.input_source);
  });
  Table table(columns);
  for (const DefinitionSummary& row : rows) {
    const bool floor = row.geomean_x_floor > 0;
    std::vector<Cell> cells = {
        Cell(row.definition),
        Cell(row.backend),
        Cell(FormatCount(row.cases)),
        Cell(FormatCount(row.passed)),
        Cell(row.timed > 0 ? FormatTime(row.median_ns) : "-"),
        Cell(floor ? fmt::format("{} %", FormatFactor(100 / row.geomean_x_floor)) : "-")};
    if (analysis.mixed_sources) cells.emplace_back(row.input_source);
    if (!analysis.baseline.empty()) cells.emplace_back(SpeedupText(analysis, row));
    table.Add(std::move(cells));
  }
  return table.Markdown();
}

std::string FailureList(const Analysis& analysis) {
  std::vector<const CaseView*> failures;
  for (const CaseView& view : analysis.cases) {
    if (IsFailure(view.row->status)) failures.push_back(&view);
  }
  if (failures.empty()) return "";
  const auto key = [](const CaseView* view) {
    return std::tie(view->row->definition, view->row->axes, view->row->uuid, view->row->backend);
  };
  std::sort(failures.begin(), failures.end(),
            [&](const CaseView* a, const CaseView* b) { return key(a) < key(b); });
  std::string out = "\nNot passed:\n\n";
  for (const CaseView* view : failures) {
    const CaseRow& row = *view->row;
    const std::string line =
        fmt::format("{}: {} {}, {} ({}). {}", VerdictText(row), row.definition, AxesText(row.axes),
                    row.backend, ShortUuid(row.uuid), FailureText(*view));
    out += fmt::format("- {}\n", MarkdownEscape(line));
  }
  return out;
}

std::string Provenance(const RunReport& report) {
  const RunInfo& run = report.run;
  std::string out =
      fmt::format("Run {}: {} on {} ({}), {} threads, seed {}, commit {}, {}.", run.id, run.command,
                  run.device, run.os, run.threads, run.seed, run.commit, run.compiler);
  if (!run.accelerator.empty()) {
    out += fmt::format(" GPU: {} ({}).", run.accelerator, run.accelerator_id);
  }
  // With a GPU, its ceilings are what the floors of interest come from.
  const Ceilings& ceilings = report.gpu.copy_bytes > 0 ? report.gpu : report.ceilings;
  if (ceilings.copy_bytes > 0 || ceilings.bf16_flops > 0) {
    out += fmt::format(" Floors use the measured ceilings: copy {}, bf16 {}.",
                       FormatRate(ceilings.copy_bytes, "B/s"),
                       FormatRate(ceilings.bf16_flops, "FLOP/s"));
  }
  return fmt::format("\n{}\n", MarkdownEscape(out));
}

}  // namespace

std::string MarkdownReport(const RunReport& report) {
  const Analysis analysis = Analyse(report);
  std::string out = report.cases.empty() ? "No cases.\n" : DefinitionTable(analysis);
  out += FailureList(analysis);
  out += Provenance(report);
  return out;
}

}  // namespace assay
