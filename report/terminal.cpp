#include "report/terminal.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "report/text.h"

namespace assay {
namespace {

constexpr int kAxesWidth = 36;  // wider axes are abbreviated, then wrapped

// What the rows of one definition share.
struct Group {
  std::string definition;
  std::vector<const CaseView*> cases;
  bool brief = false;       // abbreviated axis names
  bool show_uuids = false;  // two workloads have the same axes
};

std::vector<Group> GroupsOf(const Analysis& analysis) {
  std::vector<Group> groups;
  for (const CaseView& view : analysis.cases) {
    if (groups.empty() || groups.back().definition != view.row->definition) {
      groups.push_back({.definition = view.row->definition, .cases = {}});
    }
    groups.back().cases.push_back(&view);
  }
  for (Group& group : groups) {
    std::set<std::pair<Axes, std::string>> seen;  // axes, backend
    for (const CaseView* view : group.cases) {
      group.brief |= DisplayWidth(AxesText(view->row->axes)) > kAxesWidth;
      group.show_uuids |= !seen.emplace(view->row->axes, view->row->backend).second;
    }
  }
  return groups;
}

// The definition's full name, its geometric means, and what the abbreviations stand for.
std::string HeadingOf(const Group& group, const Analysis& analysis) {
  std::string text = group.definition, means;
  for (const DefinitionSummary& summary : analysis.definitions) {
    if (summary.definition != group.definition || summary.with_floor < 2) continue;
    const std::string source = analysis.mixed_sources ? " " + summary.input_source : "";
    means += fmt::format("{}{}{} {}", means.empty() ? "" : ", ", summary.backend, source,
                         FormatFactor(summary.geomean_x_floor));
  }
  if (!means.empty()) text += "   geomean x floor: " + means;
  if (group.brief) {
    std::string legend;
    std::set<std::string> explained;
    for (const CaseView* view : group.cases) {
      for (const auto& [name, value] : view->row->axes) {
        const std::string brief = BriefAxisName(view->row->axes, name);
        if (brief == name || !explained.insert(brief + name).second) continue;
        legend += fmt::format("{}{} = {}", legend.empty() ? "" : ", ", brief, name);
      }
    }
    if (!legend.empty()) text += "   (" + legend + ")";
  }
  return text;
}

std::string WorkloadText(const Group& group, const CaseRow& row) {
  std::string text = AxesText(row.axes, group.brief);
  if (!group.show_uuids && !text.empty()) return text;
  return fmt::format("{}{}{}", text, text.empty() ? "" : " ", ShortUuid(row.uuid));
}

Cell IntervalCell(const CaseView& view) {
  if (view.headline == nullptr) return Cell("-", Tone::kDim);
  const auto half_width = view.half_width();
  const bool noisy = view.headline->noisy;
  const std::string width =
      half_width ? FormatPercent(*half_width) : fmt::format("n = {}", view.headline->samples);
  return Cell(fmt::format("{}{}", width, noisy ? " noisy" : ""), noisy ? Tone::kWarn : Tone::kDim);
}

// Below the floor nothing is celebrated: the timing or the ceilings are wrong.
Cell FloorCell(const CaseView& view) {
  if (view.x_floor <= 0) return Cell("-", Tone::kDim);
  return Cell(FormatFactor(view.x_floor), view.x_floor < 1 ? Tone::kWarn : Tone::kPlain);
}

std::vector<Cell> CellsOf(const Group& group, const CaseView& view) {
  const CaseRow& row = *view.row;
  const Cell none("-", Tone::kDim);
  return {Cell("  " + WorkloadText(group, row)),
          Cell(row.backend),
          Cell(VerdictText(row), ToneOf(row.status)),
          view.headline != nullptr ? Cell(FormatTime(view.headline->median_ns)) : none,
          IntervalCell(view),
          FloorCell(view),
          row.budget_used ? Cell(FormatShare(row.share_checked)) : none,
          row.budget_used ? Cell(FormatFactor(*row.budget_used),
                                 IsFailure(row.status) ? Tone::kBad : Tone::kPlain)
                          : none};
}

std::string Title(const std::string& text, bool colour) {
  return Coloured(text, Tone::kStrong, colour) + "\n";
}

std::string Indented(const std::string& text, int indent, int width, std::size_t max_lines) {
  std::vector<std::string> lines = Wrap(Printable(text), width - indent);
  if (lines.size() > max_lines) {
    lines.resize(max_lines);
    lines.back() = ShortenEnd(lines.back(), width - indent - 2) + " …";
  }
  std::string out;
  for (const std::string& line : lines) {
    out += std::string(static_cast<std::size_t>(indent), ' ') + line + "\n";
  }
  return out;
}

std::string IntervalText(const std::optional<Interval>& interval) {
  if (!interval) return "-";
  return fmt::format("[{}, {}]", FormatFactor(interval->low), FormatFactor(interval->high));
}

// Faster only when the whole interval says so.
Tone ToneOfSpeedup(const std::optional<Interval>& interval) {
  if (!interval) return Tone::kPlain;
  return interval->low > 1 ? Tone::kGood : interval->high < 1 ? Tone::kBad : Tone::kPlain;
}

// Distinct reasons of unsupported cases: the most frequent first.
std::string UnsupportedReasons(const Analysis& analysis, const TerminalOptions& options) {
  std::map<std::pair<std::string, std::string>, std::int64_t> reasons;  // backend, reason
  for (const CaseView& view : analysis.cases) {
    if (view.row->status != Status::kUnsupported) continue;
    ++reasons[{view.row->backend, view.row->reason}];
  }
  std::vector<std::tuple<std::int64_t, std::string, std::string>> sorted;
  for (const auto& [key, count] : reasons) sorted.emplace_back(-count, key.first, key.second);
  std::sort(sorted.begin(), sorted.end());
  std::string out;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (i == 5) {
      out += fmt::format("  … and {} more reasons\n", sorted.size() - i);
      break;
    }
    const auto& [count, backend, reason] = sorted[i];
    out += Indented(fmt::format("unsupported on {}: {} ({} case{})", backend,
                                reason.empty() ? "no reason recorded" : reason, FormatCount(-count),
                                count == -1 ? "" : "s"),
                    2, options.width, 2);
  }
  return out;
}

std::string IntervalOf(const TimingSummary& summary) {
  if (summary.samples < 6) return "-";  // no two-sided interval
  return fmt::format("{} .. {}", FormatTime(summary.ci_low_ns), FormatTime(summary.ci_high_ns));
}

std::string TimingBlock(const CaseView& view, const TerminalOptions& options) {
  Table table({{.title = "timing"},
               {.title = "median", .align = Align::kRight},
               {.title = "95 % interval", .align = Align::kRight},
               {.title = "min", .align = Align::kRight},
               {.title = "max", .align = Align::kRight},
               {.title = "p99", .align = Align::kRight},
               {.title = "samples", .align = Align::kRight},
               {.title = "repeats", .align = Align::kRight},
               {.title = "spread", .align = Align::kRight}});
  for (const TimingSummary& summary : view.row->timing) {
    table.Add({Cell(summary.mode), Cell(FormatTime(summary.median_ns)), Cell(IntervalOf(summary)),
               Cell(FormatTime(summary.min_ns)), Cell(FormatTime(summary.max_ns)),
               Cell(summary.p99_ns ? FormatTime(*summary.p99_ns) : "-"),
               Cell(FormatCount(summary.samples)), Cell(FormatCount(summary.repeats)),
               Cell(FormatFactor(summary.spread), summary.noisy ? Tone::kWarn : Tone::kPlain)});
  }
  return table.Text({.width = options.width, .colour = options.colour, .indent = 2});
}

std::string ChecksBlock(const CaseResult& result, const TerminalOptions& options) {
  Table table({{.title = "output", .overflow = Overflow::kMiddle, .shrink = 1},
               {.title = "grade", .shrink = 1},
               {.title = "rows checked", .align = Align::kRight},
               {.title = "outside", .align = Align::kRight},
               {.title = "max abs", .align = Align::kRight},
               {.title = "rel L2", .align = Align::kRight},
               {.title = "budget", .align = Align::kRight}});
  for (const OutputCheck& check : result.correctness.outputs) {
    table.Add(
        {Cell(check.output), check.grade.empty() ? Cell("none", Tone::kBad) : Cell(check.grade),
         Cell(fmt::format("{} of {}", FormatCount(check.rows_checked),
                          FormatCount(check.rows_total))),
         Cell(FormatCount(check.mismatches), check.mismatches > 0 ? Tone::kBad : Tone::kPlain),
         Cell(fmt::format("{:.3g}", check.max_abs)), Cell(fmt::format("{:.3g}", check.max_rel_l2)),
         Cell(FormatFactor(check.budget_used))});
  }
  return table.Text({.width = options.width, .colour = options.colour, .indent = 2});
}

}  // namespace

