"""Pricing a step's calls on a device: the kernels that each call launches, and how long they take.

A time comes from the first of these that has one: the call as it was measured on this device, the model of its family,
the prior of the calibration, a roofline.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.kernels.decomposition import parts_of
from foretrace.cost_models.kernels.estimators.dataset import Dataset, roofline_terms
from foretrace.cost_models.kernels.exact import TimedCall
from foretrace.cost_models.kernels.families import Description, context_of, family_of
from foretrace.cost_models.kernels.families.lookups import index_statistics, is_batched_lookup
from foretrace.cost_models.kernels.family import Family
from foretrace.cost_models.kernels.model import DeviceModels, Launched, device_models
from foretrace.cost_models.kernels.roofline import EXTRAPOLATED, FALLBACK, MEASURED, MODEL, RooflineFallback, work_of
from foretrace.errors import ForetraceError
from foretrace.graph import Graph, Indices, Op, Tf32
from foretrace.graph.op import signature
from foretrace.graph.operators import launches_nothing
from foretrace.graph.tables import Floats
from foretrace.platform.device import Device
from foretrace.platform.platform import Platform

TF32 = "tf32"
"""In `Device.peak_tflops`: a GPU without it multiplies float32 as float32, whatever the settings allow."""
UNKNOWN_SHARE = 0.5
"""Share of a tensor that is taken to be in the cache if its last use is unknown."""
USABLE_SHARE = 0.5
"""Share of the cache that holds different data: each half of a GPU's L2 keeps its own copy of what both need."""
PINNED = "Pinned"
"""In names of copies, as the profiler writes them: ``Memcpy HtoD (Pinned -> Device)``."""
STREAMING = re.compile(r"mm$|convolution|attention|_rnn")
"""GEMMs, convolutions and attention by their names, custom ops and generated kernels too: a sum of the gradient that
one has just read takes as long as with a cold cache."""
RETAINED_GAIN = 0.8
"""Share of the gain of an immediate repeat that a call has if its inputs are in the cache: other kernels ran in
between, whose code and constants replaced its own in the smaller caches. With these two, the calls of twelve recorded
steps, each timed alone, add up to the steps' device time within 0.8 % on average, 1.5 % at most."""
RESIDENCY_ERROR = 0.4
"""How far off the share of a call's inputs that is in the cache may be, as an 80 % range: with it, 78 % of the device
time of 26 recorded steps is in calls that lie in their ranges."""


class KernelCosts(NamedTuple):
    """Kernels in launch order."""

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
    if platform.device.attention != "cudnn":
        from foretrace.cost_models.kernels.families.attention import on_device

        ops = [on_device(op, platform.device.attention) for op in ops]
    kind = platform.device.kind
    working = [place for place, op in enumerate(ops) if not launches_nothing(op, kind)]
    exchanges = {one.op for one in graph.collectives if one.is_sized}  # of a communication benchmark, all of it
    computes = [op for row, op in zip(rows.tolist(), ops) if row not in exchanges]
    if computes and not working and not any(tensor.device != "cpu" for op in ops for tensor in op.tensors):
        raise _nothing_to_price(graph.source or "the graph", ops)
    row_of = rows[working]
    place_of = {row: place for place, row in enumerate(row_of.tolist())}
    known = [replace(i, op=place_of[i.op]) for i in graph.indices if i.op in place_of]
    calls = [ops[place] for place in working]
    ids = index_statistics(calls, known)
    device, scaling, models = platform.device, platform.cross_device, device_models(platform.models)
    tf32 = graph.tf32 if not scaling or TF32 in device.peak_tflops else Tf32(gemms=False, convolutions=False)
    warm = l2_residency(calls, device.l2_mb * 1e6)
    pinned = _pinned_calls(graph, row_of, calls)
    timed = _timed_calls(graph, tf32, rows, ops, platform)
    timed = [timed[place] for place in working]
    costs = price_calls(Calls(calls, ids, tf32, warm, pinned), scaling.root if scaling else device, models, timed)
    if scaling:
        from foretrace.cost_models.kernels.cross_device import ScaledCalls

        costs = ScaledCalls(calls, ids, tf32, warm, graph.cuda_runtime).scale(
            costs, models.fallback.start_us, device, scaling
        )
    # A CPU does a call itself: there are no kernels whose names would tell more than the call's.
    names = [calls[place].name for place in costs.op.tolist()] if kind == "cpu" else costs.name
    return costs._replace(op=row_of[costs.op], name=names)


