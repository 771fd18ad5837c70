"""Plans: combinations of what transforms and `parallelize` express, and bounds on the time and memory of each.

A plan is a choice for each factor: how ranks share the step, its batch, checkpointing, precision, the optimizer. Bounds
need no simulation: no plan is faster for a sample than `PlanBounds.sample_us` says, nor takes less memory on a GPU than
`PlanBounds.nbytes`, so that what is pruned by them can't be the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from foretrace.analysis.dispatched import dispatched_calls
from foretrace.analysis.memory import peak_memory
from foretrace.cost_models.collectives.pricing import price_collective
from foretrace.errors import ForetraceError
from foretrace.graph import Job, Op
from foretrace.graph.tables import Floats
from foretrace.platform.fabric import Fabric
from foretrace.platform.platform import Platform
from foretrace.prediction.rates import works
from foretrace.transforms.blocks import all_repeated_blocks, block_index
from foretrace.transforms.parallel.experts import expert_count
from foretrace.transforms.resize.batch_sequence import batch_size
from foretrace.transforms.weights import weights_of
from foretrace.whatif.changes import JobChanges
from foretrace.whatif.grammar import PARALLELISM, Change, read_changes

MAX_TENSOR = 8
"""Tensor parallel ranks exchange activations in every layer: more than a node's are never worth it."""
MAX_STAGES = 16
BLOCKS_A_STAGE = 6
"""More than four stages have at least so many blocks each: fewer do not make up for the bubble."""
BATCHES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Batches of a rank that are tried, as multiples of the given one."""
MIN_BLOCKS = 12
"""A step of fewer blocks is simulated as it is, and every second of them checkpointed but not every fourth."""
MICROBATCHES = (2, 4)
"""Microbatches of a pipeline that are tried, for each of its stages."""
BUCKETS_MB = 100
HALF = ("bfloat16", "float16")

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
    half = any(tensor.dtype in HALF for op in ops if op.phase == "forward" for tensor in op.produced)
    shares = world > 1 and job.world == 1
    batch = None
    with suppress(ForetraceError):
        batch = batch_size(job.graphs[0])
    layouts = _layouts(world, len(blocks)) if job.world == 1 else [(f"world={world}",)]
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


def _layouts(world: int, blocks: int) -> Iterator[Choice]:
    """Ways in which ranks share a step: data, tensor and pipeline parallel, microbatches and schedule of a pipeline."""
    if world == 1:
        yield ()
        return
    for stages in divisors(world):
        if stages > min(MAX_STAGES, max(min(blocks, 4), blocks // BLOCKS_A_STAGE, 1)):
            break
        for tensor in divisors(world // stages):
            if tensor > MAX_TENSOR:
                break
            shared: list[str] = [f"data={world // stages // tensor}"]
            shared += [f"tensor={tensor}"] if tensor > 1 else []
            sequences: list[list[str]] = [[], ["sequence=on"]] if tensor > 1 else [[]]
            for sequence in sequences:
                if stages == 1:
                    yield (*shared, *sequence)
                    continue
                for times in MICROBATCHES:
                    pipeline = (f"pipeline={stages}", f"microbatches={stages * times}")
                    yield (*shared, *sequence, *pipeline)
                    if blocks >= 2 * stages:
                        yield (*shared, *sequence, *pipeline, "schedule=interleaved", "chunks=2")


class PlanBounds:
    """What no plan of a step can be below: time for a sample, and memory on a GPU.

    Time: its matrix products at the peak rate of the device, with what is recomputed and the bubble of a pipeline; or
    the exchange of its gradients at the best bandwidth of the fabric. Memory: weights, gradients and optimizer states,
    which the optimizer reads all at once.
    """

    def __init__(self, job: Job, where: Platform, fabric: Fabric | None, gpus_per_node: int | None = None) -> None:
        self._device, self._fabric, self._per_node = where.device, fabric, gpus_per_node
        self._peak_us, self._recomputed_us, self._weights, self._gradients, self._held = 0.0, 0.0, 0, 0, 0
        self._full, self._activations, self._blocks = 1.0, 0, 1
        self._half = False
        self._rate = cache(self._least_us_per_byte)
        with suppress(ForetraceError):
            self._batch = batch_size(job.graphs[0])
        if job.world > 1 or self._batch is None or where.device.runs_on_host:
            return
        calls = dispatched_calls(job.graphs[0]).calls
        ops = list(calls.ops)
        self._half = any(tensor.dtype in HALF for op in ops if op.phase == "forward" for tensor in op.produced)
        flops = {row: work.flops for row, work, counts in works(calls, range(len(ops)), where.device) if counts}
        rate = self._device.peak("bfloat16") * 1e6
        self._peak_us = sum(flops.values()) / rate / self._batch
        self._recomputed_us = _recomputed(ops, flops) / rate / self._batch
        self._slower = self._device.peak("bfloat16") / max(self._device.peak("tf32"), self._device.peak("float32"))
        with suppress(ForetraceError):
            weights = weights_of(ops)
            self._gradients = sum(gradient.tensor.nbytes for gradient in weights.gradients)
            self._weights = sum(weight.nbytes for weight in weights.weights.values())
            self._held = _preexisting_bytes(ops)
            self._full = sum(4 * weight.numel for weight in weights.weights.values()) / max(self._weights, 1)
            self._activations = max((peak_memory(job.graphs[0]) or 0) - self._held - self._gradients, 0)
            self._blocks = max(len(all_repeated_blocks(ops)), 1)

    _batch: int | None = None
    _slower: float = 1.0

    def sample_us(self, changes: Choice, world: int) -> float:
        """Microseconds for a sample."""
        given = settings(changes)
        data, tensor, stages, parts = (
            int(given.get(name, 1)) for name in ("data", "tensor", "pipeline", "microbatches")
        )
        work = self._peak_us + self._recomputed_us * (given.get("checkpoint") == "*")
        if not self._half and not {"autocast", "dtype"} & given.keys():
            work *= self._slower
        # Stage s starts after all before it, and they end after it: the best that any division into stages makes of it.
        stage = 1 / stages if "schedule" in given else 1 / parts / (1 - (1 - 1 / parts) ** stages)
        return float(max(work * stage / (data * tensor), self._exchange_us(given, data, tensor, stages)))

    def _exchange_us(self, given: dict[str, str], data: int, tensor: int, stages: int) -> float:
        if data < 2 or not self._fabric or not self._batch:
            return 0.0
        nbytes = self._gradients / (tensor * stages) * (0.5 if "dtype" in given else 1.0)
        rate: float = self._rate(data, tensor)
        return nbytes * rate / (int(given.get("batch", self._batch)) * data * int(given.get("experts", 1)))

    def _least_us_per_byte(self, data: int, tensor: int) -> float:
        """Of reduced gradients, among all sizes; as all_reduce, or scattered and gathered again."""
        assert self._fabric is not None
        members = range(0, data * tensor, tensor)
        found: list[float] = []
        for size in (2**power for power in range(16, 34)):
            once, *halves = (
                price_collective(self._fabric, kind, size, members, self._per_node).typical
                for kind in ("all_reduce", "reduce_scatter")
            )
            found.append(float(min(once, *halves)) / size)
        return min(found)

    def nbytes(self, changes: Choice) -> float:
        """Bytes on the fullest GPU."""
        given = settings(changes)
        shards = int(given.get("data", 1))
        states = max(self._held - self._weights, 0)
        kept = self._full if "mixed" in given else 0.5 if "dtype" in given else 1.0  # of what is in shards
        weights = self._weights * (0.5 if "dtype" in given else 1.0)
        if "sharded" in given:
            held = (self._weights + self._gradients + states) * kept / shards
        elif "zero1" in given:
            master = self._weights if "mixed" in given else 0
            held = weights + (master + self._gradients + states) * kept / shards
        else:
            held = (self._weights + self._gradients + states) * kept
        # Experts of other ranks are not there: how much of the weights they are is not looked at.
        return held / prod(int(given.get(name, 1)) for name in ("tensor", "pipeline", "experts"))

    def likely_bytes(self, changes: Choice) -> float:
        """Bytes on the fullest GPU with activations, roughly: what the search starts from, and then corrects."""
        given = settings(changes)
        tensor, stages, parts = (int(given.get(name, 1)) for name in ("tensor", "pipeline", "microbatches"))
        batch = int(given.get("batch", self._batch or 1)) / (self._batch or 1)
        mode = given.get("checkpoint", "")
        kept = {"": 1.0, "*": 1 / self._blocks, "1/4": 0.75, "3/4": 0.25}.get(mode, 0.5)
        in_flight = min(stages, parts) / parts / stages / tensor
        half = 0.5 if {"dtype", "autocast"} & given.keys() else 1.0
        return self.nbytes(changes) + self._activations * batch * kept * in_flight * half


def _recomputed(ops: Sequence[Op], flops: dict[int, float]) -> float:
    """Arithmetic of recomputed blocks: all but their last products, whose results backward does not read."""
    blocks = all_repeated_blocks(ops)
    by_block: dict[int, list[float]] = {}
    for row, count in flops.items():
        block = block_index(ops[row].module, blocks) if ops[row].phase == "forward" else -1
        if block >= 0:
            by_block.setdefault(block, []).append(count)
    return sum(sum(counts) - max(counts) for counts in by_block.values())


def _preexisting_bytes(ops: Sequence[Op]) -> int:
    """Bytes of weights and optimizer states: what the optimizer reads and no call of the step made."""
    made, sizes = set[int](), dict[int, int]()
    for op in ops:
        given = {tensor.storage for tensor in op.tensors}
        if op.phase == "optimizer":
            for tensor in op.tensors:
                if tensor.storage not in made:
                    sizes[tensor.storage] = max(sizes.get(tensor.storage, 0), tensor.nbytes)
        made |= {tensor.storage for tensor in op.produced} - given
    return sum(sizes.values())


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


def as_changes(texts: Iterable[str]) -> tuple[Change, ...]:
    """Changes that texts say."""
    return tuple(read_changes(texts))
