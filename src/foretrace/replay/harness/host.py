"""Functions that ``step.py`` calls besides operators: host pace, streams, events, stand-ins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from time import perf_counter_ns
from typing import Any

import torch

RELEARN_STEPS, SAMPLE_STEPS = 32, 9
"""Typical times are learnt anew after 1, 2, 4, … and finally every 32 steps, each time from the first 9 steps since:
learning takes time as well."""
OUTLIER = 4.0
"""A stretch longer than this many times its median was interrupted, and counts as that long."""


class Pace:
    """Waits between calls so that the host takes as long as the original's.

    The first step runs unpaced; waits are then planned from what the replay typically takes itself.
    """

    def __init__(self) -> None:
        self.slow_host = 1.0
        """Factor on the host time of the original."""
        self._due: list[float] = []
        """Nanoseconds of the original's host from one waiting point to the next."""
        self._first: set[int] = {0}
        """Waiting points that begin a stretch: the start of a step, and after each wait for the device."""
        self._spent: list[float] = []
        self._steps: list[list[float]] = []
        """Own nanoseconds per point: of this step so far, and of the first steps since waits were planned last."""
        self._since, self._learn_after = 0, 1
        """Steps since then, and after how many waits are planned anew."""
        self._typical: list[float] = []
        self._waits: list[float] = []
        self._for = self.slow_host
        """Nanoseconds to wait at each point, planned for that factor."""
        self._seen = 0

    def begin(self) -> None:
        """Start a step."""
        if self._spent:
            self._since += 1
            if len(self._steps) < SAMPLE_STEPS:
                self._steps.append(self._spent)
            self._spent = []
        learn = self._since >= self._learn_after
        if learn:
            self._typical = typical(self._steps)
            self._steps, self._since = [], 0
            self._learn_after = min(self._learn_after * 2, RELEARN_STEPS)
        if self._typical and (learn or self._for != self.slow_host):
            self._for = self.slow_host
            self._waits = self._planned()
        self._seen = perf_counter_ns()

    def wait(self, us: float) -> None:
        """Wait for what the original's host took since the last point beyond what the replay typically takes."""
        place, now = len(self._spent), perf_counter_ns()
        self._spent.append(float(now - self._seen))
        if place == len(self._due):
            self._due.append(us * 1000)
        if place < len(self._waits):
            until = now + self._waits[place]
            while now < until:
                now = perf_counter_ns()
        self._seen = now

    def resume(self) -> None:
        """Go on with the original's pace after a wait for the device, however long that was."""
        self._first.add(len(self._spent))
        self._seen = perf_counter_ns()

    def _planned(self) -> list[float]:
        """Nanoseconds to wait at each point."""
        ends = sorted(self._first | {len(self._typical)})
        parts = [slice(*bounds) for bounds in pairwise(ends)]
        due = [ns * self.slow_host for ns in self._due]
        return [ns for part in parts for ns in waits(due[part], self._typical[part])]


def waits(due: Sequence[float], spent: Sequence[float]) -> list[float]:
    """Wait after each stretch so that all take as long as they are due.

    >>> waits([10.0, 10.0, 30.0], [4.0, 10.0, 25.0])
    [6.0, 0.0, 5.0]

    A stretch that is late is caught up with, and one that will be late shortens the waits before it:

    >>> waits([10.0, 10.0, 10.0], [12.0, 3.0, 5.0]), waits([10.0, 10.0, 10.0], [4.0, 8.0, 14.0])
    ([0.0, 5.0, 5.0], [3.0, 1.0, 0.0])
    """
    found, behind = [], 0.0
    for wanted, took in zip(due, spent):
        behind += wanted - took
        found.append(max(behind, 0.0))
        behind = min(behind, 0.0)
    total = sum(found)
    left = max(1 + behind / total, 0.0) if total else 0.0
    return [ns * left for ns in found]


