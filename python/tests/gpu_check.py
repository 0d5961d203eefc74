"""All GPU peers on a GPU, without the C++ runner: verdict against fp64 by torch, graph capture, times.

    cd python && python3 -m tests.gpu_check [--only REGEX] [--skip REGEX] [--budget S] [--json FILE]

Prints a table; the exit code is the number of peers that are wrong or failed.
"""
import argparse
import json
import re
import sys
import time

import torch

from tests.runner import Worker, damage, layout, share

torch.manual_seed(time.time_ns() % 2**31)  # fresh inputs in every run
torch.set_grad_enabled(False)


class Check:
    """One workload: layouts, how inputs are filled, fp64 truth, and the captured tolerance of each output."""

    def __init__(self, label, definition, axes, inputs, outputs, reference, fill=None, attributes=None):
        self.label, self.definition, self.axes, self.attributes = label, definition, axes, attributes or {}
        self.inputs, self.outputs, self.reference, self.fill = inputs, outputs, reference, fill or {}

    def content(self):
        """A bundle with fresh inputs: normal numbers unless `fill` says otherwise."""
        bundle = share(self.inputs)
        for name, tensor in bundle.tensors.items():
            view = tensor.torch()
            if name in self.fill:
                view.copy_(self.fill[name](view))
            else:
                view.copy_(torch.randn(view.shape))
        return bundle


def attention_check(label, definition, b, nq, nk, h, d, prefix=0, attributes=None, mask=None):
    axes = {"B": b, "Nq": nq, **({"Np": prefix} if prefix else {"Nk": nk} if "noncausal" in definition else {})}
    inputs = [layout("Q", "bfloat16", b, nq, h, d), layout("K", "bfloat16", b, nk, h, d),
              layout("V", "bfloat16", b, nk, h, d)]
    if prefix:
        inputs += [layout(n, "bfloat16", b, prefix, h, d) for n in ("K_prefix", "V_prefix")]
    fill = {}
    if mask:
        inputs.append(layout("mask", "bool", *mask))
        fill["mask"] = lambda view: torch.rand(view.shape) < 0.7
    segments = (attributes or {}).get("prefix_segments") or []
    if segments and isinstance(segments[0], list):
        segments = [value for segment in segments for value in segment]

    def reference(x):
        q, k, v = x["Q"], x["K"], x["V"]
        if prefix:
            k, v = torch.cat([x["K_prefix"], k], 1), torch.cat([x["V_prefix"], v], 1)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / d**0.5
        if mask:
            visible = x["mask"].bool()
            scores.masked_fill_(~(visible[:, None, None, :] if visible.dim() == 2 else visible), -torch.inf)
        if definition.endswith("prefix0"):
            limits = torch.arange(1, nq + 1, device="cuda")
            for at in range(0, len(segments), 3):
                if segments[at + 2]:
                    limits[segments[at]:segments[at + 1]] = segments[at + 1]
            scores.masked_fill_(torch.arange(nq, device="cuda")[None, :] >= limits[:, None], -torch.inf)
        weights = scores.softmax(-1)
        return {"O": torch.einsum("bhqk,bkhd->bqhd", weights, v)}

    return Check(label, definition, axes, inputs, [layout("O", "bfloat16", b, nq, h, d)], reference, fill, attributes)


def gemm_check(m, n, k):
    return Check(f"M {m}", f"dense_gemm_bf16_nt_n{n}_k{k}", {"M": m},
                 [layout("A", "bfloat16", m, k), layout("B", "bfloat16", n, k)], [layout("C", "bfloat16", m, n)],
                 lambda x: {"C": x["A"] @ x["B"].T}, {"B": lambda view: torch.randn(view.shape) * k**-0.5})


