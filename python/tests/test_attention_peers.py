"""Who sees what in the peers of attention: lists without torch; the masked peer itself where torch is installed."""
import importlib.util
import random
import unittest

from assay.peer import Problem, Unsupported
from assay.peers import _attention, torch_sdpa_masked

PREFIX0 = "prefix_cached_block_causal_h32_d128_prefix0"


def problem_of(tokens, segments, inputs=("Q", "K", "V")):
    attributes = {} if segments is None else {"prefix_segments": segments}
    return Problem(PREFIX0, {"B": 1, "Nq": tokens}, attributes, inputs={name: ("bfloat16", ()) for name in inputs})


def random_segments():
    """Segments that touch, with adjacent text runs and adjacent images among them, and the number of tokens."""
    at, segments = 0, []
    for _ in range(random.randint(1, 6)):
        segments.append([at, at + random.randint(1, 9), random.random() < 0.5])
        at = segments[-1][1]
    return at, segments


def is_visible(segments, row, key):
    """The definition: an earlier key, or one of the same image."""
    return key <= row or any(is_image and start <= row < end and start <= key < end
                             for start, end, is_image in segments)


class Visibility(unittest.TestCase):
    def test_limits_say_what_the_definition_says(self):
        for _ in range(200):
            tokens, segments = random_segments()
            limits = _attention.row_limits(problem_of(tokens, segments))
            for row in range(tokens):
                for key in range(tokens):
                    self.assertEqual(key < limits[row], is_visible(segments, row, key), (segments, row, key))

    def test_segments_flat_nested_or_absent(self):
        flat = [0, 8, 0, 8, 20, 1]
        self.assertEqual(_attention.segments(problem_of(20, flat)), [(0, 8, False), (8, 20, True)])
        self.assertEqual(_attention.segments(problem_of(20, [flat[:3], flat[3:]])), [(0, 8, False), (8, 20, True)])
        self.assertEqual(_attention.segments(problem_of(20, None)), [(0, 20, False)])
        self.assertEqual(_attention.visibility(problem_of(20, None)), "causal")
        self.assertEqual(_attention.visibility(problem_of(20, flat)), "limits")

    def test_image_ids_that_no_peer_reads_are_declined(self):
        names = ("Q", "K", "V", "image_ids")
        with self.assertRaisesRegex(Unsupported, "not the tensor image_ids"):
            _attention.visibility(problem_of(20, None, names))
        self.assertEqual(_attention.visibility(problem_of(20, [0, 20, 1], names)), "limits")  # they say the same


@unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not installed")
class Masked(unittest.TestCase):
    def test_the_masked_peer_computes_the_block_causal_form(self):
        import torch
        tokens, segments = random_segments()
        q, k, v = (torch.randn(1, tokens, 32, 128) for _ in range(3))
        got = torch_sdpa_masked.prepare(problem_of(tokens, segments), {"Q": q, "K": k, "V": v}, {})()["O"]
        scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) * 128**-0.5
        for row in range(tokens):
            for key in range(tokens):
                if not is_visible(segments, row, key):
                    scores[:, :, row, key] = -torch.inf
        expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v.double())
        torch.testing.assert_close(got.double(), expected, atol=1e-4, rtol=1e-4)

    def test_joined_keys_follow_the_content_of_the_call(self):
        import torch
        inputs = {name: torch.randn(1, tokens, 4, 8) for name, tokens in
                  (("Q", 5), ("K", 5), ("V", 5), ("K_prefix", 3), ("V_prefix", 3))}
        operands = _attention.operands(problem_of(5, None), inputs)
        for _ in range(2):
            q, k, v = operands()
            for got, name in ((k, "K"), (v, "V")):
                torch.testing.assert_close(got[:, :, :3], inputs[name + "_prefix"].transpose(1, 2))
                torch.testing.assert_close(got[:, :, 3:], inputs[name].transpose(1, 2))
            torch.testing.assert_close(q, inputs["Q"].transpose(1, 2))
            for tensor in inputs.values():
                tensor.copy_(torch.randn(tensor.shape))


if __name__ == "__main__":
    unittest.main()
