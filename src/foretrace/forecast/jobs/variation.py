"""How much a measured step varies: what its host and its kernels may take when it runs once more."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from foretrace.cost_models.percentiles import TENTH
from foretrace.forecast.doubt import PERCENTILES
from foretrace.graph import Graph, KernelTable
from foretrace.graph.numbers import percentiles
from foretrace.graph.tables import Floats, Ints
from foretrace.platform.folder import find
from foretrace.platform.platform import read_host

FEWEST = 5
"""Steps, or kernels of a kind, that tell how far such lie apart."""
TYPICAL = "h200"
"""The host that others are taken to vary as."""


def log_spread(times: Sequence[float] | Floats) -> float:
    """Standard deviation of the logarithm of times, from their 10th and 90th percentile: a few strays do not count.

    >>> round(log_spread([90.0, 100.0, 100.0, 100.0, 110.0]), 2)
    0.05
    """
    low, high = percentiles(np.log(np.maximum(times, 1e-9)), PERCENTILES)
    return (high - low) / (2 * TENTH)


def host_spread(graph: Graph) -> float:
    """Of a factor that all host time of a step shares: as its plain steps lie apart, or else as on a typical host.

    >>> from foretrace.graph import OpTable, Timings
    >>> step = Graph(OpTable.of([]), plain=Timings(synced_ms=(90.0, 100.0, 100.0, 100.0, 110.0)))
    >>> round(host_spread(step), 2)
    0.05
    """
    times = graph.plain.synced_ms
    return log_spread(times) if len(times) >= FEWEST else typical_host_spread()


@cache
def typical_host_spread() -> float:
    """That of a host that comes with Foretrace.

    >>> 0.0 < typical_host_spread() < 0.5
    True
    """
    return read_host(find(TYPICAL)).common


def kernel_spreads(kernels: KernelTable) -> tuple[Ints, Floats]:
    """The kind of each kernel, and how far the times of each kind lie apart within the step.

    Kernels of a kind have the same name, launch and bytes. A kind with too few of them varies as the others do.
    """
    if not len(kernels):
        return np.zeros(0, np.int32), np.zeros(0)
    keys = np.stack([kernels.name, kernels.grid, kernels.block, kernels.nbytes])
    _, kind = np.unique(keys, axis=1, return_inverse=True)
    order = np.argsort(kind, kind="stable")
    groups = np.split((kernels.end - kernels.start)[order], np.cumsum(np.bincount(kind))[:-1])
    spreads = np.array([log_spread(times) if len(times) >= FEWEST else np.nan for times in groups])
    usual = float(np.nanmedian(spreads)) if np.isfinite(spreads).any() else 0.0
    return kind.ravel().astype(np.int32), np.where(np.isnan(spreads), usual, spreads)


def words_of(graphs: Sequence[Graph]) -> str:
    """What the range of a job on its own machine is made of.

    >>> from foretrace.graph import OpTable, Timings
    >>> step = Graph(OpTable.of([]), plain=Timings(synced_ms=(90.0, 100.0, 100.0, 100.0, 110.0)))
    >>> words_of([step]).partition(";")[0]
    'in the range the host varies by 5 %, as the plain steps did'
    """
    timed = all(len(graph.plain.synced_ms) >= FEWEST for graph in graphs)
    how = "as the plain steps did" if timed else f"as the {TYPICAL}'s does, since no plain steps were timed"
    by = f"{100 * max(host_spread(graph) for graph in graphs):.0f} %"
    return f"in the range the host varies by {by}, {how}; kernels as those of a kind do, transfers as the fabric says"
