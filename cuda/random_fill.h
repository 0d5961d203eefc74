// Random numbers straight into device memory: the bits of base/random.h, without a copy from the
// host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "cuda/stream.h"

namespace assay {

// Enqueues data[i] = UnitNormal(key, tensor, i), rounded to `dtype` (bf16 or e4m3), for i below
// `elements`. Throws kInternal for other types, DeviceError when the launch fails.
void FillUnitNormal(DType dtype, std::byte* data, std::int64_t elements, std::uint64_t key,
                    std::uint64_t tensor, Stream stream);

}  // namespace assay
