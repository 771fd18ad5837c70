"""Functions that the lines of ``step.py`` call besides operators: host pace, streams, events, stand-ins."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from time import perf_counter_ns
from typing import Any

import torch

RELEARN_STEPS, SAMPLE_STEPS = 32, 9
"""What is typical is learnt anew after 1, 2, 4, … steps, and in the end after every 32. It is learnt from the first
few of these steps only, since learning takes time as well."""
OUTLIER = 4.0
"""A stretch that took so many times as long as usual was interrupted, and counts as one that took just that."""


class Pace:
    """Keeps a replay from running ahead of its original; the first step goes as fast as it can, and is learnt from."""

    def __init__(self) -> None:
        self.slow_host = 1.0
        """How much longer the original's host takes than in its recording."""
        self._due: list[float] = []
        """Nanoseconds that the original's host took to each place where we may wait, from the one before."""
        self._first: set[int] = {0}
        """Places that are the first ones of a step, or after a wait for the device: nobody can be late there."""
        self._spent: list[float] = []
        self._steps: list[list[float]] = []
        """What we took ourselves in this step so far, and in the first steps since we last learnt what is typical."""
        self._since, self._learn_after = 0, 1
        """Steps since then, and how many it takes to learn again."""
        self._typical: list[float] = []
        self._waits: list[float] = []
        self._for = self.slow_host
        """How long to wait in each place, for an original of that slowness."""
        self._seen = 0

    def begin(self) -> None:
        """A step begins."""
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
        """Wait for what the original's host took since the last such place, and we typically do not."""
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
        """The host has waited for the device: however long that was, the original's pace goes on from here."""
        self._first.add(len(self._spent))
        self._seen = perf_counter_ns()

    def _planned(self) -> list[float]:
        """How long to wait in each place."""
        ends = sorted(self._first | {len(self._typical)})
        parts = [slice(*bounds) for bounds in pairwise(ends)]
        due = [ns * self.slow_host for ns in self._due]
        return [ns for part in parts for ns in waits(due[part], self._typical[part])]


def waits(due: Sequence[float], spent: Sequence[float]) -> list[float]:
    """How long to wait after each stretch, for them to take as long as they are due.

    >>> waits([10.0, 10.0, 30.0], [4.0, 10.0, 25.0])
    [6.0, 0.0, 5.0]

    Whoever comes late catches up, and who would be late in the end waits less before:

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
    """What each stretch takes in a step that takes as long as the middle one of these.

    >>> typical([[10.0, 30.0], [20.0, 30.0], [30.0, 30.0]])
    [20.0, 30.0]

    Of a stretch that was slow once, some is typical, but the step as a whole is one that there was:

    >>> typical([[10.0, 30.0], [10.0, 30.0], [82.0, 30.0]])
    [16.0, 24.0]
    """
    means = [_mean(found) for found in zip(*steps)]
    total = sum(means)
    scale = median(sum(step) for step in steps) / total if total else 0.0
    return [mean * scale for mean in means]


def _mean(found: Sequence[float]) -> float:
    """The mean, where none counts more than several times the middle one."""
    most = OUTLIER * median(found)
    return fmean(min(ns, most) for ns in found)


DEFAULT_CLOCK_KHZ = 1_500_000


@dataclass
class Runtime:
    """Where the benchmark runs, and what it knows of its calls."""

    kind: str = ""
    """The device that the step's own is replaced with; empty for the one it was recorded on."""
    main: str = "cpu"
    """The kind of device the step was recorded on."""
    calls: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was not as the benchmark asks for it."""
    streams: dict[int, Any] = field(default_factory=dict)
    events: dict[int, Any] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)
    on_resize: Callable[[torch.UntypedStorage, int], None] | None = None
    """Who counts memory hears here of storages that get another size: no call passes the dispatcher for that."""
    on_allocate: Callable[[int], None] | None = None
    """Who bounds memory is asked here before so many bytes are taken without a call that passes the dispatcher."""


runtime = Runtime()


def device(name: str) -> torch.device:
    """The device of that name in the recording, or the one that takes its place."""
    kind = name.partition(":")[0]
    if runtime.kind and kind == runtime.main:
        return torch.device(runtime.kind)
    return torch.device(name)


def begin() -> None:
    """A step begins."""
    runtime.pace.begin()


def pace(us: float) -> None:
    """Wait for what the original's host took to come here from the last such place, and we do not."""
    runtime.pace.wait(us)


def resume() -> None:
    """The host has waited for the device: however long that was, the original's pace goes on from here."""
    runtime.pace.resume()


def spend(us: float) -> None:
    """Let time pass."""
    end = perf_counter_ns() + us * 1000
    while perf_counter_ns() < end:
        pass


def stand_in(number: int) -> Any:
    """What a call would have made, of the same size and after the same time, where it can't be called."""
    call = runtime.calls[number]
    made = zero_results(number)
    if on_cuda() and call["device_us"]:
        torch.cuda._sleep(int(call["device_us"] * cycles_per_us()))
    elif not on_cuda():
        spend(call["host_us"])
    return made


def zero_results(number: int) -> Any:
    """Tensors like those that a call made, all zero."""
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
    """Bytes that a call makes according to the recording."""
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
    """What a call made, cut or padded to its size in the original: that depends on data, which is made up here."""
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
    """Clock cycles of the GPU in a microsecond."""
    return float(getattr(torch.cuda.get_device_properties(0), "clock_rate", DEFAULT_CLOCK_KHZ)) / 1e3


def use_stream(number: int) -> None:
    """Go on on another stream."""
    if on_cuda():
        torch.cuda.set_stream(_stream(number))


def record_event(event: int, stream: int) -> None:
    """Mark a place on a stream."""
    if on_cuda():
        _event(event).record(_stream(stream))


def wait_event(stream: int, event: int) -> None:
    """Let a stream wait until another has come to a marked place."""
    if on_cuda():
        _event(event).wait(_stream(stream))


def record_stream(tensor: torch.Tensor, stream: int) -> None:
    """Keep a tensor's memory until a stream has done what it was given so far."""
    if tensor.is_cuda:
        tensor.record_stream(_stream(stream))


def synchronize_event(event: int) -> None:
    """Wait until a stream has come to a marked place."""
    if on_cuda():
        _event(event).synchronize()


def synchronize_stream(stream: int) -> None:
    """Wait until a stream is done."""
    if on_cuda():
        _stream(stream).synchronize()


def synchronize() -> None:
    """Wait until the device is done."""
    if on_cuda():
        torch.cuda.synchronize()


def pin_memory(tensor: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """A copy in memory that a GPU can read by itself; a plain one where there is no GPU."""
    if torch.cuda.is_available():
        return torch.ops.aten._pin_memory.default(tensor, device)
    return tensor.clone()


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """A collective's result as it is: the original's was in a wrapper that waits by itself; here a line does."""
    return tensor


def take_storage(tensor: torch.Tensor, nbytes: int, *place: Any) -> torch.Tensor:
    """Let a tensor look at new memory, at a place in it or at all of it."""
    if runtime.on_allocate is not None:
        runtime.on_allocate(nbytes)
    return tensor.set_(torch.UntypedStorage(nbytes, device=tensor.device), *place)


def resize(tensor: torch.Tensor, nbytes: int) -> None:
    """Give a tensor's memory another size: to nothing, where the original let it go."""
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
