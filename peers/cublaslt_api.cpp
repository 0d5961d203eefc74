#include "peers/cublaslt_api.h"

#include <array>
#include <memory>

#include "peers/loader.h"

namespace assay::peers {

constexpr int kCandidates = 8;

CublasLtApi::CublasLtApi(const std::vector<std::string>& paths)
    : library(SharedLibrary::Open(paths)) {
  why_not = library.why_not();
  if (!library.loaded()) return;
  const auto load = [&](auto& function, const char* symbol) {
    library.Load(function, symbol, why_not);
  };
  load(get_version, "cublasLtGetVersion");
  load(status_text, "cublasLtGetStatusString");
  load(create, "cublasLtCreate");
  load(destroy, "cublasLtDestroy");
  load(desc_create, "cublasLtMatmulDescCreate");
  load(desc_destroy, "cublasLtMatmulDescDestroy");
  load(desc_set, "cublasLtMatmulDescSetAttribute");
  load(layout_create, "cublasLtMatrixLayoutCreate");
  load(layout_destroy, "cublasLtMatrixLayoutDestroy");
  load(preference_create, "cublasLtMatmulPreferenceCreate");
  load(preference_destroy, "cublasLtMatmulPreferenceDestroy");
  load(preference_set, "cublasLtMatmulPreferenceSetAttribute");
  load(heuristic, "cublasLtMatmulAlgoGetHeuristic");
  load(config_get, "cublasLtMatmulAlgoConfigGetAttribute");
  load(matmul, "cublasLtMatmul");
  if (!why_not.empty()) return;
  const std::size_t version = get_version();
  if (version / 10000 != CUBLAS_VER_MAJOR) {
    why_not = library.path() + " is version " + VersionText(version) +
              ", this build speaks version " + std::to_string(CUBLAS_VER_MAJOR);
    return;
  }
  text = "cuBLASLt " + VersionText(version) + " from " + library.path();
}

void CublasLtApi::Check(cublasStatus_t status, const char* call, Fault fault) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(fault, std::string("cuBLASLt: ") + call + " failed with " +
                         std::to_string(static_cast<int>(status)) + " (" + status_text(status) +
                         ")");
}

std::vector<CublasLtAlgorithm> CublasLtCandidates(const CublasLtApi& api, cublasLtHandle_t handle,
                                                  const CublasLtProduct& product) {
  cublasLtMatmulPreference_t preference = nullptr;
  api.Check(api.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, decltype(api.preference_destroy)> owner(
      preference, api.preference_destroy);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    api.Check(api.preference_set(preference, attribute, &value, sizeof value),
              "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kCublasLtWorkspaceBytes});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, product.a_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, product.b_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, product.d_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, product.d_alignment);
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> results{};
  int found = 0;
  const cublasStatus_t status =
      api.heuristic(handle, product.desc, product.a, product.b, product.d, product.d, preference,
                    kCandidates, results.data(), &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) api.Check(status, "cublasLtMatmulAlgoGetHeuristic");
  std::vector<CublasLtAlgorithm> algorithms;
  for (int i = 0; i < found; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<std::size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back({result.algo});
  }
  return algorithms;
}

}  // namespace assay::peers
