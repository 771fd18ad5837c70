"""Another optimizer: compared with what PyTorch calls for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dlrm
import gpt
from foretrace.graph import ForetraceError
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.structure.optimizer import optimizer, parse_optimizer
from tests.transforms.agreement import assert_same, sketched


@pytest.mark.parametrize(("old", "new"), [("loop", "fused"), ("auto", "loop"), ("fused", "foreach")])
def test_the_same_optimizer_walks_its_weights_otherwise(old: str, new: str) -> None:
    assert_same(optimizer(sketched(gpt, options={"optimizer": old}), new), sketched(gpt, options={"optimizer": new}))


def test_another_optimizer_holds_other_state() -> None:
    there_and_back = optimizer(optimizer(sketched(gpt), "sgd"), "adamw")
    assert_same(there_and_back, sketched(gpt))


def test_an_unknown_optimizer_is_refused_with_similar_names() -> None:
    with pytest.raises(ForetraceError, match=r"'adamv'. Did you mean .*adamw"):
        parse_optimizer("adamv")


@pytest.mark.parametrize("name", ["sgd", "loop"])
def test_the_optimizer_that_a_step_has_changes_nothing_also_with_sparse_gradients(name: str) -> None:
    assert_same(optimizer(sketched(dlrm), name), sketched(dlrm))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("adamw", "does not support sparse gradients"),
        ("fused", "does not support sparse gradients"),
        ("adagrad", "depends on the data"),
        ("momentum", "sparse state"),
    ],
)
def test_what_sparse_gradients_do_not_take_is_refused(name: str, why: str) -> None:
    with pytest.raises(ForetraceError, match=f"^{name} does not take the gradients of this step .*{why}"):
        optimizer(sketched(dlrm), name)


@pytest.mark.parametrize(
    ("update", "options", "found"),
    [
        ("SGD", {"momentum": 0.9, "weight_decay": 1e-4}, "momentum"),
        ("SGD", {"fused": True}, "sgd"),
        ("Adam", {}, "adam"),
        ("Adagrad", {}, "adagrad"),
        ("RMSprop", {}, None),
    ],
)
def test_the_optimizer_of_a_step_is_recognized_by_its_calls(
    update: str, options: dict[str, Any], found: str | None
) -> None:
    def build() -> Callable[[], None]:
        net = nn.Linear(8, 8)
        optim = getattr(torch.optim, update)(net.parameters(), lr=0.1, **options)

        def step() -> None:
            optim.zero_grad()
            net(torch.ones(4, 8)).sum().backward()
            optim.step()

        return step

    graph = sketch(build, "cuda")
    if found is None:
        with pytest.raises(ForetraceError, match="is not recognized"):
            optimizer(graph, "foreach")
    else:
        assert f"the optimizer is {found}, foreach" in optimizer(graph, "foreach").notes
