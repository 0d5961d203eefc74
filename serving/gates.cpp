#include "serving/gates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/stats.h"
#include "serving/facts.h"
#include "serving/identities.h"
#include "serving/json_lines.h"

namespace assay::serving {
namespace {

// Facts that describe a run but are no configuration.
const std::set<std::string> kDescriptive = {"started",     "ended",          "invalid",
                                            "cache_state", "server_adapter", "node",
                                            "tokenizer",   "dataset_loader", "arrival"};

std::string Shown(const std::string& value) { return value.empty() ? "not recorded" : value; }

double Percent(double a, double b) { return 100 * (b / a - 1); }

class GateList {
 public:
  GateList(const std::set<std::string>& allow) : allow_(allow) {}
  void Add(const char* code, GateStatus status, std::string sentence) {
    if (status == GateStatus::kRefuse && allow_.contains(code)) {
      status = GateStatus::kAllowed;
      sentence += " (allowed by --allow " + std::string(code) + ")";
    }
    gates.push_back({code, status, std::move(sentence)});
  }
  std::vector<Gate> gates;

 private:
  const std::set<std::string>& allow_;
};

struct Arms {
  const Run& off;
  const Run& on;
  const std::vector<FactDifference>& differences;
};

// Joins the undeclared differences of one gate; empty when there are none.
std::string Listed(const Arms& arms, std::string_view gate, bool recorded) {
  std::string text;
  for (const FactDifference& d : arms.differences) {
    const bool both = !d.off.empty() && !d.on.empty();
    if (d.gate != gate || d.declared || both != recorded) continue;
    text += fmt::format("{}{} ({} against {})", text.empty() ? "" : ", ", d.fact, Shown(d.off),
                        Shown(d.on));
  }
  return text;
}

std::string Declared(const Arms& arms, std::string_view gate) {
  std::string text;
  for (const FactDifference& d : arms.differences) {
    if (d.gate == gate && d.declared) text += (text.empty() ? "" : ", ") + d.fact;
  }
  return text;
}

// The gates that compare configuration: refuse on a difference, warn on what one arm or both lack.
void FactGate(GateList& list, const Arms& arms, const char* code, const char* what,
              const std::vector<const char*>& wanted) {
  if (const std::string text = Listed(arms, code, true); !text.empty()) {
    list.Add(code, GateStatus::kRefuse, fmt::format("the arms differ in {}: {}", what, text));
    return;
  }
  if (const std::string text = Listed(arms, code, false); !text.empty()) {
    list.Add(code, GateStatus::kWarn, fmt::format("only one arm records its {}: {}", what, text));
    return;
  }
  std::string missing;
  for (const char* fact : wanted) {
    if (arms.off.Fact(fact).empty() && arms.on.Fact(fact).empty()) {
      missing += (missing.empty() ? "" : ", ") + std::string(fact);
    }
  }
  if (!missing.empty()) {
    list.Add(code, GateStatus::kWarn,
             fmt::format("{}: not recorded by either arm: {}", what, missing));
    return;
  }
  const std::string declared = Declared(arms, code);
  list.Add(code, GateStatus::kPass,
           declared.empty() ? fmt::format("same {}", what)
                            : fmt::format("{}: {} differs as declared", what, declared));
}

void ConfigurationGate(GateList& list, const Arms& arms) {
  std::string text = Listed(arms, "G01", true);
  const std::string one_sided = Listed(arms, "G01", false);
  if (!one_sided.empty()) text += (text.empty() ? "" : ", ") + one_sided;
  if (!text.empty()) {
    list.Add(
        "G01", GateStatus::kRefuse,
        fmt::format("the configuration differs in more than the declared treatment: {}", text));
    return;
  }
  bool declared = false;
  for (const FactDifference& d : arms.differences) declared = declared || d.declared;
  list.Add("G01", declared ? GateStatus::kPass : GateStatus::kWarn,
           declared
               ? "only the declared treatment differs"
               : "the files show no difference between the arms: the treatment is not recorded");
}

void SpeculativeGate(GateList& list, const Arms& arms) {
  if (const std::string text = Listed(arms, "G05", true) + Listed(arms, "G05", false);
      !text.empty()) {
    list.Add("G05", GateStatus::kRefuse, "the arms differ in their speculative decoding: " + text);
    return;
  }
  const double off = arms.off.Number("accept_length"), on = arms.on.Number("accept_length");
  if (std::abs(on / off - 1) > 0.01) {
    list.Add("G05", GateStatus::kRefuse,
             fmt::format("measured accept length differs by {:+.1f} %: {:.2f} against {:.2f}",
                         Percent(off, on), off, on));
    return;
  }
  double declared = NumberOfText(arms.off.Fact("accept_length_simulated"));
  // TensorRT-LLM's knob counts accepted draft tokens, without the bonus token.
  if (arms.off.Fact("framework").find("trt") != std::string::npos) declared += 1;
  const double golden =
      GoldenAcceptLength(static_cast<int>(NumberOfText(arms.off.Fact("spec_depth"))));
  const bool glm = arms.off.Fact("model").find("GLM-5") != std::string::npos;
  if (glm && std::abs(declared - golden) > 0.005) {
    list.Add("G05", GateStatus::kWarn,
             fmt::format("simulated accept length {:.2f} is not the golden {:.2f} of depth {}",
                         declared, golden, arms.off.Fact("spec_depth")));
    return;
  }
  const std::string method = arms.off.Fact("spec_method");
  const bool speculative = !method.empty() && method != "none";
  if (speculative && (std::isnan(off) || std::isnan(on))) {
    list.Add("G05", GateStatus::kUnknown,
             fmt::format("speculative decoding ({}) without a measured accept length", method));
    return;
  }
  list.Add("G05", GateStatus::kPass,
           speculative ? "same speculative decoding, accept length equal"
                       : "no speculative decoding recorded");
}

void OutputLengthGate(GateList& list, const Arms& arms, const GateEvidence& evidence) {
  if (evidence.pairs == 0) {
    list.Add("G09", GateStatus::kUnknown, "output lengths cannot be compared without pairs");
    return;
  }
  const double share = evidence.pairs_with_other_osl / evidence.pairs;
  const bool forced = arms.off.Fact("ignore_eos") == "true" && arms.on.Fact("ignore_eos") == "true";
  const std::string seen =
      fmt::format("{:.0f} of {:.0f} pairs ({:.1f} %) have another output length",
                  evidence.pairs_with_other_osl, evidence.pairs, 100 * share);
  const bool differs = Listed(arms, "G09", true).size() + Listed(arms, "G09", false).size() > 0;
  if (share > 0.01 || (differs && share > 0)) {
    list.Add("G09", forced ? GateStatus::kRefuse : GateStatus::kWarn,
             seen + (forced ? " although ignore_eos fixes it"
                            : ": shorter answers are faster, see the equal-output rows"));
    return;
  }
  list.Add("G09", GateStatus::kPass, seen);
}

void CacheGate(GateList& list, const Arms& arms) {
  const double off = arms.off.Number("server_hit_rate"), on = arms.on.Number("server_hit_rate");
  if (arms.off.Fact("cache_state") != arms.on.Fact("cache_state")) {
    list.Add("G10", GateStatus::kWarn,
             fmt::format("cache state before the run differs: {} against {}",
                         Shown(arms.off.Fact("cache_state")), Shown(arms.on.Fact("cache_state"))));
    return;
  }
  if (std::isnan(off) || std::isnan(on)) {
    list.Add("G10", GateStatus::kUnknown,
             "server cache hit rate unknown: a warm cache can inflate any latency");
    return;
  }
  const double points = 100 * std::abs(on - off);
  const std::string seen =
      fmt::format("server hit rate {:.2f} % against {:.2f} %", 100 * off, 100 * on);
  if (points > 0.5) {
    list.Add("G10", points > 3 ? GateStatus::kRefuse : GateStatus::kWarn,
             fmt::format("{}: {:.1f} points apart", seen, points));
    return;
  }
  const double gap_off = arms.off.Number("theoretical_hit_rate") - off;
  const double gap_on = arms.on.Number("theoretical_hit_rate") - on;
  if (100 * std::abs(gap_on - gap_off) > 0.5) {
    list.Add("G10", GateStatus::kWarn,
             fmt::format("gap to the theoretical hit rate is {:.2f} points off and {:.2f} on",
                         100 * gap_off, 100 * gap_on));
    return;
  }
  const auto external = [](const Run& run) {
    const double rate = run.Number("external_hit_rate");
    return std::isnan(rate) ? 0.0 : rate;
  };
  if (gap_off - external(arms.off) > 0.05) {
    list.Add("G10", GateStatus::kWarn,
             fmt::format("{} where {:.1f} % is possible: the cache does not work in either arm",
                         seen, 100 * arms.off.Number("theoretical_hit_rate")));
    return;
  }
  list.Add("G10", GateStatus::kPass, seen);
}

void ErrorGate(GateList& list, const Arms& arms) {
  const auto rate = [](const Run& run) {
    const double errors = run.Number("errors");
    return errors / (run.Number("successes") + errors);
  };
  const double off = rate(arms.off), on = rate(arms.on);
  if (std::isnan(off) || std::isnan(on)) {
    list.Add("G12", GateStatus::kUnknown, "error counts are not recorded");
    return;
  }
  const auto censored = [](const Run& run) {
    const double count = run.Number("censored");
    return std::isnan(count) ? 0 : static_cast<int>(count);
  };
  const int cut = censored(arms.off) + censored(arms.on);
  std::string seen = fmt::format("errors {:.1f} % against {:.1f} %", 100 * off, 100 * on);
  if (cut > 0) seen += fmt::format(", {} of them timed out or were cancelled (censored)", cut);
  const bool differ = std::abs(off - on) > 0.01;
  list.Add("G12",
           std::max(off, on) > 0.1            ? GateStatus::kRefuse
           : differ || (cut > 0 && off != on) ? GateStatus::kWarn
                                              : GateStatus::kPass,
           seen);
}

void ValidityGate(GateList& list, const Arms& arms) {
  for (const Run* run : {&arms.off, &arms.on}) {
    if (const std::string why = run->Fact("invalid"); !why.empty()) {
      list.Add("G13", GateStatus::kRefuse, fmt::format("{} is no valid run: {}", run->label, why));
      return;
    }
    double overflow = run->Number("overflow"), all = run->Number("successes");
    if (!run->requests.empty()) {
      overflow = static_cast<double>(
          std::count_if(run->requests.begin(), run->requests.end(),
                        [](const Request& r) { return r.outcome == Outcome::kOverflow; }));
      all = static_cast<double>(run->requests.size());
    }
    if (overflow > 0.01 * all) {
      list.Add("G13", GateStatus::kRefuse,
               fmt::format("{}: {:.1f} % of the requests overflowed the context", run->label,
                           100 * overflow / all));
      return;
    }
  }
  list.Add("G13", GateStatus::kPass, "both clients ended normally");
}

double MeanLength(const Run& run, bool input) {
  const double tokens = run.Number(input ? "input_tokens" : "output_tokens");
  return tokens / run.Number("successes");
}

void WindowGate(GateList& list, const Arms& arms, const GateEvidence& evidence) {
  const double isl = Percent(MeanLength(arms.off, true), MeanLength(arms.on, true));
  const double osl = Percent(MeanLength(arms.off, false), MeanLength(arms.on, false));
  std::string seen = fmt::format(
      "mean input length {:+.1f} %, mean output length {:+.1f} % on the on arm", isl, osl);
  double survivors = 0;
  if (evidence.both > 0) {
    survivors = 1 - evidence.both / std::max(evidence.off_requests, evidence.on_requests);
    seen += fmt::format(", {:.1f} % of the turns in one arm only", 100 * survivors);
  }
  const bool moved = std::abs(isl) > 5 || std::abs(osl) > 5 || survivors > 0.05;
  if (moved) seen += ": the arms saw different work, compare matched turns";
  list.Add("G14", moved ? GateStatus::kWarn : GateStatus::kPass, seen);
}

void OverlapGate(GateList& list, const Arms& arms, const GateEvidence& evidence) {
  if (arms.off.Fact("node") != arms.on.Fact("node")) {
    list.Add("G15", GateStatus::kWarn,
             fmt::format("the arms ran on other nodes: {} and {}", Shown(arms.off.Fact("node")),
                         Shown(arms.on.Fact("node"))));
    return;
  }
  if (evidence.swapped_rounds) {
    list.Add("G15", GateStatus::kPass, "hardware sets were swapped between rounds");
    return;
  }
  const auto span = [](const Run& run) {
    std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = kNoTime;
    for (const Request& r : run.requests) {
      if (r.start_ns == kNoTime) continue;
      first = std::min(first, r.start_ns);
      last = std::max(last, std::max(r.start_ns, r.end_ns));
    }
    return std::pair(first, last);
  };
  const auto [off_first, off_last] = span(arms.off);
  const auto [on_first, on_last] = span(arms.on);
  if (off_last == kNoTime || on_last == kNoTime) {
    list.Add("G15", GateStatus::kUnknown, "no time stamps: unknown whether the arms ran together");
    return;
  }
  const bool overlap = off_first < on_last && on_first < off_last;
  list.Add("G15", overlap ? GateStatus::kPass : GateStatus::kWarn,
           overlap ? "the arms overlap in time"
                   : "the arms ran at different times without swapped hardware: drift is possible");
}

void ClientGate(GateList& list, const Arms& arms) {
  double worst = kMissing;
  for (const Run* run : {&arms.off, &arms.on}) {
    double queue = 0, count = 0, latency = 0;
    for (const Request& r : run->requests) {
      if (!r.Measured() || std::isnan(r.queue_s)) continue;
      queue += r.queue_s;
      latency += r.e2e_s;
      ++count;
    }
    const double delay = run->Number("schedule_delay_s");
    double share = count > 0 ? queue / latency : kMissing;
    if (std::isnan(share)) share = delay / Value(*run, {Metric::kE2el, 0});
    if (!std::isnan(share)) worst = std::isnan(worst) ? share : std::max(worst, share);
  }
  if (std::isnan(worst)) {
    list.Add("G16", GateStatus::kUnknown, "the client's own queueing is not recorded");
    return;
  }
  list.Add("G16", worst > 0.05 ? GateStatus::kWarn : GateStatus::kPass,
           fmt::format("requests waited in the client for {:.2f} % of their latency{}", 100 * worst,
                       worst > 0.05 ? ": the client is the bottleneck" : ""));
}

// First requests three times slower than the rest: compilation, cold caches, a start burst.
bool SlowStart(const Run& run, double& factor) {
  std::vector<const Request*> requests;
  for (const Request& r : run.requests) {
    if (r.Measured() && r.start_ns != kNoTime && r.osl >= 1) requests.push_back(&r);
  }
  constexpr std::size_t kFirst = 5;
  if (requests.size() < 8 * kFirst) return false;
  std::stable_sort(requests.begin(), requests.end(),
                   [](const Request* a, const Request* b) { return a->start_ns < b->start_ns; });
  bool slow = false;
  for (const Metric metric : {Metric::kTtft, Metric::kE2ePerToken}) {
    std::vector<double> first, all;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const double cost = Cost(*requests[i], metric);
      if (std::isnan(cost)) continue;
      all.push_back(cost);
      if (i < kFirst) first.push_back(cost);
    }
    const double ratio = Median(first) / Median(all);
    if (ratio >= 3) {
      factor = ratio;
      slow = true;
    }
  }
  return slow;
}

void StationarityGate(GateList& list, const Arms& arms, const GateEvidence& evidence) {
  for (const Run* run : {&arms.off, &arms.on}) {
    double factor = 0;
    if (SlowStart(*run, factor)) {
      list.Add(
          "G18", GateStatus::kWarn,
          fmt::format("{}: its first requests took {:.1f} times the median: warm-up inside the "
                      "window",
                      run->label, factor));
      return;
    }
  }
  if (!evidence.half_difference.has_value()) {
    list.Add("G18", GateStatus::kUnknown, "too few ordered pairs to compare the halves of the run");
    return;
  }
  const double d = *evidence.half_difference, u = *evidence.half_uncertainty;
  const bool drift = std::abs(d) > u;
  list.Add("G18", drift ? GateStatus::kWarn : GateStatus::kPass,
           fmt::format("second half's effect over the first half's: {:.3f} [{:.3f}, {:.3f}]{}",
                       std::exp(d), std::exp(d - u), std::exp(d + u),
                       drift ? ": the effect is not stationary" : ""));
}

void IdentityGate(GateList& list, const Arms& arms) {
  for (const Run* run : {&arms.off, &arms.on}) {
    for (const Identity& identity : CheckIdentities(*run)) {
      if (!identity.fatal || identity.holds) continue;
      list.Add("G20", GateStatus::kRefuse,
               fmt::format("{} contradicts itself: {} is {:.6g}, expected {:.6g}", run->label,
                           identity.what, identity.value, identity.expected));
      return;
    }
    const double peak = run->Number("peak_output_tokens_per_s");
    const double mean = run->Number("output_tokens_per_s");
    if (peak < mean) {
      list.Add("G20", GateStatus::kRefuse,
               fmt::format("{} contradicts itself: peak {:.4g} tokens/s below its mean {:.4g}",
                           run->label, peak, mean));
      return;
    }
  }
  list.Add("G20", GateStatus::kPass, "both files agree with themselves");
}

void TreatedPathGate(GateList& list, const Arms& arms) {
  const double share = arms.on.Number("treated_step_share");
  if (std::isnan(share)) {
    list.Add("G21", GateStatus::kUnknown, "unknown whether the treated path ran: no trace of it");
    return;
  }
  list.Add("G21", share < 0.5 ? GateStatus::kWarn : GateStatus::kPass,
           fmt::format("{:.0f} % of the on arm's steps took the treated path", 100 * share));
}

void HistoryGate(GateList& list, const Arms& arms, const Statistic& primary) {
  const double history = arms.off.Number("history_primary");
  if (std::isnan(history)) {
    list.Add("G22", GateStatus::kUnknown, "no history of the baseline to compare with");
    return;
  }
  const double now = Value(arms.off, primary);
  const double worse = IsRate(primary.metric) ? history / now : now / history;
  list.Add("G22", worse > 1.02 ? GateStatus::kWarn : GateStatus::kPass,
           fmt::format("baseline {} is {:.5g}, its history says {:.5g}{}", NameOf(primary), now,
                       history, worse > 1.02 ? ": a slow baseline flatters any treatment" : ""));
}

void FastTailGate(GateList& list, const Arms& arms) {
  for (const Run* run : {&arms.off, &arms.on}) {
    for (const char* metric : {"intvty", "e2e_norm_intvty"}) {
      const auto found = run->aggregate.find(metric);
      if (found == run->aggregate.end()) continue;
      const double p50 = found->second.At(0.5), p90 = found->second.At(0.9);
      if (!(p90 > p50) && !run->rates_fast_tail) continue;
      list.Add("G23", GateStatus::kRefuse,
               fmt::format("{}: {} p90 {:.5g} is above p50 {:.5g}: read from the fast tail",
                           run->label, metric, p90, p50));
      return;
    }
  }
  list.Add("G23", GateStatus::kPass, "rate percentiles name the slow side");
}

void ClientVersionGate(GateList& list, const Arms& arms) {
  if (arms.off.percentiles_step != arms.on.percentiles_step) {
    list.Add("G08", GateStatus::kRefuse,
             "percentiles are interpolated in one arm and a step in the other");
    return;
  }
  FactGate(list, arms, "G08", "client", {"client", "client_version", "token_source"});
}

}  // namespace

