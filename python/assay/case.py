"""One case: a peer on the content sets of a workload, in host memory or on the GPU."""
import importlib
import math
import os
import resource

from assay import spans, timing
from assay.bundle import Bundle
from assay.content_versions import JUDGED, LANES, ORIGINAL
from assay.device import DeviceBundle
from assay.failure import Failure
from assay.peer import Problem


def copy_results(outputs, results):
    """What a call returned, into the outputs; None means that it wrote them itself."""
    for name in results or ():
        if name not in outputs:
            raise Failure("failed", "exception", f"it returned '{name}', which is no output")
    for name, tensor in outputs.items() if results is not None else ():
        if name not in results:
            raise Failure("failed", "exception", f"it returned no output '{name}'")
        if results[name].shape != tensor.shape:
            raise Failure("incorrect", "shape", f"output '{name}' has shape {list(results[name].shape)}, not "
                          f"{list(tensor.shape)}")
        tensor.copy_(results[name])


class HostSlot:
    """A content set of a CPU peer: the peer works in the shared memory itself."""

    def __init__(self, peer, problem, inputs, outputs):
        self.peer, self.problem, self.inputs, self.outputs = peer, problem, inputs, outputs
        self.prepared = None

    def prepare(self):
        self.prepared = self.peer.prepare(self.problem, self.inputs.tensors, self.outputs.tensors)

    def refresh(self):
        pass  # the runner's new content is already here

    def call(self):
        self.prepared()

    def run_once(self):
        if self.prepared is None:
            self.prepare()
        start = timing.perf_counter_ns()
        self.call()
        return timing.perf_counter_ns() - start

    def poison(self):
        self.outputs.poison()

    def has_unwritten(self):
        return self.outputs.has_unwritten()


class DeviceSlot:
    """A content set of a GPU peer: copies of the shared memory on the device."""

    def __init__(self, peer, problem, inputs, outputs, gpu):
        self.peer, self.problem, self.gpu = peer, problem, gpu
        self.inputs, self.outputs = DeviceBundle(gpu, inputs), DeviceBundle(gpu, outputs)
        self.prepared, self.results, self.uploaded = None, None, False
        self.versions = None  # while and after calls are timed on new content

    def meet_new_content(self, wanted):
        """From here on, cold calls do. False where they cannot."""
        changing = any(t.dtype in LANES and t.shape for t in self.inputs.host.tensors.values())
        self.versions = self.gpu.versions_of(self.inputs) if wanted and changing else None
        return self.versions is not None

    def refresh(self):
        """New content from the runner. A plan may depend on the content: it is made anew."""
        self.uploaded, self.prepared, self.results = False, None, None

    def prepare(self):
        if not self.uploaded:
            self.inputs.upload()
            self.outputs.upload()
            self.sums = self.inputs.checksums()
            if self.versions:
                self.versions.reset()
            self.uploaded = True
        if self.prepared is None:
            self.prepared = self.gpu.run(lambda: self.peer.prepare(self.problem, self.inputs.tensors,
                                                                   self.outputs.tensors))

    def enqueue(self):
        results = self.prepared()
        return results if isinstance(results, dict) else None

    def run_once(self):
        """Compiles and warms up by a first call; the call that counts finds poison and a flushed cache."""
        self.prepare()
        self.results = self.gpu.run(self.enqueue)
        recording = self.gpu.record(lambda: {0: self.enqueue()})
        self.results_of(recording, 0)
        recording.replay()  # the first launch of a graph also uploads it, some 30 us
        self.poison()
        self.gpu.reset_persisting_lines()
        self.gpu.run(self.gpu.enqueue_flush)
        ns = recording.replay()
        self.finish()
        return ns

    def fastest_on_new_content(self):
        """In a loop like that of a warm series, but for the inputs: a version of its own for each call."""
        self.prepare()
        self.gpu.run(self.enqueue)
        recording = self.gpu.record(lambda: {0: self.enqueue()})
        self.results_of(recording, 0)
        fastest = math.inf
        for _ in range(8):
            self.versions.enqueue_next()
            fastest = min(fastest, recording.replay())
        self.versions.take_back()
        self.finish()
        return fastest

    def results_of(self, recording, index):
        """What the `index`-th slot's last call of a recording returns, at the same address in every replay."""
        self.results = recording.kept[index]

    def poison(self):
        self.outputs.poison()
        for tensor in (self.results or {}).values():
            tensor.fill_(float("nan") if tensor.is_floating_point() else 0x7F)

    def has_unwritten(self):
        return self.results is None and self.outputs.has_unwritten()

    def finish(self):
        """The outputs to the runner; the inputs must still be what they were."""
        copy_results(self.outputs.tensors, self.results)
        self.outputs.download()
        changed = [name for name, total in self.inputs.checksums().items() if total != self.sums[name]]
        if changed:
            raise Failure("incorrect", "input_modified", f"'{changed[0]}' or its guard bytes were modified on the "
                          "device")


