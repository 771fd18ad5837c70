"""Values that follow from a script alone are true in a sketch; random integers are drawn, random numbers unknown."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from foretrace.errors import ForetraceError
from foretrace.graph import Graph
from foretrace.record.sketch.shares import SELECTED
from foretrace.record.sketch.sketch import sketch
from foretrace.record.sketch.values import CHANCE, COUNTED, DRAWN, MAX_ELEMENTS, RANKED

KNOWN: dict[str, Callable[[], Any]] = {
    "arithmetic": lambda: (torch.arange(4) * 8 + 8).int().tolist(),
    "drop paths": lambda: [rate.item() for rate in torch.linspace(0, 0.3, 5)],
    "a written list": lambda: torch.tensor([[1.5, 2.0], [3.0, 4.0]]).sum(1).tolist(),
    "a part that is changed": lambda: _changed(torch.zeros(4)).tolist(),
    "a cumulative sum": lambda: int(torch.tensor([2, 3, 5]).cumsum(0)[-1]),
    "a copy": lambda: copy.deepcopy(torch.tensor(2.5)).item(),
    "a buffer of a copied module": lambda: copy.deepcopy(_counter()).count.item(),
    "numpy": lambda: (torch.arange(3).numpy() + 1).tolist(),
    "from numpy": lambda: (torch.from_numpy(np.arange(3)) * 2).tolist(),
    "a comparison": lambda: bool((torch.arange(3) < 3).all()),
    "where": lambda: torch.tensor([0, 4, 0, 7]).nonzero().flatten().tolist(),
    "a mask": lambda: torch.arange(6)[torch.arange(6) % 2 == 0].tolist(),
    "unique": lambda: torch.tensor([3, 1, 3]).unique().tolist(),
    "ones like what is unknown": lambda: bool(torch.ones_like(torch.randn(4)).all()),
    "zeros of another dtype": lambda: torch.randn(3).new_zeros(2, dtype=torch.int64).tolist(),
    "filled": lambda: torch.empty(3).fill_(2.0).tolist(),
    "an inverse permutation": lambda: (
        torch.empty(3, dtype=torch.long).scatter_(0, torch.tensor([2, 0, 1]), torch.arange(3)).tolist()
    ),
    "a foreach call": lambda: _foreach([torch.tensor(1.0), torch.tensor(2.0)]),
    "a format": lambda: f"{torch.tensor(2.0) / 3:.3f}",
    "half precision": lambda: torch.full((2,), 3.0, dtype=torch.bfloat16).tolist(),
    "transposed": lambda: torch.arange(6).reshape(2, 3).t().contiguous().flatten().tolist(),
    "a scalar of a list": lambda: [torch.arange(3)[2].item(), float(torch.ones(1)), int(torch.tensor(7))],
}


def _changed(tensor: torch.Tensor) -> torch.Tensor:
    tensor[1] = 5
    tensor[2:].add_(torch.arange(2)).mul_(3)
    return tensor


def _counter() -> Any:
    module = torch.nn.Module()
    module.register_buffer("count", torch.tensor(41) + 1)
    return module


def _foreach(tensors: list[torch.Tensor]) -> list[float]:
    torch._foreach_add_(tensors, 1)
    return [tensor.item() for tensor in tensors]


def told(step: Callable[[], Any], device: str | None = None) -> tuple[Any, Graph]:
    """What a step returns in a sketch, and the graph."""
    seen: list[Any] = []
    graph = sketch(lambda: seen.append(step()), device)
    return seen[-1], graph


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("device", [None, "cuda"])
def test_what_is_made_from_constants_has_its_true_value(name: str, device: str | None) -> None:
    value, graph = told(KNOWN[name], device)
    assert value == KNOWN[name]()
    assert not [note for note in graph.notes if "assumed" in note]


def test_constants_on_a_pretended_gpu_are_followed_too() -> None:
    lengths, graph = told(lambda: (torch.arange(3, device="cuda") + 1).cumsum(0).tolist(), "cuda")
    assert lengths == [1, 3, 6]
    assert [op.produced[0].device for op in graph.ops if op.name == "aten::_to_copy"] == ["cpu"], "tolist copies"


UNKNOWN: dict[str, Callable[[], Any]] = {
    "random": lambda: torch.rand(2).tolist(),
    "computed from random": lambda: (torch.ones(2) + torch.rand(2)).tolist(),
    "filled at random": lambda: torch.ones(2).uniform_().tolist(),
    "a copy of random": lambda: torch.zeros(2).copy_(torch.rand(2)).tolist(),
    "not initialized": lambda: torch.empty(2).tolist(),
    "through a view": lambda: _overwritten(torch.zeros(2)).tolist(),
    "too large": lambda: torch.full((MAX_ELEMENTS + 1,), 3.0)[:2].tolist(),
}


def _overwritten(tensor: torch.Tensor) -> torch.Tensor:
    tensor[:1] = torch.rand(1)
    return tensor


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_random_is_unknown_and_assumed_to_be_one(name: str) -> None:
    value, graph = told(UNKNOWN[name])
    assert value == [1.0, 1.0]
    assert any("assumed to be 1 (test_values.py:" in note for note in graph.notes)


DRAWN_HERE: dict[str, Callable[[], list[int]]] = {
    "lengths": lambda: torch.randint(2, 9, (4,)).tolist(),
    "labels like others": lambda: torch.randint_like(torch.zeros(4, dtype=torch.int64), 2, 9).tolist(),
    "in place": lambda: torch.empty(4, dtype=torch.int64).random_(2, 9).tolist(),
    "on the GPU": lambda: torch.randint(2, 9, (4,), device="cuda").tolist(),
    "what is chosen of them": lambda: (lengths := torch.randint(2, 9, (64,)))[lengths > 3][:4].tolist(),
}


@pytest.mark.parametrize("name", DRAWN_HERE)
def test_random_integers_are_drawn_alike_in_every_sketch_and_a_note_says_so(name: str) -> None:
    state = torch.get_rng_state()
    value, graph = told(DRAWN_HERE[name], "cuda")
    assert len(set(value)) > 1 and all(2 <= each < 9 for each in value)
    assert [note.partition(" (")[0] for note in graph.notes if "assumed" in note] == [f"assumed: {DRAWN}"]
    assert told(DRAWN_HERE[name], "cuda")[0] == value
    assert torch.equal(torch.get_rng_state(), state), "the sketch leaves the random state as it was"


def test_offsets_of_a_large_batch_are_known() -> None:
    offsets, graph = told(lambda: torch.arange(0, 2 * 26 * 16384 + 1, 2)[[1, -1]].tolist())
    assert offsets == [2, 2 * 26 * 16384] and not graph.notes


def test_a_loss_may_become_an_array_and_other_unknown_tensors_not() -> None:
    value, graph = told(lambda: torch.randn(4).mean().numpy().item())
    assert value == 1.0 and any("assumed to be 1" in note for note in graph.notes)
    with pytest.raises(RuntimeError, match="numpy"):
        sketch(lambda: torch.randn(4).numpy())


def test_a_model_whose_widths_are_read_from_tensors_is_that_model() -> None:
    def build() -> Callable[[], Any]:
        widths = (torch.arange(4) * 8 + 16).tolist()
        layers = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in pairwise(widths)))
        return lambda: layers(torch.randn(2, 16)).sum().backward()

    products = [op.args for op in sketch(build).ops if op.name == "aten::addmm"]
    assert [weight.shape for _, _, weight, *_ in products] == [(16, 24), (24, 32), (32, 40)]  # type: ignore[union-attr]


def test_values_of_real_tensors_that_a_step_reads_are_true_and_stay_as_they_are() -> None:
    lengths = torch.tensor([3, 5])

    def step() -> int:
        lengths.add_(1)
        return int(lengths.max())

    value, _ = told(step)
    assert value == 7, "the second of two steps"
    assert lengths.tolist() == [3, 5]


def test_a_counted_step_goes_on_counting() -> None:
    def build() -> Callable[[], None]:
        weight = torch.nn.Parameter(torch.ones(4))
        optimizer = torch.optim.Adam([weight], foreach=False)

        def step() -> None:
            weight.sum().backward()
            optimizer.step()
            counts.append(optimizer.state[weight]["step"].item())

        return step

    counts: list[float] = []
    sketch(build)
    assert counts == [1.0, 2.0]


def test_a_router_chooses_experts_at_random_and_the_headline_says_so() -> None:
    rows: list[int] = []

    def build() -> Callable[[], Any]:
        experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
        gate, x = torch.nn.Linear(8, 4), torch.randn(64, 8)
        optimizer = torch.optim.SGD([*experts.parameters(), *gate.parameters()])

        def step() -> None:
            rows.clear()
            optimizer.zero_grad()
            weights, chosen = gate(x).softmax(-1).topk(2, -1)
            made = torch.zeros_like(x)
            for number, expert in enumerate(experts):
                token, place = torch.where(chosen == number)
                rows.append(len(token))
                made.index_add_(0, token, expert(x[token]) * weights[token, place, None])
            made.square().mean().backward()
            optimizer.step()

        return step

    graph = sketch(build, device="cuda")
    assert sum(rows) == 2 * 64 and all(16 < each < 48 for each in rows), "each token goes to two experts"
    assert any(note.startswith(f"assumed in the step, and decisive: {RANKED} (test_values.py:") for note in graph.notes)


def test_a_decoder_goes_on_until_its_last_token() -> None:
    words = torch.nn.Embedding(500, 8)
    done: list[torch.Tensor] = []

    def step() -> None:
        done.clear()
        with torch.no_grad():
            token, ended = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.bool)
            for _ in range(6):
                token = torch.multinomial((words(token) @ words.weight.t()).softmax(-1), 1)[:, 0]
                ended |= token == 2
                done.append(token)
                if ended.all():
                    break

    graph = sketch(step)
    assert len(done) == 6 and any(f"decisive: {RANKED}" in note for note in graph.notes)


MASKS: dict[str, Callable[[], torch.Tensor]] = {
    "compared": lambda: torch.rand(40, 50) < 0.2,
    "above": lambda: torch.rand_like(torch.zeros(40, 50)) >= 0.8,
    "drawn": lambda: torch.bernoulli(torch.full((40, 50), 0.2)).bool(),
    "in place": lambda: torch.zeros(40, 50).uniform_() < 0.2,
    "with a share for each": lambda: torch.full((40, 1), 0.2) > torch.rand(40, 50),
    "of a view": lambda: torch.rand(2000).view(50, 40).t() < 0.2,
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_random_elements_are_drawn(name: str) -> None:
    graph = sketch(lambda: torch.randn(40, 50)[MASKS[name]()])
    (chosen,) = graph.ops[len(graph.ops) - 1].produced
    assert 300 < chosen.shape[0] < 500 and graph.notes == [f"assumed: {DRAWN} (test_values.py:{_line(graph)})"]


def _line(graph: Graph) -> str:
    return graph.notes[0].rpartition(":")[2].rstrip(")")


def test_numbers_from_0_to_1_are_followed_through_arithmetic() -> None:
    """As the boxes of a detector and the positions of points, which follow from `torch.rand`."""

    def step() -> list[int]:
        boxes = torch.rand(500, 4) * 0.6 + 0.2
        left = boxes[boxes[:, 0] < 0.5]
        return [len(left), int((left[:, 0] < 0.5).sum()), int((boxes[:, 1] * 10).long().max())]

    (chosen, same, largest), graph = told(step)
    assert 200 < chosen == same < 300 and largest == 7
    assert [note.partition(" (")[0] for note in graph.notes] == [f"assumed: {DRAWN}"]


def test_one_number_at_random_lies_in_its_range_and_its_decision_is_said_in_the_headline() -> None:
    value, graph = told(lambda: ["only"][int(torch.empty(1).uniform_(0.0, 1.0).item())])
    assert value == "only" and any("decisive: 1 for a number that is compared" in note for note in graph.notes)
    value, _ = told(lambda: [torch.empty(1).uniform_(5.0, 6.0).item(), torch.rand(()).item()])
    assert 5 <= value[0] < 6 and 0 <= value[1] < 1


@pytest.mark.parametrize("device", [None, "cuda"])
def test_one_value_for_what_an_unknown_mask_chooses_needs_no_count(device: str | None) -> None:
    def step() -> None:
        x = torch.randn(8, 8, device=device or "cpu", requires_grad=True)
        made = x * 2
        made[made.detach() > 1] = 0.0
        made.sum().backward()

    ops = [op for op in sketch(step, device).ops if op.name.startswith("aten::index_put")]
    assert [op.name for op in ops] == ["aten::index_put_", "aten::index_put"], "forward, and the gradient's"
    assert all(op.produced[0].shape == (8, 8) for op in ops)


def test_as_many_numbers_are_counted_as_minlength_says() -> None:
    def step() -> list[Any]:
        bins = (torch.randn(64).sigmoid() * 4).long()
        counts = torch.bincount(bins, minlength=4), torch.bincount(bins, torch.ones(64), minlength=5)
        return [(len(each), each.dtype) for each in counts]

    value, graph = told(step)
    assert value == [(4, torch.int64), (5, torch.float32)]
    assert any(f"assumed: {COUNTED}" in note for note in graph.notes)
    with pytest.raises(ForetraceError, match="depends on the data"):
        sketch(lambda: torch.bincount(torch.randn(4).long()))


def test_a_mask_of_random_numbers_that_were_changed_is_unknown() -> None:
    graph = sketch(lambda: torch.randn(40, 50)[torch.rand(40, 50).mul_(torch.randn(40, 50)) < 0.2])
    assert any(f"decisive: {SELECTED}" in note for note in graph.notes)


def test_masks_of_the_same_random_numbers_agree() -> None:
    def step() -> list[int]:
        numbers = torch.rand(40, 50)
        chosen, others, between = numbers < 0.2, numbers >= 0.2, (numbers >= 0.2) & (numbers < 0.3)
        first = numbers[:20] < 0.2
        return [int(each.sum()) for each in (chosen, others, between, first, chosen[:20])]

    (chosen, others, between, first, same), _ = told(step)
    assert chosen + others == 2000 and 120 < between < 280 and first == same


def test_a_chance_that_decides_is_said_in_the_headline() -> None:
    value, graph = told(lambda: [bool(torch.rand(()) < 0.5) for _ in range(20)])
    assert set(value) == {True, False}
    assert any(note.startswith(f"assumed in the step, and decisive: {CHANCE} (test_values.py:") for note in graph.notes)


def test_the_order_of_an_unknown_tensor_is_the_same_whenever_it_is_asked_for() -> None:
    def step() -> list[list[Any]]:
        numbers = torch.randn(8, 16)
        best, others = numbers.argmax(-1), numbers.topk(3).indices
        order = numbers.sort(-1, descending=True).indices
        again = best.tolist(), others[:, 0].tolist(), order[:, 0].tolist(), numbers[2:].argmax(-1).tolist()
        numbers.normal_()
        return [*again, numbers.argmax(-1).tolist()]

    (best, others, order, part, later), _ = told(step)
    assert best == others == order and part == best[2:] and best != later


def test_choices_among_more_elements_than_are_drawn_are_distinct_and_even() -> None:
    def step() -> list[list[int]]:
        chosen = torch.randn(1024, 8192).softmax(-1).topk(4, -1).indices
        return (chosen // 1024).tolist()

    value, _ = told(step)
    counts = np.bincount(np.array(value).ravel(), minlength=8)
    assert len(counts) == 8 and counts.min() > 400 and counts.max() < 620
    first, _ = told(lambda: torch.randn(8192, 1024).topk(4, 0).indices.t().tolist())
    assert all(len(set(row)) == 4 and min(row) >= 0 and max(row) < 8192 for row in first)


def test_an_integer_of_an_unknown_number_may_be_a_size() -> None:
    value, graph = told(lambda: [int(torch.randn(4).max()), int(torch.tensor(3.7))])
    assert value == [1, 3] and any("decisive: 1 for an integer, perhaps a size" in note for note in graph.notes)


def test_pythons_random_numbers_are_the_same_in_every_sketch_and_go_on_as_before() -> None:
    def step() -> list[float]:
        return [random.random(), np.random.rand()]

    states = random.getstate(), str(np.random.get_state())
    assert told(step)[0] == told(step)[0]
    assert (random.getstate(), str(np.random.get_state())) == states


def test_an_accuracy_that_is_logged_is_no_decision() -> None:
    logged: list[float] = []

    def step() -> None:
        logged.append((torch.randn(8, 4).argmax(1) == torch.randint(4, (8,))).float().mean().item())

    graph = sketch(step)
    assert logged[-1] == 1.0 and not [note for note in graph.notes if "decisive" in note]


def test_places_among_all_elements_are_not_drawn() -> None:
    value, graph = told(lambda: [int(torch.randn(8).argmax())])
    assert value == [1] and any("perhaps a size" in note for note in graph.notes)


def test_choices_are_distinct_and_inside() -> None:
    value, _ = told(lambda: torch.randn(3, 6).topk(4).indices.tolist())
    assert all(len(set(row)) == 4 and set(row) <= set(range(6)) for row in value)
    value, _ = told(lambda: torch.randn(3, 6).argsort(-1).tolist())
    assert all(sorted(row) == list(range(6)) for row in value)
    value, _ = told(lambda: torch.multinomial(torch.randn(3, 2).softmax(-1), 8, replacement=True).tolist())
    assert {each for row in value for each in row} == {0, 1}


def test_a_step_sees_as_many_threads_as_the_machine_has() -> None:
    before = torch.get_num_threads()
    value, _ = told(lambda: (torch.arange(1 << 15).sum().item(), torch.get_num_threads()))
    assert value == (sum(range(1 << 15)), before) and torch.get_num_threads() == before
