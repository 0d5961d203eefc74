// Launching a kernel so that it may overlap the one before it.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/check.h"
#include "cuda/stream.h"

namespace assay {

// Enqueues a kernel of one-dimensional blocks. With `overlap_launch` it may start while the kernel
// before it in the stream still runs (programmatic dependent launch): it must then call
// GridDepControlWait before it touches global memory. `shared_bytes` of dynamic shared memory,
// which the kernel must allow. Throws kDevice, naming `what`.
template <class... Parameters, class... Arguments>
void LaunchKernelWithShared(void (*kernel)(Parameters...), const char* what, std::int64_t blocks,
                            int threads, std::size_t shared_bytes, bool overlap_launch,
                            Stream stream, const Arguments&... arguments) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap_launch ? 1 : 0;
  CheckCuda(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

// The same without dynamic shared memory.
template <class... Parameters, class... Arguments>
void LaunchKernel(void (*kernel)(Parameters...), const char* what, std::int64_t blocks, int threads,
                  bool overlap_launch, Stream stream, const Arguments&... arguments) {
  LaunchKernelWithShared(kernel, what, blocks, threads, 0, overlap_launch, stream, arguments...);
}

}  // namespace assay
