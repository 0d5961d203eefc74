// Builds without nvcc.
#include "cuda/accelerator.h"
#include "cuda/timing_probes.h"

namespace assay {

std::unique_ptr<Accelerator> OpenAccelerator(int /*rank*/, std::string& why_not) {
  why_not = "this build has no CUDA code (no nvcc 13 was found when it was configured)";
  return nullptr;
}

std::unique_ptr<TimingProbes> MakeTimingProbes(Accelerator&, std::size_t) { return nullptr; }

}  // namespace assay
