// The `cuda` backend: our H200 kernels behind the seam of ops/family.h.
#include "cuda/check.h"
#include "ops/gdn_prefill/sm90.h"

namespace assay::gdn_prefill {

Backend CudaBackend() {
  Backend backend;
  backend.name = "cuda";
  backend.summary = "chunks of 64 tokens on tensor cores; the recurrence for short sequences";
  backend.device = "cuda";
  backend.supports = [](const Problem&, const Bundle&) { return WhyNoSm90(); };
  backend.prepare = [](const Problem& problem, const Bundle& host_inputs, const Bundle& inputs,
                       Bundle& outputs) {
    const Args args = BindOnDevice(problem, inputs, outputs);
    const std::int64_t* cu_seqlens = host_inputs["cu_seqlens"].as<std::int64_t>();
    return DeviceCall(PrepareCuda(args, cu_seqlens, ChoosePlan(cu_seqlens, args.sequences)));
  };
  return backend;
}

}  // namespace assay::gdn_prefill
