"""A what-if in the terminal: before and after, then which ops make the difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from foretrace.report.changes import by_op_and_family
from foretrace.report.numbers import UNKNOWN, bytes_, change, ms
from foretrace.report.tables import lines, notes

Words = dict[str, Any]


def whatif_blocks(words: Words, top: int) -> Iterator[RenderableType]:
    """The headline and the tables behind it, at most ``top`` rows each."""
    title = f"{words['source'] or 'the step'} on {words['platform']}, with {', '.join(words['changes'])}"
    yield lines(title, whatif_rows(words))
    yield from by_op_and_family(words["difference"], top)
    told = [*words["notes"], *(note for note in words["after"]["notes"] if note not in words["before"]["notes"])]
    if told:
        yield notes(told)


def whatif_rows(words: Words) -> Iterator[tuple[str, str, str]]:
    """What a reader wants to know first: a name, both figures, what they mean."""
    before, after = words["before"], words["after"]
    ranges = [f"({ms(side['low_ms'])} – {ms(side['high_ms'])})" for side in (before, after)]
    steps = (before["step_ms"], after["step_ms"])
    yield "step", change(*steps), f"{_speed(*steps)}; {' → '.join(ranges)}"
    rates = (before["step_ms_back_to_back"], after["step_ms_back_to_back"])
    if None not in rates:
        yield "next", change(*rates), "from step to step, where the host may run ahead"
    had, has = before["samples"], after["samples"]
    if None not in (had, has) and had != has:
        each = change(*words["sample_us"], unit="us")
        yield "sample", each, f"for each of {had:,} → {has:,} in a step, from step to step"
    if before["world"] != after["world"]:
        yield "ranks", f"{before['world']:,} → {after['world']:,}", "that do a step together"
    yield "device", change(before["device_active_ms"], after["device_active_ms"]), "active"
    talk = [side["exposed_communication_ms"] or 0.0 for side in (before, after)]
    if any(talk):
        hidden = " → ".join(ms(side["hidden_communication_ms"]) for side in (before, after))
        yield "comm", change(*talk), f"exposed; {hidden} ms more behind other work"
    if before["peak_memory_bytes"] is not None and after["peak_memory_bytes"] is not None:
        held = f"{bytes_(before['peak_memory_bytes'])} → {bytes_(after['peak_memory_bytes'])}"
        fits = "fits in" if after["fits"] else "does NOT fit in"
        yield "memory", held, f"peak, {fits} the device's {bytes_(after['memory_bytes']) or UNKNOWN}"
    yield "kernels", f"{before['kernels']:,} → {after['kernels']:,}", "that the step launches"


def _speed(before: float, after: float) -> str:
    """How many times as fast a step is; of one that is far slower, how many times as long it takes.

    >>> _speed(3.0, 2.0), _speed(2.0, 3000.0)
    ('1.50 times as fast', '1,500 times as long')
    """
    if after > 10 * before:
        return f"{after / before:,.0f} times as long" if before else "longer"
    return f"{before / after if after else 1.0:.2f} times as fast"
