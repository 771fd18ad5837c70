"""Views that are changed in place: the calls of a sketch are those of a real step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from foretrace.record.sketch.sketch import sketch
from foretrace.record.watch.watch import Watch
from tests.narrowing import present

Loss = Callable[[torch.Tensor, str], torch.Tensor]


def assigned(x: torch.Tensor, device: str) -> torch.Tensor:
    made = torch.zeros(8, 8, device=device)
    made[:4, 2:6] = x
    made[5, ::2] = 1.0
    return made


def assigned_twice(x: torch.Tensor, device: str) -> torch.Tensor:
    made = x * 1
    for row in range(3):
        made[row] = made[row + 1] * 2
    made[0] = 0.0
    return made


def flattened_and_dropped(x: torch.Tensor, device: str) -> torch.Tensor:
    return F.relu(torch.flatten(x * 1, 0), inplace=True) * 2


def added_to_a_part(x: torch.Tensor, device: str) -> torch.Tensor:
    made = x * 2
    part = made[1:3].t()
    part += 1
    return torch.cat([made.flatten(), part.flatten()])


def not_in_the_gradient(x: torch.Tensor, device: str) -> torch.Tensor:
    ids = torch.zeros(4, 4, device=device)
    ids[0] = 1
    ids.view(-1).add_(2)
    return x * ids


def masked(x: torch.Tensor, device: str) -> torch.Tensor:
    made = x * 2
    made[:, 0].masked_fill_(made[:, 0] > 0, 1.0)
    made.view(2, 8).clamp_(min=0)
    return made


def left_as_it_is(x: torch.Tensor, device: str) -> torch.Tensor:
    return (x * 2).view(2, 8).contiguous().reshape(2, 8).requires_grad_().exp()


def indexed(x: torch.Tensor, device: str) -> torch.Tensor:
    made = torch.zeros(6, 4, device=device)
    made[torch.arange(4, device=device)] = x
    made[1:3][:, 1] = x[0, :2]
    return made


ASSIGNED = [assigned, assigned_twice, not_in_the_gradient, masked, left_as_it_is, indexed]
USED_AFTERWARDS = [flattened_and_dropped, added_to_a_part]
CASES = [
    *((each, device) for each in ASSIGNED for device in ("cpu", "cuda")),
    *((each, "cuda") for each in USED_AFTERWARDS),
]


def stepped(loss_of: Loss, device: str) -> Callable[[], Any]:
    def build() -> Callable[[], None]:
        weight = torch.nn.Parameter(torch.ones(4, 4, device=device))

        def step() -> None:
            weight.grad = None
            loss_of(weight, device).square().sum().backward()

        return step

    return build


def calls(ops: Any) -> list[tuple[Any, ...]]:
    return [(op.name, *((t.shape, t.dtype) for t in op.tensors)) for op in ops]


@pytest.mark.parametrize(("program", "device"), CASES)
def test_a_view_that_is_changed_in_place_has_the_calls_of_a_real_one(program, device):
    with Watch() as watch:
        stepped(program, "cpu")()()
    step = calls(watch.ops)[1:]  # without the weight
    sketched = sketch(stepped(program, device), device=device)
    assert calls(sketched.ops) == step


def test_the_gradient_of_a_changed_view_is_that_of_a_strided_one():
    graph = sketch(stepped(flattened_and_dropped, "cuda"), device="cuda")
    nodes = [present(op.node) for op in graph.ops if op.phase == "backward"]
    assert "AsStridedBackward0" in nodes and "ViewBackward0" not in nodes
