"""Streams and events of a GPU on paper: they order nothing, and let a step say what it would order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

import torch

_handles = count(1)


class PretendStream:
    """Takes what a CUDA stream takes. Events carry all of it, so that who notes events notes the rest.

    >>> PretendStream(priority=-1).query()
    True
    """

    def __init__(self, *args: Any, default: bool = False, **kwargs: Any) -> None:
        self.cuda_stream = 0 if default else next(_handles)

    def wait_event(self, event: PretendEvent) -> None:
        """What comes next on this stream comes after the event."""
        event.wait(self)

    def wait_stream(self, other: PretendStream) -> None:
        """What comes next on this stream comes after what the other was given so far."""
        self.wait_event(other.record_event())

    def record_event(self, event: PretendEvent | None = None) -> PretendEvent:
        """The event of all that this stream was given so far."""
        event = event if event is not None else PretendEvent()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Everything is done already."""

    def query(self) -> bool:
        """Whether everything is done."""
        return True


class PretendEvent:
    """Takes what a CUDA event takes.

    >>> PretendEvent().query()
    True
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """There is nothing to keep."""

    def record(self, stream: PretendStream | None = None) -> None:
        """The event is what the stream was given so far."""

    def wait(self, stream: PretendStream | None = None) -> None:
        """The stream waits for the event."""

    def synchronize(self) -> None:
        """It has come to pass already."""

    def query(self) -> bool:
        """Whether it has come to pass."""
        return True

    def elapsed_time(self, end: PretendEvent) -> float:
        """No time passes on paper."""
        return 0.0


@contextmanager
def pretended_streams() -> Iterator[None]:
    """Let torch.cuda make streams and events, and say which stream is the current one, while open."""
    stack = [PretendStream(default=True)]

    @contextmanager
    def on(stream: PretendStream | None) -> Iterator[None]:
        stack.append(stream or stack[-1])
        try:
            yield
        finally:
            stack.pop()

    answers = {
        "Stream": PretendStream,
        "Event": PretendEvent,
        "stream": on,
        "current_stream": lambda device=None: stack[-1],
        "default_stream": lambda device=None: stack[0],
    }
    with ExitStack() as patches:
        for name, answer in answers.items():
            patches.enter_context(patch.object(torch.cuda, name, answer))
        yield


def are_pretended() -> bool:
    """Whether torch.cuda's streams are on paper now.

    >>> are_pretended()
    False
    """
    return torch.cuda.Stream is PretendStream
