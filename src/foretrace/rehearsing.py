"""What the calls of a step take on processors, timed in the order in which the step makes them.

A call that is timed alone, again and again, finds what it reads in the cache and its memory in place. In a step other
calls come between, and memory that was given back is fetched anew, page by page: a product that makes a new gradient
takes up to twice as long. So the step is replayed, and each call timed where it stands. What it sends to other ranks
goes nowhere.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from foretrace.graph import Graph
from foretrace.platform.cases import Case
from foretrace.platform.measurements import CALL, Measurement
from foretrace.processes import temporary_folder
from foretrace.replaying import benchmark

WARM_UP = 2
"""Steps that do not count."""
LEAST = 3
"""Steps that are timed, however long they take."""


def rehearse(graph: Graph, seconds: float) -> dict[int, list[float]]:
    """Replay a step on the CPU for some time, in this process, and time each of its calls.

    Parameters
    ----------
    graph
        A recording or a sketch.
    seconds
        How long; three steps are timed at least.

    Returns
    -------
    By row among the graph's ops, microseconds in each of the steps: of the call, and of giving back what it freed.
    """
    with temporary_folder() as place:
        played = _benchmark_class()(benchmark(graph, place / "step"), device="cpu")
        clock = _Clock()
        step = played.source.clocked(clock.begins)
        steps: list[dict[int, float]] = []
        end = time.monotonic() + seconds
        with torch.no_grad():
            while len(steps) < WARM_UP + LEAST or time.monotonic() < end:
                step(*played.inputs)
                steps.append(clock.read())
    return {row: [one[row] for one in steps[WARM_UP:]] for row in sorted(played.called)}


def _benchmark_class() -> Any:
    """What runs a benchmark; the benchmark's own files know it by the name that it has in their folder."""
    home = str(Path(str(import_module("foretrace.replay").__file__)).parent)
    if home not in sys.path:
        sys.path.append(home)
    return import_module("harness.benchmark").Benchmark


class _Clock:
    """What lies between the beginnings of calls."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, int]] = []

    def begins(self, number: int) -> None:
        """A call begins, and so the one before it is done."""
        self._seen.append((number, time.perf_counter_ns()))

    def read(self) -> dict[int, float]:
        """Microseconds of each call since this was asked last."""
        ends = [*(at for _, at in self._seen[1:]), time.perf_counter_ns()]
        took = {number: (end - at) / 1e3 for (number, at), end in zip(self._seen, ends)}
        self._seen.clear()
        return took


def by_case(times: Mapping[int, list[float]], cases: Mapping[int, Case]) -> list[Measurement]:
    """The same by case: of calls that are alike the mean in each step, so that the sum stays what it was.

    >>> from foretrace.graph import Op
    >>> relu = Case(Op("aten::relu"))
    >>> found, = by_case({0: [1.0, 2.0], 4: [3.0, 4.0], 5: [9.0]}, {0: relu, 4: relu})
    >>> found.us("cold"), found.us("warm")
    (2.5, 2.5)
    """
    alike: dict[int, list[list[float]]] = defaultdict(list)
    known = {id(cases[row]): cases[row] for row in times if row in cases}
    for row in times.keys() & cases.keys():
        alike[id(cases[row])].append(times[row])
    found = []
    for which, case in known.items():
        repeats = [[(CALL, round(mean(each), 3))] for each in zip(*alike[which])]
        found.append(Measurement(case, cold=repeats, warm=repeats))
    return found
