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
