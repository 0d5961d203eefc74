#include "replay/plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "replay/worker_process.h"

namespace assay {
namespace {

constexpr std::size_t kWorkspaceAlignment = 256;
constexpr int32_t kDeviceCpu = 1;  // kDLCPU

void SetDType(DType dtype, AssayTensor& tensor) {
  tensor.dtype.lanes = 1;
  const auto set = [&](int code, int bits) {
    tensor.dtype.code = static_cast<std::uint8_t>(code);
    tensor.dtype.bits = static_cast<std::uint8_t>(bits);
  };
  switch (dtype) {
    case DType::kBF16:
      return set(ASSAY_DTYPE_BFLOAT, 16);
    case DType::kF16:
      return set(ASSAY_DTYPE_FLOAT, 16);
    case DType::kF32:
      return set(ASSAY_DTYPE_FLOAT, 32);
    case DType::kF64:
      return set(ASSAY_DTYPE_FLOAT, 64);
    case DType::kE4M3:
      return set(ASSAY_DTYPE_FLOAT8_E4M3FN, 8);
    case DType::kE5M2:
      return set(ASSAY_DTYPE_FLOAT8_E5M2, 8);
    case DType::kUE8M0:
      return set(ASSAY_DTYPE_FLOAT8_E8M0FNU, 8);
    case DType::kE2M1:
      return set(ASSAY_DTYPE_FLOAT4_E2M1FN, 4);
    case DType::kI32:
      return set(ASSAY_DTYPE_INT, 32);
    case DType::kI64:
      return set(ASSAY_DTYPE_INT, 64);
    case DType::kI16:
      return set(ASSAY_DTYPE_INT, 16);
    case DType::kI8:
      return set(ASSAY_DTYPE_INT, 8);
    case DType::kU8:
      return set(ASSAY_DTYPE_UINT, 8);
    case DType::kBool:
      return set(ASSAY_DTYPE_BOOL, 8);
  }
}

// An AssayCall and the memory that it points to.
class Call {
 public:
  Call(const Problem& problem, const Bundle& inputs, int threads) {
    for (const auto& [name, value] : problem.axes) axes_.push_back({name.c_str(), value});
    Describe(inputs.tensors(), true, inputs_);
    call_.abi = ASSAY_PLUGIN_ABI;
    call_.definition = problem.definition->name.c_str();
    call_.axis_count = axes_.size();
    call_.axes = axes_.data();
    call_.input_count = inputs_.size();
    call_.inputs = inputs_.data();
    call_.threads = threads;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Without data while only the shapes are asked about. The tensors must outlive the call.
  void SetOutputs(std::span<const Tensor> tensors, bool with_data) {
    Describe(tensors, with_data, outputs_);
    call_.output_count = outputs_.size();
    call_.outputs = outputs_.data();
  }
  void SetWorkspace(std::byte* data, std::size_t bytes) {
    call_.workspace = data;
    call_.workspace_bytes = bytes;
  }
  const AssayCall* get() const { return &call_; }

 private:
  static void Describe(std::span<const Tensor> tensors, bool with_data,
                       std::vector<AssayNamedTensor>& described) {
    described.clear();
    for (const Tensor& tensor : tensors) {
      AssayNamedTensor one{tensor.name.c_str(), {}};
      one.tensor.data = with_data ? tensor.data : nullptr;
      one.tensor.device.type = kDeviceCpu;
      one.tensor.ndim = static_cast<std::int32_t>(tensor.shape.size());
      one.tensor.shape = const_cast<std::int64_t*>(tensor.shape.data());  // DLPack's type
      SetDType(tensor.dtype, one.tensor);
      described.push_back(one);
    }
  }

  AssayCall call_{};
  std::vector<AssayAxis> axes_;
  std::vector<AssayNamedTensor> inputs_, outputs_;
};

// Memory that a kernel keeps from call to call, grown when it asks for more.
class Workspace {
 public:
  std::byte* Reserve(std::size_t bytes) {
    if (bytes + kWorkspaceAlignment > memory_.size()) memory_.resize(bytes + kWorkspaceAlignment);
    void* at = memory_.data();
    std::size_t space = memory_.size();
    return static_cast<std::byte*>(std::align(kWorkspaceAlignment, bytes, at, space));
  }

