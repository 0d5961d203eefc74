#include "replay/trace_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/sha256.h"
#include "replay/stored_inputs.h"
#include "replay/verify.h"
#include "replay/workload_json.h"

namespace assay {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// By name at every level, as suite files have it: the same text on every way to here.
Json Sorted(const Json& json) { return Json::parse(nlohmann::json::parse(json.dump()).dump()); }

std::string Dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Numbers that JSON cannot hold are texts in this format.
Json Number(double x) {
  if (std::isnan(x)) return "NaN";
  if (std::isinf(x)) return x > 0 ? "Infinity" : "-Infinity";
  return x;
}

// A definition may fix a dimension by a number; the format wants an axis there.
std::string AxisNameOf(const std::string& dimension) {
  const bool number = !dimension.empty() && std::isdigit(static_cast<unsigned char>(dimension[0]));
  return number ? "size_" + dimension : dimension;
}

Json TensorsJson(const std::vector<TensorSpec>& specs, Json& axes) {
  Json tensors = Json::object();
  for (const TensorSpec& spec : specs) {
    Json tensor = Json::object();
    tensor["shape"] = spec.shape.empty() ? Json() : Json::array();
    for (const std::string& dimension : spec.shape) {
      const std::string name = AxisNameOf(dimension);
      if (name != dimension) axes[name] = {{"type", "const"}, {"value", std::stoll(dimension)}};
      tensor["shape"].push_back(name);
    }
    tensor["dtype"] = std::string(DTypeName(spec.dtype));
    if (spec.optional) tensor["optional"] = true;
    tensors[spec.name] = std::move(tensor);
  }
  return tensors;
}

Json DefinitionJson(const Family& family, const Definition& definition) {
  Json axes = Json::object();
  for (const std::string& name : definition.variables) axes[name] = {{"type", "var"}};
  for (const auto& [name, value] : definition.constants) {
    axes[name] = {{"type", "const"}, {"value", value}};
  }
  Json inputs = TensorsJson(family.inputs, axes), outputs = TensorsJson(family.outputs, axes);
  Json json = {
      {"name", definition.name}, {"op_type", family.name}, {"tags", Json::array({"source:assay"})}};
  json["description"] = family.summary;
  json["axes"] = std::move(axes);
  json["inputs"] = std::move(inputs);
  json["outputs"] = std::move(outputs);
  json["reference"] =
      "def run(*inputs):\n    raise NotImplementedError(\n        'the fp64 reference is C++: "
      "ops/" +
      family.name + "/reference.cpp of assay')\n";
  return json;
}

// Writes files below a folder and keeps count of what was there before.
class Folder {
 public:
  explicit Folder(const std::string& root) : root_(root) {
    std::error_code error;
    if (fs::exists(root_, error) &&
        !(fs::is_directory(root_, error) && fs::is_empty(root_, error))) {
      BadInput("'" + root + "' is there already and not an empty folder");
    }
    MakeFolder(root_);
  }

  void Write(const std::string& path, const std::string& text) {
    MakeFolder((fs::path(root_) / path).parent_path());
    WriteFile(root_ + "/" + path, text);
  }
  bool Has(const std::string& path) const { return fs::exists(fs::path(root_) / path); }
  const std::string& root() const { return root_; }

  std::size_t CopyFrom(const std::string& base) {
    const std::vector<std::string> files = TraceFiles(base, "", "");
    for (const std::string& file : files) Copy(fs::path(base) / file, file);
    return files.size();
  }

  void Copy(const fs::path& from, const std::string& path) {
    MakeFolder((fs::path(root_) / path).parent_path());
    std::error_code error;
    fs::copy_file(from, fs::path(root_) / path, error);
    if (error) throw Error(Fault::kDevice, "cannot copy '" + path + "': " + error.message());
  }

  static void MakeFolder(const fs::path& path) {
    std::error_code error;
    fs::create_directories(path, error);
    if (error) BadInput("cannot make folder '" + path.string() + "': " + error.message());
  }

