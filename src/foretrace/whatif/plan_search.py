"""The search for the best plan of one number of ranks: few plans are simulated, chosen by bounds and a model.

A Gaussian process over the settings of the simulated plans, of time and of memory, says which plan is expected to
improve most on the best so far; those whose bound is above that one, or above the memory, are never tried. Steps of
many blocks are extrapolated from fewer (`plan_simulator`); the best are then simulated in whole.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from foretrace.errors import ForetraceError
from foretrace.graph import Job
from foretrace.graph.tables import Floats
from foretrace.platform.platform import Platform
from foretrace.prediction.fabric_choice import choose_fabric
from foretrace.prediction.memory import COMMUNICATOR_BYTES, CONTEXT_BYTES
from foretrace.whatif.plan_bounds import PlanBounds
from foretrace.whatif.plan_simulator import EXTRAPOLATED, Simulate, rounds
from foretrace.whatif.plans import (
    Choice,
    Factor,
    Plan,
    batches_of,
    factors_of,
    features_of,
    plans_of,
    settings,
)
from foretrace.whatif.points import Point
from foretrace.whatif.settings_model import SettingsModel, normal_cdf, normal_density

MAX_SHARE = 0.05
"""Of the plans, how many are simulated at most; never fewer than `FEWEST`."""
FEWEST = 40
"""With fewer, the model of a large space knows too little of it."""
PATIENCE, MOST_PATIENCE = 0.6, 40
"""Of the plans that may be simulated, how many in a row that are no better end the search; and at most."""
TRIES = 2
"""Plans with a setting that have to fail, and no other to succeed, before it is given up."""
SAME_ERROR = 6
"""Plans that fail for one reason, where no other was simulated, and end the search: none will do."""
MIN_GAIN = 1e-4
"""Expected gain, in logarithms, below which no plan is worth a simulation."""
LARGE_EFFORT, ALONE_EFFORT = 150, 100
"""Of a simulation (`_effort`): some ten seconds, from which on it has to promise more, by the square of how much longer
it takes; and some hundred megabytes, from which on it is the only one at a time."""


def _effort(plan: Choice) -> int:
    """How long a simulation takes, roughly: every group of blocks does every microbatch that is simulated."""
    given = settings(plan)
    count = (rounds(plan) or (0, int(given.get("microbatches", 1))))[1]
    return int(given.get("pipeline", 1)) * int(given.get("chunks", 1)) * count


def _replicas(plan: Choice, point: Point) -> int:
    """Ranks with a batch of their own; of a job of several ranks, as many as it has."""
    return int(settings(plan).get("data", point.ranks))


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
        """Those that were simulated with all blocks, or are too large for that."""
        self._features = features_of(self.space, batches_of(job)[0])
        self._place = {plan: place for place, plan in enumerate(self.space)}
        self._effort = np.array([_effort(plan) for plan in self.space])
        fabric = where.fabric
        if fabric is None and world > 1 and job.world == 1:
            with suppress(ForetraceError):
                fabric, _ = choose_fabric(None, None, where.device.matches, world, gpus_per_node)
        self.bounds = PlanBounds(job, where, fabric, gpus_per_node)
        self._sample_us = np.array([self.bounds.sample_us(plan) for plan in self.space])
        self._likely_bytes = np.array([max(self.bounds.likely_bytes(plan), 1.0) for plan in self.space])
        self._available = np.array([self._bytes_left(plan) for plan in self.space])
        self._possible = np.array([self.bounds.nbytes(plan) for plan in self.space]) <= self._available
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
            chosen = self._next_at_once(first or self._most_promising(min(self._at_once, most - len(self.points))))
            if not chosen or self._fail_alike():
                break
            best = self._best_us()
            say(f"plan {len(self.points) + 1:,} of at most {most:,}, {len(self.space):,} in all{self._so_far()}")
            self._try(chosen, False)
            if first:
                first = first[len(chosen) :] or self._first_plans()
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

    def _next_at_once(self, plans: list[Choice]) -> list[Choice]:
        """The first of some plans, as many as are simulated at once."""
        some = plans[: self._at_once]
        large = any(self._effort[self._place[plan]] > ALONE_EFFORT for plan in some)
        return some[:1] if large else some

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
            point.reserved_bytes, self.fits(plan), _replicas(plan, point), point.sustained_ms,
            estimated=EXTRAPOLATED in point.notes,
        )  # fmt: skip

    def _try(self, plans: Sequence[Choice], whole: bool) -> None:
        for plan, point in zip(plans, self._simulate(plans, whole)):
            self.points[plan] = point
            if whole:
                self.whole.add(plan)

    def _first_plans(self) -> list[Choice]:
        """The first plan that likely fits, and for each setting the plan that has it and else differs least from it.

        A setting whose plan failed has another one, without what else failed.
        """
        if not len(self.space):
            return []
        tried = np.array([self._place[plan] for plan in self.points], int)
        wrong = np.array([point.next_ms is None for point in self.points.values()], bool)
        failed, made = (self._features[tried[which]].sum(axis=0) for which in (wrong, ~wrong))
        likely = self._possible & (self._likely_bytes <= self._available)
        base = int(np.argmax(likely if likely.any() else self._possible))
        sure = [base, *tried[~wrong].tolist()]
        found = dict.fromkeys(sure)
        off = (self._features != self._features[base]).sum(axis=1) + 100.0 * ~self._possible
        off += 20.0 * self._features[:, (failed > 0) & (made == 0)].sum(axis=1)
        off[tried] = np.inf
        for column in range(1, self._features.shape[1]):
            for value in (0.0, 1.0):
                has = self._features[:, column] == value
                if has[sure if failed[column] else list(found)].any() or (value and failed[column] >= TRIES):
                    continue
                place = int(np.argmin(off + 1e3 * ~has))
                if has[place] and np.isfinite(off[place]) and self._effort[place] <= LARGE_EFFORT:
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
        fitting = normal_cdf((np.log(self._available[left]) - sizes) / spread)
        least = np.log(np.maximum(self._sample_us, 1e-9))
        times, spread = self._learned(np.log([self._us(plan) for plan in known]), least, places, left)
        times = np.maximum(times, least[left])
        if not np.isfinite(best):  # nothing fits yet: what most likely does, the fastest of it
            gains = fitting * np.exp(-(times - times.min()))
        else:
            ahead = np.log(best) - times
            gains = fitting * (ahead * normal_cdf(ahead / spread) + spread * normal_density(ahead / spread))
        gains /= np.maximum(self._effort[left] / LARGE_EFFORT, 1.0) ** 2
        order = np.argsort(-gains, kind="stable")[:count]
        return [self.space[place] for place in left[order[gains[order] > MIN_GAIN * np.isfinite(best)]]]

    def _learned(
        self, values: Floats, guesses: Floats, known: list[int], asked: npt.NDArray[np.intp]
    ) -> tuple[Floats, Floats]:
        """Mean and standard deviation of what is asked: the guess, and what guesses were off where it is known."""
        off, spread = SettingsModel(self._features[known], values - guesses[known]).predicted(self._features[asked])
        return guesses[asked] + off, spread

    def _refused(self) -> npt.NDArray[np.bool_]:
        """Plans with a setting that none could be simulated with, of several that were tried."""
        tried = self._features[[self._place[plan] for plan in self.points]]
        wrong = np.array([point.next_ms is None for point in self.points.values()], bool)
        failed, made = tried[wrong], tried[~wrong]
        columns = (failed.sum(axis=0) >= TRIES) & (made.sum(axis=0) == 0)
        return np.asarray(self._features[:, columns].any(axis=1))

    def _fail_alike(self) -> bool:
        """Whether all plans so far failed, and for the same reason."""
        errors = {point.error for point in self.points.values()}
        return len(self.points) >= SAME_ERROR and len(errors) == 1 and None not in errors

    def _us(self, plan: Choice) -> float:
        point = self.points[plan]
        return (point.next_ms or np.inf) * 1e3 / (point.samples or _replicas(plan, point))

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
        return bool((point.memory_bytes or 0) <= self._available[self._place[plan]])

    def _bytes_left(self, plan: Choice) -> float:
        """Bytes that PyTorch may take on a GPU."""
        given = settings(plan)
        groups = sum(int(given.get(name, 1)) > 1 for name in ("data", "context", "tensor", "pipeline"))
        left = self._device.memory_bytes - CONTEXT_BYTES - COMMUNICATOR_BYTES * groups
        return float(min(left, self._limit if self._limit is not None else left))
