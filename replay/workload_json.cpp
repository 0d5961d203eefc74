#include "replay/workload_json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "io/json.h"

namespace assay {
namespace {

using nlohmann::json;

// Attributes that flat records hold at the top level; anything else there is kept uninterpreted.
constexpr std::array kAttributeNames = {"allocated_cache_4",
                                        "allocated_cache_8",
                                        "allocated_cache_shape",
                                        "capture_decode_steps",
                                        "capture_steps",
                                        "compression_ratio",
                                        "extra_format",
                                        "gate",
                                        "gate_kind",
                                        "k_buffer",
                                        "kv_format",
                                        "layer_id",
                                        "lower_bound",
                                        "model_batch_size",
                                        "module_path",
                                        "operation",
                                        "padding_rows",
                                        "prefix_segments",
                                        "requested_outputs",
                                        "selection_step",
                                        "sequence_lengths",
                                        "step",
                                        "variant"};

// The one attribute that captured records call differently.
constexpr const char* kCapturedLengths = "scheduler_sequence_lengths";

std::string Shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  return text;
}

// Takes a text member; absent or null gives "".
std::string TakeText(json& object, const char* key) {
  const auto member = object.find(key);
  if (member == object.end() || member->is_null()) return "";
  if (!member->is_string()) {
    BadInput(std::string("'") + key + "' must be a text, not " + Shown(*member));
  }
  std::string text = std::move(member->get_ref<std::string&>());
  object.erase(member);
  return text;
}

// One axis value; `name` only for the message.
std::int64_t AxisValue(const std::string& name, const json& value) {
  const bool absurd =
      (value.is_number_unsigned() &&
       value.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) ||
      (value.is_number_float() && std::abs(value.get<double>()) > 0x1p53);
  if (absurd) BadInput("axis " + name + " = " + Shown(value) + " is absurdly large");
  if (!value.is_number_integer()) {
    BadInput("axis " + name + " = " + Shown(value) + " is not an integer");
  }
  return value.get<std::int64_t>();
}

Axes TakeAxes(json& object) {
  const auto member = object.find("axes");
  if (member == object.end()) BadInput("the record has no 'axes'");
  if (!member->is_object()) BadInput("'axes' must be an object, not " + Shown(*member));
  Axes axes;
  for (const auto& [name, value] : member->items()) axes[name] = AxisValue(name, value);
  object.erase(member);
  return axes;
}

// Appends the integers of a nested list, row-major; false when anything else is in it.
bool Flatten(const json& value, std::vector<std::int64_t>& flat) {
  if (value.is_array()) {
    return std::all_of(value.begin(), value.end(),
                       [&](const json& item) { return Flatten(item, flat); });
  }
  if (value.is_boolean()) {
    flat.push_back(value.get<bool>() ? 1 : 0);
    return true;
  }
  if (!value.is_number_integer()) return false;
  flat.push_back(value.get<std::int64_t>());
  return true;
}

std::optional<AttributeValue> ToAttribute(const json& value) {
  if (value.is_boolean()) return std::int64_t{value.get<bool>() ? 1 : 0};
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  std::vector<std::int64_t> flat;
  if (value.is_array() && Flatten(value, flat)) return flat;
  return std::nullopt;
}

bool IsKnownAttribute(const std::string& name) {
  return std::find(kAttributeNames.begin(), kAttributeNames.end(), name) != kAttributeNames.end();
}

// Moves attribute `name` from `object` unless its value is of a kind that we cannot hold, which is
// an error for the names that generators read and otherwise stays uninterpreted.
void TakeAttribute(json& object, const std::string& name, const std::string& stored_name,
                   Attributes& attributes) {
  const auto member = object.find(name);
  if (member == object.end() || member->is_null()) return;
  const auto value = ToAttribute(*member);
  if (value) {
    attributes[stored_name] = *value;
    object.erase(member);
  } else if (IsKnownAttribute(stored_name)) {
    BadInput("attribute " + name + " = " + Shown(*member) +
             " is neither a number, a text nor a list of integers");
  }
}

Attributes TakeAttributes(json& record) {
  Attributes attributes;
  for (const char* name : kAttributeNames) TakeAttribute(record, name, name, attributes);
  TakeAttribute(record, kCapturedLengths, "sequence_lengths", attributes);
  const auto member = record.find("attributes");
  if (member == record.end() || member->is_null()) return attributes;
  if (!member->is_object()) BadInput("'attributes' must be an object, not " + Shown(*member));
  std::vector<std::string> names;
  for (const auto& item : member->items()) names.push_back(item.key());
  for (const std::string& name : names) TakeAttribute(*member, name, name, attributes);
  if (member->empty()) record.erase(member);
  return attributes;
}

RecordedValidation TakeValidation(json& record) {
  RecordedValidation validation;
  const auto member = record.find("validation");
  if (member == record.end() || !member->is_object()) return validation;
  validation.status = TakeText(*member, "status");
  const auto errors = member->find("max_absolute_errors");
  if (errors != member->end() && errors->is_array() &&
      std::all_of(errors->begin(), errors->end(), [](const json& e) { return e.is_number(); })) {
    validation.max_absolute_errors = errors->get<std::vector<double>>();
    member->erase(errors);
  }
  if (member->empty()) record.erase(member);
  return validation;
}

// The object that holds uuid and axes: the record itself, or its `workload`.
json& IdentityOf(json& record) {
  if (!record.is_object()) BadInput("a record must be a JSON object, not " + Shown(record));
  const auto nested = record.find("workload");
  if (nested == record.end()) return record;
  if (!nested->is_object()) BadInput("'workload' must be an object, not " + Shown(*nested));
  return *nested;
}

json ToJson(const AttributeValue& value) {
  return std::visit([](const auto& held) { return json(held); }, value);
}

void SetText(json& object, const char* key, const std::string& text) {
  if (!text.empty()) object[key] = text;
}

}  // namespace

