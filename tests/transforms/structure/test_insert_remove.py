"""Ops inserted and removed: compared with models written so."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from torch import nn

import bert
import dlrm
import gpt
from foretrace.graph import ForetraceError, Graph, Op, OpTable
from foretrace.transforms.structure.insert_remove import insert, without
from foretrace.whatif.changes import edit_step
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


def test_an_unknown_op_to_remove_is_refused_with_similar_names() -> None:
    with pytest.raises(ForetraceError, match=r"no op 'gellu'. Did you mean aten::gelu"):
        without(sketched(gpt), "gellu")
    with pytest.raises(ForetraceError, match=r"no gelu in a module 'head'"):
        without(sketched(gpt), "gelu@head")


def test_what_others_can_not_do_without_stays() -> None:
    with pytest.raises(ForetraceError, match=r"call \d+, aten::\w+, reads a result of aten::embedding"):
        without(sketched(gpt), "embedding")


def test_what_was_taken_out_comes_back() -> None:
    step = sketched(gpt)
    assert_same(insert(without(step, "gelu"), "gelu", "addmm@mlp.0"), step)


def test_dropout_inserted_after_activations_is_that_of_a_model_that_has_it() -> None:
    activation = nn.GELU
    with patch.object(gpt.nn, "GELU", lambda: nn.Sequential(activation(), nn.Dropout())):
        truth = sketched_now(gpt)
    assert_same(edit_step(sketched(gpt), ["insert:gelu=dropout"]), truth)


def test_an_op_is_inserted_after_the_named_calls_only() -> None:
    made = insert(sketched(gpt), "rms_norm", "addmm@blocks.1.mlp.2")
    norms = [op.module for op in made.ops if op.name == "aten::_fused_rms_norm"]
    assert norms == ["GPT.blocks.1.mlp.2"]


def test_unknown_names_are_refused_with_similar_ones() -> None:
    with pytest.raises(ForetraceError, match=r"no op in its forward 'gellu'. Did you mean aten::gelu"):
        insert(sketched(gpt), "relu", "gellu")
    with pytest.raises(ForetraceError, match=r"no gelu in a module 'head'"):
        insert(sketched(gpt), "relu", "gelu@head")
    with pytest.raises(ForetraceError, match=r"'reluu' can't be inserted. These can: relu"):
        insert(sketched(gpt), "reluu", "gelu")
    with pytest.raises(ForetraceError, match=r"does not name a part of the step. Name a call"):
        edit_step(sketched(gpt), ["insert=relu"])


def test_what_makes_nothing_to_be_called_on_says_so() -> None:
    with pytest.raises(ForetraceError, match=r"can't be applied to the result of call \d+, aten::select"):
        insert(sketched(dlrm), "relu", "select")


def test_a_hostile_name_is_never_called() -> None:
    step = sketched(dlrm)
    hostile = Op("aten::from_file", ("/etc/passwd",), overload="default", phase="forward")
    with pytest.raises(ForetraceError, match="unknown operator aten::from_file"):
        insert(Graph(OpTable.of([hostile, *step.ops]), storages=step.storages), "relu", "bmm")
