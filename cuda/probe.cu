// One trivial kernel that only sm_90a accepts: proves dialect, architecture and static run time.
#include <cuda_runtime.h>

#include "cuda/probe.h"

namespace assay {
namespace {

// setmaxnreg exists on sm_90a alone and needs the launch bound (ptxas warning C7508 otherwise).
__global__ void __launch_bounds__(128, 1) ProbeKernel(int* out) {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  if (threadIdx.x == 0) *out = 42;
}

}  // namespace

int CudaProbe() {
  int* device = nullptr;
  if (const cudaError_t error = cudaMalloc(&device, sizeof(int)); error != cudaSuccess) {
    return -static_cast<int>(error);
  }
  ProbeKernel<<<1, 128>>>(device);
  int host = 0;
  const cudaError_t error = cudaMemcpy(&host, device, sizeof(int), cudaMemcpyDeviceToHost);
  cudaFree(device);
  return error == cudaSuccess ? host : -static_cast<int>(error);
}

}  // namespace assay
