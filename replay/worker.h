// The worker side: one process that runs backends for the runner and may die without harm.
#pragma once

#include "ops/registry.h"

namespace assay {

// Serves requests on `fd` until the runner closes it. Returns the process exit code: 0, or 70 when
// the runner sent something that is not the protocol.
int ServeWorker(const Registry& registry, int fd);

}  // namespace assay
