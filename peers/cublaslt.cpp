#include "peers/cublaslt.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/stats.h"
#include "cuda/check.h"
#include "cuda/notes.h"
#include "ops/dense_gemm_bf16_nt/spec.h"
#include "peers/cublaslt_api.h"

namespace assay::peers {
namespace {

using dense_gemm_bf16_nt::Args;

// Rounds of timing. Each round runs every candidate once: a chip that slows down as it warms up
// (large products are limited by power) slows all of them alike.
constexpr int kRounds = 9;

// M, N, K and the alignments of A, B, C: content sets of one case share a choice.
using ChoiceKey = std::array<std::int64_t, 6>;

struct Choice {
  cublasLtMatmulAlgo_t algorithm{};
  std::string text;  // "candidate 3 of 8 (algorithm 66, tile 23, ...), 0.497 ms; first 0.575 ms"
};

// The library, one handle and one workspace, made when first needed and kept.
class Session {
 public:
  explicit Session(const std::vector<std::string>& paths) : api(paths) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    if (handle_ != nullptr) api.destroy(handle_);
    if (workspace_ != nullptr) cudaFree(workspace_);
  }

  const CublasLtApi api;
  std::map<ChoiceKey, Choice> choices;  // of cublaslt_best

  cublasLtHandle_t handle() {
    if (handle_ == nullptr) {
      api.Check(api.create(&handle_), "cublasLtCreate", Fault::kUnsupported);
    }
    return handle_;
  }
  void* workspace() {
    if (workspace_ == nullptr) {
      CheckCuda(cudaMalloc(&workspace_, kCublasLtWorkspaceBytes),
                "cudaMalloc of cuBLASLt's workspace");
    }
    return workspace_;
  }

