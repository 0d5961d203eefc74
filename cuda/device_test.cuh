// What device tests share: a fixture that skips where no GPU is, and arrays on the device.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cuda/check.h"
#include "cuda/device_memory.cuh"

namespace assay {

class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
      GTEST_SKIP() << "no GPU: " << cudaGetErrorString(error);
    }
    int major = 0;
    CheckCuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0),
              "cudaDeviceGetAttribute of compute capability");
    if (major != 9) GTEST_SKIP() << "compute capability " << major << ".x, the code is for 9.0";
  }
};

template <class T>
class DeviceArray : public DeviceMemory<T> {
 public:
  // Zeros.
  explicit DeviceArray(std::size_t count) : DeviceMemory<T>(count) {
    CheckCuda(cudaMemset(this->data(), 0, this->bytes()), "cudaMemset of a test array");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceMemory<T>(values.size()) {
    Set(values);
  }

  void Set(const std::vector<T>& values) { this->CopyIn(values.data()); }
  std::vector<T> Get() const {
    std::vector<T> values(this->size());
    this->CopyOut(values.data());
    return values;
  }
};

// Launches with a cluster of `cluster` CTAs and dynamic shared memory; waits and checks.
template <class Kernel, class... Arguments>
void LaunchCluster(Kernel kernel, int blocks, int threads, int cluster, std::size_t shared_bytes,
                   Arguments... arguments) {
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes)),
            "cudaFuncSetAttribute of shared memory");
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  CheckCuda(cudaLaunchKernelEx(&config, kernel, arguments...), "launch of a test kernel");
  CheckCuda(cudaDeviceSynchronize(), "test kernel");
}

}  // namespace assay
