// The faulty family on a real GPU: the same mistakes as replay/faulty_device.cpp simulates. Test
// code.
#pragma once

#include "ops/registry.h"

namespace assay {

// Definition "faulty_sum" with backends that compute on the current CUDA device, right and wrong.
const Registry& RealFaultsRegistry();

}  // namespace assay
