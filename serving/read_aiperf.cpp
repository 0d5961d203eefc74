// aiperf: per-request JSONL (current and old schema), summary JSON and CSV, server metrics CSV.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "base/parallel.h"
#include "serving/facts.h"
#include "serving/json_lines.h"
#include "serving/readers.h"
#include "serving/text_source.h"

namespace assay::serving {
namespace {

using nlohmann::json;

// Seconds per unit of a time; 1 for anything else.
double UnitScale(std::string_view unit) {
  if (unit == "ms") return 1e-3;
  if (unit == "us") return 1e-6;
  if (unit == "ns") return 1e-9;
  return 1;
}

enum Metric {
  kRequestLatency,
  kTtft,
  kItl,
  kIsl,
  kOsl,
  kUsageCached,
  kChunks,
  kMinTime,
  kMaxTime,
  kMetricCount
};

// One line before its names are interned.
struct ParsedLine {
  std::string conversation, trace, root, request_id, problem;
  std::array<double, kMetricCount> value{};
  std::array<double, kMetricCount> scale{};
  std::int64_t start_ns = kNoTime, end_ns = kNoTime, credit_ns = kNoTime, stamp_ns = kNoTime;
  std::int64_t turn = 0, error_code = 0;
  bool has_metadata = false, warmup = false, old_schema = false, new_schema = false;
  bool error = false, cancelled = false, overflow = false;
};

class AiperfSink : public FlatSink {
 public:
  explicit AiperfSink(ParsedLine& line) : line_(line) {
    line_.value.fill(kMissing);
    line_.scale.fill(1);
  }
  void Number(std::string_view path, double value) override {
    if (path.starts_with("metrics.")) {
      const int metric = MetricOf(path, ".value");
      if (metric >= 0) line_.value[static_cast<std::size_t>(metric)] = value;
    } else if (path.starts_with("error")) {
      line_.error = true;
    }
  }
  void Integer(std::string_view path, std::int64_t value) override {
    if (path.starts_with("metadata.")) {
      line_.has_metadata = true;
      const std::string_view field = path.substr(9);
      if (field == "request_start_ns") line_.start_ns = value;
      if (field == "request_end_ns") line_.end_ns = value;
      if (field == "credit_issued_ns") line_.credit_ns = value;
      if (field == "timestamp_ns") line_.stamp_ns = value;
      if (field == "turn_index") line_.turn = value;
      return;
    }
    if (path == "error.code") line_.error_code = value;
    Number(path, static_cast<double>(value));
  }
  void Text(std::string_view path, std::string_view value) override {
    if (path.starts_with("metadata.")) {
      line_.has_metadata = true;
      const std::string_view field = path.substr(9);
      if (field == "conversation_id") line_.conversation = value;
      if (field == "source_trace_id") line_.trace = value;
      if (field == "root_correlation_id") line_.root = value;
      if (field == "x_request_id") line_.request_id = value;
      if (field == "benchmark_phase" || field == "credit_phase") {
        line_.warmup = value == "warmup";
        (field == "credit_phase" ? line_.old_schema : line_.new_schema) = true;
      }
      if (field == "was_cancelled") line_.cancelled = value == "true" || value == "True";
      if (field == "turn_index") line_.turn = static_cast<std::int64_t>(NumberOfText(value));
    } else if (path.starts_with("metrics.")) {
      if (const int metric = MetricOf(path, ".unit"); metric >= 0) {
        line_.scale[static_cast<std::size_t>(metric)] = UnitScale(value);
      } else if (const double number = NumberOfText(value); !std::isnan(number)) {
        Number(path, number);
      }
    } else if (path.starts_with("error")) {
      line_.error = true;
    }
  }
  void Bool(std::string_view path, bool value) override {
    if (path == "metadata.was_cancelled") line_.cancelled = value;
    if (path == "metadata.context_overflow_skip") line_.overflow = value;
  }

