"""Modelled device work: what kernel models say the calls of a step launch; recorded kernels where no model knows them.

A trace does not hold the tensors of all that launches kernels: an autograd function's own, a library's, some compiled
ones. What was recorded then says more than a roofline: it is scaled to the platform by the rates of both devices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.breakdown import kernel_family
from foretrace.analysis.collectives import ONE_SIDED, members
from foretrace.analysis.dispatched import DispatchedCalls
from foretrace.cost_models.kernels.family import PYTORCH_NAMESPACES
from foretrace.cost_models.kernels.model import device_models
from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.cost_models.kernels.roofline import ASSUMED, EXTRAPOLATED, FALLBACK, MEASURED, MODEL
from foretrace.graph import Collective, ForetraceError, Graph
from foretrace.graph.graph import LEFT_OUT_TIME
from foretrace.graph.tables import COLLECTIVE, COMPUTE, COPY, SET, SIGMAS_TO_P90, Ints, distinct
from foretrace.platform.device import Device
from foretrace.platform.platform import Platform
from foretrace.prediction.device_work import DeviceWork, assumed_sizes, launched, measured_work, merge_work

if TYPE_CHECKING:
    from foretrace.cost_models.collectives.pricing import Range

MAX_NAMED_OPS, MAX_NAMED_KERNELS = 5, 3
"""How many ops or kernels a note names."""
MAX_NAME = 60
"""Letters of a kernel's name in a note: those of generated kernels list all their settings."""
NOTED_SHARE = 0.01
"""Share of the device time above which a note says that recorded kernels stand in."""
NOTED_LEFT_OUT, LEFT_OUT_IS_MOST = 0.15, 0.5
"""Shares of the recorded kernel time above which a note says that kernels are left out, and the headline does."""
COMPUTE_BOUND = ("matrix product", "convolution", "attention")
"""Families limited by arithmetic; any other is limited by memory."""


def modelled_work(step: DispatchedCalls, platform: Platform, recorded: bool) -> tuple[DeviceWork, list[str]]:
    """What the platform's models say the step's calls launch, and what the reader should know of it.

    With ``recorded``, kernels that no model knows take their recorded time, scaled to the platform.
    """
    calls, work = step.calls, _by_models(step, platform)
    if recorded:
        work = work.rows(~np.isin(work.call, guessed_calls(step, work)))
    kept, said_of_kept = _unpriced_communication(calls, platform)
    work = work.rows(~((work.source == FALLBACK) & np.isin(work.call, kept.call)))
    unknown, modelled = unmodelled(step, work), work
    scaling_notes = list[str]()
    if not recorded:
        scaling_notes += left_out_notes(calls, unknown)
    elif unknown.any():
        added, said = scaled_recorded_kernels(calls, unknown, platform)
        work = merge_work(work, added)
        scaling_notes += [said] if added.typical.sum() > NOTED_SHARE * work.typical.sum() else []
    whole, said_of_fabric = _with_collectives(merge_work(work, kept) if len(kept) else work, calls, platform)
    known = [*_cross_device_notes(calls, platform), *_not_modelled(modelled, work.typical.sum(), calls, platform)]
    return _with_assumed_sizes(whole, calls, platform), [*known, *scaling_notes, *said_of_kept, *said_of_fabric]


def _with_assumed_sizes(work: DeviceWork, calls: Graph, platform: Platform) -> DeviceWork:
    """The work, whose range holds that of kernels with other sizes where a sketch assumed these.

    What it takes to start a kernel stays; the rest is as long as its work is large.
    """
    if (sizes := assumed_sizes(calls)) is None:
        return work
    less, more, *_ = sizes[:, work.call]
    assumed = (less < 1) | (more > 1)
    start = np.minimum(work.typical, device_models(platform.models).fallback.start_us)
    grown = [(start + (work.typical - start) * factor) / np.maximum(work.typical, 1e-9) for factor in (less, more)]
    source = np.where(assumed & (work.source != FALLBACK), ASSUMED, work.source).astype(np.int8)
    return replace(work, low=work.low * grown[0], high=work.high * grown[1], source=source)


