"""The host on a GPU: what a peer's faults on the device come to. Skips where torch or a GPU is missing."""
import pathlib
import unittest

from tests.runner import Worker, damage, layout, share

try:
    import torch
    WHY_NOT = "" if torch.cuda.is_available() else "no GPU that torch can use"
except ImportError:
    WHY_NOT = "torch is not installed"

M, N, K = 48, 64, 96
INPUTS = [layout("A", "bfloat16", M, K), layout("B", "bfloat16", N, K)]
OUTPUTS = [layout("C", "bfloat16", M, N)]


def mix64(key, tensor, index):
    """As the replay page defines it."""
    mask, golden = (1 << 64) - 1, 0x9E3779B97F4A7C15
    mixed = tensor * golden & mask
    x = ((key ^ (mixed << 32 | mixed >> 32) & mask) + (index + 1) * golden) & mask
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
    return x ^ x >> 31


def version(tensor, number, wanted):
    """The bytes of a bfloat16 tensor in another version (base/low_bits.h), element by element."""
    found = bytearray(tensor.memory)
    for at in range(0, len(found), 2):
        code = int.from_bytes(found[at:at + 2], "little")
        if code & 0x7E and code & 0x7F80 != 0x7F80:  # neither a power of two, zero, infinite nor NaN
            bit = 16 * (at % 8 // 2) + at % 64 // 8  # of the line's draw: its place among the words, its lane
            found[at] ^= mix64(wanted, number, at // 64) >> bit & 1
    return bytes(found)


@unittest.skipIf(WHY_NOT, WHY_NOT)
class GpuWorkerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = None

    def setUp(self):
        self.have_worker()

    def have_worker(self, ended=False):
        """As the runner does: another process when the last one has ended, or said that it will."""
        cls = type(self)
        if ended:
            self.assertEqual(cls.worker.process.wait(20), 0)
        if cls.worker is None or cls.worker.process.poll() is not None:
            cls.worker = Worker("--peers", str(pathlib.Path(__file__).parent / "gpu_peers"), "--backend", "gpu.right")
            self.addClassCleanup(cls.worker.close)

    def opened(self, peer, slots=1):
        reply = self.worker.open("dense_gemm_bf16_nt_test", "gpu." + peer, {"M": M})
        self.sets = []
        for number in range(slots):
            inputs, outputs = share(INPUTS), share(OUTPUTS)
            for tensor in inputs.tensors.values():
                tensor.torch().copy_(torch.randn(tensor.shape))
            self.sets.append((inputs, outputs))
            if reply["status"] == "ok":
                reply = self.worker.slot(number, inputs, outputs)
        return reply

    def is_right(self, number=0):
        inputs, outputs = self.sets[number]
        a, b = (inputs.tensors[name].torch().double() for name in "AB")
        return torch.allclose(outputs.tensors["C"].torch().double(), a @ b.T, rtol=1.6e-2, atol=5e-3)

    def test_the_formula_of_versions(self):
        self.assertEqual(mix64(0, 0, 0), 0xE220A8397B1DCDAF)
        self.assertEqual(mix64(0x0123456789ABCDEF, 2, 1000003), 0x733035214CD102F3)

    def test_right_peers_are_right_when_checked_timed_and_run_on_new_content(self):
        for peer in ("right", "returns", "returns_by_detours"):
            with self.subTest(peer):
                self.assertEqual(self.opened(peer, slots=3)["status"], "ok")
                self.assertTrue(all(self.is_right(number) for number in range(3)))
                for _, outputs in self.sets:
                    outputs.poison()
                reply = self.worker.time("cold", "warm")
                self.assertEqual(reply["status"], "ok", reply)
                self.assertEqual([series["mode"] for series in reply["series"]], ["cold_graph", "warm_graph"])
                self.assertEqual(reply["unwritten_calls"], 0)
                self.assertTrue(all(self.is_right(number) for number in range(3)))
                inputs, outputs = self.sets[0]
                inputs.tensors["A"].torch().copy_(torch.randn(M, K))
                outputs.poison()
                self.assertEqual(self.worker.ask("run", slot=0)["status"], "ok")
                self.assertTrue(self.is_right())
                self.assertEqual(damage(inputs) | damage(outputs), set())

    def test_every_cold_call_meets_new_content_and_the_last_one_is_known(self):
        for peer in ("right", "returns"):
            with self.subTest(peer):
                self.opened(peer, slots=3)
                for _, outputs in self.sets:
                    outputs.poison()
                reply = self.worker.ask("time", modes=["cold", "warm"], budget_s=0.1, warmup=True, new_content=True,
                                        judged=True)
                self.assertEqual((reply["status"], reply["new_content"]), ("ok", True), reply)
                self.assertTrue(all(self.is_right(number) for number in (1, 2)))
                inputs, outputs = self.sets[0]
                original = {name: bytes(tensor.memory) for name, tensor in inputs.tensors.items()}
                for number, tensor in enumerate(inputs.tensors.values()):
                    tensor.memory[:] = version(tensor, number, 1 << 32)
                    self.assertNotEqual(bytes(tensor.memory), original[tensor.name])
                a, b = (inputs.tensors[name].torch().float() for name in "AB")
                there = outputs.tensors["C"].torch().float()
                judged = (a @ b.T).bfloat16().float()
                for name, tensor in inputs.tensors.items():
                    tensor.memory[:] = original[name]
                a, b = (inputs.tensors[name].torch().float() for name in "AB")
                known = (a @ b.T).bfloat16().float()
                # Rounding of sums differs in few elements, another content in most.
                self.assertLess((there != judged).float().mean(), 0.2)
                self.assertGreater((there != known).float().mean(), 0.5)
                outputs.poison()
                self.assertGreater(self.worker.ask("run", slot=0, evict=False)["run_ns"], 0)
                self.assertEqual(self.worker.ask("run", slot=0)["status"], "ok")
                self.assertTrue(self.is_right())

    def test_spans_by_cupti(self):
        self.opened("right", slots=3)
        reply = self.worker.ask("span", samples=9)
        if reply["status"] == "unsupported":
            self.skipTest(reply["reason"])
        self.assertEqual([series["mode"] for series in reply["series"]], ["cold_span"], reply)
        samples = [int(ns) for ns in reply["series"][0]["samples_ns"].split()]
        self.assertEqual(len(samples), 9)
        self.assertTrue(all(500 < ns < 200e3 for ns in samples), samples)

    def test_clocks_are_read_around_every_series(self):
        self.opened("right")
        reply = self.worker.time("cold", "warm")
        self.assertEqual(len(reply["clocks"]), 3, "before, between and after")
        for reading in reply["clocks"]:
            self.assertGreater(reading["max_sm_mhz"], 100)
            self.assertGreater(reading["power_w"], 10)
        self.assertEqual(reply["flags"], [])

    def test_lines_pinned_in_l2_are_flagged_and_unpinned(self):
        self.opened("pins_l2")
        self.assertEqual(self.worker.time("warm")["flags"], ["pins_l2"])
        self.opened("right")
        self.assertEqual(self.worker.time("warm")["flags"], [])

    def test_flush_by_write_is_timed_as_well(self):
        self.opened("right")
        reply = self.worker.ask("time", modes=["cold"], budget_s=0.1, warmup=True, flush="write")
        self.assertEqual(reply["series"][0]["mode"], "cold_graph", reply)

    def test_a_write_behind_an_output_on_the_device_reaches_the_runner(self):
        self.assertEqual(self.opened("writes_behind")["status"], "ok")
        self.assertEqual(damage(self.sets[0][1]), {"C"})

    def test_an_unwritten_output_is_nan_for_the_runner(self):
        self.assertEqual(self.opened("writes_nothing")["status"], "ok")
        self.assertTrue(self.sets[0][1].tensors["C"].torch().isnan().all())
        self.assertGreater(self.worker.time("cold")["unwritten_calls"], 0)

    def test_every_fault_has_its_name(self):
        for peer, status, sub, said in (
                ("modifies_input", "incorrect", "input_modified", "'A'"),
                ("returns_wrong_shape", "incorrect", "shape", f"[{N}, {M}], not [{M}, {N}]"),
                ("returns_nothing_new", "failed", "exception", "'D', which is no output"),
                ("synchronizes", "unsupported", "", "cannot be captured"),
                ("works_elsewhere", "unsupported", "", "enqueues nothing"),
                ("never_joins", "unsupported", "", "cannot be captured"),
                ("out_of_memory", "oom", "", "ran out of memory")):
            with self.subTest(peer):
                reply = self.opened(peer)
                self.assertEqual((reply["status"], reply["sub"]), (status, sub), reply)
                self.assertIn(said, reply["reason"])
                self.have_worker(reply["last"])
                self.assertEqual(self.opened("right")["status"], "ok", "the process is as good as new")

    def test_growing_device_memory_is_a_leak(self):
        self.opened("leaks")
        reply = self.worker.time("cold")
        self.assertEqual((reply["status"], reply["sub"]), ("failed", "leak"), reply)

    def test_a_lost_context_costs_the_worker(self):
        reply = self.opened("loses_the_context")
        self.assertEqual((reply["status"], reply["sub"]), ("failed", "cuda_error"), reply)
        self.have_worker(reply["last"])
        self.assertEqual(self.opened("right")["status"], "ok")


if __name__ == "__main__":
    unittest.main()
