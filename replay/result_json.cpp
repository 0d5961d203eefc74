// The JSON form of results, runs and ceilings; see ledger.h for what is promised.
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json.h"
#include "replay/clock_json.h"
#include "replay/ledger.h"
#include "replay/ledger_store.h"

namespace assay {
namespace {

// Keys in the order of insertion: "type" must come first so that readers can skip lines unparsed.
using Json = nlohmann::ordered_json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Json Number(double x) {
  if (std::isnan(x)) return "NaN";
  if (std::isinf(x)) return x > 0 ? "Infinity" : "-Infinity";
  return x;
}

double ToNumber(const Json& json) {
  if (!json.is_string()) return json.get<double>();
  const auto& text = json.get_ref<const std::string&>();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (text == "Infinity") return kInfinity;
  if (text == "-Infinity") return -kInfinity;
  BadInput("a result holds \"" + text + "\" where a number belongs");
}

// Text that came from a crashed worker may be no UTF-8; a replacement character beats an abort.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void Read(const Json& json, const char* key, double& value) {
  if (const auto it = json.find(key); it != json.end()) value = ToNumber(*it);
}

void Read(const Json& json, const char* key, std::vector<std::int64_t>& values) {
  const auto it = json.find(key);
  if (it == json.end()) return;
  if (!it->is_array()) BadInput(std::string("'") + key + "' is no list of integers");
  values.clear();
  for (const Json& value : *it) values.push_back(ToInteger<std::int64_t>(value, key));
}

template <class T>
void Read(const Json& json, const char* key, T& value) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    value = IntegerOr(json, key, value);
  } else if (const auto it = json.find(key); it != json.end()) {
    it->get_to(value);
  }
}

template <class T>
void ReadOptional(const Json& json, const char* key, std::optional<T>& value) {
  if (const auto it = json.find(key); it != json.end()) value = it->template get<T>();
}

Json Header(const char* type) { return {{"type", type}, {"schema", kLedgerVersion}}; }

// Checks type and version of a line and lets `fill` read it; every complaint of the JSON library
// becomes one kInput sentence.
template <class Result, class Fill>
Result FromLine(const Json& json, const char* type, const Fill& fill) {
  try {
    if (!json.is_object() || json.value("type", "") != type) {
      BadInput(std::string("expected a JSON object with \"type\":\"") + type + "\"");
    }
    if (const int version = IntegerOr(json, "schema", 0); version > kLedgerVersion) {
      BadInput(NewerVersionMessage(std::string("a ") + type + " line", version));
    }
    Result result;
    fill(json, result);
    return result;
  } catch (const nlohmann::json::exception& problem) {
    BadInput(std::string("a ") + type + " line is malformed: " + problem.what());
  }
}

Json ParseLine(std::string_view text) {
  try {
    return Json::parse(text);
  } catch (const nlohmann::json::exception& problem) {
    BadInput(std::string("a result line is not JSON: ") + problem.what());
  }
}

Json AxesJson(const Axes& axes) {
  Json json = Json::object();
  for (const auto& [name, value] : axes) json[name] = value;
  return json;
}

void ReadAxes(const Json& json, Axes& axes) {
  for (const auto& [name, value] : json.items()) axes[name] = ToInteger<std::int64_t>(value, name);
}

Json CheckJson(const OutputCheck& check) {
  return {{"output", check.output},
          {"grade", check.grade},
          {"rows_checked", check.rows_checked},
          {"rows_total", check.rows_total},
          {"mismatches", check.mismatches},
          {"max_abs", Number(check.max_abs)},
          {"rel_l2", Number(check.max_rel_l2)},
          {"max_rel", Number(check.max_rel)},
          {"budget_used", Number(check.budget_used)},
          {"worst",
           {{"index", check.worst.index},
            {"got", Number(check.worst.got)},
            {"expected", Number(check.worst.expected)},
            {"allowed", Number(check.worst.allowed)}}},
          {"problem", check.problem}};
}

