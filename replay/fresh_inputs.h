// Inputs that are new for every timed call: versions of a bundle's content, see base/low_bits.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/tensor.h"
#include "cuda/content_versions.h"

namespace assay {

// Is there a tensor with elements that a version may change?
bool HasVersions(const Bundle& inputs);

// What a version changes: tensors that may change, as far as their memory was touched, cut into
// parts. `arena` is where the bundle's arena lies: its own memory, or a mirror on a device.
std::vector<ContentPart> ChangingParts(const Bundle& inputs, std::byte* arena);

// From one version to another, in place; the part lies in host memory.
void ChangePart(const ContentPart& part, std::uint64_t from, std::uint64_t to);

// All parts of a bundle, on all threads.
void ChangeVersion(Bundle& inputs, std::uint64_t from, std::uint64_t to);

}  // namespace assay
