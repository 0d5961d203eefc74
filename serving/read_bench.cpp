// vllm bench serve (summary or detailed) and one run of sglang bench_serving; both share the
// layout.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "serving/facts.h"
#include "serving/json_lines.h"
#include "serving/readers.h"

namespace assay::serving {
namespace {

using nlohmann::json;

Distribution DistributionOf(const json& document, const std::string& metric) {
  Distribution d;
  const auto at = [&](const std::string& prefix) {
    return 1e-3 * NumberAt(document, (prefix + metric + "_ms").c_str());
  };
  d.mean = at("mean_");
  d.std = at("std_");
  d.count = NumberAt(document, "completed");
  for (const auto& [key, value] : document.items()) {
    // pXX_METRIC_ms with XX = 90, 99, 99.9; the median is called median_.
    if (!key.starts_with('p') || !key.ends_with("_" + metric + "_ms")) continue;
    const double percent =
        NumberOfText(std::string_view(key).substr(1, key.size() - metric.size() - 5));
    if (percent > 0 && percent < 100) d.quantiles[percent / 100] = 1e-3 * NumberOf(value);
  }
  if (const double median = at("median_"); !std::isnan(median)) d.quantiles[0.5] = median;
  return d;
}

std::vector<double> Numbers(const json& document, const char* key) {
  std::vector<double> values;
  for (const json& value : Member(document, key)) values.push_back(NumberOf(value));
  return values;
}

void CheckLength(const std::string& name, const char* key, std::size_t size, std::size_t want) {
  if (size == 0 || size == want) return;
  BadInput(fmt::format("{}: {} has {} entries where ttfts has {}", name, key, size, want));
}

void AddRequests(const json& document, const std::string& name, Run& run) {
  const std::vector<double> ttfts = Numbers(document, "ttfts");
  if (ttfts.empty()) return;
  const std::vector<double> isl = Numbers(document, "input_lens");
  const std::vector<double> osl = Numbers(document, "output_lens");
  const std::vector<double> latencies = Numbers(document, "latencies");
  const std::vector<double> starts = Numbers(document, "start_times");
  const std::vector<double> cached = Numbers(document, "cached_tokens");
  const json& itls = Member(document, "itls");
  const json& errors = Member(document, "errors");
  CheckLength(name, "input_lens", isl.size(), ttfts.size());
  CheckLength(name, "output_lens", osl.size(), ttfts.size());
  CheckLength(name, "latencies", latencies.size(), ttfts.size());
  CheckLength(name, "start_times", starts.size(), ttfts.size());
  CheckLength(name, "cached_tokens", cached.size(), ttfts.size());
  CheckLength(name, "itls", itls.size(), ttfts.size());
  CheckLength(name, "errors", errors.size(), ttfts.size());
  int fewer_chunks = 0;
  for (std::size_t i = 0; i < ttfts.size(); ++i) {
    Request r;
    r.conversation = static_cast<std::int32_t>(i);
    run.names.push_back(fmt::format("#{}", i));
    r.ttft_s = ttfts[i];
    if (!isl.empty()) r.isl = isl[i];
    if (!osl.empty()) r.osl = osl[i];
    if (!cached.empty()) r.cached = cached[i];
    double stream_s = 0;
    if (!itls.empty()) {
      for (const json& gap : itls[i]) stream_s += NumberOf(gap);
      r.chunks = static_cast<std::int32_t>(itls[i].size()) + 1;
      if (r.chunks < r.osl) ++fewer_chunks;
    }
    // Without latencies the end-to-end time is the first chunk plus the gaps.
    if (!latencies.empty()) {
      r.e2e_s = latencies[i];
    } else if (!itls.empty()) {
      r.e2e_s = ttfts[i] + stream_s;
    }
    if (!starts.empty()) r.start_ns = std::llround(starts[i] * 1e9);
    if (!errors.empty() && !TextOf(errors[i]).empty()) r.outcome = Outcome::kError;
    if (r.osl == 0) r.outcome = Outcome::kError;  // both clients write zeros for a failed request
    run.requests.push_back(r);
  }
  run.key = KeyKind::kIndex;
  if (fewer_chunks > 0) {
    run.notes.push_back(fmt::format(
        "{} of {} requests have fewer chunks than tokens: per-chunk ITL is not per token",
        fewer_chunks, ttfts.size()));
  }
}

}  // namespace

void ReadBenchServing(const json& document, const std::string& name, Run& run) {
  const bool sglang = document.contains("dataset_name") || document.contains("server_info") ||
                      document.contains("mean_e2e_latency_ms") ||
                      document.contains("total_output_tokens_retokenized");
  run.AddFact("client", sglang ? "sglang bench_serving" : "vllm bench serve");
  struct Field {
    const char *key, *fact;
  };
  constexpr Field kFields[] = {{"backend", "framework"},
                               {"model_id", "model"},
                               {"tokenizer_id", "tokenizer"},
                               {"num_prompts", "num_prompts"},
                               {"request_rate", "request_rate"},
                               {"burstiness", "burstiness"},
                               {"max_concurrency", "concurrency"},
                               {"dataset_name", "dataset"},
                               {"random_input_len", "input_length"},
                               {"random_output_len", "output_length"},
                               {"random_range_ratio", "length_range_ratio"},
                               {"sharegpt_output_len", "output_length"}};
  for (const Field& field : kFields) {
    run.AddFact(field.fact, NormaliseFact(TextAt(document, field.key)));
  }
  if (sglang) {
    run.aggregate.emplace("e2el", DistributionOf(document, "e2e_latency"));
  } else {
    run.aggregate.emplace("e2el", DistributionOf(document, "e2el"));
  }
  run.aggregate.emplace("ttft", DistributionOf(document, "ttft"));
  run.aggregate.emplace("itl", DistributionOf(document, "tpot"));
  // Their ITL is per chunk; it is kept apart from our per-request ITL.
  run.aggregate.emplace("chunk_latency", DistributionOf(document, "itl"));
  std::erase_if(run.aggregate, [](const auto& entry) {
    return std::isnan(entry.second.mean) && entry.second.quantiles.empty();
  });
  const double completed = NumberAt(document, "completed");
  if (std::isnan(completed)) BadInput(name + " has no number of completed requests");
  AddRequests(document, name, run);
  run.AddNumber("duration_s", NumberAt(document, "duration"));
  run.AddNumber("successes", completed);
  run.AddNumber("input_tokens", NumberAt(document, "total_input_tokens"));
  run.AddNumber("output_tokens", NumberAt(document, "total_output_tokens"));
  run.AddNumber("output_tokens_per_s", NumberAt(document, "output_throughput"));
  run.AddNumber("peak_output_tokens_per_s", NumberAt(document, "max_output_tokens_per_s"));
  run.AddNumber("accept_length", NumberAt(document, "accept_length"));
  if (const double all = NumberAt(document, "num_prompts"); all >= completed) {
    run.AddNumber("errors", all - completed);
  }
  run.notes.push_back(sglang ? "sglang bench_serving: TTFT ends at the first chunk with text"
                             : "vllm bench: TTFT ends at the first chunk with choices, even empty");
  FinishRun(run);
}

}  // namespace assay::serving
