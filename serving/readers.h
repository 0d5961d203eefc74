// Readers of result files. A file is recognised by its content; a directory is a bundle of the
// files of one run. Every reader throws one sentence with the file name for malformed input.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "serving/run.h"

namespace assay::serving {

struct LoadOptions {
  int line = 0;  // which run of a file with several (1 = first); 0 = there must be only one
  std::map<std::string, std::string> columns;  // our column name -> name in a CSV or JSONL
};

// Reads a file or a bundle, with the sidecars that lie beside it (NAME.commands, NAME.facts.json).
Run LoadRun(const std::string& path, const LoadOptions& options = {});

// --- one function per format; `name` is used in messages -------------------------------------
void ReadAiperfRecords(const std::string& path, Run& run);
void ReadAiperfSummary(const nlohmann::json& document, Run& run);
void ReadAiperfCsv(std::string_view text, const std::string& name, Run& run);
void ReadAiperfServerMetrics(std::string_view text, const std::string& name, Run& run);
void ReadInferenceX(const nlohmann::json& document, const std::string& name, Run& run);
// vllm bench serve (plain or detailed) and one line of sglang bench_serving.
void ReadBenchServing(const nlohmann::json& document, const std::string& name, Run& run);
void ReadGuidellm(const nlohmann::json& document, const std::string& name, int benchmark, Run& run);
void ReadGenaiBench(const nlohmann::json& document, const std::string& name, Run& run);
void ReadGenaiPerf(const nlohmann::json& document, const std::string& name, Run& run);
void ReadInferencePerf(const nlohmann::json& document, const std::string& name, Run& run);
void ReadLlmperf(const nlohmann::json& records, const std::string& name, Run& run);
void ReadLlmperfSummary(const nlohmann::json& document, const std::string& name, Run& run);
void ReadMlperfLog(std::string_view text, const std::string& name, Run& run);

// Our own record form (docs/serving-ab.md), as JSONL or CSV, with the user's column names.
void ReadRecordLines(const std::string& path, const LoadOptions& options, Run& run);
void ReadRecordCsv(const std::string& path, const LoadOptions& options, Run& run);
bool LooksLikeRecordCsv(std::string_view head, const LoadOptions& options);
bool LooksLikeRecordLine(const nlohmann::json& line, const LoadOptions& options);
// {"facts": {...}, "numbers": {...}}: what the result file does not know.
void ReadFacts(const nlohmann::json& document, Run& run);
// Lines of an SGLang or vLLM server log: accept length, KV pool, cache hits.
bool LooksLikeServerLog(std::string_view head);
void ReadServerLog(std::string_view text, Run& run);
// time,sm_clock_mhz samples, for instance of `nvidia-smi --query-gpu=clocks.sm`.
bool LooksLikeClocks(std::string_view head);
void ReadClocks(std::string_view text, const std::string& name, Run& run);

// Ordinals of repeated keys and cluster names, from the root (play) of each request. `roots[i]` is
// a name index or -1, one per request. See section 2 of the format notes in docs/serving-ab.md.
void AssignPlays(Run& run, const std::vector<std::int32_t>& roots);

// Comma-separated fields of a line, double quotes respected.
std::vector<std::string> SplitCsv(std::string_view line);

}  // namespace assay::serving
