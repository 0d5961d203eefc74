"""The timing rules on a fake GPU whose clock is an addition, and the statistics they stop by."""
import itertools
import random
import unittest

from assay import spans, timing
from assay.failure import Failure
from assay.timing import Limits, median_half_width, time_on_device, time_on_host

FLUSH_NS, GRAPH_NS, VERSION_NS = 30000, 3500, 5000
RANDOM = random.Random(1)
NOISE = [RANDOM.uniform(0.5, 1.5) for _ in range(100)]
QUICK = Limits(budget_s=5, warmup_s=0, warmup_calls=3)


class FakeSlot:
    versions = None

    def __init__(self, gpu, call_ns):
        self.gpu, self.call_ns, self.poisoned = gpu, call_ns, False
        self.recording, self.calls = None, 0

    def enqueue(self):
        self.gpu.spend(self.call_ns, self)

    def results_of(self, recording, index):
        self.recording = recording

    def poison(self):
        self.poisoned = True

    def has_unwritten(self):
        return self.poisoned


class FakeVersions:
    """Counts the changes that recordings make."""

    def __init__(self, gpu):
        self.gpu, self.calls, self.poisoned, self.next = gpu, 0, False, None

    def enqueue_next(self):
        self.gpu.spend(VERSION_NS, self)

    def set_next(self, version):
        self.next, self.calls = version, 0


class FakeGpu:
    """Work is a list of (ns, slot); running it adds up the time and writes the slots' outputs."""

    def __init__(self, jitter=(1.0,)):
        self.work, self.jitter, self.resets = [], itertools.cycle(jitter), 0

    def spend(self, ns, slot):
        self.work.append((ns, slot))

    def enqueue_flush(self):
        self.spend(FLUSH_NS, None)

    def flushes(self, count):
        return self.record(lambda: [self.enqueue_flush() for _ in range(count)])

    def reset_persisting_lines(self):
        self.resets += 1

    def run(self, work):
        work()
        self.work = []

    def record(self, work):
        kept = work()
        recorded, self.work = self.work, []
        return FakeRecording(self, recorded, kept if isinstance(kept, dict) else {0: None})


class FakeRecording:
    def __init__(self, gpu, work, kept):
        self.gpu, self.work, self.kept = gpu, work, kept

    def replay(self):
        for _, slot in self.work:
            if slot is not None:
                slot.poisoned = False
                slot.calls += 1
        return GRAPH_NS + sum(ns for ns, _ in self.work) * next(self.gpu.jitter)


def measure(mode, call_ns, slots=3, **options):
    gpu = FakeGpu(**options)
    slots = [FakeSlot(gpu, call_ns) for _ in range(slots)]
    return time_on_device(mode, gpu, slots, QUICK), slots, gpu


class NewContent(unittest.TestCase):
    def test_every_cold_call_comes_after_a_change_of_its_content_whose_time_cancels(self):
        for call_ns, changes_per_call in ((2000, 2), (200e3, 2), (2e6, 1)):  # one graph less, one graph, or before it
            for count in (1, 2, 3):
                with self.subTest(call_ns=call_ns, slots=count):
                    gpu = FakeGpu()
                    slots = [FakeSlot(gpu, call_ns) for _ in range(count)]
                    for slot in slots:
                        slot.versions = FakeVersions(gpu)
                    counted = FakeGpu.run
                    gpu.run = lambda work: (counted(gpu, work) if call_ns < 1e6 else gpu.record(work).replay())
                    series = time_on_device("cold", gpu, slots, QUICK)
                    start = GRAPH_NS if call_ns > 600e3 else 0
                    self.assertAlmostEqual(series.samples_ns[0], call_ns + start)
                    probes = 3
                    for at, slot in enumerate(slots):
                        calls = slot.calls - (probes if at == 0 else 0)
                        self.assertGreater(calls, 0)
                        self.assertEqual(slot.versions.calls, changes_per_call * calls)
                    last = [1 << 32] + [0] * (count - 1)
                    series.replay_last(last)
                    for slot, version in zip(slots, last):
                        changes = slot.versions.calls if call_ns < 1e6 else 1
                        self.assertEqual(slot.versions.next + changes - 1, version)
                        self.assertFalse(slot.poisoned)


class Spans(unittest.TestCase):
    def groups(self, calls=6, gap=300_000):
        """Flushes of 30 us and calls of two kernels, one beside the other, of 5 us in all."""
        work, at = [], 10**18
        for call in range(calls):
            work += [(at, at + 30_000, "flush"), (at + 30_000 + gap, at + 34_000 + gap, "b"),
                     (at + 31_000 + gap, at + 35_000 + gap, "a" if call % 3 else "c")]
            at += 65_000 + 2 * gap
        return spans.split_at_pauses(sorted(work))

    def test_every_second_group_is_a_call(self):
        series = spans.series_of(self.groups()[-8:], 4, 2, 3)
        self.assertEqual((series.mode, series.samples_ns), ("cold_span", [5000] * 4))

    def test_work_that_changes_or_cannot_be_told_apart_is_refused(self):
        for groups, slots, said in ((self.groups(), 2, "changes"), (self.groups(gap=50_000), 3, "1 groups"),
                                    ([], 3, "0 groups")):
            with self.assertRaises(Failure) as refused:
                spans.series_of(groups, 6, 0, slots)
            self.assertIn(said, refused.exception.reason)


