// The inner loops compiled for AVX2. Standard headers come before the pragma, so that no inline
// function of theirs is compiled for it.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ops/qsa_index_topk_decode/cpu_leaf.h"
#include "ops/qsa_index_topk_decode/spec.h"

#pragma GCC target("avx2,fma")
#define ASSAY_LANES 8
#include "ops/qsa_index_topk_decode/cpu_leaf_lanes.h"

namespace assay::qsa_index_topk_decode {

const Leaf kLeafAvx2 = kThisLeaf;

}  // namespace assay::qsa_index_topk_decode
#endif
