#include "serving/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <set>

#include "serving/json_lines.h"

namespace assay::serving {
namespace {

struct FactGate {
  std::string_view fact, gate;
};

// The rule column of the gate table: which gate a differing fact belongs to.
constexpr FactGate kFactGates[] = {
    {"model", "G02"},
    {"model_revision", "G02"},
    {"precision", "G02"},
    {"quantization", "G02"},
    {"dtype", "G02"},
    {"gpu", "G03"},
    {"gpu_form_factor", "G03"},
    {"gpu_count", "G03"},
    {"node_type", "G03"},
    {"node_count", "G03"},
    {"tp", "G03"},
    {"ep", "G03"},
    {"pp", "G03"},
    {"dp", "G03"},
    {"pcp", "G03"},
    {"dcp", "G03"},
    {"dp_attention", "G03"},
    {"power_cap_w", "G03"},
    {"image", "G04"},
    {"commit", "G04"},
    {"patches", "G04"},
    {"framework", "G04"},
    {"framework_version", "G04"},
    {"spec_method", "G05"},
    {"spec_depth", "G05"},
    {"spec_topk", "G05"},
    {"accept_length_simulated", "G05"},
    {"dataset", "G06"},
    {"dataset_revision", "G06"},
    {"dataset_entries", "G06"},
    {"seed", "G06"},
    {"start_min_ratio", "G06"},
    {"start_max_ratio", "G06"},
    {"idle_cap_s", "G06"},
    {"input_length", "G06"},
    {"output_length", "G06"},
    {"length_range_ratio", "G06"},
    {"concurrency", "G07"},
    {"request_rate", "G07"},
    {"burstiness", "G07"},
    {"max_running", "G07"},
    {"window_s", "G07"},
    {"warmup_requests", "G07"},
    {"num_prompts", "G07"},
    {"client", "G08"},
    {"client_version", "G08"},
    {"token_source", "G08"},
    {"stream_interval", "G08"},
    {"endpoint", "G08"},
    {"ignore_eos", "G09"},
};

struct Flag {
  std::string_view flag, fact;
};

// Flags of vllm serve, sglang.launch_server, aiperf profile, vllm bench serve, bench_serving.
constexpr Flag kServerFlags[] = {
    {"model", "model"},
    {"model-path", "model"},
    {"revision", "model_revision"},
    {"tensor-parallel-size", "tp"},
    {"tp-size", "tp"},
    {"tp", "tp"},
    {"pipeline-parallel-size", "pp"},
    {"pp-size", "pp"},
    {"data-parallel-size", "dp"},
    {"dp-size", "dp"},
    {"ep-size", "ep"},
    {"max-num-seqs", "max_running"},
    {"max-running-requests", "max_running"},
    {"quantization", "quantization"},
    {"dtype", "dtype"},
    {"speculative-algorithm", "spec_method"},
    {"speculative-num-steps", "spec_depth"},
    {"speculative-eagle-topk", "spec_topk"},
    {"stream-interval", "stream_interval"},
};
constexpr Flag kClientFlags[] = {
    {"model", "model"},
    {"m", "model"},
    {"concurrency", "concurrency"},
    {"max-concurrency", "concurrency"},
    {"request-rate", "request_rate"},
    {"burstiness", "burstiness"},
    {"benchmark-duration", "window_s"},
    {"random-seed", "seed"},
    {"seed", "seed"},
    {"num-prompts", "num_prompts"},
    {"num-requests", "num_prompts"},
    {"public-dataset", "dataset"},
    {"dataset-name", "dataset"},
    {"num-dataset-entries", "dataset_entries"},
    {"trajectory-start-min-ratio", "start_min_ratio"},
    {"trajectory-start-max-ratio", "start_max_ratio"},
    {"warmup-request-count", "warmup_requests"},
    {"endpoint", "endpoint"},
    {"random-input-len", "input_length"},
    {"random-output-len", "output_length"},
    {"random-range-ratio", "length_range_ratio"},
    {"osl", "output_length"},
    {"isl", "input_length"},
    {"ignore-eos", "ignore_eos"},
};

// Places and cosmetics: they differ between any two runs and change nothing that is measured.
const std::set<std::string_view> kIgnoredFlags = {
    "host",         "port",          "url",           "u",          "base-url",
    "result-dir",   "save-result",   "save-detailed", "output-dir", "result-filename",
    "output-file",  "dataset-path",  "log-level",     "api-key",    "output-artifact-dir",
    "http-host",    "http-port",     "artifact-dir",  "tokenizer",  "tokenizer-trust-remote-code",
    "disable-tqdm", "endpoint-type", "backend",       "tag",        "served-model-name",
    "metadata"};

enum class Role { kServer, kClient, kCacheTier, kUnknown };

Role RoleOf(std::string_view text) {
  for (std::string_view sign :
       {"aiperf profile", "benchmark_serving", "bench serve", "bench_serving", "guidellm",
        "genai-bench", "genai-perf", "inference-perf"}) {
    if (text.find(sign) != std::string_view::npos) return Role::kClient;
  }
  for (std::string_view sign :
       {"vllm serve", "vllm.entrypoints", "sglang.launch_server", "sglang serve", "trtllm-serve"}) {
    if (text.find(sign) != std::string_view::npos) return Role::kServer;
  }
  if (text.find("lmcache server") != std::string_view::npos) return Role::kCacheTier;
  return Role::kUnknown;
}

std::string CanonicalName(Role role, std::string_view flag) {
  if (role == Role::kServer) {
    for (const Flag& known : kServerFlags) {
      if (known.flag == flag) return std::string(known.fact);
    }
    return "server." + std::string(flag);
  }
  if (role == Role::kClient) {
    for (const Flag& known : kClientFlags) {
      if (known.flag == flag) return std::string(known.fact);
    }
    return "client." + std::string(flag);
  }
  return "cache_tier." + std::string(flag);
}

}  // namespace

std::string_view GateOfFact(const std::string& name) {
  for (const FactGate& entry : kFactGates) {
    if (entry.fact == name) return entry.gate;
  }
  return "G01";
}

std::vector<std::string> SplitCommand(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool open = false;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        word.push_back(c);
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      open = true;
    } else if (c == '\\' && i + 1 < text.size()) {
      if (text[i + 1] != '\n') {
        word.push_back(text[i + 1]);
        open = true;
      }
      ++i;
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      if (open) words.push_back(word);
      word.clear();
      open = false;
    } else {
      word.push_back(c);
      open = true;
    }
  }
  if (open) words.push_back(word);
  return words;
}

