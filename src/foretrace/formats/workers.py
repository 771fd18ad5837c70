"""Forked processes that do a part of the reading, so that every core has something to do."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from foretrace.processes import end_with

Given = TypeVar("Given")
Made = TypeVar("Made")

MOST = 4
"""More processes than this would wait for the one that gives them their work."""
PATIENCE_S = 60.0
"""How long to wait for an answer, which takes a tenth of a second, or for many small files a few."""


def usable_cores() -> int:
    """How many processes can work at once; one where forking is not safe."""
    return min(MOST, len(os.sched_getaffinity(0))) if sys.platform == "linux" else 1


class Hand(Generic[Given, Made]):
    """A process that works on one thing at a time. What it does not answer is done here.

    It is forked: it starts at once, has ``work`` as it is here, and never runs the caller's script again.

    >>> hand = Hand(str.upper)
    >>> hand.give("trace")
    >>> hand.result(), hand.result()
    ('TRACE', None)
    >>> hand.dismiss()
    """

    def __init__(self, work: Callable[[Given], Made]) -> None:
        self._work = work
        self._given: Given | None = None
        self._answers = True
        asked, ask = os.pipe()
        answered, answer = os.pipe()
        parent = os.getpid()
        self._process = os.fork()
        if not self._process:
            os.close(ask)
            os.close(answered)
            _serve(work, asked, answer, parent)
        os.close(asked)
        os.close(answer)
        self._ask, self._answered = os.fdopen(ask, "wb"), os.fdopen(answered, "rb")

    def give(self, item: Given) -> None:
        """Start on something, once the result of what was given before has been fetched."""
        self._given = item
        with suppress(OSError):
            if self._answers:
                pickle.dump(item, self._ask, pickle.HIGHEST_PROTOCOL)
                self._ask.flush()

    def result(self) -> Made | None:
        """What became of the thing given last; None where there was none."""
        if self._given is None:
            return None
        item, self._given = self._given, None
        with suppress(EOFError, OSError, pickle.UnpicklingError):
            if self._answers and select.select([self._answered], [], [], PATIENCE_S)[0]:
                made: Made = pickle.load(self._answered)
                return made
        self._answers = False  # it died, or met an error that we shall meet as well; a late answer would be mistaken
        return self._work(item)

    def dismiss(self) -> None:
        """Let it go."""
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        for pipe in (self._ask, self._answered):
            with suppress(OSError):
                pipe.close()


def _serve(work: Callable[[Given], Made], asked: int, answer: int, parent: int) -> None:
    """Answer until nobody asks or something goes wrong; never return to what the parent was doing."""
    with suppress(BaseException), os.fdopen(asked, "rb") as questions, os.fdopen(answer, "wb") as answers:
        end_with(parent)
        while True:
            pickle.dump(work(pickle.load(questions)), answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()
    os._exit(0)


def shared_out(work: Callable[[Given], Made], items: Sequence[Given]) -> list[Made]:
    """The work done on each item, in order; hands do their share of it while this process does its own.

    >>> shared_out(str.upper, ["a", "b", "c"])
    ['A', 'B', 'C']
    """

    def do(share: Sequence[Given]) -> list[Made]:
        return [work(item) for item in share]

    count = min(usable_cores(), len(items)) or 1
    mine, *theirs = (items[first::count] for first in range(count))
    hands = [Hand(do) for _ in theirs]
    try:
        for hand, share in zip(hands, theirs):
            hand.give(share)
        done = [do(mine), *(hand.result() or [] for hand in hands)]
    finally:
        for hand in hands:
            hand.dismiss()
    return [done[i % count][i // count] for i in range(len(items))]
