#include "peers/cudnn_graph.h"

#include <cuda_runtime_api.h>
#include <cudnn_graph.h>

#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/shared_library.h"
#include "cuda/check.h"
#include "cuda/notes.h"
#include "peers/loader.h"

namespace assay::peers {
namespace {

using noncausal_dense_attention::Args;

// The first version that has attention as one operation.
constexpr std::size_t kOldestVersion = 91301;

struct Api {
  SharedLibrary library;
  std::string why_not;
  std::string text;  // "cuDNN 9.19.0 from /usr/lib/libcudnn.so.9"
  decltype(&cudnnGetVersion) get_version = nullptr;
  decltype(&cudnnGetErrorString) error_text = nullptr;
  decltype(&cudnnGetLastErrorString) last_error = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;

  explicit Api(const std::vector<std::string>& paths);

  // "cudnnCreate failed with 1001 (CUDNN_STATUS_NOT_INITIALIZED): ...", with cuDNN's last message.
  std::string Describe(cudnnStatus_t status, const std::string& call) const {
    std::array<char, 512> message{};
    last_error(message.data(), message.size());
    std::string told = "cuDNN: " + call + " failed with " +
                       std::to_string(static_cast<int>(status)) + " (" + error_text(status) + ")";
    return message[0] == '\0' ? told : told + ": " + message.data();
  }
  void Check(cudnnStatus_t status, const char* call, Fault fault = Fault::kUnsupported) const {
    if (status != CUDNN_STATUS_SUCCESS) throw Error(fault, Describe(status, call));
  }
};

Api::Api(const std::vector<std::string>& paths) : library(SharedLibrary::Open(paths)) {
  why_not = library.why_not();
  if (!library.loaded()) return;
  const auto load = [&](auto& function, const char* symbol) {
    library.Load(function, symbol, why_not);
  };
  load(get_version, "cudnnGetVersion");
  load(error_text, "cudnnGetErrorString");
  load(last_error, "cudnnGetLastErrorString");
  load(create, "cudnnCreate");
  load(destroy, "cudnnDestroy");
  load(set_stream, "cudnnSetStream");
  load(create_descriptor, "cudnnBackendCreateDescriptor");
  load(destroy_descriptor, "cudnnBackendDestroyDescriptor");
  load(set_attribute, "cudnnBackendSetAttribute");
  load(get_attribute, "cudnnBackendGetAttribute");
  load(finalize, "cudnnBackendFinalize");
  load(execute, "cudnnBackendExecute");
  if (!why_not.empty()) return;
  const std::size_t version = get_version();
  if (version < kOldestVersion || version / 10000 != CUDNN_MAJOR) {
    why_not = library.path() + " is version " + VersionText(version) + ", supported is 9 from " +
              VersionText(kOldestVersion);
    return;
  }
  text = "cuDNN " + VersionText(version) + " from " + library.path();
}

// A backend descriptor: attributes are set, then it is finalized.
class Descriptor {
 public:
  Descriptor(const Api& api, cudnnBackendDescriptorType_t type) : api_(&api) {
    api.Check(api.create_descriptor(type, &raw_), "cudnnBackendCreateDescriptor");
  }
  Descriptor(Descriptor&& other) noexcept
      : api_(other.api_), raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (raw_ != nullptr) api_->destroy_descriptor(raw_);
  }

  template <class T>
  Descriptor& Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  const T* values, std::size_t count) {
    const auto elements = static_cast<std::int64_t>(count);
    api_->Check(api_->set_attribute(raw_, name, type, elements, values),
                "cudnnBackendSetAttribute");
    return *this;
  }
  Descriptor& Set(cudnnBackendAttributeName_t name, std::int64_t value) {
    return Set(name, CUDNN_TYPE_INT64, &value, 1);
  }
  Descriptor& Set(cudnnBackendAttributeName_t name, bool value) {
    return Set(name, CUDNN_TYPE_BOOLEAN, &value, 1);
  }
  Descriptor& Set(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
    return Set(name, CUDNN_TYPE_DATA_TYPE, &value, 1);
  }
  Descriptor& Set(cudnnBackendAttributeName_t name, const Descriptor& other) {
    return Set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &other.raw_, 1);
  }
  Descriptor& Set(cudnnBackendAttributeName_t name, cudnnHandle_t handle) {
    return Set(name, CUDNN_TYPE_HANDLE, &handle, 1);
  }
  cudnnStatus_t TryFinalize() { return api_->finalize(raw_); }
  Descriptor& Finalize(const char* what) {
    api_->Check(TryFinalize(), what);
    return *this;
  }
  cudnnBackendDescriptor_t raw() const { return raw_; }

 private:
  const Api* api_;
  cudnnBackendDescriptor_t raw_ = nullptr;
};

