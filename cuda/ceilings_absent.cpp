// Builds without nvcc 13.
#include "base/error.h"
#include "cuda/ceilings.h"

namespace assay {

std::vector<Ceiling> MeasureDeviceCeilings() {
  throw Error(Fault::kUnsupported, "this build has no CUDA: the ceilings of a GPU need it");
}

}  // namespace assay
