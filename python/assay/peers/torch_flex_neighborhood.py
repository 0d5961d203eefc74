"""torch.flex on grids: FlexAttention with the window as its rule, tokens in row-major order."""
import math
import re

from assay.peer import Peer
from assay.peers.torch_flex import compiled

MOST_POINTS = 40000  # the list of visible tiles is built from a mask of points x points


def windows(problem):
    return [int(size) for size in re.search(r"kt(\d+)_ky(\d+)_kx(\d+)", problem.definition).groups()]


def supports(problem):
    grid = [problem.axes[axis] for axis in "TYX"]
    if any(length < window for length, window in zip(grid, windows(problem))):
        return "written for axes that are not shorter than their window"
    return "" if math.prod(grid) <= MOST_POINTS else f"written for grids of at most {MOST_POINTS} points"


def prepare(problem, inputs, outputs):
    from torch.nn.attention.flex_attention import create_block_mask
    t, y, x = (problem.axes[axis] for axis in "TYX")
    q, k, v = (inputs[name].flatten(1, 3).transpose(1, 2) for name in "QKV")

    def visible(batch, head, row, key):
        inside = True
        for stride, length, window in zip((y * x, x, 1), (t, y, x), windows(problem)):
            start = (row // stride % length - (window - 1) // 2).clamp(0, length - window)
            at = key // stride % length
            inside = (at >= start) & (at < start + window) & inside
        return inside

    blocks = create_block_mask(visible, None, None, t * y * x, t * y * x, device="cuda")
    attend, shape = compiled(), inputs["Q"].shape
    return lambda: {"O": attend(q, k, v, block_mask=blocks, scale=1.0).transpose(1, 2).reshape(shape)}


PEERS = [Peer("torch.flex.grid", ("neighborhood_attention_3d",), prepare, supports=supports, device="cuda",
              summary="PyTorch's FlexAttention with the window as rule")]
