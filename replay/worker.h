// The worker side: one process that runs backends for the runner and may die without harm.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "ops/registry.h"

namespace assay {

// Serves requests on `fd` until the runner closes it. `plugin_backends`: what the greeting tells of
// plugins, a JSON list. Returns the process exit code: 0, or 70 when the runner sent something that
// is not the protocol.
int ServeWorker(const Registry& registry, int fd, const nlohmann::json& plugin_backends);

}  // namespace assay
