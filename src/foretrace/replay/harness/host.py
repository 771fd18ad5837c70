"""What a step's lines call besides operators: gaps, streams, events, stand-ins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import torch

from .pace import Pace

USUAL_CLOCK_KHZ = 1_500_000


@dataclass
class Here:
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
    resized: Callable[[torch.UntypedStorage, int], None] | None = None
    """Who counts memory hears here of storages that get another size: no call passes the dispatcher for that."""
    allow: Callable[[int], None] | None = None
    """Who bounds memory is asked here before so many bytes are taken without a call that passes the dispatcher."""


here = Here()


def device(name: str) -> torch.device:
    """The device of that name in the recording, or the one that takes its place."""
    kind = name.partition(":")[0]
    if here.kind and kind == here.main:
        return torch.device(here.kind)
    return torch.device(name)


def begin() -> None:
    """A step begins."""
    here.pace.begin()


def pace(us: float) -> None:
    """Wait for what the original's host took to come here from the last such place, and we do not."""
    here.pace.wait(us)


def resume() -> None:
    """The host has waited for the device: however long that was, the original's pace goes on from here."""
    here.pace.resume()


def spend(us: float) -> None:
    """Let time pass."""
    end = perf_counter_ns() + us * 1000
    while perf_counter_ns() < end:
        pass


def stand_in(number: int) -> Any:
    """What a call would have made, of the same size and after the same time, where it can't be called."""
    call = here.calls[number]
    made = made_by(number)
    if on_cuda() and call["device_us"]:
        torch.cuda._sleep(int(call["device_us"] * cycles_per_us()))
    elif not on_cuda():
        spend(call["host_us"])
    return made


def made_by(number: int) -> Any:
    """Tensors like those that a call made, all zero."""
    made = [_made(entry) for entry in here.calls[number]["makes"]]
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


def declared(number: int) -> int:
    """Bytes that a call makes according to the recording."""
    entries, nbytes = list(here.calls[number]["makes"]), 0
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
    wanted = here.calls[number]["makes"]
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
    return (here.kind or here.main) == "cuda"


def cycles_per_us() -> float:
    """Clock cycles of the GPU in a microsecond."""
    return float(getattr(torch.cuda.get_device_properties(0), "clock_rate", USUAL_CLOCK_KHZ)) / 1e3


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
    if here.allow is not None:
        here.allow(nbytes)
    return tensor.set_(torch.UntypedStorage(nbytes, device=tensor.device), *place)


def resize(tensor: torch.Tensor, nbytes: int) -> None:
    """Give a tensor's memory another size: to nothing, where the original let it go."""
    storage = tensor.untyped_storage()
    if here.allow is not None:
        here.allow(max(nbytes - storage.nbytes(), 0))
    storage.resize_(nbytes)
    if here.resized is not None:
        here.resized(storage, nbytes)


def _stream(number: int) -> Any:
    if number not in here.streams:
        here.streams[number] = torch.cuda.Stream() if number else torch.cuda.default_stream()
    return here.streams[number]


def _event(number: int) -> Any:
    if number not in here.events:
        here.events[number] = torch.cuda.Event()
    return here.events[number]
