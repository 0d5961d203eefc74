// Builds without nvcc 13 or without cudnn_graph.h: the backends are listed and say so.
#include "peers/cudnn.h"

namespace assay::peers {
namespace {

Backend Absent() {
  Backend backend;
  backend.name = "cudnn";
  backend.summary = "cuDNN (not in this build)";
  backend.device = "cuda";
  backend.supports = [](const Problem&, const Bundle&) {
    return std::string("this build has no cuDNN (no cudnn_graph.h when it was configured)");
  };
  return backend;
}

}  // namespace

Backend CudnnDenseAttention(const std::vector<std::string>&) { return Absent(); }
Backend CudnnPrefixCachedAttention(const std::vector<std::string>&) { return Absent(); }

}  // namespace assay::peers
