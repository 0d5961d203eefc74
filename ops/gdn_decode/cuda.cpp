// The `cuda` backend: our H200 kernels behind the seam of ops/family.h.
#include "cuda/check.h"
#include "ops/gdn_decode/sm90.h"

namespace assay::gdn_decode {

Backend CudaBackend() {
  Backend backend;
  backend.name = "cuda";
  backend.summary = "one pass over each state row, 8 lanes a row, gates inside";
  backend.device = "cuda";
  backend.supports = [](const Problem&, const Bundle&) { return WhyNoSm90(); };
  backend.prepare = [](const Problem& problem, const Bundle&, const Bundle& inputs,
                       Bundle& outputs) {
    const Args args = BindOnDevice(problem, inputs, outputs);
    return DeviceCall(PrepareCuda(args, ChoosePlan(args)));
  };
  return backend;
}

}  // namespace assay::gdn_decode
