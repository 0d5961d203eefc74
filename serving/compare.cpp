#include "serving/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"
#include "serving/distributions.h"
#include "serving/ratio_interval.h"
#include "serving/samples.h"

namespace assay::serving {
namespace {

std::string WhySuppressed(const Sample& sample, double q) {
  const auto n =
      static_cast<std::int64_t>(std::min(sample.off.value.size(), sample.on.value.size()));
  if (n == 0) return "no request has this metric";
  const std::int64_t need = q == 0 ? 2 : SmallestCount(q);
  if (n >= need) return "";
  return fmt::format("{} requests, {} needed", n, need);
}

struct Question {
  Metric metric;
  std::vector<double> quantiles;
};

std::string MethodOf(const RatioInterval& ratio, bool paired, const UnitPlan& plan) {
  std::string method = ratio.from_swaps ? fmt::format("swap test over {}", plan.name)
                                        : fmt::format("{} bootstrap over {}",
                                                      paired ? "paired" : "unpaired", plan.name);
  if (plan.few_clusters) method += " (few clusters)";
  return method;
}

// All statistics of one metric on one population, from the intervals of the estimable quantiles.
std::vector<MetricResult> Summarise(const Pool& pool, const Question& question,
                                    Population population, const Sample& sample,
                                    const std::vector<double>& estimable,
                                    const std::vector<RatioInterval>& ratios) {
  const Metric metric = question.metric;
  const bool paired = population != Population::kAll;
  const UnitPlan& plan = paired ? pool.pair_units.plan : pool.all_units.plan;
  std::optional<HodgesLehmann> typical;
  if (paired && !estimable.empty()) typical = PairedShift(sample.effects);
  std::vector<MetricResult> results;
  for (const double q : question.quantiles) {
    MetricResult r;
    r.statistic = {metric, q};
    r.population = kPopulationNames[static_cast<std::size_t>(population)];
    r.n_off = static_cast<std::int64_t>(sample.off.value.size());
    r.n_on = static_cast<std::int64_t>(sample.on.value.size());
    r.clusters = plan.clusters;
    r.units = plan.effective;
    r.suppressed = WhySuppressed(sample, q);
    const auto at = static_cast<std::size_t>(std::find(estimable.begin(), estimable.end(), q) -
                                             estimable.begin());
    if (r.suppressed.empty()) {
      const RatioInterval& ratio = ratios[at];
      r.method = MethodOf(ratio, paired, plan);
      r.off = FromCost(metric, CostStatistic(sample.off.value, q));
      r.on = FromCost(metric, CostStatistic(sample.on.value, q));
      // A cost that falls is an improvement: effect = -ln(on cost / off cost).
      r.effect = -ratio.estimate;
      r.standard_error = ratio.standard_error;
      r.effect_interval = Interval{-ratio.interval.high, -ratio.interval.low};
      r.effect_90 = Interval{-ratio.interval_90.high, -ratio.interval_90.low};
      r.p = ratio.p;
      r.mde = MinimumDetectableEffect(r.standard_error, r.units);
      r.typical = typical;
    }
    results.push_back(std::move(r));
  }
  if (!paired && !pool.paired && !results.empty() && results[0].suppressed.empty()) {
    std::vector<double> x, y;  // as effects: larger is better
    for (const double v : sample.off.value) x.push_back(-std::log(v));
    for (const double v : sample.on.value) y.push_back(-std::log(v));
    const std::optional<MannWhitney> unpaired = CompareUnpaired(x, y);
    for (MetricResult& r : results) r.unpaired = unpaired;
  }
  return results;
}

// Several metrics on one population share the resamples.
std::vector<MetricResult> Analyse(const CompareInput& input, const Pool& pool,
                                  Population population, const std::vector<Question>& questions,
                                  std::uint64_t seed, int resamples) {
  std::vector<Sample> samples;
  for (const Question& question : questions) {
    samples.push_back(SampleOf(input, pool, question.metric, population));
  }
  std::vector<RatioQuestion> ratios;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    ratios.push_back({&samples[i].off, &samples[i].on, {}});
    for (const double q : questions[i].quantiles) {
      if (WhySuppressed(samples[i], q).empty()) ratios.back().statistics.push_back(q);
    }
  }
  const UnitPlan& plan =
      population == Population::kAll ? pool.all_units.plan : pool.pair_units.plan;
  const std::vector<std::vector<RatioInterval>> intervals =
      RatioIntervals(ratios, plan, population != Population::kAll, seed, resamples);
  std::vector<std::vector<MetricResult>> by_question(questions.size());
  ParallelFor(static_cast<std::int64_t>(questions.size()), 0, [&](std::int64_t index) {
    const auto i = static_cast<std::size_t>(index);
    by_question[i] =
        Summarise(pool, questions[i], population, samples[i], ratios[i].statistics, intervals[i]);
  });
  std::vector<MetricResult> results;
  for (std::vector<MetricResult>& list : by_question) {
    for (MetricResult& r : list) results.push_back(std::move(r));
  }
  return results;
}

void AddShift(const CompareInput& input, const Pool& pool, Population population,
              Comparison& comparison) {
  std::vector<double> quantiles;
  const Sample sample = SampleOf(input, pool, comparison.options.primary.metric, population);
  for (const double q : {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99}) {
    // A quantile below the median is as estimable as its mirror image.
    if (WhySuppressed(sample, std::max(q, 1 - q)).empty()) quantiles.push_back(q);
  }
  if (quantiles.empty()) return;
  const UnitPlan& plan =
      population == Population::kAll ? pool.all_units.plan : pool.pair_units.plan;
  const RatioDraws draws = BootstrapLogRatios(sample.off, sample.on, plan, quantiles,
                                              comparison.seed, comparison.options.resamples / 2);
  const std::vector<Interval> band = SimultaneousBand(draws, plan.effective);
  for (std::size_t i = 0; i < quantiles.size(); ++i) {
    comparison.shift.push_back({quantiles[i], -draws.estimate[i], {-band[i].high, -band[i].low}});
  }
}

Ledger MakeLedger(const CompareInput& input, const Pool& pool, const Statistic& primary) {
  Ledger ledger;
  struct Group {
    std::string name;
    std::int64_t count = 0;
    double isl = 0, osl = 0;
    std::vector<double> costs;
    void Add(const Request& r, Metric metric) {
      ++count;
      isl += r.isl;
      osl += r.osl;
      if (const double cost = Cost(r, metric); !std::isnan(cost)) costs.push_back(cost);
    }
  };
  Group groups[] = {{"both, off arm", 0, 0, 0, {}},
                    {"both, on arm", 0, 0, 0, {}},
                    {"off only", 0, 0, 0, {}},
                    {"on only", 0, 0, 0, {}}};
  std::int64_t all_on = 0;
  for (std::size_t k = 0; k < input.rounds.size(); ++k) {
    const Round& round = input.rounds[k];
    const Pairing& pairing = pool.pairings[k];
    ledger.key = pairing.key;
    ledger.note = pairing.note;
    for (const RequestPair& pair : pairing.both) {
      groups[0].Add(round.off.requests[pair.off], primary.metric);
      groups[1].Add(round.on.requests[pair.on], primary.metric);
    }
    for (const std::uint32_t i : pairing.off_only) {
      groups[2].Add(round.off.requests[i], primary.metric);
    }
    for (const std::uint32_t i : pairing.on_only) {
      groups[3].Add(round.on.requests[i], primary.metric);
    }
    all_on += static_cast<std::int64_t>(pairing.both.size() + pairing.on_only.size());
  }
  ledger.both = groups[0].count;
  ledger.off_only = groups[2].count;
  ledger.on_only = groups[3].count;
  ledger.rank_leverage = (1 - primary.q) * static_cast<double>(all_on - ledger.both);
  for (const Group& group : groups) {
    Ledger::Row row{group.name, group.count, kMissing, kMissing, kMissing};
    if (group.count > 0) {
      row.isl = group.isl / static_cast<double>(group.count);
      row.osl = group.osl / static_cast<double>(group.count);
      row.primary = FromCost(primary.metric, CostStatistic(group.costs, primary.q));
    }
    ledger.rows.push_back(row);
  }
  return ledger;
}

// A slice [begin, end) of the pooled pairs with its own units.
MetricResult PartEffect(const CompareInput& input, const Pool& pool, const Statistic& statistic,
                        std::size_t begin, std::size_t end, std::uint64_t seed, int resamples) {
  // Parts are of the first round's pairs, which are in time order.
  CompareInput part_input;
  Pool part;
  part.pairings.push_back(pool.pairings[0]);
  std::vector<RequestPair>& both = part.pairings[0].both;
  both.assign(pool.pairings[0].both.begin() + static_cast<std::ptrdiff_t>(begin),
              pool.pairings[0].both.begin() + static_cast<std::ptrdiff_t>(end));
  const Round& round = input.rounds[0];
  part.pair_units = {};
  AppendRound(part.pair_units, UnitsOfPairs(round.off, round.on, both), 0);
  part.pair_units.plan.round_of_stratum.clear();
  std::size_t at = 0;
  Sample sample;
  for (const RequestPair& pair : both) {
    const std::int32_t unit = part.pair_units.off[at++];
    const double x = Cost(round.off.requests[pair.off], statistic.metric);
    const double y = Cost(round.on.requests[pair.on], statistic.metric);
    if (!(x > 0) || !(y > 0)) continue;
    sample.off.value.push_back(x);
    sample.on.value.push_back(y);
    sample.off.unit.push_back(unit);
    sample.on.unit.push_back(unit);
  }
  MetricResult result;
  result.suppressed = WhySuppressed(sample, statistic.q);
  if (!result.suppressed.empty()) return result;
  const double q[] = {statistic.q};
  const RatioDraws draws =
      BootstrapLogRatios(sample.off, sample.on, part.pair_units.plan, q, seed, resamples);
  result.effect = -draws.estimate[0];
  result.standard_error = draws.standard_error[0];
  result.units = part.pair_units.plan.effective;
  return result;
}

Stationarity CheckStationarity(const CompareInput& input, const Pool& pool,
                               const Statistic& primary, std::uint64_t seed) {
  Stationarity s;
  const std::vector<RequestPair>& both = pool.pairings[0].both;
  const Round& round = input.rounds[0];
  std::vector<double> effects, off_costs, on_costs;
  bool timed = !both.empty();
  for (const RequestPair& pair : both) {
    timed = timed && round.off.requests[pair.off].start_ns != kNoTime;
    const double x = Cost(round.off.requests[pair.off], primary.metric);
    const double y = Cost(round.on.requests[pair.on], primary.metric);
    if (!(x > 0) || !(y > 0)) continue;
    effects.push_back(std::log(x / y));
    off_costs.push_back(x);
    on_costs.push_back(y);
  }
  const std::size_t n = both.size();
  if (effects.size() < 8) return s;
  s.rho1 = Autocorrelation(effects, 1);
  s.effective_pairs = static_cast<double>(effects.size()) / IntegratedAutocorrelationTime(effects);
  s.mser_off = MserTruncation(off_costs);
  s.mser_on = MserTruncation(on_costs);
  for (std::size_t quarter = 0; quarter < 4 && timed; ++quarter) {
    const auto part = PartEffect(input, pool, {primary.metric, 0.5}, quarter * n / 4,
                                 (quarter + 1) * n / 4, seed, 2);
    s.quarter_effects.push_back(part.effect);
  }
  if (!timed) return s;
  // The median of each half: the primary tail quantile of half the pairs is too noisy to show
  // drift.
  const auto first = PartEffect(input, pool, {primary.metric, 0.5}, 0, n / 2, seed, 1000);
  const auto second = PartEffect(input, pool, {primary.metric, 0.5}, n / 2, n, seed + 1, 1000);
  if (!first.suppressed.empty() || !second.suppressed.empty()) return s;
  const double difference = second.effect - first.effect;
  const double half = CriticalValue(std::min(first.units, second.units)) *
                      std::hypot(first.standard_error, second.standard_error);
  s.half_ratio = Interval{difference - half, difference + half};
  return s;
}

RunLevel MakeRunLevel(const CompareInput& input, const Pool& pool, const Statistic& primary) {
  RunLevel level;
  std::vector<double> effects, straight, swapped;
  for (std::size_t k = 0; k < input.rounds.size(); ++k) {
    const Round& round = input.rounds[k];
    std::vector<double> x, y;
    if (pool.paired) {
      for (const RequestPair& pair : pool.pairings[k].both) {
        const double a = Cost(round.off.requests[pair.off], primary.metric);
        const double b = Cost(round.on.requests[pair.on], primary.metric);
        if (!(a > 0) || !(b > 0)) continue;
        x.push_back(a);
        y.push_back(b);
      }
    } else {
      x = Costs(round.off, primary.metric);
      y = Costs(round.on, primary.metric);
    }
    RoundResult result{round.off.label, round.on.label, round.swapped,
                       std::log(CostStatistic(x, primary.q) / CostStatistic(y, primary.q))};
    effects.push_back(result.effect);
    (round.swapped ? swapped : straight).push_back(result.effect);
    level.rounds.push_back(std::move(result));
  }
  level.mean = Mean(effects);
  if (effects.size() >= 2) {
    double squares = 0;
    for (const double e : effects) squares += (e - level.mean) * (e - level.mean);
    level.deviation = std::sqrt(squares / static_cast<double>(effects.size() - 1));
  }
  if (effects.size() >= 3) {
    const double k = static_cast<double>(effects.size());
    const double half = StudentQuantile(0.975, k - 1) * level.deviation / std::sqrt(k);
    level.interval = Interval{level.mean - half, level.mean + half};
  }
  // Swapped sets: effect = mean of both orders, hardware set = half their difference.
  if (!straight.empty() && !swapped.empty()) {
    level.crossover = 0.5 * (Mean(straight) + Mean(swapped));
    level.set_effect = 0.5 * (Mean(straight) - Mean(swapped));
  }
  return level;
}

void SetFloor(const CompareInput& input, Comparison& comparison) {
  comparison.floor = 0;
  comparison.floor_source = "margin only";
  if (input.control.has_value()) {
    CompareInput control;
    control.rounds.push_back(*input.control);
    const Pool pool = MakePool(control);
    const Statistic primary = comparison.options.primary;
    std::vector<MetricResult> results =
        Analyse(control, pool, pool.paired ? Population::kBoth : Population::kAll,
                {{primary.metric, {primary.q}}}, comparison.seed, comparison.options.resamples / 2);
    if (results[0].suppressed.empty()) {
      const Interval& i = *results[0].effect_interval;
      comparison.floor = std::abs(results[0].effect) + 0.5 * (i.high - i.low);
      comparison.floor_source = "control";
      comparison.control = std::move(results[0]);
      return;
    }
  }
  // Two rounds cannot give a run-level interval, but their baselines show how far runs spread.
  if (input.rounds.size() == 2) {
    const double a = Value(input.rounds[0].off, comparison.options.primary);
    const double b = Value(input.rounds[1].off, comparison.options.primary);
    comparison.floor = std::abs(std::log(a / b));
    comparison.floor_source = "spread of the off runs";
  }
}

void AddPoints(const Round& round, Comparison& comparison) {
  for (const Metric metric : {comparison.options.primary.metric, Metric::kE2eNormIntvty,
                              Metric::kIntvty, Metric::kTtft, Metric::kE2el}) {
    for (const double q : {0.5, 0.75, 0.9, 0.95, 0.99, 0.0}) {
      const Statistic statistic{metric, q};
      const bool seen = std::any_of(comparison.points.begin(), comparison.points.end(),
                                    [&](const PointEstimate& p) {
                                      return p.statistic.metric == metric && p.statistic.q == q;
                                    });
      PointEstimate point{statistic, Value(round.off, statistic), Value(round.on, statistic), {}};
      if (seen || !(point.off > 0) || !(point.on > 0)) continue;
      point.range = RatioRangeFromQuantiles(round.off, round.on, statistic);
      comparison.points.push_back(point);
    }
  }
}

std::uint64_t SeedOf(const CompareInput& input, std::uint64_t wanted) {
  if (wanted != 0) return wanted;
  // FNV-1a over the hashes of all inputs: same files, same numbers.
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const Round& round : input.rounds) {
    for (const Run* run : {&round.off, &round.on}) {
      for (const InputFile& file : run->inputs) {
        for (const char c : file.sha256)
          hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
      }
    }
  }
  return hash;
}

