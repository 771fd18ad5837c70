"""The answer in a few lines: how long, what holds it up, and how much of it is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from foretrace.report.job import holding_back, path_kinds, path_ranks
from foretrace.report.numbers import bytes_, ms, percent, plural, spread
from foretrace.report.tables import lines

Words = dict[str, Any]

HOST_BOUND = 0.3
"""Where the device idles for more than this share of its time, the host holds the step up."""


def headline(words: Words) -> RenderableType:
    """What the step is, how long it takes, and why."""
    return lines(f"{words['source']}: {which_step(words)}", observed_rows(words))


def which_step(words: Words) -> str:
    """Which of the source's steps is shown, and of how many ranks.

    >>> which_step({"step_ms": {0: 1.0}, "world": 2, "step": "ProfilerStep#3", "steps": 4})
    'ProfilerStep#3, one of 4 steps, 1 of 2 ranks'
    """
    seen, world = len(words["step_ms"]), words["world"]
    step = words["step"] or "the whole trace"
    if words["steps"] > 1:
        step += f", one of {words['steps']} steps"
    ranks = f"{seen} of {plural(world, 'rank')}" if seen < world else plural(world, "rank")
    return f"{step}, {ranks}"


def observed_rows(words: Words) -> Iterator[tuple[str, str, str]]:
    """What a reader wants to know first: a name, a figure, what it means."""
    on_device = bool(words["device_span_ms"])
    if any(words["step_ms"].values()):
        yield "step", spread(words["step_ms"].values()), _verdict(words)
    else:
        yield "step", "unknown", "the trace has no times: give the profiler trace of the same step beside it"
    if words["plain"].get("synced_ms"):
        yield "plain", spread([words["plain"]["synced_ms"]]), _plain(words)
    if on_device:
        yield "device", f"{ms(_mean(words['device_active_ms']))} ms", _device(words)
    if words["collectives"] and len(words["step_ms"]) > 1:
        yield "waits", spread(words["wait_ms"].values()), f"a rank, for others; {_communication(words)}"
    elif words["collectives"]:
        transfer = sum(words["transfer_ms"].values())
        yield "comm", f"{ms(transfer)} ms", "waiting included: the other ranks have no trace here"
    if words["critical_path_ms"]:
        yield "path", f"{ms(words['critical_path_ms'])} ms", _path(words)
    if peaks := [peak for peak in words["peak_memory_bytes"].values() if peak is not None]:
        measured = words["plain"].get("peak_memory_bytes")
        said = "peak" if len(peaks) == 1 else "peak of the fullest rank"
        yield "memory", bytes_(max(peaks)), f"{said}; the allocator says {bytes_(measured)}" if measured else said
    if on_device and words["attributed"] is not None:
        yield "known", percent(words["attributed"]), f"of the device time has an owner{_launched_before(words)}"


def _verdict(words: Words) -> str:
    """Who or what holds the step up."""
    if words["stragglers"]:
        return holding_back(words, "the others")
    if not words["device_span_ms"]:
        return "all of it on the host"
    idle = _mean(words["device_idle_ms"]) / words["device_span_ms"]
    return f"{'host' if idle > HOST_BOUND else 'device'}-bound: the device idles {percent(idle)} of its time"


def _device(words: Words) -> str:
    active, span, waited = _mean(words["device_active_ms"]), words["device_span_ms"], _mean(words["wait_ms"])
    said = f"active, {percent(active / span)} of the {ms(span)} ms from first to last kernel"
    return f"{said}; {ms(waited)} ms of it waiting for other ranks" if waited else said


def _plain(words: Words) -> str:
    said = "with nothing attached"
    if back_to_back := words["plain"]["back_to_back_ms"]:
        said += f", {ms(back_to_back)} ms where the host may run ahead"
    slowdown = words["slowdown"]
    return f"{said}; {f'{slowdown:.2f} times as long' if slowdown > 1.01 else 'no longer'} while watched"


def _communication(words: Words) -> str:
    count = sum(row["count"] for row in words["collectives"])
    return f"{plural(count, 'collective')}, {ms(sum(words['transfer_ms'].values()))} ms of transfer"


def _path(words: Words) -> str:
    """What the critical path goes through, by kind, and on which ranks."""
    said = path_kinds(words)
    if len(words["step_ms"]) == 1 or not words["critical_path_ranks"]:
        return said
    return f"{said}; {path_ranks(words, words['critical_path_ms'])}"


def _launched_before(words: Words) -> str:
    before = sum(words["launched_before_ms"].values())
    return f"; {ms(before)} ms were launched before the trace began" if before else ""


def _mean(by_rank: dict[Any, float]) -> float:
    return sum(by_rank.values()) / len(by_rank) if by_rank else 0.0
