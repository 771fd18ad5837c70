"""The ranks of a step in the terminal: what each does, who waits for whom, and their collectives; and all steps of a
trace (`show --steps`): how long each takes, and what differs in the slow ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from rich.console import RenderableType

from foretrace.analysis.report import CollectiveRow, RankReport, StepReport
from foretrace.report.formatting import bytes_, ms, plural, short_name, signed_ms
from foretrace.report.terminal import Blocks, fact_lines, note_lines, record_table, table

if TYPE_CHECKING:
    from foretrace.analysis.steps import StepList, StepRow
    from foretrace.fleet.stragglers import StragglerReport

T = TypeVar("T")
RANKS_SHOWN = 16
"""Of more ranks, those that wait least and most are shown: all of them fill a screen."""


def rank_table(report: StepReport) -> RenderableType:
    """What each rank does; the device's columns only where there is one."""
    columns: dict[str, Callable[[RankReport], str]] = {
        "rank": rank_label,
        "step ms": lambda rank: ms(rank.step_ms),
        "device span": lambda rank: ms(rank.device_span_ms if rank.on_device else None),
        "active": lambda rank: ms(rank.device_active_ms if rank.on_device else None),
        "idle": lambda rank: ms(rank.device_idle_ms if rank.on_device else None),
        "waits": lambda rank: ms(rank.wait_ms),
        "comm": lambda rank: ms(_if_recorded(rank, rank.communication.communication_ms)),
        "exposed": lambda rank: ms(_if_recorded(rank, rank.communication.exposed_ms)),
        "bubble": lambda rank: ms(rank.bubble_ms if rank.on_device else None),
        "host": lambda rank: ms(rank.host_ms),
        "peak": lambda rank: bytes_(rank.peak_memory_bytes),
    }
    ranks = report.ranks if report.predicted else sorted(report.ranks, key=lambda rank: rank.rank)
    title, shown = some_ranks(ranks, lambda rank: rank.wait_ms or 0.0)
    if report.predicted:
        left_out = ["idle", "comm", "peak"]
        left_out += [] if any(rank.device_span_ms for rank in shown) else ["device span", "active", "bubble"]
    else:
        left_out = ["device span", "bubble", "host"]
        left_out += [] if report.device_span_ms else ["active", "idle", "comm", "exposed"]
        left_out += [] if report.timed else ["step ms", "waits"]
    if report.predicted and report.span_ms and report.span_ms != report.step_ms:
        columns = {"span ms" if name == "step ms" else name: cell for name, cell in columns.items()}
    for name in left_out:
        del columns[name]
    return record_table(title, columns, shown)


def _if_recorded(rank: RankReport, communication_ms: float) -> float | None:
    """None where a rank without a recorded device shows no communication: its device may communicate."""
    return communication_ms if rank.on_device or communication_ms else None


def rank_label(rank: RankReport) -> str:
    """The number of a rank, and how many others it stands for.

    >>> rank_label(RankReport(0, stands_for=8))
    '0 and 7 more'
    """
    return f"{rank.rank} and {rank.stands_for - 1} more" if rank.stands_for > 1 else str(rank.rank)


