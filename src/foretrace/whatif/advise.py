"""Advice: a search over what transforms and `parallelize` express, for the plans that train fastest, or cheapest.

Plans are combinations of factors: how ranks share the step, its batch, checkpointing, precision, the optimizer. Few are
simulated. A log-linear model of the simulated ones (one coefficient for each choice of each factor) says which one to
try next; plans whose device work alone takes longer than the best known plan are never tried (`Search.bound_us`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from foretrace._progress import OnProgress, Progress
from foretrace.analysis.report import NotebookDocument, plain
from foretrace.api import as_job, predict
from foretrace.errors import ForetraceError
from foretrace.graph import Graph, Job
from foretrace.platform.registry import load_platform
from foretrace.transforms.blocks import all_repeated_blocks
from foretrace.transforms.resize.batch_sequence import batch_size
from foretrace.whatif.changes import EditedJob, JobChanges
from foretrace.whatif.grammar import Change, read_changes
from foretrace.whatif.points import Point
from foretrace.whatif.sweep import Subject, Swept
from foretrace.whatif.what_if import one_step

GOALS = ("fastest", "cheapest", "fewest")
MAX_TENSOR = 8
"""Tensor parallel ranks exchange activations in every layer: more than a node's are never worth it."""
MAX_STAGES = 16
BATCHES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Batches of a rank that are tried, as multiples of the given one."""
MAX_SHARE = 0.05
"""Of the plans, how many are simulated at most; never fewer than `FEWEST`."""
FEWEST = 40
PATIENCE = 12
"""After so many plans in a row that are no better the search ends."""
SLACK = 0.85
"""Device work of a part is at least so much of its share of the whole: fewer, larger kernels may be a little faster."""
RECOMPUTED = 0.25
"""More device work where blocks are recomputed, at least: a third is the forward pass, less the head."""
RIDGE = 1e-2
"""Weight of the prior that a choice changes nothing, against one simulated plan."""

Choice = tuple[str, ...]
"""Changes that belong together, as texts."""


class Factor(NamedTuple):
    """Something that plans differ in, and the choices there are; the first one is how things are."""

    name: str
    choices: list[Choice]


@dataclass
class Plan:
    """A combination of choices, simulated."""

    changes: list[str]
    ranks: int
    step_ms: float
    next_ms: float
    samples: int | None
    samples_per_second: float | None
    memory_bytes: int | None
    reserved_bytes: int | None
    fits: bool | None
    cost: float | None = None
    """Dollars for a million samples."""
    low_ms: float | None = None
    high_ms: float | None = None
    """80 % range of the step; of the listed plans."""
    why: list[str] = field(default_factory=list)
    apply: list[str] = field(default_factory=list)
    """Flags and lines of code that make it so."""

    @property
    def sample_us(self) -> float:
        """Microseconds for a sample; of a step whose batch does not show, for a step."""
        return self.next_ms * 1e3 / (self.samples or 1)


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

    def to_dict(self) -> dict[str, Any]:
        """The fields of ``foretrace advise --json``."""
        names = ("source", "platform", "world", "goal", "plans", "space", "simulated", "given", "notes")
        return {name: plain(getattr(self, name)) for name in names}


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
        GPUs that there are.
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
    """
    if goal not in GOALS:
        raise ForetraceError(f"there is no goal {goal!r}", f"There are {', '.join(GOALS)}.")
    if (goal == "fewest") != (target_ms is not None):
        raise ForetraceError("the goal fewest needs a target, and no other has one", "Give both: --target 250ms.")
    where = load_platform(on, fabric=fabric)
    on_progress(Progress("reading"))
    job = one_step(as_job(what, where.device.kind))
    end = None if seconds is None else time.monotonic() + seconds
    searches = list[Search]()
    worlds = [world] if goal == "fastest" else [n for n in _divisors(world) if goal == "fewest" or n * 8 >= world]
    notes = list[str]()
    try:
        for size in worlds:
            search = Search(job, on, size, memory_limit, fabric, gpus_per_node)
            searches.append(search)
            search.run(end, lambda text: on_progress(Progress(text)))
            if target_ms is not None and any(p.step_ms <= target_ms for p in search.plans if p.fits is not False):
                break
    except KeyboardInterrupt:
        notes.append("interrupted: these are the best so far")
    if end is not None and time.monotonic() > end:
        notes.append("the time was up: these are the best so far")
    found = [plan for search in searches for plan in search.plans if plan.fits is not False]
    found = _ranked(found, goal, target_ms, notes)
    if not found:
        raise ForetraceError(
            _why_none([plan for search in searches for plan in search.plans], world), "More GPUs help."
        )
    listed = _distinct(found)[:top]
    for plan in listed:
        plan.cost = price * plan.ranks * plan.sample_us / 3600 if price is not None and plan.samples else None
        plan.why, plan.apply = list(_reasons(plan)), list(_lines(plan, what))
    _add_ranges(listed, searches, where, gpus_per_node, on_progress)
    space, simulated = (sum(getattr(s, name) for s in searches) for name in ("space", "simulated"))
    given = searches[-1].given
    return Advice(job.source, on, world, goal, listed, space, simulated, given, notes)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _ranked(plans: list[Plan], goal: str, target_ms: float | None, notes: list[str]) -> list[Plan]:
    if goal == "cheapest":
        return sorted(plans, key=lambda plan: (plan.sample_us * plan.ranks, plan.changes))
    if target_ms is not None:
        reaching = [plan for plan in plans if plan.step_ms <= target_ms]
        if not reaching and plans:
            nearest = min(plans, key=lambda plan: plan.step_ms)
            notes.append(f"no plan reaches {target_ms:g} ms: the nearest takes {nearest.step_ms:.4g}")
            return sorted(plans, key=lambda plan: (plan.step_ms, plan.changes))
        return sorted(reaching, key=lambda plan: (plan.ranks, plan.sample_us, plan.changes))
    return sorted(plans, key=lambda plan: (plan.sample_us, plan.changes))


