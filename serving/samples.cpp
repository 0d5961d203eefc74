#include "serving/samples.h"

#include <cmath>

#include "serving/distributions.h"

namespace assay::serving {
namespace {

Sample PairedSample(const CompareInput& input, const Pool& pool, Metric metric, bool equal_output) {
  Sample sample;
  std::size_t at = 0;
  for (std::size_t k = 0; k < input.rounds.size(); ++k) {
    const Round& round = input.rounds[k];
    for (const RequestPair& pair : pool.pairings[k].both) {
      const std::int32_t unit = pool.pair_units.off[at++];
      const Request &a = round.off.requests[pair.off], &b = round.on.requests[pair.on];
      const double x = Cost(a, metric), y = Cost(b, metric);
      if (!(x > 0) || !(y > 0) || (equal_output && a.osl != b.osl)) continue;
      sample.off.value.push_back(x);
      sample.off.unit.push_back(unit);
      sample.on.value.push_back(y);
      sample.on.unit.push_back(unit);
      sample.effects.push_back(std::log(x / y));
    }
  }
  return sample;
}

Sample FullSample(const CompareInput& input, const Pool& pool, Metric metric) {
  Sample sample;
  std::size_t off_at = 0, on_at = 0;
  const auto add = [metric](const Run& run, const std::vector<std::int32_t>& units, std::size_t& at,
                            ArmValues& arm) {
    for (const std::uint32_t i : MeasuredRequests(run)) {
      const std::int32_t unit = units[at++];
      const double cost = Cost(run.requests[i], metric);
      if (!(cost > 0)) continue;
      arm.value.push_back(cost);
      arm.unit.push_back(unit);
    }
  };
  for (const Round& round : input.rounds) {
    add(round.off, pool.all_units.off, off_at, sample.off);
    add(round.on, pool.all_units.on, on_at, sample.on);
  }
  return sample;
}

}  // namespace

Pool MakePool(const CompareInput& input) {
  Pool pool;
  for (const Round& round : input.rounds) {
    pool.pairings.push_back(PairRuns(round.off, round.on));
    pool.paired = pool.paired && !pool.pairings.back().both.empty();
  }
  for (std::size_t k = 0; k < input.rounds.size(); ++k) {
    const Round& round = input.rounds[k];
    const auto index = static_cast<std::int32_t>(k);
    if (pool.paired) {
      AppendRound(pool.pair_units, UnitsOfPairs(round.off, round.on, pool.pairings[k].both), index);
    }
    AppendRound(pool.all_units,
                UnitsOfAll(round.off, round.on, MeasuredRequests(round.off),
                           MeasuredRequests(round.on), pool.paired),
                index);
  }
  // The round level is resampled only when three rounds or more can say something about it.
  if (input.rounds.size() < 3) {
    pool.pair_units.plan.round_of_stratum.clear();
    pool.all_units.plan.round_of_stratum.clear();
  }
  return pool;
}

Sample SampleOf(const CompareInput& input, const Pool& pool, Metric metric, Population population) {
  return population == Population::kAll
             ? FullSample(input, pool, metric)
             : PairedSample(input, pool, metric, population == Population::kBothEqualOutput);
}

}  // namespace assay::serving
