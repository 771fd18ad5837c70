"""A suite of few benchmarks that stands for a fleet: chosen, explained, written; and when the fleet has moved away."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrace._progress import OnProgress, Progress
from foretrace.analysis.report import NotebookDocument
from foretrace.api import benchmark
from foretrace.errors import ForetraceError
from foretrace.fleet.mix import FAMILY, STATED, TOTAL, Mix, fleet_mix
from foretrace.fleet.record import PartRecord
from foretrace.fleet.recordings import files_of
from foretrace.fleet.selection import Choice, choose, choose_with_parts, exchange, largest_error, weights_of
from foretrace.fleet.store import ORIGINALS, Store
from foretrace.graph.tables import Floats
from foretrace.output import atomic_folder

if TYPE_CHECKING:
    from foretrace.replay import Choices, Selection

SUITE = "suite.json"
WITHIN = 0.03
"""How far a figure of the suite may be off before the fleet has changed too much."""
STARTED_S, STEPS = 25.0, 100
"""What a member takes to import torch and to make its inputs, and the steps that it runs: for a budget."""
MAX_SIZE = 64
"""Members of a suite without a size: more are no small suite."""
SHARES = 3
"""Families that an explanation names."""
UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(slots=True)
class MemberRow:
    """A recording of a suite."""

    id: str
    name: str
    folder: str
    """Where its benchmark is; empty where none was written."""
    hours: float
    """GPU hours that it stands for."""
    share: float
    """Of the fleet's hours."""
    seconds: float
    """What it takes to run, about."""
    why: str
    part: str = ""
    """The part of the recording that it is: a phase, a module or a range of calls; empty where it is all of it."""


@dataclass(slots=True)
class ScoreRow:
    """A figure of the fleet and of the suite, in hours."""

    kind: str
    name: str
    fleet: float
    suite: float
    off: float
    """Relative to the fleet's, or to a hundredth of the fleet's hours where it has less."""


@dataclass
class FleetSuite(NotebookDocument):
    """A suite, how well it stands for the fleet, and why each of its members is in it."""

    store: str
    out: str
    members: list[MemberRow]
    off: float
    """Share of the device time that is in another kernel family than in the fleet."""
    largest: float
    """The largest error of a figure of the scorecard."""
    scorecard: list[ScoreRow]
    seconds: float
    """What it takes to run all members, about."""
    notes: list[str] = field(default_factory=list)


@dataclass
class Drift(NotebookDocument):
    """How far a fleet has moved away from its suite, and the members to exchange."""

    store: str
    suite: str
    off: float
    """Of the suite as it is; as in `FleetSuite`."""
    largest: float
    moved: bool
    """Whether a figure is off by more than the limit."""
    within: float
    leave: list[str]
    """Members to take out."""
    enter: list[MemberRow]
    """Recordings to take in."""
    after: float
    """The largest error then."""
    members: list[MemberRow]
    """The suite after that, with its new weights."""
    scorecard: list[ScoreRow]
    """Of the suite as it is."""
    notes: list[str] = field(default_factory=list)


