"""Measures the machine at hand, part by part, mostly where its models are worst; then fits the models."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from foretrace._progress import OnProgress as Told
from foretrace._progress import Progress as Stage
from foretrace.cost_models.kernels.families import DRAWN
from foretrace.cost_models.kernels.families.compiled import COMPILED
from foretrace.cost_models.kernels.launches import launches_nothing
from foretrace.fitting import can_fit, fit
from foretrace.graph import Graph
from foretrace.graph.calls import dispatched
from foretrace.platform.alone import alone_in
from foretrace.platform.cases import EXACT, Case, case_key, case_of_each
from foretrace.platform.device_facts import DeviceFacts, describe
from foretrace.platform.fabric_measurements import FABRIC_FILE
from foretrace.platform.folder import RAW
from foretrace.platform.host import Host
from foretrace.platform.platform import read_host
from foretrace.platform.rates import CEILINGS, read_all
from foretrace.processes import temporary_folder

if TYPE_CHECKING:
    from foretrace.platform.measure.calibrate import Progress
    from foretrace.platform.measure.fabric import FabricProgress
    from foretrace.platform.measure.host import HostProgress

SHARES = {"fabric": 1.0, "device": 8.0, "host": 2.0}
"""The parts in the order they are measured, and how the minutes are split among them."""
ROUND_SECONDS = 120.0
"""After so long the models are fitted in between, to see where the next minutes are spent best."""
FIRST_SHARES = {name: math.sqrt(family.share) for name, family in DRAWN.items()}
"""Parts of the time before anything is known of errors: more even than families matter, since none fits on nothing."""
UNFITTED = 3.0
"""A family that has too few measurements to be fitted counts as if it were off by so many times the usual."""
COMPILED_PART = 0.05
"""Of the time, for kernels that torch.compile makes."""
COMPILED_LEAST = 200.0
"""Seconds that it takes to compile and measure as many of them as a model needs: with less, none is."""
REHEARSED = 0.5
"""Of the time for the calls of a step, the part in which they are timed in its order."""
PROBLEM = 120
"""Characters of what a call says that can't be made: PyTorch goes on for pages."""
AGAIN = "Measure again when it is idle, with another --out"
"""For what was measured when it was not: it is kept like all else."""
APART = 0.5
"""How far repeats of a step's calls may lie apart, as a share of their time, before the measurements are in doubt."""
THROTTLED = 0.1
"""Drift of the reference call from which on the measurements are in doubt."""


@dataclass
class Outcome:
    """What was measured, and what the reader should know of it."""

    families: list[Progress] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def calibrate(
    out: Path,
    parts: Collection[str] = tuple(SHARES),
    minutes: float = 10.0,
    on: str | None = None,
    families: Sequence[str] = (),
    like: Graph | None = None,
    told: Told = lambda stage: None,
) -> Outcome:
    """Measure parts of the machine at hand into a platform's folder, and fit them.

    Stopped and begun again, it goes on with what is there.

    Parameters
    ----------
    out
        The folder.
    parts
        ``device``, ``host``, ``fabric``. Where no torchrun started this process, a fabric among others is left out.
    minutes
        How long to measure, all parts together.
    on
        The device, like ``cuda:1`` or ``cpu``; the first GPU where there is one.
    families
        Of kernels; all where none is named.
    like
        Measure exactly the calls of this step on the device, and no families.
    told
        Told how far it is.
    """
    ours = [part for part in SHARES if part in parts and (part != "fabric" or _rank() is not None or len(parts) == 1)]
    seconds = {part: 60 * minutes * SHARES[part] / sum(SHARES[one] for one in ours) for part in ours}
    outcome, raw = Outcome(), out / RAW
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler says when it starts and stops, thousands of times
    if "fabric" in ours:
        measure_fabric(raw, seconds["fabric"], told)
    if not is_first_rank():
        return outcome  # the other ranks were needed for the fabric only
    with alone_in(out):
        if "device" in ours:
            describe_device(raw, on, outcome, told)
            if like:
                measure_like(raw, on, seconds["device"], like, outcome, told)
            else:
                measure_kernels(raw, on, seconds["device"], families, outcome, told)
            outcome.notes += _disturbed(outcome)
        if "host" in ours:
            measure_host(raw, on, seconds["host"], outcome, told)
        outcome.notes += fit(out, parts=ours, told=lambda words: told(Stage(words)), anew=False)
    return outcome


def is_first_rank() -> bool:
    """Whether this process is the one of a torchrun that speaks; it is where there is no torchrun."""
    return not _rank()