def _pinned_calls(graph: Graph, rows: NDArray[np.int32], calls: Sequence[Op]) -> set[int]:
    """Places of the calls that copy from or to page-locked memory: of known storages, or by the names of kernels."""
    pinned = {number for number, storage in graph.storages.items() if storage.pinned}
    named = graph.kernels.names.matching(lambda name: name.startswith("Memcpy") and PINNED in name)
    copied = set(graph.kernels.op[named[graph.kernels.name]].tolist()) if named.any() else set()
    if not pinned and not copied:
        return set()
    return {
        place
        for place, (row, op) in enumerate(zip(rows.tolist(), calls))
        if row in copied or any(tensor.storage in pinned for tensor in (*op.tensors, *op.produced))
    }


def l2_residency(ops: Sequence[Op], cache_bytes: float) -> Floats:
    """For each op, the share of the bytes it reads that were touched so recently that the cache holds them.

    A tensor stays until as many other bytes as the cache can use were touched after it. Operands of products are
    streamed through the cache, and do not stay for having been read.
    """
    usable, touched = USABLE_SHARE * cache_bytes, 0.0
    last: dict[int, float] = {}
    result = [0.0] * len(ops)
    for place, op in enumerate(ops):
        read = held = 0.0
        sizes: dict[int, int] = {}
        for tensor in op.tensors:
            if tensor.device == "cpu":
                continue
            size, storage = tensor.nbytes, tensor.storage
            read += size
            if storage < 0:
                held += size * UNKNOWN_SHARE
                continue
            left = usable - touched + last.get(storage, -math.inf)
            if left > 0:
                held += size if size < left else left
            if size > sizes.get(storage, -1):
                sizes[storage] = size
        result[place] = RETAINED_GAIN * (held / read if read else UNKNOWN_SHARE)
        for tensor in op.produced:
            size, storage = tensor.nbytes, tensor.storage
            if size > sizes.get(storage, -1):
                sizes[storage] = size
        sizes.pop(-1, None)
        touched += sum(sizes.values())
        kept = {tensor.storage for tensor in op.produced} & sizes.keys() if _streams(op.name) else sizes
        last.update(dict.fromkeys(kept, touched))
    return np.array(result)


@cache
def _streams(name: str) -> bool:
    """Whether an op is a product of matrices, a convolution or attention.

    >>> _streams("aten::addmm"), _streams("aten::sum")
    (True, False)
    """
    return STREAMING.search(name) is not None


def _timed_calls(
    graph: Graph, tf32: Tf32, rows: NDArray[np.int32], ops: Sequence[Op], platform: Platform
) -> list[TimedCall | None]:
    """The measured time of each call: in the step that was recorded on this very device, or in a calibration.

    All calls are looked at: one that launches nothing may tell which ids a later one is given.
    """
    place_of = {row: place for place, row in enumerate(rows.tolist())}
    known = [replace(found, op=place_of[found.op]) for found in graph.indices if found.op in place_of]
    timed = device_models(platform.models).exact.of(ops, known, tf32)
    if not graph.recorded_kernels or platform.cross_device or graph.device != platform.device.matches:
        return timed
    recorded = [graph.recorded_kernels.get(signature(op)) for op in ops]
    return [TimedCall.as_recorded(launched) if launched else other for launched, other in zip(recorded, timed)]


def _nothing_to_price(source: str, ops: Sequence[Op]) -> ForetraceError:
    if any(op.tensors for op in ops):
        return ForetraceError(
            f"nothing of {source} runs on a GPU: all its tensors lie on the host",
            "Build the model and its inputs on cuda, whether there is one here or not; or predict it --on cpu, after "
            "`foretrace calibrate cpu`.",
        )
    return ForetraceError(
        f"{source} has no shapes of tensors, so that no kernel time can be predicted",
        "Profile with record_shapes=True; or say --kernels measured, where it holds kernels.",
    )


class Calls(NamedTuple):
    """Calls to be priced, with what their times depend on apart from their arguments."""

    ops: Sequence[Op]
    ids: Mapping[int, Indices]
    """Statistics of their ids by position, where they have some."""
    tf32: Tf32
    warm: Floats
    """For each the share of its data that the cache holds."""
    pinned: Container[int] = ()
    """Positions of those whose host memory is pinned."""


