"""An engine of a few lines whose decoding steps are captured; tests/test_python.cpp replays them.

    python3 -m tests.captured_engine FOLDER DEFINITIONS"""
import random
import struct
import sys

from assay.capture import Capture
from tests.test_capture import Dlpack, Named


def bfloat16(random_numbers, *shape):
    count = 1
    for size in shape:
        count *= size
    words = (struct.pack("<f", random_numbers.gauss(0, 0.3))[2:] for _ in range(count))
    return Dlpack(4, 16, shape, b"".join(words))


def decode(q, k, v, A_log, a, dt_bias, b):
    """An engine that answers zeros: what it says is reported beside the verdict, and judges nobody."""
    batch = q.sizes[0]
    return Dlpack(4, 16, (batch, 1, 8, 128), bytes(batch * 8 * 128 * 2)), \
        Named("float32", (batch, 8, 128, 128), bytes(batch * 8 * 128 * 128 * 4))


def serve(steps):
    """Decoding steps of batches 1, 2, 1, 2, ..."""
    import tests.captured_engine as engine
    numbers = random.Random(7)
    for step in range(steps):
        batch = 1 + step % 2
        gates = Named("float32", (8,), struct.pack("8f", *[numbers.uniform(0, 1) for _ in range(8)]))
        engine.decode(bfloat16(numbers, batch, 1, 4, 128), bfloat16(numbers, batch, 1, 4, 128),
                      bfloat16(numbers, batch, 1, 8, 128), gates, bfloat16(numbers, batch, 1, 8), gates,
                      bfloat16(numbers, batch, 1, 8))


if __name__ == "__main__":
    folder, definitions = sys.argv[1:]
    with Capture(folder, definitions, facts={"model": "stand-in", "engine": "twenty lines"}) as capture:
        capture.wrap("tests.captured_engine:decode", "gdn_decode_qk4_v8_d128_k_last", store=True)
        serve(4)
    print(capture.summary())
