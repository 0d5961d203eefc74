#include "serving/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "serving/distributions.h"

namespace assay::serving {
namespace {

struct PilotError {
  double standard_error = 0, units = 0, turns = 0;
};

ArmValues CostsWithUnits(const Run& run, const Statistic& statistic,
                         const std::vector<std::int32_t>& units) {
  ArmValues arm;
  std::size_t at = 0;
  for (const std::uint32_t i : MeasuredRequests(run)) {
    const std::int32_t unit = units[at++];
    const double cost = Cost(run.requests[i], statistic.metric);
    if (!(cost > 0)) continue;
    arm.value.push_back(cost);
    arm.unit.push_back(unit);
  }
  return arm;
}

// Two arms that are independent copies of one pilot.
PilotError FromOneArm(const Run& run, const Statistic& statistic, std::uint64_t seed) {
  const std::vector<std::uint32_t> requests = MeasuredRequests(run);
  const Units units = UnitsOfAll(run, run, requests, requests, false);
  const double q[] = {statistic.q};
  const ArmValues off = CostsWithUnits(run, statistic, units.off);
  const ArmValues on = CostsWithUnits(run, statistic, units.on);
  if (off.value.size() < 2) BadInput(run.label + " has too few requests with " + NameOf(statistic));
  const RatioDraws draws = BootstrapLogRatios(off, on, units.plan, q, seed, 4000);
  return {draws.standard_error[0], units.plan.effective, static_cast<double>(off.value.size())};
}

PilotError FromPairs(const Run& off, const Run& on, const Statistic& statistic,
                     std::uint64_t seed) {
  CompareInput input;
  input.rounds.push_back({off, on, false});
  CompareOptions options;
  options.primary = statistic;
  options.seed = seed;
  options.resamples = 4000;
  const Comparison c = Compare(input, options);
  if (c.metrics.empty() || !c.Primary()->suppressed.empty()) {
    BadInput("the pilots are too small for " + NameOf(statistic));
  }
  return {c.Primary()->standard_error, c.Primary()->units, static_cast<double>(c.Primary()->n_off)};
}

double RunDeviation(const std::vector<Run>& off, const std::vector<Run>& on,
                    const Statistic& statistic) {
  std::vector<double> effects;
  const auto value = [&](const Run& run) { return std::log(Value(run, statistic)); };
  if (off.size() >= 2 && on.size() == off.size()) {
    for (std::size_t k = 0; k < off.size(); ++k) effects.push_back(value(on[k]) - value(off[k]));
  } else if (off.size() >= 2) {
    for (const Run& run : off) effects.push_back(value(run));
  } else {
    return kMissing;
  }
  const double mean = Mean(effects);
  double squares = 0;
  for (const double e : effects) squares += (e - mean) * (e - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(effects.size() - 1));
  // Runs of one arm only: a round's effect is a difference of two of them.
  return on.size() == off.size() ? deviation : std::sqrt(2.0) * deviation;
}

// Rounds K with (t_{0.975} + t_{power}) deviation / sqrt(K) <= effect.
double RoundsFor(double effect, double deviation, double power) {
  for (int k = 3; k <= 1000; ++k) {
    const double reach = (StudentQuantile(0.975, k - 1) + StudentQuantile(power, k - 1)) *
                         deviation / std::sqrt(static_cast<double>(k));
    if (reach <= effect) return k;
  }
  return kMissing;
}

}  // namespace

double PowerOf(double effect, double standard_error, double units, double margin) {
  const double threshold = std::max(CriticalValue(units) * standard_error, std::log1p(margin));
  return NormalCdf((effect - threshold) / standard_error);
}

Plan MakePlan(const std::vector<Run>& off, const std::vector<Run>& on, const Statistic& statistic,
              const std::vector<double>& effects, double margin, double power, std::uint64_t seed) {
  if (off.empty()) BadInput("a plan needs at least one pilot run");
  for (const std::vector<Run>* runs : {&off, &on}) {
    for (const Run& run : *runs) {
      if (run.EvidenceLevel() == 1) {
        BadInput(run.label + " holds aggregates only: a plan needs requests");
      }
    }
  }
  Plan plan;
  plan.statistic = statistic;
  plan.margin = margin;
  plan.power = power;
  const PilotError pilot =
      on.empty() ? FromOneArm(off[0], statistic, seed) : FromPairs(off[0], on[0], statistic, seed);
  plan.source = on.empty() ? "two independent runs like the pilot" : "the pilot's pairs";
  plan.standard_error = pilot.standard_error;
  plan.units = pilot.units;
  plan.pilot_turns = pilot.turns;
  plan.pilot_minutes = off[0].Number("duration_s") / 60;
  plan.mde = MinimumDetectableEffect(pilot.standard_error, pilot.units);
  plan.run_deviation = RunDeviation(off, on, statistic);
  for (const double effect : effects) {
    if (!(effect > 0)) BadInput(fmt::format("an effect of {} cannot be planned for", effect));
    PlanRow row;
    row.effect = effect;
    const double target = std::log1p(effect);
    row.power_of_pilot = PowerOf(target, pilot.standard_error, pilot.units, margin);
    // The standard error falls with sqrt(turns); turns come in whole clusters.
    double low = 1e-4, high = 1e6;  // multiples of the pilot
    if (target > std::log1p(margin)) {
      for (int step = 0; step < 200; ++step) {
        const double middle = std::sqrt(low * high);
        const double units = std::max(2.0, pilot.units * middle);
        const double reached =
            PowerOf(target, pilot.standard_error / std::sqrt(middle), units, margin);
        (reached >= power ? high : low) = middle;
      }
      row.turns = std::ceil(
          std::max(pilot.turns * high,
                   statistic.q > 0 ? static_cast<double>(SmallestCount(statistic.q)) : 2.0));
    } else {
      row.turns = kMissing;  // an effect inside the margin is never claimed
    }
    row.minutes = row.turns / pilot.turns * plan.pilot_minutes;
    if (!std::isnan(plan.run_deviation)) {
      row.rounds = RoundsFor(target, plan.run_deviation, power);
    }
    plan.rows.push_back(row);
  }
  return plan;
}

}  // namespace assay::serving
