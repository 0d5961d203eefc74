"""torch.sdpa.*: scaled dot product attention of PyTorch, one peer per backend that it can be told to use."""
from assay.peer import Peer
from assay.peers import _attention

KINDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}


def make(name, kind):
    def supports(problem):
        if name == "flash" and _attention.visibility(problem) in ("mask", "limits"):
            return "this backend of torch takes no mask"
        return ""

    def prepare(problem, inputs, outputs):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention
        operands = _attention.operands(problem, inputs)
        mask, causal = _attention.mask(problem, inputs), _attention.visibility(problem) == "causal"

        def call():
            with sdpa_kernel(getattr(SDPBackend, kind)):
                o = scaled_dot_product_attention(*operands(), attn_mask=mask, is_causal=causal)
            return {"O": o.transpose(1, 2)}
        return call

    return Peer(f"torch.sdpa.{name}", ("noncausal_dense_attention", "prefix_cached_block_causal"), prepare,
                summary=f"PyTorch's attention, {kind}", device="cuda", supports=supports)


PEERS = [make(name, kind) for name, kind in KINDS.items()]