 private:
  const std::string root_;
};

// Names of files: what a name may hold and a path should not becomes '_'.
std::string SafeName(std::string name) {
  for (char& c : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-';
    if (!plain) c = '_';
  }
  return name;
}

std::string SolutionName(const CaseResult& result, const RunInfo& run) {
  return SafeName("assay-" + result.backend + "-" + run.build) + "-" + result.definition;
}

Json SolutionJson(const CaseResult& result, const RunInfo& run) {
  const bool cpu = result.backend.starts_with("cpu");
  const std::string file = cpu ? "backend.cpp" : "backend.cu";
  Json spec = {{"language", cpu ? "cpp" : "cuda"},
               {"target_hardware", Json::array({run.device.empty() ? "unknown" : run.device})},
               {"entry_point", file + "::run"},
               {"dependencies", Json::array()},
               {"destination_passing_style", true}};
  const std::string content =
      "// Backend '" + result.backend + "' of assay, build " + run.build +
      ". The kernel is in assay's own tree: replay it with\n//   assay run --definition " +
      result.definition + " --backend " + result.backend + "\n";
  Json json = {{"name", SolutionName(result, run)},
               {"definition", result.definition},
               {"author", "assay"},
               {"description", "backend '" + result.backend + "'"}};
  json["spec"] = std::move(spec);
  json["sources"] = Json::array({Json{{"path", file}, {"content", content}}});
  return json;
}

// How a status is called there; "" = the format cannot hold it.
std::string TraceStatus(const CaseResult& result, bool unverified) {
  switch (result.status) {
    case Status::kPassed:
      return "PASSED";
    case Status::kSuspicious:
    case Status::kPendingAudit:
      return unverified ? "PASSED" : "";
    case Status::kIncorrect:
      if (result.sub == "shape") return "INCORRECT_SHAPE";
      if (result.sub == "dtype") return "INCORRECT_DTYPE";
      // Writing where one may not is no wrong number.
      if (result.sub == "numerical" || result.sub == "unstable") return "INCORRECT_NUMERICAL";
      return "RUNTIME_ERROR";
    case Status::kFailed:
      return result.sub == "build" ? "COMPILE_ERROR" : "RUNTIME_ERROR";
    case Status::kOom:
    case Status::kUnsupported:
      return "RUNTIME_ERROR";
    case Status::kTimeout:
      return "TIMEOUT";
    case Status::kInvalidReference:
    case Status::kInvalidRecord:
      return "";
  }
  return "";
}

Json CorrectnessJson(const CaseResult& result) {
  double max_abs = 0, max_rel = 0;
  for (const OutputCheck& check : result.correctness.outputs) {
    max_abs = std::max(max_abs, check.max_abs);
    max_rel = std::max(max_rel, check.max_rel);
  }
  Json assay = {{"status", StatusName(result.status)},
                {"grade", result.correctness.grade()},
                {"share_checked", result.correctness.share_checked},
                {"content_sets", result.correctness.content_sets},
                {"input_source", result.input_source},
                {"flags", result.flags},
                {"model", result.model},
                {"phase", result.phase},
                {"request", result.request}};
  Json extra = Json::object();
  if (result.input_source != "blob") {
    extra["generator"] = fmt::format("assay generator version {}", kGeneratorVersion);
  }
  extra["assay"] = std::move(assay);
  return {{"max_relative_error", Number(max_rel)},
          {"max_absolute_error", Number(max_abs)},
          {"extra", std::move(extra)}};
}

Json EvaluationJson(const CaseResult& result, const RunInfo& run, const std::string& status) {
  Json json = {{"status", status},
               {"environment",
                {{"hardware", run.device.empty() ? "unknown" : run.device},
                 {"libs", {{"assay", run.build}, {"compiler", run.compiler}}}}},
               {"timestamp", result.started.empty() ? run.started : result.started},
               {"log", result.reason}};
  if (status == "PASSED" || status == "INCORRECT_NUMERICAL") {
    json["correctness"] = CorrectnessJson(result);
  }
  if (status == "PASSED") {
    // Nothing was timed as their reference: 0 is the format's "not measured".
    const std::vector<TimingSummary> timing = Summarize(result.timing);
    json["performance"] = {{"latency_ms", Headline(timing)->median_ns * 1e-6},
                           {"reference_latency_ms", 0.0},
                           {"speedup_factor", 0.0}};
  }
  return json;
}

Problem ProblemOf(const Family& family, const Workload& workload) {
  return MakeProblem(family, workload.definition, workload.axes, workload.attributes,
                     workload.variant);
}

Json RandomInputs(const Registry& registry, const Workload& workload) {
  Json inputs = Json::object();
  const Family* family = registry.FindDefinition(workload.definition).family;
  if (family == nullptr) return inputs;
  for (const TensorLayout& layout : family->input_layouts(ProblemOf(*family, workload))) {
    inputs[layout.name] = {{"type", "random"}};
  }
  return inputs;
}

// `definition`, `workload`, `solution` and `evaluation` lead; what else is known follows by name.
Json WorkloadJson(const Registry& registry, const Workload& workload) {
  const Json all = Json::parse(ToJson(workload).dump());
  const auto& nested = all.at("workload");
  Json identity = {{"uuid", workload.uuid}, {"axes", nested.at("axes")}};
  const auto at_top = all.find("inputs");  // flat records
  identity["inputs"] = nested.contains("inputs") ? nested.at("inputs")
                       : at_top != all.end()     ? *at_top
                                                 : RandomInputs(registry, workload);
  for (const auto& [key, value] : nested.items()) {
    if (!identity.contains(key)) identity[key] = value;
  }
  Json line = {{"definition", workload.definition}};
  line["workload"] = std::move(identity);
  line["solution"] = nullptr;
  line["evaluation"] = nullptr;
  for (const auto& [key, value] : all.items()) {
    const bool ours = key == "inputs" || key == "dataset";
    if (!ours && !line.contains(key)) line[key] = value;
  }
  return line;
}

// The export of one run, folder by folder.
class Exporter {
 public:
  Exporter(const TraceExport& how, const Registry& registry, const Suite& suite, const RunInfo& run)
      : how_(how), registry_(registry), suite_(suite), run_(run), folder_(how.out) {}

