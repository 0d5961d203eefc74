// The `cuda` backend: our H200 kernels behind the seam of ops/family.h.
#include "cuda/check.h"
#include "ops/kda_decode/sm90.h"

namespace assay::kda_decode {

Backend CudaBackend() {
  Backend backend;
  backend.name = "cuda";
  backend.summary = "one pass over each state row, a warp holds rows of V, gates inside";
  backend.device = "cuda";
  backend.supports = [](const Problem&, const Bundle&) { return WhyNoSm90(); };
  backend.prepare = [](const Problem& problem, const Bundle&, const Bundle& inputs,
                       Bundle& outputs) {
    return DeviceCall(PrepareCuda(Bind(problem, inputs, outputs)));
  };
  return backend;
}

}  // namespace assay::kda_decode
