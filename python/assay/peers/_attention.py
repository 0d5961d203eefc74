"""What the attention peers share: heads first, prefix joined, visibility as torch wants it."""
from assay.peer import Unsupported


def operands(problem, inputs):
    """A function for each call to ask for Q, K, V as [B, H, N, D] views. A cached prefix is joined with the suffix in
    it, so that this is timed: what is made beforehand would not follow the content of the call."""
    import torch
    q, k, v = inputs["Q"], inputs["K"], inputs["V"]
    keys = problem.axes.get("Nk")  # the buffer may be longer
    pairs = [(inputs[name + "_prefix"], inputs[name]) for name in "KV" if "K_prefix" in inputs]
    joined = [torch.cat(pair, 1) for pair in pairs]

    def of_this_call():
        for pair, whole in zip(pairs, joined):
            torch.cat(pair, 1, out=whole)
        return [x.transpose(1, 2) for x in (q, *(x[:, :keys] for x in joined or (k, v)))]
    return of_this_call


def segments(problem):
    """[(start, end, is_image), ...] of the block-causal form; one text run where nothing else is said."""
    flat = problem.attributes.get("prefix_segments") or []
    if "image_ids" in problem.inputs and not flat:
        raise Unsupported("it reads the attribute prefix_segments, not the tensor image_ids")
    if flat and isinstance(flat[0], list):
        flat = [value for segment in flat for value in segment]
    flat = flat or [0, problem.axes["Nq"], 0]
    return [(flat[i], flat[i + 1], bool(flat[i + 2])) for i in range(0, len(flat), 3)]


def visibility(problem):
    """"all", "mask" (an input), "causal", or "limits" (row i sees the keys below row_limits(problem)[i])."""
    if "mask" in problem.inputs:
        return "mask"
    if not problem.definition.endswith("prefix0"):
        return "all"
    return "limits" if any(is_image for _, _, is_image in segments(problem)) else "causal"


def row_limits(problem):
    """How many keys each row of the block-causal form sees: those up to itself, or up to the end of its image."""
    return [end if is_image else row + 1
            for start, end, is_image in segments(problem) for row in range(start, end)]


def limits(problem, device):
    """row_limits as a tensor."""
    import torch
    return torch.tensor(row_limits(problem), device=device)


def block_causal_mask(problem, device):
    """[1, 1, Nq, Nq] bool: row i sees key j."""
    import torch
    keys = torch.arange(problem.axes["Nq"], device=device)
    return (keys[None, :] < limits(problem, device)[:, None])[None, None]


def mask(problem, inputs):
    """A bool mask that broadcasts to [B, H, Nq, Nk], or None."""
    kind = visibility(problem)
    if kind == "mask":
        given = inputs["mask"]
        return given[:, None, None, :] if given.dim() == 2 else given
    return block_causal_mask(problem, inputs["Q"].device) if kind == "limits" else None
