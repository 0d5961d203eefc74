"""triton.recurrent: the gated delta rule token by token, in a small Triton kernel of our own."""
from assay.peer import Peer


def prepare(problem, inputs, outputs):
    from assay.peers._triton_gdn import recurrence
    state, starts = inputs.get("state"), inputs.get("cu_seqlens")
    sequences = outputs["new_state"].shape[0]
    given = float(inputs["scale"]) if "scale" in inputs else 0.0
    arguments = [inputs["q"], inputs["k"], inputs["v"], state, inputs["A_log"], inputs["a"], inputs["dt_bias"],
                 inputs["b"], starts, outputs["output"], outputs["new_state"], given or 128**-0.5,
                 sequences.bit_length()]
    return lambda: recurrence[lambda meta: (128 // meta["ROWS"], 8 * sequences)](
        *arguments, HAS_STATE=state is not None, ONE_TOKEN=starts is None)


PEERS = [Peer("triton.recurrent", ("gdn_decode", "gdn_prefill"), prepare, needs=("torch", "triton"), device="cuda",
              summary="the recurrence in Triton, own kernel")]
