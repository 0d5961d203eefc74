// The `cuda` backend: our H200 kernels behind the seam of ops/family.h.
#include "cuda/check.h"
#include "ops/dense_gemm_bf16_nt/sm90.h"

namespace assay::dense_gemm_bf16_nt {

Backend CudaBackend() {
  Backend backend;
  backend.name = "cuda";
  backend.summary =
      "persistent wgmma kernels for sm_90a, chosen per shape; mma.sync where TMA cannot go";
  backend.device = "cuda";
  backend.supports = [](const Problem&, const Bundle&) { return WhyNoSm90(); };
  backend.bitwise = StepsOf16();
  backend.prepare = [](const Problem& problem, const Bundle&, const Bundle& inputs,
                       Bundle& outputs) {
    const Args args = Bind(problem, inputs, outputs);
    return DeviceCall(PrepareCuda(args, ChoosePlan(args)));
  };
  return backend;
}

}  // namespace assay::dense_gemm_bf16_nt
