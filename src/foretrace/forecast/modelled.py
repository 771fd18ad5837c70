"""What models say that the calls of a step launch, and how long that takes; collectives by the fabric."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrace.cost_models.kernels.families.compiled import PYTORCHS
from foretrace.cost_models.kernels.pricing import FALLBACK, MODEL, price_kernels
from foretrace.forecast.collectives import ONE_SIDED, members
from foretrace.forecast.flat import Flat
from foretrace.forecast.unmodelled import carried_over, guessed_calls, left_out, unmodelled
from foretrace.forecast.work import Work, merged
from foretrace.graph import Collective, ForetraceError, Graph
from foretrace.graph.tables import COLLECTIVE, COMPUTE, COPY, SET, Ints
from foretrace.platform.platform import Platform

if TYPE_CHECKING:
    from foretrace.cost_models.collectives.pricing import Range

NAMED = 5
"""How many ops a note names."""
WORTH_SAYING = 0.01
"""The share of the device time from which on it is said that recorded kernels stand in."""


def modelled_work(step: Flat, platform: Platform, recorded: bool) -> tuple[Work, list[str]]:
    """What the platform's models say the step's calls launch, and what the reader should know of it.

    Parameters
    ----------
    step, platform
        As in `device_work`.
    recorded
        Whether what no model knows takes what it was recorded to take, carried over to the platform.
    """
    calls, work = step.calls, _by_models(step, platform)
    if recorded:
        work = work.rows(~np.isin(work.call, guessed_calls(step, work)))
    notes = [*_carried(calls, platform), *_by_roofline(work, calls, platform)]
    unknown = unmodelled(step, work)
    if not recorded:
        notes += left_out(calls, unknown)
    elif unknown.any():
        added, said = carried_over(calls, unknown, platform)
        work = merged(work, added)
        notes += [said] if added.typical.sum() > WORTH_SAYING * work.typical.sum() else []
    whole, said_of_fabric = _with_collectives(work, calls, platform)
    return whole, [*notes, *said_of_fabric]


def _by_models(step: Flat, platform: Platform) -> Work:
    """What they launch, but for collectives."""
    calls = step.calls
    priced = price_kernels(calls, np.arange(len(calls.ops), dtype=np.int32), platform)
    if not len(priced.op):
        _check_shapes(calls)
    streams = _streams(step)
    count = len(priced.op)
    return Work(
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


def _carried(calls: Graph, platform: Platform) -> list[str]:
    """What is to be said of times that were measured on another device."""
    if not platform.carry:
        return []
    from foretrace.cost_models.kernels.cross_device import notes

    return notes(calls, platform)


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
    named = ", ".join(f"{name} ({100 * share[name]:.1f} %)" for name in largest[:NAMED])
    more = f" and {len(largest) - NAMED} more" if len(largest) > NAMED else ""
    return f"{named}{more}, {100 * sum(share.values()):.1f} % of the device time"


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
    from foretrace.cost_models.collectives.pricing import assumptions, price_collective

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
    return merged(work, added), assumptions(fabric, calls.world)


def _lane(collective: Collective) -> object:
    """Collectives of a group follow each other; a send does not hold up what is received at the same time."""
    if collective.kind in ONE_SIDED:
        return collective.group, collective.kind, collective.peer, collective.ranks
    return collective.group, len(collective.ranks)
