#include "io/trace_dataset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/sha256.h"

namespace assay {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;  // the order of inputs and outputs is the order of arguments

constexpr std::array<std::string_view, 7> kStatuses = {
    "PASSED",        "INCORRECT_SHAPE", "INCORRECT_NUMERICAL", "INCORRECT_DTYPE", "RUNTIME_ERROR",
    "COMPILE_ERROR", "TIMEOUT"};
constexpr std::array<std::string_view, 5> kLanguages = {"python", "triton", "cpp", "cuda",
                                                        "tilelang"};

Json ParseOrdered(std::string_view text) {
  const nlohmann::json checked = ParseJson(text);  // columns, duplicate keys, depth
  if (!checked.is_object()) BadInput("the text is not a JSON object");
  return Json::parse(text);
}

const Json* Find(const Json& object, const char* key) {
  const auto member = object.find(key);
  return member == object.end() || member->is_null() ? nullptr : &*member;
}

const Json& ObjectAt(const Json& object, const char* key) {
  const Json* member = Find(object, key);
  if (member == nullptr || !member->is_object()) {
    BadInput(std::string("'") + key + "' is not an object");
  }
  return *member;
}

std::string TextOr(const Json& object, const char* key, const std::string& fallback) {
  const Json* member = Find(object, key);
  if (member == nullptr) return fallback;
  if (!member->is_string()) BadInput(std::string("'") + key + "' is not a text");
  return member->get<std::string>();
}

std::string TextAt(const Json& object, const char* key) {
  std::string text = TextOr(object, key, "");
  if (text.empty()) BadInput(std::string("there is no '") + key + "'");
  return text;
}

std::vector<std::string> TextsOr(const Json& object, const char* key) {
  std::vector<std::string> texts;
  const Json* member = Find(object, key);
  if (member == nullptr) return texts;
  if (!member->is_array()) BadInput(std::string("'") + key + "' is not a list of texts");
  for (const Json& item : *member) {
    if (!item.is_string()) BadInput(std::string("'") + key + "' is not a list of texts");
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

TraceAxis ParseAxis(const std::string& name, const Json& json) {
  if (!json.is_object()) BadInput("axis '" + name + "' is not an object");
  const std::string type = TextAt(json, "type");
  if (type == "var") return {name, std::nullopt};
  if (type != "const") BadInput("axis '" + name + "' has the unknown type '" + type + "'");
  const Json* value = Find(json, "value");
  if (value == nullptr || !value->is_number_integer() || value->get<std::int64_t>() < 0) {
    BadInput("const axis '" + name + "' has no value that is a non-negative integer");
  }
  return {name, value->get<std::int64_t>()};
}

DType ParseTensorDType(const std::string& tensor, const std::string& name) {
  if (name == "float8_e4m3") return DType::kE4M3;  // its name in older files
  const auto dtype = ParseDType(name);
  if (!dtype) BadInput("tensor '" + tensor + "' has the unknown dtype '" + name + "'");
  return *dtype;
}

TraceTensor ParseTensor(const std::string& name, const Json& json, const TraceDefinition& owner) {
  if (!json.is_object()) BadInput("tensor '" + name + "' is not an object");
  TraceTensor tensor;
  tensor.name = name;
  tensor.dtype = ParseTensorDType(name, TextAt(json, "dtype"));
  const Json* optional = Find(json, "optional");
  tensor.optional = optional != nullptr && optional->is_boolean() && optional->get<bool>();
  if (!json.contains("shape")) BadInput("tensor '" + name + "' has no 'shape'");
  tensor.shape = TextsOr(json, "shape");
  for (const std::string& axis : tensor.shape) {
    const auto known = std::find_if(owner.axes.begin(), owner.axes.end(),
                                    [&](const TraceAxis& a) { return a.name == axis; });
    if (known == owner.axes.end()) {
      BadInput("tensor '" + name + "' uses axis '" + axis + "', which is not declared");
    }
  }
  return tensor;
}

// Numbers may be the strings "Infinity", "-Infinity" and "NaN".
double NumberOr(const Json& object, const char* key, double fallback) {
  const Json* member = Find(object, key);
  if (member == nullptr) return fallback;
  if (member->is_number()) return member->get<double>();
  const std::string text = member->is_string() ? member->get<std::string>() : "";
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (text == "NaN") return std::nan("");
  BadInput(std::string("'") + key + "' is not a number");
}

// The format's own rule on what goes with which status.
void CheckEvaluation(const TraceLine& line) {
  const auto require = [&](bool present, bool wanted, const char* what) {
    if (present == wanted) return;
    BadInput("status " + line.status + (wanted ? " needs '" : " may not have '") + what + "'");
  };
  const bool passed = line.status == "PASSED";
  require(line.has_correctness, passed || line.status == "INCORRECT_NUMERICAL", "correctness");
  require(line.has_performance, passed, "performance");
  if (line.latency_ms < 0) BadInput("latency_ms is negative");
}

void ReadEvaluation(const Json& evaluation, TraceLine& line) {
  line.status = TextAt(evaluation, "status");
  if (std::find(kStatuses.begin(), kStatuses.end(), line.status) == kStatuses.end()) {
    BadInput("unknown evaluation status '" + line.status + "'");
  }
  line.hardware = TextAt(ObjectAt(evaluation, "environment"), "hardware");
  line.timestamp = TextAt(evaluation, "timestamp");
  line.log = TextOr(evaluation, "log", "");
  if (Find(evaluation, "correctness") != nullptr) {
    const Json& correctness = ObjectAt(evaluation, "correctness");
    line.has_correctness = true;
    line.max_relative_error = NumberOr(correctness, "max_relative_error", 0);
    line.max_absolute_error = NumberOr(correctness, "max_absolute_error", 0);
  }
  if (Find(evaluation, "performance") != nullptr) {
    line.has_performance = true;
    line.latency_ms = NumberOr(ObjectAt(evaluation, "performance"), "latency_ms", 0);
  }
  CheckEvaluation(line);
}

// Calls `read` and turns what it throws into a problem of that place.
void Guarded(const std::string& file, std::int64_t line, std::vector<TraceProblem>& problems,
             const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    problems.push_back({file, line, error.what()});
  } catch (const nlohmann::json::exception& error) {
    problems.push_back(
        {file, line, std::string("a field has an unexpected form: ") + error.what()});
  }
}

// One object per file, names unique.
template <class Object, class Parse>
std::vector<Object> LoadObjects(const std::string& root, const std::string& folder,
                                const Parse& parse, std::vector<TraceProblem>& problems) {
  std::vector<Object> objects;
  std::map<std::string, std::string> file_of;
  for (const std::string& file : TraceFiles(root, folder, ".json")) {
    Guarded(file, 0, problems, [&] {
      Object object = parse(ReadFile(root + "/" + file));
      const auto [first, added] = file_of.emplace(object.name, file);
      if (!added) BadInput("the name '" + object.name + "' is taken by " + first->second);
      objects.push_back(std::move(object));
    });
  }
  return objects;
}

}  // namespace

std::string TraceSolution::Identity() const {
  std::string all = definition + language + entry_point + binding;
  for (const std::string& dependency : dependencies) all += dependency;
  for (const auto& [path, content] : sources) all += path + content;
  return Sha1Hex(all);
}

TraceDefinition ParseTraceDefinition(std::string_view text) {
  const Json json = ParseOrdered(text);
  TraceDefinition definition;
  definition.name = TextAt(json, "name");
  definition.op_type = TextOr(json, "op_type", TextOr(json, "type", ""));  // `type` in older files
  if (definition.op_type.empty()) BadInput("there is no 'op_type'");
  for (const auto& [name, axis] : ObjectAt(json, "axes").items()) {
    definition.axes.push_back(ParseAxis(name, axis));
  }
  for (const auto& [name, tensor] : ObjectAt(json, "inputs").items()) {
    definition.inputs.push_back(ParseTensor(name, tensor, definition));
  }
  for (const auto& [name, tensor] : ObjectAt(json, "outputs").items()) {
    definition.outputs.push_back(ParseTensor(name, tensor, definition));
  }
  if (definition.outputs.empty()) BadInput("there is no output");
  if (TextAt(json, "reference").find("def run") == std::string::npos) {
    BadInput("'reference' defines no function 'run'");
  }
  definition.constraints = TextsOr(json, "constraints");
  return definition;
}

TraceSolution ParseTraceSolution(std::string_view text) {
  const Json json = ParseOrdered(text);
  TraceSolution solution;
  solution.name = TextAt(json, "name");
  solution.definition = TextAt(json, "definition");
  solution.author = TextAt(json, "author");
  const Json& spec = ObjectAt(json, "spec");
  solution.language = TextAt(spec, "language");
  if (std::find(kLanguages.begin(), kLanguages.end(), solution.language) == kLanguages.end()) {
    BadInput("unknown language '" + solution.language + "'");
  }
  if (TextsOr(spec, "target_hardware").empty()) BadInput("'target_hardware' names nothing");
  solution.entry_point = TextAt(spec, "entry_point");
  solution.binding = TextOr(spec, "binding", "");
  solution.dependencies = TextsOr(spec, "dependencies");
  const Json* sources = Find(json, "sources");
  if (sources == nullptr || !sources->is_array()) BadInput("'sources' is not a list");
  for (const Json& source : *sources) {
    if (!source.is_object()) BadInput("'sources' is not a list of objects");
    solution.sources.emplace_back(TextAt(source, "path"), TextOr(source, "content", ""));
  }
  const std::string entry = solution.entry_point.substr(0, solution.entry_point.find("::"));
  if (entry.size() == solution.entry_point.size()) {
    BadInput("entry_point '" + solution.entry_point + "' is not of the form file::function");
  }
  const bool found = std::any_of(solution.sources.begin(), solution.sources.end(),
                                 [&](const auto& source) { return source.first == entry; });
  if (!found) BadInput("the entry point's file '" + entry + "' is not among the sources");
  return solution;
}

std::optional<TraceLine> ParseTraceLine(std::string_view text) {
  const Json json = ParseOrdered(text);
  if (Find(json, "solution") == nullptr && Find(json, "evaluation") == nullptr) return std::nullopt;
  TraceLine line;
  line.definition = TextAt(json, "definition");
  line.uuid = TextAt(ObjectAt(json, "workload"), "uuid");
  line.solution = TextAt(json, "solution");
  ReadEvaluation(ObjectAt(json, "evaluation"), line);
  return line;
}

std::vector<std::string> TraceFiles(const std::string& root, const std::string& folder,
                                    const std::string& ending) {
  std::error_code error;
  if (!fs::is_directory(root, error)) BadInput("dataset '" + root + "' is not a folder");
  const fs::path start = fs::path(root) / folder;
  std::vector<std::string> files;
  if (!fs::is_directory(start, error)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(start)) {
    const std::string path = entry.path().lexically_relative(root).generic_string();
    if (entry.is_regular_file() && path.ends_with(ending)) files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<TraceDefinition> LoadTraceDefinitions(const std::string& root,
                                                  std::vector<TraceProblem>& problems) {
  return LoadObjects<TraceDefinition>(root, "definitions", ParseTraceDefinition, problems);
}

std::vector<TraceSolution> LoadTraceSolutions(const std::string& root,
                                              std::vector<TraceProblem>& problems) {
  return LoadObjects<TraceSolution>(root, "solutions", ParseTraceSolution, problems);
}

std::vector<TraceLine> LoadTraceLines(const std::string& root,
                                      std::vector<TraceProblem>& problems) {
  std::vector<TraceLine> lines;
  for (const std::string& file : TraceFiles(root, "traces", ".jsonl")) {
    const std::string content = ReadFile(root + "/" + file);
    std::string_view rest = content;
    for (std::int64_t number = 1; !rest.empty(); ++number) {
      const std::string_view text = rest.substr(0, rest.find('\n'));
      if (text.find_first_not_of(" \t\r") != std::string_view::npos) {
        Guarded(file, number, problems, [&] {
          if (auto line = ParseTraceLine(text)) lines.push_back(std::move(*line));
        });
      }
      rest.remove_prefix(std::min(rest.size(), text.size() + 1));
    }
  }
  return lines;
}

std::string TraceBlobPath(const std::string& root, const std::string& path) {
  const auto refuse = [&](const char* why) { BadInput("blob path '" + path + "' " + why); };
  const fs::path relative(path);
  if (path.find('\0') != std::string::npos) BadInput("a blob path holds a zero byte");
  if (path.empty()) refuse("is empty");
  if (relative.is_absolute()) refuse("is absolute; it must be relative to the dataset");
  if (std::find(relative.begin(), relative.end(), "..") != relative.end()) {
    refuse("leads out of the dataset by '..'");
  }
  std::error_code error;
  const fs::path base = fs::canonical(root, error);
  const fs::path full = fs::canonical(base / relative, error);
  if (error) refuse("names no file of the dataset");
  const auto inside = std::mismatch(base.begin(), base.end(), full.begin(), full.end());
  if (inside.first != base.end()) refuse("is a link out of the dataset");
  return full.string();
}

}  // namespace assay
