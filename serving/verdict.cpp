// From numbers and gates to one verdict, its sentence, and what is missing.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "serving/compare.h"

namespace assay::serving {
namespace {

enum class Direction { kFaster, kSlower, kNone };

// Beyond the noise floor and the margin, and the interval excludes no effect.
Direction DirectionOf(const Comparison& c, double effect, const Interval& interval) {
  const double least = std::max(c.floor, std::log1p(c.options.margin));
  if (interval.low > 0 && effect > least) return Direction::kFaster;
  if (interval.high < 0 && effect < -least) return Direction::kSlower;
  return Direction::kNone;
}

Direction DirectionOf(const Comparison& c, const MetricResult* r, bool secondary) {
  if (r == nullptr || !r->suppressed.empty()) return Direction::kNone;
  if (secondary && !(r->p_adjusted < 0.05)) return Direction::kNone;
  return DirectionOf(c, r->effect, *r->effect_interval);
}

// The interval that decides: between runs where three rounds exist, else between turns.
Interval DecisiveInterval(const Comparison& c) {
  return c.run_level.interval.value_or(*c.Primary()->effect_interval);
}
double DecisiveEffect(const Comparison& c) {
  return c.run_level.interval.has_value() ? c.run_level.mean : c.Primary()->effect;
}

bool Equivalent(const Comparison& c) {
  const double bound = std::log1p(c.options.margin);
  Interval i = *c.Primary()->effect_90;
  if (c.run_level.interval.has_value()) {
    // The t interval at 90 %: scale the 95 % half-width by the ratio of critical values, which for
    // any number of rounds is below 1; 0.84 is the limit for many, larger than the true ratio.
    const double half = 0.84 * 0.5 * (c.run_level.interval->high - c.run_level.interval->low);
    i = {c.run_level.mean - half, c.run_level.mean + half};
  }
  return i.low > -bound && i.high < bound;
}

// Quantiles of the primary metric, or ITL and TTFT, that move in opposite directions.
bool Mixed(const Comparison& c) {
  bool faster = false, slower = false;
  for (const MetricResult& r : c.metrics) {
    if (r.population != c.Primary()->population) continue;
    const bool family = r.statistic.metric == c.options.primary.metric;
    const bool other = r.statistic.metric == Metric::kIntvty || r.statistic.metric == Metric::kTtft;
    if (!family && !(other && r.statistic.q == 0.5)) continue;
    const Direction d = DirectionOf(c, &r, &r != c.Primary());
    faster = faster || d == Direction::kFaster;
    slower = slower || d == Direction::kSlower;
  }
  return faster && slower;
}

// Next estimable quantile above the primary one whose interval includes "no effect".
bool TailNotHelped(const Comparison& c) {
  for (const double q : {0.9, 0.95, 0.99, 0.999}) {
    if (q <= c.options.primary.q) continue;
    const MetricResult* r = c.Find({c.options.primary.metric, q}, c.Primary()->population);
    if (r == nullptr || !r->suppressed.empty()) continue;
    return r->effect_interval->low <= 0;
  }
  return false;
}

Verdict Judge(const Comparison& c) {
  const bool refused = std::any_of(c.gates.begin(), c.gates.end(), [](const Gate& gate) {
    return gate.status == GateStatus::kRefuse;
  });
  if (refused) return Verdict::kNotComparable;
  if (c.level == 1) return Verdict::kPointEstimateOnly;
  const MetricResult& primary = *c.Primary();
  if (!primary.suppressed.empty()) return Verdict::kInconclusive;
  if (Mixed(c)) return Verdict::kMixed;
  const Direction direction = DirectionOf(c, DecisiveEffect(c), DecisiveInterval(c));
  if (direction == Direction::kSlower) return Verdict::kSlower;
  if (direction == Direction::kFaster) {
    return TailNotHelped(c) ? Verdict::kFasterTailNotHelped : Verdict::kFaster;
  }
  // The primary tail did not move, but the median did.
  if (c.options.primary.q > 0.5 && !c.run_level.interval.has_value()) {
    const MetricResult* median = c.Find({c.options.primary.metric, 0.5}, primary.population);
    if (DirectionOf(c, median, true) == Direction::kFaster) return Verdict::kFasterTailNotHelped;
  }
  return Equivalent(c) ? Verdict::kEquivalent : Verdict::kInconclusive;
}

int ExitCode(const Comparison& c) {
  if (c.verdict == Verdict::kNotComparable) return 6;
  if (c.accuracy.has_value() && !c.accuracy->non_inferior) return 1;
  switch (c.verdict) {
    case Verdict::kFaster:
    case Verdict::kFasterTailNotHelped:
    case Verdict::kEquivalent:
      return 0;
    case Verdict::kSlower:
    case Verdict::kMixed:
      return 1;
    default:
      return 5;
  }
}

// What would turn an inconclusive result into one: pairs for the statistical error, rounds for the
// floor of run-to-run noise.
std::string Needed(const Comparison& c) {
  const MetricResult& primary = *c.Primary();
  const double margin = std::log1p(c.options.margin);
  if (!primary.suppressed.empty()) {
    return fmt::format("{} turns", SmallestCount(c.options.primary.q));
  }
  if (c.run_level.interval.has_value()) {
    const double target = std::max(std::abs(c.run_level.mean), margin);
    const double k = std::ceil(std::pow(2.8 * c.run_level.deviation / target, 2));
    return fmt::format("about {:.0f} rounds",
                       std::max(k, static_cast<double>(c.run_level.rounds.size()) + 1));
  }
  if (c.floor > std::abs(primary.effect)) return "3 or more rounds: the effect is below the floor";
  const double target = std::max(std::abs(primary.effect), margin);
  const double factor = std::pow(primary.mde / target, 2);
  if (factor <= 1) return "an effect above the margin, or 3 rounds";
  return fmt::format("about {:.0f} turns", std::ceil(static_cast<double>(primary.n_off) * factor));
}

std::string EffectText(double effect, const Interval& i) {
  const auto percent = [](double e) { return 100 * std::expm1(e); };
  return fmt::format("{:+.1f} % [{:+.1f}, {:+.1f}]", percent(effect), percent(i.low),
                     percent(i.high));
}

std::string Sentence(const Comparison& c) {
  std::string text(NameOf(c.verdict));
  if (c.verdict == Verdict::kNotComparable) {
    std::string codes;
    for (const Gate& gate : c.gates) {
      if (gate.status == GateStatus::kRefuse) codes += (codes.empty() ? "" : " ") + gate.code;
    }
    text += fmt::format(" ({})", codes);
  }
  const std::string name = NameOf(c.options.primary);
  if (c.level == 1) {
    for (const PointEstimate& p : c.points) {
      if (p.statistic.metric != c.options.primary.metric || p.statistic.q != c.options.primary.q)
        continue;
      text += fmt::format("  {} {:.5g} -> {:.5g} ({:+.1f} %), all turns, no interval", name, p.off,
                          p.on, 100 * (p.on / p.off - 1));
    }
    return text;
  }
  const MetricResult& r = *c.Primary();
  if (!r.suppressed.empty()) return text + fmt::format("  {}: {}", name, r.suppressed);
  if (c.verdict == Verdict::kInconclusive) text += fmt::format(" (needs {})", Needed(c));
  text +=
      fmt::format("  {} {} (95 %) on {} ({} {}, {} {}, {} round{}) | floor {} ({}) | MDE {:.1f} %",
                  name + (IsRate(r.statistic.metric) ? "" : " speed-up"),
                  EffectText(DecisiveEffect(c), DecisiveInterval(c)),
                  r.population == "both" ? "the turns of both arms" : "all requests",
                  std::min(r.n_off, r.n_on), r.population == "both" ? "pairs" : "requests",
                  r.clusters > 0 ? r.clusters : static_cast<std::int32_t>(r.units),
                  r.clusters > 0 ? "clusters" : "blocks", c.run_level.rounds.size(),
                  c.run_level.rounds.size() == 1 ? "" : "s",
                  c.floor > 0 ? fmt::format("{:.1f} %", 100 * std::expm1(c.floor)) : "none",
                  c.floor_source, 100 * std::expm1(r.mde));
  return text;
}

void AddCaveats(Comparison& c) {
  for (const Gate& gate : c.gates) {
    if (gate.status == GateStatus::kAllowed)
      c.caveats.push_back(gate.code + " allowed: " + gate.sentence);
  }
  if (c.accuracy.has_value() && c.accuracy->worse) {
    c.caveats.push_back("accuracy is worse with the treatment");
  } else if (c.accuracy.has_value() && !c.accuracy->non_inferior) {
    c.caveats.push_back("accuracy is not shown to be non-inferior");
  }
  for (const std::vector<const Run*>* runs : {&c.off_runs, &c.on_runs}) {
    for (const Run* run : *runs) {
      for (const char* fact : {"synthetic", "server.load-format"}) {
        const std::string value = run->Fact(fact);
        if (value == "dummy" || (value == "true" && std::string_view(fact) == "synthetic")) {
          c.caveats.push_back(run->label + " is synthetic: simulated routing or dummy weights");
        }
      }
    }
  }
  if (c.level == 1) return;
  if (c.ledger.key == KeyKind::kIndex) c.caveats.push_back("pairing is assumed, not recorded");
  if (c.ledger.key == KeyKind::kNone) c.caveats.push_back("unpaired: arms are compared as groups");
  const MetricResult& r = *c.Primary();
  if (r.method.find("few clusters") != std::string::npos) {
    c.caveats.push_back(
        fmt::format("few clusters ({}): blocks in time were resampled instead", r.clusters));
  }
  if (c.run_level.rounds.size() < 3) {
    c.caveats.push_back("one run an arm says nothing about run-to-run variance");
  }
  if (r.typical.has_value() && r.suppressed.empty() && r.typical->center * r.effect < 0 &&
      std::abs(r.typical->center - r.effect) > std::log1p(c.options.margin)) {
    c.caveats.push_back("the typical turn and the quantile move in opposite directions");
  }
}

void AddMissing(Comparison& c) {
  const auto need = [&c](std::string text) { c.missing.push_back(std::move(text)); };
  if (c.level == 1) {
    need("per-request records of both arms (aiperf --export-level records): pairs, intervals");
  } else if (c.ledger.key <= KeyKind::kIndex) {
    need("a stable key per request (conversation and turn, or request id) in both files");
  }
  if (c.run_level.rounds.size() < 3)
    need("3 paired rounds: --round OFF,ON,set --round OFF,ON,swap");
  if (c.floor_source != "control") need("a control pair: --control-off X --control-on Y");
  if (!c.accuracy.has_value()) need("accuracy by problem: --acc-off X --acc-on Y");
  for (const Gate& gate : c.gates) {
    const bool fillable = gate.status == GateStatus::kUnknown ||
                          (gate.status == GateStatus::kWarn &&
                           gate.sentence.find("not recorded") != std::string::npos);
    if (!fillable) continue;
    const char* file =
        gate.code == "G17"   ? "clock samples in the bundle"
        : gate.code == "G21" ? "numbers.treated_step_share in facts.json"
        : gate.code == "G22" ? "numbers.history_primary in facts.json"
        : gate.code == "G01" ? "facts.json beside the result, then --treatment KEY"
        : gate.code == "G05" ? "a server log in the bundle"
        : gate.code == "G09" || gate.code == "G15" || gate.code == "G16" || gate.code == "G18"
            ? "per-request records with time stamps"
            : "facts.json beside the result";
    need(fmt::format("{}: {}: {}", gate.code, gate.sentence, file));
  }
}

}  // namespace

std::string_view NameOf(Verdict verdict) {
  constexpr std::string_view kNames[] = {
      "FASTER",       "FASTER-BUT-TAIL-NOT-HELPED", "EQUIVALENT",    "SLOWER", "MIXED",
      "INCONCLUSIVE", "POINT-ESTIMATE ONLY",        "NOT COMPARABLE"};
  return kNames[static_cast<std::size_t>(verdict)];
}

void Decide(Comparison& comparison) {
  comparison.verdict = Judge(comparison);
  comparison.exit_code = ExitCode(comparison);
  comparison.sentence = Sentence(comparison);
  AddCaveats(comparison);
  AddMissing(comparison);
}

}  // namespace assay::serving
