"""How far a predicted step may be off: the spread of the host, the errors of the kernel models, and those of the
fabric.

Modelled ranks are uncertain by their models' errors; measured ones vary as their unprofiled steps and their kernels
did.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.breakdown import kernel_family
from foretrace.cost_models.kernels.roofline import ASSUMED
from foretrace.graph import Graph, KernelTable
from foretrace.graph.tables import SIGMAS_TO_P90, Floats, Ints, percentiles
from foretrace.platform.platform import read_host
from foretrace.platform.registry import find_platform
from foretrace.prediction.device_work import assumed_sizes
from foretrace.prediction.priced_step import PricedStep
from foretrace.simulation.task_graph import KERNEL, TaskGraph
from foretrace.simulation.uncertainty import Uncertainty

MAX_SAMPLES, MIN_SAMPLES = 300, 20
"""The first is enough for the 10th and the 90th percentile to be known to a hundredth of the range, and quick."""
SAMPLED_TASKS = 20_000_000
"""Tasks of all samples together: large jobs are sampled less often."""
PERCENTILES = (10.0, 90.0)
"""The ends of a range, which holds 80 % of the steps."""
OF_THE_FAMILY = 0.5
"""Share of a kernel model's variance that all kernels of a family have in common; the rest is that of equal calls."""
MIN_FOR_SPREAD = 5
"""Steps, or kernels of a kind, from which on their spread is taken from them."""
TYPICAL_HOST = "h200"
"""The host whose spread stands in where no unprofiled steps were timed."""