 private:
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
};

// One product with its descriptors. cuBLASLt counts columns first: our row-major C [M,N] is its
// [N,M], so its first operand is B (transposed) and its second is A.
class Product {
 public:
  Product(std::shared_ptr<Session> session, const Args& args)
      : session_(std::move(session)), args_(args) {
    const CublasLtApi& api = session_->api;
    api.Check(api.desc_create(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    api.Check(api.desc_set(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
              "cublasLtMatmulDescSetAttribute");
    MakeLayout(&b_, args.k, args.n, args.ldb);
    MakeLayout(&a_, args.k, args.m, args.lda);
    MakeLayout(&c_, args.n, args.m, args.ldc);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product() {
    const CublasLtApi& api = session_->api;
    for (const cublasLtMatrixLayout_t layout : {a_, b_, c_}) {
      if (layout != nullptr) api.layout_destroy(layout);
    }
    if (desc_ != nullptr) api.desc_destroy(desc_);
  }

  // Best first by cuBLASLt's own estimate; never empty.
  std::vector<cublasLtMatmulAlgo_t> Candidates() const;
  void Enqueue(const cublasLtMatmulAlgo_t& algorithm, bf16* c, Stream stream) const {
    const float one = 1, zero = 0;
    const CublasLtApi& api = session_->api;
    api.Check(api.matmul(session_->handle(), desc_, &one, args_.b, b_, args_.a, a_, &zero, c, c_, c,
                         c_, &algorithm, session_->workspace(), kCublasLtWorkspaceBytes, stream),
              "cublasLtMatmul");
  }
  const Args& args() const { return args_; }
  void* workspace() const { return session_->workspace(); }
  const CublasLtApi& api() const { return session_->api; }

 private:
  void MakeLayout(cublasLtMatrixLayout_t* layout, std::int64_t rows, std::int64_t columns,
                  std::int64_t stride) const {
    session_->api.Check(
        session_->api.layout_create(layout, CUDA_R_16BF, static_cast<std::uint64_t>(rows),
                                    static_cast<std::uint64_t>(columns), stride),
        "cublasLtMatrixLayoutCreate");
  }

  std::shared_ptr<Session> session_;
  Args args_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
};

std::string ShapeName(const Args& args) {
  return "M " + std::to_string(args.m) + ", N " + std::to_string(args.n) + ", K " +
         std::to_string(args.k);
}

// The largest power of two up to 256 that divides the address: what cuBLASLt may assume.
std::uint32_t Alignment(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer) | 256;
  return std::uint32_t{1} << std::countr_zero(address);
}

std::vector<cublasLtMatmulAlgo_t> Product::Candidates() const {
  CublasLtProduct product{desc_, b_, a_, c_};
  product.a_alignment = Alignment(args_.b);
  product.b_alignment = Alignment(args_.a);
  product.d_alignment = Alignment(args_.c);
  std::vector<cublasLtMatmulAlgo_t> algorithms =
      CublasLtCandidates(session_->api, session_->handle(), product);
  if (algorithms.empty()) {
    throw Error(Fault::kUnsupported, "cuBLASLt has no algorithm for " + ShapeName(args_));
  }
  return algorithms;
}

// --- best of the candidates ---

template <class T>
T ConfigValue(const CublasLtApi& api, const cublasLtMatmulAlgo_t& algorithm,
              cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value{};
  std::size_t written = 0;
  api.config_get(&algorithm, attribute, &value, sizeof value, &written);
  return value;
}

std::string AlgorithmText(const CublasLtApi& api, const cublasLtMatmulAlgo_t& algorithm) {
  const auto number = [&](const char* name, auto value) {
    return std::string(name) + " " + std::to_string(value);
  };
  return number("algorithm", ConfigValue<std::int32_t>(api, algorithm, CUBLASLT_ALGO_CONFIG_ID)) +
         number(", tile",
                ConfigValue<std::uint32_t>(api, algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID)) +
         number(", stages",
                ConfigValue<std::uint32_t>(api, algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID)) +
         number(", split-K",
                ConfigValue<std::int32_t>(api, algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM)) +
         number(", cluster",
                ConfigValue<std::uint16_t>(api, algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID));
}

// A stream, two events and an output of our own: the caller's output must not hold a right answer
// before the judged call has run.
class Stopwatch {
 public:
  explicit Stopwatch(const Args& args) {
    CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    CheckCuda(cudaEventCreate(&begin_), "cudaEventCreate");
    CheckCuda(cudaEventCreate(&end_), "cudaEventCreate");
    const auto elements = static_cast<std::size_t>(args.m * args.ldc);
    CheckCuda(cudaMalloc(&c_, elements * sizeof(bf16)), "cudaMalloc of a trial output");
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    cudaFree(c_);
    if (end_ != nullptr) cudaEventDestroy(end_);
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  double Milliseconds(const Product& product, const cublasLtMatmulAlgo_t& algorithm) {
    // Keeps the stream busy until the product is enqueued: one that starts late would look slow.
    CheckCuda(cudaMemsetAsync(product.workspace(), 0, kCublasLtWorkspaceBytes, stream_),
              "cudaMemset of cuBLASLt's workspace");
    CheckCuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    product.Enqueue(algorithm, static_cast<bf16*>(c_), stream_);
    CheckCuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
    CheckCuda(cudaEventSynchronize(end_), "trial of a cuBLASLt algorithm");
    float milliseconds = 0;
    CheckCuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return milliseconds;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  void* c_ = nullptr;
};

Choice ChooseFastest(const Product& product, const std::vector<cublasLtMatmulAlgo_t>& candidates) {
  Stopwatch stopwatch(product.args());
  std::vector<std::vector<double>> samples(candidates.size());
  for (int round = -1; round < kRounds; ++round) {  // round -1 loads the kernels
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const double milliseconds = stopwatch.Milliseconds(product, candidates[i]);
      if (round >= 0) samples[i].push_back(milliseconds);
    }
  }
  std::vector<double> medians;
  for (const std::vector<double>& times : samples) medians.push_back(Median(times));
  const auto best =
      static_cast<std::size_t>(std::min_element(medians.begin(), medians.end()) - medians.begin());
  char times[80];
  std::snprintf(times, sizeof times, "), %.4f ms; first %.4f ms", medians[best], medians[0]);
  return {candidates[best], "candidate " + std::to_string(best + 1) + " of " +
                                std::to_string(candidates.size()) + " (" +
                                AlgorithmText(product.api(), candidates[best]) + times};
}

// Chooses once per key in a session.
const Choice& Fastest(Session& session, const Product& product,
                      const std::vector<cublasLtMatmulAlgo_t>& candidates) {
  const Args& args = product.args();
  const ChoiceKey key = {args.m,           args.n, args.k, Alignment(args.a), Alignment(args.b),
                         Alignment(args.c)};
  const auto known = session.choices.find(key);
  if (known != session.choices.end()) return known->second;
  return session.choices[key] = ChooseFastest(product, candidates);
}

DeviceCall Prepare(const std::shared_ptr<Session>& session, const Args& args, bool fastest) {
  if (args.m == 0 || args.n == 0) return [](Stream) {};
  const auto product = std::make_shared<Product>(session, args);
  const std::vector<cublasLtMatmulAlgo_t> candidates = product->Candidates();
  session->workspace();  // allocated here: the call may not
  AddNote(session->api.text);
  cublasLtMatmulAlgo_t algorithm = candidates.front();
  if (fastest) {
    const Choice& choice = Fastest(*session, *product, candidates);
    AddNote(choice.text);
    algorithm = choice.algorithm;
  }
  return [product, algorithm](Stream stream) {
    product->Enqueue(algorithm, product->args().c, stream);
  };
}

}  // namespace

std::vector<Backend> CublasLtBackends(const std::vector<std::string>& paths) {
  std::vector<Backend> backends;
  const OpenedLate<Session> session(paths);
  for (const bool fastest : {false, true}) {
    Backend backend;
    backend.name = fastest ? "cublaslt_best" : "cublaslt";
    backend.summary = fastest ? "cuBLASLt, the fastest of its first eight candidates"
                              : "cuBLASLt, the algorithm that its heuristic puts first";
    backend.device = "cuda";
    backend.supports = [session](const Problem&, const Bundle&) { return session()->api.why_not; };
    backend.prepare = [session, fastest](const Problem& problem, const Bundle&,
                                         const Bundle& inputs, Bundle& outputs) {
      const std::string& why_not = session()->api.why_not;
      if (!why_not.empty()) throw Error(Fault::kUnsupported, why_not);
      return Prepare(session(), dense_gemm_bf16_nt::Bind(problem, inputs, outputs), fastest);
    };
    backends.push_back(std::move(backend));
  }
  return backends;
}

}  // namespace assay::peers