def _rank() -> int | None:
    """Which of the processes of a torchrun this is; None where there is no torchrun."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() else None


def describe_device(raw: Path, on: str | None, outcome: Outcome, told: Told) -> None:
    """Keep what the device says of itself and can do at best; whether it is fit to be measured is noted."""
    from foretrace.platform.measure.ceilings import measure_ceilings
    from foretrace.platform.measure.describe import device_facts
    from foretrace.platform.measure.health import complaints
    from foretrace.platform.measure.machine import find_device

    device = find_device(on)
    outcome.notes += complaints(device)
    told(Stage("warming up"))
    measure_ceilings(raw, device)
    device_facts(device).write(raw)


def measure_kernels(
    raw: Path, on: str | None, seconds: float, families: Sequence[str], outcome: Outcome, told: Told
) -> None:
    """Measure families of kernels, and what a compiler makes."""
    from foretrace.platform.measure.compiled import can_compile, measure_compiled
    from foretrace.platform.measure.machine import find_device

    device = find_device(on)
    drawn = [name for name in families or DRAWN if name != COMPILED]
    compiled = seconds * COMPILED_PART if drawn else seconds
    if not (COMPILED in families or (not families and compiled > COMPILED_LEAST and can_compile(device))):
        compiled = 0.0
    if drawn:
        measure_families(raw, device, seconds - compiled, drawn, outcome, told)
    if compiled:
        told(Stage("compiling", 0.0, compiled))
        report = _reporter(told, time.monotonic(), compiled)
        outcome.families.append(measure_compiled(raw, device, compiled / 60, report))


def measure_families(
    raw: Path, device: Any, seconds: float, families: Sequence[str], outcome: Outcome, told: Told
) -> None:
    """Measure families of kernels in rounds: after each, those with large errors get more of the time."""
    from foretrace.platform.measure.calibrate import calibrate as measure
    from foretrace.platform.measure.crew import Crew, workers_for

    rounds = max(1, round(seconds / ROUND_SECONDS)) if can_fit() else 1
    begun = time.monotonic()
    report = _reporter(told, begun, seconds)
    shares = FIRST_SHARES
    with Crew(device, workers_for(device, _seconds_planned(families, seconds))) as crew:
        for left in range(rounds, 0, -1):
            if left < rounds:
                told(Stage("looking where the models are worst", time.monotonic() - begun, seconds))
                shares = shares_by_error(held_out_errors(raw))
            length = max(0.0, seconds - (time.monotonic() - begun)) / left
            _add(outcome.families, measure(raw, device, length / 60, families, report, shares=shares, crew=crew))
    unmeasured = [progress.family for progress in outcome.families if not progress.cases + progress.failed]
    if unmeasured:
        which = ", ".join(unmeasured) if len(unmeasured) < len(families) else "any family"
        outcome.notes.append(f"the time did not do for {which}: measure longer")


def _seconds_planned(families: Sequence[str], seconds: float) -> float:
    """How many of the seconds go to families whose kernels are planned slowly."""
    planned = sum(FIRST_SHARES[name] for name in families if DRAWN[name].slow_to_plan)
    return seconds * planned / sum(FIRST_SHARES[name] for name in families)


def measure_like(raw: Path, on: str | None, seconds: float, like: Graph, outcome: Outcome, told: Told) -> None:
    """Measure each distinct call of a step that does something: on processors in the order of the step, all others
    one by one. Of these, what was measured before is left out."""
    from foretrace.platform.measure.exact import add_measured, measure_cases
    from foretrace.platform.measure.machine import find_device
    from foretrace.platform.measure.timed import REFUSALS, problem_of

    device, began = find_device(on), time.monotonic()
    cases = cases_of(like, device.type)
    if device.type == "cpu":
        told(Stage("rehearsing the step", 0.0, seconds))
        from foretrace.rehearsing import by_case, rehearse

        try:
            found = by_case(rehearse(like, seconds * REHEARSED), cases)
            rehearsed = add_measured(found, raw, device)
            rehearsed.seconds = time.monotonic() - began
            outcome.families.append(rehearsed)
        except REFUSALS as problem:  # it does not hold what a replay needs, or does not fit into memory
            outcome.notes.append(f"calls are timed one by one: {_short(problem_of(problem))}")
    left = max(seconds - (time.monotonic() - began), 1.0)
    report = _reporter(told, time.monotonic(), left)
    each = {case_key(case): case for case in {id(case): case for case in cases.values()}.values()}
    alone = measure_cases(each.values(), raw, device, left / 60, report)
    _add(outcome.families, [alone])
    if alone.failed:
        outcome.notes.append(f"calls that can't be made here: {alone.failed:,}, as {_short(alone.problem)}")


def _short(problem: str) -> str:
    return shorten(problem, PROBLEM, placeholder=" …")


def cases_of(like: Graph, kind: str) -> dict[int, Case]:
    """The case of each op of a step that does something on a kind of device, by its row."""
    rows = dispatched(like)
    ops = [like.ops[int(row)] for row in rows]
    places = {int(row): place for place, row in enumerate(rows)}
    indices = [replace(found, op=places[found.op]) for found in like.indices if found.op in places]
    # All calls are looked at: one that does nothing itself may tell what ids a later one is given.
    each = zip(rows.tolist(), ops, case_of_each(ops, indices, like.tf32))
    return {row: case for row, op, case in each if case and not launches_nothing(op, kind)}


def _reporter(told: Told, begun: float, seconds: float) -> Callable[[Progress], None]:
    def report(progress: Progress) -> None:
        told(Stage(f"{progress.family}: {progress.cases:,} cases", time.monotonic() - begun, seconds))

    return report


def _disturbed(outcome: Outcome) -> list[str]:
    """What speaks for it that something else used the device: calls that took longer at one time than at another."""
    from foretrace.platform.measure.calibrate import slowed

    found = []
    if (drift := slowed(outcome.families)) > THROTTLED:
        found.append(f"one and the same product took up to {1 + drift:,.1f} times as long")
    spread = max((done.spread or 0.0 for done in outcome.families if done.family == EXACT), default=0.0)
    if spread > APART:
        found.append(f"repeats of a call lie {100 * spread:.0f} % apart")
    return [f"the device was busy or throttled: {said}. {AGAIN}" for said in found]


def _add(total: list[Progress], more: list[Progress]) -> None:
    """Count a round in."""
    known = {progress.family: progress for progress in total}
    for progress in more:
        if progress.family in known:
            known[progress.family].join(progress)
        else:
            total.append(progress)


def held_out_errors(raw: Path) -> dict[str, float]:
    """How far models that are fitted on what is measured so far miss measurements they have not seen, by family."""
    from foretrace.cost_models.kernels.fitting import estimated_errors

    return estimated_errors(raw, describe(DeviceFacts.read(raw), read_all(raw, CEILINGS), "here"))


def shares_by_error(errors: Mapping[str, float]) -> dict[str, float]:
    """Parts of the time that go with how much a family matters and how large its error is.

    >>> shares = shares_by_error({name: 0.03 if name == "matrix" else 0.02 for name in DRAWN})
    >>> round(shares["matrix"] / DRAWN["matrix"].share / (shares["attention"] / DRAWN["attention"].share), 6)
    1.5
    """
    usual = sum(errors.values()) / len(errors) if errors else 1.0
    return {name: family.share * errors.get(name, UNFITTED * usual) for name, family in DRAWN.items()}


def measure_host(raw: Path, on: str | None, seconds: float, outcome: Outcome, told: Told) -> None:
    """Measure what calls cost on the host."""
    from foretrace.platform.measure import host as measuring
    from foretrace.platform.measure.machine import find_device

    def report(progress: HostProgress) -> None:
        told(Stage(f"host: {progress.rounds} rounds", progress.seconds, seconds))

    told(Stage("host", 0.0, seconds))
    done = measuring.calibrate_host(raw, seconds / 60, report, find_device(on))
    if done.noisy:
        outcome.notes.append(
            f"something else kept the host busy: repeats of a step lie {100 * done.spread:.0f} % apart. {AGAIN}"
        )


def calibrate_host(seconds: float = 60.0, on: str | None = None) -> Host:
    """The host that this runs on, measured for so long: ``ft.platform("h200", host=ft.calibrate_host())``.

    Parameters
    ----------
    seconds
        How long; a round over all small steps is made at least.
    on
        The device that the host drives, like ``cuda:1`` or ``cpu``; the first GPU where there is one.
    """
    with temporary_folder() as folder:
        calibrate(folder / "this host", ("host",), seconds / 60, on)
        return read_host(folder / "this host")


def measure_fabric(raw: Path, seconds: float, told: Told) -> None:
    """Measure what collectives take between the ranks of this torchrun."""
    from foretrace.platform.measure.fabric import calibrate_fabric

    def report(progress: FabricProgress) -> None:
        seen = progress.exchange
        told(Stage(f"{seen.kind} of {seen.ranks} ranks, {seen.nbytes:,} bytes", progress.seconds, seconds))

    calibrate_fabric(raw / FABRIC_FILE, seconds, report)
