"""Which calls of a step a benchmark takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from foretrace.graph import ForetraceError, Graph, Op, OpTable, Storage, Tensor
from foretrace.graph.op import RESIZE
from foretrace.graph.operators import NAMESPACES, REFUSED, is_identifier, operator_path
from foretrace.replay.generate.choices import Choices, Selection, packages, select
from foretrace.replay.generate.planning import plan_of
from tests.replay.steps import STEPS
from tests.replay.test_replays import graph_of

OPS = [
    Op("aten::embedding", phase="forward"),
    Op("aten::mm", phase="forward", module="Net.up.0"),
    Op("c10d::allreduce_", phase="backward"),
    Op("aten::mm", phase="backward", module="Net.up"),
    Op("aten::_foreach_add_", phase="optimizer"),
]


@pytest.mark.parametrize(
    ("selection", "taken"),
    [
        (Selection(), [0, 1, 2, 3, 4]),
        (Selection(phase="backward"), [2, 3]),
        (Selection(first="mm"), [1, 2, 3, 4]),
        (Selection(first="aten::mm#1", last="_foreach*"), [3, 4]),
        (Selection(only="communication"), [2]),
        (Selection(only="lookup"), [0]),
        (Selection(only="compute", without=("mm", "_foreach*")), [0]),
        (Selection(module="Net.up"), [1, 3]),
    ],
)
def test_calls_are_taken_by_phase_place_and_kind(selection: Selection, taken: list[int]) -> None:
    assert select(OPS, selection) == taken


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        (Selection(phase="sideways"), "no phase 'sideways'"),
        (Selection(only="music"), "of kind 'music'"),
        (Selection(module="Net.u"), "no module 'Net.u'. Did you mean Net.up"),
        (Selection(first="conv2d"), "no call 'conv2d'"),
        (Selection(first="convolution"), "It has aten::_foreach_add_, aten::embedding"),
        (Selection(first="embeding"), "Did you mean aten::embedding"),
        (Selection(first="aten::nm"), "Did you mean aten::mm"),
        (Selection(last="mm#7"), "no call 'mm#7'. Of mm it has 2 calls, mm#0 to mm#1"),
        (Selection(last="mm#x"), "no call 'mm#x'. Of mm it has 2 calls"),
        (Selection(first="mm#"), "no call 'mm#'"),
        (Selection(first="embedding#1"), "Of embedding it has one call, embedding#0"),
        (Selection(without=("mm", "nosuchop")), "no call 'nosuchop'"),
        (Selection(without=("*",)), "nothing is left"),
        (Selection(first="_foreach*", last="mm"), "nothing is left"),
    ],
)
def test_what_is_not_there_is_said(selection: Selection, said: str) -> None:
    with pytest.raises(ForetraceError, match=said):
        select(OPS, selection)


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_each_phase_runs_alone(phase: str, loaded: Callable[..., Any]) -> None:
    graph, _, _ = graph_of(STEPS["adamw, foreach"]())
    benchmark = loaded(graph, Choices(Selection(phase=phase)))
    assert benchmark.source.failures == []
    assert {graph.ops[number].phase for number in benchmark.called} == {phase}
    assert benchmark.original["step_ms"] is None  # nobody timed a part of a step


@pytest.mark.parametrize("name", ["aten::mm", "prims::convert_element_type", "c10d::allreduce_", "aten::__and__"])
def test_operators_of_pytorch_are_written_as_they_are_called(name: str) -> None:
    assert operator_path(name, "default") == f"{name.replace('::', '.')}.default"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_operators_that_open_files_or_print_are_not(name: str) -> None:
    assert operator_path(name, "default") is None


def test_a_custom_namespace_is_called_once_the_user_names_it() -> None:
    assert operator_path("fbgemm::jagged_to_dense", "default") is None
    assert operator_path("fbgemm::jagged_to_dense", "default", namespaces=packages(["fbgemm=fbgemm_gpu"])) is not None


def test_no_operator_of_the_allowed_namespaces_takes_a_path() -> None:
    for namespace in NAMESPACES:
        for name in dir(getattr(torch.ops, namespace)):
            packet = getattr(getattr(torch.ops, namespace), name)
            for overload in packet.overloads() if hasattr(packet, "overloads") else ():
                schema = getattr(packet, overload)._schema
                words = {argument.name for argument in schema.arguments if "str" in str(argument.type)}
                if words & {"filename", "path", "file"}:  # einsum's path is a list of numbers
                    assert operator_path(f"{namespace}::{name}", overload) is None


@pytest.mark.parametrize("text", ["def", "None", "__x", "a.b", "a-b", "1a", "x" * 129, "naïve", "a\n"])
def test_a_word_is_nothing_that_python_gives_a_meaning_to(text: str) -> None:
    assert not is_identifier(text)


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
        data.set_(torch.UntypedStorage(21))
        return data.add_(1)

    graph = graph_of(step)[0]
    assert [call.args[1] for call in plan_of(graph).calls if call.name == "aten::set_"] == [21]
    benchmark = loaded(graph)
    assert benchmark.source.failures == [] and "take_storage(t0, 21)" in step_of(benchmark)
    assert benchmark.called == set(range(len(graph.ops)))


def step_of(benchmark: Any) -> str:
    return str((benchmark.folder / "step.py").read_text())
