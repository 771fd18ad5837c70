"""A fleet in the terminal: what was added, where its hours go, its suite, and what would save hours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType

from foretrace.report.formatting import figure, ms, percent, plural, short_name, signed
from foretrace.report.terminal import Blocks, Fact, bar, fact_lines, note_lines, table

if TYPE_CHECKING:
    from foretrace.fleet.adding import Added
    from foretrace.fleet.flight_recorder import Hang
    from foretrace.fleet.stragglers import StragglerReport
    from foretrace.fleet.suite import Drift, FleetSuite, MemberRow, ScoreRow
    from foretrace.fleet.summary import FleetSummary, HoursRow
    from foretrace.fleet.whatif import FleetWhatIf
    from foretrace.report.pages.page import Chart, Page


def added_blocks(done: Added, top: int | None) -> Blocks:
    """How many recordings were added, and those that could not be read."""
    facts: list[Fact] = [
        ("added", f"{done.added:,}", "recordings"),
        ("there", f"{done.there:,}", "were in the store already"),
    ]
    if done.relabelled:
        facts.append(("labels", f"{done.relabelled:,}", "recordings got new ones"))
    if done.broken:
        facts.append(("skipped", f"{len(done.broken):,}", "could not be read"))
    yield fact_lines(done.store, facts)
    if done.broken:
        yield table("Skipped", ["<recording…", "<why…"], [[one.path, one.why] for one in done.broken], top)
    yield from note_lines(done.notes)


TABLES = (
    ("By job", "by_job"), ("By team", "by_team"), ("By model", "by_model"), ("By cluster", "by_cluster"),
    ("By kernel family, of the time in which devices work", "by_family"), ("By op", "by_op"),
    ("By op and shapes", "by_shape"), ("By collective, waits included", "by_collective"),
    ("What devices idle for", "by_idle"),
)  # fmt: skip


def fleet_blocks(fleet: FleetSummary, top: int | None) -> Blocks:
    """Where the hours of a fleet go, its trend, and jobs that got slower."""
    yield fact_lines(f"{fleet.store}: {plural(fleet.recordings, 'recording')}", fleet_facts(fleet))
    for title, name in TABLES:
        rows: list[HoursRow] = getattr(fleet, name)
        if rows:
            most = rows[0].hours or 1.0
            cells = [
                [
                    _row_name(name, row),
                    figure(row.hours),
                    percent(row.share),
                    bar(row.hours / most),
                    f"{row.recordings:,}",
                ]
                for row in rows
            ]
            yield table(title, ["<name…", "GPU hours", "share", "<", "recordings"], cells, top)
    if fleet.weeks:
        rows_of_weeks = [[week.week, figure(week.hours), _largest(week.by_family)] for week in fleet.weeks]
        yield table("By week", ["<week", "GPU hours", "<most of it…"], rows_of_weeks, top)
    if fleet.outliers:
        cells = [
            [row.job, f"{ms(row.step_ms[0])} → {ms(row.step_ms[1])}", signed(row.slower), "; ".join(row.why)]
            for row in fleet.outliers
        ]
        yield table("Jobs that got slower", ["<job…", "<step ms", "change", "<why…"], cells, top)
    yield from note_lines(fleet.notes)


def fleet_facts(fleet: FleetSummary) -> list[Fact]:
    """The most important figures of a fleet."""
    return [
        ("hours", figure(fleet.hours), "GPU hours"),
        ("at work", percent(fleet.active), f"of them; {percent(fleet.exposed_communication)} exposed communication"),
        ("idle", percent(fleet.idle), "of them"),
        ("MFU", percent(fleet.mfu), "arithmetic at peak rates, of all hours"),
        ("compiled", percent(fleet.compiled), "of the hours in kernels of torch.compile"),
    ]


def _largest(by_family: dict[str, float]) -> str:
    whole = sum(by_family.values()) or 1.0
    ordered = sorted(by_family.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{name} {percent(hours / whole)}" for name, hours in ordered)


def suite_blocks(suite: FleetSuite, top: int | None) -> Blocks:
    """The members of a suite, why each is in it, and how close it is to the fleet."""
    yield fact_lines(
        f"{suite.store}: a suite of {plural(len(suite.members), 'recording')}",
        [
            ("off", percent(suite.off), "of the device time is in another kernel family than in the fleet"),
            ("largest", percent(suite.largest), "error of a figure below"),
            ("takes", f"{suite.seconds / 60:.1f} min", f"about; in {suite.out}" if suite.out else "about"),
        ],
    )
    yield _members("Members", suite.members, top)
    yield _scores(suite.scorecard, top)
    yield from note_lines(suite.notes)


def _row_name(table: str, row: HoursRow) -> str:
    """The name of a row; that of a cause of idle time with what it means."""
    if table != "by_idle":
        return short_name(row.name)
    from foretrace.report.step import CAUSES

    return f"{row.name} {CAUSES[row.name]}" if row.name in CAUSES else row.name


def drift_blocks(drift: Drift, top: int | None) -> Blocks:
    """How far a fleet has moved away from its suite, and what to exchange."""
    what = "the fleet has changed too much" if drift.moved else "the suite still represents the fleet"
    facts: list[Fact] = [
        ("largest", percent(drift.largest), f"error of a figure: {what} (limit {percent(drift.within)})"),
        ("off", percent(drift.off), "of the device time is in another kernel family than in the fleet"),
    ]
    if drift.moved:
        changes = len(drift.enter) or len(drift.leave)
        facts.append(("after", percent(drift.after), f"with {plural(changes, 'replacement')} and new weights"))
    yield fact_lines(f"{drift.suite} against {drift.store}", facts)
    if drift.leave:
        yield table("Leave", ["<recording…"], [[name] for name in drift.leave], top)
    if drift.enter:
        yield _members("Enter", drift.enter, top)
    if drift.moved:
        yield _members("The suite then", drift.members, top)
    yield _scores(drift.scorecard, top)
    yield from note_lines(drift.notes)


def _members(title: str, members: Sequence[MemberRow], top: int | None) -> RenderableType:
    rows = [[row.name, figure(row.hours), percent(row.share), row.why.partition(": ")[2]] for row in members]
    return table(title, ["<recording…", "hours", "share", "<stands for…"], rows, top)


def _scores(scorecard: Sequence[ScoreRow], top: int | None) -> RenderableType:
    rows = [[row.kind, row.name, figure(row.fleet), figure(row.suite), signed(row.off)] for row in scorecard]
    return table("Scorecard, in GPU hours", ["<kind", "<figure…", "fleet", "suite", "off"], rows, top)


ROWS_LISTED = 200
"""Rows of each table on a page."""


def fleet_page(fleet: FleetSummary) -> Page:
    """The page of a fleet: its hours as a treemap, by week, and in tables."""
    from foretrace.report.pages.page import Page

    _, *facts = fleet_facts(fleet)
    return Page(
        "fleet.html",
        f"{fleet.store}: GPU hours",
        {"hours": {"kind": "hours", "tree": fleet.tree}, "trend": _trend_chart(fleet)},
        {
            "fleet": fleet,
            "hours": figure(fleet.hours),
            "figure": figure,
            "facts": facts,
            "tables": [
                (name, title.partition(",")[0], getattr(fleet, name)) for title, name in TABLES if getattr(fleet, name)
            ],
            "limit": ROWS_LISTED,
            "name_of": _row_name,
        },
    )


def _trend_chart(fleet: FleetSummary) -> Chart | None:
    """Hours of each week by family, the largest family first."""
    if not fleet.weeks:
        return None
    names = {name for week in fleet.weeks for name in week.by_family} - {"idle"}
    parts = [*sorted(names, key=lambda name: -sum(week.by_family.get(name, 0.0) for week in fleet.weeks)), "idle"]
    return {
        "kind": "trend",
        "weeks": [week.week for week in fleet.weeks],
        "parts": parts,
        "hours": [[round(week.by_family.get(name, 0.0), 4) for week in fleet.weeks] for name in parts],
    }


def whatif_blocks(fleet: FleetWhatIf, top: int | None) -> Blocks:
    """What would save hours, the most first."""
    facts: list[Fact] = [("hours", figure(fleet.hours), "GPU hours a week")]
    if fleet.price is not None:
        facts.append(("costs", f"${figure(fleet.hours * fleet.price)}", f"a week, at ${fleet.price:g} an hour"))
    yield fact_lines(f"{fleet.store}: {plural(fleet.recordings, 'recording')}", facts)
    most = max((row.hours for row in fleet.savings), default=0.0) or 1.0
    rows = [
        [
            row.kind, row.what, figure(row.hours), signed(-row.share), bar(row.hours / most),
            *([] if row.dollars is None else [f"{figure(row.dollars)}"]), f"{row.recordings:,}",
        ]
        for row in fleet.savings
    ]  # fmt: skip
    money = [] if fleet.price is None else ["$ a week"]
    columns = ["<change", "<of what…", "hours saved\na week", "fleet", "<", *money, "recordings\nfaster"]
    yield table("What would save hours, critical path and overlap counted", columns, rows, top)
    yield from note_lines(fleet.notes)


def straggler_blocks(job: StragglerReport, top: int | None) -> Blocks:
    """What stragglers cost a job, by worker, stage and kind of span."""
    yield fact_lines(
        f"{job.source}: {plural(job.workers, 'worker')}, {plural(job.steps, 'step')}", straggler_facts(job)
    )
    for title, rows in straggler_tables(job):
        cells = [[name, f"{ratio:.3f}", bar((ratio - 1) / max(job.slowdown - 1, 1e-9))] for name, ratio in rows]
        yield table(
            f"By {title}: with its spans as they were, all others ideal", [f"<{title}…", "slowdown", "<"], cells, top
        )
    yield from note_lines(job.notes)


def straggler_facts(job: StragglerReport) -> list[Fact]:
    """The most important figures of a job's stragglers."""
    slowest = ", ".join(map(str, job.slowest_workers))
    took, ideal = (f"{each:.3f} s" if each >= 1 else f"{ms(each * 1e3)} ms" for each in (job.step_s, job.ideal_s))
    of_workers = _removed(job, job.without_workers, f"if the slowest are as fast as others: rank {slowest}")
    last = _removed(job, job.without_last_stage or 0.0, f"with an even last stage: {job.last_stage}")
    return [
        ("step", took, f"from its first span to its last, the mean of all; {ideal} if all workers were equally fast"),
        ("slowdown", f"{job.slowdown:.3f}", "times as long as that"),
        ("M_W", *of_workers),
        *([("M_S", *last)] if job.by_stage else []),
    ]


