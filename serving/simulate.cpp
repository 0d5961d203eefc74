#include "serving/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "serving/distributions.h"
#include "serving/ratio_interval.h"

namespace assay::serving {
namespace {

// Streams of Uniform(): one per kind of random value.
enum Stream : std::uint64_t {
  kDifficulty = 101,
  kEffect,
  kTurnLength,
  kTreated,
  kNoiseOff,
  kNoiseOn,
  kStallOff,
  kStallOn,
  kRun,
  kSwap
};

double Normal(std::uint64_t seed, Stream stream, std::uint64_t index) {
  return UnitNormal(seed, stream, index);
}

// AR(1) noise along a conversation with unit variance.
class Noise {
 public:
  Noise(std::uint64_t seed, Stream stream, double rho) : seed_(seed), stream_(stream), rho_(rho) {}
  double Next(std::uint64_t index, bool first) {
    const double fresh = Normal(seed_, stream_, index);
    last_ = first ? fresh : rho_ * last_ + std::sqrt(1 - rho_ * rho_) * fresh;
    return last_;
  }

 private:
  std::uint64_t seed_;
  Stream stream_;
  double rho_, last_ = 0;
};

// Difficulty of the conversation and position in it, about standard normal together.
double Hardness(const SimulationOptions& o, double difficulty, int turn) {
  const double position = (turn - 0.5 * (o.turns - 1)) / (o.turns / std::sqrt(12.0));
  return (difficulty / o.cluster_sd + position) / std::sqrt(2.0);
}

void AddFacts(Run& run) {
  const std::pair<const char*, const char*> kFacts[] = {
      {"model", "simulated"},     {"gpu", "simulated"},
      {"gpu_count", "4"},         {"tp", "4"},
      {"image", "image:1"},       {"commit", "abc1234"},
      {"dataset", "simulated"},   {"dataset_revision", "1"},
      {"concurrency", "4"},       {"client", "simulator"},
      {"client_version", "1"},    {"token_source", "server"},
      {"ignore_eos", "true"},     {"spec_method", "none"},
      {"cache_state", "flushed"}, {"precision", "fp8"}};
  for (const auto& [name, value] : kFacts) run.AddFact(name, value);
  run.AddNumber("server_hit_rate", 0.97);
  run.AddNumber("theoretical_hit_rate", 0.98);
  run.AddNumber("kv_pool_tokens", 1e7);
  run.AddNumber("sm_clock_mhz", 1800);
  run.AddNumber("gpus", 4);
}

struct ArmState {
  Run run;
  std::vector<double> lane_free_s;  // when each lane can start its next conversation
  double factor = 1;
};

}  // namespace

Round SimulateRound(const SimulationOptions& o, std::uint64_t seed) {
  if (o.clusters < 1 || o.turns < 1 || o.concurrency < 1) {
    BadInput("a simulation needs at least one conversation, turn and lane");
  }
  ArmState arms[2];
  for (int arm = 0; arm < 2; ++arm) {
    ArmState& a = arms[arm];
    a.lane_free_s.assign(static_cast<std::size_t>(o.concurrency),
                         arm == 1 ? o.start_offset_s : 0.0);
    a.factor = (arm == 0 ? o.off_factor : o.on_factor) *
               std::exp(o.run_sd * Normal(seed, kRun, static_cast<std::uint64_t>(arm)));
    a.run.label = arm == 0 ? "off" : "on";
    a.run.key = KeyKind::kConversationTurn;
    AddFacts(a.run);
    a.run.AddFact("kernel", arm == 0 ? "old" : "new");
    if (arm == 1) a.run.AddNumber("treated_step_share", o.treated_share);
  }
  const int longest = o.turns + o.extra_easy_turns;
  for (int c = 0; c < o.clusters; ++c) {
    const auto cluster = static_cast<std::uint64_t>(c);
    const double difficulty = o.cluster_sd * Normal(seed, kDifficulty, cluster);
    const double effect = o.cluster_effect_sd * Normal(seed, kEffect, cluster);
    Noise noise[2] = {{seed, kNoiseOff, o.autocorrelation}, {seed, kNoiseOn, o.autocorrelation}};
    for (int arm = 0; arm < 2; ++arm) {
      ArmState& a = arms[arm];
      const auto name = static_cast<std::int32_t>(a.run.names.size());
      a.run.names.push_back(fmt::format("conversation-{}", c));
      a.run.names.push_back(fmt::format("conversation-{}#0", c));
      auto lane = std::min_element(a.lane_free_s.begin(), a.lane_free_s.end());
      const int turns = arm == 1 ? longest : o.turns;
      for (int t = 0; t < turns; ++t) {
        const std::uint64_t index = cluster * 4096 + static_cast<std::uint64_t>(t);
        Request r;
        r.conversation = name;
        r.cluster = name + 1;
        r.turn = t;
        r.isl = std::round(4000 + 1500.0 * t + 8000 * Uniform(seed, kTurnLength, 2 * index));
        r.osl = std::round(40 * std::exp(2.5 * Uniform(seed, kTurnLength, 2 * index + 1)));
        const bool easy = t >= o.turns;
        const bool treated = o.hard_turns_fall_back
                                 ? Hardness(o, difficulty, t) < NormalQuantile(o.treated_share)
                                 : Uniform(seed, kTreated, index) < o.treated_share;
        double log_time = difficulty + o.noise_sd * noise[arm].Next(index, t == 0);
        log_time += std::log(a.factor) + o.drift_per_hour * *lane / 3600;
        if (arm == 1 && treated) log_time -= std::log(o.speedup);
        log_time += (arm == 1 ? 0.5 : -0.5) * effect;
        if (Uniform(seed, arm == 1 ? kStallOn : kStallOff, index) < o.stall_share) {
          log_time += std::log(3.0);
        }
        if (easy) log_time -= std::log(1.6);
        const double time = std::exp(log_time);
        r.ttft_s = 0.2 * time;
        r.e2e_s = r.ttft_s + 0.004 * time * (r.osl - 1);
        r.start_ns = std::llround(*lane * 1e9);
        r.queue_s = 0.0005;
        *lane += r.e2e_s + 0.5;
        a.run.requests.push_back(r);
      }
    }
  }
  for (ArmState& a : arms) FinishRun(a.run);
  return {std::move(arms[0].run), std::move(arms[1].run), false};
}

Trial RunTrial(const Round& round, const Statistic& statistic, int resamples, std::uint64_t seed) {
  const Pairing pairing = PairRuns(round.off, round.on);
  const Units units = UnitsOfPairs(round.off, round.on, pairing.both);
  ArmValues off, on;
  for (std::size_t i = 0; i < pairing.both.size(); ++i) {
    const double x = Cost(round.off.requests[pairing.both[i].off], statistic.metric);
    const double y = Cost(round.on.requests[pairing.both[i].on], statistic.metric);
    if (!(x > 0) || !(y > 0)) continue;
    off.value.push_back(x);
    on.value.push_back(y);
    off.unit.push_back(units.off[i]);
  }
  on.unit = off.unit;
  const RatioInterval cost =
      RatioIntervals({{&off, &on, {statistic.q}}}, units.plan, true, seed, resamples)[0][0];
  return {-cost.estimate,
          {-cost.interval.high, -cost.interval.low},
          cost.standard_error,
          units.plan.effective,
          cost.from_swaps};
}

ErrorRates ErrorRatesOnData(const Round& data, const Statistic& statistic, double effect,
                            int trials, int resamples, std::uint64_t seed) {
  const Pairing pairing = PairRuns(data.off, data.on);
  if (pairing.both.empty())
    BadInput("the runs share no request, so error rates cannot be simulated");
  const Units units = UnitsOfPairs(data.off, data.on, pairing.both);
  ArmValues off, on;
  std::vector<double> effects;
  for (std::size_t i = 0; i < pairing.both.size(); ++i) {
    const double x = Cost(data.off.requests[pairing.both[i].off], statistic.metric);
    const double y = Cost(data.on.requests[pairing.both[i].on], statistic.metric);
    if (!(x > 0) || !(y > 0)) continue;
    off.value.push_back(x);
    on.value.push_back(y);
    off.unit.push_back(units.off[i]);
    effects.push_back(std::log(x / y));
  }
  on.unit = off.unit;
  const std::optional<HodgesLehmann> center = PairedShift(effects);
  if (!center.has_value()) BadInput("no pair has the metric " + NameOf(statistic));
  for (double& y : on.value) y *= std::exp(center->center);
  // Swaps are drawn per block of units, so that neighbours in time stay together.
  const std::int32_t block = units.plan.block;
  ErrorRates rates;
  for (int trial = 0; trial < trials; ++trial) {
    ArmValues a = off, b = on;
    const std::uint64_t key = Mix64(seed, 7, static_cast<std::uint64_t>(trial));
    for (std::size_t i = 0; i < a.value.size(); ++i) {
      const auto group = static_cast<std::uint64_t>(a.unit[i] / block);
      if (Uniform(key, kSwap, group) < 0.5) std::swap(a.value[i], b.value[i]);
      b.value[i] *= std::exp(-effect);
    }
    const Interval interval =
        RatioIntervals({{&a, &b, {statistic.q}}}, units.plan, true, key, resamples)[0][0].interval;
    ++rates.trials;
    rates.faster += interval.high < 0 ? 1 : 0;  // ln(on / off) of times
    rates.slower += interval.low > 0 ? 1 : 0;
  }
  return rates;
}

}  // namespace assay::serving
