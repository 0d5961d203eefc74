// Recognises files by content, assembles bundles, names plays and clusters.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "serving/facts.h"
#include "serving/json_lines.h"
#include "serving/readers.h"
#include "serving/text_source.h"

namespace assay::serving {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kHeadBytes = std::size_t{64} << 10;

// Is the first line one complete JSON object? Then the file is JSONL (or a one-line document).
json FirstLineObject(std::string_view head) {
  const std::string_view first = head.substr(0, head.find('\n'));
  if (first.size() == head.size() && head.size() == kHeadBytes) return {};  // longer than the head
  try {
    json line = ParseJson(first, "");
    return line.is_object() ? line : json();
  } catch (const Error&) {
    return {};
  }
}

bool HasAny(const json& object, std::initializer_list<const char*> keys) {
  return std::any_of(keys.begin(), keys.end(),
                     [&](const char* key) { return object.contains(key); });
}

// Returns the schema's name, or "" for a document of no known format.
std::string ReadDocument(const json& document, const std::string& name, const LoadOptions& options,
                         Run& run) {
  if (document.is_array()) {
    if (document.empty()) BadInput(name + " is an empty list");
    if (HasAny(document[0], {"end_to_end_latency_s"})) {
      ReadLlmperf(document, name, run);
      return "llmperf records";
    }
    return "";
  }
  if (HasAny(document, {"request_accounting", "infmax_model_prefix"})) {
    ReadInferenceX(document, name, run);
    return "InferenceX aggregate";
  }
  if (document.contains("input_config") &&
      HasAny(document, {"aiperf_version", "records", "request_latency"})) {
    ReadAiperfSummary(document, run);
    return "aiperf summary";
  }
  if (document.contains("benchmarks") && document.contains("metadata")) {
    ReadGuidellm(document, name, options.line, run);
    return "guidellm";
  }
  if (document.contains("aggregated_metrics")) {
    ReadGenaiBench(document, name, run);
    return "genai-bench";
  }
  if (document.contains("experiments")) {
    ReadGenaiPerf(document, name, run);
    return "genai-perf";
  }
  if (document.contains("load_summary") && document.contains("successes")) {
    ReadInferencePerf(document, name, run);
    return "inference-perf";
  }
  if (HasAny(document, {"results_ttft_s_mean", "results_ttft_s_quantiles_p50"})) {
    ReadLlmperfSummary(document, name, run);
    return "llmperf summary";
  }
  if (document.contains("completed") && HasAny(document, {"mean_ttft_ms", "median_ttft_ms"})) {
    ReadBenchServing(document, name, run);
    const bool details = !run.requests.empty();
    const std::string client = run.Fact("client");
    return client + (details ? " (detailed)" : "");
  }
  if (document.contains("client_command")) {
    AddCommandFacts(run, TextAt(document, "client_command"));
    // "TYPE x N": node type and count.
    const std::string type = TextAt(document, "gpu_type");
    const std::size_t times = type.rfind(" x ");
    run.AddFact("node_type", type.substr(0, times));
    if (times != std::string::npos) run.AddFact("node_count", type.substr(times + 3));
    return "commands";
  }
  if (HasAny(document, {"facts", "numbers"})) {
    ReadFacts(document, run);
    return "facts";
  }
  if (document.contains("server_engine") && document.contains("benchmark_version")) {
    run.AddFact("framework", TextAt(document, "server_engine"));
    run.AddFact("framework_version", TextAt(document, "server_version"));
    run.AddFact("gpu", TextAt(document, "server_gpu_type"));
    run.AddFact("gpu_count", TextAt(document, "server_gpu_count"));
    return "genai-bench experiment";
  }
  return "";
}

std::string ReadSeveralRuns(const std::string& path, const std::string& name,
                            const LoadOptions& options, Run& run) {
  LineBlocks blocks(path);
  std::vector<std::string> lines;
  for (const std::vector<Line>* block = &blocks.Next(); !block->empty(); block = &blocks.Next()) {
    for (const Line& line : *block) lines.emplace_back(line.text);
  }
  if (options.line == 0 && lines.size() > 1) {
    BadInput(fmt::format("{} holds {} runs: say which with NAME:1 .. NAME:{}", name, lines.size(),
                         lines.size()));
  }
  const std::size_t index = options.line == 0 ? 0 : static_cast<std::size_t>(options.line - 1);
  if (index >= lines.size()) {
    BadInput(fmt::format("{} holds {} runs, not {}", name, lines.size(), options.line));
  }
  const json document = ParseJson(lines[index], fmt::format("{} line {}", name, index + 1));
  return ReadDocument(document, name, options, run);
}

std::string ReadJsonFile(const std::string& path, std::string_view head, const std::string& name,
                         const LoadOptions& options, Run& run) {
  const json first = FirstLineObject(head);
  if (!first.is_null()) {
    if (first.contains("metadata") && HasAny(first, {"metrics", "error"})) {
      ReadAiperfRecords(path, run);
      return "aiperf records";
    }
    if (LooksLikeRecordLine(first, options)) {
      ReadRecordLines(path, options, run);
      return "assay records";
    }
    if (HasAny(first, {"completed", "mean_ttft_ms", "median_ttft_ms"})) {
      return ReadSeveralRuns(path, name, options, run);
    }
  }
  return ReadDocument(ParseJson(ReadText(path), name), name, options, run);
}

// Reads one file into `run`; returns the schema or "" when the content is of no known format.
std::string ReadFile(const std::string& path, const LoadOptions& options, Run& run) {
  const std::string name = BaseName(path);
  const std::string head = ReadHead(path, kHeadBytes);
  const std::size_t begin = head.find_first_not_of(" \t\n");
  if (begin == std::string::npos) BadInput(name + " is empty");
  std::string schema;
  if (head[begin] == '{' || head[begin] == '[') {
    schema = ReadJsonFile(path, head, name, options, run);
  } else if (head.starts_with("Metric,")) {
    ReadAiperfCsv(ReadText(path), name, run);
    schema = "aiperf CSV";
  } else if (head.starts_with("# AIPerf Server Metrics") || head.starts_with("Endpoint,Type,")) {
    ReadAiperfServerMetrics(ReadText(path), name, run);
    schema = "aiperf server metrics";
  } else if (head.starts_with(":::MLLOG")) {
    ReadMlperfLog(ReadText(path), name, run);
    schema = "MLPerf detail log";
  } else if (LooksLikeRecordCsv(head, options)) {
    ReadRecordCsv(path, options, run);
    schema = "assay records (CSV)";
  } else if (LooksLikeClocks(head)) {
    ReadClocks(ReadText(path), name, run);
    schema = "clock samples";
  } else if (LooksLikeServerLog(head)) {
    ReadServerLog(ReadText(path), run);
    schema = "server log";
  } else if (LooksLikeCommand(head)) {
    AddCommandFacts(run, head);
    schema = "command line";
  }
  if (!schema.empty()) run.inputs.push_back({name, FileSha256(path), schema});
  return schema;
}

bool HoldsResults(const Run& run) { return !run.requests.empty() || !run.aggregate.empty(); }

// Merges a run read from one file of a bundle: the first value of a fact or number stays.
void Merge(Run& into, Run&& from) {
  if (into.requests.empty() && !from.requests.empty()) {
    into.requests = std::move(from.requests);
    into.names = std::move(from.names);
    into.key = from.key;
  }
  for (auto& [key, value] : from.aggregate) into.aggregate.emplace(key, value);
  for (auto& [key, value] : from.facts) into.facts.emplace(key, value);
  for (auto& [key, value] : from.numbers) into.numbers.emplace(key, value);
  into.notes.insert(into.notes.end(), from.notes.begin(), from.notes.end());
  into.inputs.insert(into.inputs.end(), from.inputs.begin(), from.inputs.end());
  into.percentiles_step = into.percentiles_step || from.percentiles_step;
  into.rates_fast_tail = into.rates_fast_tail || from.rates_fast_tail;
}

// Records first, then the InferenceX aggregate, then summaries, then everything else.
int Rank(const Run& run) {
  if (!run.requests.empty()) return 0;
  if (run.aggregate.contains("e2e_norm_intvty")) return 1;
  return HoldsResults(run) ? 2 : 3;
}

Run LoadBundle(const std::string& path, const LoadOptions& options) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<Run> parts;
  int results = 0, with_records = 0;
  for (const fs::path& file : files) {
    if (fs::file_size(file) == 0) BadInput(BaseName(file.string()) + " is empty");
    Run part;
    if (ReadFile(file.string(), options, part).empty()) continue;  // a note, a licence, ...
    results += HoldsResults(part) ? 1 : 0;
    with_records += part.requests.empty() ? 0 : 1;
    parts.push_back(std::move(part));
  }
  if (results == 0) BadInput(BaseName(path) + " holds no result file that assay knows");
  if (with_records > 1) {
    BadInput(fmt::format("{} holds {} files with requests: a bundle is one run", BaseName(path),
                         with_records));
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Run& a, const Run& b) { return Rank(a) < Rank(b); });
  Run run;
  for (Run& part : parts) Merge(run, std::move(part));
  return run;
}

