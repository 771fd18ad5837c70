"""Several steps in the terminal: `diff`, `check`, `whatif`, `sweep`, and the scaling curve of `predict --world`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from foretrace.analysis.compare import WAIT_AND_TRANSFER
from foretrace.report.formatting import (
    LEAST_CHANGE_MS,
    UNKNOWN,
    bytes_,
    change,
    figure,
    host_column,
    ms,
    off,
    percent,
    plural,
    printable,
    short_name,
    signed_ms,
)
from foretrace.report.step import COVERAGE, OVERHEADS, caution_facts, memory_verdict, other_notes
from foretrace.report.terminal import Blocks, Fact, bar, fact_lines, note_lines, table

if TYPE_CHECKING:
    from foretrace.analysis.compare import Check, OpMiss, PathChange, StepDifference, TimeChange
    from foretrace.prediction.scaling import Scaling
    from foretrace.whatif.points import Point, Sweep
    from foretrace.whatif.step_table import TableCheck
    from foretrace.whatif.what_if import WhatIf

OPS_NAMED = 3
"""Ops that a row names of each side of a replacement."""
OVERLAP = "sum of host and device time, which overlap"
FAR_SLOWER = 10
"""From this factor on, a slow-down is said as how many times as long the step takes."""


def difference_blocks(difference: StepDifference, top: int | None) -> Blocks:
    """What changed from one measured step to another: step and device time, then the tables."""
    facts: list[Fact] = [("caution", "", text) for text in difference.cautions]
    facts.append(("step", change(*difference.step_ms), "of the slowest rank"))
    before, after = difference.device_active_ms
    if before and after:
        facts.append(("device", change(before, after), "active, on the busiest rank"))
    facts += _path_fact(difference)
    yield fact_lines(f"{difference.before} → {difference.after}", facts)
    yield from _change_tables(difference, top)


def _path_fact(difference: StepDifference) -> Iterator[Fact]:
    """How long the critical paths are, where they are not as long as the steps: their changes add up to theirs."""
    before, after = (sum(row.ms[side] for row in difference.critical_path) for side in (0, 1))
    pairs = list(zip(difference.step_ms, (before, after), strict=True))
    if all((before, after)) and any(abs(path - step) > 0.01 * step for step, path in pairs):
        beyond = any(path > 1.01 * step for step, path in pairs)
        until = "; it goes on until all that the step launched has ended" * beyond
        yield "path", change(before, after), f"the critical path{until}"


def _change_tables(difference: StepDifference, top: int | None) -> Blocks:
    """What got slower and what faster: along the critical path, in idle time and communication, by op, by kernel
    family, by phase; new and gone ops.
    """
    for title, kinds in (
        ("Along the critical path", difference.critical_path),
        ("What the device idles for, mean over ranks", difference.idle),
        ("Communication, mean over ranks", difference.communication),
    ):
        yield from _kinds(title, kinds)
    yield from _collectives(difference)
    by_op = [(row.change_ms, row) for row in difference.matched or difference.by_op]
    slower = [row for change_ms, row in by_op if change_ms >= LEAST_CHANGE_MS]
    faster = [row for change_ms, row in reversed(by_op) if change_ms <= -LEAST_CHANGE_MS]
    yield from _changes(f"Slower, by op: {OVERLAP}", "op", slower, top)
    yield from _changes(f"Faster, by op: {OVERLAP}", "op", faster, top)
    if not slower and not faster:
        yield Text("No op got slower or faster.")
    for what, rows in (("kernel family", difference.by_family), ("phase", difference.by_phase)):
        changed = [row for row in rows if abs(row.change_ms) >= LEAST_CHANGE_MS]
        yield from _changes(f"By {what}", what, sorted(changed, key=lambda row: -abs(row.change_ms)), top)
    replaced = {name for row in difference.matched if row.places for name in (*row.before, *row.after)}
    for title, several in (("Only in the second", difference.new), ("Only in the first", difference.gone)):
        if names := [name for name in several if name not in replaced]:
            more = f" and {len(names) - top} more" if top is not None and len(names) > top else ""
            yield Text(f"{title}: {', '.join(printable(name) for name in names[:top])}{more}")


def _kinds(title: str, rows: Sequence[PathChange]) -> Blocks:
    """Times by kind of work, the largest change first."""
    changed = [row for row in rows if abs(row.change_ms) >= LEAST_CHANGE_MS]
    if changed:
        total = sum(row.change_ms for row in rows)
        cells = [
            [row.what, OVERHEADS.get(row.what, ""), signed_ms(row.change_ms), *(ms(value) for value in row.ms)]
            for row in sorted(changed, key=lambda row: -abs(row.change_ms))
        ]
        yield table(
            f"{title}: the changes add up to {signed_ms(total)} ms", ["<what", "<", "change ms", "ms", "→"], cells
        )


def _collectives(difference: StepDifference) -> Blocks:
    rows = [row for row in difference.collectives if abs(row.change_ms) >= LEAST_CHANGE_MS]
    if rows:
        columns = ["<kind", "change ms", "transfer ms", "→", "wait ms", "→", "count", "→", "bytes", "→"]
        cells = [
            [
                row.kind, signed_ms(row.change_ms), *map(ms, row.transfer_ms), *map(ms, row.wait_ms),
                *map(str, row.count), *(bytes_(nbytes or None) for nbytes in row.nbytes),
            ]
            for row in sorted(rows, key=lambda row: -abs(row.change_ms))
        ]  # fmt: skip
        title = "Collectives: transfer from the last arrival on; wait before it, mean over ranks"
        if any(row.what == WAIT_AND_TRANSFER for row in difference.communication):
            title = "Collectives: of one rank alone, its waits are part of the transfer"
        yield table(title, columns, cells)


def _changes(title: str, what: str, rows: Sequence[TimeChange], top: int | None) -> Blocks:
    if rows:
        host = host_column(what, on_device=any(any(row.device_ms) for row in rows))
        columns = ["<name…", "change ms", "device ms", "→", host, "→", "count", "→"]
        yield table(title, columns, [_pairs(row, row.change_ms) for row in rows], top)


def _pairs(row: TimeChange | OpMiss, difference_ms: float) -> list[str]:
    """The cells of a row of pairs: its name, the difference, then each pair."""
    return [
        change_name(row),
        signed_ms(difference_ms),
        *(ms(value) for value in (*row.device_ms, *row.host_ms)),
        *(f"{value:.0f}" for value in row.count),
    ]


def change_name(row: TimeChange | OpMiss) -> str:
    """The name of a row: of a replacement the ops of both steps, and at how many places.

    >>> from foretrace.analysis.compare import MatchedChange
    >>> ops = ["aten::bmm", "aten::_softmax"], ["aten::_flash_attention_forward"]
    >>> change_name(MatchedChange("", (2.0, 1.0), (0.0, 0.0), (36, 12), -1.0, *ops, places=12))
    '12 times: aten::bmm, aten::_softmax → aten::_flash_attention_forward'
    """
    places = getattr(row, "places", 0)
    if not places:
        return short_name(row.name)
    sides = (_some(getattr(row, side)) for side in ("before", "after"))
    return f"{f'{places} times: ' if places > 1 else ''}{' → '.join(sides)}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - OPS_NAMED} more" if len(names) > OPS_NAMED else ""
    return f"{', '.join(short_name(name) for name in names[:OPS_NAMED])}{more}"


def check_blocks(check: Check, top: int | None) -> Blocks:
    """Predicted and measured side by side, then the ops with the largest errors."""
    yield fact_lines(f"{check.source} on {check.platform}: predicted, measured", _check_facts(check))
    if check.by_op:
        columns = ["<op…", "off ms", "device ms", "was", host_column("op", on_device=True), "was", "calls", "was"]
        yield table("Largest errors first", columns, [_pairs(row, row.miss_ms) for row in check.by_op], top)
    yield from note_lines(check.notes)


def _check_facts(check: Check) -> Iterator[Fact]:
    low, high = check.range_ms
    inside = "inside" if check.inside else "OUTSIDE"
    yield "step", _both_ms(check.step_ms), f"{off(check.step_ms)}; {inside} the range {ms(low)} – {ms(high)}"
    if pair := check.step_ms_back_to_back:
        yield "next", _both_ms(pair), f"{off(pair)}; from step to step, without a sync in between"
    if (pair := check.device_active_ms) and check.kernels:
        predicted, measured = check.kernels
        yield "device", _both_ms(pair), f"{off(pair)}; active, in {predicted:.0f} and {measured:.0f} kernels"
    if check.peak_memory_bytes:
        predicted_bytes, measured_bytes = check.peak_memory_bytes
        yield "memory", f"{bytes_(predicted_bytes)}, {bytes_(measured_bytes)}", off((predicted_bytes, measured_bytes))
    shares = ", ".join(f"{percent(share)} {COVERAGE[how]}" for how, share in check.coverage.items() if round(share, 4))
    yield "known", "", shares or "the step gives the device nothing to do"


def table_blocks(check: TableCheck, top: int | None) -> Blocks:
    """How far forecasts of a table's rows are off: in all, by configuration, and row by row."""
    found, fitted = check.summary(check.scored), sum(one.fitted for one in check.rows)
    facts = [
        ("rows", f"{found['rows']:.0f}", f"scored; a stack was fitted on {fitted} others" if fitted else "scored"),
        ("error", f"{100 * found['mean_error']:.1f} %", f"mean; {_signed(found['worst'])} at worst"),
        ("bias", _signed(found["bias"]), "of the forecasts"),
        ("inside", percent(found["inside"]), "of the rows lie in the range"),
    ]
    if check.stack:
        facts.append(("stack", check.stack.name, f"{check.stack.changes}; spread {100 * check.stack.spread:.0f} %"))
    yield fact_lines(f"{check.source}: forecasts against measured steps", facts)
    groups = [
        [name, f"{one['rows']:.0f}", f"{100 * one['mean_error']:.1f} %", _signed(one["bias"]), percent(one["inside"])]
        for name, one in check.by_configuration().items()
    ]
    yield table("By configuration", ["<configuration…", "rows", "error", "bias", "inside"], groups, top)
    rows = [
        [one.row.model, one.row.parallel, one.row.gpu, ms(one.row.ms), ms(one.predicted_ms),
         f"{ms(one.low_ms)} – {ms(one.high_ms)}", _signed(one.off), "fitted" if one.fitted else ""]
        for one in check.rows
    ]  # fmt: skip
    yield table("Rows", ["<model…", "<parallel…", "<gpu", "ms", "forecast", "range", "off", "<"], rows, top)
    yield from note_lines(check.notes)


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _both_ms(pair: tuple[float, float]) -> str:
    return f"{ms(pair[0])}, {ms(pair[1])} ms"