def sample_count(tasks: int) -> int:
    """How many samples of so many tasks are drawn.

    >>> sample_count(1_000), sample_count(1_000_000)
    (300, 20)
    """
    return min(max(SAMPLED_TASKS // max(tasks, 1), MIN_SAMPLES), MAX_SAMPLES)


def priced_uncertainty(calls: Graph, step: PricedStep, tasks: TaskGraph) -> Uncertainty:
    """The uncertainty of each task of a priced step.

    The host's calls have a spread each, and one factor that a whole step shares. A kernel shares part of its error with
    its family, and the rest with those that the model can't tell from it.
    """
    families, alike = _kernel_groups(calls, step)
    sizes = assumed_sizes(calls)
    faster, slower = (max(step.common, speed) for speed in step.speeds)
    host, device = np.hypot(step.spread, faster), tasks.kind == KERNEL
    shared = np.divide(faster**2, host**2, out=np.zeros(len(step)), where=host > 0)
    group = tasks.op.copy()
    group[device] = len(step) + alike[tasks.row[device]]

    _, example = np.unique(alike, return_index=True)
    work = step.work
    down, up = log_spreads(work.low[example], work.typical[example], work.high[example])
    found = Uncertainty(
        group=group,
        down=np.concatenate([host, down]),
        up=np.concatenate([host * (slower / faster if faster else 1.0), up]),  # of which as much is shared
        common=np.concatenate([np.zeros(len(step), np.int32), families[example]]),
        weight=np.concatenate([shared, np.full(len(example), OF_THE_FAMILY)]),
    )
    return found if sizes is None else _with_assumed_sizes(found, sizes, work.source[example] == ASSUMED)


def _with_assumed_sizes(found: Uncertainty, sizes: Floats, assumed: NDArray[np.bool_]) -> Uncertainty:
    """The uncertainty of a step with sizes that a sketch assumed: one share makes all of them larger or smaller."""
    *_, fewest, most = sizes
    fewer, more = -np.log(fewest) / SIGMAS_TO_P90, np.log(most) / SIGMAS_TO_P90
    kernels = np.zeros(len(assumed))
    every = np.concatenate([(fewest < 1) | (most > 1), assumed])
    return found._replace(
        down=np.hypot(found.down, np.concatenate([fewer, kernels])),
        up=np.hypot(found.up, np.concatenate([more, kernels])),
        common=np.where(every, 1 + found.common.max(initial=0), found.common).astype(np.int32),
        weight=np.where(every, 1.0, found.weight),
    )


def log_spreads(low: Floats, typical: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Standard deviations of the logarithm, downwards and upwards, from the 10th percentile, median and 90th
    percentile."""
    low, typical, high = (np.maximum(column, 1e-9) for column in (low, typical, high))
    return np.log(typical / np.minimum(low, typical)) / SIGMAS_TO_P90, np.log(
        np.maximum(high, typical) / typical
    ) / SIGMAS_TO_P90


def _kernel_groups(calls: Graph, step: PricedStep) -> tuple[Ints, Ints]:
    """For each kernel the number of its family, from 1, and of those that are predicted the same."""
    work = step.work
    op_names = [calls.ops.names[code] for code in calls.ops.name[work.call].tolist()]
    families = _numbered([kernel_family(kernel, op) for kernel, op in zip(work.name, op_names)])
    low = np.where(work.source == ASSUMED, work.low, 0.0)
    alike = _numbered(
        [f"{name} {us:.4f} {less:.4f}" for name, us, less in zip(work.name, work.typical.tolist(), low.tolist())]
    )
    return families + 1, alike


def _numbered(words: list[str]) -> Ints:
    """A code for each word: its position among the distinct ones in alphabetical order."""
    place = {word: place for place, word in enumerate(sorted(set(words)))}
    return np.array([place[word] for word in words], np.int32)


def measured_uncertainty(graph: Graph, tasks: TaskGraph) -> Uncertainty:
    """How much a measured rank varies from run to run: its host as a whole, kernels of a kind alike."""
    kind, spreads = kernel_spreads(graph.kernels)
    on_device = np.flatnonzero(tasks.kind == KERNEL)
    group = np.zeros(len(tasks), np.int32)
    group[on_device] = kind[tasks.row[on_device]] + 1
    spread = np.append(host_spread(graph), spreads)
    shared = np.append(1.0, np.zeros(len(spreads)))
    return Uncertainty(group, spread, spread, np.zeros(len(spread), np.int32), shared)


def job_uncertainty(ranks: Sequence[Uncertainty], transfers: tuple[Floats, Floats, Floats], alike: Ints) -> Uncertainty:
    """The uncertainty of all ranks' tasks and of the transfers behind them.

    Calls and kernels of a rank vary by themselves; the models of host, kernels and fabric are off for all ranks alike.
    Ranks that drew the factor of their whole host each by themselves would make every job as slow as its unluckiest
    rank: most of that factor is the error of the host's model, which they share.

    Transfers are low, typical and high microseconds of each collective's; those of one kind, size and group have the
    same number in ``alike``.
    """
    sizes = np.cumsum([0] + [len(rank.down) for rank in ranks])
    _, example = np.unique(alike, return_index=True)
    down, up = log_spreads(*(column[example] for column in transfers))
    # Number 0 is the hosts', those of the families follow, and the fabric's comes last.
    fabric = 1 + max((int(rank.common.max(initial=0)) for rank in ranks), default=0)
    groups = [rank.group + size for rank, size in zip(ranks, sizes)]
    return Uncertainty(
        group=np.concatenate([*groups, alike + sizes[-1]]).astype(np.int32),
        down=np.concatenate([*(rank.down for rank in ranks), down]),
        up=np.concatenate([*(rank.up for rank in ranks), up]),
        common=np.concatenate([*(rank.common for rank in ranks), np.full(len(example), fabric)]).astype(np.int32),
        weight=np.concatenate([*(rank.weight for rank in ranks), np.ones(len(example))]),
    )


def log_spread(times: Sequence[float] | Floats) -> float:
    """Standard deviation of the logarithm of times, from their 10th and 90th percentile: outliers do not count.

    >>> round(log_spread([90.0, 100.0, 100.0, 100.0, 110.0]), 2)
    0.05
    """
    low, high = percentiles(np.log(np.maximum(times, 1e-9)), PERCENTILES)
    return (high - low) / (2 * SIGMAS_TO_P90)


def host_spread(graph: Graph) -> float:
    """Spread of a factor that all host time of a step shares: that of its unprofiled steps, or of a typical host."""
    times = graph.unprofiled.synced_ms
    return log_spread(times) if len(times) >= MIN_FOR_SPREAD else typical_host_spread()


@cache
def typical_host_spread() -> float:
    """The typical spread of a host that comes with Foretrace."""
    return read_host(find_platform(TYPICAL_HOST)).common


def kernel_spreads(kernels: KernelTable) -> tuple[Ints, Floats]:
    """The kind of each kernel, and the spread of the times of each kind within the step.

    Kernels of a kind have the same name, launch and bytes. A kind with too few of them varies as the others do.
    """
    if not len(kernels):
        return np.zeros(0, np.int32), np.zeros(0)
    keys = np.stack([kernels.name, kernels.grid, kernels.block, kernels.nbytes])
    _, kind = np.unique(keys, axis=1, return_inverse=True)
    order = np.argsort(kind, kind="stable")
    groups = np.split((kernels.end - kernels.start)[order], np.cumsum(np.bincount(kind))[:-1])
    spreads = np.array([log_spread(times) if len(times) >= MIN_FOR_SPREAD else np.nan for times in groups])
    typical = float(np.nanmedian(spreads)) if np.isfinite(spreads).any() else 0.0
    return kind.ravel().astype(np.int32), np.where(np.isnan(spreads), typical, spreads)


def measured_range_note(graphs: Sequence[Graph]) -> str:
    """What the range of a job on its own machine is made of.

    >>> from foretrace.graph import OpTable, Timings
    >>> step = Graph(OpTable.of([]), unprofiled=Timings(synced_ms=(90.0, 100.0, 100.0, 100.0, 110.0)))
    >>> measured_range_note([step]).partition(";")[0]
    'range: the host varies by 5 %, as the unprofiled steps did'
    """
    timed = all(len(graph.unprofiled.synced_ms) >= MIN_FOR_SPREAD for graph in graphs)
    how = (
        "as the unprofiled steps did"
        if timed
        else f"as the {TYPICAL_HOST}'s does, since no unprofiled steps were timed"
    )
    by = f"{100 * max(host_spread(graph) for graph in graphs):.0f} %"
    others = "kernels as others of their kind do, transfers by the error of the fabric's model"
    return f"range: the host varies by {by}, {how}; {others}"
