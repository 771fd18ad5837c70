"""The search for the best plan of one number of ranks: few plans are simulated, chosen by bounds and a model.

A Gaussian process over the settings of the simulated plans, of time and of memory, says which plan is expected to
improve most on the best so far; those whose bound is above that one, or above the memory, are never tried. Steps of
many blocks are simulated with few, twice, and extrapolated: time and memory grow by the same amount with each block.
The best are then simulated in whole.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from foretrace.errors import ForetraceError
from foretrace.graph import Job
from foretrace.graph.tables import Floats
from foretrace.platform.platform import Platform
from foretrace.prediction.fabric_choice import choose_fabric
from foretrace.prediction.memory import COMMUNICATOR_BYTES, CONTEXT_BYTES
from foretrace.transforms.blocks import repeated_blocks
from foretrace.transforms.resize.batch_sequence import batch_size
from foretrace.whatif.changes import EditedJob
from foretrace.whatif.plans import (
    MIN_BLOCKS,
    Choice,
    Factor,
    Plan,
    PlanBounds,
    as_changes,
    factors_of,
    features_of,
    plans_of,
    settings,
)
from foretrace.whatif.points import Point
from foretrace.whatif.sweep import Subject, Swept

MAX_SHARE = 0.05
"""Of the plans, how many are simulated at most; never fewer than `FEWEST`."""
FEWEST = 40
PATIENCE, MOST_PATIENCE = 0.6, 40
"""Of the plans that may be simulated, how many in a row that are no better end the search; and at most."""
TRIES = 2
"""Plans with a setting that have to fail, and no other to succeed, before it is given up."""
MIN_GAIN = 1e-4
"""Expected gain, in logarithms, below which no plan is worth a simulation."""
SPREADS = tuple(product((0.2, 0.5, 1.0), (0.03, 0.1, 0.2), (0.1, 0.3)))
"""Prior standard deviations of logarithms that are tried: what a setting changes, what two of them do together, and
what all of them do besides."""
NOISE = 0.01
"""How far a simulation is off, as a standard deviation."""
ALIKE = 4.0
"""Number of settings by which plans may differ and still tell much of each other."""
BLOCKS_A_STAGE = (2, 4)
"""Of each stage, where a step of many is simulated with few."""

Simulate = Callable[[Sequence[Choice], bool], Sequence[Point]]
"""Points of some plans, in their order; extrapolated from fewer blocks, or in whole."""


class Simulator:
    """Plans of a job, simulated on a platform, in whole or extrapolated from fewer blocks."""

    def __init__(self, job: Job, on: str, fabric: str | None = None, gpus_per_node: int | None = None) -> None:
        self._on, self._fabric, self._per_node = on, fabric, gpus_per_node
        self._jobs = {0: job}
        """The job with fewer blocks, by their number; as it is, with 0."""
        self._swept: dict[int, Swept] = {}
        self._blocks = len(repeated_blocks(job.graphs[0].ops)) if job.world == 1 else 0

    def whole(self, changes: Choice, blocks: int = 0) -> Point:
        """A plan, simulated as it is, or with fewer blocks."""
        if blocks not in self._swept:
            if blocks not in self._jobs:
                # Of the one with the fewest blocks that has enough: the fewer there are to remove, the faster.
                base = self._jobs[min((n for n in self._jobs if n > blocks), default=0)]
                self._jobs[blocks] = EditedJob(base).by(as_changes([f"depth={blocks}"]))
            share = blocks / self._blocks if blocks else 1.0
            subject = Subject(self._jobs[blocks], (self._on,), self._fabric, self._per_node, share=share)
            self._swept[blocks] = Swept(subject)
        (point,) = self._swept[blocks].points(as_changes(changes), [self._on])
        return point

    def depths(self, changes: Choice) -> tuple[int, int] | None:
        """The numbers of blocks that a plan is extrapolated from; None where it is simulated as it is."""
        given = settings(changes)
        stages = int(given.get("pipeline", 1)) * int(given.get("chunks", 1))
        few, more = (max(each * stages, 2) for each in (BLOCKS_A_STAGE if stages == 1 else (1, 2)))
        # Of checkpointed shares, each stage has whole ones.
        each = stages * int(given.get("checkpoint", "").partition("/")[2] or 1)
        few, more = (-(-blocks // each) * each for blocks in (few, more))
        more = max(more, 2 * few)
        return (few, more) if self._blocks >= MIN_BLOCKS and few + more < self._blocks * 0.75 else None

    def extrapolated(self, changes: Choice) -> Point:
        """A plan by its forecasts with few blocks."""
        found = self.depths(changes)
        if found is None:
            return self.whole(changes)
        try:
            more, few = (self.whole(changes, blocks) for blocks in reversed(found))
        except ForetraceError:  # its blocks can't be removed
            self._blocks = 0
            return self.whole(changes)
        if few.error or more.error or few.next_ms is None or more.next_ms is None:
            return self.whole(changes)
        given = settings(changes)
        stages = int(given.get("pipeline", 1)) * int(given.get("chunks", 1))
        blocks = -(-self._blocks // stages) * stages  # the fullest stage is the slowest
        ahead = (blocks - found[0]) / (found[1] - found[0])

        def line(name: str) -> float:
            first, second = (getattr(point, name) or 0 for point in (few, more))
            return float(first + (second - first) * ahead)

        sizes: dict[str, Any] = {
            name: round(line(name)) for name in ("memory_bytes", "reserved_bytes") if getattr(few, name)
        }
        times: dict[str, Any] = {name: line(name) for name in ("step_ms", "next_ms", "device_ms")}
        return replace(more, changes=list(changes), fits=None, **times, **sizes)

    def points(self, plans: Sequence[Choice], whole: bool) -> list[Point]:
        """The points of some plans."""
        return [self.whole(plan) if whole else self.extrapolated(plan) for plan in plans]


def fewest_blocks(job: Job) -> Job:
    """The job with as few blocks as there can be: what does not depend on their number is found faster."""
    with suppress(ForetraceError):
        if job.world == 1 and len(repeated_blocks(job.graphs[0].ops)) >= MIN_BLOCKS:
            return EditedJob(job).by(as_changes([f"depth={BLOCKS_A_STAGE[0]}"]))
    return job


def _effort(plan: Choice) -> int:
    """How long a simulation takes, roughly: every stage does every microbatch."""
    given = settings(plan)
    return int(given.get("pipeline", 1)) * int(given.get("microbatches", 1))


Flags = npt.NDArray[np.bool_]


class SettingsModel:
    """A Gaussian process over settings: each has an effect, so have pairs, and plans with many in common deviate alike.

    How large these are is what makes the known values most likely, among a few combinations.
    """

    def __init__(self, known: Floats, values: Floats) -> None:
        self._known, self._mean = known, float(values.mean())
        off = values - self._mean
        likely = -np.inf
        for spreads in SPREADS:
            covariance = _covariance(known, known, spreads) + NOISE**2 * np.eye(len(known))
            factor = np.linalg.cholesky(covariance)
            fitted = np.linalg.solve(covariance, off)
            evidence = -0.5 * off @ fitted - np.log(np.diag(factor)).sum()
            if evidence > likely:
                likely, self._spreads, self._weights, self._inverse = (
                    evidence,
                    spreads,
                    fitted,
                    np.linalg.inv(covariance),
                )

    def predicted(self, asked: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation for what is asked."""
        near, count = _covariance(asked, self._known, self._spreads), asked.sum(axis=1)
        setting, pair, plan = (spread**2 for spread in self._spreads)
        prior = setting * count + pair * count * (count - 1) / 2 + plan
        left = prior - ((near @ self._inverse) * near).sum(axis=1)
        return self._mean + near @ self._weights, np.sqrt(np.maximum(left, NOISE**2))