def whatif_blocks(found: WhatIf, top: int | None) -> Blocks:
    """Both predictions side by side, then which ops make the difference."""
    cautions = caution_facts([*found.before.notes, *found.after.notes, *found.notes])
    yield fact_lines(whatif_title(found), [*cautions, *whatif_facts(found)])
    yield from _change_tables(found.difference, top)
    changed = (note for note in found.after.notes if note not in found.before.notes)
    yield from note_lines(other_notes([*found.notes, *changed]))


def whatif_title(found: WhatIf) -> str:
    """The changes, and the platform."""
    return f"{found.before.source or 'the step'} on {found.after.platform}, with {', '.join(found.changes)}"


def whatif_facts(found: WhatIf) -> Iterator[Fact]:
    """The most important figures before and after, the step first."""
    before, after = found.before, found.after
    yield from _recorded_sizes(found)
    ranges = f"80 %: {' → '.join(f'{ms(side.low_ms)} – {ms(side.high_ms)}' for side in (before, after))}"
    if before.sample_us and after.sample_us and before.samples != after.samples:
        # Of steps with other numbers of samples, the time per sample says which is faster.
        speed = f"{_speed(before.sample_us, after.sample_us)} per sample, back to back"
        yield "sample", change(before.sample_us, after.sample_us, unit="us"), speed
        samples = f"of {before.samples:,} → {after.samples:,} samples"
        yield "step", change(before.step_ms, after.step_ms), f"{samples}; {ranges}"
    else:
        yield "step", change(before.step_ms, after.step_ms), f"{_speed(before.step_ms, after.step_ms)}; {ranges}"
    if before.step_ms_back_to_back is not None and after.step_ms_back_to_back is not None:
        following = change(before.step_ms_back_to_back, after.step_ms_back_to_back)
        yield "next", following, "from step to step, without a sync in between"
    if before.world != after.world:
        yield "ranks", f"{before.world:,} → {after.world:,}", "that do a step together"
    if after.carried:
        spent = sum(row.ms for row in before.carried), sum(row.ms for row in after.carried)
        mostly = (
            f"of measured host time that no model covers, mostly {after.carried[0].cause}; --drop-gaps leaves it out"
        )
        yield "gaps", change(*spent), mostly
    if not (before.unrecorded_launches or after.unrecorded_launches):
        yield "device", change(before.device_active_ms, after.device_active_ms), "active"
    if before.exposed_communication_ms or after.exposed_communication_ms:
        hidden = " → ".join(ms(side.hidden_communication_ms) for side in (before, after))
        exposed = change(before.exposed_communication_ms, after.exposed_communication_ms)
        yield "comm", exposed, f"exposed; {hidden} ms more overlap with other work"
    if before.peak_memory_bytes is not None and after.peak_memory_bytes is not None:
        held = f"{bytes_(before.peak_memory_bytes)} → {bytes_(after.peak_memory_bytes)}"
        yield "memory", held, f"peak, {memory_verdict(after)}"
    yield "kernels", f"{before.kernels:,} → {after.kernels:,}", "that the step launches"


