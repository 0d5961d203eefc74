"""The worker process end to end: protocol, faults of peers, shared memory. No torch, no GPU."""
import math
import os
import pathlib
import struct
import tempfile
import unittest
import unittest.mock

from tests.runner import Worker, damage, layout, share

PEERS = pathlib.Path(__file__).parent / "peers"
DECODE = "gdn_decode_qk4_v8_d128_k_last"
INPUTS = [layout("q", "bfloat16", 1, 1, 4, 128), layout("k", "bfloat16", 1, 1, 4, 128),
          layout("v", "bfloat16", 1, 1, 8, 128), layout("A_log", "float32", 8), layout("a", "bfloat16", 1, 1, 8),
          layout("dt_bias", "float32", 8), layout("b", "bfloat16", 1, 1, 8)]
OUTPUTS = [layout("output", "bfloat16", 1, 1, 8, 128), layout("new_state", "float32", 1, 8, 128, 128)]


def ones(bundle):
    """Every float of the inputs is 1, except for k and q: one element each, so that results are easy to tell."""
    for name, tensor in bundle.tensors.items():
        one = b"\x80\x3f" if tensor.dtype == "bfloat16" else b"\x00\x00\x80\x3f"
        count = len(tensor.memory) // len(one)
        tensor.memory[:] = b"".join(one if name not in "qk" or i % 128 == 0 else bytes(2) for i in range(count))


class WorkerTest(unittest.TestCase):
    def setUp(self):
        self.worker = Worker("--peers", str(PEERS))
        self.addCleanup(self.worker.close)

    def opened(self, backend, slots=1):
        """The worker's last reply after opening a case and running it once on `slots` content sets."""
        reply = self.worker.open(DECODE, backend, {"batch_size": 1})
        self.sets = []
        for number in range(slots if reply and reply["status"] == "ok" else 0):
            inputs, outputs = share(INPUTS), share(OUTPUTS)
            ones(inputs)
            self.sets.append((inputs, outputs))
            reply = self.worker.slot(number, inputs, outputs)
        return reply

    def test_the_greeting_lists_peers_and_why_some_are_absent(self):
        greeting = self.worker.greeting
        self.assertEqual(greeting["protocol"], 2)
        peers = {(one["name"], one["definition"]): one for one in greeting["plugin_backends"]}
        self.assertEqual(peers["py.plain", "gdn_decode"]["unavailable"], "")
        self.assertEqual(peers["py.absent", "gdn_decode"]["unavailable"],
                         "the Python package 'no_such_package' is not installed")
        self.assertEqual(peers["torch.mm", "dense_gemm_bf16_nt"]["device"], "cuda")

    def test_a_right_peer_writes_its_outputs_and_nothing_else(self):
        reply = self.opened("py.plain")
        self.assertEqual(reply["status"], "ok", reply)
        self.assertGreater(reply["run_ns"], 0)
        self.assertGreater(reply["busy_ns"], reply["run_ns"])
        inputs, outputs = self.sets[0]
        beta = 1 / (1 + math.exp(-1))  # the state was absent: S = beta * v k^T, output = scale * S q
        self.assertAlmostEqual(struct.unpack_from("f", outputs.tensors["new_state"].memory)[0], beta, places=6)
        high = struct.unpack_from("H", outputs.tensors["output"].memory)[0]
        output = struct.unpack("f", struct.pack("I", high << 16))[0]
        self.assertAlmostEqual(output, beta * 128**-0.5, places=3)
        self.assertEqual(damage(inputs) | damage(outputs), set())
        self.assertFalse(outputs.has_unwritten())

    def test_timing_gives_series_of_whole_nanoseconds(self):
        self.opened("py.plain", slots=2)
        reply = self.worker.time("cold_host", "warm_host")
        self.assertEqual(reply["status"], "ok", reply)
        self.assertEqual([series["mode"] for series in reply["series"]], ["cold_host", "warm_host"])
        for series in reply["series"]:
            self.assertIn(series["stop"], ("converged", "time", "count"))
            self.assertTrue(all(int(ns) > 0 for ns in series["samples_ns"].split(" ")))
        self.assertEqual(reply["unwritten_calls"], 0)
        self.assertEqual(self.worker.ask("close")["status"], "ok")

    def test_a_call_that_writes_nothing_is_counted(self):
        self.opened("py.skips_repeats")
        reply = self.worker.time("warm_host")
        self.assertGreater(reply["unwritten_calls"], 0)

    def test_new_content_in_the_same_memory_is_computed(self):
        self.opened("py.plain")
        inputs, outputs = self.sets[0]
        inputs.tensors["v"].memory[0:2] = b"\x00\x40"  # 2
        outputs.poison()
        self.assertEqual(self.worker.ask("run", slot=0)["status"], "ok")
        self.assertAlmostEqual(struct.unpack_from("f", outputs.tensors["new_state"].memory)[0],
                               2 / (1 + math.exp(-1)), places=6)

    def test_every_fault_of_a_peer_has_its_name(self):
        for peer, status, sub, said in (
                ("throws", "failed", "exception", "KeyError: 'no luck' (gdn_plain.py:"),
                ("refuses", "unsupported", "", "only on Sundays"),
                ("picky", "unsupported", "", "batch 1 is odd"),
                ("absent", "unsupported", "", "'no_such_package' is not installed"),
                ("no_such_peer", "unsupported", "", "there is no Python peer 'py.no_such_peer'")):
            with self.subTest(peer):
                reply = self.opened("py." + peer)
                self.assertEqual((reply["status"], reply["sub"]), (status, sub), reply)
                self.assertIn(said, reply["reason"])
        self.assertEqual(self.opened("py.plain")["status"], "ok")  # and the process is as good as new

    def test_a_peer_of_one_definition_declines_the_others_of_its_family(self):
        worker = Worker()
        self.addCleanup(worker.close)
        reply = worker.open("prefix_cached_block_causal_h32_d128", "torch.sdpa.masked", {"B": 1, "Np": 25, "Nq": 8},
                            family="prefix_cached_block_causal")
        self.assertEqual(reply["status"], "unsupported")
        self.assertEqual(reply["reason"],
                         "torch.sdpa.masked computes prefix_cached_block_causal_h32_d128_prefix0 only")

    def test_after_a_failure_the_rest_of_the_case_fails_too(self):
        self.opened("py.throws")
        self.assertEqual(self.worker.time("warm_host")["status"], "failed")

    def test_a_leak_ends_in_oom(self):
        self.opened("py.leaks")
        reply = self.worker.time("warm_host", budget_s=60)
        self.assertEqual(reply["status"], "oom", reply)
        self.assertEqual(self.opened("py.plain")["status"], "ok")

    def test_a_child_left_behind_is_reported(self):
        self.opened("py.forks")
        self.assertEqual(self.worker.ask("close")["sub"], "child")

    def test_a_worker_that_cannot_go_on_says_so_and_ends(self):
        reply = self.opened("py.gives_up")
        self.assertEqual((reply["status"], reply["last"]), ("unsupported", True))
        self.assertEqual(self.worker.end(), 0)

    def test_prints_go_to_the_log_and_not_into_the_protocol(self):
        self.assertEqual(self.opened("py.prints")["status"], "ok")
        self.assertIn('"run_ns": 1}', self.worker.said())

    def test_a_peer_that_exits_takes_the_worker_with_it(self):
        self.assertIsNone(self.opened("py.exits"))
        self.assertEqual(self.worker.end(), 3)

    def test_a_crash_leaves_its_trace_in_the_log(self):
        self.assertIsNone(self.opened("py.crashes"))
        self.assertEqual(self.worker.end(), -11)
        self.assertIn("gdn_plain.py\", line", self.worker.said())

    def test_a_write_behind_an_output_shows_in_the_guard_bytes(self):
        self.assertEqual(self.opened("py.writes_behind")["status"], "ok")  # the runner judges, not the worker
        self.assertEqual(damage(self.sets[0][1]), {"new_state"})

    def test_small_shared_memory_is_refused(self):
        self.worker.open(DECODE, "py.plain", {"batch_size": 1})
        fd = os.memfd_create("small")
        os.ftruncate(fd, 4096)
        reply = self.worker.ask("slot", [fd, fd], slot=0, inputs=INPUTS, outputs=OUTPUTS, run=True)
        self.assertIn("shared memory for tensors has 4096 bytes", reply["reason"])

    def test_nonsense_ends_the_worker(self):
        self.worker.socket.sendall(b"{nonsense\n")
        self.assertIsNone(self.worker.read())
        self.assertEqual(self.worker.end(), 70)


