"""Failures as the worker protocol names them."""
import pathlib
import traceback


class Failure(Exception):
    """A failed request: status and sub of the worker protocol, and the reason. `last`: this process cannot go on."""

    def __init__(self, status, sub, reason, last=False):
        super().__init__(reason)
        self.status, self.sub, self.reason, self.last = status, sub, reason, last


class Unsupported(Exception):
    """Raised by a peer's `prepare` that cannot do this problem; the text is the reason."""


DECLINES = "No available kernel"  # of torch's attention, when the one that it was told to use cannot
STICKY = ("CUDA error", "CUDA driver error", "cudaError", "Triton Error [CUDA]")


def is_sticky(error):
    """A CUDA error: most lose the context, and with it the process; no peer gets the benefit of the doubt."""
    return any(sign in str(error) for sign in STICKY) and not is_out_of_memory(error)


def is_out_of_memory(error):
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def describe(error, path):
    """An exception in one line, with the line of the file `path` that it passed last."""
    text = " ".join(str(error).split())[:600]
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f" ({pathlib.Path(path).name}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"


def as_failure(error, path=""):
    """Any exception that a peer may throw, as a Failure."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, Unsupported):
        return Failure("unsupported", "", str(error))
    if DECLINES in str(error):
        return Failure("unsupported", "", describe(error, path))
    if is_out_of_memory(error):
        said = " ".join(str(error).split())[:300]
        return Failure("oom", "", f"the peer ran out of memory{': ' if said else ''}{said}")
    if is_sticky(error):
        return Failure("failed", "cuda_error", describe(error, path), last=True)
    return Failure("failed", "exception", describe(error, path))
