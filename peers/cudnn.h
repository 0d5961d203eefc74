// cuDNN's attention as a backend of the attention rooms.
#pragma once

#include <string>
#include <vector>

#include "ops/family.h"
#include "peers/loader.h"

namespace assay::peers {

// `cudnn` of noncausal_dense_attention: the unmasked problems. Reads K and V in place, also of a
// longer buffer.
Backend CudnnDenseAttention(const std::vector<std::string>& paths = VendorPaths("libcudnn.so.9"));

// `cudnn` of prefix_cached_block_causal: the form with a prefix (copied with the suffix into one
// buffer by the timed call, as cuDNN takes one K and one V), and sequences of one image block.
Backend CudnnPrefixCachedAttention(
    const std::vector<std::string>& paths = VendorPaths("libcudnn.so.9"));

}  // namespace assay::peers
