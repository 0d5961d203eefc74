// Terminal summary: per scope one table of devices, the top kernel groups, copies, waits, gaps and
// the audit, so that one screen answers where the time went and whether to believe it.
#include <fmt/format.h>

#include <algorithm>

#include "report/table.h"
#include "report/text.h"
#include "timeline/result.h"

namespace assay::timeline {
namespace {

std::string Time(Ns ns) { return ns == 0 ? "0" : FormatTime(static_cast<double>(ns)); }
std::string SignedTime(Ns ns) {
  return fmt::format("{}{}", ns < 0 ? '-' : '+', Time(ns < 0 ? -ns : ns));
}
std::string Share(Ns part, Ns whole) {
  return whole > 0 ? FormatShare(static_cast<double>(part) / static_cast<double>(whole)) : "-";
}

Tone ToneOf(Coverage coverage) {
  return coverage == Coverage::kComplete  ? Tone::kGood
         : coverage == Coverage::kUnknown ? Tone::kWarn
                                          : Tone::kBad;
}

class ScopeText {
 public:
  ScopeText(const TimelineResult& result, const ScopeResult& scope, const TextStyle& style, int top)
      : trace_(result.trace), scope_(scope), use_(scope.use), style_(style), top_(top) {}

  std::string Write() {
    out_ += fmt::format("\nscope {}: {} in {} window{}{}\n", Printable(use_.scope.name),
                        Time(use_.window), use_.scope.steps.size(),
                        use_.scope.steps.size() == 1 ? "" : "s",
                        use_.scope.note.empty() ? "" : " (" + Printable(use_.scope.note) + ")");
    if (std::none_of(use_.devices.begin(), use_.devices.end(),
                     [](const DeviceUse& d) { return d.active(); })) {
      out_ += "no activity: the scope holds no GPU row\n";
    }
    Devices();
    Groups();
    Copies();
    Waits();
    Gaps();
    Ranges();
    Collectives();
    Coverage();
    return out_;
  }

 private:
  void Devices() {
    Table table({{"device", Align::kLeft, Overflow::kMiddle, 16, 40, 2},
                 {"busy", Align::kRight},
                 {"", Align::kRight},
                 {"compute", Align::kRight},
                 {"comm", Align::kRight},
                 {"exposed", Align::kRight},
                 {"memcpy", Align::kRight},
                 {"graph", Align::kRight},
                 {"gap", Align::kRight},
                 {"launch-bound", Align::kRight},
                 {"coverage"}});
    for (const DeviceUse& d : use_.devices) {
      const auto verdict = scope_.coverage.devices[d.device].verdict;
      if (!d.active()) {
        table.Add({trace_.devices[d.device].label,
                   "no activity",
                   "",
                   "",
                   "",
                   "",
                   "",
                   "",
                   "",
                   "",
                   {CoverageName(verdict), ToneOf(verdict)}});
        continue;
      }
      table.Add({trace_.devices[d.device].label,
                 Time(d.busy()),
                 Share(d.busy(), d.window),
                 Time(d.compute()),
                 Time(d.comm()),
                 Time(d.exposed_comm()),
                 Time(d.memcpy()),
                 Time(d.graph()),
                 Time(d.gap()),
                 Share(d.launch.bound_ns, d.window),
                 {CoverageName(verdict), ToneOf(verdict)}});
    }
    out_ += table.Text(style_);
  }

  void Groups() {
    if (use_.groups.empty()) return;
    Ns all = 0;
    for (const Group& group : use_.groups) all += group.total;
    Table table({{"kernel", Align::kLeft, Overflow::kMiddle, 16, 0, 1},
                 {"calls", Align::kRight},
                 {"total", Align::kRight},
                 {"share", Align::kRight},
                 {"p50", Align::kRight},
                 {"p95", Align::kRight},
                 {"max", Align::kRight},
                 {"grid", Align::kRight},
                 {"block", Align::kRight},
                 {"regs", Align::kRight}});
    int shown = 0;
    for (const Group& g : use_.groups) {
      if (shown++ == top_) break;
      const auto triple = [](const std::int32_t(&v)[3]) {
        return v[0] == 0 ? std::string("-") : fmt::format("{}x{}x{}", v[0], v[1], v[2]);
      };
      table.Add({Printable(g.short_name.empty() ? g.name : g.short_name), FormatCount(g.count),
                 Time(g.total), Share(g.total, all), Time(g.length.p50), Time(g.length.p95),
                 Time(g.length.max), triple(g.config.grid) + (g.shapes > 1 ? "*" : ""),
                 triple(g.config.block),
                 g.config.registers ? std::to_string(g.config.registers) : "-"});
    }
    out_ += "\n" + table.Text(style_);
    const auto rest = static_cast<std::int64_t>(use_.groups.size()) - top_;
    if (rest > 0) out_ += fmt::format("... and {} more kernel groups\n", rest);
  }

