"""The timing loops: when to sample, when to stop (docs/measuring.md; the same rules as our own worker's).

cold_graph  a graph of n x [flush, call] minus a graph of n x [flush], over n; the slots rotate
warm_graph  a graph of 2n calls on one slot minus a graph of n calls, over n
cold_event  for calls above 600 us: flush, then events around one graph replay of one call; the slots rotate
warm_event  for calls above 600 us: events around one graph replay of one call on one slot
cold_host   CPU peers: the slots in turn, caches emptied before each sample
warm_host   CPU peers: the first slot again and again
"""
import dataclasses
import math
from time import perf_counter_ns  # bound here: a peer that replaces time's own does not slow our clock

LONG_CALL_NS = 600e3    # above: events around one call
MEDIUM_CALL_NS = 150e3  # above: fewer calls per graph
CACHE_BYTES = 512 << 20  # twice any last-level cache in use


@dataclasses.dataclass
class Limits:
    budget_s: float = 2.0     # per series; at least one sample is always taken
    min_samples: int = 30     # before convergence may stop the series
    max_samples: int = 2000
    half_width: float = 0.005  # of the median's 95 % interval, relative
    warmup_s: float = 0.02     # and at least warmup_calls
    warmup_calls: int = 3


@dataclasses.dataclass
class Series:
    mode: str
    stop: str = ""
    samples_ns: list = dataclasses.field(default_factory=list)
    run_ns: float = 0      # inside calls, warm-up included
    prepare_ns: float = 0  # the rest of the loop
    unwritten_calls: int = 0
    replay_last: object = None  # of cold series: every slot's call once more, its content in a version given


def median_half_width(samples):
    """Half-width of the median's 95 % order-statistic interval, relative to the median; infinite below 6."""
    ordered, n = sorted(samples), len(samples)
    below, total, rank = 0, 2**n, 0  # the largest rank with P(fewer than `rank` samples below) <= 2.5 %
    while 40 * (below + math.comb(n, rank)) <= total:
        below += math.comb(n, rank)
        rank += 1
    middle = ordered[max(math.ceil(n / 2), 1) - 1]
    if rank < 1 or middle <= 0:
        return math.inf
    return (ordered[n - rank] - ordered[rank - 1]) / (2 * middle)


