// Inputs that are new for every timed call: versions of a bundle's content, see base/low_bits.h.
#pragma once

#include <cstdint>

#include "base/tensor.h"

namespace assay {

// Versions that the runner knows: the content as it was made, and the one whose outputs it judges
// after timing. A backend cannot tell it from the versions around it.
inline constexpr std::uint64_t kOriginalVersion = 0, kJudgedVersion = 1, kFirstTimedVersion = 2;

// Is there a tensor with elements that a version may change?
bool HasVersions(const Bundle& inputs);

// From one version to another, in place, on all threads.
void ChangeVersion(Bundle& inputs, std::uint64_t from, std::uint64_t to);

}  // namespace assay