class _Method(NamedTuple):
    """How a call is priced."""

    model: str = ""
    """The family whose model is used; none for a roofline."""
    guess: bool = False
    """Whether the result is a guess, however well the model covers the call."""
    one_kernel: bool = False
    """Whether the call is one kernel of its own name, not those that the model has seen."""
    prior: bool = False
    """Whether it is the prior's, since none of its family was measured here."""
    batched: bool = False
    """Whether it is a table-batched lookup, priced by published measurements of such ones."""


@dataclass(eq=False)
class _Group:
    """Calls that are priced by one method; equal ones are described once."""

    described: list[Description] = field(default_factory=list)
    op: list[Op] = field(default_factory=list)
    """For each of ``described``, the call."""
    ids: list[Indices | None] = field(default_factory=list)
    """For each of them, the statistics of its ids."""
    pinned: list[bool] = field(default_factory=list)
    """For each of them, whether its host memory is pinned."""
    which: list[int] = field(default_factory=list)
    """For each call, the one of ``described`` that it equals."""
    place: list[int] = field(default_factory=list)
    """For each call, its position among all."""

    def repeated(self, tf32: Tf32, warm: Floats) -> Calls:
        """Each call, with the share of its data that the cache holds, of all calls."""
        ids = {number: found for number, which in enumerate(self.which) if (found := self.ids[which])}
        pinned = {number for number, which in enumerate(self.which) if self.pinned[which]}
        return Calls([self.op[which] for which in self.which], ids, tf32, warm[self.place], pinned)

    def distinct(self, tf32: Tf32) -> Calls:
        """Those that were described, with nothing in the cache."""
        ids = {number: found for number, found in enumerate(self.ids) if found}
        pinned = set(np.flatnonzero(self.pinned).tolist())
        return Calls(self.op, ids, tf32, np.zeros(len(self.op)), pinned)


def price_calls(
    calls: Calls, device: Device, models: DeviceModels, timed_calls: Sequence[TimedCall | None] = ()
) -> KernelCosts:
    """The kernels of each call on the device that the models were fitted on: as timed, by a model, by the prior, or by
    the roofline."""
    parts: list[KernelCosts] = []
    groups: defaultdict[_Method, _Group] = defaultdict(_Group)
    seen: dict[Hashable, tuple[_Group, int]] = {}
    for place, op in enumerate(calls.ops):
        timed = timed_calls[place] if timed_calls else None
        if timed is not None:
            parts.append(_as_timed(place, timed, float(calls.warm[place])))
            continue
        indices, pinned = calls.ids.get(place), place in calls.pinned
        for part in parts_of(op, device.kind):
            key = signature(part), pinned, (indices.unique, indices.count, indices.reuse) if indices else None
            found = seen.get(key)
            if found is None:
                method, described = _described(part, indices, calls.tf32, device, models, pinned)
                found = seen[key] = groups[method], len(groups[method].described)
                groups[method].described.append(described)
                groups[method].op.append(part)
                groups[method].ids.append(indices)
                groups[method].pinned.append(pinned)
            group, which = found
            group.which.append(which)
            group.place.append(place)
    for method, group in groups.items():
        if method.prior and models.prior:
            costs = models.prior.price(group.repeated(calls.tf32, calls.warm), device)
            parts.append(costs._replace(op=np.array(group.place)[costs.op]))
        elif method.batched:
            parts.append(_by_published_times(group, models.fallback))
        elif not method.model:
            parts.append(_by_roofline(group, device, models.fallback))
        else:
            parts.append(_by_model(method, group, device, calls, models))
    return _in_order(parts)


def _described(
    op: Op, indices: Indices | None, tf32: Tf32, device: Device, models: DeviceModels, pinned: bool
) -> tuple[_Method, Description]:
    """How a call is priced, and its features and roofline."""
    if is_batched_lookup(op.name):
        from foretrace.cost_models.kernels.batched_lookups import batched_lookup_us  # few models have any

        if (us := batched_lookup_us(op, indices, device)) is not None:
            return _Method(batched=True), Description((us,), work_of(op))
    family = family_of(op)
    if family is None:
        return _Method(prior=models.prior is not None), Description((), work_of(op))
    described = family.describe(op, context_of(family, device, indices, tf32, pinned))
    if family.name in models.families:
        return _Method(family.name, family.is_guess(op), family.one_kernel), described
    if models.prior is not None:
        return _Method(prior=True), described
    proxy = family.proxy(op)
    other = family_of(proxy) if proxy is not None else None
    if proxy is None or other is None or other.name not in models.families:
        return _Method(), described
    return _Method(other.name, guess=True, one_kernel=True), other.describe(
        proxy, context_of(other, device, None, tf32)
    )