def _removed(job: StragglerReport, share: float, where: str) -> tuple[str, str]:
    """How much of a slowdown goes away in a setting; where a step is longer there, by how much."""
    longer_ms = -share * (job.explained_s - job.ideal_s) * 1e3
    instead = f"; the step takes {ms(longer_ms)} ms longer then: where it counts these are faster" if share < 0 else ""
    return percent(min(max(share, 0.0), 1.0)), f"of it goes away {where}{instead}"


def straggler_tables(job: StragglerReport) -> list[tuple[str, list[tuple[str, float]]]]:
    """Slowdowns by what they come from, the largest first."""
    places = {row.rank: f" (stage {row.stage}, data {row.dp_rank})" if job.by_stage else "" for row in job.by_worker}
    stages = [(str(stage), ratio) for stage, ratio in job.by_stage.items()]
    return [
        ("worker", [(f"rank {row.rank}{places[row.rank]}", row.slowdown) for row in job.by_worker]),
        *([("stage", stages)] if stages else []),
        ("kind of span", list(job.by_optype.items())),
    ]


def straggler_page(job: StragglerReport) -> Page:
    """The page of a job's stragglers: a heat map of workers by steps."""
    from foretrace.report.pages.page import Page

    heat = {
        "kind": "heat",
        "workers": [f"rank {row.rank}" for row in sorted(job.by_worker, key=lambda row: row.rank)],
        "steps": [str(step) for step in job.by_step],
        "slowdown": job.heat,
        "most": max((ratio for row in job.heat for ratio in row), default=1.0),
    }
    values = {"job": job, "facts": straggler_facts(job), "tables": straggler_tables(job)}
    return Page("stragglers.html", f"{job.source}: stragglers", {"heat": heat}, values)


def hang_blocks(hang: Hang, top: int | None) -> Blocks:
    """Which ranks a hung job waits for, and in which collectives the others are."""
    first = hang.collectives[0] if hang.collectives else None
    what = f"{first.kind} number {first.number} of group {first.group}" if first else "no collective is unfinished"
    waits = f"{plural(len(first.waiting), 'rank')} of {len(first.members)} wait in it" if first else "in these dumps"
    yield fact_lines(
        f"{hang.source}: dumps of {plural(len(hang.ranks), 'rank')} of {hang.world}", [("hangs in", what, waits)]
    )
    if hang.culprits:
        yield table("Waited for", ["rank", "<why…"], [[str(one.rank), one.why] for one in hang.culprits], top)
    if hang.collectives:
        rows = [
            [one.group, str(one.number), one.kind, one.sizes, _ranks(one.waiting), _ranks(one.missing)]
            for one in hang.collectives
        ]
        columns = ["<group", "number", "<collective", "<sizes…", "<wait…", "<missing…"]
        yield table("Collectives that are not done", columns, rows, top)
    yield from note_lines(hang.notes)


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:6]))
    return f"{shown}, … ({len(ranks)})" if len(ranks) > 6 else shown