  void Copies() {
    if (use_.copies.empty()) return;
    Table table({{"copy", Align::kLeft},
                 {"count", Align::kRight},
                 {"time", Align::kRight},
                 {"bytes", Align::kRight},
                 {"rate", Align::kRight}});
    for (const CopyUse& c : use_.copies) {
      table.Add({Printable(c.direction), FormatCount(c.count), Time(c.clipped),
                 FormatBytes(static_cast<double>(c.bytes_full)),
                 c.bytes_full > 0 ? FormatRate(c.gb_per_s() * 1e9, "B/s") : "-"});
    }
    out_ += "\n" + table.Text(style_);
  }

  void Waits() {
    std::vector<const WaitUse*> waits;
    for (const WaitUse& w : use_.waits) {
      if (w.kind == "sync" || w.kind == "os" || w.kind == "enqueue") waits.push_back(&w);
    }
    if (waits.empty()) return;
    Table table({{"host wait", Align::kLeft},
                 {"kind"},
                 {"calls", Align::kRight},
                 {"thread time", Align::kRight},
                 {"threads waiting", Align::kRight},
                 {"longest", Align::kRight}});
    for (std::size_t k = 0; k < std::min<std::size_t>(waits.size(), 6); ++k) {
      const WaitUse& w = *waits[k];
      table.Add({Printable(w.api), w.kind, FormatCount(w.count), Time(w.thread_ns),
                 use_.window > 0 ? FormatFactor(static_cast<double>(w.thread_ns) /
                                                static_cast<double>(use_.window))
                                 : "-",
                 Time(w.max_ns)});
    }
    out_ += "\n" + table.Text(style_);
  }

  std::string RowName(std::int64_t row) const {
    if (row < 0) return "(border)";
    const std::string& name = trace_.names[trace_.gpu[static_cast<std::size_t>(row)].name];
    for (const Group& g : use_.groups) {
      if (g.name == name && !g.short_name.empty()) return Printable(g.short_name);
    }
    return Printable(name);
  }

  void Gaps() {
    struct Entry {
      const Gap* gap;
      std::uint32_t device;
    };
    std::vector<Entry> gaps;
    for (const DeviceUse& d : use_.devices) {
      for (const Gap& gap : d.gaps) gaps.push_back({&gap, d.device});
    }
    if (gaps.empty()) return;
    std::stable_sort(gaps.begin(), gaps.end(), [](const Entry& a, const Entry& b) {
      return a.gap->end - a.gap->begin > b.gap->end - b.gap->begin;
    });
    Table table({{"largest gaps", Align::kRight},
                 {"at", Align::kRight},
                 {"device", Align::kLeft, Overflow::kMiddle, 6, 16, 1},
                 {"after", Align::kLeft, Overflow::kMiddle, 10, 0, 2},
                 {"before", Align::kLeft, Overflow::kMiddle, 10, 0, 2},
                 {"host meanwhile", Align::kLeft, Overflow::kEnd, 8, 0, 3}});
    const Ns zero = use_.scope.steps.empty() ? 0 : use_.scope.steps.front().begin;
    for (std::size_t k = 0; k < std::min<std::size_t>(gaps.size(), 5); ++k) {
      const Gap& gap = *gaps[k].gap;
      std::string host;
      for (const std::string& call : gap.host) host += (host.empty() ? "" : ", ") + Printable(call);
      table.Add({Time(gap.end - gap.begin), "+" + Time(gap.begin - zero),
                 trace_.devices[gaps[k].device].label, RowName(gap.before), RowName(gap.after),
                 host.empty() ? (gap.waited_for_launch ? "launch call ended here" : "-") : host});
    }
    out_ += "\n" + table.Text(style_);
  }