class Case:
    """What `open` starts and the next `open` or `close` ends."""

    def __init__(self, peers, request, find_gpu):
        workload = request["workload"]
        inner = workload.get("workload", workload)
        self.peer = peers.get(request["backend"])
        if self.peer is None:
            raise Failure("unsupported", "", f"there is no Python peer '{request['backend']}'")
        self.problem = Problem(workload["definition"], inner["axes"], workload.get("attributes") or {},
                               workload.get("generator_variant") or inner.get("generator_variant") or "",
                               request.get("threads", 0))
        if request.get("family", self.peer.computes[0]) not in self.peer.computes \
                and self.problem.definition not in self.peer.computes:
            raise Failure("unsupported", "", f"{self.peer.name} computes {', '.join(self.peer.computes)} only")
        absent = self.peer.why_absent()
        if absent:
            raise Failure("unsupported", "", absent)
        for package in self.peer.needs:
            try:
                importlib.import_module(package)
            except Exception as error:
                raise Failure("unsupported", "", f"the Python package '{package}' does not import: "
                              f"{type(error).__name__}: {' '.join(str(error).split())[:300]}") from error
        self.gpu = find_gpu() if self.peer.device == "cuda" else None
        self.slots = []

    def map_slot(self, request, fds):
        """Takes the two descriptors out of `fds`."""
        if len(fds) != 2:
            raise Failure("failed", "protocol", "a slot request carries two descriptors")
        inputs = Bundle(request["inputs"], fds.pop(0))
        outputs = Bundle(request["outputs"], fds.pop(0))
        self.problem.inputs = {t.name: (t.dtype, t.shape) for t in inputs.tensors.values()}
        self.problem.outputs = {t.name: (t.dtype, t.shape) for t in outputs.tensors.values()}
        reason = self.peer.supports(self.problem)
        if reason:
            raise Failure("unsupported", "", reason)
        if self.gpu is None:
            slot = HostSlot(self.peer, self.problem, inputs, outputs)
            limit_memory(self.slots + [slot])
        else:
            slot = DeviceSlot(self.peer, self.problem, inputs, outputs, self.gpu)
        self.slots.append(slot)
        return {"run_ns": slot.run_once()} if request["run"] else {}

    def run_slot(self, request):
        slot = self.slots[request["slot"]]
        slot.refresh()
        warm = not request.get("evict", True) and getattr(slot, "versions", None)
        return {"run_ns": slot.fastest_on_new_content() if warm else slot.run_once()}

    def time(self, request, read_clocks):
        """Timing loops over all slots; read_clocks() before, between and after the series, or None on the CPU."""
        limits = timing.Limits(budget_s=request["budget_s"])
        if not request["warmup"]:
            limits.warmup_calls, limits.warmup_s = 0, 0
        for slot in self.slots:
            if slot.prepared is None:
                slot.run_once()
        if self.gpu is None:
            return series_reply([timing.time_on_host(mode, self.slots, limits) for mode in request["modes"]])
        self.gpu.require_no_leak(self.slots[0].enqueue)
        self.gpu.use_flush(request.get("flush", "read"))
        wanted = request.get("new_content", False) and request["modes"][0] == "cold"
        new_content = all([slot.meet_new_content(wanted) for slot in self.slots])
        if not new_content:
            for slot in self.slots:
                slot.meet_new_content(False)
        measured, clocks = [], [read_clocks()]
        for mode in request["modes"]:
            measured.append(timing.time_on_device(mode, self.gpu, self.slots, limits))
            clocks.append(read_clocks())
        if new_content:
            self.compute_last(measured[0], JUDGED if request.get("judged", False) else ORIGINAL)
        for slot in self.slots:
            slot.finish()
        flags = ["pins_l2"] if self.gpu.take_persisting_limit() else []
        return {**series_reply(measured), "clocks": clocks, "flags": flags, "new_content": new_content}

    def span(self, request):
        """Times calls by the device's own records, beside the timing loops."""
        if self.gpu is None:
            raise Failure("unsupported", "", "this peer does not compute on a device")
        self.gpu.use_flush(request.get("flush", "read"))
        return series_reply([spans.measure(self.gpu, self.slots, request["samples"])])

    def compute_last(self, cold, version):
        """What the cold series' own graphs compute for the runner's second verdict: slot 0 on `version`, the others
        on the content that it gave them."""
        cold.replay_last([version] + [ORIGINAL] * (len(self.slots) - 1))
        for slot in self.slots:
            slot.versions.take_back()


def series_reply(measured):
    return {
        "run_ns": sum(series.run_ns for series in measured),
        "prepare_ns": sum(series.prepare_ns for series in measured),
        "unwritten_calls": sum(series.unwritten_calls for series in measured),
        "series": [{"mode": series.mode, "stop": series.stop,
                    "samples_ns": " ".join(str(int(ns)) for ns in series.samples_ns)} for series in measured],
    }


def limit_memory(slots):
    """Lets the process map three times the tensors' memory and a bit: a leak then ends in MemoryError, not in
    the kernel's out-of-memory killer. Thread pools reserve 64 MiB of addresses per thread."""
    tensors = sum(slot.inputs.size + slot.outputs.size for slot in slots)
    more = 3 * tensors + (1 << 30) + timing.CACHE_BYTES + (os.cpu_count() or 1) * (64 << 20)
    with open("/proc/self/statm", encoding="ascii") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    set_memory_limit(mapped + more)


def set_memory_limit(soft):
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft > hard):
        soft = hard
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