 private:
  std::vector<std::byte> memory_;
};

std::string ErrorText(const AssayBackend& kernel, int code) {
  const char* text = kernel.error != nullptr ? kernel.error() : nullptr;
  return fmt::format("{} returned {}{}{}", kernel.name, code, text != nullptr ? ": " : "",
                     text != nullptr ? text : "");
}

void RunKernel(const AssayBackend& kernel, Workspace& workspace, const Problem& problem,
               const Bundle& inputs, Bundle& outputs, const RunContext& context) {
  Call call(problem, inputs, context.threads);
  call.SetOutputs(outputs.tensors(), false);
  std::int64_t bytes = 0;
  if (kernel.workspace_bytes != nullptr) bytes = kernel.workspace_bytes(call.get());
  if (bytes < 0) throw Error(Fault::kUnsupported, ErrorText(kernel, static_cast<int>(bytes)));
  if (bytes > 0) {
    const auto size = static_cast<std::size_t>(bytes);
    call.SetWorkspace(workspace.Reserve(size), size);
  }
  call.SetOutputs(outputs.tensors(), true);
  const int code = kernel.run(call.get());
  // Where the kernel says that its outputs are: the caller knows where they belong.
  for (std::size_t o = 0; o < outputs.tensors().size(); ++o) {
    outputs.tensors()[o].data = static_cast<std::byte*>(call.get()->outputs[o].tensor.data);
  }
  if (code != 0) throw std::runtime_error(ErrorText(kernel, code));
}

// What the family declares, for a kernel that outlives it.
struct Declared {
  bool whole_family = false;  // the kernel names the family, not one definition
  std::vector<TensorSpec> outputs;
};

std::string KernelRefuses(const AssayBackend& kernel, const Declared& declared,
                          const Problem& problem, const Bundle& inputs) {
  if (!declared.whole_family && problem.definition->name != kernel.definition) {
    return fmt::format("{} computes {} only", kernel.name, kernel.definition);
  }
  if (kernel.supports == nullptr) return "";
  std::vector<Tensor> outputs;  // shapes only
  for (const TensorSpec& spec : declared.outputs) {
    TensorLayout layout = Resolve(spec, problem);
    outputs.push_back({layout.name, layout.dtype, layout.shape, nullptr});
  }
  Call call(problem, inputs, 0);
  call.SetOutputs(outputs, false);
  const char* reason = kernel.supports(call.get());
  return reason != nullptr ? reason : "";
}

Backend MakeBackend(const AssayBackend& kernel, const Family& family) {
  const Declared declared{family.name == kernel.definition, family.outputs};
  auto workspace = std::make_shared<Workspace>();
  return {kernel.name, kernel.summary != nullptr ? kernel.summary : "plugin",
          [&kernel, declared](const Problem& problem, const Bundle& inputs) {
            return KernelRefuses(kernel, declared, problem, inputs);
          },
          [&kernel, workspace](const Problem& problem, const Bundle& inputs, Bundle& results,
                               const RunContext& context) {
            RunKernel(kernel, *workspace, problem, inputs, results, context);
          }};
}

// Adds `make(family)` to the family that `definition` names, by itself or by one of its
// definitions.
template <class Make>
void AddBackend(std::vector<Family>& families, const std::string& name,
                const std::string& definition, const Make& make) {
  for (Family& family : families) {
    if (family.name != definition && family.FindDefinition(definition) == nullptr) continue;
    if (family.FindBackend(name) != nullptr) {
      BadInput(fmt::format("plugin backend '{}': {} already has a backend of that name", name,
                           family.name));
    }
    family.backends.push_back(make(family));
    return;
  }
  BadInput(fmt::format("plugin backend '{}' computes '{}', which is no definition or family here",
                       name, definition));
}

}  // namespace

std::span<const AssayBackend> LoadPlugin(const std::string& path) {
  // A bare file name would be searched in the system's folders.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) BadInput(fmt::format("plugin {}: {}", path, dlerror()));
  using List = const AssayBackend* (*)(std::uint32_t, std::size_t*);
  const auto list = reinterpret_cast<List>(dlsym(library, "assay_plugin_backends"));
  if (list == nullptr) {
    BadInput(fmt::format("plugin {} does not export assay_plugin_backends", path));
  }
  std::size_t count = 0;
  const AssayBackend* kernels = list(ASSAY_PLUGIN_ABI, &count);
  if (kernels == nullptr || count == 0) {
    BadInput(fmt::format("plugin {} offers no kernel for plugin ABI {}", path, ASSAY_PLUGIN_ABI));
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (kernels[i].name == nullptr || kernels[i].definition == nullptr ||
        kernels[i].run == nullptr) {
      BadInput(fmt::format("plugin {}: kernel {} lacks its name, definition or run", path, i));
    }
  }
  return {kernels, count};
}

Registry WithPluginBackends(const Registry& base, std::span<const AssayBackend> kernels) {
  std::vector<Family> families = base.families();
  for (const AssayBackend& kernel : kernels) {
    AddBackend(families, kernel.name, kernel.definition,
               [&](const Family& family) { return MakeBackend(kernel, family); });
  }
  return Registry(std::move(families));
}

Registry WithDescribedBackends(const Registry& base, const std::vector<PluginBackend>& kernels) {
  std::vector<Family> families = base.families();
  std::set<std::pair<std::string, std::string>> added;  // (family, backend)
  for (const PluginBackend& kernel : kernels) {
    const Family* family = base.FindFamily(kernel.definition);
    if (family == nullptr) family = base.FindDefinition(kernel.definition).family;
    if (family != nullptr && !added.emplace(family->name, kernel.name).second) continue;
    AddBackend(families, kernel.name, kernel.definition, [&](const Family&) {
      Backend backend{kernel.name, kernel.summary,
                      [](const Problem&, const Bundle&) { return "runs in workers only"; },
                      [](const Problem&, const Bundle&, Bundle&, const RunContext&) {
                        throw Error(Fault::kInternal, "a plugin was called in the runner");
                      }};
      backend.device = kernel.device;
      return backend;
    });
  }
  return Registry(std::move(families));
}

nlohmann::json DescriptionOf(std::span<const AssayBackend> kernels) {
  nlohmann::json list = nlohmann::json::array();
  for (const AssayBackend& kernel : kernels) {
    list.push_back({{"name", kernel.name},
                    {"definition", kernel.definition},
                    {"summary", kernel.summary != nullptr ? kernel.summary : ""}});
  }
  return list;
}

std::vector<PluginBackend> DescribePlugins(const std::vector<std::string>& command) {
  const std::atomic<bool> stop{false};
  const WorkerProcess worker(command, stop);
  if (worker.dead()) {
    // What a worker says of a bad plugin is a sentence already ("assay: plugin x.so: ...").
    constexpr std::string_view kPrefix = "assay: ";
    const std::string said = worker.last_output();
    BadInput(said.starts_with(kPrefix) ? said.substr(kPrefix.size()) : worker.why_dead());
  }
  std::vector<PluginBackend> kernels;
  const auto greeting = nlohmann::json::parse(worker.greeting());
  for (const auto& one : greeting.at("plugin_backends")) {
    kernels.push_back({one.at("name"), one.at("definition"), one.at("summary"),
                       one.value("device", "cpu"), one.value("unavailable", "")});
  }
  return kernels;
}

}  // namespace assay
