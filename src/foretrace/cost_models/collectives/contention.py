"""Contention in compute/communication overlap: kernels and collectives slow each other down; so do ranks that share
CPU cores (oversubscription)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np

from foretrace.graph.tables import Floats
from foretrace.platform.fabric import CpuOverlap, Fabric, Oversubscription
from foretrace.platform.typed_json import Positive, read_as

if TYPE_CHECKING:
    from foretrace.platform.measurements.fabric import TimedCollective

FILE = Path(__file__).with_name("contention.json")
MAX_SLOWDOWN = 4.0
"""Slowdown by overlap at most: where both wait for one core it is two."""


@dataclass(frozen=True)
class Contention:
    """Cost of compute/communication overlap: slowdown of kernels by an overlapping collective, and of it by kernels.

    A collective occupies some SMs and memory bandwidth. ``benchmarks/fit/contention_fit.py`` fits both: kernels on
    traces, transfers on published measurements, since no published trace of all ranks shows the same transfer with and
    without overlapping work.
    """

    factor: Positive
    """How many times as long a kernel takes."""
    added_us: float
    """And how much longer than that."""
    provenance: str
    transfer: Positive
    """How many times as long a transfer takes if kernels overlap all of it."""
    transfer_provenance: str
    spins: bool = True
    """Whether a collective that waits for its last rank slows kernels too, as NCCL's do."""

    def longer(self, us: Floats, share: Floats) -> Floats:
        """Microseconds added to kernels that a collective overlaps for a share of their time."""
        return ((self.factor - 1) * us + self.added_us) * share

    def transfer_longer(self, us: Floats, share: Floats) -> Floats:
        """Microseconds added to transfers that kernels overlap for a share of their time."""
        return (self.transfer - 1) * us * share


@cache
def gpu_contention() -> Contention:
    """The fitted contention of GPUs."""
    return read_as(Contention, FILE)


def oversubscription(fabric: Fabric, ranks: int) -> Oversubscription | None:
    """The slowdown and skew of so many ranks on the cores of one machine: interpolated between measured counts, beyond
    them as for the largest; None where none was measured.

    >>> seen = tuple(Oversubscription(*row) for row in ((1, 1.0, 0.0), (2, 1.1, 0.02), (4, 1.3, 0.04)))
    >>> fabric = Fabric("gloo", (), "made up", crowd=seen)
    >>> oversubscription(fabric, 3)
    Oversubscription(ranks=3, slower=1.2, behind=0.03)
    >>> oversubscription(fabric, 64).slower, oversubscription(Fabric("nvlink", (), "made up"), 8)
    (1.3, None)
    """
    if not fabric.crowd:
        return None
    known = [crowd.ranks for crowd in fabric.crowd]
    slower, behind = (
        float(np.interp(ranks, known, [getattr(crowd, field) for crowd in fabric.crowd]).round(9))
        for field in ("slower", "behind")
    )
    return Oversubscription(ranks, slower, behind)


def fit_oversubscription(seen: Iterable[TimedCollective]) -> tuple[Oversubscription, ...]:
    """The slowdown and skew for each number of ranks that worked at once; none if one was never measured alone.

    >>> from foretrace.platform.measurements.fabric import WORK, TimedCollective
    >>> alone, two = TimedCollective(WORK, 1, 1, 0, (100.0,)), TimedCollective(WORK, 2, 1, 0, (110.0, 130.0))
    >>> [(one.ranks, round(one.slower, 2), round(one.behind, 3)) for one in fit_oversubscription([alone, two, two])]
    [(1, 1.0, 0.0), (2, 1.2, 0.083)]
    """
    from foretrace.platform.measurements.fabric import WORK

    works: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    for one in seen:
        if one.kind == WORK and not one.nbytes and min(one.us, default=0.0) > 0:
            works[one.ranks].append(one.us)
    if 1 not in works:
        return ()
    average = {ranks: float(np.mean([np.mean(us) for us in rounds])) for ranks, rounds in works.items()}
    # Rounds in which one rank is far behind are rare, and count: a step has many rounds, and waits in each of them.
    behind = {ranks: float(np.mean([max(us) / np.mean(us) - 1 for us in rounds])) for ranks, rounds in works.items()}
    return tuple(Oversubscription(ranks, average[ranks] / average[1], behind[ranks]) for ranks in sorted(works))


def fit_overlap(seen: Sequence[TimedCollective]) -> CpuOverlap | None:
    """The slowdown of CPU work and of a collective while they overlap; None if that was not measured.

    >>> from foretrace.platform.measurements.fabric import OVERLAPPED, WORK, TimedCollective
    >>> work, both = TimedCollective(WORK, 2, 1, 0, (100.0, 100.0)), TimedCollective(WORK, 2, 1, 4096, (110.0, 130.0))
    >>> fit_overlap([work, both, TimedCollective(OVERLAPPED, 2, 1, 4096, (200.0, 240.0))])
    CpuOverlap(work=1.2, transfer=1.5)
    """
    from foretrace.platform.measurements.fabric import OVERLAPPED, WORK

    most = max((one.ranks for one in seen if one.kind == OVERLAPPED), default=0)
    alone, both = (
        [float(np.mean(one.us)) for one in seen if one.kind == WORK and one.ranks == most and bool(one.nbytes) == sent]
        for sent in (False, True)
    )
    sums = np.array([one.us for one in seen if one.kind == OVERLAPPED and one.ranks == most])
    if not alone or not both:
        return None
    work, overlapped_work, (transfer, overlapped_transfer) = mean(alone), mean(both), np.mean(sums, axis=0).tolist()
    overlap = min(overlapped_work, overlapped_transfer)
    return CpuOverlap(_slowdown(work, overlapped_work, overlap), _slowdown(transfer, overlapped_transfer, overlap))


def _slowdown(alone: float, overlapped: float, overlap: float) -> float:
    """How many times as long something takes while it overlaps with another thing, which it does for a time."""
    return round(overlap / max(overlap - max(overlapped - alone, 0.0), overlap / MAX_SLOWDOWN), 9)