def _distinct(plans: Iterable[Plan]) -> list[Plan]:
    """Plans without those that only repeat a better one: same time and memory by other words."""
    found: dict[tuple[float, int | None], Plan] = {}
    for plan in plans:
        found.setdefault((round(plan.sample_us, 3), plan.reserved_bytes), plan)
    return list(found.values())


def _why_none(plans: list[Plan], world: int) -> str:
    smallest = min((plan.reserved_bytes or plan.memory_bytes or 0 for plan in plans), default=0)
    if not plans:
        return f"no plan divides the step between {world:,} ranks"
    return f"no plan fits: the smallest needs {smallest / 2**30:.1f} GiB on a GPU ({', '.join(plans[0].changes)})"


class Search:
    """The plans of one number of ranks: those simulated, and the model that says which to try next."""

    def __init__(
        self,
        job: Job,
        on: str,
        world: int,
        memory_limit: int | None = None,
        fabric: str | None = None,
        gpus_per_node: int | None = None,
    ) -> None:
        self.job, self._on, self._world, self._limit = job, on, world, memory_limit
        self._swept = Swept(Subject(job, (on,), fabric, gpus_per_node))
        self.factors = factors_of(job, world)
        self._combinations = list(product(*(range(len(f.choices)) for f in self.factors)))
        self._allowed = [place for place, chosen in enumerate(self._combinations) if self._makes_sense(chosen)]
        self.space = len(self._allowed)
        self.simulated = 0
        self.plans: list[Plan] = []
        self.given: Plan | None = None
        self._points: dict[int, Point] = {}
        self._features = np.array([self._coded(chosen) for chosen in self._combinations])
        self._work_us = self._device_work()
        self._bounds = {place: self.bound_us(place) for place in self._allowed}

    def changes(self, place: int) -> list[Change]:
        """The changes of a plan."""
        chosen = self._combinations[place]
        return read_changes([text for f, number in zip(self.factors, chosen) for text in f.choices[number]])

    def _makes_sense(self, chosen: tuple[int, ...]) -> bool:
        texts = [text for factor, number in zip(self.factors, chosen) for text in factor.choices[number]]
        try:
            JobChanges.of(read_changes(texts))
        except ForetraceError:
            return False
        return True

    def _coded(self, chosen: tuple[int, ...]) -> list[float]:
        return [1.0, *(float(n == number) for f, number in zip(self.factors, chosen) for n in range(1, len(f.choices)))]

    def _device_work(self) -> dict[Choice, float]:
        """Microseconds of device work for a sample on one rank alone, by precision; none where that is not known."""
        if self.job.world > 1:
            return {}
        found = {}
        for choice in next(factor.choices for factor in self.factors if factor.name == "precision"):
            (point,) = self._swept.points(tuple(read_changes(choice)), [self._on])
            if point.device_ms is not None and point.samples:
                found[choice] = point.device_ms * 1e3 / point.samples
        return found

    def bound_us(self, place: int) -> float:
        """A time for a sample that no plan can be below: its device work, recomputed blocks and pipeline bubbles."""
        texts = {change.name: change.value for change in self.changes(place)}
        precision: Choice = (f"autocast={texts['autocast']}",) if "autocast" in texts else ()
        work = SLACK * self._work_us.get(precision, 0.0) / self._world
        stages, parts = int(texts.get("pipeline", 1)), int(texts.get("microbatches", 1))
        return work * (1 + RECOMPUTED * ("checkpoint" in texts)) * (parts + stages - 1) / parts

    def run(self, end: float | None, say: Callable[[str], None]) -> None:
        """Simulate plans until no better one is likely."""
        most = max(round(MAX_SHARE * self.space), FEWEST)
        best, since = np.inf, 0
        for place in self._order():
            if self.simulated >= most or since >= PATIENCE or (end is not None and time.monotonic() > end):
                break
            say(f"plan {self.simulated + 1} of at most {most}, {self.space:,} in all")
            plan = self._simulate(place)
            better = plan is not None and plan.fits is not False and plan.sample_us < best * (1 - 1e-4)
            if better and plan is not None:
                best, since = plan.sample_us, 0
            elif self.simulated > self._first:
                since += 1

    def all_plans(self) -> list[Plan]:
        """Every plan, simulated: what the search is held against."""
        for place in self._allowed:
            if place not in self._points:
                self._simulate(place)
        return self.plans

    def _order(self) -> Iterator[int]:
        """Plans in the order in which they are tried: each choice once, then what the model likes best."""
        allowed = set(self._allowed)
        first = [0] if 0 in allowed else self._allowed[:1]
        base = self._combinations[first[0]] if first else ()
        for number, factor in enumerate(self.factors):
            for choice in range(len(factor.choices)):
                varied = (*base[:number], choice, *base[number + 1 :])
                place = self._place(varied)
                if place in allowed and place not in first:
                    first.append(place)
        self._first = len(first)
        yield from first
        while (following := self._most_promising()) is not None:
            yield following

    def _place(self, chosen: Sequence[int]) -> int:
        place = 0
        for factor, number in zip(self.factors, chosen):
            place = place * len(factor.choices) + number
        return place

    def _most_promising(self) -> int | None:
        """The plan with the least predicted time that may fit, and may be better than the best one."""
        known = [(place, point) for place, point in self._points.items() if point.next_ms is not None]
        best = min((self._us(point) for _, point in known if self._fits(point)), default=np.inf)
        places = [place for place in self._allowed if place not in self._points and self._bounds[place] < best]
        left = np.array(places, int)
        if not len(left) or not known:
            return int(left[0]) if len(left) else None
        places = [place for place, _ in known]
        us = np.log([self._us(point) for _, point in known])
        memory = np.log([float(point.reserved_bytes or point.memory_bytes or 1) for _, point in known])
        times, sizes = (self._fitted(places, values, left) for values in (us, memory))
        limit = np.log(float(self._limit or self._capacity))
        fitting = sizes <= limit + 0.05
        hopeful = fitting & (times < np.log(best) + 0.1) if fitting.any() and np.isfinite(best) else fitting
        if not hopeful.any():
            # Nothing fits yet: towards less memory. All that could is worse: done.
            return int(left[np.argmin(sizes)]) if not np.isfinite(best) else None
        return int(left[hopeful][np.argmin(times[hopeful])])

    def _fitted(self, places: list[int], values: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """What a log-linear model of the simulated plans says of others, corrected by what it misses nearby."""
        x, mean = self._features[places], values.mean()
        weights = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ (values - mean))
        missed = values - mean - x @ weights
        near = self._features[asked] @ x.T
        share = np.exp(3.0 * (near - near.max(axis=1, keepdims=True)))
        share /= share.sum(axis=1, keepdims=True)
        return np.asarray(mean + self._features[asked] @ weights + share @ missed)

    @property
    def _capacity(self) -> int:
        return load_platform(self._on).device.memory_bytes

    def _us(self, point: Point) -> float:
        return (point.next_ms or np.inf) * 1e3 / (point.samples or 1)

    def _fits(self, point: Point) -> bool:
        held = point.reserved_bytes or point.memory_bytes
        return point.fits is not False and (self._limit is None or held is None or held <= self._limit)

    def _simulate(self, place: int) -> Plan | None:
        changes = self.changes(place)
        (point,) = self._swept.points(tuple(changes), [self._on])
        self._points[place] = point
        self.simulated += 1
        if point.step_ms is None or point.next_ms is None:
            return None
        per_second = point.samples / point.next_ms * 1e3 if point.samples else None
        plan = Plan(
            [str(change) for change in changes], point.ranks, point.step_ms, point.next_ms, point.samples, per_second,
            point.memory_bytes, point.reserved_bytes, self._fits(point),
        )  # fmt: skip
        self.plans.append(plan)
        self.given = self.given or plan
        return plan


