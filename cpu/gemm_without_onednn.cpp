// Stands in for gemm_onednn.cpp where oneDNN was not found at build time.
#include "base/error.h"
#include "cpu/gemm_onednn.h"

namespace assay::cpu {

bool OneDnnBuiltIn() { return false; }
bool OneDnnIsFaster() { return false; }
void RunOneDnn(const GemmBf16Nt&, int) {
  throw Error(Fault::kUnsupported, "oneDNN was not found when assay was built");
}

}  // namespace assay::cpu