std::string_view NameOf(GateStatus status) {
  constexpr std::string_view kNames[] = {"pass", "unknown", "resolved", "limit",
                                         "warn", "allowed", "refuse"};
  return kNames[static_cast<std::size_t>(status)];
}

double GoldenAcceptLength(int depth) {
  constexpr double kGolden[] = {1.84, 2.50, 2.99, 3.33, 3.61, 3.78, 3.91, 4.06};
  return depth >= 1 && depth <= 8 ? kGolden[depth - 1] : kMissing;
}

std::vector<FactDifference> DifferingFacts(const Run& off, const Run& on,
                                           const std::map<std::string, std::string>& treatment) {
  std::set<std::string> names;
  for (const auto& [name, value] : off.facts) names.insert(name);
  for (const auto& [name, value] : on.facts) names.insert(name);
  // A flag absent from a recorded command line is a setting; anything else absent is unknown.
  const auto commands = [](const Run& run, const std::string& prefix) {
    return std::any_of(run.facts.begin(), run.facts.end(),
                       [&](const auto& fact) { return fact.first.starts_with(prefix); });
  };
  std::vector<FactDifference> differences;
  for (const std::string& name : names) {
    if (kDescriptive.contains(name)) continue;
    const std::string a = off.Fact(name), b = on.Fact(name);
    if (a == b) continue;
    const std::string prefix = name.substr(0, name.find('.') + 1);
    if (!prefix.empty() && (!commands(off, prefix) || !commands(on, prefix))) continue;
    FactDifference difference{name, a, b, std::string(GateOfFact(name)), false};
    const auto declared = treatment.find(name);
    difference.declared =
        declared != treatment.end() && (declared->second.empty() || declared->second == b);
    // What one arm does not record and nobody owns cannot be called different.
    if (difference.gate == "G01" && prefix.empty() && (a.empty() || b.empty())) continue;
    differences.push_back(difference);
  }
  return differences;
}

