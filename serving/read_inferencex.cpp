// InferenceX aggregate JSON: one point of a sweep, summarised from aiperf records and server
// metrics.
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

Distribution CountedDistribution(const json& entry, double count) {
  Distribution d;
  d.count = count;
  d.mean = NumberAt(entry, "mean");
  d.std = NumberAt(entry, "std");
  for (int percent : {50, 75, 90, 95, 99}) {
    const double value = NumberAt(entry, fmt::format("p{}", percent).c_str());
    if (!std::isnan(value)) d.quantiles[percent / 100.0] = value;
  }
  return d;
}

void AddConfiguration(const json& document, Run& run) {
  struct Field {
    const char *key, *fact;
  };
  constexpr Field kFields[] = {{"hw", "gpu"},
                               {"conc", "concurrency"},
                               {"image", "image"},
                               {"model", "model"},
                               {"framework", "framework"},
                               {"precision", "precision"},
                               {"spec_decoding", "spec_method"},
                               {"disagg", "disagg"},
                               {"is_multinode", "is_multinode"},
                               {"scenario_type", "scenario"},
                               {"recipe_fingerprint", "recipe_fingerprint"},
                               {"num_gpus", "gpu_count"},
                               {"tp", "tp"},
                               {"ep", "ep"},
                               {"pp", "pp"},
                               {"dcp_size", "dcp"},
                               {"pcp_size", "pcp"},
                               {"dp_attention", "dp_attention"},
                               {"kv_offloading", "kv_offloading"},
                               {"kv_offload_backend", "kv_offload_backend"},
                               {"allocated_cpu_dram_gb", "allocated_cpu_dram_gb"}};
  for (const Field& field : kFields) {
    run.AddFact(field.fact, NormaliseFact(TextAt(document, field.key)));
  }
  const json& dataset = Member(document, "dataset");
  run.AddFact("dataset", TextAt(dataset, "hf_dataset_name"));
  run.AddFact("dataset_loader", TextAt(dataset, "loader"));
  run.AddFact("dataset_revision", TextAt(dataset, "hf_revision"));
  run.AddFact("dataset_entries", NormaliseFact(TextAt(dataset, "num_dataset_entries")));
  run.AddFact("client", "aiperf");
  // num_gpus may be absent: then tp * pp * pcp.
  double gpus = NumberAt(document, "num_gpus");
  if (std::isnan(gpus)) {
    const auto size = [&](const char* key) {
      const double value = NumberAt(document, key);
      return std::isnan(value) ? 1.0 : value;
    };
    gpus = size("tp") * size("pp") * size("pcp_size");
  }
  run.AddNumber("gpus", gpus);
}

void AddServerMetrics(const json& server, Run& run) {
  const json& cache = Member(server, "cache");
  run.AddNumber("server_hit_rate", NumberAt(cache, "gpu_cache_hit_rate"));
  run.AddNumber("external_hit_rate", NumberAt(cache, "external_cache_hit_rate"));
  const json& tokens = Member(server, "tokens");
  run.AddNumber("server_prompt_tokens", NumberAt(tokens, "prompt_total"));
  run.AddNumber("server_generation_tokens", NumberAt(tokens, "generation_total"));
  const json& source = Member(tokens, "prompt_by_source");
  run.AddNumber("server_cached_tokens", NumberAt(source, "gpu_cache_hit"));
  run.AddNumber("server_external_tokens", NumberAt(source, "cpu_or_external_cache_hit"));
  run.AddNumber("server_computed_tokens", NumberAt(source, "computed"));
  run.AddFact("server_adapter", TextAt(server, "adapter"));
  run.AddNumber("kv_pool_tokens", NumberAt(Member(server, "kv_cache"), "gpu_total_tokens"));
}

}  // namespace

void ReadInferenceX(const json& document, const std::string& name, Run& run) {
  const json& metrics = Member(document, "request_metrics");
  const json& latency = Member(metrics, "latency");
  const double count = NumberAt(document, "num_requests_successful");
  if (!latency.is_object() || std::isnan(count)) {
    BadInput(name + " is an InferenceX aggregate without request_metrics.latency or " +
             "num_requests_successful");
  }
  for (const char* metric :
       {"ttft", "e2el", "itl", "tpot", "intvty", "e2e_norm_intvty", "full_response_itl"}) {
    const json& entry = Member(latency, metric);
    if (entry.is_object()) run.aggregate.emplace(metric, CountedDistribution(entry, count));
  }
  const json& tokens = Member(metrics, "tokens");
  run.aggregate.emplace("isl", CountedDistribution(Member(tokens, "input"), count));
  run.aggregate.emplace("osl", CountedDistribution(Member(tokens, "output_actual"), count));
  run.aggregate.emplace("osl_expected",
                        CountedDistribution(Member(tokens, "output_expected"), count));

  const json& accounting = Member(document, "request_accounting");
  run.AddNumber("successes", count);
  run.AddNumber("records_total", NumberAt(accounting, "records_total"));
  run.AddNumber("records_dropped", NumberAt(accounting, "records_dropped_total"));
  run.AddNumber("warmup_records", NumberAt(accounting, "records_warmup_dropped"));
  // Warm-up records usually count as errors too (OSL = 1 answers), hence the difference.
  run.AddNumber("errors", run.Number("records_dropped") - run.Number("warmup_records"));

  const json& throughput = Member(metrics, "throughput");
  run.AddNumber("duration_s", NumberAt(throughput, "duration_seconds"));
  run.AddNumber("total_tokens_per_s", NumberAt(Member(throughput, "total"), "tokens_per_second"));
  run.AddNumber("input_tokens_per_s", NumberAt(Member(throughput, "input"), "tokens_per_second"));
  run.AddNumber("output_tokens_per_s", NumberAt(Member(throughput, "output"), "tokens_per_second"));
  run.AddNumber("per_gpu_tokens_per_s", NumberAt(Member(throughput, "per_gpu"), "total_tput_tps"));
  // The rounded rates are given, the sums are not: tokens = mean * N.
  run.AddNumber("input_tokens", run.aggregate["isl"].mean * count);
  run.AddNumber("output_tokens", run.aggregate["osl"].mean * count);
  const json& qps = Member(metrics, "qps");
  run.AddNumber("qps_mean", NumberAt(qps, "mean"));
  run.AddNumber("qps_samples", NumberAt(qps, "samples"));
  run.AddNumber("theoretical_hit_rate",
                NumberAt(Member(metrics, "cache"), "theoretical_cache_hit_rate"));
  run.AddNumber("kv_pool_tokens", NumberAt(document, "kv_cache_pool_tokens"));
  AddServerMetrics(Member(document, "server_metrics"), run);
  AddConfiguration(document, run);
}

}  // namespace assay::serving
