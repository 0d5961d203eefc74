// For .cu files: a failed CUDA call becomes a DeviceError that names the call and the place.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string>

namespace assay {

// `what`: the call in words, e.g. "cudaMemcpy of inputs".
void CheckCuda(cudaError_t error, const char* what,
               std::source_location where = std::source_location::current());

// Of the current device. Throws kDevice.
int Multiprocessors();

// Empty when the current device runs sm_90a code, else the reason.
std::string WhyNoSm90();

}  // namespace assay
