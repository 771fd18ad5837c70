"""A float32 step under autocast: compared with torch.autocast."""

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
from foretrace.transforms.numerics.autocast import autocast
from foretrace.transforms.numerics.dtype import dtype
from foretrace.transforms.structure.checkpointing import checkpointing
from tests.transforms.agreement import calls, sketched

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
