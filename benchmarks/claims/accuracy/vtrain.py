"""Claim: GPT's published iteration times by tensor, data and pipeline parallel ranks are predicted to 8 % on one node
of A100s and to 12 % on 64 to 512 of them, mean error, on rows that nothing was fitted on.

The times are vTrain's (`public/vtrain`), whose own errors are 8.37 % and 14.73 %. Megatron's GPT is sketched with two
layers, divided over the tensor ranks by `foretrace.parallelize`, and its kernels are priced by the H200's models
carried over to the A100. A stage is then one task for each forward and each backward of a microbatch, in the order of
its schedule (`vtrain_whole` holds that against the simulation of every call); collectives are priced on the A100's
fabric. Eight constants of the machine are fitted on a third of the rows, picked at random, with a weak pull to where
they would be without; whether the runs computed activations again is not told, and decided by the same rows. That is
done five times with other rows, and the mean counts.

    python -m benchmarks.claims.accuracy.vtrain
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from benchmarks.lib.megatron import step
from benchmarks.lib.table import keep
from foretrace.cost_models.collectives.pricing import price_collective
from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.graph import Graph
from foretrace.platform.fabric import Fabric
from foretrace.platform.platform import Platform
from foretrace.platform.registry import load_platform
from foretrace.simulation.engine import simulate
from foretrace.simulation.task_graph import TaskGraph
from foretrace.transforms.parallel.parallelize import RankMesh, parallelize
from foretrace.transforms.parallel.schedules import stage_schedule
from foretrace.transforms.weights import weights_of

TABLES = Path(__file__).resolve().parents[4] / "shared" / "public" / "vtrain"
LIMITS = {"single_node": 0.08, "multi_node": 0.12}
VTRAIN = {"single_node": 0.0837, "multi_node": 0.1473}
GPUS_PER_NODE = 8
LAYERS = 2
"""Of the sketch: one could be the first or the last."""
FIT, PULL = 1 / 3, 0.02
SEEDS = range(11, 16)
"""Of five ways to pick the rows to fit on. The form of the model was chosen while looking at seed 0 only."""
START = {
    "matrix": 1.0,  # times of matrix products, over what the models say
    "memory": 1.0,  # times of all other kernels
    "sums": 1.0,  # all_reduce of tensor parallel ranks, over what the fabric says
    "host_us": 20.0,  # a call takes the host so long
    "update_ns": 0.02,  # the optimizer takes so long for each weight
    "share": 1.0,  # all_reduce of gradients, over what the fabric says
    "pass": 1.0,  # sending between stages, over what the fabric says
    "sharp": 6.0,  # how well the shorter of host and device time hides behind the longer
}
"""Where each constant begins."""
NAMES = tuple(START)


@dataclass(frozen=True)
class Run:
    """A row of the tables."""

    table: str
    batch: int
    samples: int
    width: int
    heads: int
    layers: int
    length: int
    ranks: RankMesh
    ms: float

    @property
    def microbatches(self) -> int:
        return self.batch // (self.ranks.data * self.samples)


@dataclass
class Piece:
    """What a part of the model asks of host and device, forward or backward."""

    matrix_us: float = 0.0
    memory_us: float = 0.0
    calls: float = 0.0
    sums: Counter[int] = field(default_factory=Counter)
    """Bytes of its tensor parallel all_reduces, and how many there are."""
    weights: float = 0.0


def runs(table: str) -> list[Run]:
    with (TABLES / f"{table}.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns = ("global batch", "micro batch", "hidden size", "attention heads", "# layers", "sequence length")
    ways = ("tensor parallelism", "data parallelism", "pipeline parallelism")
    return [
        Run(  # type: ignore[call-arg]  # six columns
            table,
            *(int(row[c]) for c in columns),
            RankMesh(*(int(row[w]) for w in ways)),
            float(row["iteration time (ms)"]),
        )
        for row in rows
    ]


@cache
def a100() -> Platform:
    return load_platform("a100")


@cache
def sketched(width: int, heads: int, length: int, samples: int) -> Graph:
    return step(LAYERS, width, heads, length, samples)


@cache
def pieces(width: int, heads: int, length: int, samples: int, tensor: int) -> dict[tuple[str, bool], Piece]:
    """A layer, and all the rest, forward and backward, on one of so many tensor parallel ranks."""
    graph = parallelize(sketched(width, heads, length, samples), tensor=tensor).graphs[0]
    ops = list(graph.ops)
    found: dict[tuple[str, bool], Piece] = {
        (phase, layer): Piece() for phase in ("forward", "backward") for layer in (True, False)
    }

    def piece(row: int) -> tuple[Piece | None, float]:
        layer = ".layers." in ops[row].module
        return found.get((ops[row].phase, layer)), 1 / LAYERS if layer else 1.0

    reducing = {c.op: c.nbytes for c in graph.collectives}
    for row in range(len(ops)):
        here, share = piece(row)
        if here is not None:
            here.calls += share
            if row in reducing:
                here.sums[reducing[row]] += share  # type: ignore[assignment]
    rows = np.array([r for r, op in enumerate(ops) if r not in reducing and not op.is_side_call], np.int32)
    costs = price_kernels(graph, rows, a100())
    for row, us in zip(costs.op.tolist(), costs.typical.tolist()):
        here, share = piece(row)
        if here is not None and "mm" in ops[row].name:
            here.matrix_us += share * us
        elif here is not None:
            here.memory_us += share * us
    for gradient in weights_of(ops).gradients:
        layer = ".layers." in gradient.module
        found["backward", layer].weights += gradient.tensor.numel / (LAYERS if layer else 1)
    return found


@cache
def collective_us(kind: str, nbytes: int, members: tuple[int, ...]) -> float:
    if len(members) < 2:
        return 0.0
    inside = len({rank // GPUS_PER_NODE for rank in members}) == 1
    fabric = Fabric.named("a100-8x-nvswitch" if inside else "a100-nvswitch")
    return price_collective(fabric, kind, nbytes, members, GPUS_PER_NODE).typical


@cache
def program(stages: int, microbatches: int) -> tuple[TaskGraph, np.ndarray, np.ndarray]:
    """A pipeline: a task for each turn of a stage; which stage each is of, and which are forwards."""
    place: dict[tuple[int, bool, int], int] = {}
    rows, stage_of, forward = [], [], []
    edges = []
    for stage in range(stages):
        rows.append(len(place))
        for turn in stage_schedule("1f1b", stage, stages, microbatches):
            place[stage, turn.forward, turn.microbatch] = len(place)
            stage_of.append(stage)
            forward.append(turn.forward)
    for (stage, ahead, part), task in place.items():
        if task not in rows:
            edges.append((task - 1, task))
        source = stage - 1 if ahead else stage + 1
        if 0 <= source < stages:
            edges.append((place[source, ahead, part], task))
    pairs = np.array(edges or np.zeros((0, 2)), np.int32).reshape(-1, 2)
    pairs = pairs[np.argsort(pairs[:, 1], kind="stable")]
    first = np.concatenate([[0], np.cumsum(np.bincount(pairs[:, 1], minlength=len(place)))]).astype(np.int64)
    nothing = np.zeros(len(place))
    lane = np.array(stage_of, np.int32)
    made = TaskGraph(
        nothing, lane, first, pairs[:, 0].copy(), np.zeros(len(pairs)), row_starts=np.array(rows, np.int64)
    )
    return made, lane, np.array(forward)


class Machine:
    """What a run takes on the A100 with some constants."""

    def __init__(self, constants: Sequence[float], again: bool) -> None:
        self.constants, self.again = dict(zip(NAMES, constants)), again
        """Whether backward computes the activations of a layer again."""

    def ms(self, run: Run) -> float:
        ranks, c = run.ranks, self.constants
        parts = pieces(run.width, run.heads, run.length, run.samples, ranks.tensor)
        each = run.layers / ranks.pipeline
        layer = {phase: each * self.taken(parts[phase, True], ranks) for phase in ("forward", "backward")}
        if self.again:
            layer["backward"] = layer["backward"] + layer["forward"]
        rest = {phase: self.taken(parts[phase, False], ranks) for phase in ("forward", "backward")}
        hidden = 2 * run.samples * run.length * run.width
        passing = c["pass"] * collective_us("send", hidden, (0, ranks.at(stage=1))) if ranks.pipeline > 1 else 0.0
        pipeline, stage, forward = program(ranks.pipeline, run.microbatches)
        last = stage == ranks.pipeline - 1
        device_and_host = [
            np.where(
                forward,
                layer["forward"][n] + last * rest["forward"][n],
                layer["backward"][n] + last * rest["backward"][n],
            )
            for n in (0, 1)
        ]
        if ranks.pipeline == 1:  # a stage alone lets its host run ahead over the whole step
            span = self.slower(*(float(us.sum()) for us in device_and_host))
        else:
            span = simulate(pipeline, self.slower(*device_and_host) + passing).span
        weights = each * parts["backward", True].weights + parts["backward", False].weights
        table = round(2 * parts["backward", False].weights)
        replicas = tuple(ranks.at(data=d) for d in range(ranks.data))
        ends = (0, ranks.at(stage=ranks.pipeline - 1)) if ranks.pipeline > 1 else (0,)
        shared = collective_us("all_reduce", round(2 * weights), replicas) + collective_us("all_reduce", table, ends)
        us = span + c["update_ns"] * 1e-3 * weights + c["share"] * shared
        return float(us) / 1e3

    def slower(self, device: Any, host: Any) -> Any:
        """The longer of two times; where they are about as long, neither hides all of the other."""
        sharp = self.constants["sharp"]
        return (device**sharp + host**sharp) ** (1 / sharp)

    def taken(self, piece: Piece, ranks: RankMesh) -> np.ndarray:
        """Microseconds of device and host."""
        c, members = self.constants, tuple(range(ranks.tensor))
        sums = sum(count * collective_us("all_reduce", nbytes, members) for nbytes, count in piece.sums.items())
        device = c["matrix"] * piece.matrix_us + c["memory"] * piece.memory_us + c["sums"] * sums
        return np.array([device, c["host_us"] * piece.calls])


def fitted(some: Sequence[Run], again: bool) -> tuple[Machine, float]:
    """The constants that meet some runs best, and the error that is left."""
    start = np.log(list(START.values()))

    def off(logs: np.ndarray) -> np.ndarray:
        machine = Machine(np.exp(logs), again)
        errors = [np.log(machine.ms(run) / run.ms) for run in some]
        return np.array([*errors, *(PULL * np.sqrt(len(some)) * (logs - start))])

    best = least_squares(off, start, loss="soft_l1", f_scale=0.1)
    machine = Machine(np.exp(best.x), again)
    return machine, mean_error(machine.ms, some)


def mean_error(ms: Callable[[Run], float], some: Sequence[Run]) -> float:
    return float(np.mean([abs(ms(run) / run.ms - 1) for run in some]))


@dataclass
class Score:
    """How a machine that was fitted on a third of the rows meets the rest."""

    machine: Machine
    known: int
    unknown: int
    on_fitted: float
    error: float
    bare: float
    """The error with nothing fitted."""


def scored(table: str, seed: int) -> Score:
    listed = runs(table)
    order = np.random.default_rng(seed).permutation(len(listed))
    count = round(len(listed) * FIT)
    known, unknown = ([listed[place] for place in places] for places in (order[:count], order[count:]))
    machine, on_fitted = min((fitted(known, again) for again in (False, True)), key=lambda found: found[1])
    bare = mean_error(Machine(tuple(START.values()), machine.again).ms, unknown)
    return Score(machine, len(known), len(unknown), on_fitted, mean_error(machine.ms, unknown), bare)


def row_of(table: str, scores: Sequence[Score]) -> dict[str, object]:
    """The means over the ways to pick rows, and the worst of them."""
    errors = [score.error for score in scores]
    error = float(np.mean(errors))
    middle = np.median([list(score.machine.constants.values()) for score in scores], axis=0)
    return {
        "table": table, "fitted_on": scores[0].known, "scored_on": scores[0].unknown, "times": len(scores),
        "mean_error_%": round(100 * error, 2), "worst_%": round(100 * max(errors), 2),
        "limit_%": 100 * LIMITS[table], "vtrain_%": round(100 * VTRAIN[table], 2),
        "on_fitted_rows_%": round(100 * float(np.mean([score.on_fitted for score in scores])), 2),
        "nothing_fitted_%": round(100 * float(np.mean([score.bare for score in scores])), 1),
        "computes_again": [score.machine.again for score in scores], "holds": error <= LIMITS[table],
        "constants": {name: round(float(value), 4) for name, value in zip(NAMES, middle)},
    }  # fmt: skip


def main() -> int:
    if not TABLES.exists():
        print(f"nothing to compare with: {TABLES} is absent")
        return 0
    rows = [row_of(table, [scored(table, seed) for seed in SEEDS]) for table in LIMITS]
    keep("vtrain", rows, hide=["constants"])
    return int(not all(row["holds"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