def typical(steps: Sequence[Sequence[float]]) -> list[float]:
    """Typical time of each stretch, scaled so that they add up to the median step.

    >>> typical([[10.0, 30.0], [20.0, 30.0], [30.0, 30.0]])
    [20.0, 30.0]

    An outlier in one stretch raises its share, not the total:

    >>> typical([[10.0, 30.0], [10.0, 30.0], [82.0, 30.0]])
    [16.0, 24.0]
    """
    limits = [OUTLIER * median(found) for found in zip(*steps)]
    means = [fmean(min(ns, limit) for ns in found) for limit, found in zip(limits, zip(*steps))]
    total = sum(means)
    scale = median(sum(step) for step in steps) / total if total else 0.0
    return [mean * scale for mean in means]


DEFAULT_CLOCK_KHZ = 1_500_000
"""Clock of a GPU for which PyTorch reports none."""


@dataclass
class Runtime:
    """State of a running benchmark: device, calls, streams, pace."""

    kind: str = ""
    """Kind of device that replaces the recorded one; empty for none."""
    main: str = "cpu"
    """The kind of device the step was recorded on."""
    calls: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Deviations from the benchmark, for the report."""
    streams: dict[int, Any] = field(default_factory=dict)
    events: dict[int, Any] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)
    on_resize: Callable[[torch.UntypedStorage, int], None] | None = None
    """Called with a storage and its new size, which no call through the dispatcher reports."""
    on_allocate: Callable[[int], None] | None = None
    """Called with the bytes that are about to be allocated other than by a call through the dispatcher."""
    delayed: bool = False
    """Whether collectives take as long as in the original (``--delayed``)."""
    delay_stream: Any = None
    regions: dict[int, Callable[..., Any]] = field(default_factory=dict)
    """Compiled programs of the step, by number."""


runtime = Runtime()


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a value, those in lists and tuples too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def device(name: str) -> torch.device:
    """The device of that name in the recording, or the one that replaces it."""
    kind = name.partition(":")[0]
    if runtime.kind and kind == runtime.main:
        return torch.device(runtime.kind)
    return torch.device(name)


def begin() -> None:
    """Start a step."""
    runtime.pace.begin()


def pace(us: float) -> None:
    """Wait until the original's host, which took that long since the last such line, would be here."""
    runtime.pace.wait(us)


def resume() -> None:
    """Go on with the original's pace after a wait for the device, however long that was."""
    runtime.pace.resume()


def region(number: int, *args: Any) -> Any:
    """Call a compiled program; what it is given in a list instead, it frees once it has used it."""
    given = args[0] if len(args) == 1 and isinstance(args[0], list) else list(args)
    del args
    return runtime.regions[number](given)


def stand_in(number: int) -> Any:
    """Results of the same size, after the same time, of a call that can't be made."""
    call = runtime.calls[number]
    made = zero_results(number)
    if on_cuda() and call["device_us"]:
        torch.cuda._sleep(int(call["device_us"] * cycles_per_us()))
    end = perf_counter_ns() + (0.0 if on_cuda() else call["host_us"] * 1000)
    while perf_counter_ns() < end:
        pass
    return made


def zero_results(number: int) -> Any:
    """Tensors of the shapes that a call made, filled with zeros."""
    made = [_made(entry) for entry in runtime.calls[number]["makes"]]
    return made[0] if len(made) == 1 else tuple(made)


def _made(entry: Any) -> Any:
    if entry is None:
        return None
    if isinstance(entry, list):
        return [_made(part) for part in entry]
    dtype, where = getattr(torch, entry["dtype"]), device(entry["device"] or "cpu")
    if entry["layout"] != "strided":
        return torch.sparse_coo_tensor(torch.Size(entry["shape"]), dtype=dtype, device=where)
    if entry["stride"] is None:
        return torch.zeros(entry["shape"], dtype=dtype, device=where)
    return torch.empty_strided(entry["shape"], entry["stride"], dtype=dtype, device=where).zero_()


