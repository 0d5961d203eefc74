"""The gated delta rule as a recurrence, one program per head and slice of its value rows (own kernel)."""
import triton
import triton.language as tl

CONFIGS = [triton.Config({"ROWS": rows}, num_warps=warps)
           for rows, warps in ((4, 1), (8, 1), (8, 2), (16, 1), (16, 2), (16, 4), (32, 4), (64, 4))]


@triton.autotune(CONFIGS, key=["size_class"])
@triton.jit
def recurrence(q, k, v, state, log_decay, a, a_bias, b, starts, out, new_state, scale, size_class,
               HAS_STATE: tl.constexpr, ONE_TOKEN: tl.constexpr, ROWS: tl.constexpr):
    # 4 query and key heads, 8 value heads, 128 channels; the state is [sequence, head, V, K] in fp32.
    sequence, head = tl.program_id(1) // 8, tl.program_id(1) % 8
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 128)
    at = (sequence.to(tl.int64) * 8 + head) * 16384 + rows[:, None] * 128 + columns[None, :]
    s = tl.zeros([ROWS, 128], tl.float32)
    if HAS_STATE:
        s = tl.load(state + at)
    if ONE_TOKEN:
        first, last = sequence.to(tl.int64), sequence.to(tl.int64) + 1
    else:
        first, last = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    decay, bias = -tl.exp(tl.load(log_decay + head)), tl.load(a_bias + head)
    for t in range(first, last):
        kt = tl.load(k + (t * 4 + head // 2) * 128 + columns).to(tl.float32)
        qt = tl.load(q + (t * 4 + head // 2) * 128 + columns).to(tl.float32)
        vt = tl.load(v + (t * 8 + head) * 128 + rows).to(tl.float32)
        x = tl.load(a + t * 8 + head).to(tl.float32) + bias
        softplus = tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))
        beta = tl.sigmoid(tl.load(b + t * 8 + head).to(tl.float32))
        s *= tl.exp(decay * softplus)
        s += (beta * (vt - tl.sum(s * kt[None, :], 1)))[:, None] * kt[None, :]
        o = scale * tl.sum(s * qt[None, :], 1)
        tl.store(out + (t * 8 + head) * 128 + rows, o.to(tl.bfloat16))
    tl.store(new_state + at, s)
