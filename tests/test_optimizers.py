"""Another optimizer: what PyTorch itself calls with it."""

from __future__ import annotations

import pytest

import dlrm
import gpt
from foretrace.graph import ForetraceError
from foretrace.optimizers import chosen, optimizer
from tests.graph.edits.agreement import assert_same, sketched


@pytest.mark.parametrize(("old", "new"), [("loop", "fused"), ("auto", "loop"), ("fused", "foreach")])
def test_the_same_optimizer_walks_its_weights_otherwise(old: str, new: str) -> None:
    assert_same(optimizer(sketched(gpt, options={"optimizer": old}), new), sketched(gpt, options={"optimizer": new}))


def test_another_optimizer_holds_other_state() -> None:
    there_and_back = optimizer(optimizer(sketched(gpt), "sgd"), "adamw")
    assert_same(there_and_back, sketched(gpt))


def test_a_name_that_is_none_is_told_with_those_near_to_it() -> None:
    with pytest.raises(ForetraceError, match=r"'adamv'. Near to it are .*adamw"):
        chosen("adamv")


def test_what_sparse_gradients_do_not_take_is_refused() -> None:
    with pytest.raises(ForetraceError, match="does not take the gradients"):
        optimizer(sketched(dlrm), "adamw")