def factors_of(job: Job, world: int) -> list[Factor]:
    """What plans of a step on some ranks differ in; the first choices are the step as it is.

    >>> from foretrace.graph import OpTable
    >>> [factor.name for factor in factors_of(Job([Graph(OpTable.of([]))]), 8)]
    ['layout', 'shards', 'batch', 'checkpoint', 'precision', 'optimizer']
    """
    ops = list(job.graphs[0].ops)
    blocks = all_repeated_blocks(ops)
    layouts: Iterable[Choice] = [(f"world={world}",)] if job.world > 1 else _layouts(world, len(blocks))
    found = [Factor("layout", list(layouts))]
    if world > 1 and job.world == 1:
        found.append(Factor("shards", [(), ("sharded=on",), ("sharded=on", "mixed=on")]))
    batch = None
    with suppress(ForetraceError):
        batch = batch_size(job.graphs[0])
    sizes = sorted({max(round(batch * part), 1) for part in BATCHES} - {batch}) if batch else []
    found.append(Factor("batch", [(), *((f"batch={size}",) for size in sizes)]))
    found.append(Factor("checkpoint", [(), ("checkpoint=*",)] if blocks else [()]))
    halved = any(
        tensor.dtype in ("bfloat16", "float16") for op in ops if op.phase == "forward" for tensor in op.produced
    )
    found.append(Factor("precision", [()] if halved or not ops else [(), ("autocast=bf16",)]))
    fused = any("_fused_" in op.name for op in ops)
    trains = any(op.phase == "optimizer" and "_foreach" in op.name for op in ops)
    found.append(Factor("optimizer", [(), ("optimizer=fused",)] if trains and not fused else [()]))
    return found


