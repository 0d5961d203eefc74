// The functions of cuBLASLt that we use. This header needs the toolkit: only the sources that
// CMake leaves out of builds without cublasLt.h include it.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/shared_library.h"

namespace assay::peers {

inline constexpr std::size_t kCublasLtWorkspaceBytes = std::size_t{64} << 20;

// `why_not` is empty when all functions are there and the major version is that of the header.
struct CublasLtApi {
  SharedLibrary library;
  std::string why_not;
  std::string text;  // "cuBLASLt 13.1.0 from /usr/local/cuda/lib64/libcublasLt.so.13"
  decltype(&cublasLtGetVersion) get_version = nullptr;
  decltype(&cublasLtGetStatusString) status_text = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) config_get = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;

  explicit CublasLtApi(const std::vector<std::string>& paths);

  // Throws `fault`, naming the call, when `status` is not success.
  void Check(cublasStatus_t status, const char* call, Fault fault = Fault::kDevice) const;
};

// A product as cuBLASLt sees it: D = op(A) op(B), C and D of one layout.
struct CublasLtProduct {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  std::uint32_t a_alignment = 256, b_alignment = 256, d_alignment = 256;  // bytes, of the addresses
};

// nvcc 13.0 dies on a vector of cublasLtMatmulAlgo_t itself, a struct without a name.
struct CublasLtAlgorithm {
  cublasLtMatmulAlgo_t value{};
};

// The first eight algorithms of the heuristic that need no more than the workspace above, best
// first by its own estimate; empty when it has none for this product.
std::vector<CublasLtAlgorithm> CublasLtCandidates(const CublasLtApi& api, cublasLtHandle_t handle,
                                                  const CublasLtProduct& product);

}  // namespace assay::peers