Tone ToneOf(Status status) {
  if (status == Status::kPassed) return Tone::kGood;
  if (status == Status::kUnsupported || status == Status::kPendingAudit) return Tone::kDim;
  const bool resource = status == Status::kOom || status == Status::kTimeout ||
                        status == Status::kSuspicious || status == Status::kInvalidRecord ||
                        status == Status::kInvalidReference;
  return resource ? Tone::kWarn : Tone::kBad;
}

std::string CaseTable(const Analysis& analysis, const TerminalOptions& options) {
  const int verdict_width = options.width < 100 ? 10 : 15;  // 15 = "passed captured"
  Table table(
      {{.title = "definition / axes", .overflow = Overflow::kWrap, .min_width = 16, .shrink = 1},
       {.title = "backend", .overflow = Overflow::kMiddle, .min_width = 8, .shrink = 1},
       {.title = "verdict", .overflow = Overflow::kWrap, .min_width = verdict_width, .shrink = 2},
       {.title = "median", .align = Align::kRight},
       {.title = "+-95 %", .align = Align::kRight},
       {.title = "x floor", .align = Align::kRight},
       {.title = "rows", .align = Align::kRight},
       {.title = "budget", .align = Align::kRight}});
  for (const Group& group : GroupsOf(analysis)) {
    table.AddHeading(HeadingOf(group, analysis));
    for (const CaseView* view : group.cases) table.Add(CellsOf(group, *view));
  }
  return table.Text({.width = options.width, .colour = options.colour});
}

