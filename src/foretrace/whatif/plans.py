"""Plans: combinations of what transforms and `parallelize` express.

A plan is a choice for each factor: how ranks share the step, its batch, checkpointing, precision, the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np

from foretrace.errors import ForetraceError
from foretrace.graph import Job
from foretrace.graph.op import HALF_DTYPES
from foretrace.graph.tables import Floats
from foretrace.transforms.blocks import all_repeated_blocks
from foretrace.transforms.parallel.context import attention_kind
from foretrace.transforms.parallel.experts import expert_count
from foretrace.transforms.resize.batch_sequence import batch_size
from foretrace.whatif.changes import JobChanges
from foretrace.whatif.grammar import PARALLELISM, Change, read_changes

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
"""Microbatches of a pipeline that are tried, for each of its stages."""
BUCKETS_MB = 100
"""Buckets of gradients that are tried besides DDP's own of 25 MB."""

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
    estimated: bool = False
    """Whether it was extrapolated from fewer blocks, and not simulated with all of them."""
    why: list[str] = field(default_factory=list)
    apply: list[str] = field(default_factory=list)
    """Flags and lines of code that make it so."""

    @property
    def sample_us(self) -> float:
        """Microseconds for a sample; of a step whose batch does not show, for a step."""
        return self.next_ms * 1e3 / (self.samples or 1)


def settings(changes: Iterable[str]) -> dict[str, str]:
    """What some changes set, by name.

    >>> settings(["data=8", "sharded=on"])
    {'data': '8', 'sharded': 'on'}
    """
    return {name: value for name, _, value in (text.partition("=") for text in changes)}


def divisors(number: int) -> list[int]:
    """The numbers that divide a number, rising."""
    return [n for n in range(1, number + 1) if number % n == 0]


def plans_of(factors: Sequence[Factor], fixed: Sequence[str] = ()) -> list[Choice]:
    """Every combination of choices that makes sense, as changes in the order in which they are made.

    What is fixed is part of each plan; other choices of the same settings are none.

    >>> plans_of([Factor("batch", [(), ("batch=8",)]), Factor("layout", [("data=2",), ("data=1",)])], ["data=2"])
    [('data=2',), ('batch=8', 'data=2')]
    """
    found: list[Choice] = []
    set_ = settings(fixed)
    for chosen in product(*(factor.choices for factor in factors)):
        texts = [text for choice in chosen for text in choice]
        given = settings(texts)
        if any(given.get(name, value) != value for name, value in set_.items()):
            continue
        texts += [text for text in fixed if text.partition("=")[0] not in given]
        plan = tuple(sorted(texts, key=_order))
        if plan not in found[-1:] and _makes_sense(plan):
            found.append(plan)
    return list(dict.fromkeys(found))


STEP_ORDER = ("dtype", "autocast", "optimizer", "attention", "batch", "seq", "checkpoint", "fuse")
"""In which changes of a step are made: those that trace it anew come first, those that are found once before others."""


def _order(text: str) -> tuple[int, int]:
    name = text.partition("=")[0]
    if name in STEP_ORDER:
        return 0, STEP_ORDER.index(name)
    return (1, list(PARALLELISM).index(name)) if name in PARALLELISM else (2, 0)


def _makes_sense(texts: Choice) -> bool:
    given = settings(texts)
    if "dtype" in given and "mixed" not in given:  # weights in half precision alone train otherwise
        return False
    if "mixed" in given and "autocast" in given:
        return False
    try:
        parallelism = JobChanges.of(read_changes(texts)).parallelism
    except ForetraceError:
        return False
    batch = given.get("batch")
    return batch is None or int(batch) % parallelism.get("microbatches", 1) == 0


