#include "replay/stored_inputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json.h"
#include "io/trace_dataset.h"
#include "replay/result.h"
#include "replay/trace_family.h"
#include "replay/verify.h"

namespace assay {
namespace {

using Json = nlohmann::json;

const Json* Find(const Json& object, const char* key) {
  const auto member = object.find(key);
  return member == object.end() || member->is_null() ? nullptr : &*member;
}

std::string TextAt(const Json& object, const char* key, const std::string& what) {
  const Json* member = Find(object, key);
  if (member == nullptr || !member->is_string()) {
    BadInput(what + " has no text '" + key + "'");
  }
  return member->get<std::string>();
}

bool Declares(const std::vector<TensorSpec>& specs, const std::string& name) {
  return std::any_of(specs.begin(), specs.end(),
                     [&](const TensorSpec& spec) { return spec.name == name; });
}

void RequireRange(const Tensor& tensor, double value, double lowest, double highest) {
  if (value == std::floor(value) && value >= lowest && value <= highest) return;
  BadInput("scalar '" + tensor.name + "' = " + Json(value).dump() + " is no " +
           std::string(DTypeName(tensor.dtype)));
}

// Numbers of records are rounded to fp32 once, then to the dtype.
void StoreScalar(double value, Tensor& tensor) {
  const auto rounded = static_cast<float>(value);
  switch (tensor.dtype) {
    case DType::kF32:
      *tensor.as<float>() = rounded;
      return;
    case DType::kF64:
      *tensor.as<double>() = value;
      return;
    case DType::kBF16:
      *tensor.as<bf16>() = ToBF16(rounded);
      return;
    case DType::kF16:
      *tensor.as<f16>() = ToF16(rounded);
      return;
    case DType::kI64:
      RequireRange(tensor, value, -0x1p53, 0x1p53);
      *tensor.as<std::int64_t>() = static_cast<std::int64_t>(value);
      return;
    case DType::kI32:
      RequireRange(tensor, value, -0x1p31, 0x1p31 - 1);
      *tensor.as<std::int32_t>() = static_cast<std::int32_t>(value);
      return;
    case DType::kI16:
      RequireRange(tensor, value, -0x1p15, 0x1p15 - 1);
      *tensor.as<std::int16_t>() = static_cast<std::int16_t>(value);
      return;
    case DType::kI8:
      RequireRange(tensor, value, -0x1p7, 0x1p7 - 1);
      *tensor.as<std::int8_t>() = static_cast<std::int8_t>(value);
      return;
    case DType::kU8:
    case DType::kBool:
      RequireRange(tensor, value, 0, tensor.dtype == DType::kBool ? 1 : 255);
      *tensor.data = static_cast<std::byte>(value);
      return;
    default:
      BadInput("scalar '" + tensor.name + "' cannot be of type " +
               std::string(DTypeName(tensor.dtype)));
  }
}

template <class T>
void Rotate(Tensor& tensor, int variation) {
  T* data = reinterpret_cast<T*>(tensor.data);
  const std::int64_t n = tensor.elements();
  const std::int64_t distance = (n / 7 * variation + variation) % n;
  std::rotate(data, data + distance, data + n);
}

void RotateElements(Tensor& tensor, int variation) {
  if (variation == 0 || tensor.shape.empty() || tensor.elements() < 2) return;
  if (tensor.dtype == DType::kF32) Rotate<std::uint32_t>(tensor, variation);
  if (tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16) {
    Rotate<std::uint16_t>(tensor, variation);
  }
}

EngineError Compare(const Tensor& ours, const Tensor& theirs) {
  constexpr double kSmall = 1e-8;  // of the trace format's relative error
  EngineError error;
  error.output = ours.name;
  error.elements = ours.elements();
  double error2 = 0, norm2 = 0;
  for (std::int64_t i = 0; i < error.elements; ++i) {
    const double got = ElementAsDouble(ours, i), wanted = ElementAsDouble(theirs, i);
    if (got == wanted || (std::isnan(got) && std::isnan(wanted))) {
      norm2 += std::isfinite(wanted) ? wanted * wanted : 0;
      continue;
    }
    ++error.differing;
    const double difference = std::abs(got - wanted);
    // max() would drop a NaN.
    if (!(difference <= error.max_abs)) error.max_abs = difference;
    const double relative = difference / (std::abs(wanted) + kSmall);
    if (!(relative <= error.max_rel)) error.max_rel = relative;
    error2 += difference * difference;
    norm2 += wanted * wanted;
  }
  error.rel_l2 = error2 == 0 ? 0 : std::sqrt(error2 / norm2);
  return error;
}

}  // namespace

// Fills a StoredInputs from the record's JSON.
class StoredInputsReader {
 public:
  StoredInputsReader(StoredInputs& stored, const std::string& definition)
      : stored_(stored), definition_(definition) {}

