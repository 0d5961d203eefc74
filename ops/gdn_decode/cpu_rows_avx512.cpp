// The row kernel compiled for AVX-512. Standard headers come before the pragma, so that no
// inline function of theirs is compiled for it.
#if defined(__x86_64__)
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ops/gdn_decode/cpu_rows.h"
#include "ops/gdn_decode/spec.h"

#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma")
#define ASSAY_LANES 16
#include "ops/gdn_decode/cpu_rows_lanes.h"

namespace assay::gdn_decode {

void StepRowsAvx512(const RowTask& task) { StepRows(task); }

}  // namespace assay::gdn_decode
#endif