std::vector<Gate> CheckGates(const Run& off, const Run& on,
                             const std::map<std::string, std::string>& treatment,
                             const std::set<std::string>& allow, const Statistic& primary,
                             const GateEvidence& evidence) {
  const std::vector<FactDifference> differences = DifferingFacts(off, on, treatment);
  const Arms arms{off, on, differences};
  GateList list(allow);
  ConfigurationGate(list, arms);
  FactGate(list, arms, "G02", "model", {"model"});
  FactGate(list, arms, "G03", "hardware and parallelism", {});
  FactGate(list, arms, "G04", "software", {"image", "commit"});
  SpeculativeGate(list, arms);
  FactGate(list, arms, "G06", "dataset", {"dataset", "dataset_revision"});
  FactGate(list, arms, "G07", "load and window", {});
  ClientVersionGate(list, arms);
  OutputLengthGate(list, arms, evidence);
  CacheGate(list, arms);
  const double pool = Percent(off.Number("kv_pool_tokens"), on.Number("kv_pool_tokens"));
  list.Add("G11",
           std::isnan(pool)       ? GateStatus::kUnknown
           : std::abs(pool) > 0.5 ? GateStatus::kWarn
                                  : GateStatus::kPass,
           std::isnan(pool) ? "KV pool sizes are not recorded"
                            : fmt::format("KV pool of the on arm is {:+.2f} %", pool));
  ErrorGate(list, arms);
  ValidityGate(list, arms);
  WindowGate(list, arms, evidence);
  OverlapGate(list, arms, evidence);
  ClientGate(list, arms);
  const double clock = Percent(off.Number("sm_clock_mhz"), on.Number("sm_clock_mhz"));
  list.Add("G17",
           std::isnan(clock)       ? GateStatus::kUnknown
           : std::abs(clock) > 1.0 ? GateStatus::kWarn
                                   : GateStatus::kPass,
           std::isnan(clock) ? "GPU clocks are not recorded"
                             : fmt::format("mean SM clock of the on arm is {:+.2f} %", clock));
  StationarityGate(list, arms, evidence);
  std::string suppressed;
  for (const std::string& name : evidence.suppressed) {
    suppressed += (suppressed.empty() ? "" : ", ") + name;
  }
  list.Add("G19", suppressed.empty() ? GateStatus::kPass : GateStatus::kLimit,
           suppressed.empty() ? "every percentile shown is estimable"
                              : "too few requests for " + suppressed);
  IdentityGate(list, arms);
  TreatedPathGate(list, arms);
  HistoryGate(list, arms, primary);
  FastTailGate(list, arms);
  list.Add("G24", evidence.repeated_keys > 0 ? GateStatus::kResolved : GateStatus::kPass,
           evidence.repeated_keys > 0
               ? fmt::format("{:.0f} requests repeat a key and were matched by play ordinal",
                             evidence.repeated_keys)
               : "no key repeats");
  return std::move(list.gates);
}

}  // namespace assay::serving