Workload TakeWorkload(json& record) {
  json& identity = IdentityOf(record);
  Workload workload;
  workload.uuid = TakeText(identity, "uuid");
  if (workload.uuid.empty()) BadInput("the record has no 'uuid'");
  workload.definition = TakeText(record, "definition");
  if (workload.definition.empty()) BadInput("the record has no 'definition'");
  workload.axes = TakeAxes(identity);
  if (&identity != &record && identity.empty()) record.erase("workload");
  workload.attributes = TakeAttributes(record);
  workload.variant = TakeText(record, "generator_variant");
  workload.model = TakeText(record, "model");
  workload.request = TakeText(record, "request_id");
  workload.content_id = TakeText(record, "content_id");
  workload.dataset = TakeText(record, "dataset");
  workload.phase = TakeText(record, "phase");
  if (workload.phase.empty()) {
    const auto mode = record.find("scheduler_mode");
    if (mode != record.end() && mode->is_string()) workload.phase = mode->get<std::string>();
  }
  workload.validation = TakeValidation(record);
  return workload;
}

Workload KeepExtra(json& record) {
  Workload workload = TakeWorkload(record);
  if (!record.empty()) workload.extra = record.dump(-1, ' ', false, json::error_handler_t::replace);
  return workload;
}

json ToJson(const Workload& workload) {
  json record = workload.extra.empty() ? json::object() : ParseJson(workload.extra);
  record["definition"] = workload.definition;
  record["workload"]["uuid"] = workload.uuid;
  record["workload"]["axes"] = json::object();
  for (const auto& [name, value] : workload.axes) record["workload"]["axes"][name] = value;
  for (const auto& [name, value] : workload.attributes) record["attributes"][name] = ToJson(value);
  SetText(record, "generator_variant", workload.variant);
  SetText(record, "model", workload.model);
  SetText(record, "request_id", workload.request);
  SetText(record, "content_id", workload.content_id);
  SetText(record, "dataset", workload.dataset);
  SetText(record, "phase", workload.phase);
  const RecordedValidation& validation = workload.validation;
  if (!validation.status.empty()) record["validation"]["status"] = validation.status;
  if (!validation.max_absolute_errors.empty()) {
    record["validation"]["max_absolute_errors"] = validation.max_absolute_errors;
  }
  return record;
}

void CheckWorkload(const Workload& workload, const Registry& registry) {
  const auto sequences = workload.axes.find("num_seqs");
  const auto lengths = workload.axes.find("len_cu_seqlens");
  if (sequences != workload.axes.end() && lengths != workload.axes.end() &&
      lengths->second != sequences->second + 1) {
    BadInput("axis len_cu_seqlens = " + std::to_string(lengths->second) +
             " must be num_seqs + 1 = " + std::to_string(sequences->second + 1));
  }
  const DefinitionRef found = registry.FindDefinition(workload.definition);
  if (found.family != nullptr) {
    MakeProblem(*found.family, workload.definition, workload.axes, workload.attributes,
                workload.variant);
    return;
  }
  // Room for what is not built here, yet never for values that no operator can have.
  Definition unknown{workload.definition, {}, {}};
  for (const auto& axis : workload.axes) unknown.variables.push_back(axis.first);
  Family family;
  family.definitions = {unknown};
  MakeProblem(family, workload.definition, workload.axes);
}

}  // namespace assay
