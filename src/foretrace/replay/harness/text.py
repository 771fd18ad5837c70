"""The result of a benchmark, for a reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .comparison import failures_alike
from .room import size

NAME_WIDTH = 60


def told(result: dict[str, Any], top: int) -> str:
    """Figures beside the original's, then what is not as it was, at most ``top`` rows a table."""
    return "\n".join([*_figures(result), *_kernels(result, top), *_problems(result, top)])


def _figures(result: dict[str, Any]) -> Iterator[str]:
    was = result["original"]
    rows = (
        ("step", "step_ms", _ms),
        ("next", "step_ms_back_to_back", _ms),
        ("kernels", "kernel_ms", _ms),
        ("launches", "launches", str),
        ("memory", "peak_memory_bytes", size),
    )
    known = [(name, show, result[word], was.get(word)) for name, word, show in rows if result[word] is not None]
    beside = any(theirs is not None for *_, theirs in known)
    where = was.get("device", result["device"])
    elsewhere = f"; the original ran on {where}" if beside and where != result["device"] else ""
    yield f"replayed on {result['device']}{'' if result['paced'] else ', not paced'}{elsewhere}"
    yield f"{'':10}{'replay':>12}{'original' if beside else '':>12}".rstrip()
    for name, show, ours, theirs in known:
        yield f"  {name:8}{show(ours):>12}{_shown(theirs, show) if beside else '':>12}  {_off(ours, theirs)}".rstrip()
    yield from _system(result["system"] or {})
    shares = ", ".join(f"{100 * share:.1f} % of {of}" for of, share in _known(result["coverage"]))
    yield f"  covered  {shares}{', of their host time unknown' if result['coverage']['host'] is None else ''}"


SYSTEM = {
    "power_w": ("power", "{:.0f} W"),
    "clock_mhz": ("clock", "{:.0f} MHz"),
    "sm_active": ("SM", "{:.1f} % active"),
    "tensor_core_active": ("tensor", "{:.1f} % of cores active"),
    "occupancy": ("warps", "{:.1f} % occupancy"),
    "dram_gbps": ("DRAM", "{:.0f} GB/s"),
    "l2_hit": ("L2", "{:.1f} % hits"),
    "error": ("counters", "none: {}"),
}
"""Figures of the GPU, and how they are said."""


def _system(figures: dict[str, Any]) -> Iterator[str]:
    for word, (name, form) in SYSTEM.items():
        if word in figures:
            yield f"  {name:8}{form.format(figures[word]):>12}"


def _known(coverage: dict[str, float | None]) -> Iterator[tuple[str, float]]:
    words = {"calls": "the calls", "host": "their host time", "device": "their device time"}
    for word, share in coverage.items():
        if share is not None:
            yield words[word], share


def _ms(value: float) -> str:
    return f"{value:.3f} ms" if value < 10 else f"{value:.2f} ms"


def _shown(value: Any, show: Any) -> str:
    return "–" if value is None else str(show(value))


def _off(ours: float, theirs: float | None) -> str:
    return f"{round((ours / theirs - 1) * 100, 1) + 0.0:+.1f} %" if theirs else ""  # 0.0 takes the sign off -0.0


def _kernels(result: dict[str, Any], top: int) -> Iterator[str]:
    compared = result["kernels"]
    if not compared:
        return
    yield f"  same     {100 * compared['same']:.1f} % of the original's kernel time, by name"
    yield ""
    yield f"{'kernel':{NAME_WIDTH}}{'count':>7}{'ms':>10}{'was':>10}"
    for row in compared["matched"][:top]:
        yield f"{row['name'][: NAME_WIDTH - 2]:{NAME_WIDTH}}{row['count']:>7}{row['ms']:>10.3f}{row['was_ms']:>10.3f}"
    for word in ("missing", "extra"):
        for row in compared[word][:top]:
            yield f"{word}: {row['name'][:NAME_WIDTH]}, {row['count']} times, {row['ms']:.3f} ms"


def _problems(result: dict[str, Any], top: int) -> Iterator[str]:
    alike = failures_alike(result["failures"])
    for call, count, error in alike[:top]:
        yield f"failed: {call}: {f'{count} calls: ' if count > 1 else ''}{error}"
    more = sum(count for _, count, _ in alike[top:])
    if more:
        yield f"… and {more} calls more that failed"
    for entry in result["stand_ins"][:top]:
        yield f"not called: {entry['call']} ({entry['why']}); a stand-in of its size and time is in its place"
    for name, count in result["translated"].items():
        yield f"translated: {name}, {count} times: this device does the same by another operator"
    for note in result["notes"]:
        yield f"- {note}"