 private:
  static int MetricOf(std::string_view path, std::string_view end) {
    static const std::unordered_map<std::string_view, int> kTags = {
        {"request_latency", kRequestLatency},
        {"time_to_first_token", kTtft},
        {"ttft", kTtft},
        {"inter_token_latency", kItl},
        {"input_sequence_length", kIsl},
        {"output_sequence_length", kOsl},
        {"usage_prompt_cached_tokens", kUsageCached},
        {"http_req_chunks_received", kChunks},
        {"min_request_timestamp", kMinTime},
        {"max_response_timestamp", kMaxTime}};
    if (!path.ends_with(end)) return -1;
    path.remove_prefix(8);  // "metrics."
    path.remove_suffix(end.size());
    const auto found = kTags.find(path);
    return found == kTags.end() ? -1 : found->second;
  }
  ParsedLine& line_;
};

Outcome OutcomeOf(const ParsedLine& line) {
  if (line.overflow) return Outcome::kOverflow;
  if (line.cancelled || line.error_code == 499) return Outcome::kCancelled;
  if (line.error) return line.error_code == 408 ? Outcome::kTimeout : Outcome::kError;
  return Outcome::kOk;
}

Request ToRequest(const ParsedLine& line) {
  const auto get = [&](Metric metric) { return line.value[metric] * line.scale[metric]; };
  Request request;
  request.turn = static_cast<std::int32_t>(line.turn);
  request.phase = line.warmup ? Phase::kWarmup : Phase::kProfiling;
  request.outcome = OutcomeOf(line);
  request.e2e_s = get(kRequestLatency);
  request.ttft_s = get(kTtft);
  request.isl = get(kIsl);
  request.osl = get(kOsl);
  request.cached = get(kUsageCached);
  if (!std::isnan(get(kChunks))) request.chunks = static_cast<std::int32_t>(get(kChunks));
  request.start_ns = line.start_ns;
  request.end_ns = line.end_ns;
  // Old schema: no start and end stamps, but both extremes as metrics in ns.
  if (request.start_ns == kNoTime) {
    request.start_ns = std::isnan(line.value[kMinTime])
                           ? line.stamp_ns
                           : static_cast<std::int64_t>(line.value[kMinTime]);
  }
  if (request.end_ns == kNoTime && !std::isnan(line.value[kMaxTime])) {
    request.end_ns = static_cast<std::int64_t>(line.value[kMaxTime]);
  }
  if (line.credit_ns != kNoTime && line.start_ns != kNoTime) {
    request.queue_s = 1e-9 * static_cast<double>(line.start_ns - line.credit_ns);
  }
  return request;
}

// trace + what follows "::" in the conversation id (sub-agents), else the conversation id.
std::string ConversationName(const ParsedLine& line) {
  if (line.trace.empty()) return line.conversation;
  const std::size_t suffix = line.conversation.find("::");
  if (suffix == std::string::npos || line.trace.find("::") != std::string::npos) return line.trace;
  return line.trace + line.conversation.substr(suffix);
}

void CheckLine(const ParsedLine& parsed, const std::string& name, std::size_t number, int& schema) {
  const auto at = [&] { return name + " line " + std::to_string(number); };
  if (!parsed.has_metadata) BadInput(at() + " is no aiperf record: it has no metadata object");
  const int here = parsed.old_schema ? 1 : parsed.new_schema ? 2 : 0;
  if (schema != 0 && here != 0 && here != schema) {
    BadInput(at() + " mixes record schemas: benchmark_phase and credit_phase in one file");
  }
  if (here != 0) schema = here;
}

}  // namespace

void ReadAiperfRecords(const std::string& path, Run& run) {
  const std::string name = BaseName(path);
  LineBlocks blocks(path);
  NamePool pool(run);
  std::vector<std::int32_t> roots;
  std::vector<ParsedLine> parsed;
  int schema = 0;
  bool any_cancelled_root = false;
  for (const std::vector<Line>* lines = &blocks.Next(); !lines->empty(); lines = &blocks.Next()) {
    parsed.assign(lines->size(), {});
    ParallelRanges(static_cast<std::int64_t>(lines->size()), 256, 0,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                       const auto at = static_cast<std::size_t>(i);
                       AiperfSink sink(parsed[at]);
                       parsed[at].problem = FlattenJsonLine((*lines)[at].text, sink);
                     }
                   });
    for (std::size_t i = 0; i < parsed.size(); ++i) {
      const Line& line = (*lines)[i];
      if (!parsed[i].problem.empty()) {
        if (line.unterminated) {
          run.notes.push_back(name + " line " + std::to_string(line.number) +
                              " is cut off and was skipped");
          continue;
        }
        BadInput(name + " line " + std::to_string(line.number) + " is " + parsed[i].problem);
      }
      CheckLine(parsed[i], name, line.number, schema);
      Request request = ToRequest(parsed[i]);
      request.conversation = pool.Index(ConversationName(parsed[i]));
      roots.push_back(parsed[i].root.empty() ? -1 : pool.Index(parsed[i].root));
      any_cancelled_root = any_cancelled_root || request.outcome == Outcome::kCancelled;
      run.requests.push_back(request);
    }
  }
  if (run.requests.empty()) BadInput(name + " holds no complete aiperf record");
  run.AddFact("client", "aiperf");
  run.key = KeyKind::kConversationTurn;
  AssignPlays(run, roots);
  FinishRun(run);
}

