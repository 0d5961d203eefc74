// The matrix rate that a GPU reaches with the vendor's own library on random data.
#pragma once

#include <string>
#include <vector>

#include "cuda/ceilings.h"
#include "peers/loader.h"

namespace assay::peers {

// bf16 and e4m3 products of 8192 and 4096 cubed by cuBLASLt, the fastest of its first eight
// candidates, on the current device; "bf16_matrix", "bf16_matrix_4096", "fp8_matrix", ... in
// FLOP/s. Sampled elements are checked against fp64. Empty, with the reason in `why_not`, when the
// library is not among `paths`. Throws DeviceError when CUDA fails, kDevice when cuBLASLt does.
std::vector<Ceiling> MeasureMatrixRates(
    std::string& why_not, const std::vector<std::string>& paths = VendorPaths("libcublasLt.so.13"));

}  // namespace assay::peers
