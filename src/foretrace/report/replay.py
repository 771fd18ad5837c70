"""A replay beside its original, in the terminal: figures first, then kernels, then what was not as it should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rich.console import RenderableType

from foretrace.replay.harness.comparison import failures_alike
from foretrace.report.check import off
from foretrace.report.names import short
from foretrace.report.numbers import bytes_, ms, percent
from foretrace.report.tables import lines, notes, table

Words = dict[str, Any]

COVERED = {"calls": "of the calls", "host": "of their host time", "device": "of their device time"}
FIGURES: tuple[tuple[str, str, Callable[[Any], str], str, str], ...] = (
    ("step", "step_ms", ms, " ms", "a step until the device is done with it"),
    ("next", "step_ms_back_to_back", ms, " ms", "from step to step, where the host may run ahead"),
    ("device", "kernel_ms", ms, " ms", "in kernels"),
    ("launches", "launches", str, "", "pieces of device work"),
    ("memory", "peak_memory_bytes", bytes_, "", "peak"),
)
"""Name, word, how it is shown, unit and meaning of what a replay and its original both have."""

SYSTEM = {
    "power_w": ("power", "{:.0f} W", "of the GPU, on average"),
    "clock_mhz": ("clock", "{:.0f} MHz", "of its multiprocessors"),
    "sm_active": ("SM", "{:.1f} %", "of the kernels' time multiprocessors are active"),
    "tensor_core_active": ("tensor", "{:.1f} %", "of it tensor cores are"),
    "occupancy": ("warps", "{:.1f} %", "of the warps there could be"),
    "dram_gbps": ("DRAM", "{:.0f} GB/s", "read and written"),
    "l2_hit": ("L2", "{:.1f} %", "of what is asked for is there"),
    "error": ("counters", "none", "{}"),
}


def replay_blocks(words: Words, top: int) -> Iterator[RenderableType]:
    """Replay and original side by side, at most ``top`` rows a table."""
    paced = "" if words["paced"] else ", not paced"
    beside = any(words[row[1]] is not None and words["original"].get(row[1]) is not None for row in FIGURES)
    yield lines(f"replayed on {words['device']}{paced}{_beside(words) if beside else ''}", _headline(words))
    kernels = words["kernels"]
    if kernels:
        yield from _kernels(kernels, top)
    if words["failures"]:
        rows = [[call, f"{count:,}", error] for call, count, error in failures_alike(words["failures"])]
        yield table("Calls that failed: stand-ins took their place", ["<call…", "calls", "<error…"], rows, top)
    if words["stand_ins"]:
        rows = [[call, *_counted(words, call), why] for call, why in _each_once(words["stand_ins"])]
        columns = ["<op…", "called", "of", "<why…"]
        yield table("Calls that were not made: stand-ins took their place", columns, rows, top)
    if words["translated"]:
        rows = [[name, f"{count:,}"] for name, count in words["translated"].items()]
        yield table("Operators that this device does by others", ["<op", "count"], rows, top)
    if words["ranks"]:
        yield table("Ranks", ["rank", "step ms", "memory", "calls"], list(_ranks(words["ranks"])), top)
    if words["notes"]:
        yield notes(words["notes"])


def _beside(words: Words) -> str:
    """What stands in a row of figures; where the original ran, unless that was on the same kind of device."""
    where = words["original"].get("device", words["device"])
    return ": replay, original" if where == words["device"] else f": replay, original on {where}"


def _headline(words: Words) -> Iterator[tuple[str, str, str]]:
    was = words["original"]
    for name, word, show, unit, meaning in FIGURES:
        ours, theirs = words[word], was.get(word)
        if ours is None:
            continue
        if theirs is None:
            yield name, f"{show(ours)}{unit}", meaning
        else:
            yield name, f"{show(ours)}, {show(theirs)}{unit}", f"{off((ours, theirs))}; {meaning}"
    for word, figure in (words["system"] or {}).items():
        if word in SYSTEM:
            name, form, meaning = SYSTEM[word]
            yield name, form.format(figure), meaning.format(figure)
    shares = [(percent(share), COVERED[of]) for of, share in words["coverage"].items() if share is not None]
    if words["coverage"].get("host") is None:
        shares.append(("unknown", COVERED["host"]))
    figure, of = shares[0]
    yield "covered", figure, ", ".join([of, *(f"{share} {what}" for share, what in shares[1:])])


def _each_once(stand_ins: list[Words]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row["call"], row["why"]) for row in stand_ins))


def _counted(words: Words, op: str) -> tuple[str, str]:
    """How often an op was called, and how often the original called it."""
    called, there = words["ops"].get(op, (0, 0))
    return f"{called:,}", f"{there:,}"


def _ranks(ranks: list[Words]) -> Iterator[list[str]]:
    for number, rank in enumerate(ranks):
        share = percent(rank["coverage"]["calls"])
        yield [str(number), ms(rank["step_ms"]), bytes_(rank["peak_memory_bytes"]), share]


def _kernels(kernels: Words, top: int) -> Iterator[RenderableType]:
    rows = [
        [short(row["name"]), f"{row['count']:,}", f"{row['was_count']:,}", ms(row["ms"]), ms(row["was_ms"])]
        for row in kernels["matched"]
    ]
    title = f"Kernels: {percent(kernels['same'])} of the original's time in those of the same name"
    yield table(title, ["<kernel…", "count", "was", "ms", "was"], rows, top)
    for word, said in (("missing", "Missing kernels"), ("extra", "Kernels that the original did not have")):
        if kernels[word]:
            rows = [[short(row["name"]), f"{row['count']:,}", ms(row["ms"])] for row in kernels[word]]
            yield table(said, ["<kernel…", "count", "ms"], rows, top)