def _layouts(world: int, blocks: int) -> Iterator[Choice]:
    """Ways in which ranks share a step: data, tensor and pipeline parallel, and the microbatches of a pipeline."""
    if world == 1:
        yield ()
        return
    for stages in _divisors(world):
        if stages > min(MAX_STAGES, max(blocks, 1)):
            break
        for tensor in _divisors(world // stages):
            if tensor > MAX_TENSOR:
                break
            shared: list[str] = [f"data={world // stages // tensor}"]
            shared += [f"tensor={tensor}"] if tensor > 1 else []
            sequences: list[list[str]] = [[], ["sequence=on"]] if tensor > 1 else [[]]
            for sequence in sequences:
                if stages == 1:
                    yield (*shared, *sequence)
                    continue
                for times in (2, 4):
                    yield (*shared, *sequence, f"pipeline={stages}", f"microbatches={stages * times}")


WHY = {
    "data": "{} replicas, each with a batch of its own",
    "tensor": "layers are split between {} ranks of a node: less memory and work a rank, for an exchange in each layer",
    "sequence": "norms and dropouts are split over the sequence as well: less memory, the same exchange",
    "pipeline": "blocks in {} stages: weights and activations of a stage only, for a bubble at both ends",
    "microbatches": "{} parts of the batch keep the stages busy",
    "sharded": "weights, gradients and optimizer state in shards (FSDP2), gathered layer by layer",
    "mixed": "shards are gathered in bfloat16: half of the traffic",
    "batch": "a batch of {} a rank",
    "checkpoint": "blocks keep only their inputs, and are computed again in backward: less memory, a third more work",
    "autocast": "matrix products in bfloat16 on Tensor Cores",
    "optimizer": "one fused kernel updates all weights: fewer launches, less memory traffic",
}


def _reasons(plan: Plan) -> Iterator[str]:
    for change in read_changes(plan.changes):
        if change.name in WHY and change.value not in ("1", "off"):
            yield WHY[change.name].format(change.value)


CODE = {
    "sharded": "for block in model.blocks: fully_shard(block)\nfully_shard(model)",
    "mixed": "fully_shard(..., mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))",
    "tensor": "parallelize_module(block, mesh['tp'], {{...: ColwiseParallel(), ...: RowwiseParallel()}})  # {} ranks",
    "sequence": "SequenceParallel() for the norms in the same plan",
    "checkpoint": "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
    "autocast": "with torch.autocast('cuda', torch.bfloat16): ...",
    "optimizer": "torch.optim.AdamW(..., fused=True)",
    "batch": "batch = {}",
}
TITAN = {"tensor": "tensor_parallel_degree", "pipeline": "pipeline_parallel_degree"}


def _lines(plan: Plan, what: object) -> Iterator[str]:
    """How to make the plan so: the launch, lines of code, and torchtitan's settings."""
    changes = {change.name: change.value for change in read_changes(plan.changes)}
    if plan.ranks > 1:
        nodes = -(-plan.ranks // 8)
        script = what if isinstance(what, str) and what.endswith(".py") else "train.py"
        yield f"torchrun --nnodes {nodes} --nproc-per-node {min(plan.ranks, 8)} {script}"
    for name, value in changes.items():
        if name in CODE and value not in ("1", "off"):
            yield from CODE[name].format(value).splitlines()
    degrees = {TITAN[name]: value for name, value in changes.items() if name in TITAN}
    if plan.ranks > 1:
        replicas = changes.get("data", "1")
        sharded = "sharded" in changes
        degrees["data_parallel_shard_degree" if sharded else "data_parallel_replicate_degree"] = replicas
        yield f"# torchtitan: [parallelism] {', '.join(f'{name} = {value}' for name, value in degrees.items())}"
        if "checkpoint" in changes:
            yield '# torchtitan: [activation_checkpoint] mode = "full"'


def _add_ranges(
    plans: list[Plan], searches: list[Search], where: Any, gpus_per_node: int | None, on_progress: OnProgress
) -> None:
    """The ranges of the first plans' steps, by a full prediction."""
    edited = EditedJob(searches[0].job)
    for plan in plans[:3]:
        on_progress(Progress("predicting the best plans in full"))
        with suppress(ForetraceError, KeyboardInterrupt):
            made = edited.by(read_changes(plan.changes))
            report = predict(made, where, kernels="model", gpus_per_node=gpus_per_node)
            plan.low_ms, plan.high_ms = report.low_ms, report.high_ms