// The tensors of the graph by number; cuDNN finds their addresses by it.
enum TensorId : std::int64_t { kQ = 1, kK, kV, kO, kScale };

// What cuDNN may assume of an address: that vector loads work, or only that elements are whole.
std::int64_t Alignment(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 ? 16 : 2;
}

// [batch, heads, tokens, dim] as cuDNN orders it, whatever the strides.
Descriptor TokenTensor(const Api& api, TensorId id, const Args& args, std::int64_t tokens,
                       const attention::Strides& strides, const void* data) {
  const std::int64_t dims[] = {args.b, args.h, tokens, args.d};
  const std::int64_t steps[] = {strides.batch, strides.head, strides.token, strides.channel};
  Descriptor tensor(api, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.Set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_BFLOAT16)
      .Set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, dims, 4)
      .Set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, steps, 4)
      .Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, std::int64_t{id})
      .Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, Alignment(data))
      .Finalize("the tensor descriptor");
  return tensor;
}

// One fp32 number that is given by value when the graph runs.
Descriptor ScalarTensor(const Api& api, TensorId id) {
  const std::int64_t ones[] = {1, 1, 1, 1};
  Descriptor tensor(api, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.Set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT)
      .Set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, ones, 4)
      .Set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, ones, 4)
      .Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, std::int64_t{id})
      .Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, std::int64_t{sizeof(float)})
      .Set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, true)
      .Finalize("the scale's descriptor");
  return tensor;
}

// The graph: one attention operation between the four tensors.
Descriptor AttentionGraph(const Api& api, cudnnHandle_t handle, const Args& args) {
  const Descriptor q = TokenTensor(api, kQ, args, args.nq, args.q_strides, args.q);
  const Descriptor k = TokenTensor(api, kK, args, args.nk, args.k_strides, args.k);
  const Descriptor v = TokenTensor(api, kV, args, args.nk, args.v_strides, args.v);
  const Descriptor o = TokenTensor(api, kO, args, args.nq, args.o_strides, args.o);
  const Descriptor scale = ScalarTensor(api, kScale);
  Descriptor attention(api, CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
  attention.Set(CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, q)
      .Set(CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, k)
      .Set(CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, v)
      .Set(CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, o)
      .Set(CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, scale)
      .Finalize("the attention operation");
  Descriptor graph(api, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, attention)
      .Set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle)
      .Finalize("the operation graph");
  return graph;
}

