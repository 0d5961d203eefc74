// Bytes that a trunk step cannot avoid: the numerator of "percent of the bandwidth floor".
#pragma once

#include <cstdint>

#include "engine/model.h"

namespace assay::engine {

struct StepBytes {
  std::int64_t kda = 0, kda_state = 0, dsa = 0, dense = 0, experts = 0, routers = 0, mixes = 0,
               head = 0, latents = 0, pools = 0;
  std::int64_t total() const {
    return kda + kda_state + dsa + dense + experts + routers + mixes + head + latents + pools;
  }
};

// One step of `rows` rows in `requests` requests of about `context` tokens, with this many distinct
// routed experts summed over layers. Weights count once per step, states once read and once
// written.
StepBytes TrunkStepBytes(const Model& model, int requests, int rows, std::int64_t context,
                         std::int64_t distinct_experts);

}  // namespace assay::engine