  void Ranges() {
    std::vector<const RangeUse*> ranges;
    for (const RangeUse& r : scope_.ranges) {
      if (r.domain != "cpu_op") ranges.push_back(&r);
    }
    if (ranges.empty()) return;
    Table table({{"range", Align::kLeft, Overflow::kMiddle, 10, 0, 1},
                 {"count", Align::kRight},
                 {"host", Align::kRight},
                 {"self", Align::kRight},
                 {"GPU rows", Align::kRight},
                 {"GPU sum", Align::kRight},
                 {"GPU union", Align::kRight}});
    for (std::size_t k = 0; k < std::min<std::size_t>(ranges.size(), 6); ++k) {
      const RangeUse& r = *ranges[k];
      table.Add({Printable(r.name), FormatCount(r.count), Time(r.host_ns), Time(r.self_ns),
                 FormatCount(r.gpu_rows), Time(r.gpu_sum_ns), Time(r.gpu_union_ns)});
    }
    out_ += "\n" + table.Text(style_);
  }

  void Collectives() {
    if (scope_.collectives.empty()) return;
    Table table({{"collective", Align::kLeft, Overflow::kMiddle, 10, 0, 1},
                 {"calls", Align::kRight},
                 {"devices", Align::kRight},
                 {"latency", Align::kRight},
                 {"skew p50", Align::kRight},
                 {"skew max", Align::kRight},
                 {"waited", Align::kRight}});
    for (std::size_t k = 0; k < std::min<std::size_t>(scope_.collectives.size(), 4); ++k) {
      const CollectiveUse& c = scope_.collectives[k];
      table.Add({Printable(c.name), FormatCount(c.calls), FormatCount(c.devices),
                 Time(c.latency_p50), Time(c.skew_p50), Time(c.skew_max), Time(c.waited)});
    }
    out_ += "\n" + table.Text(style_);
  }

  void Coverage() {
    out_ += "\n";
    for (const DeviceCoverage& d : scope_.coverage.devices) {
      for (const Check& check : d.checks) {
        if (check.state != Check::kSuspect) continue;
        out_ += fmt::format("coverage, device {}: {}: {}\n", trace_.devices[d.device].label,
                            check.id, Printable(check.text));
      }
    }
    out_ += "coverage: " + Printable(scope_.coverage.Sentence(trace_)) +
            (scope_.coverage.complete() ? "\n" : "; this scope is barred from verdicts\n");
  }

