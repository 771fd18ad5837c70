"""What a step gives its device to do: kernels in launch order, with what each takes and how that is known."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from foretrace.costs.carried import notes as carried_notes
from foretrace.costs.collectives import Range, assumptions, price_collective
from foretrace.costs.device import FALLBACK, MEASURED, MODEL, price_kernels
from foretrace.costs.families.compiled import PYTORCHS
from foretrace.forecast.collectives import ONE_SIDED, members
from foretrace.forecast.flat import Flat
from foretrace.graph import Collective, ForetraceError, Graph
from foretrace.graph.tables import COLLECTIVE, COMPUTE, COPY, SET, Floats, Ints, Small
from foretrace.platform.platform import Platform

SOURCES = {MEASURED: "measured", MODEL: "model", FALLBACK: "fallback"}
CHOICES = ("measured", "model")
NAMED = 5
"""How many ops a note names."""
WORTH_SAYING = 0.15
"""The share of what kernels took from which on it is said that no model knows them."""


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


def device_work(step: Flat, platform: Platform, kernels: str | None = None) -> tuple[Work, list[str]]:
    """The device work of a step on a platform, and what the reader should know of it.

    Parameters
    ----------
    step
        The step's dispatcher calls.
    platform
        Where the step shall run.
    kernels
        ``"measured"`` takes the times in the graph, ``"model"`` what the platform's models say. Left out, the graph's
        times are taken where it was recorded on this very device; of an edited one those of calls that are unchanged.
    """
    if kernels not in (None, *CHOICES):
        raise ForetraceError(f"kernel times can't be {kernels!r}", "Say model or measured.")
    calls = step.calls
    if kernels == "measured" and not len(calls.kernels):
        raise ForetraceError(
            f"{calls.source or 'the graph'} holds no measured kernels", "Leave --kernels out, or say model."
        )
    if as_measured(calls, platform, kernels):
        here = calls.device == platform.device.matches
        other = [] if here else [f"kernel times are those measured on {calls.device or 'another device'}"]
        return measured_work(calls), [*other, *_left_out(calls)]
    if kernels == "model":
        return modelled_work(step._replace(calls=replace(calls, seen={})), platform)
    work, notes = modelled_work(step, platform)
    return work, [*notes, *_kept(calls, platform)]


def _kept(calls: Graph, platform: Platform) -> list[str]:
    """What an edit left of the recorded kernels."""
    if not calls.seen or calls.device != platform.device.matches or platform.carry:
        return []
    return ["calls that are still as they were recorded take what they took, the others what models say"]


def as_measured(calls: Graph, platform: Platform, kernels: str | None) -> bool:
    """Whether kernels take what they took when they were recorded."""
    here = calls.device == platform.device.matches
    return kernels == "measured" or (kernels is None and here and len(calls.kernels) > 0)


def measured_work(calls: Graph) -> Work:
    """The kernels that a graph was recorded with; those that nobody launched in it are left out.

    >>> from foretrace.graph import OpTable
    >>> len(measured_work(Graph(OpTable.of([]))))
    0
    """
    kernels = calls.kernels
    rows = np.flatnonzero((kernels.op >= 0) & (kernels.call >= 0))
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


def _left_out(calls: Graph) -> list[str]:
    """What was seen to run, but not launched."""
    kernels = calls.kernels
    lost = (kernels.op < 0) | (kernels.call < 0)
    if not lost.any():
        return []
    ms = float((kernels.end - kernels.start)[lost].sum()) / 1e3
    return [f"{int(lost.sum())} kernels ({ms:.2f} ms) that nobody is seen to launch in this step are left out"]


def modelled_work(step: Flat, platform: Platform) -> tuple[Work, list[str]]:
    """What the platform's models say the step's calls launch."""
    calls = step.calls
    priced = price_kernels(calls, np.arange(len(calls.ops), dtype=np.int32), platform)
    if not len(priced.op):
        _check_shapes(calls)
    streams = _streams(step)
    count = len(priced.op)
    work = Work(
        call=np.asarray(priced.op, np.int32),
        launch=np.arange(count, dtype=np.int32),
        stream=streams[priced.op],
        kind=np.array([_kind(name) for name in priced.name], np.int8),
        name=list(priced.name),
        low=priced.low,
        typical=priced.typical,
        high=priced.high,
        source=np.asarray(priced.source, np.int8),
        collective=np.full(count, -1, np.int32),
    )
    whole, notes = _with_collectives(work, calls, platform)
    unknown = _unpriced(calls, work)
    return whole, [*carried_notes(calls, platform), *_by_roofline(work, calls, platform), *unknown, *notes]


def _unpriced(calls: Graph, work: Work) -> list[str]:
    """Kernels that were recorded, and whose calls give no model anything to go by."""
    kernels = calls.kernels
    compute = kernels.kind == COMPUTE
    compute[[c.kernel for c in calls.collectives if c.kernel >= 0]] = False
    left_out = compute & ~np.isin(kernels.op, work.call)
    us = kernels.end - kernels.start
    share = us[left_out].sum() / max(us[compute].sum(), 1e-9)
    if share < WORTH_SAYING:
        return []
    by_code = np.bincount(kernels.name[left_out], us[left_out])
    named = sorted({_bare(kernels.names[code]) for code in np.argsort(-by_code)[:3].tolist() if by_code[code]})
    return [
        f"some {round(share, 1):.0%} of what kernels took where they were recorded is left out: the trace does not "
        f"tell the tensors of the calls that launched them ({', '.join(named)}, …)"
    ]


def _bare(kernel: str) -> str:
    """A kernel's name without what it returns, takes and is made for.

    >>> _bare("void (anonymous namespace)::softmax_warp<c10::Half, 11>(int)")
    'softmax_warp'
    """
    return re.split("[<(]", kernel.replace("(anonymous namespace)::", ""))[0].split()[-1]


def _check_shapes(calls: Graph) -> None:
    if not any(op.tensors or op.produced for op in calls.ops):
        raise ForetraceError(
            f"{calls.source or 'the graph'} does not tell the shapes of tensors, which kernel models go by",
            "Profile with record_shapes=True, give the execution trace beside it, or say --kernels measured.",
        )


def _streams(step: Flat) -> Ints:
    """The stream of each call: that of its kernels where they were seen, else the one it was called on."""
    kernels = step.calls.kernels
    known = kernels.op >= 0
    if not known.any():
        return step.stream
    # Streams have other numbers in a profile: calls without kernels are on the one that most are on.
    streams = np.full(len(step.stream), np.bincount(kernels.stream[known]).argmax(), np.int32)
    streams[kernels.op[known]] = kernels.stream[known]
    return streams


def _by_roofline(work: Work, calls: Graph, platform: Platform) -> list[str]:
    """Which ops no model of the platform knows, those that take longest first."""
    total = float(work.typical.sum())
    share: dict[str, float] = {}
    for row in np.flatnonzero(work.source == FALLBACK).tolist():
        name = calls.ops.names[calls.ops.name[work.call[row]]]
        share[name] = share.get(name, 0.0) + float(work.typical[row]) / total
    custom = {name: part for name, part in share.items() if not name.startswith(PYTORCHS)}
    calls_of_pytorch = {name: part for name, part in share.items() if name not in custom}
    ways = ((calls_of_pytorch, "rooflines stand in"), (custom, "guesses from their tensors stand in"))
    return [f"{platform.name} has no model that knows {_named(some)}: {way}" for some, way in ways if some]


def _named(share: dict[str, float]) -> str:
    """Ops with their share of the device time, and that of all."""
    largest = sorted(share, key=lambda name: -share[name])
    named = ", ".join(f"{name} ({share[name]:.1%})" for name in largest[:NAMED])
    more = f" and {len(largest) - NAMED} more" if len(largest) > NAMED else ""
    return f"{named}{more}, {sum(share.values()):.1%} of the device time"


def _kind(name: str) -> int:
    return COPY if name.startswith("Memcpy") else SET if name.startswith("Memset") else COMPUTE


def _with_collectives(work: Work, calls: Graph, platform: Platform) -> tuple[Work, list[str]]:
    """The work with one kernel for each collective, on the stream of its group, priced by the fabric."""
    theirs = [(number, c) for number, c in enumerate(calls.collectives) if c.op >= 0 and len(members(calls, c)) > 1]
    if not theirs:
        return work, []
    fabric = platform.fabric
    if fabric is None:
        kinds = ", ".join(sorted({c.kind for _, c in theirs}))
        return work, [f"{platform.name} has no fabric: {len(theirs)} collectives ({kinds}) take no time here"]
    lanes: dict[object, int] = {}
    first_lane = int(work.stream.max(initial=0)) + 1
    known: dict[object, Range] = {}
    for _, c in theirs:
        if (c.kind, c.nbytes, _lane(c)) not in known:
            known[c.kind, c.nbytes, _lane(c)] = price_collective(fabric, c.kind, c.nbytes, members(calls, c))
    price = [known[c.kind, c.nbytes, _lane(c)] for _, c in theirs]
    added = Work(
        call=np.array([c.op for _, c in theirs], np.int32),
        launch=np.arange(len(theirs), dtype=np.int32) + len(work),
        stream=np.array([first_lane + lanes.setdefault(_lane(c), len(lanes)) for _, c in theirs], np.int32),
        kind=np.full(len(theirs), COLLECTIVE, np.int8),
        name=[c.kind for _, c in theirs],
        low=np.array([p.low for p in price]),
        typical=np.array([p.typical for p in price]),
        high=np.array([p.high for p in price]),
        source=np.full(len(theirs), MODEL, np.int8),
        collective=np.array([number for number, _ in theirs], np.int32),
    )
    return _merged(work, added), assumptions(fabric, calls.world)


def _lane(collective: Collective) -> object:
    """Collectives of a group follow each other; a send does not hold up what is received at the same time."""
    if collective.kind in ONE_SIDED:
        return collective.group, collective.kind, collective.peer, collective.ranks
    return collective.group, len(collective.ranks)


def _merged(work: Work, added: Work) -> Work:
    """Both in the order of their calls, launches counted anew."""
    order = np.argsort(np.concatenate([work.call, added.call]), kind="stable")

    def joined(name: str) -> Any:
        one, other = getattr(work, name), getattr(added, name)
        both = [*one, *other] if name == "name" else np.concatenate([one, other])
        return [both[row] for row in order] if name == "name" else both[order]

    merged = Work(**{f.name: joined(f.name) for f in fields(Work)})
    merged.launch = np.arange(len(order), dtype=np.int32)
    return merged