std::string FailureList(const Analysis& analysis, const TerminalOptions& options) {
  std::string out;
  std::int64_t count = 0;
  for (const CaseView& view : analysis.cases) {
    const CaseRow& row = *view.row;
    if (!IsFailure(row.status)) continue;
    ++count;
    const std::string verdict = Printable(VerdictText(row));
    std::string what = Indented(fmt::format("{}: {} {}, {} ({})", verdict, row.definition,
                                            AxesText(row.axes), row.backend, ShortUuid(row.uuid)),
                                2, options.width, 2);
    // Coloured after wrapping; the verdict starts the first line.
    if (what.compare(2, verdict.size(), verdict) == 0) {
      what.replace(2, verdict.size(), Coloured(verdict, ToneOf(row.status), options.colour));
    }
    out += what + Indented(FailureText(view), 4, options.width, 2);
  }
  return count == 0 ? "" : Title(fmt::format("Failures ({})", count), options.colour) + out;
}

std::string ComparisonBlock(const Analysis& analysis, const TerminalOptions& options) {
  if (analysis.comparisons.empty()) return "";
  const std::string baseline = ShortenMiddle(Printable(analysis.baseline), 40);
  Table table(
      {{.title = "definition / axes", .overflow = Overflow::kWrap, .min_width = 16, .shrink = 1},
       {.title = "backend", .overflow = Overflow::kMiddle, .min_width = 8, .shrink = 1},
       {.title = "mode"},
       {.title = "speed-up", .align = Align::kRight},
       {.title = "95 % interval", .align = Align::kRight},
       {.title = "time", .align = Align::kRight},
       {.title = ShortenMiddle(baseline, 12), .align = Align::kRight}});
  for (const DefinitionComparison& comparison : analysis.comparisons) {
    const auto count = static_cast<std::int64_t>(comparison.workloads.size());
    std::string median = FormatFactor(comparison.median);
    if (comparison.interval) median += fmt::format(" {}", IntervalText(comparison.interval));
    table.AddHeading(fmt::format("{}   {}: median {} over {} workload{}", comparison.definition,
                                 comparison.backend, median, FormatCount(count),
                                 count == 1 ? "" : "s"));
    for (const Comparison& workload : comparison.workloads) {
      const CaseView &base = analysis.cases[workload.base], &other = analysis.cases[workload.other];
      const double base_ns = base.headline->median_ns;
      table.Add({Cell("  " + AxesText(other.row->axes, true)), Cell(comparison.backend),
                 Cell(workload.mode),
                 Cell(FormatFactor(workload.speedup), ToneOfSpeedup(workload.interval)),
                 Cell(IntervalText(workload.interval)),
                 Cell(FormatTime(base_ns / workload.speedup)), Cell(FormatTime(base_ns))});
    }
  }
  return Title(fmt::format("Speed-up over {} (above 1 = faster)", baseline), options.colour) +
         table.Text({.width = options.width, .colour = options.colour});
}

