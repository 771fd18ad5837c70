"""A layer with another number of outputs."""

from __future__ import annotations

import pytest

import dlrm
import gpt
from foretrace.graph import ForetraceError
from foretrace.transforms.width import width
from tests.transforms.agreement import assert_same, sketched


def test_the_next_layer_follows() -> None:
    assert_same(width(sketched(dlrm), 48, "top.0"), sketched(dlrm, top=(48, 16, 1)))
    assert_same(width(sketched(dlrm), 40, "DLRM.dense.bottom.0"), sketched(dlrm, bottom=(13, 40, 16)))


def test_the_optimizers_state_goes_with_its_weight() -> None:
    wider = width(sketched(gpt), 512, "blocks.0.mlp.0")
    (state,) = [op for op in wider.ops if op.name == "aten::_foreach_lerp_"][:1]
    assert sum(tensor.shape == (512, 64) for tensor in state.tensors) == 2 + 2  # the vocabulary is 512 too


def test_a_layer_that_is_not_there_is_told_with_those_near_to_it() -> None:
    with pytest.raises(ForetraceError, match=r"no linear layer 'top.9'"):
        width(sketched(dlrm), 48, "top.9")
    with pytest.raises(ForetraceError, match="names 2 layers"):
        width(sketched(gpt), 48, "mlp.0")
