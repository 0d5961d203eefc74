// The H200 kernels of this room: which exist, which one a shape gets, and calls prepared for
// replay.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/stream.h"
#include "ops/dense_gemm_bf16_nt/spec.h"

namespace assay::dense_gemm_bf16_nt {

// How one call runs: a kernel of Sm90Kernels() and the order of its tiles
// (cuda/tile_scheduler.cuh).
struct Plan {
  std::string_view kernel = "generic";
  int band = 8;             // rows of tile clusters in a band
  bool by_columns = false;  // bands of columns instead
};

// Names: tile M x N, cluster M x N, "coop" (two warpgroups share a tile) or "ping" (one tile each).
// The last is "generic": any stride, base and size.
std::vector<std::string_view> Sm90Kernels();

// plan_sm90.cpp. Empty when TMA can address the tensors, else the tensor, the value and the
// multiple it needs.
std::string WhyNotTma(const Args& args);

// Measured for the captured shapes, estimated for others; "generic" where TMA is impossible.
Plan ChoosePlan(const Args& args);

// Builds tensor maps once; the result only enqueues. Pointers are device memory. Throws kInput for
// bad arguments or a plan that cannot run them, kDevice when the device or driver fails.
std::function<void(Stream)> PrepareCuda(const Args& args, const Plan& plan);

// generic_sm90.cu
void LaunchGeneric(const Args& args, Stream stream);

}  // namespace assay::dense_gemm_bf16_nt
