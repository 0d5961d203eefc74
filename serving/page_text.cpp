#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/text.h"
#include "serving/facts.h"
#include "serving/pages.h"

namespace assay::serving {
namespace {

constexpr std::size_t kWidth = 100, kLines = 40;

// A value with its unit, five significant digits.
std::string Shown(const Statistic& statistic, double value) {
  if (std::isnan(value)) return "-";
  if (IsRate(statistic.metric)) return fmt::format("{:.5g} tok/s", value);
  return value < 1 ? fmt::format("{:.5g} ms", 1e3 * value) : fmt::format("{:.5g} s", value);
}

class Page {
 public:
  void Add(std::string line) { lines_.push_back(Shorten(Printable(line), kWidth)); }
  void Wrapped(const std::string& text, std::size_t most) {
    std::vector<std::string> parts = Wrap(Printable(text), static_cast<int>(kWidth) - 2);
    for (std::size_t i = 0; i < std::min(parts.size(), most); ++i) {
      Add((i == 0 ? "" : "  ") + parts[i]);
    }
  }
  // Items of a list, as many as fit into `most` lines; says how many were left out.
  void List(const std::string& title, const std::vector<std::string>& items, std::size_t most) {
    if (items.empty() || most == 0) return;
    Add(title);
    --most;
    const bool all = items.size() <= most;
    const std::size_t shown = all ? items.size() : most == 0 ? 0 : most - 1;
    for (std::size_t i = 0; i < shown; ++i) Add("  " + items[i]);
    if (!all && most > 0) Add(fmt::format("  ... and {} more (see --json)", items.size() - shown));
  }
  std::size_t size() const { return lines_.size(); }
  std::string Text() const {
    std::string text;
    for (const std::string& line : lines_) text += line + "\n";
    return text;
  }

