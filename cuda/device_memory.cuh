// Memory of the current device that frees itself.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "cuda/check.h"

namespace assay {

template <class T>
class DeviceMemory {
 public:
  // Uninitialised.
  explicit DeviceMemory(std::size_t size) : size_(size) {
    CheckCuda(cudaMalloc(&data_, bytes()), "cudaMalloc");
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { cudaFree(data_); }

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }

  void CopyIn(const void* host) const {
    CheckCuda(cudaMemcpy(data_, host, bytes(), cudaMemcpyHostToDevice), "cudaMemcpy to the device");
  }
  // Waits for the kernels of the default stream before it.
  void CopyOut(void* host) const {
    CheckCuda(cudaMemcpy(host, data_, bytes(), cudaMemcpyDeviceToHost),
              "cudaMemcpy from the device");
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

}  // namespace assay
