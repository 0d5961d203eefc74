// cuBLASLt as a backend of dense_gemm_bf16_nt: bf16 in and out, fp32 compute, 64 MiB workspace.
#pragma once

#include <string>
#include <vector>

#include "ops/family.h"
#include "peers/loader.h"

namespace assay::peers {

// `cublaslt`: the heuristic's first algorithm. `cublaslt_best`: the fastest of its first eight, by
// timing them on the device when a shape is first prepared; a note tells which. Both take
// any M, N, K and throw kUnsupported, naming the call, when cuBLASLt cannot be set up or has no
// algorithm.
std::vector<Backend> CublasLtBackends(
    const std::vector<std::string>& paths = VendorPaths("libcublasLt.so.13"));

}  // namespace assay::peers
