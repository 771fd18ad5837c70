"""How much longer a kernel takes while a collective runs beside it, and the collective beside kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean

import numpy as np

from foretrace.graph.tables import Floats
from foretrace.platform.fabric import Beside, Crowd, Fabric
from foretrace.platform.fabric_measurements import BESIDE, WORK, Exchange
from foretrace.platform.files import Positive, read_as

FILE = Path(__file__).parent / "contention.json"


@dataclass(frozen=True)
class Contention:
    """A collective takes some of the device's processors and of its memory's bandwidth.

    And kernels take these from it. ``benchmarks/contention_fit.py`` fits both: kernels on traces, transfers on what
    others measured, since no published trace of all ranks shows the same transfer with and without work beside it.
    """

    factor: Positive
    """How many times as long a kernel takes."""
    added_us: float
    """And how much longer than that."""
    provenance: str
    transfer: Positive
    """How many times as long a transfer takes with kernels beside it all the time."""
    transfer_provenance: str
    spins: bool = True
    """Whether a collective that waits for its last rank slows kernels as well, as those of GPUs do."""

    def longer(self, us: Floats, share: Floats) -> Floats:
        """Microseconds by which kernels take longer with a collective beside them for a share of their time.

        >>> import numpy as np
        >>> contention().longer(np.array([10.0]), np.array([0.0])).tolist()
        [0.0]
        """
        return ((self.factor - 1) * us + self.added_us) * share

    def transfer_longer(self, us: Floats, share: Floats) -> Floats:
        """Microseconds by which transfers take longer with kernels beside them for a share of their time."""
        return (self.transfer - 1) * us * share


@cache
def contention() -> Contention:
    """As fitted.

    >>> contention().factor >= 1
    True
    """
    return read_as(Contention, FILE)


# --- was cost_models.crowd: How ranks slow each other where one machine's processors do the work of all of them.

MOST_TIMES = 4.0
"""As many times as long something may take beside another thing: where both wait for one processor it is twice."""


def fit_crowds(seen: Iterable[Exchange]) -> tuple[Crowd, ...]:
    """One for each number of ranks that worked at once; none where one was never alone.

    >>> alone, two = Exchange(WORK, 1, 1, 0, (100.0,)), Exchange(WORK, 2, 1, 0, (110.0, 130.0))
    >>> [(crowd.ranks, round(crowd.slower, 2), round(crowd.behind, 3)) for crowd in fit_crowds([alone, two, two])]
    [(1, 1.0, 0.0), (2, 1.2, 0.083)]
    """
    works: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    for one in seen:
        if one.kind == WORK and not one.nbytes and min(one.us, default=0.0) > 0:
            works[one.ranks].append(one.us)
    if 1 not in works:
        return ()
    usual = {ranks: float(np.mean([np.mean(us) for us in moments])) for ranks, moments in works.items()}
    # Moments in which one is far behind are rare, and count: a step has many, and waits in each of them.
    behind = {ranks: float(np.mean([max(us) / np.mean(us) - 1 for us in moments])) for ranks, moments in works.items()}
    return tuple(Crowd(ranks, usual[ranks] / usual[1], behind[ranks]) for ranks in sorted(works))


def fit_beside(seen: Sequence[Exchange]) -> Beside | None:
    """How work and an exchange slow each other while both go on; None where that was not measured.

    >>> work, both = Exchange(WORK, 2, 1, 0, (100.0, 100.0)), Exchange(WORK, 2, 1, 4096, (110.0, 130.0))
    >>> fit_beside([work, both, Exchange(BESIDE, 2, 1, 4096, (200.0, 240.0))])
    Beside(work=1.2, transfer=1.5)
    """
    most = max((one.ranks for one in seen if one.kind == BESIDE), default=0)
    alone, both = (
        [float(np.mean(one.us)) for one in seen if one.kind == WORK and one.ranks == most and bool(one.nbytes) == sent]
        for sent in (False, True)
    )
    sums = np.array([one.us for one in seen if one.kind == BESIDE and one.ranks == most])
    if not alone or not both:
        return None
    work, of_both, (transfer, of_transfer) = mean(alone), mean(both), np.mean(sums, axis=0).tolist()
    overlap = min(of_both, of_transfer)
    return Beside(_times_as_long(work, of_both, overlap), _times_as_long(transfer, of_transfer, overlap))


def _times_as_long(alone: float, beside: float, overlap: float) -> float:
    """How many times as long something takes while another thing goes on, which it does for some of the time."""
    return round(overlap / max(overlap - max(beside - alone, 0.0), overlap / MOST_TIMES), 9)


def crowd_of(fabric: Fabric, ranks: int) -> Crowd | None:
    """So many ranks at once: between those that were measured in proportion, beyond them as the most; None for none.

    >>> fabric = Fabric("gloo", (), "made up", crowd=(Crowd(1, 1.0, 0.0), Crowd(2, 1.1, 0.02), Crowd(4, 1.3, 0.04)))
    >>> crowd_of(fabric, 3)
    Crowd(ranks=3, slower=1.2, behind=0.03)
    >>> crowd_of(fabric, 64).slower, crowd_of(Fabric("nvlink", (), "made up"), 8)
    (1.3, None)
    """
    if not fabric.crowd:
        return None
    known = [crowd.ranks for crowd in fabric.crowd]
    slower, behind = (
        float(np.interp(ranks, known, [getattr(crowd, field) for crowd in fabric.crowd]).round(9))
        for field in ("slower", "behind")
    )
    return Crowd(ranks, slower, behind)