def _recorded_sizes(found: WhatIf) -> Iterator[Fact]:
    """Sizes that were changed, with what was taken for the recorded ones: what the figures below rest on."""
    for name, _, value in (text.partition("=") for text in found.changes):
        new, _, stated = value.partition("/")
        start = f"{name}: {int(new):,} instead of " if new.isdecimal() else "\n"
        for note in (note for note in found.after.notes if note.startswith(start)):
            source = "as you said" if stated else f"found in the step; {name}={new}/OLD if that is wrong"
            from foretrace.transforms.resize.batch_sequence import OTHER_BATCH

            caution = next((note for note in found.notes if stated and note.startswith(OTHER_BATCH)), "")
            source = f"{source}, but {caution}" if caution and name == "batch" else source
            yield name, f"{note.removeprefix(start)} → {int(new):,}", source


def _speed(before: float, after: float) -> str:
    """The speed-up of a step; of one that is far slower, how many times as long it takes.

    >>> _speed(3.0, 2.0), _speed(2.0, 3000.0)
    ('1.50 times as fast', '1,500 times as long')
    """
    if after > FAR_SLOWER * before:
        return f"{after / before:,.0f} times as long" if before else "longer"
    return f"{before / after if after else 1.0:.2f} times as fast"


def scaling_blocks(curve: Scaling, top: int | None) -> Blocks:
    """A scaling curve as a table of at most ``top`` rows, all where it is None, with a bar for each step."""
    yield fact_lines(scaling_title(curve), [*caution_facts(curve.notes), *scaling_facts(curve)])
    longest = max(row.step_ms for row in curve.rows) or 1.0
    cells = [
        [
            f"{row.world:,}", ms(row.step_ms), f"{ms(row.low_ms)} – {ms(row.high_ms)}",
            ms(row.exposed_communication_ms), ms(row.hidden_communication_ms), percent(row.efficiency),
            bar(row.step_ms / longest), row.fabric or "",
        ]
        for row in curve.rows
    ]  # fmt: skip
    columns = ["ranks", "step ms", "range", "exposed", "hidden", "efficiency", "<", "<fabric…"]
    yield table("Scaling", columns, cells, top)
    yield from note_lines(other_notes(curve.notes))


