#include "serving/ratio_interval.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/parallel.h"
#include "serving/metrics.h"
#include "serving/swaps.h"

namespace assay::serving {
namespace {

// With fewer units too few different swaps exist: two-sided p values of n units are multiples of
// 2^(1 - n).
constexpr double kFewestSwappedUnits = 10;
// Enough to tell p < 0.02 from p > 0.02; the draws of the interval itself are the caller's.
constexpr int kFlatDraws = 1000;
// Level of the test for a flat shift function. Every rejection on copies replaces a swap test of 5
// % by the more careful bootstrap: at 0.02 the interval keeps its own level within half a point.
constexpr double kFlatLevel = 0.02;

bool Swappable(const UnitPlan& plan, const RatioQuestion& question) {
  return plan.effective >= kFewestSwappedUnits && plan.round_of_stratum.empty() &&
         question.off->value.size() >= 2;
}

// Sum of squared deviations of the shift function from its level, each in its own standard error.
double Unevenness(const std::vector<double>& shift, double level,
                  const std::vector<double>& deviation) {
  double sum = 0;
  for (std::size_t i = 0; i < shift.size(); ++i) {
    if (deviation[i] > 0) sum += std::pow((shift[i] - level) / deviation[i], 2);
  }
  return sum;
}

constexpr double kDeciles[] = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9};

// Level of a shift function whose first nine points are the deciles.
double LevelOf(const std::vector<double>& shift) {
  return Mean(std::span(shift).first(std::size(kDeciles)));
}

bool IsFlat(const PairedArms& arms, const UnitPlan& plan, const std::vector<double>& quantiles,
            std::uint64_t seed, int draws) {
  std::vector<double> points(std::begin(kDeciles), std::end(kDeciles));
  for (const double q : quantiles) {
    if (q > 0 && std::find(points.begin(), points.end(), q) == points.end()) points.push_back(q);
  }
  std::vector<double> observed;
  for (const double q : points) observed.push_back(arms.LogRatio(q));
  const double theta = LevelOf(observed);
  std::vector<SwappedRatio> ratios;
  for (const double q : points) ratios.emplace_back(arms, plan, q, theta);
  const std::vector<std::vector<double>> swapped = SwapDraws(ratios, plan, seed, draws);

  const auto count = static_cast<std::size_t>(draws);
  std::vector<std::vector<double>> shifts(count, std::vector<double>(points.size()));
  std::vector<double> level(count), deviation(points.size(), 0);
  for (std::size_t d = 0; d < count; ++d) {
    for (std::size_t i = 0; i < points.size(); ++i) shifts[d][i] = swapped[i][d];
    level[d] = LevelOf(shifts[d]);
    for (std::size_t i = 0; i < points.size(); ++i) {
      deviation[i] += std::pow(shifts[d][i] - level[d], 2) / static_cast<double>(draws);
    }
  }
  for (double& value : deviation) value = std::sqrt(value);
  const double seen = Unevenness(observed, theta, deviation);
  int as_uneven = 1;  // the observed arms are one of the draws
  for (std::size_t d = 0; d < count; ++d) {
    as_uneven += Unevenness(shifts[d], level[d], deviation) >= seen ? 1 : 0;
  }
  return as_uneven > kFlatLevel * (draws + 1);
}

// A statistic on its way to an interval.
struct Search {
  const PairedArms* arms = nullptr;
  double q = 0;
  RatioInterval* result = nullptr;
  double reach[2] = {0, 0};  // from the estimate down and up
};

// |draw|, ascending, of every ratio.
std::vector<std::vector<double>> SwapSizes(const std::vector<Search>& searches, bool at_ends,
                                           const UnitPlan& plan, std::uint64_t seed, int draws) {
  // Two ratios per search, at its lower and upper end, or one at its estimate.
  const std::size_t sides = at_ends ? 2 : 1;
  std::vector<std::optional<SwappedRatio>> prepared(sides * searches.size());
  const auto count = static_cast<std::int64_t>(prepared.size());
  ParallelFor(count, 0, [&](std::int64_t i) {
    const auto index = static_cast<std::size_t>(i);
    const Search& s = searches[index / sides];
    double theta = s.result->estimate;
    if (at_ends) theta += index % 2 == 1 ? s.reach[1] : -s.reach[0];
    prepared[index].emplace(*s.arms, plan, s.q, theta);
  });
  std::vector<SwappedRatio> ratios;
  for (std::optional<SwappedRatio>& ratio : prepared) ratios.push_back(std::move(*ratio));
  std::vector<std::vector<double>> sizes = SwapDraws(ratios, plan, seed, draws);
  ParallelFor(count, 0, [&](std::int64_t i) {
    std::vector<double>& list = sizes[static_cast<std::size_t>(i)];
    for (double& draw : list) draw = std::abs(draw);
    std::sort(list.begin(), list.end());
  });
  return sizes;
}

// What else the draws at the upper or lower end say.
void FinishEnd(const std::vector<double>& sizes, bool up, RatioInterval& r) {
  const double reach = QuantileType7(sizes, 0.90);
  (up ? r.interval_90.high : r.interval_90.low) = r.estimate + (up ? reach : -reach);
  // The end nearer to "no effect" decides the p value, as it decides the verdict.
  if (up != (r.estimate < 0)) return;
  const auto larger =
      sizes.end() - std::lower_bound(sizes.begin(), sizes.end(), std::abs(r.estimate));
  r.p = static_cast<double>(larger + 1) / static_cast<double>(sizes.size() + 1);
}

// The 95 % interval holds every factor that the swap test does not reject: theta with
// |estimate - theta| <= the 95 % quantile of |swapped ratio| after the on arm was divided by
// exp(theta). That quantile changes slowly with theta, so its value at a trial end is the next
// trial end. At theta = 0, where nothing is divided, the test is exact.
void SearchEnds(std::vector<Search>& searches, const UnitPlan& plan, std::uint64_t seed,
                int draws) {
  const int trial_draws = std::max(draws / 4, std::min(draws, 400));
  const std::vector<std::vector<double>> inside =
      SwapSizes(searches, false, plan, seed, trial_draws);
  for (std::size_t i = 0; i < searches.size(); ++i) {
    // At the estimate both quantiles coincide, and swaps move them less than elsewhere (up to 1.4
    // times, seen in simulations): start outside and come in.
    searches[i].reach[0] = searches[i].reach[1] = 1.4 * QuantileType7(inside[i], 0.95);
  }
  constexpr int kSteps = 3;
  for (int step = 1; step <= kSteps; ++step) {
    const bool last = step == kSteps;
    const std::vector<std::vector<double>> sizes =
        SwapSizes(searches, true, plan, seed, last ? draws : trial_draws);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      Search& s = searches[i / 2];
      s.reach[i % 2] = QuantileType7(sizes[i], 0.95);
      if (last) FinishEnd(sizes[i], i % 2 == 1, *s.result);
    }
  }
  for (const Search& s : searches) {
    RatioInterval& r = *s.result;
    r.interval = {r.estimate - s.reach[0], r.estimate + s.reach[1]};
    r.standard_error = 0.5 * (s.reach[0] + s.reach[1]) / CriticalValue(plan.effective);
    r.from_swaps = true;
  }
}