bool LooksLikeCommand(std::string_view text) { return RoleOf(text) != Role::kUnknown; }

void AddCommandFacts(Run& run, std::string_view text) {
  const Role role = RoleOf(text);
  if (role == Role::kUnknown) return;
  const std::vector<std::string> words = SplitCommand(text);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "serve" && i > 0 && words[i - 1].ends_with("vllm") && i + 1 < words.size() &&
        !words[i + 1].starts_with("-")) {
      run.AddFact("model", words[i + 1]);
    }
    if (!word.starts_with("-") || NumberOfText(word) == NumberOfText(word)) continue;
    std::string flag = word.substr(word.find_first_not_of('-'));
    std::string value = "true";
    if (const std::size_t equals = flag.find('='); equals != std::string::npos) {
      value = flag.substr(equals + 1);
      flag.resize(equals);
    } else if (i + 1 < words.size() &&
               (!words[i + 1].starts_with("-") || !std::isnan(NumberOfText(words[i + 1])))) {
      value = words[++i];
    }
    std::replace(flag.begin(), flag.end(), '_', '-');
    if (kIgnoredFlags.contains(flag)) continue;
    if (role == Role::kClient && flag == "use-server-token-count") {
      run.AddFact("token_source", "server");
      continue;
    }
    run.AddFact(CanonicalName(role, flag), NormaliseFact(value));
  }
}

std::string NormaliseFact(std::string value) {
  while (!value.empty() && std::isspace(static_cast<unsigned char>(value.back())) != 0) {
    value.pop_back();
  }
  const std::size_t begin = value.find_first_not_of(" \t\n");
  if (begin == std::string::npos) return "";
  value.erase(0, begin);
  if (value == "True" || value == "true") return "true";
  if (value == "False" || value == "false") return "false";
  if (value == "Infinity") return "inf";
  const double number = NumberOfText(value);
  // A commit such as 1e10 or 0012 must stay text: only plain decimal forms are numbers here.
  const bool plain = value.find_first_not_of("0123456789.-") == std::string::npos &&
                     !(value.size() > 1 && value[0] == '0' && value[1] != '.') && value.size() < 16;
  if (plain && std::isfinite(number)) return fmt::format("{}", number);
  return value;
}

}  // namespace assay::serving
