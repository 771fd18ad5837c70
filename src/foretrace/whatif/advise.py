"""Advice: the plans that train a step fastest, cheapest, or on the fewest GPUs, found by a search over what transforms
and `parallelize` express (`plans`, `plan_search`)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from os import cpu_count
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace._progress import OnProgress, Progress
from foretrace.analysis.report import NotebookDocument
from foretrace.api import as_job, predict
from foretrace.errors import ForetraceError, check_count, check_price
from foretrace.graph import MAX_RANKS, Graph, Job
from foretrace.platform.registry import load_platform
from foretrace.prediction.notes import recorded_notes
from foretrace.transforms.blocks import all_repeated_blocks
from foretrace.whatif.changes import EditedJob
from foretrace.whatif.grammar import Change, read_changes
from foretrace.whatif.plan_lines import lines, reasons
from foretrace.whatif.plan_search import Search
from foretrace.whatif.plan_simulator import Simulate, Simulator, fewest_blocks
from foretrace.whatif.plans import Plan, as_changes, contradiction, divisors, factors_of, settings
from foretrace.whatif.points import REPEATED
from foretrace.whatif.what_if import one_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from foretrace.platform.platform import Platform

GOALS = ("fastest", "cheapest", "fewest")
LARGE_STEP = 2_000
"""Calls of a step from which on plans are simulated by several processes: starting them takes seconds."""
RANGED = 3
"""Plans whose ranges are predicted."""


@dataclass
class Advice(NotebookDocument):
    """The best plans, best first."""

    source: str
    platform: str
    world: int
    goal: str
    plans: list[Plan]
    space: int
    """Plans that there are."""
    simulated: int
    given: Plan | None = None
    """The step as it is, on as many ranks, each with a batch like the given one."""
    notes: list[str] = field(default_factory=list)
    pruned: int = 0
    """Plans whose weights, gradients and optimizer states alone are too large."""


def advise(
    what: Graph | Job | str | Path,
    on: str = "h200",
    world: int = 1,
    goal: str = "fastest",
    target_ms: float | None = None,
    memory_limit: int | None = None,
    price: float | None = None,
    fabric: str | None = None,
    gpus_per_node: int | None = None,
    top: int = 10,
    seconds: float | None = None,
    samples: int | None = None,
    fixed: Sequence[str] = (),
    workers: int | None = None,
    ray: str | None = None,
    on_progress: OnProgress = lambda progress: None,
) -> Advice:
    """The best ways to train a step on some GPUs.

    Parameters
    ----------
    what
        A script, a recording or a graph of one rank, as in `foretrace.predict`.
    on, fabric, gpus_per_node
        The platform, and what joins its GPUs.
    world
        How many GPUs there are.
    goal
        ``fastest``: the least time for a sample. ``cheapest``: the least of all GPUs' time for a sample, on fewer of
        them where that is better. ``fewest``: the fewest GPUs whose step takes at most ``target_ms``.
    memory_limit
        Bytes that PyTorch may reserve on a GPU; what the device has where left out.
    price
        Dollars for an hour of a GPU.
    top
        How many plans are listed.
    seconds
        After so long the best so far are given; so they are when it is interrupted.
    samples
        In a step of all ranks together; where left out, ranks may have any batch, but for the goal ``fewest``, whose
        steps have as many samples as the given one.
    fixed
        Changes that every plan has: ``["batch=8", "sharded=on"]``.
    workers, ray
        Processes that simulate plans, and the address of a Ray cluster, as in `foretrace.sweep`.
    """
    _check(goal, target_ms, memory_limit, world, samples, price)
    _check_fixed(read_changes(fixed))
    where = load_platform(on, fabric=fabric)
    on_progress(Progress("reading"))
    job = one_step(as_job(what, where.device.kind))
    _check_job(job, world)
    end = None if seconds is None else time.monotonic() + seconds
    edited = EditedJob(job)
    batch = edited.batch
    if goal == "fewest" and samples is None:
        samples = _samples_to_keep(job, edited, world)
    worlds = [world] if goal == "fastest" else [n for n in divisors(world) if goal == "fewest" or n * 8 >= world]
    searches, notes = list[Search](), recorded_notes(job)

    def say(text: str) -> None:
        on_progress(Progress(text))

    try:
        with _simulating(job, on, fabric, gpus_per_node, workers, ray) as (simulate, at_once):
            for size in worlds:
                factors = factors_of(job, size, samples)
                search = Search(job, where, size, simulate, memory_limit, gpus_per_node, fixed, factors, at_once)
                searches.append(search)
                search.run(end, say)
                search.refine(top, end, say)
                if target_ms is not None and search.reaches(target_ms):
                    break
    except KeyboardInterrupt:
        notes.append("interrupted: these are the best so far")
    else:
        notes += ["the time was up: these are the best so far"] * (end is not None and time.monotonic() > end)
    found = _ranked([plan for search in searches for plan in search.plans() if plan.fits], goal, target_ms)
    if not found:
        raise _none(searches, world, samples, fixed)
    if target_ms is not None and found[0].step_ms > target_ms:
        notes += _too_slow(found[0], searches[-1], target_ms)
    listed = _distinct(found)[:top]
    for plan in listed:
        plan.cost = price * plan.gpu_us / 3600 if price is not None and plan.samples else None
        plan.why = list(reasons(plan))
    with suppress(KeyboardInterrupt):
        few, count = fewest_blocks(job), len(all_repeated_blocks(list(job.graphs[0].ops)))
        for plan in listed:
            plan.apply = lines(plan, few, _script(what), gpus_per_node, count)
        if end is None or time.monotonic() < end:
            _add_ranges(listed[:RANGED], job, where, gpus_per_node, end, on_progress)
    notes += _remarks(listed, samples, batch)
    notes += edited.batch_notes([change for plan in listed for change in read_changes(plan.changes)])
    given = next((plan for plan in searches[-1].plans() if len(settings(plan.changes)) <= 1 + len(fixed)), None)
    space, simulated = sum(len(s.space) for s in searches), sum(s.simulated for s in searches)
    return Advice(job.source, on, world, goal, listed, space, simulated, given, notes, sum(s.pruned for s in searches))


def _remarks(listed: Sequence[Plan], samples: int | None, batch: int | None) -> Iterator[str]:
    if any((plan.sustained_ms or 0.0) > plan.next_ms for plan in listed):
        yield REPEATED
    if batch is None and any(plan.ranks > 1 for plan in listed):
        yield "the step does not show how many samples it has: each data parallel rank is taken to have as many"
    if any(plan.estimated for plan in listed):
        yield "plans marked ~ are extrapolated from fewer blocks"
    if samples is None and any("batch" in settings(plan.changes) for plan in listed):
        yield "whether another batch trains as well is not predicted; --samples N keeps that of a step"


def _check(
    goal: str, target_ms: float | None, memory_limit: int | None, world: int, samples: int | None, price: float | None
) -> None:
    if goal not in GOALS:
        raise ForetraceError(f"there is no goal {goal!r}", f"There are {', '.join(GOALS)}.")
    if (goal == "fewest") != (target_ms is not None):
        raise ForetraceError("the goal fewest needs a target, and no other has one", "Give both: --target 250ms.")
    if memory_limit is not None and memory_limit <= 0:
        raise ForetraceError("no plan fits in no memory", "Give gibibytes, as in --memory 70.")
    if price is not None:
        check_price(price)
    check_count(world, "world", MAX_RANKS)
    if samples is not None:
        check_count(samples, "samples", 10**9)


def _check_fixed(fixed: Iterable[Change]) -> None:
    for change in fixed:
        if change.name == "batch" and not change.value.isdecimal():
            raise ForetraceError(
                f"plans can't have {change}: they are compared by how many samples they have",
                "Give a number, as in --set batch=64, or leave it out: several are tried.",
            )


def _check_job(job: Job, world: int) -> None:
    if not any(op.phase == "optimizer" for op in job.graphs[0].ops) and world > 1 and job.world == 1:
        raise ForetraceError(
            f"{job.source or 'the step'} has no optimizer: only training is shared between ranks",
            "Give a whole training step, or --world 1.",
        )


def _samples_to_keep(job: Job, edited: EditedJob, world: int) -> int | None:
    """Samples of a step, which it shall have on any number of GPUs."""
    if edited.batch is None and world > 1:
        raise ForetraceError(
            f"{job.source or 'the step'} does not show how many samples it has, for steps of as many on fewer GPUs",
            "Give it a batch of several samples.",
        )
    return edited.batch and edited.batch * edited.micro_batches


@contextmanager
def _simulating(
    job: Job, on: str, fabric: str | None, gpus_per_node: int | None, workers: int | None, ray: str | None
) -> Iterator[tuple[Simulate, int]]:
    """What simulates plans, and how many at once: this process, others of this machine, or a Ray cluster."""
    given = (job, on, fabric, gpus_per_node)
    large = len(job.graphs[0].ops) >= LARGE_STEP
    count = workers or (cpu_count() or 1 if large else 1)
    if ray is not None:
        from foretrace.whatif.workers import simulated_on_ray

        with simulated_on_ray(ray, given, workers) as found:
            yield found
    elif count > 1:
        from foretrace.whatif.workers import simulated_in_processes

        with simulated_in_processes(given, count) as simulate:
            yield simulate, count
    else:
        yield Simulator(*given).points, 1


def _script(what: object) -> str:
    text = str(what) if isinstance(what, (str, Path)) else ""
    return text.removeprefix("python ") if ".py" in text else "train.py"


def _ranked(plans: list[Plan], goal: str, target_ms: float | None) -> list[Plan]:
    if goal == "cheapest":
        return sorted(plans, key=lambda plan: (plan.gpu_us, plan.changes))
    if target_ms is None:
        return sorted(plans, key=lambda plan: (plan.sample_us, plan.changes))
    reaching = [plan for plan in plans if plan.step_ms <= target_ms]
    if reaching:
        return sorted(reaching, key=lambda plan: (plan.ranks, plan.sample_us, plan.changes))
    return sorted(plans, key=lambda plan: (plan.step_ms, plan.changes))


def _distinct(plans: Iterable[Plan]) -> list[Plan]:
    """Plans without those that only repeat a better one: same time and memory by other words."""
    found: dict[tuple[float, int | None, int], Plan] = {}
    for plan in plans:
        found.setdefault((round(plan.sample_us, 3), plan.reserved_bytes, plan.ranks), plan)
    return list(found.values())


def _too_slow(nearest: Plan, search: Search, target_ms: float) -> list[str]:
    """That no plan reaches the target, and what stands in the way."""
    least = search.bounds.sample_us(tuple(nearest.changes)) * (nearest.samples or 1) / 1e3
    point = search.points.get(tuple(nearest.changes))
    device = f"{point.device_active_ms:.4g} ms of it is device work" if point and point.device_active_ms else ""
    peak = f"at peak rates its GEMMs and its communication take {least:.4g} ms" if least else ""
    way = "; ".join(filter(None, (device, peak)))
    more = "more GPUs help" if least < target_ms else "only more GPUs, fewer samples or a faster GPU help"
    return [f"no plan reaches {target_ms:g} ms: the nearest takes {nearest.step_ms:.4g} ({way}): {more}"]


def _none(searches: Sequence[Search], world: int, samples: int | None, fixed: Sequence[str]) -> ForetraceError:
    """Why there is no plan at all."""
    plans = [plan for search in searches for plan in search.plans()]
    if plans:
        smallest = min(plans, key=lambda plan: plan.reserved_bytes or plan.memory_bytes or 0)
        held = (smallest.reserved_bytes or smallest.memory_bytes or 0) / 2**30
        search = next(s for s in searches if tuple(smallest.changes) in s.points)
        state = search.bounds.nbytes(tuple(smallest.changes)) / 2**30
        said = f"no plan fits: the smallest needs {held:.3g} GiB on a GPU ({', '.join(smallest.changes) or 'as it is'})"
        return ForetraceError(
            f"{said}, of which weights, gradients and optimizer states are {state:.3g}",
            "More GPUs to share them, a smaller batch or fewer samples help.",
        )
    if (refused := contradiction(searches[-1].factors, fixed)) is not None:
        return refused
    errors = [point.error for search in searches for point in search.points.values() if point.error]
    kept = f" with {', '.join(fixed)}" if fixed else ""
    advice = "Set less, or other numbers." if not errors else "Try another number of GPUs."
    if samples is not None and samples % world:
        dividing = [n for n in divisors(samples) if n <= 2 * world]
        near = min(dividing, key=lambda n: (abs(n - world), n))
        advice = f"{near:,} GPU{'s' * (near > 1)} would do, or a multiple of {world:,} samples."
        if not errors:
            return ForetraceError(
                f"no plan divides {samples:,} samples between {world:,} GPU{'s' * (world > 1)}{kept}", advice
            )
    if errors:
        return ForetraceError(
            f"no plan can be simulated on {world:,} GPU{'s' * (world > 1)}{kept}: {errors[0]}", advice
        )
    return ForetraceError(f"no plan divides the step between {world:,} GPU{'s' * (world > 1)}{kept}", advice)


def _add_ranges(
    plans: list[Plan], job: Job, where: Platform, gpus_per_node: int | None, end: float | None, on_progress: OnProgress
) -> None:
    """The ranges of the first plans' steps, by a full prediction; of those with too many calls, by one with fewer."""
    simulator = Simulator(job, where.name)
    for plan in plans:
        if end is not None and time.monotonic() > end:
            return
        on_progress(Progress("predicting the best plans in full"))
        with suppress(ForetraceError):
            fewer, changes = simulator.smaller(tuple(plan.changes))
            made = EditedJob(fewer).by(as_changes(changes))
            report = predict(made, where, kernels="model", gpus_per_node=gpus_per_node)
            plan.low_ms, plan.high_ms = (plan.step_ms * ms / report.step_ms for ms in (report.low_ms, report.high_ms))
