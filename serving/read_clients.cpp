// Other clients: guidellm, genai-bench, genai-perf, inference-perf, llmperf, MLPerf detail logs.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "serving/facts.h"
#include "serving/json_lines.h"
#include "serving/readers.h"

namespace assay::serving {
namespace {

using nlohmann::json;

// {mean, median?, p90 / p090 / ..., min, max} in any of the spellings of these clients.
Distribution ScaledDistribution(const json& entry, double scale) {
  Distribution d;
  d.count = NumberAt(entry, "count");
  d.mean = scale * NumberAt(entry, "mean");
  d.std = scale * NumberAt(entry, entry.contains("stddev") ? "stddev" : "std_dev");
  d.min = scale * NumberAt(entry, "min");
  d.max = scale * NumberAt(entry, "max");
  const json& source = entry.contains("percentiles") ? entry.at("percentiles") : entry;
  for (const auto& [key, value] : source.items()) {
    if (key.size() < 2 || key[0] != 'p') continue;
    double percent = NumberOfText(std::string_view(key).substr(1));
    if (key == "p001" || key == "p999") percent /= 10;  // guidellm: 0.1 and 99.9 %
    if (percent > 0 && percent < 100) d.quantiles[percent / 100] = scale * NumberOf(value);
  }
  const double median = scale * NumberAt(entry, "median");
  if (!std::isnan(median)) d.quantiles[0.5] = median;
  return d;
}

void AddDistribution(Run& run, const char* name, const json& entry, double scale) {
  if (entry.is_object()) run.aggregate.emplace(name, ScaledDistribution(entry, scale));
}

std::int32_t NewName(Run& run, const std::string& text) {
  run.names.push_back(text);
  return static_cast<std::int32_t>(run.names.size()) - 1;
}

}  // namespace

void ReadGuidellm(const json& document, const std::string& name, int benchmark, Run& run) {
  const json& all = Member(document, "benchmarks");
  if (!all.is_array() || all.empty()) BadInput(name + " holds no benchmark");
  if (benchmark == 0 && all.size() > 1) {
    BadInput(fmt::format("{} holds {} benchmarks: say which with NAME:1 .. NAME:{}", name,
                         all.size(), all.size()));
  }
  const std::size_t index = benchmark == 0 ? 0 : static_cast<std::size_t>(benchmark - 1);
  if (index >= all.size()) {
    BadInput(fmt::format("{} holds {} benchmarks, not {}", name, all.size(), benchmark));
  }
  const json& bench = all[index];
  const json& metrics = Member(bench, "metrics");
  const auto successful = [&](const char* metric) -> const json& {
    return Member(Member(metrics, metric), "successful");
  };
  AddDistribution(run, "e2el", successful("request_latency"), 1);
  AddDistribution(run, "ttft", successful("time_to_first_token_ms"), 1e-3);
  AddDistribution(run, "itl", successful("inter_token_latency_ms"), 1e-3);
  AddDistribution(run, "e2e_per_token", successful("time_per_output_token_ms"), 1e-3);
  AddDistribution(run, "isl", successful("prompt_token_count"), 1);
  AddDistribution(run, "osl", successful("output_token_count"), 1);
  const json& totals = Member(metrics, "request_totals");
  run.AddNumber("successes", NumberAt(totals, "successful"));
  run.AddNumber("errors", NumberAt(totals, "errored"));
  const json& scheduler = Member(bench, "scheduler_metrics");
  run.AddNumber("duration_s", NumberAt(scheduler, "measure_end_time") -
                                  NumberAt(scheduler, "measure_start_time"));
  run.AddNumber("schedule_delay_s", NumberAt(scheduler, "request_targeted_start_delay_avg"));
  run.AddFact("client", "guidellm");
  run.AddFact("client_version", TextAt(Member(document, "metadata"), "guidellm_version"));
  const json& config = Member(bench, "config");
  run.AddFact("model", TextAt(Member(config, "backend"), "model"));
  run.AddFact("request_rate", NormaliseFact(TextAt(Member(config, "strategy"), "rate")));
  run.AddFact("arrival", TextAt(Member(config, "strategy"), "type_"));
  run.percentiles_step = true;
  run.notes.push_back("guidellm percentiles are a step function (type 1), and its TPOT is E2E/OSL");
  for (const json& r : Member(Member(bench, "requests"), "successful")) {
    Request request;
    request.conversation = NewName(run, TextAt(r, "request_id"));
    request.e2e_s = NumberAt(r, "request_latency");
    request.ttft_s = 1e-3 * NumberAt(r, "time_to_first_token_ms");
    request.isl = NumberAt(r, "prompt_tokens");
    request.osl = NumberAt(r, "output_tokens");
    if (const double start = NumberAt(r, "request_start_time"); start > 0) {
      request.start_ns = std::llround(start * 1e9);
    }
    run.requests.push_back(request);
  }
  if (!run.requests.empty()) run.key = KeyKind::kIndex;
  FinishRun(run);
}

void ReadGenaiBench(const json& document, const std::string& name, Run& run) {
  const json& aggregated = Member(document, "aggregated_metrics");
  const json& stats = Member(aggregated, "stats");
  AddDistribution(run, "ttft", Member(stats, "ttft"), 1);
  AddDistribution(run, "itl", Member(stats, "tpot"), 1);
  AddDistribution(run, "e2el", Member(stats, "e2e_latency"), 1);
  run.AddNumber("successes", NumberAt(aggregated, "num_completed_requests"));
  run.AddNumber("errors", NumberAt(aggregated, "num_error_requests"));
  run.AddFact("client", "genai-bench");
  run.AddFact("concurrency", NormaliseFact(TextAt(aggregated, "num_concurrency")));
  run.AddFact("scenario", TextAt(aggregated, "scenario"));
  const json& individual = Member(document, "individual_request_metrics");
  if (!individual.is_array()) BadInput(name + ": individual_request_metrics is not a list");
  for (const json& r : individual) {
    Request request;
    request.conversation = NewName(run, fmt::format("#{}", run.requests.size()));
    request.ttft_s = NumberAt(r, "ttft");
    request.e2e_s = NumberAt(r, "e2e_latency");
    request.isl = NumberAt(r, "num_input_tokens");
    request.osl = NumberAt(r, "num_output_tokens");
    if (!Member(r, "error_code").is_null()) request.outcome = Outcome::kError;
    run.requests.push_back(request);
  }
  run.key = KeyKind::kIndex;
  FinishRun(run);
}

// Raw time stamps in ns: the first response stamp is the first chunk.
void ReadGenaiPerf(const json& document, const std::string& name, Run& run) {
  const json& experiments = Member(document, "experiments");
  if (!experiments.is_array() || experiments.empty()) BadInput(name + " holds no experiment");
  for (const json& r : Member(experiments[0], "requests")) {
    const json& stamps = Member(r, "response_timestamps");
    Request request;
    request.conversation = NewName(run, fmt::format("#{}", run.requests.size()));
    if (!Member(r, "timestamp").is_number() || !stamps.is_array() || stamps.empty()) {
      request.outcome = Outcome::kError;
    } else {
      request.start_ns = r.at("timestamp").get<std::int64_t>();
      request.end_ns = stamps.back().get<std::int64_t>();
      request.ttft_s = 1e-9 * static_cast<double>(stamps[0].get<std::int64_t>() - request.start_ns);
      request.e2e_s = 1e-9 * static_cast<double>(request.end_ns - request.start_ns);
      request.chunks = static_cast<std::int32_t>(stamps.size());
    }
    run.requests.push_back(request);
  }
  run.AddFact("client", "genai-perf");
  run.key = KeyKind::kIndex;
  run.notes.push_back("genai-perf profile export: no token counts, so no per-token metrics");
  FinishRun(run);
}

void ReadInferencePerf(const json& document, const std::string& name, Run& run) {
  const json& successes = Member(document, "successes");
  const json& latency = Member(successes, "latency");
  if (!latency.is_object()) BadInput(name + " has no successes.latency");
  AddDistribution(run, "e2el", Member(latency, "request_latency"), 1);
  AddDistribution(run, "ttft", Member(latency, "time_to_first_token"), 1);
  AddDistribution(run, "itl", Member(latency, "time_per_output_token"), 1);
  AddDistribution(run, "chunk_latency", Member(latency, "inter_token_latency"), 1);
  AddDistribution(run, "e2e_per_token", Member(latency, "normalized_time_per_output_token"), 1);
  AddDistribution(run, "isl", Member(successes, "prompt_len"), 1);
  AddDistribution(run, "osl", Member(successes, "output_len"), 1);
  const double count = NumberAt(successes, "count");
  run.AddNumber("successes", count);
  run.AddNumber("errors", NumberAt(Member(document, "failures"), "count"));
  const json& throughput = Member(successes, "throughput");
  run.AddNumber("duration_s", count / NumberAt(throughput, "requests_per_sec"));
  run.AddNumber("output_tokens_per_s", NumberAt(throughput, "output_tokens_per_sec"));
  run.AddNumber("total_tokens_per_s", NumberAt(throughput, "total_tokens_per_sec"));
  const json& load = Member(document, "load_summary");
  run.AddNumber("schedule_delay_s", NumberAt(Member(load, "schedule_delay"), "mean"));
  run.AddFact("request_rate", NormaliseFact(TextAt(load, "requested_rate")));
  run.AddFact("client", "inference-perf");
  run.notes.push_back("inference-perf NTPOT is E2E/OSL and holds the first token");
}

void ReadLlmperf(const json& records, const std::string& name, Run& run) {
  for (const json& r : records) {
    if (!r.is_object() || !r.contains("end_to_end_latency_s")) {
      BadInput(
          fmt::format("{}: record {} has no end_to_end_latency_s", name, run.requests.size() + 1));
    }
    Request request;
    request.conversation = NewName(run, fmt::format("#{}", run.requests.size()));
    request.ttft_s = NumberAt(r, "ttft_s");
    request.e2e_s = NumberAt(r, "end_to_end_latency_s");
    request.isl = NumberAt(r, "number_input_tokens");
    request.osl = NumberAt(r, "number_output_tokens");
    // A record with an error code may still carry metrics: it is excluded.
    if (!Member(r, "error_code").is_null()) request.outcome = Outcome::kError;
    run.requests.push_back(request);
  }
  run.AddFact("client", "llmperf");
  run.key = KeyKind::kIndex;
  run.notes.push_back(
      "llmperf writes E2E/OSL as inter_token_latency_s; assay recomputes ITL from TTFT and E2E");
  FinishRun(run);
}

void ReadLlmperfSummary(const json& document, const std::string& name, Run& run) {
  struct Metric {
    const char *key, *name;
  };
  constexpr Metric kMetrics[] = {{"results_ttft_s", "ttft"},
                                 {"results_end_to_end_latency_s", "e2el"},
                                 {"results_inter_token_latency_s", "e2e_per_token"}};
  for (const Metric& metric : kMetrics) {
    const std::string prefix = metric.key;
    Distribution d;
    d.mean = NumberAt(document, (prefix + "_mean").c_str());
    d.min = NumberAt(document, (prefix + "_min").c_str());
    d.max = NumberAt(document, (prefix + "_max").c_str());
    d.std = NumberAt(document, (prefix + "_stddev").c_str());
    for (int percent : {25, 50, 75, 90, 95, 99}) {
      const double value =
          NumberAt(document, fmt::format("{}_quantiles_p{}", prefix, percent).c_str());
      if (!std::isnan(value)) d.quantiles[percent / 100.0] = value;
    }
    if (!std::isnan(d.mean)) run.aggregate.emplace(metric.name, d);
  }
  if (run.aggregate.empty()) BadInput(name + " has no llmperf result");
  const double completed = NumberAt(document, "results_num_completed_requests");
  run.AddNumber("successes", completed);
  run.AddNumber("errors", NumberAt(document, "results_number_errors"));
  run.AddFact("model", TextAt(document, "model"));
  run.AddFact("concurrency", NormaliseFact(TextAt(document, "num_concurrent_requests")));
  run.AddFact("client", "llmperf");
}

// ":::MLLOG {...}" lines are read by LoadGen's detail log keys for a summary only.
void ReadMlperfLog(std::string_view text, const std::string& name, Run& run) {
  std::size_t begin = 0, lines = 0;
  struct Metric {
    const char *key, *name;
    double quantile;
  };
  constexpr Metric kMetrics[] = {{"result_mean_latency_ns", "e2el", 0},
                                 {"result_50.00_percentile_latency_ns", "e2el", 0.5},
                                 {"result_90.00_percentile_latency_ns", "e2el", 0.9},
                                 {"result_95.00_percentile_latency_ns", "e2el", 0.95},
                                 {"result_99.00_percentile_latency_ns", "e2el", 0.99},
                                 {"result_first_token_mean_latency_ns", "ttft", 0},
                                 {"result_first_token_50.00_percentile_latency_ns", "ttft", 0.5},
                                 {"result_first_token_90.00_percentile_latency_ns", "ttft", 0.9},
                                 {"result_first_token_99.00_percentile_latency_ns", "ttft", 0.99},
                                 {"result_time_per_output_token_mean", "itl", 0},
                                 {"result_time_per_output_token_50.00_percentile_ns", "itl", 0.5},
                                 {"result_time_per_output_token_90.00_percentile_ns", "itl", 0.9},
                                 {"result_time_per_output_token_99.00_percentile_ns", "itl", 0.99}};
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++lines;
    const std::size_t brace = line.find('{');
    if (!line.starts_with(":::MLLOG") || brace == std::string_view::npos) continue;
    const json entry = ParseJson(line.substr(brace), fmt::format("{} line {}", name, lines));
    const std::string key = TextAt(entry, "key");
    const double value = NumberAt(entry, "value");
    for (const Metric& metric : kMetrics) {
      if (key != metric.key) continue;
      Distribution& d = run.aggregate[metric.name];
      (metric.quantile == 0 ? d.mean : d.quantiles[metric.quantile]) = 1e-9 * value;
    }
    if (key == "result_query_count") run.AddNumber("successes", value);
    if (key == "result_validity" && TextAt(entry, "value") == "INVALID") {
      run.AddFact("invalid", "MLPerf LoadGen says INVALID");
    }
  }
  if (run.aggregate.empty()) BadInput(name + " holds no MLPerf latency result");
  run.AddFact("client", "MLPerf LoadGen");
}

}  // namespace assay::serving