def factors_of(job: Job, world: int, samples: int | None = None) -> list[Factor]:
    """What plans of a step on some ranks differ in; the first choices are the step as it is.

    Where the samples of all ranks together are given, the batch of a rank follows from its layout.

    >>> from foretrace.graph import Graph, OpTable
    >>> [factor.name for factor in factors_of(Job([Graph(OpTable.of([]))]), 8)]
    ['layout', 'shards', 'batch', 'checkpoint', 'precision', 'optimizer', 'fusion']
    """
    ops = list(job.graphs[0].ops)
    blocks = all_repeated_blocks(ops)
    half = any(tensor.dtype in HALF_DTYPES for op in ops if op.phase == "forward" for tensor in op.produced)
    shares = world > 1 and job.world == 1
    batch = batch_of(job)
    length = max((op.tensors[0].shape[-2] for op in ops if attention_kind(op)), default=0)
    layouts = _layouts(world, len(blocks), length // TOKENS_A_RANK) if job.world == 1 else [(f"world={world}",)]
    if samples is not None and batch is None:
        raise ForetraceError("the step does not show how many samples it has", "Leave samples out.")
    if samples is not None:
        layouts = _with_batches(layouts, samples)
    found = [Factor("layout", list(layouts))]
    if shares:
        mixed = [("sharded=on", "mixed=on")] if half and any(op.phase == "optimizer" for op in ops) else []
        others = [(f"buckets={BUCKETS_MB}",), ("zero1=on",), ("sharded=on",)]
        found.append(Factor("shards", [(), *others, *mixed]))
        experts = [n for n in divisors(expert_count(ops)) if 1 < n <= world]
        found += [Factor("experts", [(), *((f"experts={n}",) for n in experts)])] if experts else []
    free = batch is not None and samples is None
    sizes = sorted({max(round((batch or 1) * part), 1) for part in BATCHES} - {batch}) if free else []
    found.append(Factor("batch", [(), *((f"batch={size}",) for size in sizes)]))
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


def _with_batches(layouts: Iterable[Choice], samples: int) -> Iterator[Choice]:
    """Layouts between whose data parallel ranks the samples can be divided, each with its batch."""
    for layout in layouts:
        ranks = int(settings(layout).get("data", 1))
        if samples % ranks == 0:
            yield (*layout, f"batch={samples // ranks}")


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
                        yield (*shared, *sequence, *pipeline, "schedule=interleaved", "chunks=2")
                        yield (*shared, *sequence, *pipeline, "schedule=zbv", "chunks=2")


def _contexts(ranks: int, most: int) -> Iterator[Choice]:
    """Ways in which some of the ranks share each sequence; the first one is that none do."""
    yield ()
    for context in divisors(ranks):
        if 1 < context <= most:
            yield (f"context={context}",)
            yield (f"context={context}", "context_kind=all-to-all")


def features_of(plans: Sequence[Choice], batch: int | None = None) -> Floats:
    """A row of zeros and ones for each plan: what it sets to what; of a number, what it is as large as or larger.

    Microbatches count by stage, and data parallel ranks follow from the others. The batch of a plan that sets none is
    the given one.
    """
    each = []
    for plan in plans:
        given = settings(plan)
        given.pop("data", None)
        if "microbatches" in given:
            given["microbatches"] = str(int(given["microbatches"]) // int(given.get("pipeline", 1)))
        if batch is not None:
            given.setdefault("batch", str(batch))
        each.append(given)
    steps = {
        name: sorted({int(value) for given in each if (value := given.get(name, "")).isdecimal()})
        for name in sorted({name for given in each for name in given})
    }
    rows = [
        {
            (name, at_most)
            for name, value in given.items()
            for at_most in ([n for n in steps[name] if n <= int(value)] if value.isdecimal() else [value])
        }
        for given in each
    ]
    common = set.intersection(*rows) if rows else set()
    every = sorted({item for row in rows for item in row} - common, key=str)
    columns = {item: place for place, item in enumerate(every, 1)}
    found = np.zeros((len(plans), len(columns) + 1))
    found[:, 0] = 1.0
    for place, items in enumerate(rows):
        found[place, [columns[item] for item in items if item in columns]] = 1.0
    return found


def batch_of(job: Job) -> int | None:
    """Samples in a rank's batch; None where the step does not show it, or contradicts itself."""
    with suppress(ForetraceError):
        return batch_size(job.graphs[0])
    return None


def as_changes(texts: Iterable[str]) -> tuple[Change, ...]:
    """Changes that texts say."""
    return tuple(read_changes(texts))
