// The inner loops compiled for AVX-512. Standard headers come before the pragma, so that no inline
// function of theirs is compiled for it.
#if defined(__x86_64__)
#include <algorithm>
#include <cmath>
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

#include "ops/qsa_sparse_gqa_decode/cpu_leaf.h"

#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma")
#define ASSAY_LANES 16
#include "ops/qsa_sparse_gqa_decode/cpu_leaf_lanes.h"

namespace assay::qsa_sparse_gqa_decode {

const Leaf kLeafAvx512 = {"avx512", Attend<ProductsF32>, Merge<ProductsF32>};

}  // namespace assay::qsa_sparse_gqa_decode
#endif
