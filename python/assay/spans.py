"""The cross-check of timing by another clock: how long a call's work took by CUPTI's records, which torch's
profiler reads (docs/measuring.md)."""
from time import sleep

from assay.failure import Failure
from assay.timing import Series

WARM_UP = 3
APART_S, GAP_NS = 300e-6, 100_000  # a pause before and after every call; what is longer in the records is one


def measure(gpu, slots, samples):
    """Replays each slot's call in turn after a flush. A sample is the time from the start of its first kernel, copy
    or memset to the end of its last."""
    from torch import profiler
    if profiler.ProfilerActivity.CUDA not in profiler.supported_activities():
        raise Failure("unsupported", "", "this torch was built without CUPTI")
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as recorded:
        # Recorded only now: of graphs that are older than the tracing CUPTI may not show the nodes.
        recordings = [gpu.record(lambda slot=slot: {0: slot.enqueue()}) for slot in slots]
        for sample in range(WARM_UP + samples):
            gpu.run(gpu.enqueue_flush)
            sleep(APART_S)
            recordings[sample % len(slots)].replay()
            sleep(APART_S)
    on_device = gpu.torch.autograd.DeviceType.CUDA
    work = sorted((event.start_ns(), event.start_ns() + event.duration_ns(), event.name())
                  for event in recorded.profiler.kineto_results.events() if event.device_type() == on_device)
    return series_of(split_at_pauses(work)[-2 * samples:], samples, WARM_UP, len(slots))


def split_at_pauses(work):
    """Groups of (start, end, name): flush, call, flush, call, ..."""
    groups, last = [], None
    for piece in work:
        if last is None or piece[0] - last > GAP_NS:
            groups.append([])
        groups[-1].append(piece)
        last = max(last or 0, piece[1])
    return groups


def series_of(groups, samples, first, slots):
    """The spans of every second group. `first`: which call the first one is."""
    if len(groups) != 2 * samples:
        raise Failure("unsupported", "", f"CUPTI shows {len(groups)} groups of work, not {samples} flushes and calls")
    series, names = Series("cold_span", stop="count"), {}
    for sample, group in enumerate(groups[1::2]):
        found = sorted(name for _, _, name in group)
        before = names.setdefault((first + sample) % slots, found)
        if before != found:
            raise Failure("unsupported", "", f"the work of a call changes from one time to the next: "
                          f"{', '.join(before)[:200]}; then {', '.join(found)[:200]}")
        series.samples_ns.append(max(end for _, end, _ in group) - group[0][0])
    return series