namespace {

struct TagName {
  std::string_view tag, header, name;
};
// Tags of the JSON summary, headers of the CSV, our names.
constexpr TagName kSummaryTags[] = {
    {"request_latency", "Request Latency", "e2el"},
    {"time_to_first_token", "Time to First Token", "ttft"},
    {"ttft", "", "ttft"},
    {"inter_token_latency", "Inter Token Latency", "itl"},
    {"inter_chunk_latency", "Inter Chunk Latency", "chunk_latency"},
    {"output_token_throughput_per_user", "Output Token Throughput Per User", "intvty_ascending"},
    {"input_sequence_length", "Input Sequence Length", "isl"},
    {"output_sequence_length", "Output Sequence Length", "osl"},
};
constexpr TagName kTotals[] = {
    {"request_count", "Request Count", "successes"},
    {"error_request_count", "Error Request Count", "errors"},
    {"benchmark_duration", "Benchmark Duration", "duration_s"},
    {"total_isl", "Total Input Sequence Length", "input_tokens"},
    {"total_osl", "Total Output Sequence Length", "output_tokens"},
    {"output_token_throughput", "Output Token Throughput", "window_output_tokens_per_s"},
    {"total_token_throughput", "Total Token Throughput", "window_total_tokens_per_s"},
    {"theoretical_prefix_cache_hit", "Theoretical Prefix Cache Hit", "theoretical_hit_percent"},
};

Distribution DistributionOf(const json& entry) {
  const double scale = UnitScale(TextAt(entry, "unit"));
  Distribution d;
  d.count = NumberAt(entry, "count");
  d.mean = NumberAt(entry, "avg") * scale;
  d.std = NumberAt(entry, "std") * scale;
  d.min = NumberAt(entry, "min") * scale;
  d.max = NumberAt(entry, "max") * scale;
  for (int percent : {1, 5, 10, 25, 50, 75, 90, 95, 99}) {
    const double value = NumberAt(entry, fmt::format("p{}", percent).c_str()) * scale;
    if (!std::isnan(value)) d.quantiles[percent / 100.0] = value;
  }
  return d;
}

void FinishSummary(Run& run) {
  run.AddFact("client", "aiperf");
  const double percent = run.Number("theoretical_hit_percent");
  run.AddNumber("theoretical_hit_rate", percent / 100);
  run.numbers.erase("theoretical_hit_percent");
}

}  // namespace

void ReadAiperfSummary(const json& document, Run& run) {
  const json& table = document.contains("records") ? document.at("records") : document;
  for (const TagName& tag : kSummaryTags) {
    const json& entry = Member(table, std::string(tag.tag).c_str());
    if (entry.is_object()) run.aggregate.emplace(tag.name, DistributionOf(entry));
  }
  for (const TagName& tag : kTotals) {
    const json& entry = Member(table, std::string(tag.tag).c_str());
    run.AddNumber(std::string(tag.name), NumberAt(entry, "avg"));
  }
  run.AddFact("client_version", TextAt(document, "aiperf_version"));
  const json& config = Member(document, "input_config");
  const json& endpoint = Member(config, "endpoint");
  const json& models = Member(endpoint, "model_names");
  if (models.is_array() && !models.empty()) run.AddFact("model", TextOf(models[0]));
  run.AddFact("endpoint", TextAt(endpoint, "custom_endpoint"));
  run.AddFact("token_source",
              NumberAt(endpoint, "use_server_token_count") == 1 ? "server" : "tokenizer");
  const json& input = Member(config, "input");
  run.AddFact("dataset", TextAt(input, "public_dataset"));
  run.AddFact("seed", TextAt(input, "random_seed"));
  run.AddFact("dataset_entries", TextAt(Member(input, "conversation"), "num_dataset_entries"));
  run.AddFact("ignore_eos", TextAt(Member(input, "extra_inputs_parsed"), "ignore_eos"));
  const json& load = Member(config, "loadgen");
  const auto add = [&](const char* fact, const char* key) {
    run.AddFact(fact, NormaliseFact(TextAt(load, key)));
  };
  add("window_s", "benchmark_duration");
  add("concurrency", "concurrency");
  add("request_rate", "request_rate");
  add("start_min_ratio", "trajectory_start_min_ratio");
  add("start_max_ratio", "trajectory_start_max_ratio");
  add("idle_cap_s", "trace_idle_gap_cap_seconds");
  add("client.request-cancellation-rate", "request_cancellation_rate");
  if (NumberAt(document, "was_cancelled") == 1) run.AddFact("invalid", "the client was cancelled");
  run.AddFact("started", TextAt(document, "start_time"));
  run.AddFact("ended", TextAt(document, "end_time"));
  FinishSummary(run);
}