OutputCheck CheckFromJson(const Json& json) {
  OutputCheck check;
  Read(json, "output", check.output);
  Read(json, "grade", check.grade);
  Read(json, "rows_checked", check.rows_checked);
  Read(json, "rows_total", check.rows_total);
  Read(json, "mismatches", check.mismatches);
  Read(json, "max_abs", check.max_abs);
  Read(json, "rel_l2", check.max_rel_l2);
  Read(json, "max_rel", check.max_rel);
  Read(json, "budget_used", check.budget_used);
  Read(json, "problem", check.problem);
  if (const auto worst = json.find("worst"); worst != json.end()) {
    Read(*worst, "index", check.worst.index);
    Read(*worst, "got", check.worst.got);
    Read(*worst, "expected", check.worst.expected);
    Read(*worst, "allowed", check.worst.allowed);
  }
  return check;
}

Json CorrectnessJson(const Correctness& correctness) {
  Json outputs = Json::array(), findings = Json::array();
  for (const OutputCheck& check : correctness.outputs) outputs.push_back(CheckJson(check));
  for (const Finding& finding : correctness.findings) {
    findings.push_back({{"name", finding.name},
                        {"passed", finding.passed},
                        {"measured", Number(finding.measured)},
                        {"limit", Number(finding.limit)},
                        {"detail", finding.detail}});
  }
  return {{"grade", correctness.grade()},
          {"content_sets", correctness.content_sets},
          {"share_checked", Number(correctness.share_checked)},
          {"outputs", std::move(outputs)},
          {"findings", std::move(findings)}};
}

void ReadCorrectness(const Json& json, Correctness& correctness) {
  Read(json, "content_sets", correctness.content_sets);
  Read(json, "share_checked", correctness.share_checked);
  for (const Json& check : json.value("outputs", Json::array())) {
    correctness.outputs.push_back(CheckFromJson(check));
  }
  for (const Json& item : json.value("findings", Json::array())) {
    Finding& finding = correctness.findings.emplace_back();
    Read(item, "name", finding.name);
    Read(item, "passed", finding.passed);
    Read(item, "measured", finding.measured);
    Read(item, "limit", finding.limit);
    Read(item, "detail", finding.detail);
  }
}

Json EngineJson(const std::vector<EngineError>& errors) {
  Json list = Json::array();
  for (const EngineError& error : errors) {
    list.push_back({{"output", error.output},
                    {"max_abs", Number(error.max_abs)},
                    {"max_rel", Number(error.max_rel)},
                    {"rel_l2", Number(error.rel_l2)},
                    {"differing", error.differing},
                    {"elements", error.elements}});
  }
  return list;
}

void ReadEngine(const Json& json, std::vector<EngineError>& errors) {
  for (const Json& item : json) {
    EngineError& error = errors.emplace_back();
    Read(item, "output", error.output);
    Read(item, "max_abs", error.max_abs);
    Read(item, "max_rel", error.max_rel);
    Read(item, "rel_l2", error.rel_l2);
    Read(item, "differing", error.differing);
    Read(item, "elements", error.elements);
  }
}

Json SummaryJson(const TimingSummary& summary) {
  Json json = {{"mode", summary.mode},
               {"repeats", summary.repeats},
               {"n", summary.samples},
               {"median_ns", summary.median_ns},
               {"ci_ns", {summary.ci_low_ns, summary.ci_high_ns}},
               {"spread", summary.spread},
               {"min_ns", summary.min_ns},
               {"max_ns", summary.max_ns},
               {"mean_ns", summary.mean_ns}};
  if (summary.p90_ns) json["p90_ns"] = *summary.p90_ns;
  if (summary.p95_ns) json["p95_ns"] = *summary.p95_ns;
  if (summary.p99_ns) json["p99_ns"] = *summary.p99_ns;
  json["noisy"] = summary.noisy;
  return json;
}

Json SeriesJson(const TimingSeries& series, bool with_samples) {
  Json json = {{"mode", series.mode}, {"repeat", series.repeat}, {"stop", series.stop}};
  if (with_samples) json["ns"] = series.samples_ns;
  return json;
}

TimingSeries SeriesFromJson(const Json& json) {
  TimingSeries series;
  Read(json, "mode", series.mode);
  Read(json, "repeat", series.repeat);
  Read(json, "stop", series.stop);
  Read(json, "ns", series.samples_ns);
  return series;
}

Json ClockJson(const ClockSample& sample) {
  Json json = {{"repeat", sample.repeat}};
  ClocksToFields(sample, json);
  return json;
}

ClockSample ClockFromJson(const Json& json) {
  ClockSample sample;
  Read(json, "repeat", sample.repeat);
  ClocksFromFields(json, sample);
  return sample;
}

