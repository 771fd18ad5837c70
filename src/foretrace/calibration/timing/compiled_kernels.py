"""Measuring kernels that torch.compile makes: many chains of calls are compiled in one program, then each runs alone.

TorchInductor compiles one program on all processors at once; its chains share no tensor, so that none is fused with
another.
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

from foretrace._progress import OnProgress
from foretrace.calibration.timing.call import filled
from foretrace.calibration.timing.device import device_name, is_gpu, machine_facts
from foretrace.calibration.timing.kernels import MeasuredFamily, measure_batch, next_case_in, warm_up
from foretrace.calibration.timing.timer import CompiledCase
from foretrace.cost_models.kernels.families.compiled import COMPILED, Chain, chain_number
from foretrace.errors import ForetraceError
from foretrace.graph import Op, Tensor, Value
from foretrace.graph.generated_kernels import STREAM, kernel_facts
from foretrace.platform.measurements.kernels import SUFFIX, Batch

CHAINS = 32
"""Chains of one program."""
MAX_ELEMENTS = 2**27
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
    folder: Path, device: Any, minutes: float, on_progress: OnProgress = lambda progress: None
) -> MeasuredFamily:
    """Measure compiled kernels until the time is up, into the folder's file of them; a later run goes on there."""
    autotuner = _autotuner(device)
    path = folder / f"{COMPILED}{SUFFIX}"
    folder.mkdir(parents=True, exist_ok=True)
    number = next_case_in(path, device_name(device))
    done = MeasuredFamily(COMPILED)
    warm_up(device)
    machine = machine_facts(device)
    end = time.monotonic() + 60 * minutes
    while (begin := time.monotonic()) < end:
        batch = Batch(number, number + CHAINS, machine)
        chains = [chain_number(n, MAX_ELEMENTS) for n in range(batch.first, batch.last)]
        measure_batch(path, kernels_of(chains, device, autotuner), batch, device, until=end)
        number = batch.last
        done.seconds += time.monotonic() - begin
        done.add_batch(batch)
        on_progress(done.progress(done.seconds, 60 * minutes))
    return done


def can_compile(device: Any) -> bool:
    """Whether torch.compile makes kernels for a device here."""
    return is_gpu(device) and find_spec("triton") is not None


def _autotuner(device: Any) -> Any:
    """The class whose objects launch TorchInductor's kernels."""
    if not can_compile(device):
        raise ForetraceError(
            "compiled kernels are measured on a GPU, with Triton",
            "Name other families, or install it: pip install triton.",
        )
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    return CachingAutotuner


def kernels_of(chains: Sequence[Chain], device: Any, autotuner: Any) -> list[CompiledCase]:
    """The kernels that torch.compile makes of chains, each ready to run alone."""
    operands = [operands_of(chain, device) for chain in chains]

    def program(given: list[list[Any]]) -> list[Any]:
        return [run(chain, tensors) for chain, tensors in zip(chains, given)]

    torch.compiler.reset()  # programs before this one would count as versions of it
    compiled = torch.compile(program, fullgraph=True, dynamic=False)
    compiled(operands)  # the first time each kernel is tuned as well
    with recorded_launches(autotuner) as launches:
        compiled(operands)
    return launches


def operands_of(chain: Chain, device: Any) -> list[Any]:
    """A chain's operands with values in them."""
    rows, columns, dtype = chain.rows, chain.columns, getattr(torch, chain.dtype)
    shapes = {"whole": (rows, columns), "row": (columns,), "column": (rows, 1), "transposed": (columns, rows)}
    kinds = ("whole", *chain.operands)
    made = [filled(math.prod(shapes[kind]), dtype, device).view(shapes[kind]) for kind in kinds]
    return [tensor.t() if kind == "transposed" else tensor for tensor, kind in zip(made, kinds)]


def run(chain: Chain, operands: Sequence[Any]) -> Any:
    """Compute a chain."""
    flow, *others = operands
    left = iter(others)
    for step in chain.steps:
        flow = BINARY[step](flow, next(left)) if step in BINARY else UNARY[step](flow)
    return ENDINGS[chain.ending](flow).to(getattr(torch, chain.result))


@contextmanager
def recorded_launches(autotuner: Any) -> Iterator[list[CompiledCase]]:
    """Record the kernels that are launched meanwhile: by name, with their tensors and the sizes of their loops."""
    found: list[CompiledCase] = []
    launch = autotuner.run

    def run_and_record(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        described = tuple(_described(a) for a in args)
        name = str(kernel.inductor_meta.get("kernel_name", "triton_"))
        op = Op(name, (*described, STREAM), kernel_facts(str(getattr(getattr(kernel, "fn", None), "src", ""))))
        found.append(CompiledCase(op, launch=lambda: launch(kernel, *args, **kwargs)))
        return launch(kernel, *args, **kwargs)

    with patch.object(autotuner, "run", run_and_record):
        yield found


def _described(value: Any) -> Value:
    if not isinstance(value, torch.Tensor):
        return value if isinstance(value, (bool, int, float, str)) else None
    dtype = str(value.dtype).removeprefix("torch.")
    return Tensor(tuple(value.shape), dtype, stride=tuple(value.stride()), offset=value.storage_offset())
