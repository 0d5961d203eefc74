"""fla.*: the gated delta rule of flash-linear-attention, with gates computed in its kernels."""
from assay.peer import Peer


def make(name, function, computes, summary):
    def prepare(problem, inputs, outputs):
        from fla.ops import gated_delta_rule
        packed = "cu_seqlens" in inputs
        q, k, v, a, b = ((inputs[n][None] if packed else inputs[n]) for n in ("q", "k", "v", "a", "b"))
        scale = (float(inputs["scale"]) if "scale" in inputs else 0.0) or 128**-0.5
        options = dict(g=a, beta=b, A_log=inputs["A_log"], dt_bias=inputs["dt_bias"], scale=scale,
                       initial_state=inputs.get("state"), output_final_state=True, state_v_first=True,
                       use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True, cu_seqlens=inputs.get("cu_seqlens"))

        def call():
            o, state = getattr(gated_delta_rule, function)(q, k, v, **options)
            return {"output": o[0] if packed else o, "new_state": state}
        return call

    return Peer(name, computes, prepare, summary=summary, needs=("torch", "triton", "fla"), device="cuda")


PEERS = [make("fla.recurrent", "fused_recurrent_gated_delta_rule", ("gdn_decode", "gdn_prefill"),
              "flash-linear-attention, token by token"),
         make("fla.chunk", "chunk_gated_delta_rule", ("gdn_prefill",), "flash-linear-attention, in chunks of 64")]
