// Attention forward as one operation graph of cuDNN 9, through its C interface.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/stream.h"
#include "ops/family.h"
#include "ops/noncausal_dense_attention/spec.h"

namespace assay::peers {

class Cudnn {
 public:
  // Opens the first of `paths` that loads; needs no GPU.
  explicit Cudnn(const std::vector<std::string>& paths);

  // Why no graph can be built at all: library absent, function absent, wrong version; "" = usable.
  const std::string& why_not() const;

  // Softmax(Q K^T / sqrt(d)) V without a mask; strides of Q, K, V and O as given. Chooses the first
  // engine of cuDNN's heuristic that accepts the graph and allocates its workspace; notes the
  // library's version. Throws
  // kUnsupported, with cuDNN's own words, when no handle can be made or no engine takes the shape.
  DeviceCall Prepare(const noncausal_dense_attention::Args& args) const;

 private:
  std::shared_ptr<struct CudnnSession> session_;
};

}  // namespace assay::peers
