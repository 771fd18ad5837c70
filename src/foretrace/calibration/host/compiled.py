"""Measuring the host time of programs that torch.compile generates: entering a forward or a backward, its arguments,
kernels and calls.

A few small programs are compiled that differ in one of them. Each is timed as a job calls it, with gradients to be
computed later; the device is faster than the host all the time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from foretrace.calibration.host.fsdp import times_us
from foretrace.calibration.timing.compiled_kernels import can_compile, recorded_launches

SIDE = 64
FEW, MANY = 4, 28
"""Layers of a program."""


class Program(NamedTuple):
    """A compiled function, ready to be called."""

    run: Callable[[], Any]
    kernels: int
    """How many generated kernels it launches."""


def compiled_costs(device: Any) -> tuple[float, ...] | None:
    """Microseconds to enter a compiled program, of each argument, of a generated kernel, around a call of PyTorch, and
    to enter a compiled backward.

    None where torch.compile makes no kernels.

    >>> compiled_costs(torch.device("cpu")) is None
    True
    """
    if not can_compile(device):
        return None
    try:
        short, long, arguments, products, forward, both = programs(device)
    except Exception:  # a compiler can fail in any way, and the rest of the calibration does not need it
        return None
    a, b = (torch.ones(SIDE, SIDE, device=device) for _ in range(2))
    out = torch.empty_like(a)

    def alone() -> None:
        for _ in range(MANY):
            torch.mm(a, b, out=out)

    weight = torch.nn.Parameter(torch.ones(SIDE, device=device))

    def smallest() -> None:
        weight.grad = None
        weight.sum().backward()

    with torch.no_grad():
        product = times_us([alone])[0] / MANY
    of_short, of_long, of_arguments, of_products, of_forward, of_both, of_eager, of_eager_forward = times_us(
        [program.run for program in (short, long, arguments, products, forward, both)] + [smallest, weight.sum]
    )
    kernel = (of_long - of_short) / max(1, long.kernels - short.kernels)
    argument = (of_arguments - of_long - (arguments.kernels - long.kernels) * kernel) / (MANY - 1)
    entry = of_short - short.kernels * kernel - 2 * argument
    call = (of_products - of_short + (short.kernels - products.kernels) * kernel) / MANY - product
    backward = of_both - of_forward - (both.kernels - forward.kernels) * kernel - (of_eager - of_eager_forward)
    return tuple(max(0.0, us) for us in (entry, argument, kernel, call, backward))


@lru_cache(maxsize=1)
def programs(device: Any) -> tuple[Program, ...]:
    """A short program, one of many kernels, one with as many arguments, one of matrix products, and a loss without and
    with its backward."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    x = torch.rand(SIDE, SIDE, device=device)
    weights = [torch.nn.Parameter(torch.rand(SIDE, device=device)) for _ in range(MANY)]
    square = torch.nn.Parameter(torch.rand(SIDE, SIDE, device=device))

    def layers(x: Any, weights: list[Any]) -> Any:
        for place, weight in enumerate(weights):
            x = x.softmax(place % 2) + weight  # over rows and columns in turn: each is a kernel of its own
        return x

    def matrices(x: Any, square: Any) -> Any:
        for _ in range(MANY):
            x = x @ square
        return x

    def prepared(run: Callable[[], Any]) -> Program:
        for _ in range(2):
            run()
        with recorded_launches(CachingAutotuner) as launches:
            run()
        return Program(run, len(launches))

    def compiled(function: Callable[..., Any], given: Any) -> Program:
        torch.compiler.reset()  # programs before this one would count as versions of it
        run = torch.compile(function, dynamic=False)
        return prepared(lambda: run(x, given))

    torch.compiler.reset()
    loss = torch.compile(lambda x, given: layers(x, given).sum(), dynamic=False)

    def with_backward() -> None:
        weights[0].grad = None
        loss(x, weights[:1] * FEW).backward()

    trained = prepared(with_backward), prepared(lambda: loss(x, weights[:1] * FEW))

    return (
        compiled(lambda x, given: layers(x, given), weights[:1] * FEW),
        compiled(lambda x, given: layers(x, given), weights[:1] * MANY),
        compiled(lambda x, given: layers(x, given), weights),
        compiled(lambda x, given: matrices(x, given), square),
        *reversed(trained),
    )