// NAME.commands and NAME.facts.json beside NAME.json[.gz], NAME.jsonl, NAME.csv.
void AddSidecars(const std::string& path, const LoadOptions& options, Run& run) {
  fs::path stem = path;
  if (stem.extension() == ".gz") stem.replace_extension();
  stem.replace_extension();
  for (const char* ending : {".commands", ".facts.json"}) {
    const fs::path sidecar = stem.string() + ending;
    if (!fs::exists(sidecar) || fs::equivalent(sidecar, path)) continue;
    Run part;
    if (ReadFile(sidecar.string(), options, part).empty()) {
      BadInput(BaseName(sidecar.string()) + " beside " + BaseName(path) + " is of no known format");
    }
    Merge(run, std::move(part));
  }
}

}  // namespace

std::vector<std::string> SplitCsv(std::string_view line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"') {
      if (quoted && i + 1 < line.size() && line[i + 1] == '"') {
        cells.back().push_back(line[++i]);
      } else {
        quoted = !quoted;
      }
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
    } else if (c != '\r') {
      cells.back().push_back(c);
    }
  }
  return cells;
}

void AssignPlays(Run& run, const std::vector<std::int32_t>& roots) {
  const std::size_t n = run.requests.size();
  std::vector<std::uint32_t> order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = static_cast<std::uint32_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return run.requests[a].start_ns < run.requests[b].start_ns;
  });
  // A play is one root of one conversation; plays of a conversation are numbered by first start.
  const auto pack = [](std::int32_t conversation, std::int32_t root) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(conversation)) << 32 |
           static_cast<std::uint32_t>(root);
  };
  std::unordered_map<std::uint64_t, std::int32_t> play_of;
  std::unordered_map<std::int32_t, std::int32_t> plays;       // conversation -> number so far
  std::unordered_map<std::int32_t, std::int32_t> root_trace;  // root -> its first conversation
  for (const std::uint32_t i : order) {
    Request& r = run.requests[i];
    const std::int32_t root = roots[i];
    if (root >= 0) root_trace.emplace(root, r.conversation);
    const auto [play, is_new] = play_of.try_emplace(pack(r.conversation, root), 0);
    if (is_new) play->second = plays[r.conversation]++;
    r.ordinal = play->second;
  }
  // A turn repeated inside one play takes the next free ordinal.
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const Request &x = run.requests[a], &y = run.requests[b];
    return std::tie(x.conversation, x.turn, x.ordinal) <
           std::tie(y.conversation, y.turn, y.ordinal);
  });
  for (std::size_t i = 1; i < n; ++i) {
    const Request& before = run.requests[order[i - 1]];
    Request& r = run.requests[order[i]];
    const bool same = r.conversation == before.conversation && r.turn == before.turn;
    if (same && r.ordinal <= before.ordinal) r.ordinal = before.ordinal + 1;
  }
  // Cluster = play of the root trace; its name is the same in both arms. Without roots the
  // conversation (several turns), else none: blocks in time.
  const bool multi_turn = static_cast<double>(plays.size()) * 1.5 < static_cast<double>(n);
  NamePool pool(run);
  std::unordered_map<std::uint64_t, std::int32_t> cluster_of;
  for (std::size_t i = 0; i < n; ++i) {
    Request& r = run.requests[i];
    std::int32_t main = r.conversation, play = r.ordinal;
    if (roots[i] >= 0) {
      main = root_trace[roots[i]];
      play = play_of[pack(main, roots[i])];
    } else if (!multi_turn || run.key != KeyKind::kConversationTurn) {
      continue;
    }
    const auto [cluster, is_new] = cluster_of.try_emplace(pack(main, play), 0);
    if (is_new) {
      std::string trace = run.names[static_cast<std::size_t>(main)];
      trace.resize(std::min(trace.find("::"), trace.size()));
      cluster->second = pool.Index(fmt::format("{}#{}", trace, play));
    }
    r.cluster = cluster->second;
  }
}

Run LoadRun(const std::string& path, const LoadOptions& options) {
  std::string file = path;
  LoadOptions chosen = options;
  // NAME:3 is the third run of a file with several.
  if (const std::size_t colon = path.rfind(':');
      colon != std::string::npos && !fs::exists(path) && colon + 1 < path.size() &&
      path.find_first_not_of("0123456789", colon + 1) == std::string::npos) {
    chosen.line = static_cast<int>(NumberOfText(path.substr(colon + 1)));
    file = path.substr(0, colon);
  }
  if (!fs::exists(file)) BadInput(file + " does not exist");
  Run run;
  if (fs::is_directory(file)) {
    run = LoadBundle(file, chosen);
  } else {
    if (ReadFile(file, chosen, run).empty()) {
      BadInput(BaseName(file) + " is of no format that assay knows (see docs/serving-ab.md)");
    }
    if (!HoldsResults(run)) {
      BadInput(BaseName(file) + " holds no result, only " + run.inputs[0].schema);
    }
    AddSidecars(file, chosen, run);
  }
  run.label = BaseName(file);
  return run;
}

}  // namespace assay::serving