def _as_timed(place: int, call: TimedCall, warm: float) -> KernelCosts:
    us = call.cold_us + warm * (call.warm_us - call.cold_us)
    count = len(call.kernels)
    low, high = us / (1 + call.spread), us * (1 + call.spread)
    return KernelCosts(np.full(count, place), call.kernels, low, us, high, np.full(count, MEASURED))


def _by_roofline(calls: _Group, device: Device, fallback: RooflineFallback) -> KernelCosts:
    """One kernel per call, named like its op."""
    us = np.array([fallback.us(described.work, device) for described in calls.described])[calls.which]
    names = [calls.op[which].name for which in calls.which]
    source = np.full(len(us), FALLBACK)
    return KernelCosts(np.array(calls.place), names, us * fallback.low, us, us * fallback.high, source)


def _by_published_times(calls: _Group, fallback: RooflineFallback) -> KernelCosts:
    """One kernel per table-batched lookup: published measurements are of few sizes."""
    from foretrace.cost_models.kernels.batched_lookups import TbeModel

    us = np.array([described.features[0] for described in calls.described])[calls.which] + fallback.start_us
    spread, names = 1 + TbeModel.shipped().spread, [calls.op[which].name for which in calls.which]
    return KernelCosts(np.array(calls.place), names, us / spread, us, us * spread, np.full(len(us), EXTRAPOLATED))


def _by_model(method: _Method, group: _Group, device: Device, calls: Calls, models: DeviceModels) -> KernelCosts:
    """By a family's model. Outside of the measured range its answer is a guess, with a roofline's range at least; or
    with the prior's, where the model is a difference to it."""
    model, fallback = models.families[method.model], models.fallback
    features = np.array([d.features for d in group.described], np.float64)
    table = Dataset(features, *roofline_terms(group.described, device), np.zeros((0, 2)), [])
    prior = models.prior.times(group.distinct(calls.tf32), device) if models.prior and model.uses_prior else None
    if prior:
        table.prior = prior.columns
    found = model.price(table)
    if prior:
        found = prior.outside(found)
    found = found.rows(group.which)
    cold, hot = found.us.T
    us = cold + calls.warm[group.place] * (hot - cold)
    cache = RESIDENCY_ERROR * np.log(hot / cold)
    low, high = us * np.exp(-np.hypot(found.low, cache)), us * np.exp(np.hypot(found.high, cache))
    impossible: NDArray[np.bool_] = np.zeros(len(us), np.bool_)
    if type(model.family).least_work is not Family.least_work:
        works = (model.family.least_work(op) for op in group.op)
        least = np.array([work.us(device) if work else 0.0 for work in works])[group.which]
        impossible = us < least
        slower = np.maximum(1.0, least / us)
        low, us, high = low * slower, us * slower, high * slower
    guess, known = ~found.covered | method.guess | impossible, found.known & (not method.guess) & ~impossible
    low = np.where(guess, np.minimum(low, fallback.low * us), low)
    high = np.where(guess, np.maximum(high, fallback.high * us), high)
    if method.one_kernel:
        launched: list[Launched] = [((op.name,), (1.0,)) for op in group.op]
    elif model.sequences:
        launched = model.sequences.predict(features)
    else:
        launched = prior.launched if prior else [((op.name,), (1.0,)) for op in group.op]
    sequences, shares = zip(*(launched[which] for which in group.which))
    call = np.repeat(np.arange(len(us)), [len(sequence) for sequence in sequences])
    share = np.array([part for parts in shares for part in parts])
    return KernelCosts(
        op=np.array(group.place)[call],
        name=[name for sequence in sequences for name in sequence],
        low=low[call] * share,
        typical=us[call] * share,
        high=high[call] * share,
        source=np.where(known, MODEL, FALLBACK if method.guess else EXTRAPOLATED)[call],
    )


def _in_order(parts: Sequence[KernelCosts]) -> KernelCosts:
    """Kernels in the order of their calls; those of one call stay as they are."""
    call, low, typical, high, source = (
        np.concatenate([np.zeros(0), *(getattr(part, name) for part in parts)])
        for name in ("op", "low", "typical", "high", "source")
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
