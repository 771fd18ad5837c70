"""A step with another batch: the same calls with the shapes that the model itself would have given them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from replay.steps import Step, layers

import dlrm
import gpt
import resnet
from foretrace.graph import Constant, ForetraceError, Graph, Op, OpTable, Tensor
from foretrace.replay.batch import rebatched, with_batch
from foretrace.replay.batch_inputs import batch_of
from foretrace.replay.folder import Choices
from foretrace.replay.memory import peak_memory
from foretrace.replay.plan import Plan
from foretrace.replay.planning import plan_of
from tests.record.reexecution import watched

MODELS: dict[str, Callable[[int], Step]] = {
    "dlrm": lambda batch: dlrm.make_step(batch=batch),
    "gpt": lambda batch: gpt.make_step(batch=batch),
    "resnet": lambda batch: resnet.make_step(batch=batch),
}


def graph_of(step: Step) -> Graph:
    step()
    watch, ops = watched(step)
    return Graph(OpTable.of(ops), storages=watch.census.storages)


def plan(step: Step) -> Plan:
    return plan_of(graph_of(step))


def shapes(plan: Plan) -> list[tuple[str, list[tuple[int, ...]]]]:
    return [
        (call.name, [tensor.shape for tensor in call.made.values()])
        for call in plan.recorded
        if all(tensor.layout == "strided" for tensor in call.made.values())
    ]


@pytest.mark.parametrize(("name", "old", "new"), [("dlrm", 48, 96), ("gpt", 6, 3), ("resnet", 3, 5)])
def test_every_call_has_the_shapes_that_the_model_gives_it(name: str, old: int, new: int) -> None:
    small, large = (plan(MODELS[name](batch)) for batch in (old, new))
    assert batch_of(small) == old
    assert shapes(rebatched(small, new)) == shapes(large)


def test_a_step_of_another_batch_runs(loaded: Callable[..., Any]) -> None:
    benchmark = loaded(graph_of(MODELS["gpt"](6)), Choices(batch="12"))
    assert benchmark.source.failures == [] and benchmark.source.stand_ins == []
    assert benchmark.original["step_ms"] is None and any("batch of 12" in note for note in benchmark.notes)


def test_memory_follows_the_batch() -> None:
    small, large = (plan(MODELS["gpt"](batch)) for batch in (6, 12))
    assert peak_memory(rebatched(small, 12)) == pytest.approx(peak_memory(large), rel=0.02)


def test_the_same_batch_changes_nothing() -> None:
    same = plan(layers(torch.optim.SGD))
    assert rebatched(same, batch_of(same)) is same


def test_what_can_not_be_carried_through_is_said_with_its_call() -> None:
    given = Tensor((4, 3), "float32", "cpu", (3, 1), id=0, storage=0)
    fixed = Tensor((4, 3), "float32", "cpu", (3, 1), id=1, storage=1)
    made = Tensor((4, 3), "float32", "cpu", (3, 1), id=2, storage=2)
    ops = [
        Op("aten::mul", (given, fixed), outputs=(made,), overload="Tensor", phase="forward"),
        Op("aten::relu_", (fixed,), outputs=(fixed,), overload="default", phase="optimizer"),
    ]
    with pytest.raises(ForetraceError, match="call 0, aten::mul"):
        rebatched(plan_of(Graph(OpTable.of(ops))), 8, 4)


@pytest.mark.parametrize(
    "op",
    [
        Op("aten::relu", (Tensor((4,), "load", "cpu", (1,), id=0, storage=0),), overload="default"),
        Op("aten::_indices", (3,), outputs=(Tensor((1,), "int64", id=1),), overload="default"),
        Op("aten::zeros", ([4], Constant("layout", "save")), overload="default"),
        Op("os::system", ("rm",), outputs=(Tensor((4,), "int64", id=1),), overload="default"),
        Op("aten::view", (Tensor((4,), "int8", "cpu", (1,), id=0, storage=0), "x"), overload="default"),
    ],
)
def test_a_hostile_call_ends_in_an_error_of_ours_or_in_none(op: Op) -> None:
    given = Tensor((4, 3), "float32", "cpu", (3, 1), id=9, storage=9)
    used = Op("aten::relu", (given,), outputs=(), overload="default", phase="forward")
    with contextlib.suppress(ForetraceError):
        rebatched(plan_of(Graph(OpTable.of([used, op]))), 8, 4)


@pytest.mark.parametrize("batch", ["0", "x", "8/", "8/0", "-1"])
def test_a_batch_is_a_number_or_two(batch: str) -> None:
    with pytest.raises(ForetraceError, match="is no batch"):
        with_batch(plan(layers(torch.optim.SGD)), batch)


def test_what_was_recorded_must_be_a_size_of_the_inputs() -> None:
    recorded = plan(MODELS["dlrm"](48))
    with pytest.raises(ForetraceError, match="not recorded with a batch of 7: its inputs begin with 192, 48"):
        with_batch(recorded, "64/7")
    assert shapes(with_batch(recorded, "96/48")) == shapes(with_batch(recorded, "96"))
