"""A worker that hosts Python peers: python3 -m assay.worker --fd N (docs/worker-protocol.md).

Needs nothing but the standard library; torch is imported when a peer that needs it is about to run.
"""
import argparse
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import pathlib
import resource
import select
import socket
import sys
from time import perf_counter_ns

from assay import peer as peer_files
from assay.case import Case, set_memory_limit
from assay.clocks import Nvml
from assay.device import Gpu
from assay.failure import Failure, as_failure

PROTOCOL = 2
PR_SET_CHILD_SUBREAPER = 36
LONGEST_LINE = 64 << 20
INTERNAL_ERROR = 70


class Channel:
    """The runner's end: JSON lines with file descriptors beside them."""

    def __init__(self, fd):
        self.socket = socket.socket(fileno=fd)
        self.buffer, self.fds = b"", []

    def receive(self):
        """The next line, or None at the end."""
        while b"\n" not in self.buffer:
            if len(self.buffer) > LONGEST_LINE:
                raise ValueError("the runner sent a line of more than 64 MiB")
            chunk, fds, _, _ = socket.recv_fds(self.socket, 65536, 8)
            self.fds += fds
            if not chunk:
                return None
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def take_fds(self, count):
        taken, self.fds = self.fds[:count], self.fds[count:]
        return taken

    def send(self, message):
        # Lone surrogates of a peer's message cannot be sent as UTF-8; ASCII escapes can.
        self.socket.sendall(json.dumps(message).encode() + b"\n")


class Service:
    """Serves one runner until it closes the socket."""

    def __init__(self, channel, peers):
        self.channel, self.peers = channel, peers
        self.case, self.gpu, self.nvml = None, None, None
        self.opened, self.closed_one = False, False  # a case, whatever became of it
        self.busy_since = None  # when the next request began to wait, if that was before it was read
        self.ending = False  # the process cannot go on: the GPU's context is lost, or the state of torch is

    def greet(self):
        self.channel.send({"protocol": PROTOCOL, "worker": "assay-python", "pid": os.getpid(),
                           "plugin_backends": [
                               {"name": peer.name, "definition": computed, "summary": peer.summary,
                                "device": peer.device, "unavailable": peer.why_absent()}
                               for peer in self.peers.values() for computed in peer.computes]})

    def find_gpu(self):
        if self.gpu is None:
            import torch
            try:
                self.gpu = Gpu(torch)
            except RuntimeError as error:
                raise Failure("unsupported", "", " ".join(str(error).split())) from error
            self.nvml = Nvml(self.gpu.uuid)
        return self.gpu

    def close_case(self):
        if not self.opened:
            return
        self.case, self.opened = None, False
        gc.collect()
        if not self.closed_one:  # what is left are libraries, a million objects: no need to look at them again
            gc.freeze()
            self.closed_one = True
        set_memory_limit(resource.RLIM_INFINITY)
        if self.gpu is not None:
            self.gpu.give_memory_back()

    def handle(self, request):
        operation = request["op"]
        # Taken even when the case is gone: the next slot must not get them.
        fds = self.channel.take_fds(2 if operation == "slot" else 0)
        try:
            if operation in ("open", "close"):
                self.close_case()
                if operation == "open":
                    self.opened = True
                    self.case = Case(self.peers, request, self.find_gpu)
                elif has_children():
                    raise Failure("failed", "child", "the peer left a child process running")
                return {}
            if self.case is None:
                raise Failure("failed", "exception", f"request '{operation}' without an open case")
            if operation == "slot":
                return self.case.map_slot(request, fds)
            if operation == "run":
                return self.case.run_slot(request)
            if operation == "time":
                return self.case.time(request, self.nvml.read if self.nvml else None)
            if operation == "span":
                return self.case.span(request)
            raise Failure("failed", "exception", f"unknown request '{operation}'")
        finally:
            for fd in fds:  # those that no bundle took over
                os.close(fd)

    def answer(self, request):
        start, self.busy_since = self.busy_since or perf_counter_ns(), None
        try:
            reply = {"status": "ok", **self.handle(request)}
        except Exception as error:
            failure = as_failure(error, self.case.peer.file if self.case else "")
            self.case = None  # the rest of the case is answered with failures
            self.ending = failure.last
            reply = {"status": failure.status, "sub": failure.sub, "reason": failure.reason, "last": failure.last}
        reply["busy_ns"] = perf_counter_ns() - start
        reply["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return reply

    def serve(self):
        while (line := self.channel.receive()) is not None:
            self.channel.send(self.answer(json.loads(line)))
            if self.ending:
                os._exit(0)  # tidying up a lost context may hang


def has_children():
    """Orphans count: this process is their reaper."""
    try:
        while True:
            child, _ = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                return True
    except ChildProcessError:
        return False


def preload(service, peer):
    """Imports what the peer needs while the runner is busy elsewhere; what fails is reported by `open`."""
    start = perf_counter_ns()
    for package in peer.needs if not peer.why_absent() else ():
        try:
            importlib.import_module(package)
        except Exception as error:
            print(f"{peer.name}: importing {package} failed: {error}", file=sys.stderr)
    if select.select([service.channel.socket], [], [], 0)[0]:
        service.busy_since = start  # the runner is waiting: its clock counts this, and so does ours


def main():
    parser = argparse.ArgumentParser(prog="assay.worker", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="socket of the runner")
    parser.add_argument("--peers", action="append", default=[], help="more peers: a file or a folder")
    parser.add_argument("--backend", help="the peer that this process will serve: its packages are loaded early")
    arguments = parser.parse_args()
    faulthandler.enable()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # its process pool would count as children
    os.environ.setdefault("TRITON_CACHE_AUTOTUNING", "1")  # the fresh process of every repeat need not search again
    try:
        peers = peer_files.find([pathlib.Path(__file__).parent / "peers", *arguments.peers])
    except peer_files.BadPeerFile as error:
        sys.exit(f"assay: {error}")
    service = Service(Channel(arguments.fd), peers)
    service.greet()
    if arguments.backend in peers:
        preload(service, peers[arguments.backend])
    try:
        service.serve()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the runner is gone
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(INTERNAL_ERROR)


if __name__ == "__main__":
    main()
