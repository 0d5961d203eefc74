// The H200 kernels of this room: which exist, which one a batch gets, and calls prepared for
// replay.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "cuda/stream.h"
#include "ops/gdn_decode/spec.h"

namespace assay::gdn_decode {

// How one call runs: a kernel of Sm90Kernels() and whether it may start while the kernel before it
// in the stream still runs (programmatic dependent launch; it waits inside before it touches
// memory).
struct Plan {
  std::string_view kernel = "r2";
  bool overlap_launch = false;
};

// Names: rows of a lane; "loop" = a fixed number of CTAs shares the work. All give the same bits.
std::vector<std::string_view> Sm90Kernels();

// By the batch, from measurements.
Plan ChoosePlan(const Args& args);

// Pointers are device memory, `slot` included: its contents are not checked, a slot outside the
// pool counts as padding. The result only enqueues. Throws kInput with the text of PointerRefusal
// or for an unknown kernel, kDevice when the launch fails.
std::function<void(Stream)> PrepareCuda(const Args& args, const Plan& plan);

}  // namespace assay::gdn_decode
