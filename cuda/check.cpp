#include "cuda/check.h"

#include <string>

#include "cuda/accelerator.h"

namespace assay {

void CheckCuda(cudaError_t error, const char* what, std::source_location where) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // what is reported here must not surface again after the next launch
  std::string file = where.file_name();
  file = file.substr(file.rfind('/') + 1);
  throw DeviceError(std::string(what) + ": " + cudaGetErrorString(error) + " (" +
                    cudaGetErrorName(error) + ", " + file + ":" + std::to_string(where.line()) +
                    ")");
}

int Multiprocessors() {
  int device = 0, count = 0;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
  CheckCuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
            "cudaDeviceGetAttribute of multiprocessors");
  return count;
}

std::string WhyNoSm90() {
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

}  // namespace assay