void Bootstrap(const std::vector<RatioQuestion>& questions,
               const std::vector<std::vector<RatioInterval*>>& results, const UnitPlan& plan,
               std::uint64_t seed, int draws) {
  const std::vector<RatioDraws> all = BootstrapLogRatios(questions, plan, seed, draws);
  for (std::size_t i = 0; i < questions.size(); ++i) {
    for (std::size_t s = 0; s < results[i].size(); ++s) {
      RatioInterval& r = *results[i][s];
      r.estimate = all[i].estimate[s];
      r.interval = ExpandedPercentileInterval(all[i].draw[s], plan.effective);
      r.interval_90 = ExpandedPercentileInterval(all[i].draw[s], plan.effective, 0.90);
      r.standard_error = all[i].standard_error[s];
      r.p = BootstrapP(all[i].draw[s], plan.effective);
    }
  }
}

}  // namespace

bool ShiftIsFlat(const ArmValues& off, const ArmValues& on, const UnitPlan& plan,
                 const std::vector<double>& quantiles, std::uint64_t seed, int draws) {
  return IsFlat(PairedArms(off, on, plan), plan, quantiles, seed, draws);
}

std::vector<std::vector<RatioInterval>> RatioIntervals(const std::vector<RatioQuestion>& questions,
                                                       const UnitPlan& plan, bool paired,
                                                       std::uint64_t seed, int draws) {
  std::vector<std::vector<RatioInterval>> results;
  for (const RatioQuestion& question : questions) {
    results.emplace_back(question.statistics.size());
  }
  std::vector<std::optional<PairedArms>> arms(questions.size());
  std::vector<char> flat(questions.size(), 0);
  ParallelFor(static_cast<std::int64_t>(questions.size()), 0, [&](std::int64_t index) {
    const auto i = static_cast<std::size_t>(index);
    const RatioQuestion& question = questions[i];
    if (!paired || question.statistics.empty() || !Swappable(plan, question)) return;
    arms[i].emplace(*question.off, *question.on, plan);
    flat[i] = IsFlat(*arms[i], plan, question.statistics, seed, std::min(draws, kFlatDraws));
  });
  std::vector<Search> searches;
  std::vector<RatioQuestion> resampled;
  std::vector<std::vector<RatioInterval*>> resampled_results;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    RatioQuestion rest{questions[i].off, questions[i].on, {}};
    std::vector<RatioInterval*> rest_results;
    for (std::size_t s = 0; s < questions[i].statistics.size(); ++s) {
      const double q = questions[i].statistics[s];
      RatioInterval& result = results[i][s];
      if (flat[i] != 0 || (arms[i].has_value() && q == 0)) {
        result.estimate = arms[i]->LogRatio(q);
        searches.push_back({&*arms[i], q, &result, {0, 0}});
      } else {
        rest.statistics.push_back(q);
        rest_results.push_back(&result);
      }
    }
    if (rest.statistics.empty()) continue;
    resampled.push_back(std::move(rest));
    resampled_results.push_back(std::move(rest_results));
  }
  if (!searches.empty()) SearchEnds(searches, plan, seed, draws);
  if (!resampled.empty()) Bootstrap(resampled, resampled_results, plan, seed, draws);
  return results;
}

}  // namespace assay::serving
