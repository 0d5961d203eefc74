"""torch.sdpa.masked: the block-causal form as one call of PyTorch's attention with a dense boolean mask, whichever
backend PyTorch picks for that. The mask is made before what is timed."""
from assay.peer import Peer
from assay.peers import _attention


def prepare(problem, inputs, outputs):
    from torch.nn.functional import scaled_dot_product_attention
    operands = _attention.operands(problem, inputs)
    mask = _attention.block_causal_mask(problem, inputs["Q"].device)
    return lambda: {"O": scaled_dot_product_attention(*operands(), attn_mask=mask).transpose(1, 2)}


PEERS = [Peer("torch.sdpa.masked", ("prefix_cached_block_causal_h32_d128_prefix0",), prepare, device="cuda",
              summary="PyTorch's attention with the block-causal mask as a dense tensor")]
