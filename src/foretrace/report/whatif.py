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
    yield lines(title, _headline(words["before"], words["after"], words["speedup"]))
    yield from by_op_and_family(words["difference"], top)
    told = [*words["notes"], *(note for note in words["after"]["notes"] if note not in words["before"]["notes"])]
    if told:
        yield notes(told)


def _headline(before: Words, after: Words, speedup: float) -> Iterator[tuple[str, str, str]]:
    ranges = [f"({ms(side['low_ms'])} – {ms(side['high_ms'])})" for side in (before, after)]
    yield "step", change(before["step_ms"], after["step_ms"]), f"{speedup:.2f} times as fast; {' → '.join(ranges)}"
    rates = (before["step_ms_back_to_back"], after["step_ms_back_to_back"])
    if None not in rates:
        yield "next", change(*rates), "from step to step, where the host may run ahead"
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