Json CaseJson(const CaseResult& result, const std::string& run_id, bool with_samples) {
  Json hashes = Json::object(), timing = Json::array(), samples = Json::array();
  for (const auto& [tensor, hash] : result.input_hashes) hashes[tensor] = hash;
  for (const TimingSummary& summary : Summarize(result.timing)) {
    timing.push_back(SummaryJson(summary));
  }
  for (const TimingSeries& series : result.timing) {
    samples.push_back(SeriesJson(series, with_samples));
  }
  Json json = Header("case");
  json["run"] = run_id;
  json["uuid"] = result.uuid;
  json["definition"] = result.definition;
  json["family"] = result.family;
  json["axes"] = AxesJson(result.axes);
  json["backend"] = {{"name", result.backend}, {"device", result.device}};
  json["status"] = StatusName(result.status);
  json["sub"] = result.sub;
  json["reason"] = result.reason;
  json["flags"] = result.flags;
  if (!result.notes.empty()) json["notes"] = result.notes;
  json["model"] = result.model;
  json["phase"] = result.phase;
  json["request"] = result.request;
  json["input_source"] = result.input_source;
  json["input_hashes"] = std::move(hashes);
  json["correctness"] = CorrectnessJson(result.correctness);
  if (!result.engine.empty()) json["engine_correctness"] = EngineJson(result.engine);
  json["timing"] = std::move(timing);
  json["floor"] = {{"flops", result.floor.flops},
                   {"bytes", result.floor.bytes},
                   {"ns", result.floor.ns},
                   {"bound", result.floor.bound}};
  for (const ClockSample& sample : result.clocks) json["clocks"].push_back(ClockJson(sample));
  json["setup_ms"] = result.setup_ms;
  json["overhead_ms"] = result.overhead_ms;
  json["peak_bytes"] = result.peak_bytes;
  json["started"] = result.started;
  json["seconds"] = result.seconds;
  json["samples"] = std::move(samples);
  return json;
}

void ReadCase(const Json& json, CaseResult& result) {
  Read(json, "uuid", result.uuid);
  Read(json, "definition", result.definition);
  Read(json, "family", result.family);
  ReadAxes(json.value("axes", Json::object()), result.axes);
  result.backend = json.at("backend").at("name").get<std::string>();
  Read(json.at("backend"), "device", result.device);
  const auto status = json.at("status").get<std::string>();
  if (!ParseStatus(status)) BadInput("a case line has the unknown status '" + status + "'");
  result.status = *ParseStatus(status);
  Read(json, "sub", result.sub);
  Read(json, "reason", result.reason);
  Read(json, "flags", result.flags);
  Read(json, "notes", result.notes);
  Read(json, "model", result.model);
  Read(json, "phase", result.phase);
  Read(json, "request", result.request);
  Read(json, "input_source", result.input_source);
  const Json hashes = json.value("input_hashes", Json::object());
  for (const auto& [tensor, hash] : hashes.items()) {
    result.input_hashes.emplace_back(tensor, hash.get<std::string>());
  }
  ReadCorrectness(json.value("correctness", Json::object()), result.correctness);
  ReadEngine(json.value("engine_correctness", Json::array()), result.engine);
  for (const Json& series : json.value("samples", Json::array())) {
    result.timing.push_back(SeriesFromJson(series));
  }
  for (const Json& sample : json.value("clocks", Json::array())) {
    result.clocks.push_back(ClockFromJson(sample));
  }
  const Json floor = json.value("floor", Json::object());
  Read(floor, "flops", result.floor.flops);
  Read(floor, "bytes", result.floor.bytes);
  Read(floor, "ns", result.floor.ns);
  Read(floor, "bound", result.floor.bound);
  Read(json, "setup_ms", result.setup_ms);
  Read(json, "overhead_ms", result.overhead_ms);
  Read(json, "peak_bytes", result.peak_bytes);
  Read(json, "started", result.started);
  Read(json, "seconds", result.seconds);
}

}  // namespace

std::string CaseResultToJson(const CaseResult& result, const std::string& run_id) {
  return Dump(CaseJson(result, run_id, true));
}

std::string CaseResultToJsonWithoutSamples(const CaseResult& result, const std::string& run_id) {
  return Dump(CaseJson(result, run_id, false));
}

CaseResult CaseResultFrom(const Json& line) { return FromLine<CaseResult>(line, "case", ReadCase); }
CaseResult CaseResultFromJson(std::string_view json) { return CaseResultFrom(ParseLine(json)); }

