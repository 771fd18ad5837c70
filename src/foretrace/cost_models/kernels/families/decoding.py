"""Attention of few queries over many keys, as decoding over a cache has it: libraries split the keys among blocks."""

from __future__ import annotations

from foretrace.cost_models.kernels.families.attention import Attention, attention_case, decoding_shapes, is_decoding
from foretrace.graph import Op
from foretrace.platform.measurements.cases import Case, Draw


class Decoding(Attention):
    """Flash, memory-efficient and cuDNN attention of few queries over more keys."""

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
