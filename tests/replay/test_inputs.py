"""Input tensors and what fills them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import dlrm
from foretrace.api import load
from foretrace.graph import Graph, Job
from foretrace.record.watch.session import record_step
from foretrace.replay.generate.planning import plan_of
from foretrace.replay.harness import host, inputs

CPU = torch.device("cpu")


def test_views_look_at_the_same_memory() -> None:
    memory = inputs.memory(32, CPU)
    whole = inputs.view(memory, [4, 2], [2, 1], 0, torch.float32, inputs.constant(1.0))
    column = inputs.view(memory, [4], [2], 1, torch.float32, inputs.constant(5.0))
    assert whole[:, 1].tolist() == [5.0] * 4 and whole[:, 0].tolist() == [1.0] * 4
    assert column.data_ptr() == whole.data_ptr() + 4


def test_an_expanded_view_is_filled_once() -> None:
    made = inputs.view(inputs.memory(16, CPU), [3, 4], [0, 1], 0, torch.float32, inputs.uniform(1.0, 2.0))
    assert made.stride() == (0, 1) and torch.equal(made[0], made[2])


def test_a_sparse_tensor_keeps_its_duplicates() -> None:
    indices, values = torch.tensor([[1, 1, 3]]), torch.ones(3, 2)
    made = inputs.sparse(indices, values, [5, 2], torch.float32, CPU)
    assert made._nnz() == 3 and not made.is_coalesced()


def test_a_content_that_does_not_fit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.runtime, "notes", [])
    made = inputs.tensor([3], torch.int64, CPU, inputs.values([1.0, 2.0]))
    assert made.tolist() == [0, 0, 0] and "holds zeros" in host.runtime.notes[0]


def test_a_meta_tensor_is_not_filled() -> None:
    assert inputs.tensor([3], torch.float32, torch.device("meta"), inputs.constant(1.0)).is_meta


def test_a_view_of_memory_that_has_no_size_yet_holds_nothing() -> None:
    memory = inputs.memory(0, CPU)
    made = inputs.view(memory, [2, 3], [3, 1], 1, torch.float32, inputs.constant(1.0))
    assert made.shape == (2, 3) and memory.untyped_storage().nbytes() == 0
    host.resize(made, 28)
    assert made.fill_(2.0).tolist() == [[2.0] * 3] * 2


def recorded(step: Callable[[], Any], folder: Path) -> Graph:
    record_step(step, folder, warmup=2, plain=5, profile=1)
    found = load(folder)
    return found.graphs[0] if isinstance(found, Job) else found


def reuse(ids: torch.Tensor) -> dict[int, int]:
    """How many rows are hit between 2^k and 2^(k+1) - 1 times, by k."""
    return doublings(torch.unique(ids, return_counts=True)[1])


def doublings(numbers: torch.Tensor) -> dict[int, int]:
    powers, counts = torch.unique(numbers[numbers > 0].double().log2().floor(), return_counts=True)
    return {int(power): int(count) for power, count in zip(powers, counts)}


def alike(ours: dict[int, int], theirs: dict[int, int]) -> bool:
    """Whether each bin is within one percent."""
    return ours.keys() == theirs.keys() and all(abs(ours[k] - theirs[k]) <= 0.01 * theirs[k] for k in theirs)


class Lookups(torch.nn.Module):
    """Tables that are asked for by power laws of different skew."""

    def __init__(self, skews: tuple[float, ...], rows: int, bags: int) -> None:
        super().__init__()
        self.tables = torch.nn.ModuleList([torch.nn.EmbeddingBag(rows, 4, mode="sum", sparse=True) for _ in skews])
        self.ids = [dlrm.row_ids(bags * 5, rows, skew) for skew in skews]
        lengths = torch.randint(0, 11, (bags,), generator=torch.Generator().manual_seed(8))
        ends = (lengths.cumsum(0) * (bags * 5) // int(lengths.sum())).clamp(max=bags * 5)
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.int64), ends[:-1]])

    def forward(self) -> torch.Tensor:
        return torch.stack([table(ids, self.offsets) for table, ids in zip(self.tables, self.ids)]).square().mean()


@pytest.fixture
def lookups() -> Lookups:
    return Lookups((0.0, 0.8, 1.05), rows=5000, bags=2000)


def test_ids_of_a_recording_are_reused_as_often(lookups: Lookups, tmp_path: Path, loaded: Callable[..., Any]) -> None:
    update = torch.optim.SGD(lookups.parameters(), lr=0.1)

    def step() -> None:
        update.zero_grad()
        lookups().backward()
        update.step()

    graph = recorded(step, tmp_path / "recording")
    benchmark = loaded(graph)
    made = dict(zip((entry.name for entry in plan_of(graph).inputs), benchmark.inputs))
    reads = [call for call in plan_of(graph).calls if call.name == "aten::_embedding_bag"]
    assert len(reads) == 3
    for call, was in zip(reads, lookups.ids):
        ids, offsets = made[call.args[1]], made[call.args[2]]
        assert alike(reuse(ids), reuse(was))
        assert not torch.equal(ids, was) and (int(ids.min()), int(ids.max())) == (int(was.min()), int(was.max()))
        assert bool((offsets.diff() >= 0).all()) and int(offsets[0]) == 0 and int(offsets[-1]) <= len(ids)
        assert alike(doublings(offsets.diff()), doublings(lookups.offsets.diff()))


def test_numbers_are_as_large_as_they_were_and_none_is_odd() -> None:
    made = torch.empty(10000)
    inputs.normal(mean=0.5, std=0.1, low=-1.0, high=1.0)(made)
    assert float(made.mean()) == pytest.approx(0.5, abs=0.01) and float(made.std()) == pytest.approx(0.1, abs=0.01)
    inputs.uniform(low=0.0, high=1e-38, zeros=0.5)(made)
    tiny = torch.finfo(torch.float32).tiny
    assert bool(((made == 0) | (made.abs() >= tiny)).all()) and not made.isnan().any()


def test_a_large_tensor_is_filled_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MAX_DRAWN", 100)
    made = torch.full((25, 10), float("nan"))
    inputs.normal(mean=0.5, std=0.1, low=0.0, high=1.0)(made)
    flat = made.view(-1)
    assert len(flat[:100].unique()) > 90 and torch.equal(flat[:150], flat[100:])
    turned = torch.full((25, 10), float("nan")).T
    inputs.uniform(low=0.0, high=1.0)(turned)
    assert len(turned.unique()) > 200


def test_some_targets_mean_no_class() -> None:
    made = torch.empty(1000, dtype=torch.int64)
    inputs.ids(low=0, high=9, unique=10, reuse=[0] * 6 + [10], none=-100, nones=150)(made)
    assert int((made == -100).sum()) == 150 and int(made[made >= 0].max()) == 9


def test_bags_of_uneven_length_fill_all_that_is_there() -> None:
    made = torch.empty(101, dtype=torch.int64)
    inputs.offsets(first=0, last=400, steps=[20, 30, 50])(made)
    assert int(made[0]) == 0 and int(made[-1]) == 400 and bool((made.diff() >= 0).all())


def test_what_a_type_can_not_hold_is_cut_to_what_it_can() -> None:
    made = torch.empty(4, 4, dtype=torch.float16)
    inputs.triangle(below=0.0, above=-3.4e38)(made)
    assert float(made[0, 3]) == torch.finfo(torch.float16).min and float(made[3, 0]) == 0.0
    inputs.either(one=0.0, other=float("-inf"), share=0.5)(made)
    assert float(made.min()) == float("-inf")