std::string RunInfoToJson(const RunInfo& run) {
  Json json = Header("run");
  json["id"] = run.id;
  json["started"] = run.started;
  if (!run.finished.empty()) json["finished"] = run.finished;
  json["command"] = run.command;
  json["commit"] = run.commit;
  json["build"] = run.build;
  json["host"] = run.host;
  json["device"] = run.device;
  json["device_id"] = run.device_id;
  json["compiler"] = run.compiler;
  json["os"] = run.os;
  json["threads"] = run.threads;
  json["seed"] = run.seed;
  if (!run.accelerator.empty()) {
    json["accelerator"] = run.accelerator;
    json["accelerator_id"] = run.accelerator_id;
  }
  return Dump(json);
}

RunInfo RunInfoFromJson(std::string_view json) { return RunInfoFrom(ParseLine(json)); }

RunInfo RunInfoFrom(const Json& line) {
  return FromLine<RunInfo>(line, "run", [](const Json& json, RunInfo& run) {
    json.at("id").get_to(run.id);
    Read(json, "started", run.started);
    Read(json, "finished", run.finished);
    Read(json, "command", run.command);
    Read(json, "commit", run.commit);
    Read(json, "build", run.build);
    Read(json, "host", run.host);
    Read(json, "device", run.device);
    Read(json, "device_id", run.device_id);
    Read(json, "compiler", run.compiler);
    Read(json, "os", run.os);
    Read(json, "threads", run.threads);
    Read(json, "seed", run.seed);
    Read(json, "accelerator", run.accelerator);
    Read(json, "accelerator_id", run.accelerator_id);
  });
}

namespace {

Json CeilingsJson(const Ceilings& ceilings) {
  Json json = Header("ceilings");
  json["device_id"] = ceilings.device_id;
  json["device"] = ceilings.device;
  json["measured"] = ceilings.measured;
  json["copy_bytes"] = ceilings.copy_bytes;
  json["read_bytes"] = ceilings.read_bytes;
  json["write_bytes"] = ceilings.write_bytes;
  json["bf16_flops"] = ceilings.bf16_flops;
  json["f32_flops"] = ceilings.f32_flops;
  json["launch_ns"] = ceilings.launch_ns;
  for (const Ceiling& one : ceilings.more) {
    json["more"].push_back({{"name", one.name},
                            {"value", one.value},
                            {"unit", one.unit},
                            {"how", one.how},
                            {"n", one.n},
                            {"low", one.low},
                            {"high", one.high}});
  }
  return json;
}

}  // namespace

std::string CeilingsToJson(const Ceilings& ceilings) { return Dump(CeilingsJson(ceilings)); }

std::string CeilingsToJsonForRun(const Ceilings& ceilings, const std::string& run_id) {
  Json json = CeilingsJson(ceilings);
  json["run"] = run_id;
  return Dump(json);
}

Ceilings CeilingsFromJson(std::string_view json) { return CeilingsFrom(ParseLine(json)); }

Ceilings CeilingsFrom(const Json& line) {
  return FromLine<Ceilings>(line, "ceilings", [](const Json& json, Ceilings& ceilings) {
    Read(json, "device_id", ceilings.device_id);
    Read(json, "device", ceilings.device);
    Read(json, "measured", ceilings.measured);
    Read(json, "copy_bytes", ceilings.copy_bytes);
    Read(json, "read_bytes", ceilings.read_bytes);
    Read(json, "write_bytes", ceilings.write_bytes);
    Read(json, "bf16_flops", ceilings.bf16_flops);
    Read(json, "f32_flops", ceilings.f32_flops);
    Read(json, "launch_ns", ceilings.launch_ns);
    for (const Json& one : json.value("more", Json::array())) {
      Ceiling& named = ceilings.more.emplace_back();
      Read(one, "name", named.name);
      Read(one, "value", named.value);
      Read(one, "unit", named.unit);
      Read(one, "how", named.how);
      Read(one, "n", named.n);
      Read(one, "low", named.low);
      Read(one, "high", named.high);
    }
  });
}

std::string AxesToJson(const Axes& axes) { return Dump(AxesJson(axes)); }

Axes AxesFromJson(std::string_view json) {
  Axes axes;
  ReadAxes(Json::parse(json), axes);
  return axes;
}

}  // namespace assay