// Engine configurations that cuDNN proposes, best first.
std::vector<Descriptor> EngineConfigs(const Api& api, const Descriptor& graph) {
  Descriptor heuristic(api, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  heuristic.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
      .Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode, 1)
      .Finalize("the engine heuristic");
  std::int64_t count = 0;
  api.Check(api.get_attribute(heuristic.raw(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                              CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
            "the engine heuristic's count");
  std::vector<Descriptor> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < count; ++i) {
    configs.emplace_back(api, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    raw.push_back(configs.back().raw());
  }
  std::int64_t filled = 0;
  api.Check(api.get_attribute(heuristic.raw(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                              CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &filled, raw.data()),
            "the engine heuristic's results");
  while (static_cast<std::int64_t>(configs.size()) > filled) configs.pop_back();
  return configs;
}

// The first proposal that compiles.
Descriptor ExecutionPlan(const Api& api, cudnnHandle_t handle, const Descriptor& graph) {
  std::string why = "cuDNN proposes no engine for this attention";
  for (const Descriptor& config : EngineConfigs(api, graph)) {
    Descriptor plan(api, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle)
        .Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    const cudnnStatus_t status = plan.TryFinalize();
    if (status == CUDNN_STATUS_SUCCESS) return plan;
    why = api.Describe(status, "the execution plan");
  }
  throw Error(Fault::kUnsupported, why);
}

}  // namespace

// The library and one handle, made when first needed and kept, and a plan per shape: cuDNN compiles
// kernels for it (up to half a second each), and content sets of a case differ in addresses only.
struct CudnnSession {
  explicit CudnnSession(const std::vector<std::string>& paths) : api(paths) {}
  CudnnSession(const CudnnSession&) = delete;
  CudnnSession& operator=(const CudnnSession&) = delete;
  ~CudnnSession() {
    plans_.clear();
    if (handle_ != nullptr) api.destroy(handle_);
  }
  cudnnHandle_t handle() {
    if (handle_ == nullptr) api.Check(api.create(&handle_), "cudnnCreate");
    return handle_;
  }
  const Descriptor& Plan(const Args& args) {
    const PlanKey key = KeyOf(args);
    const auto known = plans_.find(key);
    if (known != plans_.end()) return known->second;
    const Descriptor graph = AttentionGraph(api, handle(), args);
    return plans_.emplace(key, ExecutionPlan(api, handle(), graph)).first->second;
  }

  const Api api;

 private:
  // All that a graph depends on: sizes, strides, alignments.
  using PlanKey = std::array<std::int64_t, 5 + 4 * 4>;
  static PlanKey KeyOf(const Args& args) {
    PlanKey key = {args.b, args.h, args.nq, args.nk, args.d};
    std::size_t at = 5;
    for (const auto& [strides, data] : {std::pair{args.q_strides, args.q},
                                        {args.k_strides, args.k},
                                        {args.v_strides, args.v},
                                        {args.o_strides, static_cast<const bf16*>(args.o)}}) {
      for (const std::int64_t value :
           {strides.batch, strides.token, strides.head, Alignment(data)}) {
        key[at++] = value;
      }
    }
    return key;
  }

  cudnnHandle_t handle_ = nullptr;
  std::map<PlanKey, Descriptor> plans_;
};

namespace {

// A plan with its workspace and the addresses it works on.
class PreparedAttention {
 public:
  PreparedAttention(std::shared_ptr<CudnnSession> session, const Args& args)
      : session_(std::move(session)),
        scale_(1 / std::sqrt(static_cast<float>(args.d))),
        plan_(session_->Plan(args)),
        pack_(session_->api, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) {
    const Api& api = session_->api;
    std::int64_t bytes = 0, count = 0;
    api.Check(api.get_attribute(plan_.raw(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                CUDNN_TYPE_INT64, 1, &count, &bytes),
              "the workspace size");
    if (bytes > 0) {
      CheckCuda(cudaMalloc(&workspace_, static_cast<std::size_t>(bytes)),
                "cudaMalloc of cuDNN's workspace");
    }
    const std::int64_t ids[] = {kQ, kK, kV, kO, kScale};
    const void* const pointers[] = {args.q, args.k, args.v, args.o, &scale_};
    pack_.Set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids, 5)
        .Set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers, 5)
        .Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &workspace_, 1)
        .Finalize("the variant pack");
  }
  PreparedAttention(const PreparedAttention&) = delete;
  PreparedAttention& operator=(const PreparedAttention&) = delete;
  ~PreparedAttention() {
    if (workspace_ != nullptr) cudaFree(workspace_);
  }

  void Enqueue(Stream stream) const {
    const Api& api = session_->api;
    api.Check(api.set_stream(session_->handle(), stream), "cudnnSetStream", Fault::kDevice);
    api.Check(api.execute(session_->handle(), plan_.raw(), pack_.raw()), "cudnnBackendExecute",
              Fault::kDevice);
  }

 private:
  std::shared_ptr<CudnnSession> session_;
  float scale_;
  const Descriptor& plan_;  // the session's
  Descriptor pack_;
  void* workspace_ = nullptr;
};

}  // namespace

Cudnn::Cudnn(const std::vector<std::string>& paths)
    : session_(std::make_shared<CudnnSession>(paths)) {}

const std::string& Cudnn::why_not() const { return session_->api.why_not; }

DeviceCall Cudnn::Prepare(const Args& args) const {
  if (!why_not().empty()) throw Error(Fault::kUnsupported, why_not());
  AddNote(session_->api.text);
  const auto prepared = std::make_shared<PreparedAttention>(session_, args);
  return [prepared](Stream stream) { prepared->Enqueue(stream); };
}

}  // namespace assay::peers
