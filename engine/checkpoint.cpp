#include "engine/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/parallel.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace assay::engine {
namespace {

// All tensors of a checkpoint by name, and which of them were read.
class Shards {
 public:
  explicit Shards(const std::string& folder) {
    const std::filesystem::path index =
        std::filesystem::path(folder) / "model.safetensors.index.json";
    std::set<std::string> files;
    if (std::filesystem::exists(index)) {
      const nlohmann::json json = ParseJson(ReadFile(index.string()));
      if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
        BadInput(index.string() + " has no weight_map");
      }
      for (const auto& [tensor, file] : json["weight_map"].items()) {
        if (!file.is_string()) BadInput(index.string() + ": the file of " + tensor + " is no name");
        files.insert(file.get<std::string>());
      }
    } else {
      files.insert("model.safetensors");
    }
    for (const std::string& file : files) Open((std::filesystem::path(folder) / file).string());
  }

  const Tensor* Read(const std::string& name) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return nullptr;
    read_.insert(name);
    return &found->second.first;
  }
  // Memory of a tensor that lives as long as somebody holds it; copied where it is not aligned.
  std::shared_ptr<const std::byte> Memory(const Tensor& tensor, std::size_t alignment) const {
    const auto& owner = tensors_.at(tensor.name).second;
    if (reinterpret_cast<std::uintptr_t>(tensor.data) % alignment == 0) return {owner, tensor.data};
    const std::shared_ptr<std::byte> copy(new std::byte[tensor.bytes()],
                                          std::default_delete<std::byte[]>());
    std::memcpy(copy.get(), tensor.data, tensor.bytes());
    return copy;
  }
  std::vector<std::string> Unread() const {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) {
      const bool ignored = name.find("model.visual.") == 0 || name.ends_with(".input_scale");
      if (!ignored && read_.count(name) == 0) names.push_back(name);
    }
    return names;
  }

 private:
  void Open(const std::string& path) {
    const auto file = std::make_shared<SafetensorsFile>(SafetensorsFile::Open(path));
    for (const Tensor& tensor : file->tensors()) {
      if (!tensors_.try_emplace(tensor.name, tensor, file).second) {
        BadInput(path + ": tensor " + tensor.name + " is in another shard as well");
      }
    }
  }

  std::map<std::string, std::pair<Tensor, std::shared_ptr<const void>>> tensors_;
  std::set<std::string> read_;
};

// The first element that is NaN or infinite, or -1.
template <class IsBad>
std::int64_t FirstBad(std::int64_t count, const IsBad& is_bad) {
  constexpr std::int64_t kGrain = 1 << 20;
  std::atomic<std::int64_t> first{count};
  ParallelRanges(count, kGrain, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end && i < first; ++i) {
      if (!is_bad(i)) continue;
      std::int64_t seen = first;
      while (i < seen && !first.compare_exchange_weak(seen, i)) {
      }
      return;
    }
  });
  return first == count ? -1 : first.load();
}

class Loader {
 public:
  Loader(Shards& shards, CheckpointReport& report) : shards_(shards), report_(report) {}

  void LoadMatrix(const TensorSpec& spec, Matrix& w) {
    w.n = spec.shape[0], w.k = spec.shape[1];
    const std::string base =
        spec.name.ends_with(".weight") ? spec.name.substr(0, spec.name.size() - 7) : spec.name;
    const Tensor* packed = shards_.Read(base + ".weight_packed");
    const Tensor* weight = packed ? packed : Find(spec);
    if (weight == nullptr) return;
    if (weight->dtype == DType::kBF16) {
      w.format = WeightFormat::kBF16;
      if (Expect(*weight, spec.shape)) w.data = shards_.Memory(*weight, alignof(bf16));
      CheckFinite(*weight);
      return;
    }
    if (!spec.may_be_quantised) {
      Complain(*weight, "is read by rows and by columns and must be bfloat16");
    } else if (weight->dtype == DType::kE4M3) {
      LoadFP8(base, spec, *weight, w);
    } else if (weight->dtype == DType::kU8) {
      LoadFP4(base, *weight, packed != nullptr, w);
    } else {
      Complain(*weight, "is of a type that no weight format has");
    }
  }

  void LoadVector(const TensorSpec& spec, std::vector<float>& target) {
    const Tensor* tensor = Find(spec);
    if (tensor == nullptr || !Expect(*tensor, spec.shape)) return;
    const auto count = static_cast<std::size_t>(tensor->elements());
    target.resize(count);
    if (tensor->dtype == DType::kF32) {
      std::memcpy(target.data(), tensor->data, 4 * count);
    } else if (tensor->dtype == DType::kBF16) {
      for (std::size_t i = 0; i < count; ++i) {
        bf16 value;
        std::memcpy(&value, tensor->data + 2 * i, 2);
        target[i] = ToFloat(value);
      }
    } else {
      Complain(*tensor, "must be bfloat16 or float32");
    }
    CheckFinite(*tensor);
  }

 private:
  const Tensor* Find(const TensorSpec& spec) {
    const Tensor* tensor = shards_.Read(spec.name);
    if (tensor == nullptr) tensor = shards_.Read(spec.name + ".weight");  // both spellings exist
    if (tensor == nullptr) report_.missing.push_back(spec.name);
    return tensor;
  }