def _by_models(step: DispatchedCalls, platform: Platform) -> DeviceWork:
    """The work of calls by the kernel models, collectives excepted."""
    calls = step.calls
    priced = price_kernels(calls, np.arange(len(calls.ops), dtype=np.int32), platform)
    exchanges = {one.op for one in calls.collectives if one.is_sized}
    computes = [op for row, op in enumerate(calls.ops) if row not in exchanges]
    if computes and not len(priced.op) and not any(op.tensors or op.produced for op in computes):
        raise ForetraceError(
            f"{calls.source or 'the graph'} has no shapes of tensors, which kernel models need",
            "Profile with record_shapes=True, give the execution trace too, or say --kernels measured.",
        )
    streams = _streams(step)
    count = len(priced.op)
    return DeviceWork(
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


def _cross_device_notes(calls: Graph, platform: Platform) -> list[str]:
    """Notes on times that are scaled from another device."""
    if not platform.cross_device:
        return []
    from foretrace.cost_models.kernels.cross_device import scaling_notes

    return scaling_notes(calls, platform)


def _streams(step: DispatchedCalls) -> Ints:
    """The stream of each call: that of its kernels where they were seen, else the one it was called on."""
    kernels = step.calls.kernels
    known = kernels.op >= 0
    if not known.any():
        return step.stream
    # Streams have other numbers in a profile: calls without kernels are on the one that most are on.
    streams = np.full(len(step.stream), np.bincount(kernels.stream[known]).argmax(), np.int32)
    streams[kernels.op[known]] = kernels.stream[known]
    return streams


def _not_modelled(work: DeviceWork, total: float, calls: Graph, platform: Platform) -> list[str]:
    """Which ops no model of the platform knows, or knows in other sizes only, those that take longest first.

    ``total`` is the device time that they are a share of.
    """
    share: dict[int, dict[str, float]] = {FALLBACK: {}, EXTRAPOLATED: {}}
    for row in np.flatnonzero(np.isin(work.source, list(share))).tolist():
        name, found = calls.ops.names[calls.ops.name[work.call[row]]], share[int(work.source[row])]
        found[name] = found.get(name, 0.0) + float(work.typical[row]) / total
    custom = {name: part for name, part in share[FALLBACK].items() if not name.startswith(PYTORCH_NAMESPACES)}
    calls_of_pytorch = {name: part for name, part in share[FALLBACK].items() if name not in custom}
    ways = ((calls_of_pytorch, "rooflines are used"), (custom, "guesses from their tensors are used"))
    notes = [f"{platform.name} has no model that knows {_named(some)}: {way}" for some, way in ways if some]
    unlike = {name: part for name, part in share[EXTRAPOLATED].items() if part >= NOTED_SHARE}
    if unlike:
        why = f"{platform.name} was measured on no calls like these, or its models are often far off for them"
        notes.append(f"some calls are extrapolated: {_named(unlike)}; {why}")
    return notes


def _named(share: dict[str, float]) -> str:
    """Ops with their shares of the device time, and the sum of these."""
    largest = sorted(share, key=lambda name: -share[name])
    named = ", ".join(f"{name} ({100 * share[name]:.1f} %)" for name in largest[:MAX_NAMED_OPS])
    more = f" and {len(largest) - MAX_NAMED_OPS} more" if len(largest) > MAX_NAMED_OPS else ""
    return f"{named}{more}, {100 * sum(share.values()):.1f} % of the device time"


def _kind(name: str) -> int:
    return COPY if name.startswith("Memcpy") else SET if name.startswith("Memset") else COMPUTE


def _unpriced_communication(calls: Graph, platform: Platform) -> tuple[DeviceWork, list[str]]:
    """Recorded kernels of collectives that no fabric can price, as long as they were measured, and a note on them.

    Without the ranks of a group it is not known who takes part; a group of one rank exchanges nothing.
    """
    unpriced = []
    for one in calls.collectives:
        known = bool(one.ranks or calls.groups.get(one.group))
        if platform.fabric is None if len(members(calls, one)) > 1 else not known:
            unpriced.append(one.kernel)
    work = measured_work(calls, np.isin(np.arange(len(calls.kernels)), unpriced))
    work = replace(work, collective=np.full(len(work), -1, np.int32))
    if not len(work):
        return work, []
    why = "the trace does not tell which other ranks take part" if calls.world < 2 else "no fabric is given"
    many = "1 communication kernel takes" if len(work) == 1 else f"{len(work):,} communication kernels take"
    return work, [f"{many} as long as measured, waiting included: {work.typical.sum() / 1e3:.2f} ms; {why}"]


def _with_collectives(work: DeviceWork, calls: Graph, platform: Platform) -> tuple[DeviceWork, list[str]]:
    """The work with one kernel for each collective, on the stream of its group, priced by the fabric."""
    numbered = [(number, c) for number, c in enumerate(calls.collectives) if c.op >= 0 and len(members(calls, c)) > 1]
    if not numbered:
        return work, []
    fabric = platform.fabric
    if fabric is None:
        seen = launched(calls)
        unseen = [c.kind for _, c in numbered if c.kernel < 0 or not seen[c.kernel]]
        kinds = ", ".join(sorted(set(unseen)))
        note = f"{platform.name} has no fabric: {len(unseen)} collectives ({kinds}) take no time here"
        return work, [note] if unseen else []
    from foretrace.cost_models.collectives.pricing import Range, assumptions, price_collective

    lanes: dict[object, int] = {}
    first_lane = int(work.stream.max(initial=0)) + 1
    known: dict[object, Range] = {}
    for _, c in numbered:
        if (c.kind, c.nbytes, _lane(c), c.us) not in known:
            measured = Range(c.us, c.us, c.us) if c.takes_as_measured else None
            price_of = measured or price_collective(fabric, c.kind, c.nbytes, members(calls, c))
            known[c.kind, c.nbytes, _lane(c), c.us] = price_of
    price = [known[c.kind, c.nbytes, _lane(c), c.us] for _, c in numbered]
    added = DeviceWork(
        call=np.array([c.op for _, c in numbered], np.int32),
        launch=_launches_of(calls, [c for _, c in numbered]) + len(work),
        stream=np.array([first_lane + lanes.setdefault(_lane(c), len(lanes)) for _, c in numbered], np.int32),
        kind=np.full(len(numbered), COLLECTIVE, np.int8),
        name=[c.kind for _, c in numbered],
        low=np.array([p.low for p in price]),
        typical=np.array([p.typical for p in price]),
        high=np.array([p.high for p in price]),
        source=np.array([MEASURED if c.takes_as_measured else MODEL for _, c in numbered], np.int8),
        collective=np.array([number for number, _ in numbered], np.int32),
    )
    return merge_work(work, added), assumptions(fabric, calls.world)


def _launches_of(calls: Graph, collectives: Sequence[Collective]) -> Ints:
    """A launch for each collective, which those of a CUDA graph share."""
    launching = np.append(calls.kernels.call, -1)[[c.kernel for c in collectives]]
    alone = -1 - np.arange(len(collectives))
    return np.unique(np.where(launching >= 0, launching, alone), return_inverse=True)[1].astype(np.int32)


def _lane(collective: Collective) -> object:
    """Collectives of a group follow each other; a send does not hold up what is received at the same time."""
    if collective.kind in ONE_SIDED:
        return collective.group, collective.kind, collective.peer, collective.ranks
    return collective.group, len(collective.ranks)


def guessed_calls(step: DispatchedCalls, work: DeviceWork) -> NDArray[np.int32]:
    """Calls that no model knows, priced by those of their tensors that a trace tells, and whose kernels were recorded.

    A trace does not tell the indices of ``aten::index``: what it reads may be all of a table, or a line.
    """
    guessed = np.array(distinct(work.call[work.source == FALLBACK]), np.int32)
    return guessed[np.isin(guessed, step.calls.kernels.op[launched(step.calls)])]


def unmodelled(step: DispatchedCalls, work: DeviceWork) -> NDArray[np.bool_]:
    """For each recorded kernel, whether no model stands for it: its call has no price."""
    kernels = step.calls.kernels
    own = launched(step.calls) & (kernels.kind != COLLECTIVE)
    own[[c.kernel for c in step.calls.collectives if c.kernel >= 0]] = False
    return np.asarray(own & ~np.isin(kernels.op, work.call), np.bool_)


def scaled_recorded_kernels(calls: Graph, which: NDArray[np.bool_], platform: Platform) -> tuple[DeviceWork, str]:
    """Recorded kernels on a platform, and what the reader should know of them.

    What it takes to start one stays. The rest changes as the rate of memory does, or that of arithmetic where the
    kernel's name tells of a product; where it is not known which device they ran on, it stays too.
    """
    work, here = measured_work(calls, which), platform.device
    there, fallback = Device.closest(calls.device), device_models(platform.models).fallback
    slower = np.array([_slower(name, there, here) if there else 1.0 for name in work.name])
    start = np.minimum(work.typical, fallback.start_us)
    us = start + (work.typical - start) * slower
    low, high = us * fallback.low, us * fallback.high
    if there:
        from foretrace.cost_models.kernels.cross_device import scaling_spread  # most steps have nothing to carry over
        from foretrace.platform.hypothetical import CrossDeviceScaling

        off = np.exp(SIGMAS_TO_P90 * scaling_spread(slower, CrossDeviceScaling.between(there, here)))
        low, high = us / off, us * off
    carried = replace(work, low=low, typical=us, high=high, source=np.full(len(work), FALLBACK, np.int8))
    at = f", at the rates of {platform.name}" if there else ""
    recorded = f"{us.sum() / 1e3:.2f} ms are kernels as they were recorded on {calls.device or 'another device'}{at}"
    return carried, f"{recorded}: no model knows what launched them ({_longest(calls, which)})"


def left_out_notes(calls: Graph, which: NDArray[np.bool_]) -> list[str]:
    """A note on kernels without a price, where they are a large share."""
    us = calls.kernels.end - calls.kernels.start
    compute = launched(calls) & (calls.kernels.kind == COMPUTE)
    share = us[which & compute].sum() / max(us[compute].sum(), 1e-9)
    if share < NOTED_LEFT_OUT:
        return []
    most = LEFT_OUT_TIME if share > LEFT_OUT_IS_MOST else ""
    return [
        f"{most}some {100 * round(share, 1):.0f} % of what kernels took where they were recorded is left out: no model "
        f"knows what launched them ({_longest(calls, which)})"
    ]


def _slower(kernel: str, there: Device, here: Device) -> float:
    """How many times as long the work of a kernel takes on one device as on another."""
    if kernel_family(kernel) not in COMPUTE_BOUND:
        return there.memory_gbps / here.memory_gbps
    rate = "float32" if "sgemm" in kernel else "float16"
    return there.peak(rate) / here.peak(rate)


def _longest(calls: Graph, which: NDArray[np.bool_]) -> str:
    """The names that took longest."""
    kernels = calls.kernels
    by_code = np.bincount(kernels.name[which], (kernels.end - kernels.start)[which])
    codes = [code for code in np.argsort(-by_code).tolist() if by_code[code]]
    named = dict.fromkeys(_bare(kernels.names[code]) for code in codes)
    more = ", …" if len(named) > MAX_NAMED_KERNELS else ""
    return ", ".join(sorted(list(named)[:MAX_NAMED_KERNELS])) + more


def _bare(kernel: str) -> str:
    """A kernel's name without what it returns, takes and is made for, as long as can be read."""
    name = (re.split("[<(]", kernel.replace("(anonymous namespace)::", ""))[0].split() or [kernel])[-1]
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