class SlowPackage(unittest.TestCase):
    def test_loading_that_the_runner_waits_for_counts_as_busy(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "slow_package.py").write_text("import time\ntime.sleep(0.5)\n", encoding="utf-8")
            pathlib.Path(folder, "peer.py").write_text(
                "from assay.peer import Peer\n"
                "PEERS = [Peer('slow', ('gdn_decode',), lambda *a: None, needs=('slow_package',))]\n",
                encoding="utf-8")
            with unittest.mock.patch.dict(os.environ, PYTHONPATH=folder):
                worker = Worker("--peers", folder + "/peer.py", "--backend", "slow")
            self.addCleanup(worker.close)
            reply = worker.open(DECODE, "slow", {"batch_size": 1})
            self.assertEqual(reply["status"], "ok", reply)
            self.assertGreater(reply["busy_ns"], 0.3e9)
            self.assertLess(worker.open(DECODE, "slow", {"batch_size": 1})["busy_ns"], 0.3e9)


class BadPeerFiles(unittest.TestCase):
    def test_one_sentence_names_file_and_problem(self):
        worker = Worker("--peers", "/nowhere.py")
        self.addCleanup(worker.close)
        self.assertIsNone(worker.greeting)
        self.assertEqual(worker.end(), 1)
        self.assertIn("assay: peer file /nowhere.py: no such file or folder", worker.said())


if __name__ == "__main__":
    unittest.main()
