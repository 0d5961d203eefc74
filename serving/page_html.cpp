// One offline HTML file: verdict card, gates, configuration, plots as inline SVG, ledger,
// checklist.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "report/text.h"
#include "serving/facts.h"
#include "serving/pages.h"
#include "serving/svg.h"

namespace assay::serving {
namespace {

constexpr const char* kOff = "#555";
constexpr const char* kOn = "#1f6fb2";
constexpr const char* kFloor = "#f4e3c1";
constexpr std::size_t kMostPoints = 4000;  // more are thinned evenly: the file stays small

constexpr const char* kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Serving A/B</title><style>
body{font:15px/1.45 system-ui,sans-serif;max-width:1180px;margin:24px auto;padding:0 16px;color:#222}
h1{font-size:22px}h2{font-size:17px;margin-top:28px;border-bottom:1px solid #ddd}
.card{border:2px solid #888;border-radius:8px;padding:12px 16px;background:#fafafa}
.card.good{border-color:#2e8b57}.card.bad{border-color:#b03030}.card.open{border-color:#c08a20}
table{border-collapse:collapse;font-size:13px}td,th{border:1px solid #ddd;padding:3px 8px;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}
.refuse{background:#f8d7d7}.warn{background:#fbeecb}.unknown{background:#eee}.pass{background:#e2f2e6}
.allowed{background:#f8d7d7}.limit{background:#fbeecb}.resolved{background:#e2eef8}
figure{display:inline-block;margin:8px 10px 8px 0}figcaption{font-weight:600;font-size:13px}
svg text{font:11px system-ui,sans-serif;fill:#333}pre{background:#f4f4f4;padding:8px;white-space:pre-wrap}
</style></head><body>
)";

std::string Row(const std::vector<std::string>& cells, const char* tag = "td",
                const std::string& style = "") {
  std::string row = style.empty() ? "<tr>" : fmt::format("<tr class=\"{}\">", style);
  for (const std::string& cell : cells) row += fmt::format("<{0}>{1}</{0}>", tag, HtmlEscape(cell));
  return row + "</tr>\n";
}

std::string Card(const Comparison& c) {
  const char* tone = c.exit_code == 0 ? "good" : c.exit_code == 5 ? "open" : "bad";
  std::string html = fmt::format("<div class=\"card {}\" id=\"verdict\"><b>{}</b><p>{}</p>", tone,
                                 NameOf(c.verdict), HtmlEscape(c.sentence));
  if (!c.caveats.empty()) html += "<ul>";
  for (const std::string& caveat : c.caveats)
    html += std::string("<li>") + HtmlEscape(caveat) + "</li>";
  if (!c.caveats.empty()) html += "</ul>";
  return html + "</div>\n";
}

std::string GateTable(const Comparison& c) {
  std::string html = "<h2>Gates</h2><table id=\"gates\">" + Row({"gate", "status", "seen"}, "th");
  for (const Gate& gate : c.gates) {
    const std::string status(NameOf(gate.status));
    html += Row({gate.code, status, gate.sentence}, "td", status);
  }
  return html + "</table>\n";
}

std::string ConfigurationTable(const CompareInput& input, const Comparison& c) {
  std::string html = "<h2>Configuration difference</h2><table id=\"configuration\">" +
                     Row({"fact", "off", "on", "gate", "declared"}, "th");
  const auto differences =
      DifferingFacts(input.rounds[0].off, input.rounds[0].on, c.options.treatment);
  for (const FactDifference& d : differences) {
    html += Row({d.fact, d.off, d.on, d.gate, d.declared ? "yes" : "no"});
  }
  if (differences.empty()) html += Row({"no recorded difference", "", "", "", ""});
  return html + "</table>\n";
}

std::string MetricTable(const Comparison& c) {
  std::string html = "<h2>Metrics</h2><table id=\"metrics\">" +
                     Row({"statistic", "population", "n", "off", "on", "on/off [95 %]",
                          "improvement", "p", "p (BH)", "MDE", "method"},
                         "th");
  for (const MetricResult& r : c.metrics) {
    if (!r.suppressed.empty()) {
      html +=
          Row({NameOf(r.statistic), r.population, "", "", "", r.suppressed, "", "", "", "", ""});
      continue;
    }
    const Interval i = r.RatioInterval();
    const auto p = [](double value) {
      return std::isnan(value) ? std::string("-") : fmt::format("{:.4f}", value);
    };
    html += Row({NameOf(r.statistic), r.population, std::to_string(std::min(r.n_off, r.n_on)),
                 fmt::format("{:.5g}", r.off), fmt::format("{:.5g}", r.on),
                 fmt::format("{:.4f} [{:.4f}, {:.4f}]", r.Ratio(), i.low, i.high),
                 EffectPercent(r.effect, *r.effect_interval), p(r.p), p(r.p_adjusted),
                 fmt::format("{:.1f} %", 100 * std::expm1(r.mde)), r.method});
  }
  for (const PointEstimate& p : c.points) {
    html += Row(
        {NameOf(p.statistic), "all", "", fmt::format("{:.5g}", p.off), fmt::format("{:.5g}", p.on),
         p.range.has_value() ? fmt::format("{:.4f} ({:.3f} .. {:.3f} if turns were independent)",
                                           p.on / p.off, p.range->low, p.range->high)
                             : fmt::format("{:.4f}", p.on / p.off),
         "", "", "", "", "from aggregates"});
  }
  return html + "</table>\n";
}

std::string ForestPlot(const Comparison& c) {
  std::vector<const MetricResult*> rows;
  std::vector<double> span{1};
  for (const MetricResult& r : c.metrics) {
    if (!r.suppressed.empty()) continue;
    rows.push_back(&r);
    span.push_back(std::exp(r.effect_interval->low));
    span.push_back(std::exp(r.effect_interval->high));
  }
  if (rows.empty()) return "";
  std::reverse(rows.begin(), rows.end());
  const double count = static_cast<double>(rows.size());
  Svg svg("Improvement with 95 % interval (right = better); band = margin and noise floor",
          "improvement ratio", "", ScaleOf(span, true), {-0.6, count - 0.4, false}, 760,
          static_cast<int>(80 + 18 * count));
  std::vector<std::string> names;
  for (const MetricResult* r : rows) names.push_back(NameOf(r->statistic) + ", " + r->population);
  svg.NamesY(names);
  const double floor = std::max(c.floor, std::log1p(c.options.margin));
  svg.BandX(std::exp(-floor), std::exp(floor), kFloor);
  svg.RuleX(1, "#888");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const MetricResult& r = *rows[i];
    svg.IntervalX(std::exp(r.effect_interval->low), std::exp(r.effect),
                  std::exp(r.effect_interval->high), static_cast<double>(i),
                  &r == c.Primary() ? "#b03030" : kOn);
  }
  return svg.Html();
}

std::string ShiftPlot(const Comparison& c) {
  if (c.shift.size() < 2) return "";
  std::vector<double> q, value, low, high, span{1};
  for (const ShiftPoint& p : c.shift) {
    q.push_back(100 * p.q);
    value.push_back(std::exp(p.effect));
    low.push_back(std::exp(p.band.low));
    high.push_back(std::exp(p.band.high));
    span.insert(span.end(), {low.back(), high.back()});
  }
  Svg svg("Quantile shift function of " + std::string(NameOf(c.options.primary.metric)) +
              " with simultaneous 95 % band",
          "percentile (slow side to the right)", "improvement ratio", {5, 100, false},
          ScaleOf(span, true));
  svg.BandY(1 / (1 + c.options.margin), 1 + c.options.margin, kFloor);
  svg.Ribbon(q, low, high, "rgba(31,111,178,.18)");
  svg.RuleY(1, "#888");
  svg.Line(q, value, kOn, 2);
  return svg.Html();
}

struct PairPoint {
  double minutes = 0, isl = 0, off = 0, on = 0;  // minutes: position where there are no stamps
};

std::vector<PairPoint> PairPoints(const Round& round, const Statistic& primary) {
  std::vector<PairPoint> points;
  const Pairing pairing = PairRuns(round.off, round.on);
  const std::size_t step = pairing.both.size() / kMostPoints + 1;
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const RequestPair& pair : pairing.both) {
    const std::int64_t start = round.off.requests[pair.off].start_ns;
    if (start != kNoTime) first = std::min(first, start);
  }
  for (std::size_t i = 0; i < pairing.both.size(); i += step) {
    const Request& a = round.off.requests[pairing.both[i].off];
    const Request& b = round.on.requests[pairing.both[i].on];
    const double x = Cost(a, primary.metric), y = Cost(b, primary.metric);
    if (!(x > 0) || !(y > 0)) continue;
    const double minutes = a.start_ns == kNoTime ? static_cast<double>(i)
                                                 : static_cast<double>(a.start_ns - first) / 60e9;
    points.push_back({minutes, a.isl, x, y});
  }
  return points;
}

std::string PairPlots(const Round& round, const Comparison& c) {
  const std::vector<PairPoint> points = PairPoints(round, c.options.primary);
  if (points.empty()) return "";
  std::vector<double> costs, contexts, minutes, effects{1};
  for (const PairPoint& p : points) {
    costs.insert(costs.end(), {p.off, p.on});
    contexts.push_back(p.isl);
    minutes.push_back(p.minutes);
    effects.push_back(p.off / p.on);
  }
  const std::string metric(NameOf(c.options.primary.metric));
  const Scale both = ScaleOf(costs, true), effect = ScaleOf(effects, true);
  Svg scatter("Every matched turn: time of " + metric + " off and on (below the line = faster on)",
              "off, s", "on, s", both, both);
  scatter.Line({both.low, both.high}, {both.low, both.high}, "#888", 1);
  Svg context("Effect of every turn by input length", "input tokens", "improvement ratio",
              ScaleOf(contexts, true), effect);
  context.RuleY(1, "#888");
  Svg time("Effect of every turn by time; shaded = what MSER-5 would call warm-up",
           round.off.requests[0].start_ns == kNoTime ? "position in the file"
                                                     : "minutes since start (off arm)",
           "improvement ratio", ScaleOf(minutes, false), effect);
  const auto cut =
      static_cast<std::size_t>(std::max(c.stationarity.mser_off, c.stationarity.mser_on));
  if (cut > 0 && cut < points.size()) time.BandX(points[0].minutes, points[cut].minutes, "#eee");
  time.RuleY(1, "#888");
  for (const PairPoint& p : points) {
    scatter.Point(p.off, p.on, kOn,
                  fmt::format("input {:.0f}: {:.4g} s -> {:.4g} s", p.isl, p.off, p.on));
    context.Point(p.isl, p.off / p.on, kOn);
    time.Point(p.minutes, p.off / p.on, kOn);
  }
  return scatter.Html() + context.Html() + time.Html();
}

std::string EcdfPlot(const Round& round, Metric metric) {
  std::vector<double> all;
  const std::vector<double> arms[] = {Sorted(Costs(round.off, metric)),
                                      Sorted(Costs(round.on, metric))};
  for (const auto& arm : arms) all.insert(all.end(), arm.begin(), arm.end());
  if (arms[0].size() < 2 || arms[1].size() < 2) return "";
  Svg svg(fmt::format("Distribution of {} over all requests (grey off, blue on)", NameOf(metric)),
          "s", "share of requests", ScaleOf(all, true), {0, 1, false});
  for (std::size_t arm = 0; arm < 2; ++arm) {
    std::vector<double> x, y;
    const std::size_t step = arms[arm].size() / 600 + 1;
    for (std::size_t i = 0; i < arms[arm].size(); i += step) {
      x.push_back(arms[arm][i]);
      y.push_back(static_cast<double>(i + 1) / static_cast<double>(arms[arm].size()));
    }
    svg.Step(x, y, arm == 0 ? kOff : kOn);
  }
  return svg.Html();
}

// Requests as bars over time, greedily put on the lowest free lane.
std::string LaneTimeline(const Run& run, const char* arm, const char* colour) {
  std::vector<const Request*> requests;
  for (const Request& r : run.requests) {
    if (r.start_ns != kNoTime && r.end_ns != kNoTime) requests.push_back(&r);
  }
  if (requests.empty()) return "";
  std::stable_sort(requests.begin(), requests.end(),
                   [](const Request* a, const Request* b) { return a->start_ns < b->start_ns; });
  const std::size_t count = std::min<std::size_t>(requests.size(), 400);
  std::vector<std::int64_t> free_at;
  std::vector<std::size_t> lane(count);
  std::int64_t last = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t k = 0;
    while (k < free_at.size() && free_at[k] > requests[i]->start_ns) ++k;
    if (k == free_at.size()) free_at.push_back(0);
    free_at[k] = requests[i]->end_ns;
    lane[i] = k;
    last = std::max(last, requests[i]->end_ns);
  }
  const std::int64_t first = requests[0]->start_ns;
  Svg svg(
      fmt::format("Lanes of the {} arm (first {} requests; warm-up grey, failed red)", arm, count),
      "s since start", "lane", {0, std::max(1e-9, static_cast<double>(last - first) * 1e-9), false},
      {0, static_cast<double>(free_at.size()), false}, 1120,
      static_cast<int>(110 + 9 * free_at.size()));
  for (std::size_t i = 0; i < count; ++i) {
    const Request& r = *requests[i];
    const double from = static_cast<double>(r.start_ns - first) * 1e-9;
    const double k = static_cast<double>(lane[i]);
    const char* fill = r.phase == Phase::kWarmup   ? "#aaa"
                       : r.outcome != Outcome::kOk ? "#c33"
                                                   : colour;
    svg.Rect(from, static_cast<double>(r.end_ns - first) * 1e-9, k + 0.15, k + 0.85, fill,
             fmt::format("{} turn {}: {:.3f} s",
                         run.names[static_cast<std::size_t>(r.conversation)], r.turn, r.e2e_s));
  }
  return svg.Html();
}

std::string Waterfall(const Factorisation& f) {
  std::vector<double> span{0.95, 1, f.total, f.request_rate};
  const Scale y = ScaleOf(span, false);
  Svg svg("Throughput per GPU: request rate times tokens per request", "", "ratio on/off",
          {0, 3, false}, y);
  svg.Rect(0.15, 0.85, 1, std::max(f.request_rate, 1.0), kOn, "request rate");
  svg.Rect(1.15, 1.85, std::min(f.request_rate, f.total), std::max(f.request_rate, f.total),
           "#8fb8dd", "tokens per request");
  svg.Rect(2.15, 2.85, std::min(1.0, f.total), std::max(1.0, f.total), kOff, "total");
  svg.RuleY(1, "#888");
  svg.Label(0.15, y.low, fmt::format("requests x{:.4f}", f.request_rate));
  svg.Label(1.15, y.low, fmt::format("tokens/request x{:.4f}", f.tokens_per_request));
  svg.Label(2.15, y.low, fmt::format("total x{:.4f}", f.total));
  return svg.Html();
}

std::string RunLevelTables(const Comparison& c) {
  const RunLevel& level = c.run_level;
  if (level.rounds.size() < 2) return "";
  std::string html = "<h2>Rounds</h2><table>" + Row({"off", "on", "order", "improvement"}, "th");
  for (const RoundResult& r : level.rounds) {
    html += Row({r.off, r.on, r.swapped ? "swapped" : "set", EffectPercent(r.effect)});
  }
  html += "</table>\n";
  if (level.interval.has_value()) {
    html += std::string("<p>Between runs: ") +
            HtmlEscape(EffectPercent(level.mean, *level.interval)) + "</p>";
  }
  if (level.crossover.has_value()) {
    html += "<h2>Crossover square</h2><table>" + Row({"", "set A", "set B"}, "th");
    html += Row({"straight: off on A, on on B", "off", "on"});
    html += Row({"swapped: on on A, off on B", "on", "off"});
    html += fmt::format("</table><p>effect {}, hardware set {}</p>",
                        EffectPercent(*level.crossover), EffectPercent(*level.set_effect));
  }
  return html;
}

std::string Shown(double value, const char* form) {
  return std::isnan(value) ? "-" : fmt::format(fmt::runtime(form), value);
}

std::string LedgerTable(const Comparison& c) {
  std::string html =
      "<h2>Turns in one arm only</h2><table id=\"ledger\">" +
      Row({"population", "requests", "mean input", "mean output", NameOf(c.options.primary)}, "th");
  for (const Ledger::Row& row : c.ledger.rows) {
    html += Row({row.population, std::to_string(row.count), Shown(row.isl, "{:.0f}"),
                 Shown(row.osl, "{:.0f}"), Shown(row.primary, "{:.5g}")});
  }
  return html + fmt::format("</table><p>Matched by {}; rank leverage {:.1f}. {}</p>\n",
                            NameOf(c.ledger.key), c.ledger.rank_leverage,
                            HtmlEscape(c.ledger.note));
}

std::string StationarityText(const Comparison& c) {
  const Stationarity& s = c.stationarity;
  if (s.quarter_effects.empty()) return "";
  std::string text = "<h2>Stationarity</h2><p>Median effect by quarter:";
  for (const double q : s.quarter_effects) text += fmt::format(" {}", EffectPercent(q));
  return text + fmt::format(
                    ". Lag-1 autocorrelation {:.2f}, effective pairs {:.0f}. MSER-5 would cut {} "
                    "requests of the off arm and {} of the on arm.</p>\n",
                    s.rho1, s.effective_pairs, s.mser_off, s.mser_on);
}

std::string Closing(const Comparison& c, const std::string& command) {
  std::string html = "<h2>Missing</h2><ul>";
  for (const std::string& item : c.missing)
    html += std::string("<li>") + HtmlEscape(item) + "</li>";
  html += "</ul><h2>Reviewer's checklist</h2><table id=\"checklist\">" +
          Row({"id", "question", "answer", "evidence"}, "th");
  for (const ChecklistLine& line : ReviewChecklist(c)) {
    html += Row({line.id, line.question, line.answer, line.evidence}, "td",
                line.answer == "yes"  ? "pass"
                : line.answer == "no" ? "refuse"
                                      : "unknown");
  }
  html += std::string("</table><h2>Reproduce</h2><pre>") + HtmlEscape(command) + "</pre><table>" +
          Row({"arm", "file", "schema", "sha256"}, "th");
  for (const auto& [arm, runs] : {std::pair("off", &c.off_runs), {"on", &c.on_runs}}) {
    for (const Run* run : *runs) {
      for (const InputFile& file : run->inputs)
        html += Row({arm, file.label, file.schema, file.sha256});
    }
  }
  return html + fmt::format("</table><p>seed {}, {} resamples</p></body></html>\n", c.seed,
                            c.options.resamples);
}

}  // namespace

std::string HtmlPage(const Comparison& c, const CompareInput& input, const std::string& command) {
  const Round& round = input.rounds[0];
  std::string html = kHead;
  html += std::string("<h1>Serving A/B: ") + HtmlEscape(round.off.label) + " against " +
          HtmlEscape(round.on.label) + "</h1>\n";
  html += Card(c);
  html += GateTable(c) + ConfigurationTable(input, c) + MetricTable(c);
  if (c.level > 1) {
    html += "<h2>Effect</h2>" + ForestPlot(c) + ShiftPlot(c) + PairPlots(round, c);
    html += EcdfPlot(round, Metric::kItl) + EcdfPlot(round, Metric::kTtft) +
            EcdfPlot(round, Metric::kE2ePerToken);
    html += LedgerTable(c) + StationarityText(c) + RunLevelTables(c);
    html += "<h2>Timeline</h2>" + LaneTimeline(round.off, "off", kOff) +
            LaneTimeline(round.on, "on", kOn);
  }
  if (c.factorisation.has_value()) {
    html += "<h2>Throughput</h2>" + Waterfall(*c.factorisation);
  }
  if (c.accuracy.has_value()) {
    const AccuracyResult& a = *c.accuracy;
    html += fmt::format(
        "<h2>Accuracy</h2><p>{:.2f} % -&gt; {:.2f} %, {:+.2f} points [{:+.2f}, {:+.2f}] on {} "
        "problems; {} at {:.1f} points.</p>\n",
        100 * a.off, 100 * a.on, 100 * a.difference, 100 * a.interval.low, 100 * a.interval.high,
        a.problems, a.non_inferior ? "non-inferior" : "not shown non-inferior", 100 * a.margin);
  }
  return html + Closing(c, command);
}

}  // namespace assay::serving
