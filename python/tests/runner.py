"""A runner small enough for tests: starts a worker, shares memory with it, asks and reads its replies."""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

from assay.bundle import PAGE, Bundle, payload_bytes

PACKAGE = pathlib.Path(__file__).resolve().parent.parent
GUARD = 0xA5


def layout(name, dtype, *shape):
    return {"name": name, "dtype": dtype, "shape": list(shape)}


def share(layouts):
    """A bundle over fresh shared memory, guard bytes written."""
    size = sum(2 * PAGE + -(-payload_bytes(one["dtype"], one["shape"]) // PAGE) * PAGE for one in layouts)
    fd = os.memfd_create("bundle")
    os.ftruncate(fd, size or PAGE)
    bundle = Bundle(layouts, fd)
    bundle.layouts = layouts
    end = 0
    for first, length in bundle.places.values():
        bundle.memory[end:first] = bytes([GUARD]) * (first - end)
        end = first + length
    bundle.memory[end:] = bytes([GUARD]) * (bundle.size - end)
    return bundle


def damage(bundle):
    """The names of tensors whose guard bytes (before or behind) changed."""
    damaged, end, previous = set(), 0, None
    for name, (first, length) in [*bundle.places.items(), (None, (bundle.size, 0))]:
        gap = bytes(bundle.memory[end:first])
        if gap.strip(bytes([GUARD])):
            damaged |= {previous, name}
        end, previous = first + length, name
    return damaged - {None}


class Worker:
    """One worker process."""

    def __init__(self, *arguments):
        ours, theirs = socket.socketpair()
        self.log = tempfile.TemporaryFile("w+")
        paths = [str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self.process = subprocess.Popen([sys.executable, "-m", "assay.worker", *arguments, "--fd",
                                         str(theirs.fileno())], pass_fds=[theirs.fileno()], stdout=self.log,
                                        stderr=self.log, env=environment)
        theirs.close()
        ours.settimeout(60)
        self.socket = ours
        self.lines = ours.makefile("r", encoding="utf-8")
        self.greeting = self.read()

    def read(self):
        line = self.lines.readline()
        return json.loads(line) if line else None

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def ask(self, operation, fds=(), **fields):
        """The reply, or None when the worker is gone."""
        try:
            socket.send_fds(self.socket, [json.dumps({"op": operation, **fields}).encode() + b"\n"], list(fds))
        except (BrokenPipeError, ConnectionResetError):
            return None
        return self.read()

    def open(self, definition, backend, axes, attributes=None, **more):
        workload = {"definition": definition, "workload": {"uuid": "u", "axes": axes}, "attributes": attributes or {}}
        return self.ask("open", workload=workload, backend=backend, threads=0, **more)

    def slot(self, number, inputs, outputs, run=True):
        outputs.poison()
        return self.ask("slot", [inputs.fd, outputs.fd], slot=number, inputs=inputs.layouts, outputs=outputs.layouts,
                        run=run)

    def time(self, *modes, budget_s=0.3):
        return self.ask("time", modes=modes, budget_s=budget_s, warmup=True)

    def end(self):
        """Closes the socket; the exit code."""
        self.lines.close()
        self.socket.close()
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def close(self):
        self.end()
        self.log.close()
