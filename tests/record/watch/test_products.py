"""Watched steps with products make the calls of plain ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from foretrace.record.sketch.sketch import sketch
from foretrace.record.watch.watch import Watch

PRODUCTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "running": lambda x: x.cumprod(0),
    "running along the last": lambda x: torch.cumprod(x, -1),
    "of all": lambda x: x.prod(),
    "of rows": lambda x: x.prod(1),
    "of rows that stay": lambda x: torch.prod(x, 1, keepdim=True),
}


def differentiated(product: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    found = product(x)
    return torch.autograd.grad(found, x, torch.ones_like(found))[0]


def is_made_of_others(name: str) -> bool:
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    first = f"{name}.{packet.overloads()[0]}".removesuffix(".default") if packet is not None else ""
    return not first or torch._C._dispatch_has_kernel_for_dispatch_key(first, "CompositeImplicitAutograd")


def outermost(events: Any) -> Iterator[str]:
    """The calls of a profile that a dispatch mode would see."""
    for event in sorted(events, key=lambda event: event.time_range.start):
        if event.name.startswith("aten::") and not is_made_of_others(event.name):
            yield event.name
        else:
            yield from outermost(event.cpu_children)


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_a_watched_product_has_the_calls_and_the_gradient_of_a_plain_one(product):
    x = (torch.rand(4, 6) + 0.5).requires_grad_()
    with profile(activities=[ProfilerActivity.CPU]) as plain:
        expected = differentiated(product, x)
    with Watch() as watch:
        found = differentiated(product, x)
    assert torch.allclose(found, expected)
    calls = outermost(event for event in plain.events() if event.cpu_parent is None)
    assert [op.name for op in watch.ops] == list(calls)


def test_second_derivatives_of_a_watched_product_are_right():
    def curvature() -> torch.Tensor:
        (first,) = torch.autograd.grad(x.cumprod(0).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    x = (torch.rand(4, 6) + 0.5).requires_grad_()
    expected = curvature()
    with Watch():
        found = curvature()
    assert torch.allclose(found, expected, rtol=1e-4)


def test_a_product_of_zeros_has_its_gradient():
    x = torch.tensor([2.0, 0.0, 3.0], requires_grad=True)
    expected = differentiated(lambda x: x.cumprod(0), x)
    with Watch():
        found = differentiated(lambda x: x.cumprod(0), x)
    assert found.tolist() == expected.tolist()


def test_a_sketched_running_product_looks_for_zeros_and_divides():
    def build() -> Callable[[], None]:
        x = torch.rand(8, 4, device="cuda", requires_grad=True)

        def step() -> None:
            x.cumprod(0).sum().backward()

        return step

    names = [op.name for op in sketch(build, device="cuda").ops if op.phase == "backward"]
    looks = ("any", "_local_scalar_dense", "flip", "cumsum", "flip", "div")
    assert " ".join(f"aten::{name}" for name in looks) in " ".join(names)
