// Runs single matrix instructions on the device: the measuring instrument behind
// base/tensor_core.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/tensor_core.h"

namespace assay {

// Chains of `steps` instructions, `count` of them, each on its own operands (host memory):
//   a [count, m, steps * 32 bytes]   b [count, n, steps * 32 bytes]   c, d [count, m, n] fp32 bits
// Throws DeviceError.
void RunMatrixInstructions(const MatrixInstruction& instruction, int count, int steps,
                           const std::byte* a, const std::byte* b, const std::uint32_t* c,
                           std::uint32_t* d);

// "" when a device that can run them is here, else why not.
std::string MatrixInstructionsUnsupported();

}  // namespace assay