GateEvidence MakeEvidence(const CompareInput& input, const Pool& pool,
                          const Comparison& comparison) {
  GateEvidence evidence;
  for (std::size_t k = 0; k < input.rounds.size(); ++k) {
    const Round& round = input.rounds[k];
    const Pairing& pairing = pool.pairings[k];
    evidence.repeated_keys += static_cast<double>(pairing.repeated_keys);
    evidence.pairs += static_cast<double>(pairing.both.size());
    for (const RequestPair& pair : pairing.both) {
      const double a = round.off.requests[pair.off].osl, b = round.on.requests[pair.on].osl;
      if (!std::isnan(a) && !std::isnan(b) && a != b) ++evidence.pairs_with_other_osl;
    }
    evidence.swapped_rounds = evidence.swapped_rounds || round.swapped;
  }
  evidence.both = evidence.pairs;
  evidence.off_requests = evidence.pairs + static_cast<double>(comparison.ledger.off_only);
  evidence.on_requests = evidence.pairs + static_cast<double>(comparison.ledger.on_only);
  if (comparison.stationarity.half_ratio.has_value()) {
    const Interval& i = *comparison.stationarity.half_ratio;
    evidence.half_difference = 0.5 * (i.low + i.high);
    evidence.half_uncertainty = 0.5 * (i.high - i.low);
  }
  for (const MetricResult& r : comparison.metrics) {
    if (!r.suppressed.empty()) {
      evidence.suppressed.push_back(NameOf(r.statistic) + " (" + r.suppressed + ")");
    }
  }
  return evidence;
}