class DeviceTiming(unittest.TestCase):
    def test_cold_graph_is_the_difference_of_two_graphs(self):
        for call_ns in (2000, 10000, 100000, 400000):
            series, slots, gpu = measure("cold", call_ns)
            self.assertEqual((series.mode, series.stop), ("cold_graph", "converged"))
            self.assertGreaterEqual(len(series.samples_ns), QUICK.min_samples)
            for sample in series.samples_ns:
                self.assertAlmostEqual(sample, call_ns, delta=1)
            self.assertTrue(all(slot.calls > 0 for slot in slots), "the slots rotate")
            self.assertGreaterEqual(gpu.resets, len(series.samples_ns))
            self.assertEqual(series.unwritten_calls, 0)

    def test_long_calls_are_timed_one_by_one(self):
        series, slots, _ = measure("cold", 700000)
        self.assertEqual(series.mode, "cold_event")
        self.assertAlmostEqual(series.samples_ns[0], 700000 + GRAPH_NS, delta=1)
        self.assertTrue(all(slot.calls > 5 for slot in slots), "the slots rotate")
        series, slots, _ = measure("warm", 700000)
        self.assertEqual(series.mode, "warm_event")
        self.assertEqual([slot.calls > 0 for slot in slots], [True, False, False])

    def test_warm_graph_repeats_one_slot(self):
        series, slots, _ = measure("warm", 5000)
        self.assertEqual(series.mode, "warm_graph")
        self.assertAlmostEqual(series.samples_ns[0], 5000, delta=1)  # the start of a graph drops out
        self.assertEqual([slot.calls > 0 for slot in slots], [True, False, False])

    def test_a_call_that_leaves_poison_is_counted(self):
        gpu = FakeGpu()
        slot = FakeSlot(gpu, 1000)
        slot.has_unwritten = lambda: True
        self.assertGreater(time_on_device("cold", gpu, [slot], QUICK).unwritten_calls, 30)

    def test_a_difference_below_zero_counts_as_zero(self):
        gpu = FakeGpu(jitter=(1.0, 0.5))  # after three probes, the graph with the calls is always the faster one
        series = time_on_device("cold", gpu, [FakeSlot(gpu, 1)], Limits(budget_s=0.01, warmup_s=0))
        self.assertIn(0.0, series.samples_ns)
        self.assertGreaterEqual(min(series.samples_ns), 0)

    def test_noise_uses_up_the_budget(self):
        gpu = FakeGpu(jitter=NOISE)
        limits = Limits(budget_s=0.05, max_samples=10**9, warmup_s=0)
        self.assertEqual(time_on_device("warm", gpu, [FakeSlot(gpu, 9000)], limits).stop, "time")

    def test_the_sample_limit_holds(self):
        gpu = FakeGpu(jitter=NOISE)
        limits = Limits(budget_s=60, max_samples=50, warmup_s=0)
        series = time_on_device("warm", gpu, [FakeSlot(gpu, 9000)], limits)
        self.assertEqual((series.stop, len(series.samples_ns)), ("count", 50))

    def test_unknown_modes_are_refused(self):
        with self.assertRaisesRegex(ValueError, "unknown timing mode 'cold_host' of a device peer"):
            measure("cold_host", 1000)
        with self.assertRaisesRegex(ValueError, "unknown timing mode 'cold_graph'"):
            time_on_host("cold_graph", [], QUICK)


class Statistics(unittest.TestCase):
    def test_ranks_of_the_median_interval(self):
        # Published ranks (l, u) for n: the interval is [x_l, x_u] of the sorted samples.
        for n, low, high in ((6, 1, 6), (7, 1, 7), (9, 2, 8), (20, 6, 15), (30, 10, 21), (100, 40, 61)):
            samples = [1000.0 + i for i in range(1, n + 1)]
            middle = samples[(n + 1) // 2 - 1]
            self.assertAlmostEqual(median_half_width(samples), (high - low) / (2 * middle), places=12, msg=n)
        self.assertEqual(median_half_width([1.0] * 5), float("inf"))
        self.assertEqual(median_half_width([3.0] * 30), 0)

    def test_at_least_one_sample_even_without_a_budget(self):
        class Slot:
            def call(self): pass
            def poison(self): pass
            def has_unwritten(self): return False
        series = time_on_host("warm_host", [Slot()], Limits(budget_s=0, warmup_s=0, warmup_calls=0))
        self.assertEqual((len(series.samples_ns), series.stop), (1, "time"))

    def test_our_clock_is_not_a_peers_to_change(self):
        import time
        original = time.perf_counter_ns
        time.perf_counter_ns = lambda: 0
        try:
            self.assertGreater(timing.perf_counter_ns(), 0)
        finally:
            time.perf_counter_ns = original


if __name__ == "__main__":
    unittest.main()
