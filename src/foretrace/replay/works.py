"""Collectives under way: each is waited for where the original waited, and no later than its result is touched."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from foretrace.graph import Constant, Graph, Op
from foretrace.graph.calls import enclosing_calls
from foretrace.replay.literals import NUMBER, Name
from foretrace.replay.plan import Call, Input

WAIT = "c10d::wait"
WAITS = (WAIT, "_c10d_functional::wait_tensor")
COLLECTIVES = ("c10d::", "_c10d_functional::")
WORK = re.compile(r"w\d+")


def work_name(value: Constant) -> Name | None:
    """The variable of a work; None for a constant that is none.

    >>> work_name(Constant("work", "3")), work_name(Constant("dtype", "int8"))
    ('w3', None)
    """
    return Name(f"w{value.value}") if value.kind == "work" and NUMBER.fullmatch(value.value) else None


def with_waits(calls: Sequence[Call], inputs: Sequence[Input]) -> list[Call]:
    """The calls, with a wait for each work, and an end to each.

    C++ waits for some works where nobody can watch it: such a work is waited for before the first call that touches
    what it works on, or at the end.

    >>> reduced = Call(0, "c10d::allreduce_", args=([Name("t0")],), results=([None], Name("w0")))
    >>> used = Call(1, "aten::relu", args=(Name("t0"),))
    >>> [call.name for call in with_waits([reduced, used], [])]
    ['c10d::allreduce_', 'c10d::wait', 'aten::relu']
    """
    storages: dict[Name, int] = {entry.name: entry.tensor.storage for entry in inputs}
    watched = {name for call in calls if call.name == WAIT for name in call.variables}
    pending: dict[Name, set[object]] = {}
    settled: list[Call] = []
    ended: list[Name] = []

    def places(call: Call) -> set[object]:
        return {_place(name, storages) for name in call.variables if not WORK.fullmatch(name)}

    def add(call: Call) -> None:
        call.frees = (*call.frees, *ended)
        ended.clear()
        settled.append(call)

    def wait(work: Name, beside: Call) -> None:
        del pending[work]
        add(Call(-1, WAIT, args=(work,), phase=beside.phase, module=beside.module, stream=beside.stream))
        ended.append(work)

    for call in calls:
        if call.name == WAIT:
            works = [name for name in call.variables if name in pending]
            if not works:  # the call that issued it was left out
                ended += call.frees
                continue
            del pending[works[0]]
            add(replace(call, args=(works[0],)))
            ended.append(works[0])
            continue
        touched = places(call)
        for work in [name for name, held in pending.items() if name not in watched and held & touched]:
            wait(work, call)
        storages.update({name: tensor.storage for name, tensor in call.made.items()})
        pending.update(dict.fromkeys(_works(call), touched))
        add(call)
    for work in list(pending):
        wait(work, settled[-1])
    return settled


def under_way(graph: Graph, rows: Sequence[int], ops: Sequence[Op]) -> dict[int, float]:
    """Microseconds that each collective was under way, by the place of its call among these rows."""
    place = enclosing_calls(graph, np.array(rows, np.int32))
    called = [number for number, op in enumerate(ops) if op.name.startswith(COLLECTIVES) and op.name not in WAITS]
    in_order = len(called) == len(graph.collectives)  # what gloo's threads did is in no call, but in the same order
    took: dict[int, float] = {}
    for turn, collective in enumerate(graph.collectives):
        table, row = (graph.kernels, collective.kernel) if collective.kernel >= 0 else (graph.ops, collective.op)
        number = called[turn] if in_order else int(place[collective.op]) if collective.op >= 0 else -1
        if number >= 0 and row >= 0 and (spent := float(table.end[row] - table.start[row])) > 0:
            took[number] = spent
    return took


def _place(name: Name, storages: dict[Name, int]) -> object:
    """What two variables share: a storage, or nothing but their name."""
    storage = storages.get(name, -1)
    return storage if storage >= 0 else name


def _works(call: Call) -> Iterator[Name]:
    yield from (name for name in call.new if WORK.fullmatch(name))
