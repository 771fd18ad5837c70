"""What the calls of a step cost on a device: the kernels each launches, and how long they take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.kernels.decomposition import parts_of
from foretrace.cost_models.kernels.estimators.dataset import Floats, Rows, ceilings
from foretrace.cost_models.kernels.exact import Exact, Timed
from foretrace.cost_models.kernels.families import FAMILIES, Described, facts_of, family_of
from foretrace.cost_models.kernels.families.lookups import spread_of_ids
from foretrace.cost_models.kernels.l2_residency import residency
from foretrace.cost_models.kernels.launches import launches_nothing
from foretrace.cost_models.kernels.model import Model
from foretrace.cost_models.kernels.roofline import Fallback, work_of
from foretrace.cost_models.ranges import TENTH
from foretrace.graph import ForetraceError, Graph, Indices, Op, Tf32
from foretrace.graph.op import signature
from foretrace.platform.device import Device
from foretrace.platform.platform import Platform

if TYPE_CHECKING:
    from foretrace.platform.carry import Carry

MEASURED, MODEL, FALLBACK = range(3)
"""Where a kernel's time comes from."""

NO_MODEL = ""
"""Stands for the model of calls that have none."""


class Way(NamedTuple):
    """How a call is priced."""

    model: str = NO_MODEL
    guess: bool = False
    """Whether the answer is one however well the model knows calls like it."""
    whole: bool = False
    """Whether the call is one kernel of the same name, not those that the model has seen."""


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
    ops = list(graph.ops.rows(rows))
    kind = platform.device.kind
    working = [place for place, op in enumerate(ops) if not launches_nothing(op, kind)]
    if ops and not working and not any(tensor.device != "cpu" for op in ops for tensor in op.tensors):
        raise _nothing_to_price(graph.source or "the graph", ops)
    row_of = rows[working]
    place_of = {row: place for place, row in enumerate(row_of.tolist())}
    known = [replace(i, op=place_of[i.op]) for i in graph.indices if i.op in place_of]
    calls = [ops[place] for place in working]
    device, carry, fitted = platform.device, platform.carry, models(platform.models)
    warm = residency(calls, device.l2_mb * 1e6)
    timed = _timed(graph, rows, ops, platform)
    known_times = [timed[place] for place in working]
    costs = _priced(calls, known, graph.tf32, carry.source if carry else device, fitted, warm, known_times)
    if carry:
        from foretrace.cost_models.kernels.cross_device import factors

        start = fitted.fallback.start_us
        work = np.bincount(costs.op, np.maximum(costs.typical - start, 0.0), len(calls)).astype(np.float64)
        factor = factors(calls, work, known, graph.tf32, warm, device, carry)
        costs = _carried(costs, factor[costs.op], start, carry)
    # A processor does a call itself: there are no kernels whose names would tell more than the call's.
    names = [calls[place].name for place in costs.op.tolist()] if kind == "cpu" else costs.name
    return replace(costs, op=row_of[costs.op], name=names)


def _timed(graph: Graph, rows: NDArray[np.int32], ops: Sequence[Op], platform: Platform) -> list[Timed | None]:
    """What each call was seen to take: in the step that was recorded on this very device, or when it was measured.

    All calls are looked at: one that does nothing itself may tell what ids a later one is given.
    """
    place_of = {row: place for place, row in enumerate(rows.tolist())}
    known = [replace(found, op=place_of[found.op]) for found in graph.indices if found.op in place_of]
    timed = models(platform.models).exact.of(ops, known, graph.tf32)
    if not graph.seen or platform.carry or graph.device != platform.device.matches:
        return timed
    recorded = [graph.seen.get(signature(op)) for op in ops]
    return [Timed.as_recorded(launched) if launched else other for launched, other in zip(recorded, timed)]


def _nothing_to_price(source: str, ops: Sequence[Op]) -> ForetraceError:
    if any(op.tensors for op in ops):
        return ForetraceError(
            f"nothing of {source} runs on a GPU: all its tensors lie on the host",
            "Build the model and its inputs on cuda, whether there is one here or not; or predict it --on cpu.",
        )
    return ForetraceError(
        f"{source} does not tell the shapes of tensors, so that no kernel can be priced",
        "Profile with record_shapes=True; or say --kernels measured, where it holds kernels.",
    )


