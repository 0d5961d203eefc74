"""Tensors of any library as dtype, shape and bytes: what has `dtype` and `tobytes` (numpy, cupy, jax),
`__array_interface__` or `__dlpack__`, and torch's, on the host or on a device. Needs none of these libraries."""
import ctypes
import math
import struct
import sys

from assay.bundle import BITS, payload_bytes

PACKED = {"float4_e2m1fn_x2": "float4_e2m1", "float4_e2m1fn": "float4_e2m1"}  # other libraries' names
ARRAY_KINDS = {"f2": "float16", "f4": "float32", "f8": "float64", "i8": "int64", "i4": "int32", "i2": "int16",
               "i1": "int8", "u1": "uint8", "b1": "bool"}
UNPACK = {"float16": "e", "float32": "f", "float64": "d", "int64": "q", "int32": "i", "int16": "h", "int8": "b",
          "uint8": "B", "bool": "?"}
# DLPack's type codes for formats without a family of widths; 0 int, 1 uint, 2 float, 4 bfloat, 6 bool.
DLPACK_FLOAT8 = {10: "float8_e4m3fn", 12: "float8_e5m2", 14: "float8_e8m0fnu", 17: "float4_e2m1"}
DLPACK_HOST = (1, 3)  # CPU, pinned


class DLTensor(ctypes.Structure):
    """dlpack.h: the head of DLManagedTensor."""
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


def dlpack_view(capsule):
    """The DLTensor inside a capsule, which must outlive it."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return DLTensor.from_address(get(capsule, b"dltensor"))


def dlpack_dtype(view):
    kind = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}.get(view.code)
    name = DLPACK_FLOAT8.get(view.code) or ("bool" if view.code == 6 else f"{kind}{view.bits}")
    if view.lanes != 1 or name not in BITS:
        raise ValueError(f"a DLPack type of code {view.code} with {view.bits} bits and {view.lanes} lanes is unknown")
    return name


def is_torch(value):
    return type(value).__module__.split(".")[0] == "torch"


def is_tensor(value):
    return is_torch(value) and hasattr(value, "dtype") or any(
        hasattr(value, known) for known in ("__array_interface__", "__dlpack__", "tobytes"))


def describe(value):
    """(dtype, shape) without touching data. A dtype of two packed e2m1 elements counts single ones."""
    named = str(getattr(value, "dtype", "")).removeprefix("torch.")
    if named in BITS or named in PACKED:
        shape = tuple(int(size) for size in value.shape)
        return (PACKED.get(named, named), (*shape[:-1], shape[-1] * 2) if named.endswith("_x2") else shape)
    if hasattr(value, "__array_interface__"):
        told = value.__array_interface__
        if told["typestr"][0] == ">" or told["typestr"][1:] not in ARRAY_KINDS:
            raise ValueError(f"an array of type '{told['typestr']}' is unknown")
        return ARRAY_KINDS[told["typestr"][1:]], tuple(told["shape"])
    if hasattr(value, "__dlpack__"):
        capsule = value.__dlpack__()
        view = dlpack_view(capsule)
        return dlpack_dtype(view), tuple(view.shape[axis] for axis in range(view.ndim))
    raise TypeError(f"'{type(value).__name__}' of type '{named}' is no tensor that can be read")


def copy_bytes(value):
    """Its elements, row-major and little-endian, copied to the host."""
    if is_torch(value):
        plain = value.detach().cpu().contiguous().reshape(-1)
        return dlpack_bytes(plain.view(sys.modules["torch"].uint8))
    if hasattr(value, "get") and hasattr(value, "dtype"):  # cupy
        value = value.get()
    if hasattr(value, "tobytes"):
        return value.tobytes()
    if hasattr(value, "__array_interface__"):
        told = value.__array_interface__
        dtype, shape = describe(value)
        require_contiguous(told.get("strides"), shape, payload_bytes(dtype, (1,)))
        return ctypes.string_at(told["data"][0], payload_bytes(dtype, shape)) if math.prod(shape) else b""
    return dlpack_bytes(value)


def dlpack_bytes(value):
    capsule = value.__dlpack__()
    view = dlpack_view(capsule)
    if view.device_type not in DLPACK_HOST:
        raise ValueError(f"a tensor on a device of DLPack kind {view.device_type} cannot be read")
    shape = tuple(view.shape[axis] for axis in range(view.ndim))
    size = payload_bytes(dlpack_dtype(view), shape)
    require_contiguous([view.strides[axis] for axis in range(view.ndim)] if view.strides else None, shape, 1)
    return ctypes.string_at(view.data + view.byte_offset, size) if size else b""


def require_contiguous(strides, shape, step):
    """`step`: the stride of neighbours, in the unit of `strides`."""
    for size, stride in zip(reversed(shape), reversed(strides or ())):
        if size > 1 and stride != step:
            raise ValueError(f"a tensor of shape {list(shape)} with strides {list(strides)} is not contiguous")
        step *= size


def number(value):
    """A Python number, or the only element of a tensor, as a Python number."""
    if isinstance(value, (bool, int, float)):
        return value
    dtype, shape = describe(value)
    if math.prod(shape) != 1:
        raise ValueError(f"a scalar is expected, not a tensor of shape {list(shape)}")
    if hasattr(value, "item"):
        return value.item()
    data = copy_bytes(value)
    if dtype == "bfloat16":
        dtype, data = "float32", b"\0\0" + data
    if dtype not in UNPACK:
        raise ValueError(f"a scalar of type {dtype} cannot be read")
    return struct.unpack("<" + UNPACK[dtype], data)[0]
