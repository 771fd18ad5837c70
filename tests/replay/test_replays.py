"""Steps recorded and replayed: every call made, the same numbers, the same memory."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from foretrace.graph import Graph, OpTable
from foretrace.replay.generate.planning import plan_of
from tests.record.reexecution import watched
from tests.replay.steps import STEPS


def graph_of(step: Callable[[], Any]) -> tuple[Graph, dict[int, torch.Tensor], dict[int, Any]]:
    """A step's graph, the bytes that were there before it, and the storages as they are after it."""
    for _ in range(3):
        step()
    watch, ops = watched(step)
    after = {number: ref() for number, ref in watch.registry._living.values()}
    return Graph(OpTable.of(ops), storages=watch.registry.storages), watch.before, after


@pytest.mark.parametrize("name", STEPS)
def test_a_replay_from_the_same_bytes_ends_in_the_same_bytes(name: str, loaded: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    graph, before, after = graph_of(STEPS[name]())
    benchmark = loaded(graph)
    assert benchmark.source.failures == [] and benchmark.source.stand_ins == []
    assert benchmark.called == set(range(len(graph.ops)))

    inputs = {entry.name: entry.tensor for entry in plan_of(graph).inputs}
    real: dict[int, torch.Tensor] = {number: data.clone() for number, data in before.items()}
    given = []
    for made, (_, tensor) in zip(benchmark.inputs, inputs.items()):
        assert tuple(made.shape) == tensor.shape and made.stride() == (tensor.stride or ())
        empty = torch.empty(0, dtype=made.dtype)
        given.append(empty.set_(real[tensor.storage].untyped_storage(), tensor.offset, tensor.shape, tensor.stride))
    with torch.no_grad():
        benchmark.source.unpaced()(*given)

    changed = 0
    for number, data in real.items():
        if after.get(number) is not None:
            assert torch.equal(data, torch.empty(0, dtype=torch.uint8).set_(after[number])), f"storage {number}"
            changed += not torch.equal(data, before[number])
    assert changed


@pytest.mark.parametrize("name", STEPS)
def test_a_replay_holds_as_much_memory_as_the_original(name: str, loaded: Callable[..., Any]) -> None:
    graph, _, _ = graph_of(STEPS[name]())
    benchmark = loaded(graph)
    measure = importlib.import_module("harness.measure")
    peak = measure.peak_memory(benchmark.step(paced=False), benchmark.inputs)
    # What was there before the step and ended in it stays there for the next one.
    longer = sum(s.nbytes for s in graph.storages.values() if s.birth < 0 <= s.death)
    assert longer < 64
    # Ids made up without statistics coalesce to somewhat more rows.
    slack = 0.005 * peak if "adagrad" in name else longer
    assert 0 <= peak - benchmark.original["peak_memory_bytes"] <= slack
    assert peak == pytest.approx(benchmark.facts["memory"]["peak"], rel=0.02)
