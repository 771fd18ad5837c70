"""Device work of a step: kernels in launch order, with what each takes and how that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.dispatched import DispatchedCalls
from foretrace.cost_models.kernels.roofline import ASSUMED, EXTRAPOLATED, FALLBACK, MEASURED, MODEL
from foretrace.errors import ForetraceError
from foretrace.graph import Graph
from foretrace.graph.graph import LEFT_OUT_TIME
from foretrace.graph.tables import COLLECTIVE, Floats, Ints, KernelTable, Small, distinct
from foretrace.platform.platform import Platform

CHOICES = ("measured", "model")
"""Where kernel times may come from."""
SOURCES = {MEASURED: "measured", MODEL: "model", EXTRAPOLATED: "extrapolated", FALLBACK: "fallback", ASSUMED: "assumed"}


@dataclass(eq=False)
class DeviceWork:
    """Kernels in launch order. Times are microseconds: 10th percentile, median, 90th percentile."""

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

    def rows(self, which: NDArray[Any]) -> DeviceWork:
        """Some of its kernels; launches keep their numbers."""
        columns = {f.name: getattr(self, f.name)[which] for f in fields(self) if f.name != "name"}
        return DeviceWork(name=[self.name[row] for row in np.arange(len(self))[which].tolist()], **columns)

    def launches(self, calls: int) -> Ints:
        """How many launches each of so many calls makes."""
        call = self.call[np.unique(self.launch, return_index=True)[1]]
        return np.bincount(call, minlength=calls).astype(np.int32)

    def coverage(self) -> dict[str, float]:
        """Share of the device time by how it is known."""
        return shares({word: float(self.typical[self.source == code].sum()) for code, word in SOURCES.items()})


def shares(us: Mapping[str, float]) -> dict[str, float]:
    """Shares of a time by how it is known; that of assumed sizes where there are any.

    >>> shares({"model": 3.0, "fallback": 1.0})
    {'measured': 0.0, 'model': 0.75, 'extrapolated': 0.0, 'fallback': 0.25}
    """
    total = sum(us.values()) or 1.0
    usual = (word for code, word in SOURCES.items() if code != ASSUMED or us.get(word))
    return {word: us.get(word, 0.0) / total for word in usual}


def measured_work(calls: Graph, which: NDArray[np.bool_] | None = None) -> DeviceWork:
    """The kernels that a graph was recorded with; those without a launch in it are left out."""
    kernels = calls.kernels
    rows = np.flatnonzero(launched(calls) & (True if which is None else which))
    rows = rows[np.lexsort((kernels.start[rows], kernels.call[rows], kernels.op[rows]))]
    time = own_time(kernels)[rows]
    call = kernels.call[rows]
    launch = np.cumsum((np.diff(call, prepend=-1) != 0) | (call < 0)) - 1
    collective = np.full(len(kernels), -1, np.int32)
    for number, one in enumerate(calls.collectives):
        if one.kernel >= 0:
            collective[one.kernel] = number
    return DeviceWork(
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


def own_time(kernels: KernelTable) -> Floats:
    """Microseconds that each kernel runs alone: after those before it on its stream have ended.

    A kernel may start while the one ahead of it still runs (programmatic dependent launch, branches of a graph).
    """
    own = kernels.end - kernels.start
    for stream in distinct(kernels.stream):
        rows = np.flatnonzero(kernels.stream == stream)
        rows = rows[np.argsort(kernels.start[rows], kind="stable")]
        free = np.maximum.accumulate(kernels.end[rows])[:-1]
        own[rows[1:]] = np.maximum(kernels.end[rows[1:]] - np.maximum(kernels.start[rows[1:]], free), 0.0)
    return own


def assumed_sizes(calls: Graph) -> Floats | None:
    """For each call its `AssumedSize`, one row for each of its fields; None where no size is assumed."""
    detail = calls.ops.detail
    found = [detail(row).assumed for row in calls.ops.source.tolist()] if detail else []
    if not any(found):
        return None
    same = (1.0, 1.0, 1.0, 1.0)
    return np.array([size or same for size in found]).T


def launched(calls: Graph) -> NDArray[np.bool_]:
    """For each kernel of a graph, whether its launch is known; of a trace without runtime calls, whether its op is.

    Communication has a call of its own where its launch is not in the trace.
    """
    kernels = calls.kernels
    unrecorded = (kernels.kind == COLLECTIVE) | (not len(calls.calls))
    return np.asarray((kernels.op >= 0) & ((kernels.call >= 0) | unrecorded))


def merge_work(work: DeviceWork, added: DeviceWork) -> DeviceWork:
    """The kernels of two device works in the order of their calls, with launches numbered anew."""
    order = np.argsort(np.concatenate([work.call, added.call]), kind="stable")

    def column(name: str) -> Any:
        one, other = getattr(work, name), getattr(added, name)
        if name == "name":
            names = [*one, *other]
            return [names[row] for row in order.tolist()]
        return np.concatenate([one, other])[order]

    both = DeviceWork(**{f.name: column(f.name) for f in fields(DeviceWork)})
    launch = np.concatenate([work.launch, added.launch + work.launch.max(initial=-1) + 1])[order]
    both.launch = (np.cumsum(np.diff(launch, prepend=-1) != 0) - 1).astype(np.int32)
    return both


def device_work(step: DispatchedCalls, platform: Platform, kernels: str | None = None) -> tuple[DeviceWork, list[str]]:
    """The device work of a step on a platform, and what the reader should know of it.

    ``measured`` kernels take the times in the graph, those of a ``model`` what the platform's models say. Left out, the
    graph's times are taken where it was recorded on this very device; of an edited one those of calls that are
    unchanged; and elsewhere those that no model knows better.
    """
    if kernels not in (None, *CHOICES):
        raise ForetraceError(f"kernel times can't be {kernels!r}", "Say model or measured.")
    calls = step.calls
    if kernels == "measured" and not len(calls.kernels):
        raise ForetraceError(
            f"{calls.source or 'the graph'} holds no measured kernels", "Leave --kernels out, or say model."
        )
    if keeps_measured_kernels(calls, platform, kernels):
        if not launched(calls).any():
            raise ForetraceError(
                f"{calls.source or 'the graph'} does not say which ops launched its kernels",
                "Leave --kernels out, or say model.",
            )
        here = calls.device == platform.device.matches
        other = [] if here else [f"kernel times are those measured on {calls.device or 'another device'}"]
        return measured_work(calls), [*other, *_without_launch(calls)]
    from foretrace.prediction.modelled_work import modelled_work  # a step with measured kernels does without models

    if kernels == "model":
        work, notes = modelled_work(step._replace(calls=replace(calls, recorded_kernels={})), platform, recorded=False)
        return work, [*notes, *_without_launch(calls)]
    work, notes = modelled_work(step, platform, recorded=True)
    return work, [*notes, *_without_launch(calls), *_unchanged_calls(calls, platform)]


def keeps_measured_kernels(calls: Graph, platform: Platform, kernels: str | None) -> bool:
    """Whether kernels keep their recorded times."""
    here = calls.device == platform.device.matches
    return kernels == "measured" or (kernels is None and here and bool(launched(calls).any()))


def _unchanged_calls(calls: Graph, platform: Platform) -> list[str]:
    """A note on calls that a transform left as they were recorded."""
    if not calls.recorded_kernels or calls.device != platform.device.matches or platform.cross_device:
        return []
    return ["calls that are still as they were recorded keep their measured kernel times; the others are modelled"]


def _without_launch(calls: Graph) -> list[str]:
    """A note on kernels that ran without a known launch."""
    lost = ~launched(calls)
    if not lost.any():
        return []
    spent = calls.kernels.end - calls.kernels.start
    ms = float(spent[lost].sum()) / 1e3
    most = LEFT_OUT_TIME if ms > float(spent.sum()) / 2e3 else ""
    return [f"{most}{int(lost.sum())} kernels ({ms:.2f} ms) whose launch is not in this step are left out"]
