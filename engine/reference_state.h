// The bridge between the engine's state and the fp64 reference's.
#pragma once

#include "engine/reference.h"
#include "engine/state.h"

namespace assay::engine {

// Everything committed, widened to fp64; pools dequantised and rotated back.
reference::State LoadReferenceState(const ModelConfig& model, State& state, int slot);

}  // namespace assay::engine
