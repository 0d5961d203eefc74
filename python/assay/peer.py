"""What a peer is, and how the host finds the peers of a folder."""
import dataclasses
import importlib.util
import pathlib
import sys
from collections.abc import Callable

from assay.failure import Unsupported, describe

__all__ = ["Peer", "Problem", "Unsupported"]  # what a peer file needs


@dataclasses.dataclass
class Problem:
    """One workload: `definition`, its variable `axes`, `attributes`, and the (dtype, shape) of every tensor."""
    definition: str
    axes: dict
    attributes: dict
    variant: str = ""
    threads: int = 0  # that a CPU peer may use; 0 = all cores
    inputs: dict = dataclasses.field(default_factory=dict)   # name -> (dtype, shape); absent ones left out
    outputs: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Peer:
    """A named implementation.

    computes: operator families or definitions.
    prepare(problem, inputs, outputs): plans and returns a function without arguments that enqueues the work.
        inputs and outputs map names to tensors: torch tensors on the GPU (device "cuda"), or HostTensors. The
        function writes every element of the outputs. On the GPU it must be capturable into a CUDA graph, and may
        return a dict {output name: tensor} instead, which the host copies outside the timed interval.
    needs: packages that must be importable; import them inside `prepare`.
    supports(problem): "" or the reason why it cannot.
    """
    name: str
    computes: tuple
    prepare: Callable
    summary: str = ""
    needs: tuple = ()
    device: str = "cpu"
    supports: Callable = lambda problem: ""
    file: str = ""  # set by the host: where an exception's line is looked up

    def __post_init__(self):
        if self.device == "cuda" and "torch" not in self.needs:
            self.needs = ("torch", *self.needs)  # its tensors are torch's

    def why_absent(self):
        """Why it cannot run on this machine at all, found without importing anything heavy; "" if it may."""
        for package in self.needs:
            try:
                if importlib.util.find_spec(package) is None:
                    return f"the Python package '{package}' is not installed"
            except (ImportError, ValueError) as error:
                return f"the Python package '{package}' cannot be found: {error}"
        return ""


class BadPeerFile(Exception):
    pass


def load(path):
    """The list PEERS of one file."""
    path = pathlib.Path(path)
    spec = importlib.util.spec_from_file_location(f"assay_peer_{path.stem}", path)
    try:
        if spec is None:
            raise ImportError("not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where torch's compiler looks up the globals of its functions
        spec.loader.exec_module(module)
        peers = list(module.PEERS)
    except Exception as error:
        raise BadPeerFile(f"peer file {path}: {describe(error, path)}") from error
    for peer in peers:
        if not isinstance(peer, Peer) or not peer.name or isinstance(peer.computes, str):
            raise BadPeerFile(f"peer file {path}: PEERS holds {peer!r}, which is no Peer with a name and a "
                              "tuple `computes`")
        peer.file = str(path)
    return peers


def find(places):
    """All peers of files and folders; a folder's files are its *.py without a leading underscore."""
    peers = {}
    for place in map(pathlib.Path, places):
        if not place.exists():
            raise BadPeerFile(f"peer file {place}: no such file or folder")
        files = sorted(place.glob("[!_]*.py")) if place.is_dir() else [place]
        for file in files:
            for peer in load(file):
                if peer.name in peers:
                    raise BadPeerFile(f"peer file {file}: there is a peer '{peer.name}' already")
                peers[peer.name] = peer
    return peers

