// Does the CUDA side of this build work on this machine?
#pragma once

namespace assay {

// Runs one sm_90a kernel. 42 on success, else minus the cudaError_t (-35 or -100: no driver or no
// device, which is normal on a build machine).
int CudaProbe();

}  // namespace assay
