#include "cuda/check.h"

#include <string>

#include "cuda/accelerator.h"

namespace assay {

// The runtime's documentation says of these: "the process must be terminated and relaunched".
bool IsSticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorUnknown:
    case cudaErrorDeviceUninitialized:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsClientTerminated:
      return true;
    default:
      return false;
  }
}

void CheckCuda(cudaError_t error, const char* what, std::source_location where) {
  if (error == cudaSuccess) return;
  std::string file = where.file_name();
  file = file.substr(file.rfind('/') + 1);
  throw DeviceError(std::string(what) + ": " + cudaGetErrorString(error) + " (" +
                        cudaGetErrorName(error) + ", " + file + ":" + std::to_string(where.line()) +
                        ")",
                    IsSticky(error));
}

}  // namespace assay
