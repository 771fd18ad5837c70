"""Small ranks and jobs made by hand. Times are microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from foretrace.graph import PHASES, CallTable, Collective, Graph, Job, KernelTable, Names, Op, OpTable, Span
from foretrace.graph.tables import (
    ANNOTATION,
    CALL,
    COLLECTIVE,
    COMPUTE,
    LAUNCH,
    SYNC,
    WAIT_EVENT,
    ActivityTable,
)

MAIN, AUTOGRAD = 1, 2


@dataclass
class Call:
    """A row of the op table."""

    name: str
    start: float
    end: float
    thread: int = MAIN
    kind: int = CALL
    phase: str = "forward"
    module: str = ""


@dataclass
class Runtime:
    """A call into the device's runtime, and the kernel it launched if it did."""

    start: float
    end: float
    kind: int = LAUNCH
    thread: int = MAIN
    kernel: tuple[float, float] | None = None
    stream: int = 7
    name: str = "kernel"
    device_kind: int = COMPUTE
    collective: str = ""
    nbytes: int = 0
    group: str = "world"
    ranks: tuple[int, ...] = ()


@dataclass
class Orphan:
    """A kernel whose launch came before the trace began."""

    start: float
    end: float
    stream: int = 7
    name: str = "orphan"


def launch(start: float, end: float, kernel: tuple[float, float], stream: int = 7, **more: object) -> Runtime:
    return Runtime(start, end, kernel=kernel, stream=stream, **more)  # type: ignore[arg-type]


def all_reduce(start: float, end: float, kernel: tuple[float, float], nbytes: int = 1024, **more: object) -> Runtime:
    kind = str(more.pop("kind", "all_reduce"))
    return launch(start, end, kernel, 20, name="nccl", device_kind=COLLECTIVE, collective=kind, nbytes=nbytes, **more)


def sync(start: float, end: float, thread: int = MAIN) -> Runtime:
    return Runtime(start, end, SYNC, thread)


def wait_event(at: float) -> Runtime:
    return Runtime(at, at, WAIT_EVENT)


def rank(*events: Call | Runtime | Orphan, number: int = 0, world: int = 1, steps: Sequence[Span] = ()) -> Graph:
    """The graph of one rank: calls, launches and syncs in any order."""
    calls = sorted((e for e in events if isinstance(e, Call)), key=lambda e: (e.start, -e.end))
    runtime = sorted((e for e in events if isinstance(e, Runtime)), key=lambda e: (e.start, -e.end))
    orphans = [e for e in events if isinstance(e, Orphan)]
    op_of = [innermost(calls, event.thread, event.start) for event in runtime]
    kernels = [(*r.kernel, r.stream, r.device_kind, i, op_of[i], r.name) for i, r in enumerate(runtime) if r.kernel]
    kernels += [(o.start, o.end, o.stream, COMPUTE, -1, -1, o.name) for o in orphans]
    kernels.sort(key=lambda k: k[0])
    row = {k[4]: i for i, k in enumerate(kernels)}
    collectives = [
        Collective(r.collective, r.group, r.nbytes, row[i], op_of[i], r.ranks)
        for i, r in enumerate(runtime)
        if r.collective
    ]
    return Graph(
        _op_table(calls), _call_table(runtime, op_of), _kernel_table(kernels),
        rank=number, world=world, collectives=collectives, steps=list(steps),
    )  # fmt: skip


def doing(graph: Graph, *activities: tuple[str, float, float], kind: int = ANNOTATION) -> Graph:
    """The graph with annotations or functions on its main thread."""
    names = Names([name for name, *_ in activities])
    count = len(activities)
    start, end = (np.array([one[at] for one in activities]) for at in (1, 2))
    table = ActivityTable(
        np.arange(count, dtype=np.int32),
        start,
        end,
        np.full(count, MAIN, np.int32),
        np.full(count, kind, np.int8),
        names,
    )
    return replace(graph, activities=table)


def job(*ranks: Graph) -> Job:
    """Ranks numbered in the order given."""
    for number, graph in enumerate(ranks):
        graph.rank, graph.world = number, len(ranks)
    return Job(list(ranks), source="by hand")


def innermost(calls: list[Call], thread: int, time: float) -> int:
    around = [i for i, c in enumerate(calls) if c.thread == thread and c.start <= time < c.end]
    return around[-1] if around else -1


def _op_table(calls: list[Call]) -> OpTable:
    table = OpTable.of([
        Op(c.name, start_us=c.start, end_us=c.end, thread=c.thread, phase=c.phase, module=c.module,
           parent=innermost(calls[:i], c.thread, c.start))
        for i, c in enumerate(calls)
    ])  # fmt: skip
    table.kind = np.array([c.kind for c in calls], np.int8)
    assert all(c.phase in PHASES for c in calls)
    return table


def _call_table(runtime: list[Runtime], op_of: list[int]) -> CallTable:
    return CallTable(
        name=np.zeros(len(runtime), np.int32),
        start=np.array([r.start for r in runtime], np.float64),
        end=np.array([r.end for r in runtime], np.float64),
        thread=np.array([r.thread for r in runtime], np.int32),
        kind=np.array([r.kind for r in runtime], np.int8),
        op=np.array(op_of, np.int32),
        correlation=np.arange(len(runtime), dtype=np.int64),
        names=Names(["runtime"]),
    )


def _kernel_table(kernels: list[tuple[float, float, int, int, int, int, str]]) -> KernelTable:
    names = Names()
    start, end, stream, kind, call, op, name = zip(*kernels) if kernels else [()] * 7
    zeros = np.zeros(len(kernels), np.int64)
    return KernelTable(
        name=np.array([names.code(n) for n in name], np.int32),
        start=np.array(start, np.float64),
        end=np.array(end, np.float64),
        stream=np.array(stream, np.int32),
        kind=np.array(kind, np.int8),
        call=np.array(call, np.int32),
        op=np.array(op, np.int32),
        nbytes=zeros,
        grid=zeros,
        block=zeros,
        names=names,
    )


def recorded(device: str = "by hand") -> Graph:
    """Two calls, three kernels."""
    graph = rank(
        Call("aten::mm", 0, 10), launch(1, 2, (5, 25)), launch(3, 4, (26, 30)), Call("aten::relu", 20, 30),
        launch(21, 22, (31, 34)),
    )  # fmt: skip
    graph.device = device
    return graph
