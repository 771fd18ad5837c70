"""Measuring FSDP's host time: Python around calls on sharded parameters, which themselves stay the same.

FSDP's parameters are `DTensor`. Each call on them is unwrapped in Python; a call with a number that changes every step,
as in Adam's update, is planned again each time, once for each shape. Hooks run for each parameter of a group before it
is gathered and after it was used.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import mean
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

WORLD = 2
COUNT, SIZES = 12, (2**16, 2**8)
"""Parameters of an optimizer, and their elements in turn: weights and biases. Large ones evict from the caches
what Python needs for the next call, as in a job."""
GROUPS, LAYERS, SIDE = 3, (1, 5), 8
"""Groups, linear layers of a group (few, and as many as in a block), and their side."""
GATHER = "all_gather_copy_in"
"""The first call of a gather."""
REPEATS, WARM_UP, ENDS = 16, 4, 2
"""Repeats that count, those that do not, and how many of the longest and of the shortest are left out."""


def sharded_costs(device: Any) -> tuple[float, float] | None:
    """Extra microseconds of an optimizer's call on shards, and of planning one.

    None where this PyTorch has no DTensor, or this process is in a process group.

    >>> call, planned = sharded_costs(torch.device("cpu"))
    >>> call > 0, planned >= 0
    (True, True)
    """

    def measured(mesh: Any) -> tuple[float, float]:
        alike, different, plain = (
            [_parameter(SIZES[number % len(SIZES)] + longer * number, device, where) for number in range(COUNT)]
            for longer, where in ((0, mesh), (8, mesh), (0, None))
        )
        steps = [_optimizer(some).step for some in (alike, different, plain)]
        took, of_different, of_plain = times_us(steps)
        planned = max((of_different - took) / (COUNT - len(SIZES)), 0.0)
        return max((took - len(SIZES) * planned - of_plain) / _counted(steps[-1]).total(), 0.0), planned

    return _on_shards(device, measured)


def gather_costs(device: Any) -> tuple[float, float] | None:
    """Microseconds of Python around gathering a group of parameters, and for each of them; None as in `sharded_costs`.

    >>> group, parameter = gather_costs(torch.device("cpu"))
    >>> group > 0, parameter >= 0
    (True, True)
    """

    def measured(mesh: Any) -> tuple[float, float]:
        small, large = (_around_gather_us(layers, device, mesh) for layers in LAYERS)
        few, many = (2 * layers for layers in LAYERS)  # weight and bias
        parameter = max((large - small) / (many - few), 0.0)
        return max(small - few * parameter, 0.0), parameter

    return _on_shards(device, measured)


def _on_shards(device: Any, measured: Callable[[Any], tuple[float, float]]) -> tuple[float, float] | None:
    """Measure on a fake mesh; None where PyTorch has no DTensor, or this process is in a process group."""
    if not dist.is_available() or dist.is_initialized():
        return None
    try:
        with _fake_mesh(device) as mesh:
            return measured(mesh)
    except (ImportError, AttributeError, RuntimeError, NotImplementedError):
        return None


def _around_gather_us(layers: int, device: Any, mesh: Any) -> float:
    """Time of a gather beyond its calls, each taken to be as long as those of the same step without shards."""
    from torch.distributed.fsdp import fully_shard

    plain, sharded = (_groups(layers, device) for _ in range(2))
    for group in (*sharded, sharded):  # the whole last, so that each is gathered again for its backward
        fully_shard(group, mesh=mesh)
    given = torch.ones(SIDE, SIDE, device=device)

    def run(model: Any) -> Callable[[], None]:
        return lambda: model(given).sum().backward()

    took, longer = times_us([run(plain), run(sharded)])
    unsharded, all_calls = _counted(run(plain)), _counted(run(sharded))
    more = all_calls.total() - unsharded.total()
    gathers = sum(count for name, count in all_calls.items() if GATHER in name)
    return (longer - took - more * took / unsharded.total()) / gathers


def _groups(layers: int, device: Any) -> Any:
    linear, sequential = torch.nn.Linear, torch.nn.Sequential
    return sequential(*(sequential(*(linear(SIDE, SIDE, device=device) for _ in range(layers))) for _ in range(GROUPS)))


@contextmanager
def _fake_mesh(device: Any) -> Iterator[Any]:
    """A mesh of the fake process group: nothing is sent."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)
    try:
        yield init_device_mesh(device.type, (WORLD,))
    finally:
        dist.destroy_process_group()


def _parameter(elements: int, device: Any, mesh: Any) -> Any:
    """A parameter with its gradient; a shard where there is a mesh."""
    from torch.distributed.tensor import DTensor, Shard

    def tensor() -> Any:
        local = torch.full((elements,), 0.5, device=device)
        return local if mesh is None else DTensor.from_local(local, mesh, [Shard(0)])

    parameter = torch.nn.Parameter(tensor())
    parameter.grad = tensor()
    return parameter


def times_us(steps: Sequence[Callable[[], Any]]) -> list[float]:
    """Host time of each, measured in turns: the host may be faster at one time than at another."""
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(WARM_UP + REPEATS):
        for step, taken in zip(steps, times):
            began = time.perf_counter()
            step()
            taken.append((time.perf_counter() - began) * 1e6)
    return [mean(sorted(taken[WARM_UP:])[ENDS:-ENDS]) for taken in times]


def _optimizer(parameters: Sequence[Any]) -> Any:
    """An optimizer that updates one parameter at a time, with numbers that this process has not seen yet."""
    return torch.optim.AdamW(parameters, lr=random.uniform(1e-4, 1e-3), foreach=False)


def _counted(step: Callable[[], Any]) -> Counter[str]:
    """Dispatcher calls of a step, by name."""
    counting = _Counting()
    with counting:
        step()
    return counting.calls


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(not issubclass(kind, torch.nn.Parameter) and kind is not torch.Tensor for kind in types):
            return NotImplemented  # the calls that a shard makes of it are counted
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))
