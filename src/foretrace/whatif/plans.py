"""Plans: combinations of what transforms and `parallelize` express.

A plan is a choice for each factor: how ranks share the step, its batch, checkpointing, precision, the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from foretrace.errors import ForetraceError
from foretrace.graph import Job
from foretrace.graph.op import HALF_DTYPES
from foretrace.graph.tables import Small
from foretrace.transforms.blocks import all_repeated_blocks
from foretrace.transforms.parallel.context import attention_kind
from foretrace.transforms.parallel.experts import expert_count
from foretrace.whatif.changes import EditedJob, JobChanges
from foretrace.whatif.grammar import JOB_CHANGES, PARALLELISM, Change, read_changes

MAX_TENSOR = 8
"""Tensor parallel ranks exchange activations in every layer: more than a node's are never worth it."""
TOKENS_A_RANK = 4096
"""A context parallel rank has at least so many tokens of a sequence: on fewer, attention does not hide the keys that it
waits for."""
MAX_STAGES = 16
"""Pipeline stages that are tried at the most."""
BLOCKS_A_STAGE = 6
"""More than four stages have at least so many blocks each: fewer do not make up for the bubble."""
BATCHES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Batches of a rank that are tried, as multiples of the given one."""
MIN_BLOCKS = 12
"""A step of fewer blocks is simulated as it is, and every second of them checkpointed but not every fourth."""
MICROBATCHES = (2, 4)
"""Microbatches of a pipeline that are tried, for each of its stages; and those with as many samples as the given batch
has, where the samples of a step are given."""
FEWEST_IN_CHUNK = 2
"""Blocks of a stage's chunk, where there are more than two chunks."""
BUCKETS_MB = 100
"""Buckets of gradients that are tried besides DDP's own of 25 MB."""

DEGREES = ("data", "tensor", "context", "pipeline")
"""Settings whose product is the number of ranks; 1 where left out."""
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
    replicas: int = 1
    """Ranks with a batch of their own."""
    sustained_ms: float | None = None
    """From step to step while many are repeated, within the power limit; None where the draw is not known."""
    cost: float | None = None
    """Dollars for a million samples, of repeated steps."""
    low_ms: float | None = None
    high_ms: float | None = None
    """80 % range of the step; of the listed plans."""
    estimated: bool = False
    """Whether it was extrapolated from fewer blocks, and not simulated with all of them."""
    why: list[str] = field(default_factory=list)
    apply: list[str] = field(default_factory=list)
    """Flags and lines of code that make it so."""

    @property
    def sample_us(self) -> float:
        """Microseconds for a sample; of a step whose batch does not show, for the batch of one rank."""
        return self.next_ms * 1e3 / (self.samples or self.replicas)

    @property
    def gpu_us(self) -> float:
        """Microseconds of all GPUs together for a sample while steps are repeated, within the power limit."""
        return self.ranks * max(self.sustained_ms or 0.0, self.next_ms) * 1e3 / (self.samples or self.replicas)


def settings(changes: Iterable[str]) -> dict[str, str]:
    """What some changes set, by name.

    >>> settings(["data=8", "sharded=on"])
    {'data': '8', 'sharded': 'on'}
    """
    return dict(map(_setting, changes))