def declared_bytes(number: int) -> int:
    """Bytes of a call's results according to the recording."""
    entries, nbytes = list(runtime.calls[number]["makes"]), 0
    for entry in entries:  # grows meanwhile
        if isinstance(entry, list):
            entries += entry
        elif entry is not None:
            sizes, steps = entry["shape"], entry["stride"]
            reach = 1 + sum((size - 1) * step for size, step in zip(sizes, steps)) if steps and all(sizes) else 0
            nbytes += max(math.prod(sizes), reach) * getattr(torch, entry["dtype"]).itemsize
    return nbytes


def fitted(number: int, made: Any) -> Any:
    """Results cut or padded to their recorded sizes, which depend on data that a replay makes up."""
    wanted = runtime.calls[number]["makes"]
    results = made if isinstance(made, tuple) else (made,)
    fit = tuple(_fit(result, entry) for result, entry in zip(results, wanted))
    return fit if isinstance(made, tuple) else fit[0]


def _fit(result: torch.Tensor, entry: dict[str, Any] | None) -> torch.Tensor:
    if entry is None or list(result.shape) == list(entry["shape"]):
        return result
    exact = result.new_zeros(entry["shape"])
    common = tuple(slice(0, min(a, b)) for a, b in zip(result.shape, exact.shape))
    exact[common] = result[common]
    return exact


def on_cuda() -> bool:
    """Whether the step runs on a GPU."""
    return (runtime.kind or runtime.main) == "cuda"


def cycles_per_us() -> float:
    """Clock cycles of the GPU per microsecond."""
    return float(getattr(torch.cuda.get_device_properties(0), "clock_rate", DEFAULT_CLOCK_KHZ)) / 1e3


def use_stream(number: int) -> None:
    """Make a stream the current one."""
    if on_cuda():
        torch.cuda.set_stream(_stream(number))


def record_event(event: int, stream: int) -> None:
    """Record an event on a stream."""
    if on_cuda():
        _event(event).record(_stream(stream))


def wait_event(stream: int, event: int) -> None:
    """Make a stream wait for an event."""
    if on_cuda():
        _event(event).wait(_stream(stream))


def record_stream(tensor: torch.Tensor, stream: int) -> None:
    """Keep a tensor's memory until the work queued on a stream is done."""
    if tensor.is_cuda:
        tensor.record_stream(_stream(stream))


def synchronize_event(event: int) -> None:
    """Wait on the host for an event."""
    if on_cuda():
        _event(event).synchronize()


def synchronize_stream(stream: int) -> None:
    """Wait on the host for a stream."""
    if on_cuda():
        _stream(stream).synchronize()


def synchronize() -> None:
    """Wait on the host for the device."""
    if on_cuda():
        torch.cuda.synchronize()


def pin_memory(tensor: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """A copy in pinned memory; in ordinary memory without a GPU."""
    if torch.cuda.is_available():
        return torch.ops.aten._pin_memory.default(tensor, device)
    return tensor.clone()


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """A collective's result itself, in place of the wrapper that waits on first use: here a line of the step waits."""
    return tensor


def take_storage(tensor: torch.Tensor, nbytes: int, *place: Any) -> torch.Tensor:
    """Give a tensor a new storage, as a whole or at an offset."""
    if runtime.on_allocate is not None:
        runtime.on_allocate(nbytes)
    return tensor.set_(torch.UntypedStorage(nbytes, device=tensor.device), *place)


def resize(tensor: torch.Tensor, nbytes: int) -> None:
    """Resize a tensor's storage; to 0 bytes where the original released it."""
    storage = tensor.untyped_storage()
    if runtime.on_allocate is not None:
        runtime.on_allocate(max(nbytes - storage.nbytes(), 0))
    storage.resize_(nbytes)
    if runtime.on_resize is not None:
        runtime.on_resize(storage, nbytes)


def _stream(number: int) -> Any:
    if number not in runtime.streams:
        runtime.streams[number] = torch.cuda.Stream() if number else torch.cuda.default_stream()
    return runtime.streams[number]


def _event(number: int) -> Any:
    if number not in runtime.events:
        runtime.events[number] = torch.cuda.Event()
    return runtime.events[number]
