"""torch.flex: FlexAttention, compiled by PyTorch for the visibility at hand; tiles without a visible key skipped."""
import functools

from assay.peer import Peer
from assay.peers import _attention


@functools.cache
def compiled():
    import torch
    from torch.nn.attention.flex_attention import flex_attention
    torch._dynamo.config.cache_size_limit = 256  # shapes; fullgraph: beyond it an error, never the slow path
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def prepare(problem, inputs, outputs):
    from torch.nn.attention.flex_attention import create_block_mask
    operands = _attention.operands(problem, inputs)
    blocks = None
    if problem.definition.endswith("prefix0"):
        limits, tokens = _attention.limits(problem, inputs["Q"].device), problem.axes["Nq"]
        blocks = create_block_mask(lambda b, h, row, key: key < limits[row], None, None, tokens, tokens, device="cuda")
    attend = compiled()
    return lambda: {"O": attend(*operands(), block_mask=blocks).transpose(1, 2)}


PEERS = [Peer("torch.flex", ("prefix_cached_block_causal",), prepare, device="cuda",
              summary="PyTorch's FlexAttention, compiled per shape")]
