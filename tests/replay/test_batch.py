"""A benchmark of a step with another batch; how the batch goes through the calls is tested with the edits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gpt
from foretrace.graph import ForetraceError, Graph, OpTable
from foretrace.replay.folder import Choices
from foretrace.replay.memory import footprint
from foretrace.replay.planning import plan_of
from foretrace.transforms.resize.batch_sequence import batch
from tests.record.reexecution import watched
from tests.replay.steps import Step, layers


def graph_of(step: Step) -> Graph:
    step()
    watch, ops = watched(step)
    return Graph(OpTable.of(ops), storages=watch.census.storages)


def test_a_step_of_another_batch_runs(loaded: Callable[..., Any]) -> None:
    benchmark = loaded(graph_of(gpt.make_step(batch=6)), Choices(batch="12"))
    assert benchmark.source.failures == [] and benchmark.source.stand_ins == []
    assert benchmark.original["step_ms"] is None and any("batch: 12 instead of 6" in note for note in benchmark.notes)


def test_memory_follows_the_batch() -> None:
    small, large = (graph_of(gpt.make_step(batch=size)) for size in (6, 12))
    assert footprint(plan_of(batch(small, 12))).peak == pytest.approx(footprint(plan_of(large)).peak, rel=0.02)


@pytest.mark.parametrize("text", ["0", "x", "8/", "8/0", "-1"])
def test_a_batch_is_a_number_or_two(text: str, loaded: Callable[..., Any]) -> None:
    with pytest.raises(ForetraceError, match="batch can't be"):
        loaded(graph_of(layers(torch.optim.SGD)), Choices(batch=text))
