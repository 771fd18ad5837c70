"""What the calls of a step cost on a device: the kernels each launches, and how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretrace.costs.exact import Exact, Timed
from foretrace.costs.fallback import Fallback, work_of
from foretrace.costs.families import FAMILIES, Described, Work, family_of, usual_facts
from foretrace.costs.model import Model
from foretrace.costs.residency import residency
from foretrace.costs.rows import Floats, Rows, ceilings
from foretrace.costs.silent import launches_nothing
from foretrace.costs.spread_of_ids import spread_of_ids
from foretrace.graph import ForetraceError, Graph, Indices, Op, Tensor, Value
from foretrace.platform.device import Device
from foretrace.platform.platform import Platform

MEASURED, MODEL, FALLBACK = range(3)
"""Where a kernel's time comes from."""

Key = tuple[object, ...]


@dataclass
class KernelCosts:
    """Kernels in the order they are launched."""

    op: NDArray[np.int32]
    """Row in the graph's ops."""
    name: list[str]
    low: Floats
    """Microseconds, 10th percentile."""
    typical: Floats
    high: Floats
    """90th percentile."""
    source: NDArray[np.int8]


def price_kernels(graph: Graph, rows: NDArray[np.int32], platform: Platform) -> KernelCosts:
    """The kernels that rows of the graph's ops launch on the platform's device."""
    kind = platform.device.kind
    working = [(row, op) for row in rows.tolist() if not launches_nothing(op := graph.ops[row], kind)]
    if not working and any(not op.tensors for op in map(graph.ops.__getitem__, rows.tolist())):
        raise ForetraceError(
            f"{graph.source or 'the graph'} does not tell the shapes of tensors, so that no kernel can be priced",
            "Profile with record_shapes=True; or say --kernels measured, where it holds kernels.",
        )
    place = {row: i for i, (row, _) in enumerate(working)}
    known = [replace(i, op=place[i.op]) for i in graph.indices if i.op in place]
    pieces = _priced([op for _, op in working], known, platform.device, models(platform.models))
    return _collected(pieces, [row for row, _ in working])


@dataclass(frozen=True)
class Models:
    """All models of a device."""

    families: dict[str, Model]
    fallback: Fallback
    exact: Exact


def models(folder: Path) -> Models:
    """The models in a folder; read once, and again when they were fitted anew."""
    changed = max((path.stat().st_mtime_ns for path in folder.glob("*")), default=0)
    return _read(folder.resolve(), changed)


@lru_cache(maxsize=8)
def _read(folder: Path, changed: int) -> Models:
    families = {name: Model.read(folder, name) for name in FAMILIES if (folder / f"{name}.npz").exists()}
    return Models(families, Fallback.read(folder), Exact.read(folder))


@dataclass
class _Calls:
    """Calls that one model answers for, equal ones together."""

    described: list[Described]
    which: list[int]
    """For each call, the one of ``described`` that it equals."""
    place: list[int]
    """For each call, its position among all."""


@dataclass
class _Piece:
    """Kernels of one call."""

    names: Sequence[str]
    low: Floats
    typical: Floats
    high: Floats
    source: int


def _priced(ops: Sequence[Op], known: Sequence[Indices], device: Device, fitted: Models) -> list[_Piece]:
    """The kernels of each call: as they were timed, as a model says, or by the roofline."""
    warm = residency(ops, device.l2_mb * 1e6)
    ids = spread_of_ids(ops, known)
    pieces: dict[int, _Piece] = {}
    grouped: dict[str, _Calls] = {}
    seen: dict[Key, tuple[_Calls, int]] = {}
    for place, (op, timed) in enumerate(zip(ops, fitted.exact.of(ops, known))):
        if timed is not None:
            pieces[place] = _as_timed(timed, float(warm[place]))
            continue
        key = _key(op, ids.get(place))
        if key not in seen:
            family = family_of(op)
            if family is None:
                pieces[place] = _by_roofline(op, work_of(op), device, fitted.fallback)
                continue
            described = family.describe(op, usual_facts(family, device, ids.get(place)))
            if family.name not in fitted.families:
                pieces[place] = _by_roofline(op, described.work, device, fitted.fallback)
                continue
            group = grouped.setdefault(family.name, _Calls([], [], []))
            group.described.append(described)
            seen[key] = group, len(group.described) - 1
        group, which = seen[key]
        group.which.append(which)
        group.place.append(place)
    for name, calls in grouped.items():
        pieces |= _by_model(fitted.families[name], calls, device, warm, fitted.fallback)
    return [pieces[place] for place in range(len(ops))]


def _key(op: Op, indices: Indices | None) -> Key:
    """What tells calls apart whose times may differ."""
    found = (indices.unique, indices.count, indices.reuse) if indices else None
    return op.name, op.overload, _plain(op.args), _plain(tuple(op.kwargs.items())), found


def _plain(value: Value) -> object:
    kind = type(value)
    if kind is Tensor:
        return value.shape, value.dtype, value.stride, value.device, value.layout  # type: ignore[union-attr]
    if kind is list or kind is tuple:
        return tuple([_plain(item) for item in value])  # type: ignore[union-attr]
    return repr(value) if kind is dict else value


def _as_timed(call: Timed, warm: float) -> _Piece:
    us = call.cold_us + warm * (call.warm_us - call.cold_us)
    return _Piece(call.kernels, us / (1 + call.spread), us, us * (1 + call.spread), MEASURED)


def _by_roofline(op: Op, work: Work, device: Device, fallback: Fallback) -> _Piece:
    us = np.array([fallback.us(work, device)])
    return _Piece((op.name,), us * fallback.low, us, us * fallback.high, FALLBACK)


def _by_model(model: Model, calls: _Calls, device: Device, warm: Floats, fallback: Fallback) -> dict[int, _Piece]:
    """Kernels of calls by their places. Beyond what was measured an answer is a guess, as wide as a roofline."""
    features = np.array([d.features for d in calls.described], np.float64)
    rows = Rows(features, *ceilings(calls.described, device), np.zeros((0, 2)), [])
    cold, hot = model.estimator.predict_both(rows)[calls.which].T
    us = cold + warm[calls.place] * (hot - cold)
    low, high = model.spread.around(us)
    known = model.knows(rows)
    low, high = np.where(known[calls.which], (low, high), (fallback.low * us, fallback.high * us))
    source = np.where(known, MODEL, FALLBACK)
    pattern = model.patterns.predict(features)
    pieces = {}
    for row, (which, place) in enumerate(zip(calls.which, calls.place)):
        names, share = model.patterns.kernels_[pattern[which]], np.array(model.patterns.shares_[pattern[which]])
        pieces[place] = _Piece(names, low[row] * share, us[row] * share, high[row] * share, int(source[which]))
    return pieces


def _collected(pieces: Sequence[_Piece], rows: Sequence[int]) -> KernelCosts:
    counts = [len(piece.names) for piece in pieces]

    def column(name: str) -> Floats:
        return np.concatenate([getattr(piece, name) for piece in pieces]) if pieces else np.zeros(0)

    return KernelCosts(
        op=np.repeat(rows, counts).astype(np.int32),
        name=[name for piece in pieces for name in piece.names],
        low=column("low"),
        typical=column("typical"),
        high=column("high"),
        source=np.repeat([piece.source for piece in pieces], counts).astype(np.int8),
    )