 private:
  std::vector<std::string> lines_;
};

std::string GateStrip(const Comparison& c) {
  std::string strip = "gates";
  for (const GateStatus status :
       {GateStatus::kRefuse, GateStatus::kAllowed, GateStatus::kWarn, GateStatus::kLimit,
        GateStatus::kUnknown, GateStatus::kResolved}) {
    std::string codes;
    for (const Gate& gate : c.gates) {
      if (gate.status == status) codes += fmt::format(" {}", gate.code.substr(1));
    }
    if (!codes.empty()) strip += fmt::format("  {}{}", NameOf(status), codes);
  }
  const auto passed = std::count_if(c.gates.begin(), c.gates.end(), [](const Gate& gate) {
    return gate.status == GateStatus::kPass;
  });
  return strip + fmt::format("  pass {} of {}", passed, c.gates.size());
}

std::vector<std::string> GateSentences(const Comparison& c) {
  std::vector<std::string> list;
  for (const GateStatus status : {GateStatus::kRefuse, GateStatus::kAllowed, GateStatus::kWarn,
                                  GateStatus::kLimit, GateStatus::kResolved}) {
    for (const Gate& gate : c.gates) {
      if (gate.status == status) list.push_back(gate.code + " " + gate.sentence);
    }
  }
  return list;
}

void AddRow(Page& page, const MetricResult& r) {
  const std::string name = NameOf(r.statistic);
  if (!r.suppressed.empty()) {
    page.Add(fmt::format("{:<21} {:<18} not estimable: {}", name, r.population, r.suppressed));
    return;
  }
  const Interval i = r.RatioInterval();
  page.Add(fmt::format("{:<21} {:<18} {:>6} {:>13} {:>13}  {:.3f} [{:.3f}, {:.3f}]", name,
                       r.population, std::min(r.n_off, r.n_on), Shown(r.statistic, r.off),
                       Shown(r.statistic, r.on), r.Ratio(), i.low, i.high));
}

void AddMetrics(Page& page, const Comparison& c) {
  page.Add(fmt::format("{:<21} {:<18} {:>6} {:>13} {:>13}  {}", "statistic", "population", "n",
                       "off", "on", "on/off [95 %]"));
  const std::string& decisive = c.Primary()->population;
  for (const MetricResult& r : c.metrics) {
    if (r.statistic.metric == c.options.primary.metric) {
      const bool wanted = r.statistic.q == c.options.primary.q || r.population == decisive;
      if (wanted && r.statistic.q != 0.99) AddRow(page, r);
    }
  }
  for (const Ledger::Row& row : c.ledger.rows) {
    if (row.population != "on only" || row.count == 0) continue;
    page.Add(fmt::format("{:<21} {:<18} {:>6} {:>13} {:>13}", NameOf(c.options.primary), "on only",
                         row.count, "-", Shown(c.options.primary, row.primary)));
  }
  for (const MetricResult& r : c.metrics) {
    // p95 of the secondaries is in JSON and HTML; here it would push out what is missing.
    const bool secondary = r.statistic.metric != c.options.primary.metric;
    if (secondary && r.population == decisive && r.statistic.q <= 0.9) AddRow(page, r);
  }
  const MetricResult& primary = *c.Primary();
  if (primary.typical.has_value()) {
    page.Add("typical turn (Hodges-Lehmann): " +
             EffectPercent(primary.typical->center, primary.typical->interval) +
             fmt::format(", better in {} of {} pairs", primary.typical->positive,
                         primary.typical->count));
  } else if (primary.unpaired.has_value()) {
    page.Add(fmt::format("unpaired: shift {}, a treated request beats a baseline one in {:.1f} %",
                         EffectPercent(primary.unpaired->shift),
                         100 * primary.unpaired->superiority));
  }
}

void AddShiftRow(Page& page, const Comparison& c) {
  if (c.shift.empty()) return;
  std::string line = "shift";
  for (const ShiftPoint& point : c.shift) {
    // p20, p40, p60 and p80 are in JSON and HTML.
    if (const int percent = static_cast<int>(std::lround(100 * point.q)); percent % 20 == 0) {
      continue;
    }
    const bool outside = point.band.low > 0 || point.band.high < 0;
    line += fmt::format("  p{:.0f} {:+.1f}{}", 100 * point.q, 100 * std::expm1(point.effect),
                        outside ? "*" : "");
  }
  page.Add(line + " %");
}

void AddFactorisation(Page& page, const Factorisation& f) {
  page.Add(fmt::format(
      "throughput: total tok/s/GPU x{:.4f} = requests x{:.4f} * tokens per request x{:.4f}",
      f.total, f.request_rate, f.tokens_per_request));
  std::string line = fmt::format("  output tok/s x{:.4f}", f.output_tokens);
  if (f.output_tokens_interval.has_value()) {
    line += fmt::format(" [{:.3f}, {:.3f}]", f.output_tokens_interval->low,
                        f.output_tokens_interval->high);
  }
  if (!std::isnan(f.computed_prefill)) {
    line += fmt::format(", computed prefill x{:.4f}", f.computed_prefill);
  }
  if (!std::isnan(f.at_equal_idle)) {
    line += fmt::format(", requests at equal idle x{:.4f}", f.at_equal_idle);
  }
  page.Add(line);
  if (!std::isnan(f.prompt_share)) {
    line = fmt::format("  {:.1f} % of all tokens are prompt tokens", 100 * f.prompt_share);
    if (!std::isnan(f.cached_share))
      line += fmt::format(", {:.1f} % of those cached", 100 * f.cached_share);
    page.Add(line + (f.prompt_share > 0.9 ? ": mostly workload position" : ""));
  }
}

void AddPoints(Page& page, const Comparison& c) {
  page.Add("point estimates, all turns; range = turns taken as independent");
  for (const Metric metric :
       {Metric::kE2eNormIntvty, Metric::kIntvty, Metric::kTtft, Metric::kE2el}) {
    for (const PointEstimate& p : c.points) {
      if (p.statistic.metric != metric || p.statistic.q == 0.75 || p.statistic.q == 0.99) continue;
      if (p.statistic.q == 0 && !IsRate(metric)) continue;
      std::string line =
          fmt::format("  {:<20} {:>13} -> {:>13}  on/off {:.3f} ({:+.1f} %)", NameOf(p.statistic),
                      Shown(p.statistic, p.off), Shown(p.statistic, p.on), p.on / p.off,
                      100 * (p.on / p.off - 1));
      if (p.range.has_value()) {
        line += fmt::format("  {:+.1f} .. {:+.1f}", 100 * (p.range->low - 1),
                            100 * (p.range->high - 1));
      }
      page.Add(line);
    }
  }
}

void AddRunLevel(Page& page, const Comparison& c) {
  const RunLevel& level = c.run_level;
  if (level.rounds.size() > 1) {
    std::string line = fmt::format("rounds: {}", level.rounds.size());
    for (const RoundResult& round : level.rounds) {
      line += fmt::format("  {}{}", EffectPercent(round.effect), round.swapped ? " (swapped)" : "");
    }
    page.Add(line);
    if (level.crossover.has_value()) {
      page.Add(fmt::format("crossover: effect {}, hardware set {}", EffectPercent(*level.crossover),
                           EffectPercent(*level.set_effect)));
    }
  }
  const Stationarity& s = c.stationarity;
  if (!std::isnan(s.effective_pairs)) {
    std::string line =
        fmt::format("stationarity: rho1 {:.2f}, effective pairs {:.0f}{}", s.rho1,
                    s.effective_pairs, s.quarter_effects.empty() ? "" : ", quarters");
    for (const double q : s.quarter_effects) line += fmt::format(" {}", EffectPercent(q));
    if (s.mser_off + s.mser_on > 0) {
      line += fmt::format(", MSER-5 would cut {} / {}", s.mser_off, s.mser_on);
    }
    page.Add(line);
  }
}

}  // namespace

std::string Shorten(const std::string& text, std::size_t width) {
  return ShortenEnd(text, static_cast<int>(width));
}

std::string EffectPercent(double effect) {
  return fmt::format("{:+.1f} %", 100 * std::expm1(effect));
}

std::string EffectPercent(double effect, const Interval& i) {
  return fmt::format("{:+.1f} % [{:+.1f}, {:+.1f}]", 100 * std::expm1(effect),
                     100 * std::expm1(i.low), 100 * std::expm1(i.high));
}

std::string TextPage(const Comparison& c) {
  Page page;
  page.Wrapped(c.sentence, 4);
  for (std::size_t i = 0; i < std::min<std::size_t>(c.caveats.size(), 3); ++i) {
    page.Add("  caveat: " + c.caveats[i]);
  }
  page.Add(GateStrip(c));
  const std::vector<std::string> sentences = GateSentences(c);
  page.List("", sentences, sentences.empty() ? 0 : std::min<std::size_t>(sentences.size() + 1, 7));
  if (c.level == 1) {
    AddPoints(page, c);
  } else {
    AddMetrics(page, c);
    AddShiftRow(page, c);
    page.Add(
        fmt::format("turns: both {}, off only {}, on only {} (matched by {}); rank leverage {:.1f}",
                    c.ledger.both, c.ledger.off_only, c.ledger.on_only, NameOf(c.ledger.key),
                    c.ledger.rank_leverage));
    AddRunLevel(page, c);
  }
  if (c.factorisation.has_value()) AddFactorisation(page, *c.factorisation);
  if (c.accuracy.has_value()) {
    const AccuracyResult& a = *c.accuracy;
    page.Add(fmt::format(
        "accuracy: {:.2f} % -> {:.2f} %, {:+.2f} points [{:+.2f}, {:+.2f}] on {} problems: {} at "
        "{:.1f}",
        100 * a.off, 100 * a.on, 100 * a.difference, 100 * a.interval.low, 100 * a.interval.high,
        a.problems, a.non_inferior ? "non-inferior" : "not shown non-inferior", 100 * a.margin));
  }
  page.List("missing:", c.missing, kLines > page.size() ? kLines - page.size() : 0);
  return page.Text();
}

std::string InspectPage(const Run& run) {
  Page page;
  page.Add(
      fmt::format("{}  evidence L{}, key: {}", run.label, run.EvidenceLevel(), NameOf(run.key)));
  for (const InputFile& input : run.inputs) {
    page.Add(fmt::format("  {:<44} {:<24} sha256 {}", input.label, input.schema,
                         input.sha256.substr(0, 16)));
  }
  page.Add("facts");
  for (const auto& [name, value] : run.facts) {
    page.Add(fmt::format("  {} {:<30} {}", GateOfFact(name), name, value));
  }
  page.Add("metrics");
  for (const Metric metric :
       {Metric::kTtft, Metric::kE2el, Metric::kItl, Metric::kIntvty, Metric::kE2eNormIntvty}) {
    std::string line = fmt::format("  {:<16} n {:<7.0f}", NameOf(metric), CountOf(run, metric));
    for (const double q : {0.0, 0.5, 0.75, 0.9, 0.95}) {
      const Statistic s{metric, q};
      line += fmt::format(" {} {}", q == 0 ? "mean" : fmt::format("p{:.0f}", 100 * q),
                          Shown(s, Value(run, s)));
    }
    page.Add(line);
  }
  page.Add("totals");
  for (const auto& [name, value] : run.numbers)
    page.Add(fmt::format("  {:<28} {:.9g}", name, value));
  page.Add(fmt::format("  {:<28} {:.4g}", "requests in flight (Little)", RequestsInFlight(run)));
  page.Add(fmt::format("  {:<28} {:.4g}", "implied idle per request, s", ImpliedIdle(run)));
  page.Add("identities");
  for (const Identity& i : CheckIdentities(run)) {
    page.Add(fmt::format("  {:>2} {:<9} {:<42} {:.8g} against {:.8g}", i.number,
                         i.holds   ? "holds"
                         : i.fatal ? "BROKEN"
                                   : "differs",
                         i.what, i.value, i.expected));
  }
  for (const std::string& note : run.notes) page.Add("note: " + note);
  return page.Text();
}

std::string PlanPage(const Plan& plan) {
  Page page;
  page.Add(fmt::format("plan for {}: power {:.0f} %, margin {:.1f} %, two-sided 5 %",
                       NameOf(plan.statistic), 100 * plan.power, 100 * plan.margin));
  page.Add(fmt::format(
      "pilot: {:.0f} turns in {:.1f} min, {:.0f} independent units, SE {:.2f} %, MDE {:.1f} % ({})",
      plan.pilot_turns, plan.pilot_minutes, plan.units, 100 * plan.standard_error,
      100 * std::expm1(plan.mde), plan.source));
  page.Add(fmt::format("{:>8} {:>14} {:>12} {:>10} {:>14}", "effect", "turns per arm", "minutes",
                       "rounds", "power as pilot"));
  for (const PlanRow& row : plan.rows) {
    const auto number = [](double value, const char* form) {
      return std::isnan(value) ? std::string("-") : fmt::format(fmt::runtime(form), value);
    };
    page.Add(fmt::format("{:>7.1f}% {:>14} {:>12} {:>10} {:>13.0f}%", 100 * row.effect,
                         number(row.turns, "{:.0f}"), number(row.minutes, "{:.1f}"),
                         number(row.rounds, "{:.0f}"), 100 * row.power_of_pilot));
  }
  page.Add(std::isnan(plan.run_deviation)
               ? "rounds: give two or more pilots of an arm to learn the run-to-run variance"
               : fmt::format("rounds: one round's effect varies by {:.2f} % (standard deviation)",
                             100 * plan.run_deviation));
  return page.Text();
}

}  // namespace assay::serving
