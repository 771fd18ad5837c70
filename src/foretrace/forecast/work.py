"""What a step gives its device to do: kernels in launch order, with what each takes and how that is known."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.kernels.pricing import FALLBACK, MEASURED, MODEL
from foretrace.graph import Graph
from foretrace.graph.tables import Floats, Ints, Small

SOURCES = {MEASURED: "measured", MODEL: "model", FALLBACK: "fallback"}


@dataclass
class Work:
    """Pieces of device work in launch order. Times are microseconds: 10th percentile, median, 90th percentile."""

    call: Ints
    """The dispatcher call that launches it."""
    launch: Ints
    """The launch, counted over the step: the kernels of a CUDA graph share one."""
    stream: Ints
    kind: Small
    name: list[str]
    low: Floats
    typical: Floats
    high: Floats
    source: Small
    collective: Ints
    """Of a collective, which of the graph's it is; else -1."""

    def __len__(self) -> int:
        return len(self.call)

    def rows(self, which: NDArray[Any]) -> Work:
        """Some pieces of it; launches keep their numbers."""
        columns = {f.name: getattr(self, f.name)[which] for f in fields(self) if f.name != "name"}
        return Work(name=[self.name[row] for row in np.arange(len(self))[which].tolist()], **columns)

    def launches(self, calls: int) -> Ints:
        """How many launches each of so many calls makes."""
        call = self.call[np.unique(self.launch, return_index=True)[1]]
        return np.bincount(call, minlength=calls).astype(np.int32)

    def coverage(self) -> dict[str, float]:
        """Share of the device time by how it is known."""
        total = float(self.typical.sum())
        if not total:
            return dict.fromkeys(SOURCES.values(), 0.0)
        return {word: float(self.typical[self.source == code].sum()) / total for code, word in SOURCES.items()}


def measured_work(calls: Graph, which: NDArray[np.bool_] | None = None) -> Work:
    """The kernels that a graph was recorded with; those that nobody launched in it are left out.

    Parameters
    ----------
    calls
        The dispatcher calls of a step.
    which
        For each of its kernels, whether it is taken; all are where left out.

    >>> from foretrace.graph import OpTable
    >>> len(measured_work(Graph(OpTable.of([]))))
    0
    """
    kernels = calls.kernels
    rows = np.flatnonzero(launched(calls) & (True if which is None else which))
    rows = rows[np.lexsort((kernels.start[rows], kernels.call[rows], kernels.op[rows]))]
    time = kernels.end[rows] - kernels.start[rows]
    launch = np.cumsum(np.diff(kernels.call[rows], prepend=-1) != 0) - 1
    collective = np.full(len(kernels), -1, np.int32)
    for number, one in enumerate(calls.collectives):
        if one.kernel >= 0:
            collective[one.kernel] = number
    return Work(
        call=kernels.op[rows],
        launch=launch.astype(np.int32),
        stream=kernels.stream[rows],
        kind=kernels.kind[rows],
        name=[kernels.names[code] for code in kernels.name[rows].tolist()],
        low=time,
        typical=time,
        high=time,
        source=np.full(len(rows), MEASURED, np.int8),
        collective=collective[rows],
    )


def launched(calls: Graph) -> NDArray[np.bool_]:
    """For each kernel of a graph, whether it is seen who launched it."""
    return (calls.kernels.op >= 0) & (calls.kernels.call >= 0)


def merged(work: Work, added: Work) -> Work:
    """Both in the order of their calls, launches counted anew."""
    order = np.argsort(np.concatenate([work.call, added.call]), kind="stable")

    def joined(name: str) -> Any:
        one, other = getattr(work, name), getattr(added, name)
        if name == "name":
            names = [*one, *other]
            return [names[row] for row in order.tolist()]
        return np.concatenate([one, other])[order]

    both = Work(**{f.name: joined(f.name) for f in fields(Work)})
    launch = np.concatenate([work.launch, added.launch + work.launch.max(initial=-1) + 1])[order]
    both.launch = (np.cumsum(np.diff(launch, prepend=-1) != 0) - 1).astype(np.int32)
    return both
