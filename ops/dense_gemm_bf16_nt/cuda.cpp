// The `cuda` backend: our H200 kernels behind the seam of ops/family.h.
#include <cuda_runtime_api.h>

#include <string>

#include "ops/dense_gemm_bf16_nt/sm90.h"

namespace assay::dense_gemm_bf16_nt {
namespace {

// Empty when the current device runs sm_90a code.
std::string WhyNoDevice() {
  int count = 0, device = 0, major = 0, minor = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    return std::string("no GPU: ") +
           cudaGetErrorString(error == cudaSuccess ? cudaErrorNoDevice : error);
  }
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
    return "the GPU does not answer";
  }
  if (major != 9 || minor != 0) {
    return "the kernels are for compute capability 9.0, the GPU has " + std::to_string(major) +
           "." + std::to_string(minor);
  }
  return {};
}

}  // namespace

Backend CudaBackend() {
  Backend backend;
  backend.name = "cuda";
  backend.summary =
      "persistent wgmma kernels for sm_90a, chosen per shape; mma.sync where TMA cannot go";
  backend.device = "cuda";
  backend.supports = [](const Problem&, const Bundle&) { return WhyNoDevice(); };
  backend.bitwise = StepsOf16();
  backend.prepare = [](const Problem& problem, const Bundle&, const Bundle& inputs,
                       Bundle& outputs) {
    const Args args = Bind(problem, inputs, outputs);
    return DeviceCall(PrepareCuda(args, ChoosePlan(args)));
  };
  return backend;
}

}  // namespace assay::dense_gemm_bf16_nt
