// The GPU that workers of this run will use, as a worker reports it: the runner itself never
// touches a device.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuda/accelerator.h"
#include "replay/result.h"

namespace assay {

struct GpuAnswer {
  std::optional<AcceleratorInfo> gpu;
  std::string why_not;  // one sentence, when there is none
};

// Starts one worker with `command`, asks and ends it.
GpuAnswer AskForGpu(const std::vector<std::string>& command);

// Lets a worker measure the ceilings of its GPU, stored under its UUID. Throws kUnsupported with
// the worker's reason, kDevice when the measurement fails.
Ceilings AskForGpuCeilings(const std::vector<std::string>& command);

// "NVIDIA H200, driver 580.159.04 (CUDA 13.0)".
std::string GpuText(const AcceleratorInfo& gpu);

}  // namespace assay
