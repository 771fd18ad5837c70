"""Attention of few queries over many keys, as decoding over a cache has it: libraries split the keys among blocks."""

from __future__ import annotations

from foretrace.cost_models.kernels.families.attention import Attention, attention_case, decoding_shapes, inputs_of
from foretrace.graph import Op
from foretrace.platform.measurements.cases import Case, Draw

MAX_QUERIES = 16


class Decoding(Attention):
    """Flash, memory-efficient and cuDNN attention of up to `MAX_QUERIES` queries over more keys."""

    name = "decoding"
    share = 3
    cases_per_shape = 1

    def accepts(self, op: Op) -> bool:
        """Calls whose queries, keys and values are known, with fewer queries than keys."""
        return self.has_shapes(op) and is_decoding(op)

    def case(self, draw: Draw) -> Case:
        """A forward: nothing is trained so."""
        draw.turn = 0
        return attention_case(draw, decoding_shapes)


def is_decoding(op: Op) -> bool:
    """Whether an attention has few queries over more keys.

    >>> from foretrace.graph import Tensor
    >>> one, many = Tensor((1, 8, 1, 64), "bfloat16"), Tensor((1, 8, 512, 64), "bfloat16")
    >>> is_decoding(Op("aten::_scaled_dot_product_flash_attention", (one, many, many)))
    True
    """
    queries, keys, _ = inputs_of(op)
    return queries.shape[2] <= MAX_QUERIES and queries.shape[2] < keys.shape[2]
