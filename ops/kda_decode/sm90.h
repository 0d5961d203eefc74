// The H200 kernel of this room: calls prepared for replay.
#pragma once

#include <functional>

#include "cuda/stream.h"
#include "ops/kda_decode/spec.h"

namespace assay::kda_decode {

// Pointers are device memory, `slot` included: its contents are not checked, a slot outside the
// pool counts as padding. The result only enqueues. With `overlap_launch` the kernel may start
// while the one before it in the stream still runs (programmatic dependent launch; it waits inside
// before it touches memory). Throws kInput with the text of PointerRefusal, kDevice when the launch
// fails.
std::function<void(Stream)> PrepareCuda(const Args& args, bool overlap_launch = false);

}  // namespace assay::kda_decode