  void CopyBase() {
    if (how_.base.empty()) return;
    if (how_.write_inputs) {
      BadInput("the records of '" + how_.base +
               "' are copied as they are: inputs cannot be written");
    }
    counts_.copied = folder_.CopyFrom(how_.base);
    std::vector<TraceProblem> ignored;
    for (const auto& one : LoadTraceDefinitions(how_.base, ignored)) have_.insert(one.name);
    for (const auto& one : LoadTraceSolutions(how_.base, ignored)) have_.insert("/" + one.name);
  }

  void WriteWorkloads() {
    std::map<std::string, std::string> text_of_file;
    for (const Workload& workload : suite_.workloads) {
      Json line = WorkloadJson(registry_, workload);
      const bool in_base = !how_.base.empty() && workload.dataset == how_.base;
      if (!workload.dataset.empty() && !in_base) CopyBlobs(workload.dataset, line);
      Json& inputs = line["workload"]["inputs"];
      if (how_.write_inputs) StoreInputs(workload, inputs);
      inputs = Sorted(inputs);
      lines_[workload.uuid] = line;
      if (in_base) continue;
      WriteDefinition(workload.definition);
      text_of_file[FileOf("workloads", workload.definition)] += Dump(line) + "\n";
      ++counts_.workloads;
    }
    for (const auto& [file, text] : text_of_file) folder_.Write(file, text);
  }

  void WriteCases(const std::vector<CaseResult>& cases) {
    std::map<std::string, std::string> text_of_file;
    for (const CaseResult& result : cases) {
      const std::string status = TraceStatus(result, how_.unverified);
      const auto line = lines_.find(result.uuid);
      if (status.empty()) {
        LeaveOut(fmt::format("status {} has no place in the format", StatusName(result.status)));
      } else if (status == "PASSED" && Summarize(result.timing).empty()) {
        LeaveOut("passed without a time, which the format demands");
      } else if (line == lines_.end()) {
        LeaveOut("the suite does not have their workloads");
      } else {
        WriteSolution(result);
        Json trace = line->second;
        trace["solution"] = SolutionName(result, run_);
        trace["evaluation"] = EvaluationJson(result, run_, status);
        text_of_file[FileOf("traces", result.definition, "-" + run_.id)] += Dump(trace) + "\n";
        ++counts_.traces;
      }
    }
    for (const auto& [file, text] : text_of_file) folder_.Write(file, text);
  }

