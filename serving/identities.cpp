#include "serving/identities.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "serving/json_lines.h"

namespace assay::serving {
namespace {

constexpr double kQuantiles[] = {0, 0.5, 0.75, 0.9, 0.95, 0.99};  // 0 = mean
constexpr double kRounding = 5.1e-6;                              // aggregates keep five decimals

double At(const Run& run, const char* metric, double q) {
  const auto found = run.aggregate.find(metric);
  if (found == run.aggregate.end()) return kMissing;
  return q == 0 ? found->second.mean : found->second.At(q);
}

double MeanOf(const Run& run, Metric metric) {
  if (run.EvidenceLevel() > 1) return CostStatistic(Costs(run, metric), 0);
  return At(run, metric == Metric::kE2el ? "e2el" : metric == Metric::kTtft ? "ttft" : "itl", 0);
}

class Checks {
 public:
  void Add(int number, std::string what, double value, double expected, double tolerance) {
    if (std::isnan(value) || std::isnan(expected)) return;
    list.push_back({number, std::move(what), value, expected,
                    std::abs(value - expected) <= tolerance, number <= 5});
  }
  std::vector<Identity> list;
};

void CheckRates(const Run& run, Checks& checks) {
  for (const double q : kQuantiles) {
    const double itl = At(run, "itl", q), rate = At(run, "intvty", q);
    const std::string name = q == 0 ? "mean" : fmt::format("p{:g}", 100 * q);
    checks.Add(1, name + " intvty * itl", rate * itl, 1, kRounding / itl + kRounding / rate);
    checks.Add(2, name + " tpot = itl", At(run, "tpot", q), itl, 2 * kRounding);
  }
}

void CheckTotals(const Run& run, Checks& checks) {
  const double n = run.Number("successes"), duration = run.Number("duration_s");
  const double input = run.Number("input_tokens"), output = run.Number("output_tokens");
  const auto rate = [&](const char* what, double tokens, const char* number) {
    const double stated = run.Number(number);
    // Means keep five decimals (relative to thousands of tokens), the CSV forms only two.
    const double tolerance = run.aggregate.contains("e2e_norm_intvty") ? 1e-6 : 2e-3;
    checks.Add(3, what, tokens / duration, stated, tolerance * std::abs(stated) + 0.01);
  };
  rate("input tokens / D", input, "input_tokens_per_s");
  rate("output tokens / D", output, "output_tokens_per_s");
  rate("all tokens / D", input + output, "total_tokens_per_s");
  const double total = run.Number("total_tokens_per_s");
  checks.Add(3, "per GPU * GPUs", run.Number("per_gpu_tokens_per_s") * run.Number("gpus"), total,
             1e-6 * total + kRounding * run.Number("gpus"));
  const double samples = run.Number("qps_samples");
  // N - 1 in most files, N - 2 in one real file (Kimi c16): one request may fall on a window edge.
  checks.Add(4, "qps mean * samples", run.Number("qps_mean") * samples, n - 1,
             1 + kRounding * samples);
  checks.Add(5, "records total", run.Number("records_total"), n + run.Number("records_dropped"), 0);
}

void CheckHints(const Run& run, Checks& checks) {
  const double osl = run.Number("output_tokens") / run.Number("successes");
  const double e2el = MeanOf(run, Metric::kE2el);
  const double built = MeanOf(run, Metric::kTtft) + MeanOf(run, Metric::kItl) * (osl - 1);
  checks.Add(6, "mean e2el from ttft and itl", built, e2el, 0.15 * e2el);
  const double generated = run.Number("server_generation_tokens");
  checks.Add(7, "client output tokens = server generation", run.Number("output_tokens"), generated,
             1e-3 * generated);
  double sources = run.Number("server_cached_tokens") + run.Number("server_computed_tokens");
  if (const double external = run.Number("server_external_tokens"); !std::isnan(external)) {
    sources += external;
  }
  checks.Add(10, "prompt tokens by source", sources, run.Number("server_prompt_tokens"), 0.5);
}

}  // namespace

std::vector<Identity> CheckIdentities(const Run& run) {
  Checks checks;
  CheckRates(run, checks);
  CheckTotals(run, checks);
  CheckHints(run, checks);
  std::stable_sort(checks.list.begin(), checks.list.end(),
                   [](const Identity& a, const Identity& b) { return a.number < b.number; });
  return checks.list;
}

double RequestsInFlight(const Run& run) {
  return run.Number("successes") * MeanOf(run, Metric::kE2el) / run.Number("duration_s");
}

double ImpliedIdle(const Run& run) {
  const double lanes = NumberOfText(run.Fact("concurrency"));
  const double idle =
      lanes * run.Number("duration_s") / run.Number("successes") - MeanOf(run, Metric::kE2el);
  return idle > 0 ? idle : kMissing;
}

std::optional<Factorisation> Factorise(const Run& off, const Run& on) {
  const auto rate = [](const Run& run) {
    return run.Number("successes") / run.Number("duration_s");
  };
  const auto tokens = [](const Run& run) {
    return run.Number("input_tokens") + run.Number("output_tokens");
  };
  const auto gpus = [](const Run& run) {
    const double count = run.Number("gpus");
    return std::isnan(count) ? 1.0 : count;
  };
  Factorisation f;
  f.request_rate = rate(on) / gpus(on) / (rate(off) / gpus(off));
  f.tokens_per_request =
      (tokens(on) / on.Number("successes")) / (tokens(off) / off.Number("successes"));
  f.total = f.request_rate * f.tokens_per_request;
  if (std::isnan(f.total)) return std::nullopt;
  const auto per_second = [&](const Run& run, const char* number) {
    return run.Number(number) / run.Number("duration_s");
  };
  f.output_tokens = per_second(on, "output_tokens") / per_second(off, "output_tokens");
  f.computed_prefill =
      per_second(on, "server_computed_tokens") / per_second(off, "server_computed_tokens");
  f.prompt_share =
      (off.Number("input_tokens") + on.Number("input_tokens")) / (tokens(off) + tokens(on));
  f.cached_share = (off.Number("server_cached_tokens") + on.Number("server_cached_tokens")) /
                   (off.Number("server_prompt_tokens") + on.Number("server_prompt_tokens"));
  // Closed loop: rate = c / (e2el + Z). With the off arm's Z in both arms only e2el differs.
  const double idle = ImpliedIdle(off);
  f.at_equal_idle = (MeanOf(off, Metric::kE2el) + idle) / (MeanOf(on, Metric::kE2el) + idle);
  const auto interval = [&](bool output) -> std::optional<Interval> {
    const auto a = RateByBatchMeans(off, output), b = RateByBatchMeans(on, output);
    if (!a.has_value() || !b.has_value() || a->rate <= 0 || b->rate <= 0) return std::nullopt;
    // Delta method on the log of a ratio of independent means.
    const double log_ratio = std::log(b->rate / a->rate);
    const double half = 1.96 * std::hypot(a->standard_error / a->rate, b->standard_error / b->rate);
    return Interval{std::exp(log_ratio - half), std::exp(log_ratio + half)};
  };
  f.request_rate_interval = interval(false);
  f.output_tokens_interval = interval(true);
  return f;
}

std::optional<Interval> RatioRangeFromQuantiles(const Run& off, const Run& on,
                                                const Statistic& statistic) {
  struct Range {
    double log_value = 0, log_low = 0, log_high = 0;  // of the quantile in its own scale
  };
  const auto range = [&](const Run& run) -> std::optional<Range> {
    std::vector<std::pair<double, double>> points;  // q, ln value
    for (const double q : kQuantiles) {
      const double value = q == 0 ? kMissing : Value(run, {statistic.metric, q});
      if (value > 0) points.emplace_back(q, std::log(value));
    }
    const double n = run.Number("successes");
    if (points.size() < 2 || !(n > 1)) return std::nullopt;
    const auto read = [&](double p) {
      std::size_t i = 1;
      while (i + 1 < points.size() && p > points[i].first) ++i;
      const auto [q0, v0] = points[i - 1];
      const auto [q1, v1] = points[i];
      return v0 + (p - q0) / (q1 - q0) * (v1 - v0);  // also extrapolates at the ends
    };
    const double half = 1.96 * std::sqrt(statistic.q * (1 - statistic.q) / n);
    const double a = read(statistic.q - half), b = read(std::min(statistic.q + half, 1.0));
    return Range{read(statistic.q), std::min(a, b), std::max(a, b)};
  };
  if (statistic.q == 0) return std::nullopt;
  const std::optional<Range> x = range(off), y = range(on);
  if (!x.has_value() || !y.has_value()) return std::nullopt;
  const double ratio = y->log_value - x->log_value;
  return Interval{
      std::exp(ratio - std::hypot(y->log_value - y->log_low, x->log_high - x->log_value)),
      std::exp(ratio + std::hypot(y->log_high - y->log_value, x->log_value - x->log_low))};
}

std::optional<BatchRate> RateByBatchMeans(const Run& run, bool tokens, int windows) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = kNoTime;
  for (const Request& r : run.requests) {
    if (!r.Measured() || r.start_ns == kNoTime || r.end_ns == kNoTime) continue;
    first = std::min(first, r.start_ns);
    last = std::max(last, r.end_ns);
  }
  if (last == kNoTime || last <= first || windows < 20) return std::nullopt;
  const double width = static_cast<double>(last - first) / windows;
  std::vector<double> sums(static_cast<std::size_t>(windows), 0.0);
  for (const Request& r : run.requests) {
    if (!r.Measured() || r.end_ns == kNoTime || r.start_ns == kNoTime) continue;
    const auto at = static_cast<std::size_t>(static_cast<double>(r.end_ns - first) / width);
    const double amount = tokens ? r.osl : 1.0;
    if (!std::isnan(amount)) sums[std::min(at, sums.size() - 1)] += amount;
  }
  const double mean = Mean(sums);
  double squares = 0;
  for (const double s : sums) squares += (s - mean) * (s - mean);
  const double count = windows, seconds = 1e-9 * width;
  return BatchRate{mean / seconds, std::sqrt(squares / (count - 1) / count) / seconds, windows};
}

}  // namespace assay::serving
