// The matrix rate that a GPU reaches with the vendor's own library on random data.
#pragma once

#include <string>
#include <vector>

#include "cuda/ceilings.h"
#include "peers/loader.h"

namespace assay::peers {

// bf16 and e4m3 products by cuBLASLt, the fastest of its first eight candidates, on the current
// device, in FLOP/s: "bf16_matrix" (8192 cubed, on a chip that rests before each sample),
// "bf16_matrix_4096" (likewise) and "bf16_matrix_sustained" (8192 cubed without a pause for a
// second, where power limits); "fp8_matrix..." likewise. About ten seconds. Sampled elements are
// checked against fp64. Empty, with the reason in `why_not`, when the library is not among `paths`.
// Throws DeviceError when CUDA fails, kDevice when cuBLASLt does.
std::vector<Ceiling> MeasureMatrixRates(
    std::string& why_not, const std::vector<std::string>& paths = VendorPaths("libcublasLt.so.13"));

}  // namespace assay::peers
