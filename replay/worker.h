// The worker side: one process that runs backends for the runner and may die without harm.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cuda/accelerator.h"
#include "ops/registry.h"
#include "replay/result.h"

namespace assay {

// Opens the GPU that this worker uses, or says why there is none.
using AcceleratorOpener = std::function<std::unique_ptr<Accelerator>(std::string& why_not)>;

// The GPU of this process's rank on this machine (Slurm, Open MPI), the first one without a
// launcher.
std::unique_ptr<Accelerator> OpenLocalAccelerator(std::string& why_not);

// What a worker can do with its device beyond running backends; the command line fills it in.
struct DeviceHooks {
  AcceleratorOpener open = OpenLocalAccelerator;
  // Limits of the device of this process by name; empty = this worker cannot measure them.
  std::function<std::vector<Ceiling>()> measure_ceilings = nullptr;
};

// Serves requests on `fd` until the runner closes it. `plugin_backends`: what the greeting tells of
// plugins, a JSON list. Returns the process exit code: 0, or 70 when the runner sent something that
// is not the protocol.
int ServeWorker(const Registry& registry, int fd, const nlohmann::json& plugin_backends,
                const DeviceHooks& hooks = {});

}  // namespace assay
