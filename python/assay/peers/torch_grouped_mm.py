"""torch.grouped_mm: a proxy. Weights are expanded to bf16 beforehand (exactly), so that it reads four times the weight
bytes of the operator; activations are expanded in the call."""
from assay.peer import Peer, Unsupported

E2M1 = [0, .5, 1, 1.5, 2, 3, 4, 6]


def supports(problem):
    scales = problem.inputs["SFA"][0], problem.inputs["SFW"][0]
    return "" if scales == ("float8_e8m0fnu",) * 2 else "scales must be plain bytes"


def scaled(torch, values, scales):
    """values [rows, K] times 2^(scale - 127) per group of 32, as bf16."""
    rows, k = values.shape
    powers = torch.exp2(scales[:, :k // 32].float() - 127)
    return (values.float().view(rows, -1, 32) * powers[:, :, None]).view(rows, k).bfloat16()


def group_ends(torch, inputs, experts):
    if "expert_offsets" in inputs:
        return inputs["expert_offsets"][1:].int()
    owners = inputs["m_indices"]
    if bool((owners < 0).any()) or bool((owners[1:] < owners[:-1]).any()):
        raise Unsupported("rows must be sorted by expert, without padding")
    return torch.bincount(owners, minlength=experts).cumsum(0).int()


def prepare(problem, inputs, outputs):
    import torch
    w, sfw = inputs["W"], inputs["SFW"]
    ends = group_ends(torch, inputs, w.shape[0])
    codes = torch.tensor(E2M1 + [-x for x in E2M1], device="cuda")
    weights = torch.empty(w.shape[0], w.shape[1], 2 * w.shape[2], dtype=torch.bfloat16, device="cuda")
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    for expert in (ends > starts).nonzero().flatten().tolist():
        pairs = torch.stack([w[expert] & 15, w[expert] >> 4], -1)
        weights[expert] = scaled(torch, codes[pairs.flatten(1).int()], sfw[expert])
    return lambda: {"D": torch._grouped_mm(scaled(torch, inputs["A"], inputs["SFA"]), weights.transpose(1, 2),
                                           offs=ends)}


PEERS = [Peer("torch.grouped_mm", ("grouped_gemm_fp8_fp4",), prepare, device="cuda", supports=supports,
              summary="proxy: PyTorch's grouped product on weights expanded to bf16 beforehand")]
