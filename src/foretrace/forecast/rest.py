"""A host that has waited for the device is slow for a while: what that adds to a step that ends with a wait."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foretrace.forecast.host import SYNC, T1
from foretrace.forecast.step import Step
from foretrace.forecast.timetable import KERNEL, Timetable
from foretrace.simulation.forward import simulate
from foretrace.simulation.program import Timeline


def after_a_wait(step: Step, table: Timetable) -> Timetable:
    """The timetable of a step that begins when the host has waited as long as it does in this one."""
    waited = longest_wait(table, simulate(table.program))
    longer = np.where(table.kind == T1, step.rested[table.call], 0.0) * np.log2(1 + waited / 1e3)
    return replace(table, program=replace(table.program, duration=table.program.duration + longer))


def longest_wait(table: Timetable, timeline: Timeline) -> float:
    """Microseconds that the host waits for the device: in a call, or at the end, when it has done its part."""
    hosts = np.flatnonzero(table.kind != KERNEL)
    ends = timeline.end[hosts]
    inside = np.diff(ends, prepend=0.0)[table.kind[hosts] == SYNC]
    return float(max(inside.max(initial=0.0), timeline.end.max() - ends.max()))