  void ReadInputs(const Json& inputs) {
    for (const auto& [name, unused] : inputs.items()) {
      if (!Declares(stored_.family_.inputs, name)) {
        BadInput("input '" + name + "' is not declared by " + definition_);
      }
    }
    for (const TensorSpec& spec : stored_.family_.inputs) {
      const Json* input = Find(inputs, spec.name.c_str());
      if (input != nullptr) {
        ReadInput(spec, *input);
      } else if (!spec.optional) {
        BadInput("input '" + spec.name + "' is missing from the record");
      }
    }
  }

  // One reference, or {output: reference} where there are several outputs.
  void ReadOutputs(const Json& expected) {
    if (!expected.is_object()) BadInput("'expected_output' is not an object");
    if (expected.contains("path")) {
      return AddOutput(stored_.family_.outputs.front().name, expected);
    }
    for (const auto& [name, reference] : expected.items()) {
      if (!Declares(stored_.family_.outputs, name)) {
        BadInput("expected_output '" + name + "' is no output of " + definition_);
      }
      AddOutput(name, reference);
    }
  }

 private:
  void ReadInput(const TensorSpec& spec, const Json& input) {
    const std::string what = "input '" + spec.name + "'";
    const std::string type = TextAt(input, "type", what);
    if (type == "random") {
      stored_.random_.push_back(spec.name);
      stored_.layouts_.push_back(Resolve(spec, stored_.problem_));
    } else if (type == "scalar") {
      ReadScalar(spec, input);
    } else if (type == "safetensors") {
      const StoredInputs::Blob blob = ReadBlob(spec.name, input, what);
      stored_.layouts_.push_back(LayoutOf(spec, blob));
      stored_.inputs_.push_back(blob);
      stored_.any_blob_ = true;
    } else {
      BadInput(what + " has the unknown type '" + type + "'");
    }
  }

  void ReadScalar(const TensorSpec& spec, const Json& input) {
    if (!spec.shape.empty()) {
      BadInput("input '" + spec.name + "' is a scalar in the record and a tensor in " +
               definition_);
    }
    const Json* value = Find(input, "value");
    if (value == nullptr || !(value->is_number() || value->is_boolean())) {
      BadInput("scalar '" + spec.name + "' has no value that is a number");
    }
    stored_.scalars_[spec.name] =
        value->is_boolean() ? (value->get<bool>() ? 1 : 0) : value->get<double>();
    stored_.layouts_.push_back({spec.name, spec.dtype, {}});
  }

  StoredInputs::Blob ReadBlob(const std::string& name, const Json& reference,
                              const std::string& what) {
    const std::string key = TextAt(reference, "tensor_key", what);
    const SafetensorsFile& file = stored_.OpenFile(TextAt(reference, "path", what));
    if (file.find(key) == nullptr) {
      BadInput(what + ": the file has no tensor '" + key + "'");
    }
    return {name, key, &file};
  }

