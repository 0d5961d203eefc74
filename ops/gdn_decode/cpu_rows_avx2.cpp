// The row kernel compiled for AVX2 and FMA. Standard headers come before the pragma, so that no
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

#pragma GCC target("avx2,fma")
#define ASSAY_LANES 8
#include "ops/gdn_decode/cpu_rows_lanes.h"

namespace assay::gdn_decode {

void StepRowsAvx2(const RowTask& task) { StepRows(task); }

}  // namespace assay::gdn_decode
#endif
