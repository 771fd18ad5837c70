"""Parts of steps that run by themselves: what is left out is made up, and one step leaves the next what it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from foretrace.graph import Graph, Op, OpTable, Storage, Tensor
from foretrace.graph.op import RESIZE
from foretrace.replay.folder import Choices
from foretrace.replay.planning import plan_of
from foretrace.replay.selection import Selection
from tests.replay.test_replays import graph_of


def lookups() -> Callable[[], None]:
    """Tables with sparse gradients, one of them with an id that stands for nothing; the data is made in the step."""
    tables = nn.ModuleList([nn.EmbeddingBag(50, 4, mode="sum", sparse=True), nn.Embedding(30, 4, 0, sparse=True)])
    update = torch.optim.SparseAdam(list(tables.parameters()), lr=0.1)

    def step() -> None:
        update.zero_grad()
        bags, words = tables[0](torch.randint(50, (8, 3))), tables[1](torch.arange(8) % 3)
        (bags * words * torch.randn(8, 4)).sum().backward()
        update.step()

    return step


@pytest.mark.parametrize(
    "part",
    [
        Selection(phase="optimizer"),
        Selection(phase="backward"),
        Selection(without=("_sparse*", "_indices")),
        Selection(first="_coalesce", last="sqrt_"),
    ],
    ids=str,
)
def test_a_part_with_sparse_gradients_makes_all_its_calls(part: Selection, loaded: Callable[..., Any]) -> None:
    benchmark = loaded(graph_of(lookups())[0], Choices(part))
    assert benchmark.source.failures == [] and benchmark.source.stand_ins == []


def test_made_up_gradients_hit_as_many_rows_as_the_original_s(loaded: Callable[..., Any]) -> None:
    benchmark = loaded(graph_of(lookups())[0], Choices(Selection(phase="optimizer")))
    gradients = [tensor for tensor in benchmark.inputs if tensor.is_sparse]
    assert len(gradients) == 2 and all(len(gradient._indices().unique()) > 1 for gradient in gradients)


def test_data_that_a_step_makes_itself_is_in_the_type_that_is_asked_for(loaded: Callable[..., Any]) -> None:
    benchmark = loaded(graph_of(lookups())[0], Choices(dtype="fp64"))
    assert benchmark.source.failures == []
    assert "randn.default([8, 4], device=cpu, pin_memory=False, dtype=torch.float64)" in step_of(benchmark)


def gathered() -> Graph:
    """As FSDP does it: a weight has memory from its gathering on until it is no longer needed."""
    shard = Tensor((8,), "float32", "cpu", (1,), id=0, storage=0)
    weight, made = (Tensor((8,), "float32", "cpu", (1,), id=n, storage=s) for n, s in ((1, 2), (2, 4)))
    ops = [
        Op(RESIZE, (1, 2, 32), phase="forward"),
        Op("aten::copy_", (weight, shard), outputs=(weight,), overload="default", phase="forward"),
        Op("aten::relu", (weight,), outputs=(made,), overload="default", phase="backward"),
        Op(RESIZE, (2, 3, 0), phase="backward"),
    ]
    sizes = ((0, 32, -1, -1), (1, 0, -1, 0), (2, 32, 0, 3), (3, 0, 3, -1), (4, 32, 2, -1))
    storages = {number: Storage(number, nbytes, "cpu", birth, death) for number, nbytes, birth, death in sizes}
    return Graph(OpTable.of(ops), storages=storages)


def test_what_is_gathered_in_the_step_has_no_memory_before_it(loaded: Callable[..., Any]) -> None:
    benchmark = loaded(gathered())
    assert benchmark.source.failures == []
    assert "memory(0, cpu)" in (benchmark.folder / "inputs.py").read_text()
    assert "resize(t0, 32)" in step_of(benchmark) and "resize(t0, 0)" in step_of(benchmark)
    assert benchmark.facts["memory"]["peak"] == 96


def test_a_part_keeps_the_memory_that_it_begins_with(loaded: Callable[..., Any]) -> None:
    benchmark = loaded(gathered(), Choices(Selection(phase="backward")))
    for _ in range(2):
        benchmark.step()()
    assert benchmark.source.failures == [] and "resize(" not in step_of(benchmark)


def test_what_is_gathered_is_as_large_as_its_type_needs(loaded: Callable[..., Any]) -> None:
    benchmark = loaded(gathered(), Choices(dtype="fp64"))
    assert benchmark.source.failures == [] and "resize(t0, 64)" in step_of(benchmark)


def test_a_tensor_that_is_given_another_storage_keeps_its_name(loaded: Callable[..., Any]) -> None:
    def step() -> torch.Tensor:
        data = torch.empty((), dtype=torch.uint8)
        data.set_(torch.UntypedStorage(21))  # type: ignore[call-overload]
        return data.add_(1)

    graph = graph_of(step)[0]
    assert [call.args[1] for call in plan_of(graph).calls if call.name == "aten::set_"] == [21]
    benchmark = loaded(graph)
    assert benchmark.source.failures == [] and "take_storage(t0, 21)" in step_of(benchmark)
    assert benchmark.called == set(range(len(graph.ops)))


def step_of(benchmark: Any) -> str:
    return str((benchmark.folder / "step.py").read_text())
