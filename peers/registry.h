// The registry with the libraries of other parties as further backends of its families.
#pragma once

#include "ops/registry.h"

namespace assay::peers {

// Adds `cublaslt`, `cublaslt_best` and `cudnn` where a family has a problem for them. They are
// listed on every machine; where a library is absent their `supports` says so.
Registry WithVendorBackends(const Registry& base);

}  // namespace assay::peers
