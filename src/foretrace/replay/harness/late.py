"""Collectives that take as long as the original's: stands for ranks and links that are not there."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import torch

from .host import cycles_per_us, here, on_cuda


@dataclass
class Late:
    """A work that is not done before its time."""

    work: Any
    due_ns: float
    event: Any = None

    def wait(self) -> None:
        """Let time pass until it is due: the host's, or that of the stream that waits."""
        if self.event is not None:
            self.event.wait()
        while self.event is None and perf_counter_ns() < self.due_ns:
            pass


@dataclass
class Delays:
    """Whether collectives are delayed."""

    wanted: bool = False
    stream: Any = None


delays = Delays()


def late(number: int, result: Any) -> Any:
    """A collective's result, its work not done before the original's was."""
    us = here.calls[number].get("took_us", 0.0)
    if not delays.wanted or not us:
        return result
    work = result[-1] if isinstance(result, tuple) else result
    if isinstance(work, torch.Tensor):
        return result  # a functional one: the call that waits for it can't be told from others
    held = Late(work, perf_counter_ns() + us * 1000, _sleeping(us) if on_cuda() else None)
    return (*result[:-1], held) if isinstance(result, tuple) else held


def _sleeping(us: float) -> Any:
    """An event on a stream of its own, so much time after what is under way now."""
    delays.stream = delays.stream or torch.cuda.Stream()
    delays.stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(delays.stream):
        torch.cuda._sleep(int(us * cycles_per_us()))
        event = torch.cuda.Event()
        event.record()
    return event
