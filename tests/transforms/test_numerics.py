"""A step in another dtype, and under autocast: compared with steps that were sketched so."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import pytest
import torch

import bert
import dlrm
import gpt
import resnet
from foretrace.graph import ForetraceError, Graph
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.numerics import autocast, dtype
from foretrace.transforms.structure.attention import attention
from foretrace.transforms.structure.checkpointing import checkpointing
from tests.transforms.agreement import assert_same, calls, sketched, sketched_now


def test_a_step_without_its_autocast_is_a_step_in_float32() -> None:
    for model in (gpt, dlrm):
        assert_same(dtype(sketched(model, options={"dtype": "bf16"}), "fp32"), sketched(model))


def test_copies_come_back_where_another_attention_lays_out_its_results_otherwise() -> None:
    assert calls(dtype(sketched(bert, options={"dtype": "bf16"}), "fp32")) == calls(sketched(bert))


def test_a_step_in_bfloat16_calls_what_a_model_made_so_calls() -> None:
    for model in (gpt, bert):  # the copies that BERT's attention makes depend on what lays out its results
        assert calls(dtype(sketched(model), "bf16")) == calls(sketched(model, torch.bfloat16))


def test_a_step_of_convolutions_runs_in_float16() -> None:
    assert calls(dtype(sketched(resnet, batch=2), "fp16")) == calls(sketched(resnet, torch.float16, batch=2))


def test_batch_norms_are_of_cudnn_where_it_takes_their_types() -> None:
    single, autocast = sketched(resnet), sketched(resnet, options={"dtype": "bf16"})
    # How often a gradient is detached hangs on the strides that a CPU's convolutions give it.
    known, found = (
        [call for call in calls(step) if call[0] != "aten::detach"] for step in (single, dtype(autocast, "fp32"))
    )
    assert found == known
    half = dtype(single, "fp16")
    assert not any("cudnn_batch_norm" in op.name for op in half.ops)
    assert_same(dtype(half, "fp32"), single)


def test_batch_norms_that_pytorch_computed_for_other_reasons_stay_so() -> None:
    with torch.backends.cudnn.flags(enabled=False):
        native = sketched_now(resnet, batch=2)
    assert any(op.name == "aten::native_batch_norm" for op in native.ops)
    assert not any("cudnn_batch_norm" in op.name for op in dtype(native, "fp64").ops)


def test_attention_is_swapped_in_both_directions() -> None:
    efficient = sketched(gpt)
    there = attention(dtype(efficient, "bf16"), "flash")
    assert sum("flash" in op.name for op in there.ops) == 4
    assert_same(dtype(there, "fp32"), efficient)


def test_attention_is_not_given_what_it_does_not_take() -> None:
    with pytest.raises(ForetraceError, match=r"takes float32, and flash attention supports.*Set dtype=bf16"):
        attention(sketched(gpt), "flash")
    odd = dtype(sketched(gpt, dim=80), "bf16")
    with pytest.raises(ForetraceError, match="head size of 20, and cudnn attention supports multiples of 8 up to 128"):
        attention(odd, "cudnn")


def test_names_that_nothing_has_are_refused() -> None:
    with pytest.raises(ForetraceError, match="can't run in 'int8'"):
        dtype(sketched(dlrm), "int8")
    with pytest.raises(ForetraceError, match="no attention 'fast'"):
        attention(sketched(gpt), "fast")
    with pytest.raises(ForetraceError, match="calls none of"):
        attention(sketched(dlrm), "flash")


HALF = {"dtype": "bf16"}


@pytest.mark.parametrize("model", [gpt, bert, resnet, dlrm])
def test_every_call_and_cast_is_the_one_that_autocast_makes(model: ModuleType) -> None:
    made, truth = autocast(sketched(model), "bf16"), sketched(model, options=HALF)
    assert calls(made) == calls(truth)
    places = [(op.module, op.entered, op.node, op.thread) for op in truth.ops]
    assert [(op.module, op.entered, op.node, op.thread) for op in made.ops] == places


def test_each_forward_of_a_step_casts_its_weights_anew() -> None:
    twice = {"accumulate": 2}
    assert calls(autocast(sketched(gpt, options=twice), "bf16")) == calls(sketched(gpt, options=twice | HALF))


def test_convolutions_on_a_cpu_are_cast_too() -> None:
    plain, truth = (sketch(partial(resnet.make_step, "tiny", device="cpu", dtype=dtype)) for dtype in ("fp32", "bf16"))
    assert calls(autocast(plain, "bf16")) == calls(truth)


def test_a_step_on_a_cpu_is_cast_by_the_rules_of_cpus() -> None:
    def step(half: bool) -> Graph:
        model, data = torch.nn.Linear(8, 4), torch.ones(2, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def once() -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = model(data).exp().sum()
            loss.backward()
            optimizer.step()

        return sketch(lambda: once)

    assert calls(autocast(step(False), "bf16")) == calls(step(True))


def test_other_edits_come_before_and_after() -> None:
    assert calls(autocast(dtype(sketched(gpt, options=HALF), "fp32"), "bf16")) == calls(sketched(gpt, options=HALF))
    both = sketched(gpt, options=HALF | {"recompute": True})
    assert calls(checkpointing(autocast(sketched(gpt), "bf16"))) == calls(both)


def test_a_step_that_can_not_be_called_again_says_at_which_call() -> None:
    with pytest.raises(ForetraceError, match=r"does not reproduce call \d+, aten::\w+"):
        autocast(sketched(gpt, options={"recompute": True}), "bf16")


def test_invalid_values_are_refused() -> None:
    with pytest.raises(ForetraceError, match=r"call \d+, aten::\w+, takes bfloat16.*dtype=fp32"):
        autocast(sketched(gpt, options=HALF), "bf16")
    with pytest.raises(ForetraceError, match="autocast does not cast to 'fp64'"):
        autocast(sketched(gpt), "fp64")