std::string StatusLine(const Analysis& analysis, const TerminalOptions& options) {
  if (analysis.cases.empty()) return "no cases\n";
  const auto total = static_cast<std::int64_t>(analysis.cases.size());
  std::string out = fmt::format("{} case{}: ", FormatCount(total), total == 1 ? "" : "s");
  bool first = true;
  for (const auto& [status, count] : analysis.counts) {
    out += first ? "" : ", ";
    first = false;
    out += Coloured(fmt::format("{} {}", FormatCount(count), StatusName(status)), ToneOf(status),
                    options.colour);
  }
  std::int64_t noisy = 0;
  for (const DefinitionSummary& summary : analysis.definitions) noisy += summary.noisy;
  if (noisy > 0) {
    out +=
        "; " + Coloured(fmt::format("{} noisy", FormatCount(noisy)), Tone::kWarn, options.colour);
  }
  return out + "\n" + UnsupportedReasons(analysis, options);
}

std::string TerminalReport(const Analysis& analysis, const TerminalOptions& options) {
  std::string out;
  const auto add = [&](const std::string& block) {
    if (!block.empty()) out += (out.empty() ? "" : "\n") + block;
  };
  if (!analysis.cases.empty()) add(CaseTable(analysis, options));
  add(ComparisonBlock(analysis, options));
  add(FailureList(analysis, options));
  add(StatusLine(analysis, options));
  return out;
}

std::string TerminalReport(const RunReport& report, const TerminalOptions& options) {
  return TerminalReport(Analyse(report, options.baseline), options);
}

std::string CaseDetails(const CaseResult& result, const TerminalOptions& options) {
  const RunReport single{{}, {}, {result}, {}};
  const Analysis analysis = Analyse(single);
  const CaseView& view = analysis.cases.front();
  std::string out;
  const auto line = [&](std::string name, const std::string& value) {
    if (value.empty()) return;
    for (const std::string& part : Wrap(Printable(value), options.width - 12)) {
      out += fmt::format("{:<12}{}\n", name, part);
      name.clear();
    }
  };
  line("uuid", result.uuid);
  line("definition", result.definition);
  line("axes", AxesText(result.axes));
  line("backend", result.backend);
  line("verdict", VerdictText(*view.row));
  if (IsFailure(result.status)) line("", FailureText(view));
  if (!IsFailure(result.status)) line("reason", result.reason);
  line("flags", fmt::format("{}", fmt::join(result.flags, ", ")));
  for (const std::string& note : result.notes) line("note", note);
  line("model", result.model);
  line("phase", result.phase);
  line("request", result.request);
  line("inputs", result.input_source);
  if (result.floor.ns > 0) {
    line("floor",
         fmt::format("{} ({}), {} flops, {}", FormatTime(result.floor.ns), result.floor.bound,
                     FormatValue(result.floor.flops), FormatBytes(result.floor.bytes)));
  }
  if (view.x_floor > 0) line("x floor", FormatFactor(view.x_floor));
  if (result.peak_bytes > 0) line("peak", FormatBytes(static_cast<double>(result.peak_bytes)));
  const auto block = [&](const std::string& text) {
    out += '\n';
    out += text;
  };
  if (!result.correctness.outputs.empty()) block(ChecksBlock(result, options));
  if (!view.row->timing.empty()) block(TimingBlock(view, options));
  return out;
}

}  // namespace assay
