// Canonical names of configuration facts, and where they come from besides result files: command
// lines of servers and clients.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serving/run.h"

namespace assay::serving {

// The gate that owns a fact: "G02" for model, "G03" for tp, ...; "G01" for everything unlisted.
std::string_view GateOfFact(const std::string& name);

// Splits a command line as a shell would (quotes and backslashes), without expansion.
std::vector<std::string> SplitCommand(std::string_view text);

// Is this text the command line of a known server or client?
bool LooksLikeCommand(std::string_view text);

// Adds what the flags of a server or client command say. Flags that name places (host, port, url,
// folders) are left out; flags without a canonical name become facts server.FLAG or client.FLAG.
void AddCommandFacts(Run& run, std::string_view text);

// "4.0" and "4" are one value: numbers are printed shortest, True/False lowercased, blanks trimmed.
std::string NormaliseFact(std::string value);

// Numbers of Run::numbers that readers fill when they can:
//   successes errors censored warmup_records records_total records_dropped overflow
//   duration_s input_tokens output_tokens total_tokens_per_s per_gpu_tokens_per_s gpus
//   qps_mean qps_samples server_hit_rate theoretical_hit_rate external_hit_rate kv_pool_tokens
//   server_prompt_tokens server_generation_tokens server_cached_tokens server_external_tokens
//   server_computed_tokens accept_length schedule_delay_s treated_step_share sm_clock_mhz
//   peak_output_tokens_per_s output_tokens_per_s history_primary

}  // namespace assay::serving
