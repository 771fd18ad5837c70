"""A replay next to its original (`replay`), and a suite of replays, in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from foretrace.replay.harness.report import group_failures
from foretrace.report.formatting import UNKNOWN, bytes_, ms, off, percent, short_name
from foretrace.report.terminal import Blocks, Fact, fact_lines, note_lines, table

if TYPE_CHECKING:
    from foretrace.replay.running import Replay
    from foretrace.replay.suite import Suite

COVERED = {"calls": "of the calls", "host": "of their host time", "device": "of their device time"}
FIGURES: tuple[tuple[str, str, Callable[[Any], str], str, str], ...] = (
    ("step", "step_ms", ms, " ms", "a step with a sync at its end"),
    ("next", "step_ms_back_to_back", ms, " ms", "from step to step, without a sync in between"),
    ("device", "kernel_ms", ms, " ms", "in kernels"),
    ("launches", "launches", str, "", "pieces of device work"),
    ("memory", "peak_memory_bytes", bytes_, "", "peak"),
)
"""Figures of a replay and of its original: name, field, format, unit, meaning."""
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
"""System-level figures: name, format, meaning."""


def replay_blocks(replay: Replay, top: int | None) -> Blocks:
    """Replay and original side by side, then kernels, and what could not be replayed as it was."""
    yield fact_lines(_replay_title(replay), _replay_facts(replay))
    if replay.kernels:
        yield from _kernels(replay.kernels, top)
    if replay.failures:
        rows = [[call, f"{count:,}", error] for call, count, error in group_failures(replay.failures)]
        yield table("Calls that failed: stand-ins took their place", ["<call…", "calls", "<error…"], rows, top)
    if replay.stand_ins:
        each = dict.fromkeys((row["call"], row["why"]) for row in replay.stand_ins)
        rows = [[call, *(f"{count:,}" for count in replay.ops.get(call, (0, 0))), why] for call, why in each]
        columns = ["<op…", "called", "of", "<why…"]
        yield table("Calls that were not made: stand-ins took their place", columns, rows, top)
    if replay.translated:
        rows = [[name, f"{count:,}"] for name, count in replay.translated.items()]
        yield table("Operators that this device replaces by others", ["<op", "count"], rows, top)
    if replay.ranks:
        rows = [
            [str(rank), ms(one["step_ms"]), bytes_(one["peak_memory_bytes"]), percent(one["coverage"]["calls"])]
            for rank, one in enumerate(replay.ranks)
        ]
        yield table("Ranks", ["rank", "step ms", "memory", "calls"], rows, top)
    yield from note_lines(replay.notes)


def _replay_title(replay: Replay) -> str:
    """Where it was replayed; where the original ran, unless on the same kind of device."""
    title = f"replayed on {replay.device}{'' if replay.paced else ', not paced'}"
    if all(getattr(replay, name) is None or replay.original.get(name) is None for _, name, *_ in FIGURES):
        return title
    where = replay.original.get("device", replay.device)
    return f"{title}: replay, original{'' if where == replay.device else f' on {where}'}"


def _replay_facts(replay: Replay) -> Iterator[Fact]:
    for name, field, shown, unit, meaning in FIGURES:
        replayed, recorded = getattr(replay, field), replay.original.get(field)
        if replayed is None:
            continue
        if recorded is None:
            yield name, f"{shown(replayed)}{unit}", meaning
        else:
            yield name, f"{shown(replayed)}, {shown(recorded)}{unit}", f"{off((replayed, recorded))}; {meaning}"
    for field, figure in (replay.system or {}).items():
        if field in SYSTEM:
            name, form, meaning = SYSTEM[field]
            yield name, form.format(figure), meaning.format(figure)
    shares = [(percent(share), COVERED[of]) for of, share in replay.coverage.items() if share is not None]
    if replay.coverage.get("host") is None:
        shares.append(("unknown", COVERED["host"]))
    figure, of = shares[0]
    yield "covered", figure, ", ".join([of, *(f"{share} {what}" for share, what in shares[1:])])


def _kernels(kernels: dict[str, Any], top: int | None) -> Blocks:
    rows = [
        [short_name(row["name"]), f"{row['count']:,}", f"{row['was_count']:,}", ms(row["ms"]), ms(row["was_ms"])]
        for row in kernels["matched"]
    ]
    title = f"Kernels: {percent(kernels['same'])} of the original's time in those of the same name"
    yield table(title, ["<kernel…", "count", "was", "ms", "was"], rows, top)
    for which, title in (("missing", "Missing kernels"), ("extra", "Kernels that the original did not have")):
        if kernels[which]:
            rows = [[short_name(row["name"]), f"{row['count']:,}", ms(row["ms"])] for row in kernels[which]]
            yield table(title, ["<kernel…", "count", "ms"], rows, top)


def suite_blocks(suite: Suite, top: int | None) -> Blocks:
    """The weighted result of a suite, then a row for each replay."""
    yield fact_lines("suite", _suite_facts(suite))
    each, rows = list(zip(suite.members, suite.results)), []
    for member, result in each:
        if not isinstance(result, Exception):
            took, was = result.step_ms, result.original.get("step_ms")
            times = [ms(took) if took else UNKNOWN, ms(was) if was else UNKNOWN]
            relative = off((took, was)) if took and was else UNKNOWN
            memory, calls = bytes_(result.peak_memory_bytes), percent(result.coverage["calls"])
            rows.append([member.name, f"{member.weight:g}", *times, relative, memory, calls])
    if rows:
        yield table("Replays", ["<recording…", "weight", "step ms", "was", "off", "memory", "calls"], rows, top)
    failed = [[member.name, str(result)] for member, result in each if isinstance(result, Exception)]
    if failed:
        yield table("Not replayed", ["<recording", "<why…"], failed, top)


def _suite_facts(suite: Suite) -> Iterator[Fact]:
    step = suite.mean("step_ms")
    failed = sum(isinstance(result, Exception) for result in suite.results)
    if step is not None:
        yield "step", f"{ms(step)} ms", "weighted mean"
    elif failed:
        yield "step", "none", f"no total: {failed} of {len(suite.results)} could not be replayed"
    if suite.ratio is not None:
        yield "ratio", f"{suite.ratio:.3f}", "of the original's step times, weighted geometric mean"
    yield "covered", percent(suite.coverage), "of the calls, by weight"
