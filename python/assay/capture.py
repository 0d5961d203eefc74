"""Capture inside a running engine: calls of an operator become workloads of a FlashInfer-Trace dataset, which
`assay run --dataset` replays.

    from assay.capture import Capture
    with Capture("captured", definitions="ds/definitions", facts={"model": "m", "engine": "e 1.2"}) as capture:
        capture.wrap("engine.layers.gdn:decode", "gdn_decode_qk4_v8_d128_k_last", store=True)
        serve()
    print(capture.summary())

A wrapped callable does what it did before. What cannot be recorded is counted with its reason and never reaches the
engine. Callers that bound the callable before it was wrapped, replays of CUDA graphs and code that was compiled before
go past the hook: wrap first, and capture from an eager run.
"""
import collections
import functools
import hashlib
import importlib
import inspect
import json
import os
import pathlib
import re
import struct
import sys
import threading
import uuid

from assay.tensors import copy_bytes, describe, is_tensor, number

SAFETENSORS = {"bfloat16": "BF16", "float16": "F16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
               "float4_e2m1": "F4", "float8_e8m0fnu": "F8_E8M0", "float32": "F32", "float64": "F64", "int64": "I64",
               "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"}
AS_BYTES = {"float4_e2m1": 2, "float8_e8m0fnu": 1}  # engines hold them as uint8; elements a byte


class CannotRecord(Exception):
    """The reason why a call is left out."""


class Hook:
    """One wrapped callable: what it computes, and what of it is kept."""

    def __init__(self, target, original, definition, arguments, store, per_shape):
        self.target, self.definition, self.store, self.per_shape = target, definition, store, per_shape
        self.parameters = arguments or parameters_of(original, definition)
        self.kept = collections.Counter()  # records by axes
        self.calls = 0

    def values(self, args, kwargs):
        """Arguments by the names of the definition."""
        if len(args) > len(self.parameters):
            raise CannotRecord(f"{len(args)} arguments for the parameters {', '.join(self.parameters)}")
        return {**dict(zip(self.parameters, args)), **kwargs}


def parameters_of(original, definition):
    """Names of positional parameters; those of the definition where the callable does not tell."""
    try:
        kinds = inspect.signature(original).parameters.values()
    except (TypeError, ValueError):
        return [*definition["inputs"], *definition["outputs"]]
    return [p.name for p in kinds if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def axes_of(definition, inputs):
    """Values of the variable axes, from the shapes of the inputs. Raises CannotRecord for what does not fit."""
    axes = {name: axis["value"] for name, axis in definition["axes"].items() if axis["type"] == "const"}
    for name, (dtype, shape) in inputs.items():
        spec = definition["inputs"][name]
        packed = AS_BYTES.get(spec["dtype"]) if dtype == "uint8" else None
        if dtype != spec["dtype"] and not packed:
            raise CannotRecord(f"input '{name}' is {dtype}, not {spec['dtype']}")
        if len(shape) != len(spec["shape"]):
            raise CannotRecord(f"input '{name}' has shape {list(shape)}, not {spec['shape']}")
        sizes = (*shape[:-1], shape[-1] * packed) if packed else shape
        for axis, size in zip(spec["shape"], sizes):
            if axes.setdefault(axis, size) != size:
                raise CannotRecord(f"input '{name}' has {axis} = {size}, others have {axes[axis]}")
    variable = [name for name, axis in definition["axes"].items() if axis["type"] == "var"]
    for axis in variable:
        if axis not in axes:
            raise CannotRecord(f"axis '{axis}' follows from no input")
    return {axis: axes[axis] for axis in variable}


def results_of(definition, returned, values):
    """Outputs by name: returned in the definition's order, or written in place into arguments of their names."""
    names = list(definition["outputs"])
    if isinstance(returned, dict):
        return {name: returned[name] for name in names if name in returned}
    if returned is None:
        return {name: values[name] for name in names if is_tensor(values.get(name))}
    several = returned if isinstance(returned, (tuple, list)) else [returned]
    return {name: value for name, value in zip(names, several) if is_tensor(value)}


def safe_name(text):
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)


