"""gdn_decode in plain Python on the CPU: a right peer, and peers that break a rule each, for tests of the host."""
import array
import ctypes
import math
import os
import struct
import sys
import time
from operator import mul

from assay.failure import Failure
from assay.peer import Peer, Unsupported


def floats(tensor):
    """A tensor's elements; bfloat16 is the upper half of a float."""
    if tensor.dtype == "float32":
        return array.array("f", bytes(tensor.memory))
    halves = array.array("H", bytes(tensor.memory))
    return array.array("f", array.array("I", (x << 16 for x in halves)).tobytes())


def bfloat16(values):
    words = struct.unpack(f"{len(values)}I", struct.pack(f"{len(values)}f", *values))
    return array.array("H", (((x + 0x7FFF + (x >> 16 & 1)) >> 16) & 0xFFFF for x in words)).tobytes()


def head(n, h, x, state, out):
    """One value head of one sequence, as ops/gdn_decode/README.md writes it; appends to `out`, changes `state`."""
    key, at = (n * 4 + h // 2) * 128, n * 8 + h
    q, k, v = x["q"][key:key + 128], x["k"][key:key + 128], x["v"][at * 128:at * 128 + 128]
    gate = x["a"][at] + x["dt_bias"][h]
    decay = math.exp(-math.exp(x["A_log"][h]) * (gate if gate > 20 else math.log1p(math.exp(gate))))
    beta, scale = 1 / (1 + math.exp(-x["b"][at])), x.get("scale", [128**-0.5])[0] or 128**-0.5
    for row in range(128):
        place = (at * 128 + row) * 128
        s = [decay * old for old in state[place:place + 128]]
        update = beta * (v[row] - sum(map(mul, s, k)))
        s = [old + update * key for old, key in zip(s, k)]
        out.append(scale * sum(map(mul, s, q)))
        state[place:place + 128] = array.array("f", s)


def compute(inputs, outputs):
    x = {name: floats(tensor) for name, tensor in inputs.items()}
    batch = inputs["q"].shape[0]
    state = x["state"] if "state" in x else array.array("f", bytes(batch * 8 * 65536))
    out = []
    for n in range(batch):
        for h in range(8):
            head(n, h, x, state, out)
    outputs["output"].memory[:] = bfloat16(out)
    outputs["new_state"].memory[:] = state.tobytes()


def computing(inputs, outputs, also=lambda: None):
    def call():
        compute(inputs, outputs)
        also()
    return call


def plain(problem, inputs, outputs):
    return computing(inputs, outputs)


def wrong(problem, inputs, outputs):
    state = outputs["new_state"].memory
    return computing(inputs, outputs, lambda: state.__setitem__(slice(64, 128), state[:64]))


def prints(problem, inputs, outputs):
    return computing(inputs, outputs, lambda: print("{\"status\": \"ok\", \"run_ns\": 1}", flush=True))


def throws(problem, inputs, outputs):
    return lambda: {}["no luck"]


def exits(problem, inputs, outputs):
    return lambda: sys.exit(3)


def crashes(problem, inputs, outputs):
    def crash():
        ctypes.string_at(8)
    return crash


def hangs(problem, inputs, outputs):
    return lambda: time.sleep(1000)


def leaks(problem, inputs, outputs):
    kept = []
    return computing(inputs, outputs, lambda: kept.append(bytearray(1 << 30)))


def writes_behind(problem, inputs, outputs):
    memory = outputs["new_state"].memory
    behind = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + len(memory)
    return computing(inputs, outputs, lambda: ctypes.memset(behind + 8, 0, 4))


def modifies_input(problem, inputs, outputs):
    return computing(inputs, outputs, lambda: inputs["v"].memory.__setitem__(0, 1))


def skips_repeats(problem, inputs, outputs):
    calls = []
    return lambda: calls.append(1) or (len(calls) == 1 and compute(inputs, outputs))


def forks(problem, inputs, outputs):
    def leave_a_child():
        if os.fork() == 0:
            time.sleep(1000)
    return computing(inputs, outputs, leave_a_child)


def refuses(problem, inputs, outputs):
    raise Unsupported("only on Sundays")


def gives_up(problem, inputs, outputs):
    raise Failure("unsupported", "", "torch is in a state", last=True)


PREPARES = (plain, wrong, prints, throws, exits, crashes, hangs, leaks, writes_behind, modifies_input, skips_repeats,
            forks, refuses, gives_up)
PEERS = [Peer(f"py.{prepare.__name__}", ("gdn_decode",), prepare, summary=prepare.__name__.replace("_", " "))
         for prepare in PREPARES]
PEERS += [
    Peer("py.absent", ("gdn_decode",), plain, needs=("no_such_package",)),
    Peer("py.picky", ("gdn_decode",), plain, supports=lambda problem: f"batch {problem.axes['batch_size']} is odd"),
]