void AddMetrics(const CompareInput& input, const Pool& pool, Comparison& comparison) {
  const CompareOptions& options = comparison.options;
  const Population decisive = pool.paired ? Population::kBoth : Population::kAll;
  const auto analyse = [&](Population population, const std::vector<Question>& questions) {
    for (MetricResult& r :
         Analyse(input, pool, population, questions, comparison.seed, options.resamples)) {
      comparison.metrics.push_back(std::move(r));
    }
  };
  // The primary statistic first, then its family, then the secondaries.
  std::vector<double> family{options.primary.q};
  for (const double q : {0.5, 0.9, 0.95, 0.99}) {
    if (q != options.primary.q) family.push_back(q);
  }
  std::vector<Question> questions{{options.primary.metric, family}};
  for (const Metric metric :
       {Metric::kE2eNormIntvty, Metric::kIntvty, Metric::kTtft, Metric::kE2el}) {
    if (metric != options.primary.metric) questions.push_back({metric, {0.5, 0.9, 0.95}});
  }
  analyse(decisive, questions);
  std::vector<double> main{options.primary.q};
  if (options.primary.q != 0.5) main.push_back(0.5);
  if (pool.paired) analyse(Population::kAll, {{options.primary.metric, main}});
  bool unequal = false;
  for (std::size_t k = 0; k < input.rounds.size() && pool.paired; ++k) {
    for (const RequestPair& pair : pool.pairings[k].both) {
      unequal = unequal || input.rounds[k].off.requests[pair.off].osl !=
                               input.rounds[k].on.requests[pair.on].osl;
    }
  }
  if (unequal) analyse(Population::kBothEqualOutput, {{options.primary.metric, main}});
  // Every other decisive-population statistic is a secondary.
  std::vector<double> p;
  std::vector<MetricResult*> secondary;
  for (std::size_t i = 1; i < comparison.metrics.size(); ++i) {
    MetricResult& r = comparison.metrics[i];
    if (!r.suppressed.empty() ||
        r.population != kPopulationNames[static_cast<std::size_t>(decisive)]) {
      continue;
    }
    p.push_back(r.p);
    secondary.push_back(&r);
  }
  const std::vector<double> adjusted = BenjaminiHochberg(p);
  for (std::size_t i = 0; i < secondary.size(); ++i) secondary[i]->p_adjusted = adjusted[i];
}

