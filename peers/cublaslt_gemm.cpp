#include "peers/cublaslt_gemm.h"

#include <cuda_runtime_api.h>

#include <bit>
#include <utility>

#include "base/error.h"
#include "cuda/check.h"

namespace assay::peers {
namespace {

template <class T>
T ConfigValue(const CublasLtApi& api, const CublasLtAlgorithm& algorithm,
              cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value{};
  std::size_t written = 0;
  api.config_get(&algorithm.value, attribute, &value, sizeof value, &written);
  return value;
}

}  // namespace

CublasLtSession::~CublasLtSession() {
  if (handle_ != nullptr) api.destroy(handle_);
  if (workspace_ != nullptr) cudaFree(workspace_);
}

cublasLtHandle_t CublasLtSession::handle() {
  if (handle_ == nullptr) api.Check(api.create(&handle_), "cublasLtCreate", Fault::kUnsupported);
  return handle_;
}

void* CublasLtSession::workspace() {
  if (workspace_ == nullptr) {
    CheckCuda(cudaMalloc(&workspace_, kCublasLtWorkspaceBytes),
              "cudaMalloc of cuBLASLt's workspace");
  }
  return workspace_;
}

CublasLtGemm::CublasLtGemm(std::shared_ptr<CublasLtSession> session,
                           const dense_gemm_bf16_nt::Args& args)
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

CublasLtGemm::~CublasLtGemm() {
  const CublasLtApi& api = session_->api;
  for (const cublasLtMatrixLayout_t layout : {a_, b_, c_}) {
    if (layout != nullptr) api.layout_destroy(layout);
  }
  if (desc_ != nullptr) api.desc_destroy(desc_);
}

void CublasLtGemm::MakeLayout(cublasLtMatrixLayout_t* layout, std::int64_t rows,
                              std::int64_t columns, std::int64_t stride) const {
  session_->api.Check(
      session_->api.layout_create(layout, CUDA_R_16BF, static_cast<std::uint64_t>(rows),
                                  static_cast<std::uint64_t>(columns), stride),
      "cublasLtMatrixLayoutCreate");
}

std::vector<CublasLtAlgorithm> CublasLtGemm::Candidates() const {
  CublasLtProduct product{desc_, b_, a_, c_};
  product.a_alignment = CublasLtAlignment(args_.b);
  product.b_alignment = CublasLtAlignment(args_.a);
  product.d_alignment = CublasLtAlignment(args_.c);
  std::vector<CublasLtAlgorithm> algorithms =
      CublasLtCandidates(session_->api, session_->handle(), product);
  if (algorithms.empty()) {
    throw Error(Fault::kUnsupported, "cuBLASLt has no algorithm for M " + std::to_string(args_.m) +
                                         ", N " + std::to_string(args_.n) + ", K " +
                                         std::to_string(args_.k));
  }
  return algorithms;
}

void CublasLtGemm::Enqueue(const CublasLtAlgorithm& algorithm,
                           const dense_gemm_bf16_nt::Args& operands, Stream stream) const {
  const float one = 1, zero = 0;
  const CublasLtApi& api = session_->api;
  api.Check(api.matmul(session_->handle(), desc_, &one, operands.b, b_, operands.a, a_, &zero,
                       operands.c, c_, operands.c, c_, &algorithm.value, session_->workspace(),
                       kCublasLtWorkspaceBytes, stream),
            "cublasLtMatmul");
}

std::uint32_t CublasLtAlignment(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer) | 256;
  return std::uint32_t{1} << std::countr_zero(address);
}

std::string AlgorithmText(const CublasLtApi& api, const CublasLtAlgorithm& algorithm) {
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

}  // namespace assay::peers
