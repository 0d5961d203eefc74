// The sequence kernel compiled for AVX2 and FMA. Standard headers come before the pragma, so that
// no inline function of theirs is compiled for it.
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

#pragma GCC target("avx2,fma")
#define ASSAY_LANES 8
#include "ops/gdn_prefill/cpu_sequence_lanes.h"

namespace assay::gdn_prefill {

void RunSequenceAvx2(const SequenceTask& task) { RunSequence(task); }

}  // namespace assay::gdn_prefill
#endif
