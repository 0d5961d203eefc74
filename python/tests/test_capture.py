"""Capture of calls as workloads, on stand-ins for the tensors of numpy, cupy and whoever speaks DLPack."""
import ctypes
import hashlib
import json
import pathlib
import struct
import sys
import tempfile
import types
import unittest

from assay.capture import Capture
from assay.tensors import DLTensor, copy_bytes, describe, number

SCALE = {"name": "scale_d4", "op_type": "scale",
         "axes": {"B": {"type": "var"}, "D": {"type": "const", "value": 4}},
         "inputs": {"x": {"shape": ["B", "D"], "dtype": "float32"}, "alpha": {"shape": None, "dtype": "float32"},
                    "bias": {"shape": ["D"], "dtype": "bfloat16", "optional": True}},
         "outputs": {"out": {"shape": ["B", "D"], "dtype": "float32"}}}
PACKED = {"name": "packed", "op_type": "scale", "axes": {"M": {"type": "var"}, "K": {"type": "const", "value": 8}},
          "inputs": {"w": {"shape": ["M", "K"], "dtype": "float4_e2m1"}},
          "outputs": {"out": {"shape": ["M", "K"], "dtype": "float32"}}}


class Named:
    """As numpy and cupy arrays are: a dtype with a name, a shape, bytes."""

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, shape, bytearray(data)

    def tobytes(self):
        return bytes(self.data)


class Interface:
    """Nothing but __array_interface__."""

    def __init__(self, typestr, shape, data, strides=None):
        self.buffer = ctypes.create_string_buffer(bytes(data), len(data))
        self.__array_interface__ = {"typestr": typestr, "shape": shape, "strides": strides, "version": 3,
                                    "data": (ctypes.addressof(self.buffer), True)}


class Dlpack:
    """Nothing but __dlpack__."""

    def __init__(self, code, bits, shape, data, strides=None, device=1):
        self.buffer = ctypes.create_string_buffer(bytes(data), len(data))
        self.sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self.steps = (ctypes.c_int64 * len(strides))(*strides) if strides else None
        self.view = DLTensor(ctypes.addressof(self.buffer), device, 0, len(shape), code, bits, 1, self.sizes,
                             self.steps, 0)

    def __dlpack__(self):
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.view), b"dltensor", None)


def floats(*values):
    return struct.pack(f"{len(values)}f", *values)


def vector(rows, value=1.0):
    return Named("float32", (rows, 4), floats(*[value] * (4 * rows)))


class TensorsTest(unittest.TestCase):
    def test_every_kind_tells_dtype_shape_and_bytes(self):
        data = floats(1, 2, 3, 4, 5, 6)
        for one in (Named("float32", (2, 3), data), Interface("<f4", (2, 3), data), Dlpack(2, 32, (2, 3), data)):
            self.assertEqual((describe(one), copy_bytes(one)), (("float32", (2, 3)), data), type(one).__name__)
        self.assertEqual(describe(Dlpack(4, 16, (3,), bytes(6))), ("bfloat16", (3,)))
        self.assertEqual(describe(Dlpack(10, 8, (3,), bytes(3))), ("float8_e4m3fn", (3,)))
        self.assertEqual(describe(Named("torch.float4_e2m1fn_x2", (3, 4), bytes(12))), ("float4_e2m1", (3, 8)))
        self.assertEqual(copy_bytes(Dlpack(0, 64, (0, 3), b"")), b"")

    def test_what_cannot_be_read_is_refused(self):
        for one, reason in ((Interface("<f4", (2, 3), bytes(24), (4, 8)), "not contiguous"),
                            (Dlpack(2, 32, (2, 3), bytes(24), (1, 2)), "not contiguous"),
                            (Dlpack(2, 32, (2, 3), bytes(24), device=2), "device of DLPack kind 2"),
                            (Dlpack(5, 64, (2,), bytes(16)), "code 5"), (Interface(">f4", (1,), bytes(4)), ">f4")):
            with self.assertRaisesRegex(ValueError, reason):
                describe(one)
                copy_bytes(one)
        with self.assertRaisesRegex(TypeError, "'list'"):
            describe([1.0])

    def test_strides_of_dimensions_of_one_element_mean_nothing(self):
        self.assertEqual(copy_bytes(Dlpack(2, 32, (1, 2), floats(1, 2), (77, 1))), floats(1, 2))

    def test_numbers(self):
        self.assertEqual(number(2.5), 2.5)
        self.assertEqual(number(Dlpack(4, 16, (), b"\xc0\x3f")), 1.5)
        self.assertEqual(number(Interface("<i4", (1,), struct.pack("i", -7))), -7)
        with self.assertRaisesRegex(ValueError, "a scalar is expected"):
            number(vector(2))


class CaptureTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        definitions = self.folder / "ds/definitions/scale"
        definitions.mkdir(parents=True)
        for one in (SCALE, PACKED):
            (definitions / f"{one['name']}.json").write_text(json.dumps(one))
        self.engine = types.ModuleType("stand_in_engine")
        sys.modules["stand_in_engine"] = self.engine
        self.addCleanup(sys.modules.pop, "stand_in_engine")
        self.capture = Capture(self.folder / "out", self.folder / "ds/definitions", facts={"model": "m"})
        self.addCleanup(self.capture.close)

    def records(self, name="scale_d4"):
        path = self.folder / f"out/workloads/scale/{name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def stored(self, reference):
        """The bytes behind a record's reference, whose file must bear its own hash."""
        content = (self.folder / "out" / reference["path"]).read_bytes()
        self.assertEqual(pathlib.Path(reference["path"]).stem, hashlib.sha256(content).hexdigest())
        length = struct.unpack("<Q", content[:8])[0]
        self.assertEqual(length % 8, 0)
        told = json.loads(content[8:8 + length])[reference["tensor_key"]]
        self.assertEqual(told["data_offsets"], [0, len(content) - 8 - length])
        return told["dtype"], told["shape"], content[8 + length:]

    def test_a_call_becomes_a_record_with_its_inputs_and_the_engines_output(self):
        def scale(x, alpha, bias=None, out=None):
            out.data[:] = floats(*[alpha * v for v in struct.unpack("8f", x.data)])
            x.data[:] = bytes(32)  # the kernel works in place: the record has what was there before
        self.engine.scale = scale
        self.capture.wrap("stand_in_engine:scale", "scale_d4", store=True)
        x, out = vector(2, 3.0), vector(2, 0.0)
        self.engine.scale(x, 0.5, bias=Dlpack(4, 16, (4,), bytes(8)), out=out)
        self.assertEqual(struct.unpack("8f", out.data), (1.5,) * 8)
        [record] = self.records()
        self.assertEqual((record["definition"], record["model"], record["operation"], record["solution"]),
                         ("scale_d4", "m", "stand_in_engine:scale", None))
        workload = record["workload"]
        self.assertEqual(workload["axes"], {"B": 2})
        self.assertEqual(workload["inputs"]["alpha"], {"type": "scalar", "value": 0.5})
        self.assertEqual(self.stored(workload["inputs"]["x"]), ("F32", [2, 4], floats(*[3.0] * 8)))
        self.assertEqual(self.stored(workload["inputs"]["bias"]), ("BF16", [4], bytes(8)))
        self.assertEqual(self.stored(workload["expected_output"]["out"]), ("F32", [2, 4], floats(*[1.5] * 8)))
        self.assertEqual(json.loads((self.folder / "out/definitions/scale/scale_d4.json").read_text()), SCALE)

    def test_one_record_a_shape_and_the_original_comes_back(self):
        self.engine.scale = original = lambda x, alpha: vector(x.shape[0], alpha)
        with self.capture:
            self.capture.wrap("stand_in_engine:scale", "scale_d4")
            for rows in (1, 2, 1, 1, 3):
                self.assertEqual(self.engine.scale(vector(rows), 2.0).data, vector(rows, 2.0).data)
        self.assertIs(self.engine.scale, original)
        self.engine.scale(vector(9), 1.0)
        self.assertEqual([one["workload"]["axes"]["B"] for one in self.records()], [1, 2, 3])
        self.assertEqual(self.records()[0]["workload"]["inputs"]["x"], {"type": "random"})
        self.assertEqual(len({one["workload"]["uuid"] for one in self.records()}), 3)
        self.assertIn("stand_in_engine:scale: 3 of 5 calls kept, 3 shapes", self.capture.summary())

    def test_methods_static_methods_and_names_of_the_engine(self):
        class Layer:
            def forward(self, hidden, factor):
                return vector(hidden.shape[0], factor)

            @staticmethod
            def plain(x, alpha):
                return vector(x.shape[0], alpha)
        self.engine.Layer = Layer
        self.capture.wrap("stand_in_engine:Layer.forward", "scale_d4", arguments=["self", "x", "alpha"])
        self.capture.wrap("stand_in_engine:Layer.plain", "scale_d4")
        self.assertEqual(Layer().forward(vector(5), 1.0).shape, (5, 4))
        self.assertEqual(Layer.plain(vector(6), 1.0).shape, (6, 4))
        self.assertEqual([one["workload"]["axes"] for one in self.records()], [{"B": 5}, {"B": 6}])
        self.capture.close()
        self.assertIsInstance(vars(Layer)["plain"], staticmethod)

    def test_packed_formats_may_come_as_bytes(self):
        self.engine.dequantize = lambda w: vector(w.shape[0])
        self.capture.wrap("stand_in_engine:dequantize", "packed", store=True)
        self.engine.dequantize(Named("uint8", (3, 4), bytes(12)))
        [record] = self.records("packed")
        self.assertEqual(record["workload"]["axes"], {"M": 3})
        self.assertEqual(self.stored(record["workload"]["inputs"]["w"]), ("U8", [3, 4], bytes(12)))

    def test_what_does_not_fit_is_counted_and_never_reaches_the_engine(self):
        self.engine.scale = lambda x, alpha, *more: "answer"
        self.capture.wrap("stand_in_engine:scale", "scale_d4")
        wrong = {"'x' has D = 5, others have 4": (Named("float32", (2, 5), bytes(40)), 1.0),
                 "'x' is float64, not float32": (Named("float64", (2, 4), bytes(64)), 1.0),
                 "'x' has shape \\[2\\]": (Named("float32", (2,), bytes(8)), 1.0),
                 "'x' is missing": (None, 1.0), "'str' of type": ("text", 1.0),
                 "a scalar is expected": (vector(1), vector(2)),
                 "4 arguments for the parameters x, alpha": (vector(1), 1.0, 2, 3)}
        for reason, arguments in wrong.items():
            self.assertEqual(self.engine.scale(*arguments), "answer")
            self.assertRegex(self.capture.summary().splitlines()[-1], "^1 calls left out: .*" + reason)
        self.assertEqual(self.records(), [])

    def test_errors_of_the_engine_stay_its_own(self):
        def scale(x, alpha):
            raise KeyError("no luck")
        self.engine.scale = scale
        self.capture.wrap("stand_in_engine:scale", "scale_d4")
        with self.assertRaisesRegex(KeyError, "no luck"):
            self.engine.scale(vector(1), 1.0)
        with self.assertRaisesRegex(ValueError, "no definition file is called 'other'"):
            self.capture.wrap("stand_in_engine:scale", "other")


if __name__ == "__main__":
    unittest.main()
