#include "cuda/check.h"

#include <string>

#include "cuda/accelerator.h"

namespace assay {

void CheckCuda(cudaError_t error, const char* what, std::source_location where) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // what is reported here must not surface again after the next launch
  std::string file = where.file_name();
  file = file.substr(file.rfind('/') + 1);
  throw DeviceError(std::string(what) + ": " + cudaGetErrorString(error) + " (" +
                    cudaGetErrorName(error) + ", " + file + ":" + std::to_string(where.line()) +
                    ")");
}

}  // namespace assay