  const Trace& trace_;
  const ScopeResult& scope_;
  const ScopeUse& use_;
  TextStyle style_;
  int top_;
  std::string out_;
};

}  // namespace

TimelineResult AnalyzeRun(const Trace& trace, const LaunchIndex& index,
                          const std::vector<Scope>& scopes, const AnalyzeOptions& options) {
  TimelineResult result{trace, index, {}};
  for (const Scope& scope : scopes) {
    const WindowMap map(scope.steps);
    ScopeResult out;
    out.use = Analyze(trace, index, scope, options);
    out.coverage = AuditCoverage(trace, index, out.use);
    out.ranges = AnalyzeRanges(trace, index, map);
    out.collectives = AnalyzeCollectives(trace, map);
    result.scopes.push_back(std::move(out));
  }
  return result;
}

std::string SummaryText(const TimelineResult& result, int width, bool colour, int top) {
  const Trace& trace = result.trace;
  std::string out;
  for (const SourceInfo& source : trace.sources) {
    out += fmt::format("{}: {}{}{}\n", Printable(source.path), source.format,
                       source.product.empty() ? "" : " " + Printable(source.product),
                       source.schema.empty() ? "" : ", schema " + Printable(source.schema));
    for (const std::string& warning : source.warnings)
      out += "  note: " + Printable(warning) + "\n";
    std::string absent, empty;
    for (const TableState& table : source.tables) {
      std::string& list = table.state == TableState::kAbsent ? absent : empty;
      if (table.state != TableState::kPresent) list += (list.empty() ? "" : ", ") + table.name;
    }
    if (!absent.empty()) out += "  not traced: " + absent + "\n";
    if (!empty.empty()) out += "  traced but empty: " + empty + "\n";
  }
  out += fmt::format("{} GPU rows, {} API calls, {} ranges, {} OS calls, {} device{}\n",
                     FormatCount(static_cast<std::int64_t>(trace.gpu.size())),
                     FormatCount(static_cast<std::int64_t>(trace.api.size())),
                     FormatCount(static_cast<std::int64_t>(trace.ranges.size())),
                     FormatCount(static_cast<std::int64_t>(trace.os.size())), trace.devices.size(),
                     trace.devices.size() == 1 ? "" : "s");
  if (!trace.unknown_categories.empty()) {
    std::string list;
    for (const std::string& name : trace.unknown_categories) {
      list += (list.empty() ? "" : ", ") + Printable(name);
    }
    out += "unknown categories (counted as compute where they name a device): " + list + "\n";
  }
  TextStyle style;
  style.width = width;
  style.colour = colour;
  for (const ScopeResult& scope : result.scopes) {
    out += ScopeText(result, scope, style, top).Write();
  }
  return out;
}

std::string DiffText(const std::vector<ScopeDiff>& diffs, int width, bool colour, int top) {
  TextStyle style;
  style.width = width;
  style.colour = colour;
  std::string out;
  for (const ScopeDiff& diff : diffs) {
    out += fmt::format("scope {}: {} - {}\n", Printable(diff.scope), VerdictName(diff.verdict),
                       Printable(diff.reason));
    out += fmt::format(
        "comparability {:.2f}{}", diff.comparability,
        diff.change_interval
            ? fmt::format(", change {:+.2f} % [{:+.2f}, {:+.2f}] over {} and {} windows",
                          100 * diff.change, 100 * diff.change_interval->low,
                          100 * diff.change_interval->high, diff.steps_a, diff.steps_b)
            : fmt::format(", {} and {} windows", diff.steps_a, diff.steps_b));
    for (const std::string& note : diff.notes) out += "; " + Printable(note);
    out += "\n\n";
    Table categories({{"per window, all devices", Align::kLeft},
                      {"A", Align::kRight},
                      {"B", Align::kRight},
                      {"change", Align::kRight},
                      {"", Align::kRight}});
    for (const CategoryDelta& c : diff.categories) {
      const double ratio = c.a > 0 ? static_cast<double>(c.b) / static_cast<double>(c.a) - 1 : 0;
      categories.Add({c.quantity, Time(c.a), Time(c.b), SignedTime(c.b - c.a),
                      c.a > 0 ? fmt::format("{:+.1f} %", 100 * ratio) : "-"});
    }
    if (!categories.empty()) out += categories.Text(style) + "\n";
    if (diff.keys.empty()) {
      out += "no kernel differs\n";
      continue;
    }
    Table keys({{"kernel", Align::kLeft, Overflow::kMiddle, 16, 0, 1},
                {"cause"},
                {"calls A", Align::kRight},
                {"calls B", Align::kRight},
                {"p50 A", Align::kRight},
                {"p50 B", Align::kRight},
                {"from count", Align::kRight},
                {"from speed", Align::kRight},
                {"B / A", Align::kRight}});
    int shown = 0;
    for (const KeyDelta& key : diff.keys) {
      if (shown++ == top) break;
      keys.Add({Printable(key.short_name.empty() ? key.name : key.short_name), key.cause,
                FormatCount(key.count_a), FormatCount(key.count_b), Time(key.median_a),
                Time(key.median_b), SignedTime(key.from_count), SignedTime(key.from_speed),
                key.total_ratio
                    ? fmt::format("{:.2f}-{:.2f}", key.total_ratio->low, key.total_ratio->high)
                    : "-"});
    }
    out += keys.Text(style);
    if (static_cast<int>(diff.keys.size()) > top) {
      out += fmt::format("... and {} more kernels that differ\n",
                         diff.keys.size() - static_cast<std::size_t>(top));
    }
  }
  return out;
}

}  // namespace assay::timeline
