"""New content in the timing loop of a GPU peer, on a fake GPU: content is a pair: what it was, and its version."""
import types
import unittest
from unittest import mock

from assay import case as case_module
from assay.bundle import Bundle
from assay.case import Case, DeviceSlot
from assay.content_versions import FIRST_TIMED, JUDGED, ORIGINAL, changing_parts
from tests.runner import layout, share

FLUSH_NS, GRAPH_NS, VERSION_NS = 30000, 3500, 5000
POISON = "poison"


class FakeGpu:
    """A queue of functions that return what they take; a recording runs its own anew at every replay."""

    def __init__(self):
        self.queue, self.torch = [], None

    def enqueue(self, function):
        self.queue.append(function)

    def drain(self):
        queue, self.queue = self.queue, []
        return sum(function() for function in queue)

    def run(self, work):
        result = work()
        self.drain()
        return result

    def record(self, work):
        self.drain()
        kept = work()
        work, self.queue = self.queue, []
        return types.SimpleNamespace(kept=kept if isinstance(kept, dict) else {0: None},
                                     replay=lambda: self.drain() * 0 + GRAPH_NS + sum(step() for step in work))

    def enqueue_flush(self):
        self.enqueue(lambda: FLUSH_NS)

    def flushes(self, count):
        return self.record(lambda: [self.enqueue_flush() for _ in range(count)])

    def versions_of(self, bundle):
        return FakeVersions(self, bundle)

    def require_no_leak(self, work):
        self.run(work)

    def use_flush(self, kind):
        pass

    def reset_persisting_lines(self):
        pass

    def take_persisting_limit(self):
        return False


class FakeVersions:
    def __init__(self, gpu, bundle):
        self.gpu, self.bundle, self.next = gpu, bundle, FIRST_TIMED

    def enqueue_next(self):
        self.gpu.enqueue(self.step)

    def step(self):
        self.bundle.content, self.next = (self.bundle.content[0], self.next), self.next + 1
        return VERSION_NS

    def set_next(self, version):
        self.gpu.drain()
        self.next = version

    def take_back(self):
        self.set_next(ORIGINAL)
        self.enqueue_next()

    def reset(self):
        self.set_next(FIRST_TIMED)


class FakeBundle:
    """Of one tensor. `host` is what the runner sees of it."""

    def __init__(self, gpu, host):
        self.gpu, self.host, self.content = gpu, host, POISON
        self.tensors = {"x": self}

    def upload(self):
        self.content = self.host.content

    def download(self):
        self.gpu.drain()
        self.host.content = self.content

    def poison(self):
        self.gpu.drain()
        self.content = POISON

    def has_unwritten(self):
        return self.content == POISON

    def checksums(self):
        self.gpu.drain()
        return {"x": self.content}


class FakePeer:
    """Computes what it finds; `met` is all of it. A call it has met before takes a tenth, if it remembers."""

    def __init__(self, gpu, call_ns, remembers=False):
        self.gpu, self.call_ns, self.remembers, self.met = gpu, call_ns, remembers, []

    def prepare(self, _, inputs, outputs):
        return lambda: self.gpu.enqueue(lambda: self.compute(inputs["x"], outputs["x"]))

    def compute(self, given, out):
        known = self.remembers and given.content in self.met
        self.met.append(given.content)
        out.content = given.content
        return self.call_ns / 10 if known else self.call_ns


def fake_host(content):
    return types.SimpleNamespace(content=content, tensors={"x": types.SimpleNamespace(dtype="float32", shape=(3,))})


def opened(call_ns, slots, **options):
    gpu = FakeGpu()
    case = Case.__new__(Case)
    case.gpu, case.peer, case.problem = gpu, FakePeer(gpu, call_ns, **options), None
    with mock.patch.object(case_module, "DeviceBundle", FakeBundle):
        case.slots = [DeviceSlot(case.peer, None, fake_host((slot, ORIGINAL)), fake_host(None), gpu)
                      for slot in range(slots)]
    for slot in case.slots:
        slot.run_once()
    return case


def timed(case, **more):
    request = {"modes": ["cold", "warm"], "budget_s": 0.05, "warmup": True, "new_content": True, "judged": True, **more}
    return case.time(request, lambda: {})


class NewContentOnAGpu(unittest.TestCase):
    def test_the_last_contents_are_those_that_the_runner_knows(self):
        for call_ns in (2e3, 200e3, 2e6):
            for slots in (1, 2, 3):
                for judged in (True, False):
                    with self.subTest(call_ns=call_ns, slots=slots, judged=judged):
                        case = opened(call_ns, slots)
                        self.assertTrue(timed(case, judged=judged)["new_content"])
                        original = [(slot, ORIGINAL) for slot in range(slots)]
                        expected = [(0, JUDGED if judged else ORIGINAL)] + original[1:]
                        self.assertEqual([slot.outputs.host.content for slot in case.slots], expected)
                        self.assertEqual([slot.inputs.content for slot in case.slots], original)

    def test_no_cold_call_meets_content_again(self):
        case = opened(2e3, 3, remembers=True)
        cold, warm = (series["samples_ns"].split() for series in timed(case)["series"])
        self.assertGreater(int(cold[0]), 1900)
        self.assertLess(int(warm[-1]), 300)

    def test_without_the_kernel_content_repeats_and_the_answer_says_so(self):
        case = opened(2e3, 3)
        case.gpu.versions_of = lambda bundle: None
        self.assertFalse(timed(case)["new_content"])
        self.assertEqual([slot.outputs.host.content for slot in case.slots], [(slot, ORIGINAL) for slot in range(3)])
        self.assertFalse(timed(case, new_content=False)["new_content"])
        case = opened(2e3, 3)
        for slot in case.slots:
            slot.inputs.host.tensors["x"].dtype = "int32"
        self.assertFalse(timed(case)["new_content"])

    def test_warm_calls_on_new_content(self):
        for remembers in (True, False):
            case = opened(2e3, 3, remembers=remembers)
            timed(case)
            case.slots[0].inputs.host.content = ("unseen", ORIGINAL)
            before = len(case.peer.met)
            self.assertEqual(case.run_slot({"slot": 0, "evict": False})["run_ns"], GRAPH_NS + 2e3)
            self.assertEqual(len(set(case.peer.met[before:])), 1 + 8, "the original, then a version for each call")
            self.assertEqual(case.slots[0].inputs.content, ("unseen", ORIGINAL))
            self.assertGreater(case.run_slot({"slot": 0})["run_ns"], 0)
            self.assertEqual(case.slots[0].outputs.host.content, ("unseen", ORIGINAL))


class ChangingParts(unittest.TestCase):
    def test_parts_cover_what_may_change(self):
        bundle = share([layout("a", "bfloat16", 3, 10_000), layout("i", "int32", 5), layout("s", "float32"),
                        layout("b", "float8_e4m3fn", 7)])
        self.assertIsInstance(bundle, Bundle)
        for tensor in bundle.tensors.values():
            tensor.memory[:] = b"\1" * len(tensor.memory)
        parts = list(changing_parts(bundle, 1 << 20))
        self.assertEqual([(address - (1 << 20) - bundle.places["a"][0], size, number, line)
                          for address, size, number, line, *_ in parts[:-1]],
                         [(at, min(16384, 60_000 - at), 0, at // 64) for at in range(0, 60_000, 16384)])
        address, size, number, line, *lanes = parts[-1]
        self.assertEqual((address, size, number, line), ((1 << 20) + bundle.places["b"][0], 7, 3, 0))
        self.assertEqual(lanes[0], 0x0101010101010101)


if __name__ == "__main__":
    unittest.main()
