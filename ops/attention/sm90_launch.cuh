// What the files with kernel instances share: arguments for one tiling, launches.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <functional>
#include <string_view>

#include "base/error.h"
#include "cuda/check.h"
#include "ops/attention/sm90_params.cuh"

namespace assay::attention {

// Tensor maps and counts for tiles of `rows` queries and `keys` keys.
Params MakeParams(const Sm90Call& call, const Sm90Plan& plan, int rows, int keys);

Visibility VisibilityOf(const Sm90Call& call);

using Sm90Prepare = std::function<void(Stream)> (*)(const Sm90Call&, const Sm90Plan&);

// How `kernel` is prepared for this visibility; null where there is no such instance.
Sm90Prepare FindCore(std::string_view kernel, Visibility visibility);
Sm90Prepare FindShort(std::string_view kernel, Visibility visibility);

struct Sm90Instance {
  std::string_view kernel;
  Visibility visibility;
  Sm90Prepare prepare;
};

template <std::size_t kCount>
Sm90Prepare FindIn(const std::array<Sm90Instance, kCount>& instances, std::string_view kernel,
                   Visibility visibility) {
  for (const Sm90Instance& instance : instances) {
    if (instance.kernel == kernel && instance.visibility == visibility) return instance.prepare;
  }
  return nullptr;
}

// A call that launches `kernel` with `blocks` CTAs in clusters of `cluster`.
template <class Kernel>
std::function<void(Stream)> Launcher(Kernel kernel, const Params& params, std::int64_t blocks,
                                     int threads, int cluster, std::size_t shared_bytes) {
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes)),
            "cudaFuncSetAttribute of shared memory");
  return [=](Stream stream) {
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = cluster > 1 ? 1 : 0;
    CheckCuda(cudaLaunchKernelEx(&config, kernel, params), "launch of an attention kernel");
  };
}

}  // namespace assay::attention
