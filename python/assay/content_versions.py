"""New content for every call on a GPU: inputs change in place from version to version, in work that a graph may
hold (content_versions.cu; docs/measuring.md)."""
import ctypes
import pathlib
import struct

ORIGINAL, FIRST_TIMED, JUDGED = 0, 1, 1 << 32  # cuda/content_versions.h
PART_BYTES, LINE_BYTES = 16 << 10, 64
THREADS, BLOCKS_PER_MULTIPROCESSOR = 256, 4
EVERY_BYTE, EVERY_HALF, EVERY_SINGLE = 0x0101010101010101, 0x0001000100010001, 0x0000000100000001
# dtype -> a lane's lowest mantissa bit in every lane of a word, the other mantissa bits, the exponent, the top bit
LANES = {dtype: (low, low * mantissa, low * exponent, top) for dtype, low, mantissa, exponent, top in (
    ("bfloat16", EVERY_HALF, 0x7E, 0x7F80, 15), ("float16", EVERY_HALF, 0x3FE, 0x7C00, 15),
    ("float8_e4m3fn", EVERY_BYTE, 0x06, 0x78, 7), ("float8_e5m2", EVERY_BYTE, 0x02, 0x7C, 7),
    ("float32", EVERY_SINGLE, 0x7FFFFE, 0x7F800000, 31), ("float64", 1, 0xFFFFFFFFFFFFE, 0x7FF << 52, 63))}


def changing_parts(host, arena):
    """(address, bytes, tensor, first line, lanes...) of what may change, for a bundle that lies at `arena`."""
    touched = host.parts()
    for number, tensor in enumerate(host.tensors.values()):
        if tensor.dtype not in LANES or not tensor.shape:
            continue
        first, size = host.places[tensor.name]
        for begin, end in touched:
            begin, end = max(begin - first, 0), min(end - first, size)
            for at in range(begin, end, PART_BYTES):
                yield (arena + first + at, min(PART_BYTES, end - at), number, at // LINE_BYTES, *LANES[tensor.dtype], 0)


def open_compiler(torch):
    """NVRTC: torch's own library brings the one that belongs to it. Raises OSError."""
    for name in (pathlib.Path(torch.__file__).parent / "lib" / "libcaffe2_nvrtc.so", "libnvrtc.so.13"):
        try:
            library = ctypes.CDLL(str(name))
            library.nvrtcCreateProgram
            return library
        except (OSError, AttributeError):
            pass
    return ctypes.CDLL("libnvrtc.so")


class Kernel:
    """The compiled kernel of a process. Raises OSError or RuntimeError where it cannot be had."""

    def __init__(self, torch, driver):
        compiler = open_compiler(torch)
        source = pathlib.Path(__file__).with_suffix(".cu").read_bytes()
        major, minor = torch.cuda.get_device_capability()
        options = (ctypes.c_char_p * 1)(f"--gpu-architecture=sm_{major}{minor}".encode())
        program, size = ctypes.c_void_p(), ctypes.c_size_t()

        def check(result, what):
            if result != 0:
                raise RuntimeError(f"{what} failed with code {result}")

        check(compiler.nvrtcCreateProgram(ctypes.byref(program), source, b"content_versions.cu", 0, None, None),
              "nvrtcCreateProgram")
        check(compiler.nvrtcCompileProgram(program, 1, options), "nvrtcCompileProgram")
        check(compiler.nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
        code = ctypes.create_string_buffer(size.value)
        check(compiler.nvrtcGetCUBIN(program, code), "nvrtcGetCUBIN")
        compiler.nvrtcDestroyProgram(ctypes.byref(program))
        self.driver, module, self.function = driver, ctypes.c_void_p(), ctypes.c_void_p()
        check(driver.cuModuleLoadData(ctypes.byref(module), code), "cuModuleLoadData")
        check(driver.cuModuleGetFunction(ctypes.byref(self.function), module, b"next_version"), "cuModuleGetFunction")

    def launch(self, blocks, stream, parts, versions, count, state):
        values = (ctypes.c_void_p(parts), ctypes.c_void_p(versions), ctypes.c_uint(count), ctypes.c_void_p(state))
        arguments = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in values))
        result = self.driver.cuLaunchKernel(self.function, blocks, 1, 1, THREADS, 1, 1, 0, ctypes.c_void_p(stream),
                                            arguments, None)
        if result != 0:
            raise RuntimeError(f"cuLaunchKernel failed with code {result}")


class ContentVersions:
    """Versions of one bundle in device memory. Counts up on the device: every replay of a recorded change makes
    new content."""

    def __init__(self, gpu, kernel, host, arena):
        torch, self.gpu, self.kernel = gpu.torch, gpu, kernel
        table = b"".join(struct.pack("<QIIQQQQii", *part) for part in changing_parts(host, arena.data_ptr()))
        self.count = len(table) // struct.calcsize("<QIIQQQQii")
        self.table = torch.frombuffer(bytearray(table), dtype=torch.uint8).cuda() if table else None
        self.versions = torch.zeros(self.count, dtype=torch.int64, device="cuda")  # of every part
        self.state = torch.zeros(2, dtype=torch.int64, device="cuda")  # the next version; finished blocks
        self.blocks = min(self.count, BLOCKS_PER_MULTIPROCESSOR * gpu.multiprocessors)
        self.reset()

    def enqueue_next(self):
        if self.count:
            stream = self.gpu.torch.cuda.current_stream().cuda_stream
            self.kernel.launch(self.blocks, stream, self.table.data_ptr(), self.versions.data_ptr(), self.count,
                               self.state.data_ptr())

    def set_next(self, version):
        """The next change leads to `version`."""
        self.state[0] = (version + (1 << 63)) % (1 << 64) - (1 << 63)  # as signed

    def take_back(self):
        self.set_next(ORIGINAL)
        self.enqueue_next()

    def reset(self):
        """The memory was written anew: it holds the original."""
        self.versions.zero_()
        self.set_next(FIRST_TIMED)
