"""torch.mm: the dense GEMM of PyTorch, which chooses a cuBLAS kernel by its own heuristics."""
from assay.peer import Peer


def prepare(problem, inputs, outputs):
    import torch
    a, b, c = inputs["A"], inputs["B"].t(), outputs["C"]
    return lambda: torch.mm(a, b, out=c)


PEERS = [Peer("torch.mm", ("dense_gemm_bf16_nt",), prepare, summary="PyTorch's matrix product", device="cuda")]
