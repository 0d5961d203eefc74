// Builds without nvcc 13 or without cublasLt.h: the backends are listed and say so.
#include "peers/cublaslt.h"
#include "peers/matrix_rate.h"

namespace assay::peers {
namespace {

constexpr const char* kAbsent =
    "this build has no cuBLASLt (no CUDA toolkit when it was configured)";

}  // namespace

std::vector<Backend> CublasLtBackends(const std::vector<std::string>&) {
  std::vector<Backend> backends;
  for (const char* name : {"cublaslt", "cublaslt_best"}) {
    Backend backend;
    backend.name = name;
    backend.summary = "cuBLASLt (not in this build)";
    backend.device = "cuda";
    backend.supports = [](const Problem&, const Bundle&) { return std::string(kAbsent); };
    backends.push_back(std::move(backend));
  }
  return backends;
}

std::vector<Ceiling> MeasureMatrixRates(std::string& why_not, const std::vector<std::string>&) {
  why_not = kAbsent;
  return {};
}

}  // namespace assay::peers