void CheckInput(const CompareInput& input) {
  if (input.rounds.empty()) BadInput("a comparison needs at least one off and one on run");
  const int level = input.rounds[0].off.EvidenceLevel();
  for (const Round& round : input.rounds) {
    for (const Run* run : {&round.off, &round.on}) {
      if ((run->EvidenceLevel() > 1) != (level > 1)) {
        BadInput(run->label + " holds " + (level > 1 ? "aggregates only" : "requests") +
                 ", the other runs do not: compare like with like");
      }
    }
  }
  if (input.accuracy_off.has_value() != input.accuracy_on.has_value()) {
    BadInput("accuracy needs both arms");
  }
}

}  // namespace

double MetricResult::Ratio() const { return std::exp(IsRate(statistic.metric) ? effect : -effect); }

Interval MetricResult::RatioInterval() const {
  if (!effect_interval.has_value()) return {kMissing, kMissing};
  if (IsRate(statistic.metric)) {
    return {std::exp(effect_interval->low), std::exp(effect_interval->high)};
  }
  return {std::exp(-effect_interval->high), std::exp(-effect_interval->low)};
}

double MinimumDetectableEffect(double standard_error, double units) {
  constexpr double kPower80 = 0.8416212;  // standard normal quantile of 0.80
  return (CriticalValue(units) + kPower80) * standard_error;
}

