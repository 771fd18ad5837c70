"""Times kernels that torch.compile makes: many chains of calls are compiled in one program, then each runs alone.

One program is compiled by all processors at once, and its chains share no tensor, so that none is fused with another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional

from foretrace.cost_models.kernels.families.compiled import COMPILED, Chain, chain_number
from foretrace.graph import ForetraceError, Op, Tensor, Value
from foretrace.platform.measure.calibrate import Progress, measure_batch, next_case_in, warm_up
from foretrace.platform.measure.call import filled
from foretrace.platform.measure.launched import Launched
from foretrace.platform.measure.machine import device_name, facts
from foretrace.platform.measurements import SUFFIX, Batch

TOGETHER = 32
"""Chains of one program."""
MOST = 2**27
"""Elements of a chain's largest tensor."""

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add,
    "mul": torch.mul,
    "sub": torch.sub,
    "div": torch.div,
    "where": lambda x, y: torch.where(x > 0, x, y),
}
UNARY: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "square": torch.square,
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 1),
    "cast": lambda x: x.float(),
}
ENDINGS: dict[str, Callable[[Any], Any]] = {
    "": lambda x: x,
    "sum": lambda x: x.sum(-1),
    "columns": lambda x: x.sum(0),
    "norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "softmax": lambda x: x.softmax(-1),
    "amax": lambda x: x.amax(-1),
    "all": lambda x: x.sum(),
}


def measure_compiled(
    folder: Path, device: Any, minutes: float, report: Callable[[Progress], None] = lambda progress: None
) -> Progress:
    """Measure compiled kernels until the time is up, into the folder's file of them; a later run goes on there."""
    autotuner = _autotuner(device)
    path = folder / f"{COMPILED}{SUFFIX}"
    folder.mkdir(parents=True, exist_ok=True)
    number = next_case_in(path, device_name(device))
    done = Progress(COMPILED)
    warm_up(device)
    machine = facts(device)
    end = time.monotonic() + 60 * minutes
    while (begin := time.monotonic()) < end:
        batch = Batch(number, number + TOGETHER, machine)
        chains = [chain_number(n, MOST) for n in range(batch.first, batch.last)]
        measure_batch(path, kernels_of(chains, device, autotuner), batch, device, until=end)
        number = batch.last
        done.seconds += time.monotonic() - begin
        done.add(batch)
        report(done)
    return done


def can_compile(device: Any) -> bool:
    """Whether torch.compile makes kernels for a device here.

    >>> can_compile(torch.device("cpu"))
    False
    """
    return device.type == "cuda" and find_spec("triton") is not None


def _autotuner(device: Any) -> Any:
    """The class whose objects launch TorchInductor's kernels."""
    if not can_compile(device):
        raise ForetraceError(
            "compiled kernels are measured on a GPU, with Triton",
            "Name other families, or install it: pip install triton.",
        )
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    return CachingAutotuner


def kernels_of(chains: Sequence[Chain], device: Any, autotuner: Any) -> list[Launched]:
    """The kernels that torch.compile makes of chains, each ready to run alone."""
    operands = [operands_of(chain, device) for chain in chains]

    def program(given: list[list[Any]]) -> list[Any]:
        return [run(chain, tensors) for chain, tensors in zip(chains, given)]

    torch.compiler.reset()  # programs before this one would count as versions of it
    compiled = torch.compile(program, fullgraph=True, dynamic=False)
    compiled(operands)  # the first time each kernel is tuned as well
    with noting(autotuner) as launches:
        compiled(operands)
    return launches


def operands_of(chain: Chain, device: Any) -> list[Any]:
    """A chain's operands with values in them.

    >>> [tuple(t.shape) for t in operands_of(Chain(4, 8, "float32", ("row", "transposed"), (), "", "float32"), "cpu")]
    [(4, 8), (8,), (4, 8)]
    """
    rows, columns, dtype = chain.rows, chain.columns, getattr(torch, chain.dtype)
    shapes = {"whole": (rows, columns), "row": (columns,), "column": (rows, 1), "transposed": (columns, rows)}
    words = ("whole", *chain.operands)
    made = [filled(math.prod(shapes[word]), dtype, device).view(shapes[word]) for word in words]
    return [tensor.t() if word == "transposed" else tensor for tensor, word in zip(made, words)]


def run(chain: Chain, operands: Sequence[Any]) -> Any:
    """What a chain computes.

    >>> chain = Chain(2, 2, "float32", ("row",), ("relu", "add"), "sum", "float32")
    >>> run(chain, [torch.tensor([[-1.0, 1.0], [2.0, 3.0]]), torch.ones(2)])
    tensor([3., 7.])
    """
    flow, *others = operands
    left = iter(others)
    for step in chain.steps:
        flow = BINARY[step](flow, next(left)) if step in BINARY else UNARY[step](flow)
    return ENDINGS[chain.ending](flow).to(getattr(torch, chain.result))


@contextmanager
def noting(autotuner: Any) -> Iterator[list[Launched]]:
    """Note the kernels that are launched meanwhile: by name, with their tensors and the sizes of their loops."""
    found: list[Launched] = []
    launch = autotuner.run

    def noted(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        told = tuple(_described(a) for a in args)
        name = str(kernel.inductor_meta.get("kernel_name", "triton_"))
        found.append(Launched(Op(name, (*told, STREAM)), launch=lambda: launch(kernel, *args, **kwargs)))
        return launch(kernel, *args, **kwargs)

    with patch.object(autotuner, "run", noted):
        yield found


STREAM = 0
"""What stands last among the arguments of a compiled kernel in a recording."""


def _described(value: Any) -> Value:
    if not isinstance(value, torch.Tensor):
        return value if isinstance(value, (bool, int, float, str)) else None
    dtype = str(value.dtype).removeprefix("torch.")
    return Tensor(tuple(value.shape), dtype, stride=tuple(value.stride()), offset=value.storage_offset())
