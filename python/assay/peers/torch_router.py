"""torch.router: cuBLAS with fp32 results, then PyTorch's element-wise operators and topk."""
from assay.peer import Peer


def supports(problem):
    special = sorted({"is_image", "num_valid_rows"} & set(problem.inputs))
    return f"written without {special[0]}" if special else ""


def prepare(problem, inputs, outputs):
    import torch
    x, w, bias = inputs["x"], inputs["W"].t(), inputs["bias"]
    scaling = float(inputs["scaling"]) if "scaling" in inputs else 1.5
    chosen = outputs["expert_ids"].shape[1]

    def call():
        scores = torch.nn.functional.softplus(torch.mm(x, w, out_dtype=torch.float32)).sqrt()
        ids = torch.topk(scores + bias, chosen).indices.sort(-1).values
        weights = scores.gather(1, ids)
        return {"expert_ids": ids.int(), "expert_weights": scaling * weights / (weights.sum(-1, True) + 1e-20)}
    return call


PEERS = [Peer("torch.router", ("moe_router_gemm_topk",), prepare, summary="matrix product, softplus, topk of PyTorch",
              device="cuda", supports=supports)]
