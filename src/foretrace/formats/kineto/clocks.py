"""Clocks of host and devices: those of devices are moved so that no kernel starts before its launch, and notes say
where clocks differ.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from foretrace.formats.kineto.tables import shared_ids
from foretrace.graph import CallTable, KernelTable, OpTable
from foretrace.graph.graph import LATE_CLOCK
from foretrace.graph.tables import SEVERAL, STREAM_BITS, SYNC, Floats, distinct

JITTER_US, MAX_APART_US = 10.0, 1000.0
"""How far clocks that agree put events apart; and how far those do that only differ: beyond, records are wrong."""
BARELY_LATE_US, HALF = 50.0, 0.5
"""How long after a wait work may end, by clocks that agree; and the share of waits that shows that they do not."""


def align_clocks(
    kernels: KernelTable, events: NDArray[np.intp], calls: CallTable, ops: OpTable
) -> tuple[KernelTable, NDArray[np.intp], list[str]]:
    """Device work with each device's clock moved by the least with which none of its kernels starts before its launch,
    the event of each row, and notes on clocks.

    A clock stays where it is if most waits for its device were then over before the work that they wait for.
    """
    known = (kernels.call >= 0) & ~np.append(shared_ids(calls), True)[kernels.call]
    early = np.where(known, np.append(calls.start, -np.inf)[kernels.call] - kernels.start, 0.0)
    late, device = _late_after_waits(kernels, calls, ops), kernels.stream >> STREAM_BITS
    shift, notes = np.zeros(len(kernels)), []
    for one in distinct(device[early > 0]).tolist():
        here = device == one
        us = float(early[here].max())
        if us <= MAX_APART_US and (late + us > BARELY_LATE_US).sum() <= HALF * len(late):
            shift[here] = us
        elif (early[here & known] > 0).mean() > SEVERAL:
            contrary, many = int((early[here] > 0).sum()), int((here & known).sum())
            notes.append(
                f"{contrary:,} of {many:,} kernels start before the calls that launched them, by up to {us:,.0f} us: "
                "the clocks of host and device differ by as much or more"
            )
    if shift.max(initial=0.0) > JITTER_US:
        notes.append(
            f"the clocks of host and device differ: kernels are moved by {shift.max():,.0f} us, the least with which "
            "none starts before the call that launched it"
        )
    contrary = int((late > BARELY_LATE_US).sum())
    if contrary > HALF * len(late):
        notes.append(
            f"{LATE_CLOCK}{contrary:,} of {len(late):,} waits for it are over before the work that they wait for, by "
            f"{float(np.median(late)):,.0f} us (median): times from launch to start are too long by about as much"
        )
    if not shift.any():
        return kernels, events, notes
    moved = replace(kernels, start=kernels.start + shift, end=kernels.end + shift)
    order = np.argsort(moved.start, kind="stable")
    return moved.rows(order), events[order], notes


def _late_after_waits(kernels: KernelTable, calls: CallTable, ops: OpTable) -> Floats:
    """For each wait for the one device of a trace, how much later the last kernel ends that was launched before.

    A wait for one stream is compared with what its own op gave the device before, as a copy to the host. One for an
    event tells nothing: later work may run on.
    """
    launched = np.flatnonzero(kernels.call >= 0)
    if len(distinct(kernels.stream >> STREAM_BITS)) > 1:
        return np.zeros(0)
    launched = launched[np.argsort(calls.start[kernels.call[launched]], kind="stable")]
    start, end = calls.start[kernels.call[launched]], kernels.end[launched]
    latest = np.maximum.accumulate(end)
    whole = calls.names.matching(lambda name: "DeviceSynchronize" in name)[calls.name]
    streams = calls.names.matching(lambda name: "StreamSynchronize" in name)[calls.name]
    of_torch = ops.names.matching(lambda name: name.startswith("aten::"))[ops.name]
    streams &= np.append(of_torch, False)[calls.op]
    found = []
    for row in np.flatnonzero((calls.kind == SYNC) & (whole | streams)).tolist():
        before = int(np.searchsorted(start, calls.start[row]))
        if whole[row] and before:
            found.append(latest[before - 1] - calls.end[row])
        elif before and kernels.op[launched[before - 1]] == calls.op[row]:
            found.append(end[before - 1] - calls.end[row])
    return np.array(found)
