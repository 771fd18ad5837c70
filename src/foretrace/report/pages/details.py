"""Details of each interval of a timeline beyond its name: module, shapes, arithmetic, bytes, how its time is known.

Thousands of intervals share few details: these are a table of distinct rows, whose texts are in a table of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from foretrace.analysis.report import Workings
from foretrace.graph import Graph, Op
from foretrace.graph.calls import dispatched, enclosing_calls
from foretrace.graph.tables import Longs
from foretrace.report.formatting import printable
from foretrace.report.step import COVERAGE

TENSORS_SHOWN = 6
"""Tensors of a call whose shapes are shown."""
MAX_TEXT = 160
"""Characters of an argument or a name that a page carries: a step has thousands."""
NO_RANK = -1
"""The rank that a kernel waits for, where it waits for none."""
PER_US = 10.0
"""Times of a timeline are in tenths of a microsecond."""

Row = tuple[int, int, int, int, int, int, int, int, int]
"""Module and shapes (texts), FLOPs and bytes of the call, its kernels, how the time is known (a text), the 10th and the
90th percentile of the kernel, and the rank that it waits for."""
NOTHING: Row = (0, 0, 0, 0, 0, 0, 0, 0, NO_RANK)


def shapes_of(op: Op) -> str:
    """The dtype and the shapes of a call's tensors; empty where it has none.

    >>> from foretrace.graph import Tensor
    >>> shapes_of(Op("aten::mm", (Tensor((2, 3), "float32"), Tensor((3, 5), "float32"))))
    'float32 2×3, 3×5'
    """
    tensors = op.tensors
    if not tensors:
        return ""
    shapes = ["×".join(map(str, tensor.shape)) or "scalar" for tensor in tensors[:TENSORS_SHOWN]]
    return f"{tensors[0].dtype} {', '.join(shapes)}{', …' if len(tensors) > TENSORS_SHOWN else ''}"


@dataclass
class Details:
    """Distinct details of all intervals of a timeline, in the order in which they came up; the first says nothing."""

    rows: dict[Row, int] = field(default_factory=lambda: {NOTHING: 0})
    texts: dict[str, int] = field(default_factory=lambda: {"": 0})

    def text(self, value: str) -> int:
        """The number of a text."""
        return self.texts.setdefault(printable(value[:MAX_TEXT]), len(self.texts))

    def codes(self, rows: Iterable[Row]) -> Longs:
        """The numbers of some rows."""
        return np.fromiter((self.rows.setdefault(row, len(self.rows)) for row in rows), np.int64)


@dataclass
class RankDetails:
    """The details of one rank's calls and kernels."""

    workings: Workings
    position: int
    """Of its graph."""
    details: Details

    @property
    def graph(self) -> Graph:
        """The rank's step."""
        return self.workings.graphs[self.position]

    @cached_property
    def calls(self) -> dict[int, Row]:
        """Module, shapes and work of each dispatcher call, by its row."""
        from foretrace.prediction.rates import works

        graph, device, text = self.graph, self.workings.device, self.details.text
        rows = dispatched(graph)
        if not len(rows):
            return {}
        owner = enclosing_calls(graph, rows)[graph.kernels.op]
        kernels = np.bincount(owner[owner >= 0], minlength=len(rows)).tolist()
        ops = dict(zip(rows.tolist(), graph.ops.rows(rows)))
        done = {row: work for row, work, _ in works(graph, ops, device, ops)} if device else {}
        modules = [text(name) for name in graph.ops.modules.items]
        found: dict[int, Row] = {}
        for row, count in zip(rows.tolist(), kernels):
            module, shapes, work = modules[graph.ops.module[row]], text(shapes_of(ops[row])), done.get(row)
            flops, nbytes = (round(work.flops), round(work.bytes)) if work and count else (0, 0)
            found[row] = (module, shapes, flops, nbytes, count, 0, 0, 0, NO_RANK)
        return found

    def of_calls(self, rows: Iterable[int]) -> Longs:
        """The details of some calls."""
        return self.details.codes(self.calls.get(row, NOTHING) for row in rows)

    def of_kernels(self, last_rank: Longs) -> Longs:
        """The details of all kernels; ``last_rank`` is the rank for which each waits."""
        graph, position = self.graph, self.position
        kernels, calls = graph.kernels, dispatched(graph)
        place = enclosing_calls(graph, calls)[kernels.op]
        owners = np.append(calls, -1)[place].tolist()
        known, low, high = (np.zeros(len(kernels), np.int64) for _ in range(3))
        if self.workings.sources:
            from foretrace.prediction.device_work import SOURCES

            words = {code: self.details.text(COVERAGE[word]) for code, word in SOURCES.items()}
            known = np.array([words[code] for code in self.workings.sources[position].tolist()], np.int64)
        if self.workings.kernel_ranges:
            low, high = (np.rint(ends * PER_US).astype(np.int64) for ends in self.workings.kernel_ranges[position])
        columns = (owners, known.tolist(), low.tolist(), high.tolist(), last_rank.tolist())
        return self.details.codes(
            (*self.calls.get(owner, NOTHING)[:5], source, least, most if most > least else least, last)
            for owner, source, least, most, last in zip(*columns)
        )
