"""Calls taken out of a step."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from torch import nn

import bert
import gpt
from foretrace.graph import ForetraceError
from foretrace.transforms.without import without
from tests.transforms.agreement import assert_same, shapes, sketched, sketched_now


def test_a_step_without_its_activations_is_that_of_a_model_without_them() -> None:
    with patch.object(gpt.nn, "GELU", nn.Identity):
        truth = sketched_now(gpt)
    assert_same(without(sketched(gpt), "gelu"), truth)


def test_what_backward_made_of_dropped_activations_goes_with_them() -> None:
    names = {name for name, *_ in shapes(without(sketched(bert), "aten::native_dropout"))}
    assert not any("dropout" in name for name in names)


def test_calls_of_one_module_alone_are_taken_out() -> None:
    step = sketched(gpt)
    count = sum(op.name == "aten::gelu" for op in step.ops)
    module = next(op.module for op in step.ops if op.name == "aten::gelu")
    assert sum(op.name == "aten::gelu" for op in without(step, f"gelu@{module}").ops) == count - 1


def test_a_name_that_nothing_has_is_told_with_those_near_to_it() -> None:
    with pytest.raises(ForetraceError, match=r"no op 'gellu'. Near to it is aten::gelu"):
        without(sketched(gpt), "gellu")
    with pytest.raises(ForetraceError, match=r"no gelu in a module 'head'"):
        without(sketched(gpt), "gelu@head")


def test_what_others_can_not_do_without_stays() -> None:
    with pytest.raises(ForetraceError, match=r"call \d+, aten::\w+, reads what aten::embedding makes"):
        without(sketched(gpt), "embedding")