  // As stored, so that alternative shapes reach the family's own validation; but as declared where
  // only the name of the bytes differs.
  TensorLayout LayoutOf(const TensorSpec& spec, const StoredInputs::Blob& blob) const {
    const Tensor& tensor = *blob.file->find(blob.key);
    const bool renamed =
        tensor.dtype == DType::kU8 && (spec.dtype == DType::kUE8M0 || spec.dtype == DType::kE2M1);
    if (renamed) return Resolve(spec, stored_.problem_);
    return {spec.name, tensor.dtype, tensor.shape};
  }

  void AddOutput(const std::string& name, const Json& reference) {
    stored_.outputs_.push_back(ReadBlob(name, reference, "expected output '" + name + "'"));
  }

  StoredInputs& stored_;
  const std::string& definition_;
};

const SafetensorsFile& StoredInputs::OpenFile(const std::string& path) {
  const std::string full = TraceBlobPath(root_, path);
  auto known = files_.find(full);
  if (known == files_.end()) known = files_.emplace(full, SafetensorsFile::Open(full)).first;
  return known->second;
}

std::unique_ptr<StoredInputs> StoredInputs::Open(const Workload& workload, const Family& family,
                                                 const Problem& problem) {
  if (workload.dataset.empty() || workload.extra.empty()) return nullptr;
  const Json record = ParseJson(workload.extra);
  const Json* nested = Find(record, "workload");
  const Json& identity = nested != nullptr && nested->is_object() ? *nested : record;
  const Json* inputs = Find(identity, "inputs");
  if (inputs == nullptr) return nullptr;
  if (!inputs->is_object()) BadInput("'inputs' is not an object");
  std::unique_ptr<StoredInputs> stored(new StoredInputs(family, problem));
  stored->root_ = workload.dataset;
  StoredInputsReader reader(*stored, workload.definition);
  reader.ReadInputs(*inputs);
  const bool engines = stored->any_blob_ && stored->random_.empty();
  for (const Json* place : {&identity, &record}) {
    const Json* expected = Find(*place, "expected_output");
    if (!engines || expected == nullptr || !stored->outputs_.empty()) continue;
    reader.ReadOutputs(*expected);
  }
  const bool nothing = !stored->any_blob_ && stored->scalars_.empty();
  return nothing ? nullptr : std::move(stored);
}

void StoredInputs::FillRandom(std::uint64_t key, Bundle& inputs) const {
  if (random_.empty()) return;
  std::vector<TensorLayout> made = family_.input_layouts(problem_);
  // A generator of independent elements makes what is asked for; the others make a consistent
  // whole.
  if (MakesIndependentInputs(family_)) {
    std::erase_if(made, [&](const TensorLayout& layout) {
      return std::find(random_.begin(), random_.end(), layout.name) == random_.end();
    });
  }
  Bundle generated = Bundle::Allocate(made);
  family_.generate(problem_, key, generated);
  for (const std::string& name : random_) {
    const Tensor* source = generated.find(name);
    if (source == nullptr) BadInput("input '" + name + "' is random, but nothing generates it");
    std::memcpy(inputs[name].data, source->data, source->bytes());
  }
}

void StoredInputs::Fill(std::uint64_t key, int variation, Bundle& inputs) const {
  FillRandom(key, inputs);
  for (const Blob& blob : inputs_) {
    Tensor& tensor = inputs[blob.name];
    blob.file->ReadInto(blob.key, tensor);
    RotateElements(tensor, variation);
  }
  for (const auto& [name, value] : scalars_) StoreScalar(value, inputs[name]);
}

std::vector<EngineError> StoredInputs::CompareWithEngine(const Bundle& outputs) const {
  std::vector<EngineError> errors;
  for (const Blob& blob : outputs_) {
    const Tensor& ours = outputs[blob.name];
    Bundle recorded = Bundle::Allocate({{"recorded " + ours.name, ours.dtype, ours.shape}});
    Tensor& theirs = recorded.tensors()[0];
    blob.file->ReadInto(blob.key, theirs);
    errors.push_back(Compare(ours, theirs));
  }
  return errors;
}

}  // namespace assay