def grouped_check(rows, experts, n, k):
    owners = torch.randint(experts, (rows,)).sort().values

    def decoded(codes, scales):
        return codes * torch.exp2(scales.double() - 127).repeat_interleave(32, -1)

    def reference(x):
        table = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6], device="cuda", dtype=torch.float64)
        table = torch.cat([table, -table])
        a, out = decoded(x["A"], x["SFA"]), torch.empty(rows, n, device="cuda", dtype=torch.float64)
        for row, expert in enumerate(owners.tolist()):
            packed = x["W"][expert].int()
            w = table[torch.stack([packed & 15, packed >> 4], -1).flatten(1)]
            out[row] = decoded(w, x["SFW"][expert]) @ a[row]
        return {"D": out}

    scales = lambda view: torch.randint(120, 126, view.shape, dtype=torch.uint8)
    return Check(f"M {rows} E {experts}", "grouped_gemm_fp8_fp4_test", {"M": rows},
                 [layout("A", "float8_e4m3fn", rows, k), layout("SFA", "float8_e8m0fnu", rows, k // 32),
                  layout("W", "float4_e2m1", experts, n, k), layout("SFW", "float8_e8m0fnu", experts, n, k // 32),
                  layout("m_indices", "int32", rows)], [layout("D", "bfloat16", rows, n)], reference,
                 {"SFA": scales, "SFW": scales, "m_indices": lambda view: owners.int(),
                  "W": lambda view: torch.randint(256, view.shape, dtype=torch.uint8)})


def gdn_check(lengths, packed):
    """Decode when not packed: every sequence is one token."""
    total, count = sum(lengths), len(lengths)
    lead = (total,) if packed else (count, 1)
    inputs = [layout("q", "bfloat16", *lead, 4, 128), layout("k", "bfloat16", *lead, 4, 128),
              layout("v", "bfloat16", *lead, 8, 128), layout("state", "float32", count, 8, 128, 128),
              layout("A_log", "float32", 8), layout("a", "bfloat16", *lead, 8), layout("dt_bias", "float32", 8),
              layout("b", "bfloat16", *lead, 8)]
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    if packed:
        inputs.append(layout("cu_seqlens", "int64", count + 1))
    inputs.append(layout("scale", "float32"))

    def reference(x):
        q, k, v, a, b = (x[n].reshape(total, -1, *x[n].shape[len(lead) + 1:]) for n in ("q", "k", "v", "a", "b"))
        q, k = q.repeat_interleave(2, 1), k.repeat_interleave(2, 1)
        decay = torch.exp(-x["A_log"].exp() * torch.nn.functional.softplus(a.reshape(total, 8) + x["dt_bias"]))
        beta, state, out = b.reshape(total, 8).sigmoid(), x["state"].clone(), torch.empty_like(v)
        for n in range(count):
            for t in range(bounds[n], bounds[n + 1]):
                s = state[n] * decay[t, :, None, None]
                update = beta[t, :, None] * (v[t] - torch.einsum("hvk,hk->hv", s, k[t]))
                state[n] = s + update[:, :, None] * k[t][:, None, :]
                out[t] = x["scale"] * torch.einsum("hvk,hk->hv", state[n], q[t])
        return {"output": out.reshape(*lead, 8, 128), "new_state": state}

    unit = lambda view: torch.nn.functional.normalize(torch.randn(view.shape), dim=-1)
    fill = {"q": unit, "k": unit, "scale": lambda view: torch.tensor(128**-0.5), "cu_seqlens": lambda view: bounds,
            "A_log": lambda view: torch.rand(8) * 2.7}
    name = "gdn_prefill" if packed else "gdn_decode"
    axes = {"total_seq_len": total, "num_seqs": count, "len_cu_seqlens": count + 1} if packed else {
        "batch_size": count}
    return Check(f"T {total} N {count}", f"{name}_qk4_v8_d128_k_last", axes, inputs,
                 [layout("output", "bfloat16", *lead, 8, 128), layout("new_state", "float32", count, 8, 128, 128)],
                 reference, fill)


def router_check(m):
    def reference(x):
        scores = torch.nn.functional.softplus(x["x"] @ x["W"].T).sqrt()
        ids = torch.topk(scores + x["bias"], 6).indices.sort(-1).values
        weights = scores.gather(1, ids)
        return {"expert_ids": ids, "expert_weights": 1.5 * weights / weights.sum(-1, True)}

    return Check(f"M {m}", "moe_router_gemm_topk_test", {"M": m},
                 [layout("x", "bfloat16", m, 5120), layout("W", "bfloat16", 384, 5120),
                  layout("bias", "float32", 384)],
                 [layout("expert_ids", "int32", m, 6), layout("expert_weights", "float32", m, 6)], reference,
                 {"W": lambda view: 0.025 * torch.randn(view.shape), "bias": lambda view: 0.15 * torch.randn(384)})


def grid_check(t, y, x, window):
    shape = (1, t, y, x, 8, 64)

    def reference(given):
        q, k, v = (given[name].flatten(1, 3) for name in "QKV")
        points = torch.arange(t * y * x, device="cuda")
        visible = torch.ones(len(points), len(points), dtype=torch.bool, device="cuda")
        for stride, length, size in zip((y * x, x, 1), (t, y, x), window):
            at = points // stride % length
            start = (at - (size - 1) // 2).clamp(0, length - size)
            visible &= (at[None, :] >= start[:, None]) & (at[None, :] < start[:, None] + size)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k).masked_fill(~visible, -torch.inf)
        return {"O": torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).reshape(shape)}

    name = "kt{}_ky{}_kx{}".format(*window)
    return Check(f"{t}x{y}x{x} {name}", f"neighborhood_attention_3d_h8_d64_{name}", {"B": 1, "T": t, "Y": y, "X": x},
                 [layout(n, "bfloat16", *shape) for n in "QKV"], [layout("O", "bfloat16", *shape)], reference,
                 {"Q": lambda view: torch.randn(view.shape) / 8})


DENSE, BLOCK = "noncausal_dense_attention_h32_", "prefix_cached_block_causal_h32_d128"
CHECKS = [
    lambda: gemm_check(257, 4096, 4096), lambda: gemm_check(4096, 4096, 4096),
    lambda: attention_check("300x77", DENSE + "d128", 2, 300, 77, 32, 128),
    lambda: attention_check("2352x2352", DENSE + "d128", 1, 2352, 2352, 32, 128),
    lambda: attention_check("1120x51", DENSE + "d64", 2, 1120, 51, 32, 64),
    lambda: attention_check("masked", DENSE + "d128", 2, 96, 80, 32, 128, mask=(2, 80)),
    lambda: attention_check("prefix 25", BLOCK, 1, 1000, 1000, 32, 128, prefix=25),
    lambda: attention_check("one text run", BLOCK + "_prefix0", 1, 30, 30, 32, 128,
                            attributes={"prefix_segments": [0, 30, 0]}),
    lambda: attention_check("text image text", BLOCK + "_prefix0", 1, 600, 600, 32, 128,
                            attributes={"prefix_segments": [0, 8, 0, 8, 580, 1, 580, 600, 0]}),
    lambda: attention_check("text image text, captured", BLOCK + "_prefix0", 1, 4125, 4125, 32, 128,
                            attributes={"prefix_segments": [[0, 8, False], [8, 4104, True], [4104, 4125, False]]}),
    lambda: grouped_check(50, 24, 256, 512),
    lambda: router_check(3), lambda: grid_check(5, 10, 12, (3, 7, 7)),
    lambda: gdn_check([1] * 4, False), lambda: gdn_check([1] * 64, False),
    lambda: gdn_check([77, 0, 1, 61], True),
]


def truth(check, content):
    """The fp64 outputs; integers and packed formats reach the reference as they are."""
    whole = (torch.uint8, torch.int32, torch.int64, torch.bool)
    given = {name: tensor.torch().cuda() for name, tensor in content.tensors.items()}
    return check.reference({name: x if x.dtype in whole else x.double() for name, x in given.items()})


def errors(output, expected):
    """(share of the bf16 or fp32 tolerance that the worst element uses, relative L2 error)"""
    atol, rtol = (5e-3, 1.6e-2) if output.dtype == torch.bfloat16 else (2e-5, 1e-4)
    expected = expected.double()
    difference = output.cuda().double() - expected
    worst = (difference.abs() / (atol + rtol * expected.abs())).nan_to_num(nan=torch.inf).max().item()
    return worst, (difference.norm() / expected.norm()).nan_to_num(nan=torch.inf).item()


def judge(outputs, expected):
    """A sentence about what is wrong, or "", and the largest relative L2 error."""
    if damage(outputs):
        return f"guard bytes of {sorted(damage(outputs))} were overwritten", 0
    largest = 0
    for name, tensor in outputs.tensors.items():
        worst, relative = errors(tensor.torch(), expected[name])
        largest = max(largest, relative)
        # Intermediates in bf16 (softmax weights, chunk operands) may cost more than the element's own rounding, in
        # fp32 states much more: there the norm decides, as the operators' pages say.
        if relative > 1e-2 or (worst > 8 and tensor.dtype == "bfloat16"):
            return f"{name}: worst element at {worst:.3g} of its tolerance, relative L2 error {relative:.3g}", largest
    return "", largest


def run_case(worker, peer, check, contents, truths, arguments):
    """One row of the table: peer, workload, verdict, relative error, medians in us, stop, clocks."""
    row = {"peer": peer, "definition": check.definition, "workload": check.label}
    reply = worker.open(check.definition, peer, check.axes, check.attributes)
    outputs = [share(check.outputs) for _ in contents]
    started = time.perf_counter()
    for number, (inputs, own) in enumerate(zip(contents, outputs)):
        if reply and reply["status"] == "ok":
            reply = worker.slot(number, inputs, own)
            row.setdefault("setup_s", round(time.perf_counter() - started, 2))
    if not reply or reply["status"] != "ok":
        said = reply or {"status": "dead", "reason": worker.said()[-300:]}
        return {**row, "verdict": said["status"], "reason": f"{said.get('sub', '')} {said['reason']}".strip()}
    row["run_us"] = reply["run_ns"] / 1e3
    for expected, own in zip(truths, outputs):
        wrong, row["relative_l2"] = judge(own, expected)
        if wrong:
            return {**row, "verdict": "incorrect", "reason": wrong}
    reply = worker.ask("time", modes=["cold", "warm"], budget_s=arguments.budget, warmup=True, flush=arguments.flush)
    if not reply or reply["status"] != "ok":
        said = reply or {"status": "dead", "reason": worker.said()[-300:]}
        return {**row, "verdict": said["status"], "reason": f"timing: {said['reason']}"}
    for series in reply["series"]:
        samples = sorted(int(ns) for ns in series["samples_ns"].split())
        row[series["mode"]] = {"us": samples[len(samples) // 2] / 1e3, "n": len(samples), "stop": series["stop"]}
    row["unwritten_calls"], row["clocks"] = reply["unwritten_calls"], reply.get("clocks")
    for expected, own in zip(truths, outputs):
        wrong, _ = judge(own, expected)
        if wrong:
            return {**row, "verdict": "incorrect", "reason": "after timing: " + wrong}
    row["verdict"] = "passed" if not reply["unwritten_calls"] else "incorrect"
    return row


def text(row):
    times = " ".join(f"{mode} {row[mode]['us']:9.2f} us ({row[mode]['n']}, {row[mode]['stop']})"
                     for mode in ("cold_graph", "cold_event", "warm_graph", "warm_event") if mode in row)
    return (f"{row['peer']:20} {row['definition'][:34]:34} {row['workload']:16} {row['verdict']:11} "
            f"{row.get('relative_l2', float('nan')):8.1e} {row.get('seconds', 0):5.1f} s {times}"
            f"{row.get('reason', '')[:160]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="peers whose name this regular expression finds")
    parser.add_argument("--skip", default="^$", help="no peers whose name this one finds")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds per timing series")
    parser.add_argument("--workload", default="", help="workloads whose label this regular expression finds")
    parser.add_argument("--flush", choices=("read", "write"), default="read", help="how the L2 cache is emptied")
    parser.add_argument("--json", help="also write the rows here")
    arguments = parser.parse_args()
    probe = Worker()
    listed = [one for one in probe.greeting["plugin_backends"] if re.search(arguments.only, one["name"])
              and not re.search(arguments.skip, one["name"])]
    probe.close()
    names = sorted({one["name"] for one in listed if one["device"] == "cuda"})
    workers = {name: Worker("--backend", name) for name in names}  # all at once: they import torch in parallel
    rows = []
    for make in CHECKS:
        check = make()
        peers = [one["name"] for one in listed if check.definition.startswith(one["definition"])
                 and re.search(arguments.workload, check.label)]
        if not peers:
            continue
        contents = [check.content() for _ in range(2)]
        truths = [truth(check, content) for content in contents]
        for peer in peers:
            if workers[peer].process.poll() is not None:
                workers[peer].close()
                workers[peer] = Worker("--backend", peer)
            started = time.perf_counter()
            try:
                row = run_case(workers[peer], peer, check, contents, truths, arguments)
            except TimeoutError:
                workers[peer].process.kill()
                row = {"peer": peer, "definition": check.definition, "workload": check.label, "verdict": "timeout"}
            row["seconds"] = round(time.perf_counter() - started, 1)
            rows.append(row)
            print(text(row), flush=True)
    for name, worker in workers.items():
        said = worker.said().strip()
        worker.close()
        if said:
            print(f"--- {name} printed: {said[-1500:]}", file=sys.stderr)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    bad = [row for row in rows if row["verdict"] not in ("passed", "unsupported")]
    print(f"{len(rows)} cases, {len(bad)} wrong or failed")
    return len(bad)


if __name__ == "__main__":
    sys.exit(main())