@cache
def _setting(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def divisors(number: int) -> list[int]:
    """The numbers that divide a number, rising."""
    return [n for n in range(1, number + 1) if number % n == 0]


def plans_of(factors: Sequence[Factor], fixed: Sequence[str] = ()) -> list[Choice]:
    """Every combination of choices that makes sense, as changes in the order in which they are made.

    What is fixed is part of each plan; other choices of the same settings are none, nor are layouts without a degree
    of parallelism that is fixed: they would have other numbers of ranks.

    >>> plans_of([Factor("batch", [(), ("batch=8",)]), Factor("layout", [("data=2",), ("data=1",)])], ["data=2"])
    [('data=2',), ('batch=8', 'data=2')]
    """
    found: dict[Choice, None] = {}
    for given in _combinations(factors, fixed):
        if _makes_sense(given):
            found[tuple(f"{name}={given[name]}" for name in sorted(given, key=_order))] = None
    return list(found)


def _combinations(factors: Sequence[Factor], fixed: Sequence[str]) -> Iterator[dict[str, str]]:
    """Settings of every combination of choices that agrees with what is fixed."""
    set_ = settings(fixed)
    for chosen in product(*(factor.choices for factor in factors)):
        given = settings(text for choice in chosen for text in choice)
        if all(given.get(name, "1" if name in DEGREES else value) == value for name, value in set_.items()):
            yield given | set_


def contradiction(factors: Sequence[Factor], fixed: Sequence[str]) -> ForetraceError | None:
    """Why no combination of choices makes sense with what is fixed, where the reason is the same for all of them."""
    refused = {_refusal(_of_job(given)) for given in _combinations(factors, fixed)}
    reason = refused.pop() if len(refused) == 1 else None
    return ForetraceError(*reason) if reason else None


STEP_ORDER = ("dtype", "autocast", "optimizer", "attention", "batch", "seq", "checkpoint", "fuse")
"""In which changes of a step are made: those that trace it anew come first, those that are found once before others."""


@cache
def _order(name: str) -> tuple[int, int]:
    if name in STEP_ORDER:
        return 0, STEP_ORDER.index(name)
    return (1, list(PARALLELISM).index(name)) if name in PARALLELISM else (2, 0)


def _makes_sense(given: dict[str, str]) -> bool:
    if "dtype" in given and "mixed" not in given:  # weights in half precision alone train otherwise
        return False
    if "mixed" in given and "autocast" in given:
        return False
    if given.get("overlap") == "on" and given.get("tensor", "1") == "1":  # of other jobs it is how things are
        return False
    if _refusal(_of_job(given)):
        return False
    return "batch" not in given or int(given["batch"]) % int(given.get("microbatches", 1)) == 0


def _of_job(given: dict[str, str]) -> Choice:
    return tuple(f"{name}={value}" for name, value in given.items() if name in JOB_CHANGES)


@cache
def _refusal(changes: Choice) -> tuple[str, str] | None:
    """Why a step can't be shared so, and what to do: settings of ranks that contradict each other."""
    try:
        JobChanges.of(read_changes(changes))
    except ForetraceError as error:
        return error.what, error.advice
    return None


def factors_of(job: Job, world: int, samples: int | None = None) -> list[Factor]:
    """What plans of a step on some ranks differ in; the first choices are the step as it is.

    Where the samples of all ranks together are given, the batch of a rank follows from its layout.

    >>> from foretrace.graph import Graph, OpTable
    >>> [factor.name for factor in factors_of(Job([Graph(OpTable.of([]))]), 8)]
    ['layout', 'shards', 'overlap', 'batch', 'checkpoint', 'precision', 'optimizer', 'fusion']
    """
    ops = list(job.graphs[0].ops)
    blocks = all_repeated_blocks(ops)
    half = any(tensor.dtype in HALF_DTYPES for op in ops if op.phase == "forward" for tensor in op.produced)
    shares = world > 1 and job.world == 1
    batch, micro_batches = batches_of(job)
    length = max((op.tensors[0].shape[-2] for op in ops if attention_kind(op)), default=0)
    layouts = _layouts(world, len(blocks), length // TOKENS_A_RANK) if job.world == 1 else [(f"world={world}",)]
    if samples is not None:
        if batch is None:
            raise ForetraceError("the step does not show how many samples it has", "Leave samples out.")
        if samples % micro_batches:
            raise ForetraceError(
                f"{samples:,} samples can't be divided between the {micro_batches} micro-batches of the step",
                f"Give a multiple of {micro_batches}.",
            )
        layouts = _with_batches(layouts, samples // micro_batches, batch if job.world == 1 else None)
    found = [Factor("layout", list(dict.fromkeys(layouts)))]
    if shares:
        mixed = [("sharded=on", "mixed=on")] if half and any(op.phase == "optimizer" for op in ops) else []
        others = [(f"buckets={BUCKETS_MB}",), ("zero1=on",), ("sharded=on",)]
        found.append(Factor("shards", [(), *others, *mixed]))
        experts = [n for n in divisors(expert_count(ops)) if 1 < n <= world]
        found += [Factor("experts", [(), *((f"experts={n}",) for n in experts)])] if experts else []
        splits = any("tensor=" in text for layout in found[0].choices for text in layout)
        found += [Factor("overlap", [(), ("overlap=on",)])] if splits else []
    sizes = _sizes(batch) if batch is not None and samples is None else []
    found.append(Factor("batch", [(), *((f"batch={size}",) for size in sizes if size != batch)]))
    kept = any("_attention" in op.name for op in ops)
    parts = ("1/4", "1/2", "3/4") if len(blocks) >= MIN_BLOCKS else ("1/2",)
    some = [("checkpoint=selective",)] * kept + [(f"checkpoint={part}",) for part in (*parts, "*")]
    found.append(Factor("checkpoint", [(), *some] if blocks else [()]))
    lower: list[Choice] = [("autocast=bf16",), *([("dtype=bf16", "mixed=on")] * shares)]
    found.append(Factor("precision", [(), *([] if half or not ops else lower)]))
    fused = any("_fused_" in op.name for op in ops)
    trains = any(op.phase == "optimizer" and "_foreach" in op.name for op in ops)
    found.append(Factor("optimizer", [(), ("optimizer=fused",)] if trains and not fused else [()]))
    found.append(Factor("fusion", [(), ("fuse=elementwise",)] if ops else [()]))
    return found


def _with_batches(layouts: Iterable[Choice], samples: int, usual: int | None) -> Iterator[Choice]:
    """Layouts between whose data parallel ranks the samples can be divided, each with its batch.

    Also with the batch in microbatches, of about as many samples as the usual batch: gradients are accumulated, or a
    pipeline has more of them than its own.
    """
    for layout in layouts:
        given = settings(layout)
        ranks = int(given.get("data", 1))
        if samples % ranks:
            continue
        batch = samples // ranks
        yield (*layout, f"batch={batch}")
        if usual is None:
            continue
        stages = int(given.get("pipeline", 1))
        others = tuple(text for text in layout if not text.startswith("microbatches="))
        for size in _sizes(usual) if stages == 1 else (usual, 1):
            count = batch // size
            if batch % size == 0 and count > (1 if stages == 1 else max(MICROBATCHES) * stages):
                yield (*others, f"microbatches={count}", f"batch={batch}")


def _sizes(batch: int) -> list[int]:
    """Batches of a rank that are tried beside a given one, and that one."""
    return sorted({max(round(batch * part), 1) for part in BATCHES})


def _layouts(world: int, blocks: int, most_context: int = 1) -> Iterator[Choice]:
    """Ways in which ranks share a step: data, context, tensor and pipeline parallel, microbatches and schedule."""
    if world == 1:
        yield ()
        return
    for stages in divisors(world):
        if stages > min(MAX_STAGES, max(min(blocks, 4), blocks // BLOCKS_A_STAGE, 1)):
            break
        for tensor in divisors(world // stages):
            if tensor > MAX_TENSOR:
                break
            replicas = world // stages // tensor
            split = [f"tensor={tensor}"] if tensor > 1 else []
            sequences: list[list[str]] = [[], ["sequence=on"]] if tensor > 1 else [[]]
            for sequence, context in product(sequences, _contexts(replicas, most_context)):
                ranks = int(settings(context).get("context", 1))
                shared = [f"data={replicas // ranks}", *split, *context]
                if stages == 1:
                    yield (*shared, *sequence)
                    continue
                for times in MICROBATCHES:
                    pipeline = (f"pipeline={stages}", f"microbatches={stages * times}")
                    yield (*shared, *sequence, *pipeline)
                    if blocks >= 2 * stages:
                        yield (*shared, *sequence, *pipeline, "schedule=zbv", "chunks=2")
                    for chunks in _chunks(blocks, stages):
                        yield (*shared, *sequence, *pipeline, "schedule=interleaved", f"chunks={chunks}")


def _chunks(blocks: int, stages: int) -> list[int]:
    """Groups of blocks on each stage that are tried: two, and of four stages or more the two largest numbers of
    them that divide its blocks.

    >>> _chunks(80, 4), _chunks(126, 9), _chunks(126, 8), _chunks(4, 4)
    ([2, 5, 10], [2, 7], [2, 4, 8], [])
    """
    if blocks < 2 * stages:
        return []
    if stages < 4:
        return [2]
    each = -(-blocks // stages)  # of the fullest stage
    more = [n for n in divisors(each) if 2 < n <= each // FEWEST_IN_CHUNK]
    return [2, *more[-2:]]


def _contexts(ranks: int, most: int) -> Iterator[Choice]:
    """Ways in which some of the ranks share each sequence; the first one is that none do."""
    yield ()
    for context in divisors(ranks):
        if 1 < context <= most:
            yield (f"context={context}",)
            yield (f"context={context}", "context_kind=all-to-all")


def features_of(plans: Sequence[Choice], batch: int | None = None) -> Small:
    """A row of zeros and ones for each plan: what it sets to what; of a number, what it is as large as or larger.

    Microbatches count by stage, and data parallel ranks follow from the others; where gradients are accumulated, the
    samples of a microbatch count. The batch of a plan that sets none is the given one.
    """
    accumulated = any("microbatches" in given and "pipeline" not in given for given in map(settings, plans))
    values: dict[str, dict[int | str, int]] = {}
    columns: dict[str, npt.NDArray[np.int16]] = {}
    """For each setting which of its values a plan has; -1 where it sets none."""
    for place, plan in enumerate(plans):
        for name, value in _described(settings(plan), batch, accumulated).items():
            if name not in columns:
                values[name], columns[name] = {}, np.full(len(plans), -1, np.int16)
            number = int(value) if value.isdecimal() else value
            columns[name][place] = values[name].setdefault(number, len(values[name]))
    found = [np.ones(len(plans), np.int8)]
    for setting, least in sorted(((name, value) for name in values for value in values[name]), key=str):
        has = [_reaches(value, least) for value in values[setting]]
        column = np.array([*has, False], np.int8)[columns[setting]]
        found += [] if column.all() else [column]
    return np.stack(found, axis=1)


def _described(given: dict[str, str], batch: int | None, accumulated: bool) -> dict[str, str]:
    """What tells a plan from others, by setting."""
    given.pop("data", None)
    if batch is not None:
        given.setdefault("batch", str(batch))
    count, stages = int(given.pop("microbatches", 1)), int(given.get("pipeline", 1))
    if stages > 1:
        given["microbatches"] = str(count // stages)
    if accumulated:
        given["each"] = str(int(given.get("batch", 1)) // count)
    return given


def _reaches(value: int | str, least: int | str) -> bool:
    """Whether a value is another one, or a number that is larger."""
    return value >= least if isinstance(value, int) and isinstance(least, int) else value == least


def batches_of(job: Job) -> tuple[int | None, int]:
    """Samples in a rank's batch, and how many such micro-batches a step adds up; None where a step does not show it, or
    contradicts itself.
    """
    with suppress(ForetraceError):
        edited = EditedJob(job)
        return edited.batch, edited.micro_batches
    return None, 1


def as_changes(texts: Iterable[str]) -> tuple[Change, ...]:
    """Changes that texts say."""
    return tuple(read_changes(texts))
