"""The GPU as the host sees it, through torch: memory, recorded work with its time, caches."""
import ctypes
import warnings

from assay.bundle import FLOATS, PAGE, element_bytes, sampled_places, typed_view
from assay.content_versions import ContentVersions, Kernel
from assay.failure import Failure

KEPT_BYTES = 2 << 30  # of device memory between cases
PERSISTING_L2_LIMIT = 6    # CU_LIMIT_PERSISTING_L2_CACHE_SIZE
CHUNK = 1 << 23  # 64-bit words per step of a checksum: bounds its temporaries to 64 MiB each


def cannot_be_captured(error):
    """torch's allocator and random generators take an abandoned capture for one that still goes on."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return Failure("unsupported", "", f"it cannot be captured in a CUDA graph: {reason}", last=True)


class Recording:
    """Work that was captured once as a CUDA graph."""

    def __init__(self, gpu, graph, kept):
        self.gpu, self.graph, self.kept = gpu, graph, kept  # kept: results in the graph's own memory
        self.begin, self.end = (gpu.torch.cuda.Event(enable_timing=True) for _ in range(2))

    def replay(self):
        """Waits; nanoseconds between two events around the replay."""
        self.begin.record()
        self.graph.replay()
        self.end.record()
        self.end.synchronize()
        return self.begin.elapsed_time(self.end) * 1e6


class Gpu:
    """Device 0 of this process. Raises RuntimeError with a reason where there is none."""

    def __init__(self, torch):
        if not torch.cuda.is_available():
            raise RuntimeError("no GPU that this torch can use")
        self.torch = torch
        torch.cuda.init()
        torch.set_grad_enabled(False)
        properties = torch.cuda.get_device_properties(0)
        self.name, self.uuid = properties.name, f"GPU-{getattr(properties, 'uuid', '')}"
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)  # everything is enqueued on one stream, in program order
        self.flush_kind = "read"
        floats = 2 * properties.L2_cache_size // 4
        self.flush_buffer = torch.rand(floats, device="cuda")  # random: does not compress
        self.flush_sink = torch.zeros((), device="cuda")
        self.weights = None   # of the checksum
        self.flush_graphs = {}
        self.multiprocessors = properties.multi_processor_count
        self.version_kernel = None  # False: there is none
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.driver.cuCtxSetLimit.argtypes = [ctypes.c_int, ctypes.c_size_t]
        self.usual_persisting_limit = self.persisting_limit()  # not 0 on every driver

    def enqueue_flush(self):
        """Empties L2 by reading twice its size (what is left is clean), or by writing it."""
        if self.flush_kind == "read":
            self.torch.sum(self.flush_buffer, dim=0, out=self.flush_sink)
        else:
            self.flush_buffer.fill_(1.5)

    def use_flush(self, kind):
        """"read" or "write", from here on."""
        self.flush_kind = kind

    def flushes(self, count):
        """A recording of `count` flushes, made once."""
        wanted = (self.flush_kind, count)
        if wanted not in self.flush_graphs:
            self.flush_graphs[wanted] = self.record(lambda: [self.enqueue_flush() for _ in range(count)])
        return self.flush_graphs[wanted]

    def versions_of(self, bundle):
        """ContentVersions of a DeviceBundle; None where their kernel cannot be compiled."""
        if self.version_kernel is None:
            try:
                self.version_kernel = Kernel(self.torch, self.driver)
            except (OSError, RuntimeError, AttributeError):
                self.version_kernel = False
        return ContentVersions(self, self.version_kernel, bundle.host, bundle.arena) if self.version_kernel else None

    def reset_persisting_lines(self):
        """Lines that a kernel pinned in L2 survive a flush; this unpins them."""
        self.driver.cuCtxResetPersistingL2Cache()

    def take_persisting_limit(self):
        """Whether a peer reserved a part of L2 for pinned lines; the reservation is taken back."""
        if self.persisting_limit() == self.usual_persisting_limit:
            return False
        self.driver.cuCtxSetLimit(PERSISTING_L2_LIMIT, ctypes.c_size_t(self.usual_persisting_limit))
        return True

    def persisting_limit(self):
        reserved = ctypes.c_size_t()
        self.driver.cuCtxGetLimit(ctypes.byref(reserved), PERSISTING_L2_LIMIT)
        return reserved.value

    def record(self, work):
        """Captures what `work` enqueues and keeps what it returns alive with the graph."""
        # Not `with torch.cuda.graph`: that collects garbage and frees cached memory, 0.1 s each time.
        graph = self.torch.cuda.CUDAGraph()
        self.torch.cuda.synchronize()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            # In memory of its own: the temporaries of one graph must not lie in the kept results of another.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                kept = work()
            except Exception as error:
                raise cannot_be_captured(error) from error
            try:
                graph.capture_end()
            except RuntimeError as error:
                raise cannot_be_captured(error) from error
        if any("is empty" in str(warning.message) for warning in said):
            raise Failure("unsupported", "", "it enqueues nothing on the current stream")
        return Recording(self, graph, kept)

    def run(self, work):
        """Enqueues `work`, waits, and returns what it returned."""
        result = work()
        self.torch.cuda.synchronize()
        return result

    def give_memory_back(self):
        """To other processes, when it is worth the time that it takes."""
        if self.torch.cuda.memory_reserved() > KEPT_BYTES:
            self.torch.cuda.empty_cache()

    def require_no_leak(self, work):
        """Device memory must not grow with every call."""
        used = []
        for _ in range(4):
            self.run(work)  # and drop what it returns
            used.append(self.torch.cuda.memory_allocated())
        steps = [after - before for before, after in zip(used, used[1:])]
        if min(steps) > 0:
            raise Failure("failed", "leak", f"device memory grows by {steps[-1]} bytes with every call")

    def checksum(self, raw):
        """A number that depends on every byte of a uint8 tensor and its place; its size is a multiple of 8."""
        torch = self.torch
        if self.weights is None:
            generator = torch.Generator(device="cuda").manual_seed(0x5EED)
            self.weights = torch.randint(-2**62, 2**62, (CHUNK,), device="cuda", generator=generator) * 2 + 1
        words, total = raw.view(torch.int64), 0
        for first in range(0, words.numel(), CHUNK):
            part = words[first:first + CHUNK]
            mixed = (part ^ (part >> 31)) * self.weights[:part.numel()]  # wraps
            total = (total * 6364136223846793005 + int((mixed ^ (mixed >> 29)).sum())) % 2**64
        return total


class DeviceBundle:
    """A copy of a host bundle in device memory, byte for byte: the guard bytes travel both ways, so that the
    runner sees what a kernel on the device did to them."""

    def __init__(self, gpu, host):
        self.gpu, self.host = gpu, host
        torch = gpu.torch
        self.arena = torch.empty(host.size, dtype=torch.uint8, device="cuda")
        with warnings.catch_warnings():  # inputs are read-only, and are only read
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            self.bytes = torch.frombuffer(host.memory, dtype=torch.uint8)
        self.tensors = {}
        for name, tensor in host.tensors.items():
            first, size = host.places[name]
            self.tensors[name] = typed_view(torch, self.arena[first:first + size], tensor.dtype, tensor.shape)
        self.sampled = self._sample()

    def _sample(self):
        """Arena offsets of the bytes that has_unwritten looks at, one row per element."""
        rows = []
        for name, tensor in self.host.tensors.items():
            first, size = self.host.places[name]
            width = element_bytes(tensor.dtype)
            for at in sampled_places(tensor.dtype, size):
                # Short elements repeat their first byte: every row has the width of the widest format.
                rows.append([first + at + min(i, width - 1) for i in range(8)])
        return self.gpu.torch.tensor(rows, device="cuda") if rows else None

    def upload(self):
        parts = self.host.parts()
        if parts != [(0, self.host.size)]:
            self.arena.zero_()
        for first, last in parts:
            self.arena[first:last].copy_(self.bytes[first:last])
        self.gpu.torch.cuda.synchronize()

    def download(self):
        self.bytes.copy_(self.arena)
        self.gpu.torch.cuda.synchronize()

    def poison(self):
        for name, tensor in self.host.tensors.items():
            first, size = self.host.places[name]
            self.arena[first:first + size].fill_(0xFF if tensor.dtype in FLOATS else 0x7F)

    def has_unwritten(self):
        if self.sampled is None:
            return False
        return bool((self.arena[self.sampled] == 0xFF).all(dim=1).any())

    def checksums(self):
        """Of every tensor with its guard bytes."""
        sums, names = {}, list(self.host.places)
        for name, following in zip(names, names[1:] + [None]):
            begin = self.host.places[name][0] - PAGE
            end = self.host.places[following][0] - PAGE if following else self.host.size
            sums[name] = self.gpu.checksum(self.arena[begin:end])
        return sums

