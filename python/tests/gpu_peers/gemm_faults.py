"""A dense GEMM on the GPU: a right peer, and peers that break a rule each, for the tests of the host."""
from assay.peer import Peer


def right(a, b, c):
    import torch
    return lambda: torch.mm(a, b.t(), out=c)


def returns(a, b, c):
    return lambda: {"C": a @ b.t()}


def returns_by_detours(a, b, c):
    def call():
        product = a @ b.t()
        doubled = product + product
        return {"C": (doubled - product).relu() - (product - doubled).relu()}
    return call


def returns_wrong_shape(a, b, c):
    return lambda: {"C": b @ a.t()}


def returns_nothing_new(a, b, c):
    return lambda: {"D": a @ b.t()}


def writes_nothing(a, b, c):
    return lambda: a @ b.t()


def also(extra):
    def prepare(a, b, c):
        multiply = right(a, b, c)

        def call():
            multiply()
            extra(a, b, c)
        return call
    return prepare


def zero_behind(a, b, c):
    c.as_strided((1,), (1,), c.storage_offset() + c.numel() + 4).fill_(0)


def add_one(a, b, c):
    a[0, 0].add_(1)


def synchronize(a, b, c):
    import torch
    torch.cuda.synchronize()


def leaks(a, b, c):
    kept = []
    return lambda: kept.append(a @ b.t())


def works_elsewhere(a, b, c):
    import torch
    side, multiply = torch.cuda.Stream(), right(a, b, c)

    def call():
        with torch.cuda.stream(side):
            multiply()
    return call


def never_joins(a, b, c):
    import torch
    side, multiply = torch.cuda.Stream(), right(a, b, c)

    def call():
        multiply()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            multiply()
    return call


def pins_l2(a, b, c):
    import ctypes
    limit = ctypes.CDLL("libcuda.so.1").cuCtxSetLimit
    limit.argtypes = [ctypes.c_int, ctypes.c_size_t]
    limit(6, 1 << 20)  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE
    return right(a, b, c)


def out_of_memory(a, b, c):
    import torch
    return lambda: torch.empty(1 << 45, device="cuda")


def loses_the_context(a, b, c):
    import torch
    far = torch.tensor([1 << 30], device="cuda")
    return lambda: a.flatten()[far].sum().item()


PREPARES = {"right": right, "returns": returns, "returns_by_detours": returns_by_detours,
            "returns_wrong_shape": returns_wrong_shape,
            "returns_nothing_new": returns_nothing_new, "writes_nothing": writes_nothing,
            "writes_behind": also(zero_behind), "modifies_input": also(add_one), "synchronizes": also(synchronize),
            "leaks": leaks, "works_elsewhere": works_elsewhere, "never_joins": never_joins,
            "pins_l2": pins_l2, "out_of_memory": out_of_memory, "loses_the_context": loses_the_context}


def peer(name, prepare):
    return Peer("gpu." + name, ("dense_gemm_bf16_nt",), device="cuda", prepare=lambda problem, inputs, outputs:
                prepare(inputs["A"], inputs["B"], outputs["C"]))


PEERS = [peer(name, prepare) for name, prepare in PREPARES.items()]
