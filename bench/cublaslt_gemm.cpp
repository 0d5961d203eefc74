#include "bench/cublaslt_gemm.h"

#include <cuda_runtime_api.h>

#include "cuda/check.h"
#include "peers/cublaslt_api.h"
#include "peers/loader.h"

namespace assay {

// Handle, workspace and descriptors live until the process ends.
struct CublasLtGemm::State {
  peers::CublasLtApi api{peers::VendorPaths("libcublasLt.so.13")};
  cublasLtHandle_t handle = nullptr;
  peers::CublasLtProduct product;
  std::vector<cublasLtMatmulAlgo_t> candidates;
  void* workspace = nullptr;
};

CublasLtGemm::CublasLtGemm() : state_(std::make_unique<State>()) {
  State& s = *state_;
  if (!s.api.why_not.empty()) throw Error(Fault::kUnsupported, s.api.why_not);
  s.api.Check(s.api.create(&s.handle), "cublasLtCreate");
  CheckCuda(cudaMalloc(&s.workspace, peers::kCublasLtWorkspaceBytes),
            "cudaMalloc of the cuBLASLt workspace");
}

CublasLtGemm::~CublasLtGemm() = default;

// Column-major view: C^T [N, M] = (B^T)^T [N, K] * A^T [K, M].
int CublasLtGemm::Plan(const dense_gemm_bf16_nt::Args& shape) {
  State& s = *state_;
  const cublasOperation_t transposed = CUBLAS_OP_T;
  s.api.Check(s.api.desc_create(&s.product.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              "cublasLtMatmulDescCreate");
  s.api.Check(
      s.api.desc_set(s.product.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
      "cublasLtMatmulDescSetAttribute");
  const auto layout = [&s](cublasLtMatrixLayout_t* result, std::int64_t rows, std::int64_t columns,
                           std::int64_t stride) {
    s.api.Check(s.api.layout_create(result, CUDA_R_16BF, static_cast<std::uint64_t>(rows),
                                    static_cast<std::uint64_t>(columns), stride),
                "cublasLtMatrixLayoutCreate");
  };
  layout(&s.product.a, shape.k, shape.n, shape.ldb);
  layout(&s.product.b, shape.k, shape.m, shape.lda);
  layout(&s.product.d, shape.n, shape.m, shape.ldc);
  s.candidates = peers::CublasLtCandidates(s.api, s.handle, s.product);
  return static_cast<int>(s.candidates.size());
}

void CublasLtGemm::Run(const dense_gemm_bf16_nt::Args& args, int index, Stream stream) {
  State& s = *state_;
  const float one = 1, zero = 0;
  s.api.Check(s.api.matmul(s.handle, s.product.desc, &one, args.b, s.product.a, args.a, s.product.b,
                           &zero, args.c, s.product.d, args.c, s.product.d,
                           &s.candidates[static_cast<std::size_t>(index)], s.workspace,
                           peers::kCublasLtWorkspaceBytes, stream),
              "cublasLtMatmul");
}

std::string CublasLtGemm::Describe(int index) const {
  const auto number = [&](cublasLtMatmulAlgoConfigAttributes_t which) {
    std::uint32_t value = 0;
    std::size_t written = 0;
    state_->api.config_get(&state_->candidates[static_cast<std::size_t>(index)], which, &value,
                           sizeof(value), &written);
    return std::to_string(written == 2 ? value & 0xFFFF : value);
  };
  return "algo " + number(CUBLASLT_ALGO_CONFIG_ID) + " tile " +
         number(CUBLASLT_ALGO_CONFIG_TILE_ID) + " stages " +
         number(CUBLASLT_ALGO_CONFIG_STAGES_ID) + " cluster " +
         number(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID) + " split-K " +
         number(CUBLASLT_ALGO_CONFIG_SPLITK_NUM) + " swizzle " +
         number(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING);
}

}  // namespace assay