const MetricResult* Comparison::Find(const Statistic& statistic,
                                     std::string_view population) const {
  for (const MetricResult& r : metrics) {
    if (r.statistic.metric == statistic.metric && r.statistic.q == statistic.q &&
        r.population == population) {
      return &r;
    }
  }
  return nullptr;
}

Comparison Compare(const CompareInput& input, const CompareOptions& options) {
  CheckInput(input);
  Comparison comparison;
  comparison.options = options;
  comparison.seed = SeedOf(input, options.seed);
  comparison.level = 3;
  for (const Round& round : input.rounds) {
    comparison.level =
        std::min({comparison.level, round.off.EvidenceLevel(), round.on.EvidenceLevel()});
    for (const Run* run : {&round.off, &round.on}) {
      (run == &round.off ? comparison.off_runs : comparison.on_runs).push_back(run);
      comparison.identities.emplace_back(run->label, CheckIdentities(*run));
    }
  }
  const Round& first = input.rounds[0];
  Pool pool;
  if (comparison.level > 1) {
    pool = MakePool(input);
    if (!pool.paired) comparison.level = 2;
    comparison.ledger = MakeLedger(input, pool, options.primary);
    AddMetrics(input, pool, comparison);
    AddShift(input, pool, pool.paired ? Population::kBoth : Population::kAll, comparison);
    comparison.run_level = MakeRunLevel(input, pool, options.primary);
    if (pool.paired) {
      comparison.stationarity = CheckStationarity(input, pool, options.primary, comparison.seed);
    }
    SetFloor(input, comparison);
  } else {
    pool.pairings.resize(input.rounds.size());
    AddPoints(first, comparison);
    comparison.floor_source = "margin only";
  }
  comparison.factorisation = Factorise(first.off, first.on);
  comparison.gates = CheckGates(first.off, first.on, options.treatment, options.allow,
                                options.primary, MakeEvidence(input, pool, comparison));
  if (input.accuracy_off.has_value()) {
    comparison.accuracy = CompareAccuracy(*input.accuracy_off, *input.accuracy_on,
                                          options.accuracy_margin, comparison.seed);
    for (const AccuracyRun* run : {&*input.accuracy_off, &*input.accuracy_on}) {
      if (run->simulated_acceptance) {
        comparison.gates[4].status =
            options.allow.contains("G05") ? GateStatus::kAllowed : GateStatus::kRefuse;
        comparison.gates[4].sentence =
            run->label + " was scored with simulated acceptance: its answers are not the model's";
      }
    }
  }
  Decide(comparison);
  return comparison;
}

}  // namespace assay::serving