  TraceExportCounts Finish() {
    for (const auto& [reason, number] : left_out_) {
      counts_.why.push_back(fmt::format("{}: {}", number, reason));
      counts_.left_out += number;
    }
    return counts_;
  }

 private:
  std::string FileOf(const char* kind, const std::string& definition,
                     const std::string& suffix = "") const {
    const Family* family = registry_.FindDefinition(definition).family;
    const std::string type = family != nullptr ? family->name : "unknown";
    return fmt::format("{}/{}/{}{}.jsonl", kind, SafeName(type), SafeName(definition),
                       SafeName(suffix));
  }

  void WriteDefinition(const std::string& name) {
    const DefinitionRef found = registry_.FindDefinition(name);
    if (found.family == nullptr || !have_.insert(name).second) return;
    folder_.Write(
        fmt::format("definitions/{}/{}.json", SafeName(found.family->name), SafeName(name)),
        Dump(DefinitionJson(*found.family, *found.definition), 2) + "\n");
    ++counts_.definitions;
  }

  void WriteSolution(const CaseResult& result) {
    const std::string name = SolutionName(result, run_);
    if (!have_.insert("/" + name).second) return;
    folder_.Write(fmt::format("solutions/assay/{}/{}.json", SafeName(result.definition), name),
                  Dump(SolutionJson(result, run_), 2) + "\n");
    ++counts_.solutions;
  }

  // Random inputs become files, named by their own SHA-256, and scalars numbers.
  void StoreInputs(const Workload& workload, Json& inputs) {
    const Family* family = registry_.FindDefinition(workload.definition).family;
    const bool random = std::any_of(inputs.begin(), inputs.end(), [](const Json& input) {
      return input.value("type", "") == "random";
    });
    if (family == nullptr || !random) return;
    const Problem problem = ProblemOf(*family, workload);
    Bundle bundle = Bundle::AllocateShared(family->input_layouts(problem));
    const std::string id = workload.content_id.empty() ? workload.uuid : workload.content_id;
    family->generate(problem, ContentKey(id, kGeneratorVersion, static_cast<int>(run_.seed)),
                     bundle);
    for (auto& [name, input] : inputs.items()) {
      const Tensor* tensor = bundle.find(name);
      if (tensor == nullptr || input.value("type", "") != "random") continue;
      input = tensor->shape.empty() ? ScalarJson(*tensor) : StoreTensor(workload, *tensor);
    }
  }

  // The files that a record of another dataset refers to, to the same place. What a run reads must
  // be there; other evidence of the engine is often not published.
  void CopyBlobs(const std::string& dataset, const Json& record, bool needed = false) {
    if (!record.is_structured()) return;
    for (const auto& [key, member] : record.items()) {
      CopyBlobs(dataset, member, needed || key == "inputs" || key == "expected_output");
    }
    if (!record.is_object() || !record.contains("tensor_key") || !record.contains("path")) return;
    const Json& path = record.at("path");
    if (!path.is_string() || folder_.Has(path.get<std::string>())) return;
    if (!needed && !fs::exists(fs::path(dataset) / path.get<std::string>())) return;
    folder_.Copy(TraceBlobPath(dataset, path.get<std::string>()), path.get<std::string>());
    ++counts_.blobs;
  }

  static Json ScalarJson(const Tensor& tensor) {
    const double value = ElementAsDouble(tensor, 0);
    if (IsFloat(tensor.dtype)) return {{"type", "scalar"}, {"value", value}};
    return {{"type", "scalar"}, {"value", static_cast<std::int64_t>(value)}};
  }

  Json StoreTensor(const Workload& workload, const Tensor& tensor) {
    Tensor stored = tensor;
    stored.name = "tensor";
    const std::string prefix = SafetensorsPrefix({&stored, 1});
    const std::span<const std::byte> data(tensor.data, tensor.bytes());
    const std::string digest = Hex(Sha256().Update(prefix).Update(data).Finish());
    const std::string path =
        fmt::format("blob/workloads/{}/{}.safetensors", SafeName(workload.definition), digest);
    if (!folder_.Has(path)) {
      Folder::MakeFolder(fs::path(folder_.root() + "/" + path).parent_path());
      WriteSafetensors(folder_.root() + "/" + path, {&stored, 1});
      ++counts_.blobs;
    }
    return {{"type", "safetensors"}, {"path", path}, {"tensor_key", "tensor"}};
  }

