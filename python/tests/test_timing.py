"""The timing rules on a fake GPU whose clock is an addition, and the statistics they stop by."""
import itertools
import random
import unittest

from assay import timing
from assay.timing import Limits, median_half_width, time_on_device, time_on_host

FLUSH_NS, GRAPH_NS = 30000, 3500
RANDOM = random.Random(1)
NOISE = [RANDOM.uniform(0.5, 1.5) for _ in range(100)]
QUICK = Limits(budget_s=5, warmup_s=0, warmup_calls=3)


class FakeSlot:
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
