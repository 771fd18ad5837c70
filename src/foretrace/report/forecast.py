"""A forecast in the terminal: the answer with its range first, then what to look at, then the tables behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from foretrace.report.headline import HOST_BOUND
from foretrace.report.job import is_job, job_blocks, job_rows
from foretrace.report.names import short
from foretrace.report.numbers import bytes_, ms, percent, plural, rate
from foretrace.report.sections import OVERHEADS, critical_path, time_by
from foretrace.report.tables import bar, lines, notes, table

Words = dict[str, Any]

KNOWN = {"measured": "measured", "model": "modelled", "fallback": "by roofline"}
CAUSES = {
    **OVERHEADS,
    "sync": "the host waits for the device as well",
    "latency": "from launch to start, and from kernel to kernel",
}
FAMILIES_NAMED = 3


def forecast_blocks(words: Words, top: int) -> Iterator[RenderableType]:
    """The headline and every table that has something to say, at most ``top`` rows each."""
    yield lines(f"{words['source'] or 'the step'} on {where(words)}", headline_rows(words))
    if is_job(words):
        yield from job_blocks(words, top)
    if words["look_at"]:
        yield _look_at(words, top)
    if words["device_idle_ms"] and words["kernels"]:
        yield _causes(words)
    if words["critical_path"]:
        yield critical_path(words, top, with_rank=is_job(words))
    for key, what in (("by_family", "kernel family"), ("by_op", "op"), ("by_phase", "phase")):
        if len(words[key]) > 1:
            yield time_by(what, words[key], top, on_device=bool(words["kernels"]))
    if words["notes"]:
        yield notes(words["notes"])


def where(words: Words) -> str:
    """The machine, and of how many ranks the job on it is.

    >>> where({"platform": "h200", "world": 4}), where({"platform": "h200", "world": 1})
    ('h200, 4 ranks', 'h200')
    """
    ranks = f", {plural(words['world'], 'rank')}" if words["world"] > 1 else ""
    return f"{words['platform']}{ranks}"


def headline_rows(words: Words) -> Iterator[tuple[str, str, str]]:
    """What a reader wants to know first: a name, a figure, what it means."""
    step = words["step_ms"]
    yield "step", f"{ms(step)} ms", f"({ms(words['low_ms'])} – {ms(words['high_ms'])}) {_verdict(words)}"
    if words["step_ms_back_to_back"] is not None:
        yield "next", f"{ms(words['step_ms_back_to_back'])} ms", "from step to step, where the host may run ahead"
    if words["kernels"]:
        yield "device", f"{ms(words['device_active_ms'])} ms", f"active in {_kernels(words)}"
    if words["exposed_communication_ms"] or words["hidden_communication_ms"]:
        hidden = f"exposed; {ms(words['hidden_communication_ms'])} ms more behind other work"
        yield "comm", f"{ms(words['exposed_communication_ms'])} ms", hidden
    if is_job(words):
        yield from job_rows(words)
    if words["peak_memory_bytes"] is not None and words["fits"] is not None:
        fits = "fits in" if words["fits"] else "does NOT fit in"
        yield "memory", bytes_(words["peak_memory_bytes"]), f"peak, {fits} the device's {bytes_(words['memory_bytes'])}"
    if words["mfu"] is not None:
        rates = f"{percent(words['mfu'])} of peak (MFU)"
        moved = f"; kernels move {rate(words['gbps'], 'GB/s')}" if words["gbps"] else ""
        yield "rate", rate(words["tflops_per_second"], "TFLOP/s"), rates + moved
    yield "known", *_known(words)


def _verdict(words: Words) -> str:
    if not words["kernels"]:
        return "all of it on the host"
    if is_job(words):
        return "from the first thing that a rank does to the last"
    idle = words["device_idle_ms"] / words["step_ms"] if words["step_ms"] else 0.0
    return f"{'host' if idle > HOST_BOUND else 'device'}-bound: the device idles {percent(idle)} of it"


def _kernels(words: Words) -> str:
    largest = words["by_family"][:FAMILIES_NAMED]
    named = ", ".join(f"{row['name']} {percent(row['share'])}" for row in largest)
    return f"{plural(words['kernels'], 'kernel')}: {named}{', …' if len(words['by_family']) > FAMILIES_NAMED else ''}"


def _known(words: Words) -> tuple[str, str]:
    """How the device time is known, largest share first."""
    shares = sorted(words["coverage"].items(), key=lambda item: -item[1])
    told = [(percent(share), KNOWN[how]) for how, share in shares if share > 0]
    if not told:
        return "–", "the step gives the device nothing to do"
    (figure, how), *others = told
    return figure, ", ".join([f"{how} of the device time", *(f"{share} {word}" for share, word in others)])


def _look_at(words: Words, top: int) -> RenderableType:
    rows = [
        [percent(row["share"]), ms(row["ms"]), row["mostly"], short(row["name"]), row["phase"], *_counts(row)]
        for row in words["look_at"]
    ]
    columns = ["share", "ms", "<mostly", "<op…", "<phase", "calls", "launches"]
    return table("Look at these first: they hold the critical path longest", columns, rows, top)


def _counts(row: Words) -> tuple[str, str]:
    return f"{row['calls']:,}", f"{row['launches']:,}"


def _causes(words: Words) -> RenderableType:
    idle = words["device_idle_ms"]
    causes = sorted(words["idle_causes"].items(), key=lambda item: -item[1])
    rows = [
        [kind if kind in OVERHEADS else "", CAUSES[kind], ms(spent), percent(spent / idle), bar(spent / idle)]
        for kind, spent in causes
        if spent > 0
    ]
    return table(f"Why the device idles {ms(idle)} ms: what it waits for", ["<", "<", "ms", "share", "<"], rows)