def is_recording_a_graph():
    torch = sys.modules.get("torch")
    return bool(torch and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def resolve(target):
    """Owner and attribute of "module:name" or "module:Class.method"."""
    module, _, path = target.partition(":")
    *owners, name = path.split(".")
    return functools.reduce(getattr, owners, importlib.import_module(module)), name


class Capture:
    """Writes to the folder `root`, which may hold earlier captures. `definitions`: a folder of definition files, such as
    `assay dataset export` writes. `facts`: members of every record, such as model and engine."""

    def __init__(self, root, definitions, facts=None):
        self.root, self.facts = pathlib.Path(root), facts or {}
        self.definitions = {}
        for path in sorted(pathlib.Path(definitions).rglob("*.json")):
            one = json.loads(path.read_text())
            self.definitions[one["name"]] = one
        self.hooks, self.undo = [], []
        self.problems = collections.Counter()  # reasons with their number of calls
        self.lock = threading.Lock()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def wrap(self, target, definition, arguments=None, store=False, per_shape=1):
        """Records calls of `target`, "module:name" or "module:Class.method", as workloads of a definition.

        arguments: names of the positional parameters in the definition's terms, where its own differ.
        store:     tensors are kept in blob/, the outputs as the engine's; otherwise inputs are marked random.
        per_shape: how many calls with the same axes are kept."""
        if definition not in self.definitions:
            raise ValueError(f"no definition file is called '{definition}'; there are {sorted(self.definitions)}")
        owner, name = resolve(target)
        held = inspect.getattr_static(owner, name)
        kind = type(held) if isinstance(held, (staticmethod, classmethod)) else None
        original = held.__func__ if kind else getattr(owner, name)
        hook = Hook(target, original, self.definitions[definition], arguments, store, per_shape)

        def recorded(*args, **kwargs):
            call = self._guarded(hook, self._before, args, kwargs)
            returned = original(*args, **kwargs)
            if call is not None:
                self._guarded(hook, self._after, call, returned)
            return returned

        functools.update_wrapper(recorded, original)
        setattr(owner, name, kind(recorded) if kind else recorded)
        self.hooks.append(hook)
        self.undo.append(lambda: setattr(owner, name, held))

    def close(self):
        """Puts the callables back, the last one first."""
        while self.undo:
            self.undo.pop()()

    def summary(self):
        """One line for each callable and for each reason."""
        lines = [f"{hook.target}: {sum(hook.kept.values())} of {hook.calls} calls kept, {len(hook.kept)} shapes"
                 for hook in self.hooks]
        return "\n".join(lines + [f"{count} calls left out: {reason}" for reason, count in self.problems.items()])

    def _guarded(self, hook, step, *args):
        """An engine must not fail because it is watched."""
        try:
            with self.lock:
                return step(hook, *args)
        except Exception as error:  # whatever a library's tensors throw
            self.problems[f"{hook.target}: {error or type(error).__name__}"] += 1
            return None

    def _before(self, hook, args, kwargs):
        """The record of a call that is to be kept, with its inputs; a kernel may overwrite them."""
        hook.calls += 1
        if is_recording_a_graph():
            raise CannotRecord("the call is part of a CUDA graph that is being recorded")
        values = hook.values(args, kwargs)
        tensors, inputs = {}, {}
        for name, spec in hook.definition["inputs"].items():
            if values.get(name) is None:
                if not spec.get("optional"):
                    raise CannotRecord(f"input '{name}' is missing")
            elif spec["shape"] is None:
                inputs[name] = {"type": "scalar", "value": number(values[name])}
            else:
                tensors[name] = describe(values[name])
        axes = axes_of(hook.definition, tensors)
        if hook.kept[tuple(axes.items())] >= hook.per_shape:
            return None
        for name, told in tensors.items():
            inputs[name] = self._blob(hook, values[name], told) if hook.store else {"type": "random"}
        hook.kept[tuple(axes.items())] += 1
        record = {"uuid": str(uuid.uuid4()), "axes": axes, "inputs": inputs}
        return hook.calls, record, values

    def _after(self, hook, call, returned):
        number_of_call, workload, values = call
        if hook.store:
            found = results_of(hook.definition, returned, values)
            workload["expected_output"] = {name: self._blob(hook, value, describe(value))
                                           for name, value in found.items()}
        self._write(hook, {"definition": hook.definition["name"], "workload": workload, "solution": None,
                           "evaluation": None, "operation": hook.target, "call": number_of_call, **self.facts})

    def _blob(self, hook, value, told):
        """Stores a tensor in a file that is called after its content."""
        (dtype, shape), data = told, copy_bytes(value)
        header = json.dumps({"tensor": {"dtype": SAFETENSORS[dtype], "shape": shape, "data_offsets": [0, len(data)]}})
        header += " " * (-len(header) % 8)
        content = struct.pack("<Q", len(header)) + header.encode() + data
        path = f"blob/workloads/{safe_name(hook.definition['name'])}/{hashlib.sha256(content).hexdigest()}.safetensors"
        full = self.root / path
        if not full.exists():
            full.parent.mkdir(parents=True, exist_ok=True)
            half = full.with_suffix(f".{os.getpid()}")
            half.write_bytes(content)
            half.rename(full)
        return {"type": "safetensors", "path": path, "tensor_key": "tensor"}

    def _write(self, hook, record):
        """Appends one line in one write: several processes of an engine may share the folder."""
        place = pathlib.Path(safe_name(hook.definition["op_type"])) / safe_name(hook.definition["name"])
        definition = self.root / "definitions" / f"{place}.json"
        if not definition.exists():
            definition.parent.mkdir(parents=True, exist_ok=True)
            definition.write_text(json.dumps(hook.definition, indent=2) + "\n")
        path = self.root / "workloads" / f"{place}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        line = (json.dumps(record) + "\n").encode()
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, line)
        finally:
            os.close(file)
