// Workloads and suites: which operator calls to replay, read from and written to JSONL.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/registry.h"

namespace assay {

// What the record's own capture tool said about the engine's output.
struct RecordedValidation {
  std::string status;                       // "passed"; "" = none recorded
  std::vector<double> max_absolute_errors;  // per output, against the stored engine output
};

struct Workload {
  std::string uuid, definition;
  Axes axes;              // variable axes as recorded
  Attributes attributes;  // prefix_segments, sequence_lengths, module_path, ...
  std::string variant;    // generator variant; "" = the family's default
  std::string model, phase, request;
  // The uuid whose key makes the inputs; "" = its own. Records with the same engine output share
  // one.
  std::string content_id;
  RecordedValidation validation;
  std::string extra;    // every field we do not interpret, as one JSON object text; "" = none
  std::string dataset;  // folder that `inputs` among these fields refers to; "" = all is generated
};

// A line that could not be used. Loading goes on with the next one.
struct SuiteProblem {
  std::string file;
  std::int64_t line = 0, column = 0;  // from 1; column 0 = the whole line
  std::string message;                // one sentence
};

struct Suite {
  std::string name;
  std::vector<Workload> workloads;
  std::vector<SuiteProblem> problems;
};

// Reads flat lines (as captured) and nested ones ({definition, workload: {...}}). Malformed lines,
// duplicate uuids and bad axes become `problems`; a definition that no family of `registry` has is
// kept (the runner lists it as unsupported). Throws kInput only when the file cannot be read.
Suite LoadSuite(const std::string& path, const Registry& registry);

// Our compact nested lines, sorted keys, one workload a line; throws kInput when unwritable.
void WriteSuite(const std::string& path, const std::vector<Workload>& workloads);

std::string WorkloadToJson(const Workload& workload);  // one line, no newline
Workload WorkloadFromJson(std::string_view json);      // throws kInput with the column

// Seed of all generated inputs: the first 8 bytes, little-endian, of SHA-256("id/version/set").
std::uint64_t ContentKey(std::string_view content_id, int generator_version, int content_set);
inline constexpr int kGeneratorVersion = 1;

// Path of a built-in suite ("smoke", "serving", "step", "worldmodel") or `name` itself when it is a
// file.
std::string SuitePath(const std::string& name);
std::vector<std::string> BuiltInSuites();

}  // namespace assay
