// The sequence kernel compiled for AVX-512. Standard headers come before the pragma, so that no
// inline function of theirs is compiled for it.
#if defined(__x86_64__)
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ops/gdn_prefill/cpu_sequence.h"
#include "ops/gdn_prefill/spec.h"

#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma")
#define ASSAY_LANES 16
#include "ops/gdn_prefill/cpu_sequence_lanes.h"

namespace assay::gdn_prefill {

void RunSequenceAvx512(const SequenceTask& task) { RunSequence(task); }

}  // namespace assay::gdn_prefill
#endif
