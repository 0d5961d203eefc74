// Checks of the gates' parameters that the delta-rule rooms share.
#pragma once

#include "base/tensor.h"

namespace assay::gdn_decode {

// Every A_log is finite and at most 80, so that e^A_log is; throws kInput naming the element.
void CheckDecayRates(const Tensor& a_log);

// The same of the bundle's A_log, and every dt_bias is finite.
void CheckGates(const Bundle& inputs);

}  // namespace assay::gdn_decode
