"""The shared memory of one content set: tensors between guard bytes (docs/worker-protocol.md)."""
import errno
import fcntl
import math
import mmap
import os

PAGE = 4096  # guard bytes before and after every tensor, and the unit that payloads are rounded up to
BITS = {"bfloat16": 16, "float16": 16, "float8_e4m3fn": 8, "float8_e5m2": 8, "float4_e2m1": 4,
        "float8_e8m0fnu": 8, "float32": 32, "float64": 64, "int64": 64, "int32": 32,
        "int16": 16, "int8": 8, "uint8": 8, "bool": 8}
FLOATS = {"bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1", "float32", "float64"}
NUMPY = {"float16": "f2", "float32": "f4", "float64": "f8", "int64": "i8", "int32": "i4",
         "int16": "i2", "int8": "i1", "bool": "?"}


def payload_bytes(dtype, shape):
    """Bytes of a tensor; e2m1 holds two elements a byte and rounds up."""
    return (math.prod(shape) * BITS[dtype] + 7) // 8


class HostTensor:
    """A row-major tensor in host memory. `memory` is a memoryview of its bytes; that of a GPU peer's input is
    read-only."""

    def __init__(self, name, dtype, shape, memory):
        self.name, self.dtype, self.shape, self.memory = name, dtype, tuple(shape), memory

    def numpy(self):
        """The tensor as a numpy array. bfloat16 comes as uint16, the 8-bit formats as uint8, and e2m1 as
        uint8 with two elements a byte: [..., K / 2]."""
        import numpy
        kind = NUMPY.get(self.dtype) or f"u{max(BITS[self.dtype] // 8, 1)}"
        return numpy.frombuffer(self.memory, dtype=kind).reshape(stored_shape(self.dtype, self.shape))

    def torch(self):
        """The tensor as a torch tensor that shares its memory."""
        import torch
        if not len(self.memory):
            return typed_view(torch, torch.empty(0, dtype=torch.uint8), self.dtype, self.shape)
        return typed_view(torch, torch.frombuffer(self.memory, dtype=torch.uint8), self.dtype, self.shape)


def stored_shape(dtype, shape):
    """The shape in bytes' terms: e2m1 packs two elements of the last dimension into a byte."""
    return (*shape[:-1], (shape[-1] + 1) // 2) if dtype == "float4_e2m1" else tuple(shape)


def typed_view(torch, raw, dtype, shape):
    """A uint8 tensor as `dtype`. e2m1 and e8m0 stay uint8, since few operators take those dtypes."""
    plain = {"float4_e2m1": torch.uint8, "float8_e8m0fnu": torch.uint8}
    return raw.view(plain.get(dtype) or getattr(torch, dtype)).reshape(stored_shape(dtype, shape))


class Bundle:
    """The tensors of one content set in memory shared with the runner; owns `fd`."""

    def __init__(self, layouts, fd):
        self.fd = fd
        self.places = {}  # name -> (offset of the payload, bytes)
        offset = 0
        for layout in layouts:
            if layout["dtype"] not in BITS:
                raise ValueError(f"tensor '{layout['name']}' has unknown dtype '{layout['dtype']}'")
            size = payload_bytes(layout["dtype"], layout["shape"])
            self.places[layout["name"]] = (offset + PAGE, size)
            offset += PAGE + -(-size // PAGE) * PAGE + PAGE
        self.size = offset or PAGE
        found = os.fstat(fd).st_size
        if found < self.size:  # touching a page behind the end of the file would kill the process
            raise ValueError(f"shared memory for tensors has {found} bytes, not {self.size}")
        read_only = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        access = mmap.ACCESS_READ if read_only else mmap.ACCESS_DEFAULT
        self.memory = memoryview(mmap.mmap(fd, self.size, access=access))
        self.tensors = {}
        for layout in layouts:
            name, (first, size) = layout["name"], self.places[layout["name"]]
            self.tensors[name] = HostTensor(name, layout["dtype"], layout["shape"],
                                            self.memory[first:first + size])

    def __del__(self):
        os.close(self.fd)

    def parts(self):
        """The parts of the memory that were ever touched, as (first, last) bytes. The rest is holes, which
        read as zeros and would take memory if they were read."""
        found, at = [], 0
        while at < self.size:
            try:
                first = os.lseek(self.fd, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole is left
                    break
                raise
            at = min(os.lseek(self.fd, first, os.SEEK_HOLE), self.size)
            if at <= first:
                break
            found.append((first, at))
        return found

    def poison(self):
        """What an unwritten element shows: NaN, or 0x7F bytes."""
        for tensor in self.tensors.values():
            tensor.memory[:] = (b"\xff" if tensor.dtype in FLOATS else b"\x7f") * len(tensor.memory)

    def has_unwritten(self):
        """Looks at a few places of every floating-point tensor, the end first, for poison."""
        for tensor in self.tensors.values():
            for at in sampled_places(tensor.dtype, len(tensor.memory)):
                size = element_bytes(tensor.dtype)
                if bytes(tensor.memory[at:at + size]) == b"\xff" * size:
                    return True
        return False


def element_bytes(dtype):
    return max(BITS[dtype] // 8, 1)


def sampled_places(dtype, size):
    """Byte offsets of up to 16 elements, spread from the end; none for integers."""
    elements = size // element_bytes(dtype)
    if dtype not in FLOATS or not elements:
        return []
    places = min(16, elements)
    return [(elements - 1 - place * (elements // places)) * element_bytes(dtype) for place in range(places)]