class FamilyModels(Mapping[str, Model]):
    """The models of a folder by family, each read when first asked for: a step has calls of some families only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = [name for name in FAMILIES if (folder / f"{name}.npz").exists()]
        self._read: dict[str, Model] = {}

    def __getitem__(self, name: str) -> Model:
        if name not in self._read:
            if name not in self._names:
                raise KeyError(name)
            self._read[name] = Model.read(self._folder, name)
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class Models:
    """All models of a device."""

    families: Mapping[str, Model]
    fallback: Fallback
    exact: Exact


def models(folder: Path) -> Models:
    """The models in a folder; read once, and again when they were fitted anew."""
    changed = max((path.stat().st_mtime_ns for path in folder.glob("*")), default=0)
    return _read(folder.resolve(), changed)


@lru_cache(maxsize=8)
def _read(folder: Path, changed: int) -> Models:
    return Models(FamilyModels(folder), Fallback.read(folder), Exact.read(folder))


@dataclass
class _Calls:
    """Calls that are priced in one way, equal ones together."""

    described: list[Described] = field(default_factory=list)
    op: list[str] = field(default_factory=list)
    """For each of ``described``, the name of its op."""
    which: list[int] = field(default_factory=list)
    """For each call, the one of ``described`` that it equals."""
    place: list[int] = field(default_factory=list)
    """For each call, its position among all."""


def _priced(
    ops: Sequence[Op],
    known: Sequence[Indices],
    tf32: Tf32,
    device: Device,
    fitted: Models,
    warm: Floats,
    seen_to_take: Sequence[Timed | None],
) -> KernelCosts:
    """The kernels of each call: as they were timed, as a model says, or by the roofline."""
    ids = spread_of_ids(ops, known)
    parts: list[KernelCosts] = []
    groups: defaultdict[Way, _Calls] = defaultdict(_Calls)
    seen: dict[Hashable, tuple[_Calls, int]] = {}
    for place, (op, timed) in enumerate(zip(ops, seen_to_take)):
        if timed is not None:
            parts.append(_as_timed(place, timed, float(warm[place])))
            continue
        indices = ids.get(place)
        for part in parts_of(op, device.kind):
            key = signature(part), (indices.unique, indices.count, indices.reuse) if indices else None
            found = seen.get(key)
            if found is None:
                way, described = _described(part, indices, tf32, device, fitted)
                found = seen[key] = groups[way], len(groups[way].described)
                groups[way].described.append(described)
                groups[way].op.append(part.name)
            group, which = found
            group.which.append(which)
            group.place.append(place)
    for way, calls in groups.items():
        if way.model == NO_MODEL:
            parts.append(_by_roofline(calls, device, fitted.fallback))
        else:
            parts.append(_by_model(fitted.families[way.model], way, calls, device, warm, fitted.fallback))
    return _in_order(parts)


def _described(op: Op, indices: Indices | None, tf32: Tf32, device: Device, fitted: Models) -> tuple[Way, Described]:
    """How a call is priced, and the call in numbers."""
    family = family_of(op)
    if family is None:
        return Way(), Described((), work_of(op))
    described = family.describe(op, facts_of(family, device, indices, tf32))
    if family.name in fitted.families:
        return Way(family.name, family.guesses(op), family.one_kernel), described
    other = family.stand_in(op)
    theirs = family_of(other) if other is not None else None
    if other is None or theirs is None or theirs.name not in fitted.families:
        return Way(), described
    return Way(theirs.name, guess=True, whole=True), theirs.describe(other, facts_of(theirs, device, None, tf32))


def _as_timed(place: int, call: Timed, warm: float) -> KernelCosts:
    us = call.cold_us + warm * (call.warm_us - call.cold_us)
    count = len(call.kernels)
    low, high = us / (1 + call.spread), us * (1 + call.spread)
    return KernelCosts(np.full(count, place), call.kernels, low, us, high, np.full(count, MEASURED))


def _by_roofline(calls: _Calls, device: Device, fallback: Fallback) -> KernelCosts:
    """One kernel a call, named as its op is."""
    us = np.array([fallback.us(described.work, device) for described in calls.described])[calls.which]
    names = [calls.op[which] for which in calls.which]
    source = np.full(len(us), FALLBACK)
    return KernelCosts(np.array(calls.place), names, us * fallback.low, us, us * fallback.high, source)


def _by_model(model: Model, way: Way, calls: _Calls, device: Device, warm: Floats, fallback: Fallback) -> KernelCosts:
    """As a family's model says. Beyond what was measured its answer is a guess, as wide as a roofline."""
    features = np.array([d.features for d in calls.described], np.float64)
    rows = Rows(features, *ceilings(calls.described, device), np.zeros((0, 2)), [])
    cold, hot = model.estimator.predict_both(rows)[calls.which].T
    us = cold + warm[calls.place] * (hot - cold)
    known = model.knows(rows)[calls.which] & (not way.guess)
    low, high = np.where(known, model.spread.around(us), (fallback.low * us, fallback.high * us))
    if way.whole:
        sequences, shares = [(calls.op[which],) for which in calls.which], [(1.0,)] * len(us)
    else:
        pattern = model.patterns.predict(features)[calls.which].tolist()
        sequences, shares = ([table[p] for p in pattern] for table in (model.patterns.kernels_, model.patterns.shares_))
    call = np.repeat(np.arange(len(us)), [len(sequence) for sequence in sequences])
    share = np.array([part for parts in shares for part in parts])
    return KernelCosts(
        op=np.array(calls.place)[call],
        name=[name for sequence in sequences for name in sequence],
        low=low[call] * share,
        typical=us[call] * share,
        high=high[call] * share,
        source=np.where(known, MODEL, FALLBACK)[call],
    )


def _carried(costs: KernelCosts, factor: Floats, start_us: float, carry: Carry) -> KernelCosts:
    """The same kernels on the device that they are carried over to, the range as much wider."""
    from foretrace.cost_models.kernels.cross_device import carried, doubt

    low, typical, high = (carried(us, factor, start_us, carry) for us in (costs.low, costs.typical, costs.high))
    wider = np.exp(TENTH * doubt(factor, carry))
    return replace(costs, low=low / wider, typical=typical, high=high * wider)


def _in_order(parts: Sequence[KernelCosts]) -> KernelCosts:
    """Kernels in the order of their calls; those of one call stay as they are."""
    if not parts:
        none = np.zeros(0)
        return KernelCosts(none.astype(np.int32), [], none, none, none, none.astype(np.int8))
    call, low, typical, high, source = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("op", "low", "typical", "high", "source")
    )
    order = np.argsort(call, kind="stable")
    names = [name for part in parts for name in part.name]
    return KernelCosts(
        op=call[order].astype(np.int32),
        name=[names[row] for row in order.tolist()],
        low=low[order],
        typical=typical[order],
        high=high[order],
        source=source[order].astype(np.int8),
    )
