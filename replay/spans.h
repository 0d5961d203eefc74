// The cross-check of timing by another clock: how long a call's work took by CUPTI's records.
#pragma once

#include <vector>

#include "cuda/accelerator.h"
#include "ops/family.h"
#include "replay/measure.h"

namespace assay {

// Replays each call in turn after a flush, `samples` times in all, outside every timing loop: a
// sample is the time from the start of its first kernel, copy or memset to the end of its last.
// Series "cold_span". Throws kUnsupported where nothing can be traced, where a call shows no
// activity, or other activities from one time to the next.
MeasuredSeries MeasureSpans(Accelerator& gpu, const std::vector<DeviceCall>& calls, FlushKind flush,
                            int samples);

// Do an operator's cold time and its span contradict each other? A span lacks the start of a node,
// about a microsecond (docs/measuring.md).
bool SpanDiffers(double cold_ns, double span_ns);

}  // namespace assay