def _covariance(some: Floats, others: Floats, spreads: tuple[float, float, float]) -> Floats:
    setting, pair, plan = (spread**2 for spread in spreads)
    shared = some @ others.T
    off = some.sum(axis=1)[:, None] + others.sum(axis=1)[None] - 2 * shared
    return np.asarray(setting * shared + pair * shared * (shared - 1) / 2 + plan * np.exp(-off / ALIKE))


def normal_density(x: Floats) -> Floats:
    """The density of the standard normal distribution."""
    return np.asarray(np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi))


def normal_cdf(x: Floats) -> Floats:
    """The standard normal distribution, to five digits (Abramowitz and Stegun 26.2.17).

    >>> normal_cdf(np.array([0.0, 1.6449])).round(4).tolist()
    [0.5, 0.95]
    """
    t = 1 / (1 + 0.2316419 * np.abs(x))
    tail = t * (0.31938153 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    above = normal_density(x) * tail
    return np.asarray(np.where(x < 0, above, 1 - above))


class Search:
    """The plans of one number of ranks: those simulated, and the model that says which to try next."""

    def __init__(
        self,
        job: Job,
        where: Platform,
        world: int,
        simulate: Simulate,
        memory_limit: int | None = None,
        gpus_per_node: int | None = None,
        fixed: Sequence[str] = (),
        factors: Sequence[Factor] | None = None,
        at_once: int = 1,
    ) -> None:
        self.job, self.world, self._limit, self._at_once = job, world, memory_limit, at_once
        self._device, self._simulate = where.device, simulate
        self.factors = list(factors) if factors is not None else factors_of(job, world)
        self.space = plans_of(self.factors, fixed)
        self.points: dict[Choice, Point] = {}
        self.whole: set[Choice] = set()
        """Those that were simulated with all blocks."""
        batch = None
        with suppress(ForetraceError):
            batch = batch_size(job.graphs[0])
        self._features = features_of(self.space, batch)
        self._place = {plan: place for place, plan in enumerate(self.space)}
        fabric = where.fabric
        if fabric is None and world > 1 and job.world == 1:
            with suppress(ForetraceError):
                fabric, _ = choose_fabric(None, None, where.device.matches, world, gpus_per_node)
        self.bounds = PlanBounds(job, where, fabric, gpus_per_node)
        self._sample_us = np.array([self.bounds.sample_us(plan, world) for plan in self.space])
        self._likely_bytes = np.array([max(self.bounds.likely_bytes(plan), 1.0) for plan in self.space])
        self._possible = np.array([self.bounds.nbytes(plan) <= self._available(plan) for plan in self.space], bool)
        self.pruned = int((~self._possible).sum())

    @property
    def simulated(self) -> int:
        """How many plans were."""
        return len(self.points)

    def run(self, end: float | None = None, say: Callable[[str], None] = lambda text: None) -> None:
        """Simulate plans until no better one is likely, or the time is up."""
        most = max(math.ceil(MAX_SHARE * len(self.space)) - 1, FEWEST)
        patience = min(PATIENCE * most, MOST_PATIENCE)
        first, since = self._first_plans(), 0
        while len(self.points) < most and since < patience and (end is None or time.monotonic() < end):
            chosen = first[: self._at_once] or self._most_promising(min(self._at_once, most - len(self.points)))
            if not chosen:
                break
            best = self._best_us()
            say(f"plan {len(self.points) + 1:,} of at most {most:,}, {len(self.space):,} in all{self._so_far()}")
            self._try(chosen, False)
            if first:
                first = first[self._at_once :] or self._first_plans()
            elif self._best_us() < best * (1 - 1e-4):
                since = 0
            else:
                since += len(chosen)

    def refine(self, count: int, end: float | None = None, say: Callable[[str], None] = lambda text: None) -> None:
        """Simulate the best plans with all blocks, until so many of the best were, or the time is up."""
        while end is None or time.monotonic() < end:
            left = [plan for plan in self.ranked()[:count] if plan not in self.whole]
            if not left:
                return
            say(f"simulating the best plans in whole, {len(left)} left{self._so_far()}")
            self._try(left[: self._at_once], True)

    def all_plans(self) -> None:
        """Simulate every plan: what the search is held against."""
        self._try([plan for plan in self.space if plan not in self.points], False)

    def ranked(self) -> list[Choice]:
        """Simulated plans that fit, the fastest for a sample first."""
        known = [plan for plan, point in self.points.items() if point.next_ms is not None and self.fits(plan)]
        return sorted(known, key=lambda plan: (self._us(plan), plan))

    def plans(self) -> list[Plan]:
        """The simulated plans, those that do not fit too."""
        return [self._plan(plan, point) for plan, point in self.points.items() if point.next_ms is not None]

    def reaches(self, target_ms: float) -> bool:
        """Whether the step of a plan that fits takes no longer."""
        return any(plan.step_ms <= target_ms for plan in self.plans() if plan.fits)

    def _plan(self, plan: Choice, point: Point) -> Plan:
        assert point.step_ms is not None and point.next_ms is not None
        per_second = point.samples / point.next_ms * 1e3 if point.samples else None
        return Plan(
            list(plan), point.ranks, point.step_ms, point.next_ms, point.samples, per_second, point.memory_bytes,
            point.reserved_bytes, self.fits(plan), estimated=plan not in self.whole and point.fits is None,
        )  # fmt: skip

    def _try(self, plans: Sequence[Choice], whole: bool) -> None:
        for plan, point in zip(plans, self._simulate(plans, whole)):
            self.points[plan] = point
            if whole:
                self.whole.add(plan)

    def _first_plans(self) -> list[Choice]:
        """The first possible plan, and for each setting the plan that has it and else differs least from that one.

        A setting whose plan failed has another one, without what else failed.
        """
        if not len(self.space):
            return []
        tried = np.array([self._place[plan] for plan in self.points], int)
        wrong = np.array([point.next_ms is None for point in self.points.values()], bool)
        failed, made = (self._features[tried[which]].sum(axis=0) for which in (wrong, ~wrong))
        base = int(np.argmax(self._possible))
        sure = [base, *tried[~wrong].tolist()]
        found = dict.fromkeys(sure)
        off = np.abs(self._features - self._features[base]).sum(axis=1) + 100.0 * ~self._possible
        off += 20.0 * self._features @ ((failed > 0) & (made == 0))
        off[tried] = np.inf
        for column in range(1, self._features.shape[1]):
            for value in (0.0, 1.0):
                has = self._features[:, column] == value
                if has[sure if failed[column] else list(found)].any() or (value and failed[column] >= TRIES):
                    continue
                place = int(np.argmin(off + 1e3 * ~has))
                if has[place] and np.isfinite(off[place]):
                    found[place] = None
        chosen = [self.space[place] for place in found if self.space[place] not in self.points]
        return sorted(chosen, key=_effort)  # those that take long come last: the time may be up before

    def _most_promising(self, count: int) -> list[Choice]:
        """The plans that are expected to improve most on the best one, given that they fit; none if hardly any will."""
        known = [plan for plan, point in self.points.items() if point.next_ms is not None]
        best = self._best_us()
        open_ = self._possible & (self._sample_us < best)
        open_[[self._place[plan] for plan in self.points]] = False
        open_ &= ~self._refused()
        left = np.flatnonzero(open_)
        if not len(left) or not known:
            return [self.space[place] for place in left[:count]]
        places = [self._place[plan] for plan in known]
        held = np.log([float(self._held(plan) or 1) for plan in known])
        sizes, spread = self._learned(held, np.log(self._likely_bytes), places, left)
        limits = np.log([self._available(self.space[place]) for place in left])
        fitting = normal_cdf((limits - sizes) / spread)
        least = np.log(np.maximum(self._sample_us, 1e-9))
        times, spread = self._learned(np.log([self._us(plan) for plan in known]), least, places, left)
        times = np.maximum(times, least[left])
        if not np.isfinite(best):  # nothing fits yet: what most likely does, the fastest of it
            gains = fitting * np.exp(-(times - times.min()))
        else:
            ahead = np.log(best) - times
            gains = fitting * (ahead * normal_cdf(ahead / spread) + spread * normal_density(ahead / spread))
        order = np.argsort(-gains, kind="stable")[:count]
        return [self.space[place] for place in left[order[gains[order] > MIN_GAIN * np.isfinite(best)]]]

    def _learned(
        self, values: Floats, guesses: Floats, known: list[int], asked: npt.NDArray[np.intp]
    ) -> tuple[Floats, Floats]:
        """Mean and standard deviation of what is asked: the guess, and what guesses were off where it is known."""
        off, spread = SettingsModel(self._features[known], values - guesses[known]).predicted(self._features[asked])
        return guesses[asked] + off, spread

    def _refused(self) -> Flags:
        """Plans with a setting that none could be simulated with, of several that were tried."""
        tried = self._features[[self._place[plan] for plan in self.points]]
        wrong = np.array([point.next_ms is None for point in self.points.values()], bool)
        failed, made = tried[wrong], tried[~wrong]
        columns = (failed.sum(axis=0) >= TRIES) & (made.sum(axis=0) == 0)
        return np.asarray(self._features[:, columns].any(axis=1))

    def _us(self, plan: Choice) -> float:
        point = self.points[plan]
        return (point.next_ms or np.inf) * 1e3 / (point.samples or 1)

    def _best_us(self) -> float:
        known = (plan for plan, point in self.points.items() if point.next_ms is not None and self.fits(plan))
        return min(map(self._us, known), default=np.inf)

    def _so_far(self) -> str:
        best = self._best_us()
        return f"; best so far {best:,.4g} us for a sample" if np.isfinite(best) else ""

    def _held(self, plan: Choice) -> int | None:
        point = self.points[plan]
        return point.reserved_bytes or point.memory_bytes

    def fits(self, plan: Choice) -> bool:
        """Whether a simulated plan fits: by the simulation of its allocator, else by its peak."""
        point, held = self.points[plan], self._held(plan)
        if self._limit is not None and held is not None and held > self._limit:
            return False
        if point.fits is not None or held is None:
            return point.fits is not False
        return (point.memory_bytes or 0) <= self._available(plan)

    def _available(self, plan: Choice) -> float:
        """Bytes that PyTorch may take on a GPU."""
        given = settings(plan)
        groups = sum(int(given.get(name, 1)) > 1 for name in ("data", "tensor", "pipeline"))
        left = self._device.memory_bytes - CONTEXT_BYTES - COMMUNICATOR_BYTES * groups
        return float(min(left, self._limit if self._limit is not None else left))
