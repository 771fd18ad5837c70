"""A step with samples of another length."""

from __future__ import annotations

from types import ModuleType

import pytest

import bert
import dlrm
import gpt
from foretrace.graph import ForetraceError
from foretrace.graph.edits.sequence import sequence
from tests.graph.edits.agreement import assert_same, sketched


@pytest.mark.parametrize(("model", "new"), [(gpt, 48), (gpt, 128), (bert, 64)])
def test_every_call_is_the_one_that_the_model_makes(model: ModuleType, new: int) -> None:
    assert_same(sequence(sketched(model), new), sketched(model, seq=new))


def test_autocast_stays_where_it_was() -> None:
    half = {"dtype": "bf16"}
    assert_same(sequence(sketched(bert, options=half), 64), sketched(bert, options=half, seq=64))


def test_a_step_without_sequences_says_so() -> None:
    with pytest.raises(ForetraceError, match="does not show its sequence length"):
        sequence(sketched(dlrm), 64)