def some_ranks(ranks: Sequence[T], wait: Callable[[T], float]) -> tuple[str, list[T]]:
    """The ranks that a table shows, and its title: all of them; of many, those that wait least and most.

    >>> some_ranks([0, 1, 2], wait=float)
    ('Ranks', [0, 1, 2])
    >>> some_ranks(range(100), wait=float)[1][7:9]
    [7, 92]
    """
    if len(ranks) <= RANKS_SHOWN:
        return "Ranks", list(ranks)
    places = sorted(range(len(ranks)), key=lambda place: wait(ranks[place]))
    shown = sorted(places[: RANKS_SHOWN // 2] + places[-RANKS_SHOWN // 2 :])
    title = f"The {RANKS_SHOWN} of {len(ranks)} ranks that wait least and most"
    return title, [ranks[place] for place in shown]


def straggler_tables(report: StepReport) -> Blocks:
    """The ranks that others wait for, with the reason; nothing where there is none. Waiting is not all lost time."""
    if report.stragglers:
        rows = [[str(row.rank), ms(row.held_ms), row.why] for row in report.stragglers]
        gain = report.straggler_gain_ms
        title = "Stragglers" if gain is None else f"Stragglers: without these waits the others end {ms(gain)} ms sooner"
        yield table(title, ["rank", "held ms", "<why…"], rows)


def collective_table(report: StepReport, top: int | None) -> RenderableType:
    """Collectives by kind and size: transfers, and waits where several ranks are there."""
    columns: dict[str, Callable[[CollectiveRow], str]] = {
        "<collective": lambda row: row.kind,
        "size": lambda row: bytes_(row.nbytes or (0 if row.kind == "barrier" else None)),
        "count": lambda row: str(row.count),
        "transfer ms": lambda row: ms(row.transfer_ms),
        "all of them": lambda row: ms(row.total_transfer_ms),
        "waits of all ranks": lambda row: ms(row.wait_ms),
    }
    title = "Communication: ranks wait for the last one, then the transfer begins"
    if len(report.ranks) == 1 or not report.timed:
        title = "Communication"
        del columns["waits of all ranks"]
        if report.timed and any(rank.wait_ms is None for rank in report.ranks):
            title = "Communication: the waits for ranks without a trace are part of it"
            columns = {"ms" if name == "transfer ms" else name: cell for name, cell in columns.items()}
    if not report.timed:
        del columns["transfer ms"], columns["all of them"]
    rows = sorted(report.collectives, key=lambda row: -((row.total_transfer_ms or 0.0) + (row.wait_ms or 0.0)))
    return record_table(title, columns, rows, top)


def waits_table(report: StepReport, top: int | None) -> RenderableType:
    """Which rank waits for which, and how long."""
    rows = [[str(row.rank), str(row.waits_for), ms(row.ms), str(row.count)] for row in report.waits_for]
    return table("Waits between ranks", ["rank", "waits for", "ms", "times"], rows, top)


def step_list_blocks(steps: StepList, top: int | None) -> Blocks:
    """All steps of a trace, and what differs in the slow ones; ``top`` things of each."""
    slow = [row for row in steps.steps if row.slow]
    about = f"{plural(len(slow), 'step')} of {len(steps.steps)} more than 10 % slower" if slow else "none much slower"
    yield fact_lines(steps.source or "the trace", [("step", f"{ms(steps.median_ms)} ms", f"median; {about}")])
    ranks = len({row.rank for row in steps.steps}) > 1
    columns: dict[str, Callable[[StepRow], str]] = {
        "<step": lambda row: row.step,
        "ms": lambda row: ms(row.ms),
        "rank": lambda row: str(row.rank),
        "active": lambda row: "–" if row.device_active_ms is None else ms(row.device_active_ms),
        "idle": lambda row: "–" if row.device_idle_ms is None else ms(row.device_idle_ms),
        "kernels": lambda row: f"{row.kernels:,}",
        "<bound": lambda row: row.bound or ("host" if row.device_active_ms == 0 and not row.kernels else "–"),
        "<": lambda row: "slow" if row.slow else "",
    }
    if not ranks:
        del columns["rank"]
    cells = [[cell(row) for cell in columns.values()] for row in steps.steps]
    yield table("Steps, each of the rank that takes longest", list(columns), cells)
    for row in slow:
        longer = row.ms - steps.median_ms
        named = [(more, *name.partition(": ")) for name, more in row.differs.items()]
        if abs(rest := longer - sum(row.differs.values())) > 0.01 * longer:
            named.append((rest, "the rest", "", ""))
        rows = [[signed_ms(more), what, short_name(name)] for more, what, _, name in named]
        if row.differs:
            title = f"{row.step}: {ms(longer)} ms longer than the median step, which adds up from"
            yield table(title, ["ms", "<what", "<name…"], rows, top)
    if steps.stragglers is not None:
        from foretrace.report.fleet import straggler_blocks

        yield from straggler_blocks(cast("StragglerReport", steps.stragglers), top)
    if steps.notes:
        yield from note_lines(steps.notes)