void ReadAiperfCsv(std::string_view text, const std::string& name, Run& run) {
  std::vector<std::string> header;
  std::size_t begin = 0, number = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::vector<std::string> cells = SplitCsv(text.substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (cells.empty() || cells[0].empty()) continue;
    if (cells[0] == "Metric") {
      header = cells;
      continue;
    }
    if (header.empty() || cells.size() > header.size()) {
      BadInput(name + " line " + std::to_string(number) + " has " + std::to_string(cells.size()) +
               " cells under a header of " + std::to_string(header.size()));
    }
    const std::size_t open = cells[0].rfind(" (");
    const std::string title = cells[0].substr(0, open);
    const std::string unit =
        open == std::string::npos ? "" : cells[0].substr(open + 2, cells[0].size() - open - 3);
    if (header.size() == 2) {
      for (const TagName& tag : kTotals) {
        if (tag.header == title) run.AddNumber(std::string(tag.name), NumberOfText(cells.at(1)));
      }
      continue;
    }
    json entry = {{"unit", unit}};
    for (std::size_t i = 1; i < cells.size(); ++i) entry[header[i]] = cells[i];
    for (const TagName& tag : kSummaryTags) {
      if (tag.header == title) run.aggregate.emplace(tag.name, DistributionOf(entry));
    }
  }
  if (run.aggregate.empty()) BadInput(name + " holds no metric that assay knows");
  FinishSummary(run);
}

void ReadAiperfServerMetrics(std::string_view text, const std::string& name, Run& run) {
  std::vector<std::string> header;
  const auto column = [&](std::string_view title) {
    return static_cast<std::size_t>(std::find(header.begin(), header.end(), title) -
                                    header.begin());
  };
  std::map<std::string, double> sums;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty() || line.starts_with('#')) continue;
    const std::vector<std::string> cells = SplitCsv(line);
    if (cells[0] == "Endpoint") {
      header = cells;
      continue;
    }
    const std::size_t total = column("total");
    if (cells.size() < 5 || cells[1] != "counter" || total >= cells.size()) continue;
    std::string key = cells[2];
    if (const std::size_t source = column("source"); source < cells.size()) {
      if (!cells[source].empty()) key += "/" + cells[source];
    }
    sums[key] += NumberOfText(cells[total]);
  }
  if (header.empty()) BadInput(name + " has no header line of a server metrics export");
  const auto add = [&](const char* number, const char* key) {
    if (const auto found = sums.find(key); found != sums.end()) {
      run.AddNumber(number, found->second);
    }
  };
  add("server_prompt_tokens", "vllm:prompt_tokens");
  add("server_generation_tokens", "vllm:generation_tokens");
  add("server_cached_tokens", "vllm:prompt_tokens_by_source/local_cache_hit");
  add("server_external_tokens", "vllm:prompt_tokens_by_source/external_kv_transfer");
  add("server_computed_tokens", "vllm:prompt_tokens_by_source/local_compute");
  const double prompt = run.Number("server_prompt_tokens");
  run.AddNumber("server_hit_rate", run.Number("server_cached_tokens") / prompt);
  run.AddNumber("external_hit_rate", run.Number("server_external_tokens") / prompt);
}

}  // namespace assay::serving