class StopRule:
    """Looks at the interval at powers of 1.5 only: sorting at every sample would cost more than a short call."""

    def __init__(self, limits):
        self.limits, self.start, self.next_look = limits, perf_counter_ns(), limits.min_samples

    def decide(self, samples):
        """"converged", "count", "time", or "" to go on."""
        n = len(samples)
        if n >= self.next_look:
            self.next_look = max(self.next_look + 1, self.next_look * 3 // 2)
            if median_half_width(samples) <= self.limits.half_width:
                return "converged"
        if n >= self.limits.max_samples:
            return "count"
        return "time" if perf_counter_ns() - self.start >= self.limits.budget_s * 1e9 else ""


def sample_until_stopped(series, limits, sample):
    """Fills the series with sample(index) -> ns, after a warm-up."""
    start, calls = perf_counter_ns(), 0
    while calls < limits.warmup_calls or perf_counter_ns() - start < limits.warmup_s * 1e9:
        if perf_counter_ns() - start > limits.budget_s * 1e9:  # slow: no time to spare
            break
        sample(calls)
        calls += 1
    stop = StopRule(limits)
    while not series.stop:
        series.samples_ns.append(max(sample(len(series.samples_ns)), 0.0))
        series.stop = stop.decide(series.samples_ns)
    series.prepare_ns = perf_counter_ns() - start - series.run_ns
    return series


def time_on_device(mode, gpu, slots, limits):
    """One series of "cold" or "warm"; its mode says how it was taken.

    slots: objects with enqueue(), poison(), has_unwritten() and versions (None: their content repeats). gpu: record(work) -> .replay() -> ns,
    enqueue_flush(), flushes(count) (a recording), reset_persisting_lines(), run(work).
    """
    if mode not in ("cold", "warm"):
        raise ValueError(f"unknown timing mode '{mode}' of a device peer")
    single = gpu.record(slots[0].enqueue)
    estimate_ns = min(single.replay() for _ in range(3))
    if estimate_ns >= LONG_CALL_NS:
        return _event(mode, gpu, slots if mode == "cold" else slots[:1], limits)
    count = 4 if estimate_ns >= MEDIUM_CALL_NS else 10
    return _cold_graph(gpu, slots, count, limits) if mode == "cold" else _warm_graph(gpu, slots[0], count, limits)


def _enqueue_flush(gpu, slots, index):
    """What comes before a cold call: new content, and the flush. The change of content costs the same with and
    without the calls between only if it finds the same caches: the call before it was on another slot, or another
    flush comes first."""
    if slots[index].versions:
        if len(slots) == 1:
            gpu.enqueue_flush()
        slots[index].versions.enqueue_next()
    gpu.enqueue_flush()


def _flushed(gpu, recording, enqueue_flush):
    gpu.reset_persisting_lines()
    gpu.run(enqueue_flush)
    return recording.replay()


def _checked_sample(series, gpu, slots, measure):
    """One sample on poisoned outputs; counts it when poison is left."""
    for slot in slots:
        slot.poison()
    ns, inside_ns = measure()
    series.run_ns += inside_ns
    series.unwritten_calls += any([slot.has_unwritten() for slot in slots])
    return ns


def _cold_graph(gpu, slots, count, limits):
    def enqueue_all():
        kept = {}
        for call in range(count):
            _enqueue_flush(gpu, slots, call % len(slots))
            kept[call % len(slots)] = slots[call % len(slots)].enqueue()
        return kept

    with_calls = gpu.record(enqueue_all)
    if slots[0].versions:
        without = gpu.record(lambda: [_enqueue_flush(gpu, slots, call % len(slots)) for call in range(count)])
    else:
        without = gpu.flushes(count)
    for index, slot in enumerate(slots[:count]):
        slot.results_of(with_calls, index)
    series = Series("cold_graph")

    def measure():
        # The poison is out of the cache before the first graph; between the two nothing is.
        all_ns, flush_ns = _flushed(gpu, with_calls, gpu.enqueue_flush), without.replay()
        return (all_ns - flush_ns) / count, all_ns - flush_ns

    def replay_last(versions):
        for index, slot in enumerate(slots[:count]):
            slot.results_of(with_calls, index)
            slot.poison()
            slot.versions.set_next(versions[index] - (count - index - 1) // len(slots))
        with_calls.replay()

    series.replay_last = replay_last
    return sample_until_stopped(series, limits, lambda _: _checked_sample(series, gpu, slots[:count], measure))


def _event(mode, gpu, slots, limits):
    recordings = [gpu.record(lambda slot=slot: {0: slot.enqueue()}) for slot in slots]
    for slot, recording in zip(slots, recordings):
        slot.results_of(recording, 0)
    series = Series(f"{mode}_event")

    def sample(index):
        at = index % len(slots)
        recording = recordings[at]

        def measure():
            flush = lambda: _enqueue_flush(gpu, slots, at)
            return ((_flushed(gpu, recording, flush) if mode == "cold" else recording.replay()),) * 2

        return _checked_sample(series, gpu, [slots[index % len(slots)]], measure)

    def replay_last(versions):
        for slot, recording, version in zip(slots, recordings, versions):
            slot.results_of(recording, 0)
            slot.poison()
            slot.versions.set_next(version)
            slot.versions.enqueue_next()
            recording.replay()

    series.replay_last = replay_last
    return sample_until_stopped(series, limits, sample)


def _warm_graph(gpu, slot, count, limits):
    def enqueue(calls):
        for _ in range(calls):
            kept = slot.enqueue()
        return {0: kept}

    once, twice = gpu.record(lambda: enqueue(count)), gpu.record(lambda: enqueue(2 * count))
    slot.results_of(twice, 0)
    series = Series("warm_graph")

    def measure():
        ns = twice.replay() - once.replay()
        return ns / count, ns

    return sample_until_stopped(series, limits, lambda _: _checked_sample(series, gpu, [slot], measure))


class CacheEmptier:
    """Reads a buffer that displaces everything else."""

    def __init__(self):
        self.memory = bytearray(b"\x01") * CACHE_BYTES

    def __call__(self):
        self.memory.find(b"\x02")


def time_on_host(mode, slots, limits):
    """One series of "cold_host" or "warm_host". slots: objects with call(), poison() and has_unwritten()."""
    if mode not in ("cold_host", "warm_host"):
        raise ValueError(f"unknown timing mode '{mode}'")
    empty_caches = CacheEmptier() if mode == "cold_host" else lambda: None
    used = slots if mode == "cold_host" else slots[:1]
    series = Series(mode)

    def sample(index):
        slot = used[index % len(used)]
        slot.poison()
        empty_caches()
        start = perf_counter_ns()
        slot.call()
        ns = perf_counter_ns() - start
        series.run_ns += ns
        series.unwritten_calls += slot.has_unwritten()
        return ns

    return sample_until_stopped(series, limits, sample)
