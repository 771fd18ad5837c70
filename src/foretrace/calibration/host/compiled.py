"""Measuring the host time of programs that torch.compile generates: entering one, its arguments, kernels and calls.

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


def compiled_costs(device: Any) -> tuple[float, float, float, float] | None:
    """Microseconds to enter a compiled program, of each argument, of a generated kernel, and around a call of PyTorch.

    None where torch.compile makes no kernels.

    >>> compiled_costs(torch.device("cpu")) is None
    True
    """
    if not can_compile(device):
        return None
    try:
        short, long, arguments, products = programs(device)
    except Exception:  # a compiler can fail in any way, and the rest of the calibration does not need it
        return None
    a, b = (torch.ones(SIDE, SIDE, device=device) for _ in range(2))
    out = torch.empty_like(a)

    def alone() -> None:
        for _ in range(MANY):
            torch.mm(a, b, out=out)

    with torch.no_grad():
        product = times_us([alone])[0] / MANY
    of_short, of_long, of_arguments, of_products = times_us(
        [program.run for program in (short, long, arguments, products)]
    )
    kernel = (of_long - of_short) / max(1, long.kernels - short.kernels)
    argument = (of_arguments - of_long - (arguments.kernels - long.kernels) * kernel) / (MANY - 1)
    entry = of_short - short.kernels * kernel - 2 * argument
    call = (of_products - of_short + (short.kernels - products.kernels) * kernel) / MANY - product
    return max(0.0, entry), max(0.0, argument), max(0.0, kernel), max(0.0, call)


@lru_cache(maxsize=1)
def programs(device: Any) -> tuple[Program, Program, Program, Program]:
    """A short program, one of many kernels, one with as many arguments, and one of matrix products."""
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

    def compiled(function: Callable[..., Any], given: Any) -> Program:
        torch.compiler.reset()  # programs before this one would count as versions of it
        run = torch.compile(function, dynamic=False)
        for _ in range(2):
            run(x, given)
        with recorded_launches(CachingAutotuner) as launches:
            run(x, given)
        return Program(lambda: run(x, given), len(launches))

    return (
        compiled(lambda x, given: layers(x, given), weights[:1] * FEW),
        compiled(lambda x, given: layers(x, given), weights[:1] * MANY),
        compiled(lambda x, given: layers(x, given), weights),
        compiled(lambda x, given: matrices(x, given), square),
    )