def parse_budget(text: str) -> float:
    """Seconds of a budget.

    >>> parse_budget("10 min"), parse_budget("90s")
    (600.0, 90.0)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|sec|min|h)\s*", text)
    if not found or not float(found[1]):
        raise ForetraceError(f"{text!r} is no budget", 'Write it like "10 min".')
    return float(found[1]) * UNITS[found[2]]


def make_suite(
    store: Store,
    out: Path | None = None,
    size: int | None = None,
    budget_s: float | None = None,
    choices: Choices | None = None,
    on_progress: OnProgress = lambda progress: None,
) -> FleetSuite:
    """Choose a suite, and write it where ``out`` names a folder.

    Parameters
    ----------
    store
        The fleet.
    out
        A new folder: one benchmark in each folder of it, and ``suite.json``, which `foretrace replay` runs.
    size, budget_s
        How many members; or how long all of them may take to run, as many as that allows and as help.
    choices
        How benchmarks are written.
    on_progress
        Called with what is being done.
    """
    mix = fleet_mix(store)
    if not mix.ids:
        raise store.holds_nothing()
    on_progress(Progress("choosing recordings"))
    chosen, weights = _within_budget(mix, budget_s) if size is None else choose_with_parts(mix, size)
    suite = _described(store, mix, (chosen, weights), out)
    if out is None:
        return suite
    hidden, parts = bool(choices and choices.obfuscate), _part_numbers(mix)
    with atomic_folder(out) as folder:
        for number, member in enumerate(suite.members):
            on_progress(Progress("writing benchmarks", number, len(suite.members)))
            member.folder = f"{number:02d}" if hidden else f"{number:02d}-{_file_name(member.name)}"
            benchmark(_original(store, member.id), folder / member.folder, _of_part(choices, _part(store, member)))
            if hidden:
                member.name, member.part = member.folder, parts.get((member.id, member.part), "")
        about = {
            "suite": [{"what": member.folder, "weight": member.hours} for member in suite.members],
            **suite.to_dict(), "out": "", "store": "" if hidden else suite.store,
        }  # fmt: skip
        (folder / SUITE).write_text(json.dumps(about, indent=1))
    return suite


def _part(store: Store, member: MemberRow) -> PartRecord | None:
    """The part of a recording that a member is; None where it is all of it."""
    if not member.part:
        return None
    table = store.table(["parts"])
    row = table.column("id").to_pylist().index(member.id)
    return next(PartRecord(**one) for one in table.column("parts")[row].as_py() if one["name"] == member.part)


def _part_numbers(mix: Mix) -> dict[tuple[str, str], str]:
    """For each part of a recording its number, which stands for its name in a suite that has none."""
    counts, numbers = Counter[str](), {}
    for number, part in zip(mix.ids, mix.parts):
        if part:
            numbers[number, part] = f"#{counts[number]}"
            counts[number] += 1
    return numbers


def part_selection(part: PartRecord) -> Selection:
    """The calls of a recording that a part has."""
    from foretrace.replay import Selection

    return Selection(part.phase or None, part.first or None, part.last or None, module=part.module or None)


def _of_part(choices: Choices | None, part: PartRecord | None) -> Choices:
    """How a recording, or a part of it, is written."""
    from foretrace.replay import Choices

    choices = choices or Choices()
    return choices if part is None else replace(choices, selection=part_selection(part))


def _within_budget(mix: Mix, budget_s: float | None) -> Choice:
    """As many members as a budget allows, or as few as bring all figures within the limit."""
    best: Choice | None = None
    chosen: list[int] = []
    for size in range(1, min(MAX_SIZE, len(mix.ids)) + 1):
        chosen, weights = choose(mix, size, chosen, restarts=0)
        if budget_s is not None and _all_seconds(mix, chosen) > budget_s:
            break
        best = chosen, weights
        if largest_error(mix, chosen, weights) < WITHIN / 3:
            break
    if best is None:
        cheapest = min(_seconds(mix, place) for place in range(len(mix.ids)))
        raise ForetraceError("no member runs within this budget", f"The shortest takes {cheapest:.0f} s: allow more.")
    # What was grown one by one is not the best of its size.
    again = choose_with_parts(mix, len(best[0]))
    if budget_s is not None and _all_seconds(mix, again[0]) > budget_s:
        return best
    return min(best, again, key=lambda choice: largest_error(mix, *choice))


def _all_seconds(mix: Mix, chosen: Sequence[int]) -> float:
    return sum(_seconds(mix, place) for place in chosen)


def _seconds(mix: Mix, place: int) -> float:
    return STARTED_S + STEPS * float(mix.step_ms[place]) / 1e3


def _described(store: Store, mix: Mix, choice: Choice, out: Path | None) -> FleetSuite:
    chosen, weights = choice
    target, found = mix.target, weights @ mix.per_hour[chosen]
    members = _members(mix, chosen, weights, target)
    return FleetSuite(
        store=str(store.path),
        out=str(out or ""),
        members=members,
        off=mix.off_by_family(target, found),
        largest=largest_error(mix, chosen, weights),
        scorecard=_scorecard(mix, target, found),
        seconds=sum(member.seconds for member in members),
    )


def _members(mix: Mix, chosen: Sequence[int], weights: Floats, target: Floats) -> list[MemberRow]:
    whole = float(mix.hours.sum())
    return [
        MemberRow(
            mix.ids[place], mix.names[place], "", float(hours), float(hours) / whole, _seconds(mix, place),
            _why(mix, place, float(hours), target), mix.parts[place],
        )
        for place, hours in zip(chosen, weights)
    ]  # fmt: skip


def _why(mix: Mix, place: int, hours: float, target: Floats) -> str:
    """What of the fleet a member stands for: the families of which it has most, and the hours of its own."""
    families = mix.places(FAMILY)
    member_hours = hours * mix.per_hour[place, families]
    share = np.divide(member_hours, target[families], out=np.zeros(len(families)), where=target[families] > 0)
    order = np.argsort(-np.minimum(share, 1.0) * np.sqrt(member_hours), kind="stable")[:SHARES]
    parts = [
        f"{100 * share[one]:.0f} % of {mix.figures[families[one]].name}" for one in order.tolist() if share[one] > 0
    ]
    idle = float(1 - mix.per_hour[place, families].sum())
    if idle > 0.5:
        parts.append(f"idles {100 * idle:.0f} % of its step")
    return f"stands for {hours:.3g} h, {mix.hours[place]:.3g} of them its own: {', '.join(parts)}"


def _scorecard(mix: Mix, target: Floats, found: Floats) -> list[ScoreRow]:
    scale = mix.scale(target)
    rows = [
        ScoreRow(figure.kind, figure.name, float(target[place]), float(found[place]),
                 float((found[place] - target[place]) / scale[place]))
        for place, figure in enumerate(mix.figures)
        if figure.kind in STATED and (target[place] or found[place])
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (STATED.index(row.kind), -row.fleet))


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)[:60].strip("-.") or "member"


def _original(store: Store, number: str) -> Path:
    """Where a recording is: its copy in the store, or where it was added from."""
    copied = store.path / ORIGINALS / number
    if copied.is_dir():
        inside = list(copied.iterdir())
        return inside[0] if len(inside) == 1 and inside[0].is_file() else copied
    table = store.table(["name"])
    place = table.column("id").to_pylist().index(number)
    source, name = (table.column(column)[place].as_py() for column in ("source", "name"))
    if "://" in source or not files_of(Path(source)):
        raise ForetraceError(
            f"{name} is not at {source} any more", "Bring it back, or add recordings with --copy, which keeps them."
        )
    return Path(source)


def find_drift(store: Store, suite: Path, within: float = WITHIN) -> Drift:
    """How far a fleet has moved away from a suite, and the fewest members to exchange.

    Parameters
    ----------
    store
        The fleet as it is now.
    suite
        The folder that `make_suite` wrote, or its ``suite.json``.
    within
        How far a figure may be off.
    """
    members = _read_suite(suite)
    mix = fleet_mix(store)
    numbers = _part_numbers(mix)
    place = {(number, part): at for at, (number, part) in enumerate(zip(mix.ids, mix.parts))}
    place |= {(key[0], number): place[key] for key, number in numbers.items()}
    gone = [member["name"] for member in members if (member["id"], member["part"]) not in place]
    there = [member for member in members if (member["id"], member["part"]) in place]
    if not there:
        raise ForetraceError(f"{store.path} holds none of the recordings of {suite}", "Make a new suite.")
    chosen = [place[member["id"], member["part"]] for member in there]
    target = mix.target
    # Its weights were for another number of hours.
    weights = np.array([float(member["hours"]) for member in there])
    weights *= float(mix.hours.sum()) / float((weights @ mix.per_hour[chosen])[mix.places(TOTAL)][0])
    found = weights @ mix.per_hour[chosen]
    now = largest_error(mix, chosen, weights)
    after = sorted(chosen)
    if now > within:
        after = exchange(mix, chosen, within, len(chosen))
    better = weights_of(mix, after) if now > within else weights[np.argsort(chosen)]
    rows = _members(mix, after, better, target)
    return Drift(
        store=str(store.path),
        suite=str(suite),
        off=mix.off_by_family(target, found),
        largest=now,
        moved=now > within,
        within=within,
        leave=[*gone, *(mix.names[one] for one in chosen if one not in after)],
        enter=[row for row, one in zip(rows, after) if one not in chosen],
        after=largest_error(mix, after, better),
        members=rows,
        scorecard=_scorecard(mix, target, found),
        notes=[f"{name} is not in the store any more" for name in gone],
    )


def _read_suite(path: Path) -> list[dict[str, Any]]:
    file = path / SUITE if path.is_dir() else path
    try:
        members = json.loads(file.read_bytes())["members"]
        return [
            {"id": str(one["id"]), "part": str(one["part"]), "name": str(one["name"]), "hours": float(one["hours"])}
            for one in members
        ]
    except FileNotFoundError:
        raise ForetraceError(f"{file} does not exist", "Name the folder that `foretrace fleet suite` wrote.") from None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ForetraceError(
            f"{file} is no suite of a fleet ({type(error).__name__}: {error})",
            "Name the folder that `foretrace fleet suite` wrote.",
        ) from None
