// Builds without nvcc 13 or without cublasLt.h: the backends are listed and say so.
#include "peers/cublaslt.h"

namespace assay::peers {

std::vector<Backend> CublasLtBackends(const std::vector<std::string>&) {
  std::vector<Backend> backends;
  for (const char* name : {"cublaslt", "cublaslt_best"}) {
    Backend backend;
    backend.name = name;
    backend.summary = "cuBLASLt (not in this build)";
    backend.device = "cuda";
    backend.supports = [](const Problem&, const Bundle&) {
      return std::string("this build has no cuBLASLt (no CUDA toolkit when it was configured)");
    };
    backends.push_back(std::move(backend));
  }
  return backends;
}

}  // namespace assay::peers