def scaling_title(curve: Scaling) -> str:
    """What a curve is of."""
    first, last = (f"{curve.rows[place].world:,}" for place in (0, -1))
    return f"{curve.source or 'the step'} on {curve.platform}: {first} to {last} ranks"


def scaling_facts(curve: Scaling) -> list[Fact]:
    """The step of the largest job, compared with the smallest."""
    largest = curve.rows[-1]
    return [("step", f"{ms(largest.step_ms)} ms", f"on {plural(largest.world, 'rank')}: {scaling_speed(curve)}")]


def scaling_speed(curve: Scaling) -> str:
    """The scaling efficiency of the largest job.

    >>> from foretrace.analysis.report import StepReport
    >>> from foretrace.prediction.scaling import scaling_curve
    >>> scaling_speed(scaling_curve([StepReport(world=1, step_ms=4.0), StepReport(world=8, step_ms=4.0)]))
    '100 % of the speed of 1 rank, since the ranks do not communicate'
    """
    smallest, largest = curve.rows[0], curve.rows[-1]
    alone = ", since the ranks do not communicate" if largest.fabric is None and largest.world > 1 else ""
    return f"{percent(largest.efficiency)} of the speed of {plural(smallest.world, 'rank')}{alone}"


def sweep_blocks(sweep: Sweep, top: int | None) -> Blocks:
    """The best point, the Pareto front, all points, and why some were left out."""
    made, left = made_and_left(sweep)
    # Changes that all of several points have: their tables leave them out.
    first = sweep.points[0].changes if len(sweep.points) > 1 else []
    common = [change for change in first if all(change in point.changes for point in sweep.points)]
    title = f"{sweep.source or 'the step'}{', with ' if common else ''}{', '.join(common)}"
    yield fact_lines(f"{title}: {plural(len(made), 'point')}", [*caution_facts(sweep.notes), *sweep_facts(sweep)])
    front = [point for point in made if point.front]
    listed = "All points, least time per sample first"
    if front and len(front) < len(made):
        yield _points(f"Pareto front: no other point is better in {_goals(front)}", front, common, top)
    elif len(front) > 1:
        listed += f": none is better than another in {_goals(front)} at once"
    if made:
        yield _points(listed, made, common, top)
    if left:
        rows = [(f"{count}", "", f"{reason} ({example})") for count, reason, example in reasons(left)]
        yield fact_lines(f"Left out: {plural(len(left), 'point')}", rows[:top])
    yield from note_lines(other_notes(sweep.notes))


