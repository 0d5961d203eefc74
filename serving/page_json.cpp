#include <cmath>
#include <nlohmann/json.hpp>

#include "serving/pages.h"

namespace assay::serving {
namespace {

using Json = nlohmann::ordered_json;

Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json Pair(const std::optional<Interval>& interval) {
  if (!interval.has_value()) return nullptr;
  return Json::array({Number(interval->low), Number(interval->high)});
}

Json Exponential(const Interval& i) {
  return Json::array({Number(std::exp(i.low)), Number(std::exp(i.high))});
}

Json MetricJson(const MetricResult& r) {
  Json j;
  j["name"] = NameOf(r.statistic);
  j["population"] = r.population;
  j["q"] = r.statistic.q == 0 ? Json("mean") : Json(r.statistic.q);
  j["unit"] = IsRate(r.statistic.metric) ? "tokens_per_s" : "s";
  j["off"] = Number(r.off);
  j["on"] = Number(r.on);
  if (!r.suppressed.empty()) {
    j["suppressed"] = r.suppressed;
    return j;
  }
  const Interval i = r.RatioInterval();
  j["ratio"] = Number(r.Ratio());
  j["ci"] = Json::array({Number(i.low), Number(i.high)});
  j["method"] = r.method;
  j["n"] = std::min(r.n_off, r.n_on);
  j["n_off"] = r.n_off;
  j["n_on"] = r.n_on;
  j["clusters"] = r.clusters;
  j["independent_units"] = r.units;
  j["p"] = Number(r.p);
  j["p_bh"] = Number(r.p_adjusted);
  j["mde"] = Number(std::expm1(r.mde));
  // Improvements: > 1 is better for every metric.
  j["improvement"] = Number(std::exp(r.effect));
  j["improvement_ci90"] = r.effect_90.has_value() ? Exponential(*r.effect_90) : Json(nullptr);
  if (r.typical.has_value()) {
    j["typical_turn"] = {{"improvement", std::exp(r.typical->center)},
                         {"ci", Exponential(r.typical->interval)},
                         {"median_improvement", std::exp(r.typical->median)},
                         {"better_pairs", r.typical->positive},
                         {"pairs", r.typical->count}};
  }
  if (r.unpaired.has_value()) {
    j["unpaired"] = {{"mann_whitney_u", r.unpaired->u},
                     {"superiority", r.unpaired->superiority},
                     {"p", r.unpaired->p},
                     {"improvement", std::exp(r.unpaired->shift)}};
  }
  return j;
}

Json Inputs(const Comparison& c) {
  Json inputs = Json::array();
  const auto add = [&](const char* arm, const Run& run) {
    for (const InputFile& file : run.inputs) {
      inputs.push_back(
          {{"arm", arm}, {"label", file.label}, {"sha256", file.sha256}, {"schema", file.schema}});
    }
  };
  for (const Run* run : c.off_runs) add("off", *run);
  for (const Run* run : c.on_runs) add("on", *run);
  return inputs;
}

Json Populations(const Comparison& c) {
  Json rows = Json::array();
  for (const Ledger::Row& row : c.ledger.rows) {
    rows.push_back({{"population", row.population},
                    {"requests", row.count},
                    {"mean_input_tokens", Number(row.isl)},
                    {"mean_output_tokens", Number(row.osl)},
                    {"primary", Number(row.primary)}});
  }
  return {{"key", NameOf(c.ledger.key)},
          {"note", c.ledger.note},
          {"both", c.ledger.both},
          {"off_only", c.ledger.off_only},
          {"on_only", c.ledger.on_only},
          {"rank_leverage", c.ledger.rank_leverage},
          {"rows", rows}};
}

Json FactorisationJson(const std::optional<Factorisation>& f) {
  if (!f.has_value()) return nullptr;
  return {{"total_tokens_per_s_per_gpu_ratio", Number(f->total)},
          {"request_rate_ratio", Number(f->request_rate)},
          {"request_rate_ci", Pair(f->request_rate_interval)},
          {"tokens_per_request_ratio", Number(f->tokens_per_request)},
          {"output_tokens_per_s_ratio", Number(f->output_tokens)},
          {"output_tokens_per_s_ci", Pair(f->output_tokens_interval)},
          {"computed_prefill_ratio", Number(f->computed_prefill)},
          {"request_rate_ratio_at_equal_idle", Number(f->at_equal_idle)},
          {"prompt_share", Number(f->prompt_share)},
          {"cached_share", Number(f->cached_share)}};
}

Json RoundsJson(const RunLevel& level) {
  Json rounds = Json::array();
  for (const RoundResult& round : level.rounds) {
    rounds.push_back({{"off", round.off},
                      {"on", round.on},
                      {"swapped", round.swapped},
                      {"improvement", Number(std::exp(round.effect))}});
  }
  Json j = {{"rounds", rounds}};
  j["improvement"] = Number(std::exp(level.mean));
  j["improvement_ci"] = level.interval.has_value() ? Exponential(*level.interval) : Json(nullptr);
  j["crossover_improvement"] =
      level.crossover.has_value() ? Json(std::exp(*level.crossover)) : Json(nullptr);
  j["hardware_set_ratio"] =
      level.set_effect.has_value() ? Json(std::exp(*level.set_effect)) : Json(nullptr);
  return j;
}

Json AccuracyJson(const std::optional<AccuracyResult>& a) {
  if (!a.has_value()) return nullptr;
  return {{"problems", a->problems},
          {"samples", a->samples},
          {"off", a->off},
          {"on", a->on},
          {"difference", a->difference},
          {"ci", Pair(a->interval)},
          {"one_sided_low", a->one_sided_low},
          {"margin", a->margin},
          {"non_inferior", a->non_inferior}};
}

}  // namespace

std::string JsonPage(const Comparison& c) {
  Json j;
  j["tool"] = "assay ab";
  j["version"] = 1;
  j["inputs"] = Inputs(c);
  j["evidence_level"] = c.level;
  j["seed"] = c.seed;
  j["resamples"] = c.options.resamples;
  j["margin"] = c.options.margin;
  j["treatment"] = Json::array();
  for (const auto& [fact, value] : c.options.treatment) {
    j["treatment"].push_back({{"fact", fact}, {"value", value}});
  }
  j["gates"] = Json::array();
  for (const Gate& gate : c.gates) {
    j["gates"].push_back(
        {{"code", gate.code}, {"status", NameOf(gate.status)}, {"sentence", gate.sentence}});
  }
  j["populations"] = Populations(c);
  j["metrics"] = Json::array();
  for (const MetricResult& r : c.metrics) j["metrics"].push_back(MetricJson(r));
  j["point_estimates"] = Json::array();
  for (const PointEstimate& p : c.points) {
    j["point_estimates"].push_back({{"name", NameOf(p.statistic)},
                                    {"off", Number(p.off)},
                                    {"on", Number(p.on)},
                                    {"ratio", Number(p.on / p.off)},
                                    {"range_from_quantiles", Pair(p.range)}});
  }
  j["shift"] = Json::array();
  for (const ShiftPoint& point : c.shift) {
    j["shift"].push_back({{"q", point.q},
                          {"improvement", std::exp(point.effect)},
                          {"simultaneous_band", Exponential(point.band)}});
  }
  j["factorisation"] = FactorisationJson(c.factorisation);
  j["identities"] = Json::array();
  for (const auto& [label, identities] : c.identities) {
    for (const Identity& i : identities) {
      j["identities"].push_back({{"run", label},
                                 {"number", i.number},
                                 {"what", i.what},
                                 {"value", Number(i.value)},
                                 {"expected", Number(i.expected)},
                                 {"holds", i.holds}});
    }
  }
  j["control"] = c.control.has_value() ? MetricJson(*c.control) : Json(nullptr);
  j["floor"] = {{"improvement", std::expm1(c.floor)}, {"source", c.floor_source}};
  j["rounds"] = RoundsJson(c.run_level);
  j["stationarity"] = {{"quarter_improvements", Json::array()},
                       {"second_over_first_half", Pair(c.stationarity.half_ratio)},
                       {"lag1_autocorrelation", Number(c.stationarity.rho1)},
                       {"effective_pairs", Number(c.stationarity.effective_pairs)},
                       {"mser5_off", c.stationarity.mser_off},
                       {"mser5_on", c.stationarity.mser_on}};
  for (const double e : c.stationarity.quarter_effects) {
    j["stationarity"]["quarter_improvements"].push_back(Number(std::exp(e)));
  }
  if (c.stationarity.half_ratio.has_value()) {
    j["stationarity"]["second_over_first_half"] = Exponential(*c.stationarity.half_ratio);
  }
  j["accuracy"] = AccuracyJson(c.accuracy);
  j["checklist"] = Json::array();
  for (const ChecklistLine& line : ReviewChecklist(c)) {
    j["checklist"].push_back(
        {{"id", line.id}, {"answer", line.answer}, {"evidence", line.evidence}});
  }
  j["verdict"] = {
      {"name", NameOf(c.verdict)}, {"exit_code", c.exit_code}, {"sentence", c.sentence}};
  j["caveats"] = c.caveats;
  j["missing"] = c.missing;
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace assay::serving
