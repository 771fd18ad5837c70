"""How far a forecast is off, in the terminal: the step first, then the ops it is off in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from foretrace.report.changes import both_sides
from foretrace.report.forecast import KNOWN
from foretrace.report.numbers import bytes_, ms, percent
from foretrace.report.tables import lines, notes, table

Words = dict[str, Any]


def check_blocks(words: Words, top: int) -> Iterator[RenderableType]:
    """Predicted and measured side by side, at most ``top`` rows a table."""
    yield lines(f"{words['source']} on {words['platform']}: predicted, measured", _headline(words))
    if words["by_op"]:
        yield _misses(words, top)
    if words["notes"]:
        yield notes(words["notes"])


def _headline(words: Words) -> Iterator[tuple[str, str, str]]:
    low, high = words["range_ms"]
    inside = "holds" if words["inside"] else "does NOT hold"
    yield "step", _ms(words["step_ms"]), f"{off(words['step_ms'])}; the range {ms(low)} – {ms(high)} {inside} it"
    if words["step_ms_back_to_back"]:
        pair = words["step_ms_back_to_back"]
        yield "next", _ms(pair), f"{off(pair)}; from step to step, where the host may run ahead"
    if words["device_active_ms"]:
        pair, kernels = words["device_active_ms"], words["kernels"]
        yield "device", _ms(pair), f"{off(pair)}; active, in {kernels[0]:.0f} and {kernels[1]:.0f} kernels"
    if words["peak_memory_bytes"]:
        pair = words["peak_memory_bytes"]
        yield "memory", f"{bytes_(pair[0])}, {bytes_(pair[1])}", off(pair)
    shares = ", ".join(f"{percent(share)} {KNOWN[how]}" for how, share in words["coverage"].items() if share > 0)
    yield "known", "", shares or "the step gives the device nothing to do"


def off(pair: tuple[float, float]) -> str:
    """By how much the first of two is off from the second.

    >>> off((11.0, 10.0)), off((9.95, 10.0)), off((9.9999, 10.0)), off((1.0, 0.0))
    ('+10.0 %', '-0.5 %', '+0.0 %', '–')
    """
    predicted, measured = pair
    # Adding nothing takes the sign off what was less than nothing by too little to show.
    return f"{round((predicted / measured - 1) * 100, 1) + 0.0:+.1f} %" if measured else "–"


def _ms(pair: tuple[float, float]) -> str:
    return f"{ms(pair[0])}, {ms(pair[1])} ms"


def _misses(words: Words, top: int) -> RenderableType:
    columns = ["<op…", "off ms", "device ms", "was", "host ms", "was", "calls", "was"]
    rows = [both_sides(row, row["miss_ms"]) for row in words["by_op"]]
    return table("Largest misses first", columns, rows, top)