def _goals(front: Sequence[Point]) -> str:
    goals = ["time", "memory"]
    if any(point.cost is not None for point in front):
        goals.append("cost")
    elif any(point.ranks > 1 for point in front):
        goals.append("time of all ranks")
    goals += ["energy"] if all(point.energy_j is not None for point in front) else []
    return f"{', '.join(goals[:-1])} and {goals[-1]}"


def made_and_left(sweep: Sweep) -> tuple[list[Point], list[Point]]:
    """The points, and the combinations without a prediction."""
    return [point for point in sweep.points if not point.error], [point for point in sweep.points if point.error]


def reasons(left: Sequence[Point]) -> Iterator[tuple[int, str, str]]:
    """Why points were left out: how many, the reason, and one of them. One reason often holds for many."""
    alike: dict[str, list[Point]] = {}
    for point in left:
        alike.setdefault(point.error or "", []).append(point)
    for reason, some in alike.items():
        yield len(some), reason, point_label(some[0])


def sweep_facts(sweep: Sweep) -> Iterator[Fact]:
    """The best point."""
    best, limit = sweep.best, bytes_(sweep.memory_limit) if sweep.memory_limit else "the device's memory"
    if best is None:
        made = any(point.error is None for point in sweep.points)
        yield "best", "none", f"no point fits in {limit}" if made else "no point can be made"
    else:
        many = f" of {best.ranks:,} ranks" if best.ranks > 1 else ""
        about = f"{point_label(best)}: least time per sample of those that fit in {limit}"
        yield "best", f"{ms(best.step_ms)} ms{many}", about


def point_label(point: Point) -> str:
    """The changes of a point and its platform.

    >>> from foretrace.whatif.points import Point
    >>> point_label(Point(["batch=8", "dtype=bf16"], "h200"))
    'batch=8, dtype=bf16 on h200'
    """
    return f"{', '.join(point.changes) or 'as it is'} on {point.platform}"


def _points(title: str, points: Sequence[Point], common: Sequence[str], top: int | None) -> RenderableType:
    """A column for each setting: points that differ in one look different, however narrow the terminal."""
    settings = [change.rpartition("=")[0] for change in points[0].changes if change not in common]
    priced = any(point.cost is not None for point in points)
    ranks = len({point.ranks for point in points}) > 1 and "world" not in settings
    figures = ["step\nms", "next\nms", "device\nms", "us a\nsample", "\nmemory", "<\nfits"]
    drawn = any(point.sample_j is not None for point in points)
    more = [*(["J a\nsample"] if drawn else []), *(["$ a\nmillion"] if priced else [])]
    figures = [*(["\nranks"] if ranks else []), *figures, *more]
    columns = [*(f"\n{name}" for name in settings), "<\nplatform…", *figures]
    rows = [
        [
            *(change.rpartition("=")[2] for change in point.changes if change not in common),
            point.platform,
            *([f"{point.ranks:,}"] if ranks else []),
            *(ms(time) for time in (point.step_ms, point.next_ms, point.device_active_ms, point.sample_us)),
            bytes_(point.memory_bytes),
            {True: "yes", False: "NO", None: UNKNOWN}[point.fits],
            *([figure(point.sample_j)] if drawn else []),
            *([figure(point.cost)] if priced else []),
        ]
        for point in points
    ]
    return table(title, columns, rows, top)