  void LeaveOut(const std::string& reason) { ++left_out_[reason]; }

  const TraceExport& how_;
  const Registry& registry_;
  const Suite& suite_;
  const RunInfo& run_;
  Folder folder_;
  TraceExportCounts counts_;
  std::set<std::string> have_;         // definitions, and solutions behind a '/'
  std::map<std::string, Json> lines_;  // by uuid
  std::map<std::string, std::size_t> left_out_;
};

// What a foreign evaluation is called here.
void ReadStatus(const TraceLine& line, CaseResult& result) {
  const struct {
    const char* theirs;
    Status status;
    const char* sub;
  } table[] = {{"PASSED", Status::kPendingAudit, ""},
               {"INCORRECT_SHAPE", Status::kIncorrect, "shape"},
               {"INCORRECT_DTYPE", Status::kIncorrect, "dtype"},
               {"INCORRECT_NUMERICAL", Status::kIncorrect, "numerical"},
               {"COMPILE_ERROR", Status::kFailed, "build"},
               {"RUNTIME_ERROR", Status::kFailed, "exception"},
               {"TIMEOUT", Status::kTimeout, ""}};
  for (const auto& row : table) {
    if (line.status != row.theirs) continue;
    result.status = row.status;
    result.sub = row.sub;
  }
}

CaseResult ResultOf(const TraceLine& line) {
  CaseResult result;
  result.uuid = line.uuid;
  result.definition = line.definition;
  result.backend = line.solution;
  result.reason = line.log;
  result.started = line.timestamp;
  result.input_source = "recorded";
  ReadStatus(line, result);
  if (line.has_correctness) {
    OutputCheck& check = result.correctness.outputs.emplace_back();
    check.output = "all outputs";
    check.max_abs = line.max_absolute_error;
    check.max_rel = line.max_relative_error;
  }
  if (line.has_performance) {
    result.timing.push_back({"recorded", 0, "count", {line.latency_ms * 1e6}});
  }
  return result;
}

}  // namespace

TraceExportCounts ExportTraces(const TraceExport& how, const Registry& registry, const Suite& suite,
                               const RunInfo& run, const std::vector<CaseResult>& cases) {
  Exporter exporter(how, registry, suite, run);
  exporter.CopyBase();
  exporter.WriteWorkloads();
  exporter.WriteCases(cases);
  return exporter.Finish();
}

std::pair<RunInfo, std::vector<CaseResult>> RunFromTraces(const std::string& root,
                                                          const std::vector<TraceLine>& lines,
                                                          const Registry& registry,
                                                          const Suite& suite) {
  std::map<std::string, const Workload*> by_uuid;
  for (const Workload& workload : suite.workloads) by_uuid[workload.uuid] = &workload;
  RunInfo run;
  std::vector<CaseResult> cases;
  std::string all;  // what makes the run's id the same for the same content
  for (const TraceLine& line : lines) {
    CaseResult result = ResultOf(line);
    if (const Family* family = registry.FindDefinition(line.definition).family) {
      result.family = family->name;
    }
    if (const auto found = by_uuid.find(line.uuid); found != by_uuid.end()) {
      result.axes = found->second->axes;
      result.model = found->second->model;
      result.phase = found->second->phase;
    }
    all +=
        fmt::format("{}\n{}\n{}\n{}\n", line.definition, line.uuid, line.solution, line.timestamp);
    if (run.started.empty() || line.timestamp < run.started) run.started = line.timestamp;
    run.finished = std::max(run.finished, line.timestamp);
    run.device = line.hardware;
    cases.push_back(std::move(result));
  }
  run.id = "recorded-" + Sha256Hex(all).substr(0, 12);
  run.command = "recorded in " + root;
  run.build = "recorded";
  return {run, std::move(cases)};
}

std::string TraceWorkloadLine(const Registry& registry, const Workload& workload) {
  return Dump(WorkloadJson(registry, workload));
}

}  // namespace assay
