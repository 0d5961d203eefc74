// A tiny operator with one right backend and one for every way to fail: what the runner must
// survive. Test code; shared by the test program and by the worker that it starts.
#pragma once

#include "ops/registry.h"

namespace assay {

// sum[i] = a[i] + b[i] for N fp32 elements; definition "faulty_sum".
Family MakeFaultyFamily();
std::vector<Backend> FaultyDeviceBackends();
const Registry& FaultyRegistry();

}  // namespace assay
