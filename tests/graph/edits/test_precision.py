"""A step in another floating type, and the attention that goes with it."""

from __future__ import annotations

import pytest
import torch

import bert
import dlrm
import gpt
import resnet
from foretrace.graph import ForetraceError
from foretrace.graph.edits.attention import attention
from foretrace.graph.edits.precision import dtype
from tests.graph.edits.agreement import assert_same, calls, shapes, sketched


def test_autocast_taken_away_is_a_step_in_float32() -> None:
    for model in (gpt, dlrm):
        assert_same(dtype(sketched(model, options={"dtype": "bf16"}), "fp32"), sketched(model))


def test_copies_come_back_where_another_attention_lays_out_its_results_otherwise() -> None:
    assert calls(dtype(sketched(bert, options={"dtype": "bf16"}), "fp32")) == calls(sketched(bert))


def test_a_step_in_bfloat16_calls_what_a_model_made_so_calls() -> None:
    # Not to the last type: sketches without a GPU keep the statistics of norms in bfloat16, a GPU in float32.
    for model in (gpt, bert):  # the copies that BERT's attention makes depend on what lays out its results
        assert shapes(dtype(sketched(model), "bf16")) == shapes(sketched(model, torch.bfloat16))


def test_a_step_of_convolutions_runs_in_float16() -> None:
    assert shapes(dtype(sketched(resnet, batch=2), "fp16")) == shapes(sketched(resnet, torch.float16, batch=2))


def test_attention_is_swapped_in_both_directions() -> None:
    efficient = sketched(gpt)
    there = attention(dtype(efficient, "bf16"), "flash")
    assert sum("flash" in op.name for op in there.ops) == 4
    assert_same(dtype(there, "fp32"), efficient)


def test_names_that_nothing_has_are_refused() -> None:
    with pytest.raises(ForetraceError, match="can't run in 'int8'"):
        dtype(sketched(dlrm), "int8")
    with pytest.raises(ForetraceError, match="no attention 'fast'"):
        attention(sketched(gpt), "fast")
    with pytest.raises(ForetraceError, match="calls none of"):
        attention(sketched(dlrm), "flash")