  void LoadFP8(const std::string& base, const TensorSpec& spec, const Tensor& weight, Matrix& w) {
    w.format = WeightFormat::kFP8;
    const Tensor* scale = shards_.Read(base + ".weight_scale_inv");
    if (scale == nullptr) scale = shards_.Read(base + ".weight_scale");
    if (scale == nullptr) return report_.missing.push_back(base + ".weight_scale_inv");
    if (!Expect(weight, spec.shape)) return;
    if (!Expect(*scale, {FP8Blocks(w.n), FP8Blocks(w.k)}) || !ExpectType(*scale, DType::kF32))
      return;
    w.data = shards_.Memory(weight, 1);
    w.scales = shards_.Memory(*scale, alignof(float));
    CheckFinite(weight);
    CheckFinite(*scale);
  }

  void LoadFP4(const std::string& base, const Tensor& weight, bool packed, Matrix& w) {
    if (w.k % kMXFP4Group != 0) {
      return Complain(weight, "has FP4 codes, and its " + std::to_string(w.k) +
                                  " columns are no multiple of " + std::to_string(kMXFP4Group));
    }
    if (!Expect(weight, {w.n, w.k / 2})) return;
    const Tensor* scale = shards_.Read(base + ".weight_scale");
    if (scale == nullptr) return report_.missing.push_back(base + ".weight_scale");
    w.format = scale->dtype == DType::kE4M3 ? WeightFormat::kNVFP4 : WeightFormat::kMXFP4;
    const std::int64_t group = w.format == WeightFormat::kNVFP4 ? kNVFP4Group : kMXFP4Group;
    if (!Expect(*scale, {w.n, w.k / group})) return;
    if (w.format == WeightFormat::kMXFP4 && scale->dtype != DType::kU8 &&
        scale->dtype != DType::kUE8M0) {
      return Complain(*scale, "is no scale of FP4 weights");
    }
    w.data = shards_.Memory(weight, 1);
    w.scales = shards_.Memory(*scale, 1);
    CheckFinite(*scale, w.format == WeightFormat::kMXFP4);
    if (w.format == WeightFormat::kNVFP4) LoadTensorScale(base, packed, w);
  }

  void LoadTensorScale(const std::string& base, bool packed, Matrix& w) {
    const std::string name = base + (packed ? ".weight_global_scale" : ".weight_scale_2");
    const Tensor* scale = shards_.Read(name);
    if (scale == nullptr) return report_.missing.push_back(name);
    if (scale->elements() != 1 || !ExpectType(*scale, DType::kF32)) return;
    std::memcpy(&w.scale, scale->data, sizeof w.scale);
    if (packed) w.scale = 1 / w.scale;  // that writer stores the inverse
    if (!std::isfinite(w.scale)) Complain(*scale, "is not finite");
  }

  void Complain(const Tensor& tensor, const std::string& what) {
    report_.unreadable.push_back(tensor.name + " " + std::string(DTypeName(tensor.dtype)) +
                                 ShapeText(tensor.shape) + " " + what);
  }
  bool Expect(const Tensor& tensor, const Shape& shape) {
    if (tensor.shape == shape) return true;
    Complain(tensor, "should have shape " + ShapeText(shape));
    return false;
  }
  bool ExpectType(const Tensor& tensor, DType dtype) {
    if (tensor.dtype == dtype) return true;
    Complain(tensor, "should be " + std::string(DTypeName(dtype)));
    return false;
  }

  void CheckFinite(const Tensor& tensor, bool power_of_two_scales = false) {
    const auto byte = [&](std::int64_t i) { return std::to_integer<unsigned>(tensor.data[i]); };
    const auto bad = [&](std::int64_t i) {
      switch (tensor.dtype) {
        case DType::kBF16:
          return ((byte(2 * i + 1) << 8 | byte(2 * i)) & 0x7F80u) == 0x7F80u;
        case DType::kF32:
          return ((byte(4 * i + 3) << 8 | byte(4 * i + 2)) & 0x7F80u) == 0x7F80u;
        case DType::kE4M3:
          return (byte(i) & 0x7Fu) == 0x7Fu;
        default:
          return power_of_two_scales && byte(i) == 255;
      }
    };
    const std::int64_t first = FirstBad(tensor.elements(), bad);
    if (first >= 0) Complain(tensor, "holds NaN or infinity at element " + std::to_string(first));
  }

  Shards& shards_;
  CheckpointReport& report_;
};

std::string Listed(const char* title, const std::vector<std::string>& entries) {
  constexpr std::size_t kShown = 10;
  if (entries.empty()) return "";
  std::string text = "\n  " + std::to_string(entries.size()) + " " + title + ":";
  for (std::size_t i = 0; i < std::min(entries.size(), kShown); ++i) text += "\n    " + entries[i];
  return entries.size() > kShown ? text + "\n    ..." : text;
}

}  // namespace

std::string CheckpointReport::Text() const {
  return Listed("missing", missing) + Listed("unreadable", unreadable) +
         Listed("not understood", extra);
}

Model LoadCheckpoint(const std::string& folder) {
  const std::string config = (std::filesystem::path(folder) / "config.json").string();
  Model model;
  model.config = ReadConfig(ReadFile(config), config);
  Shards shards(folder);
  CheckpointReport report;
  Loader loader(shards, report);
  VisitTensors(
      model.config, model,
      {[&](const TensorSpec& spec, Matrix& w) { loader.LoadMatrix(spec, w); },
       [&](const TensorSpec& spec, std::vector<float>& v) { loader.LoadVector(spec, v); }});
  report.extra = shards.Unread();
  if (!report.ok())
    BadInput("checkpoint " + folder + " does not fit its config.json:" + report.Text());
  return model;
}

}  // namespace assay::engine
