"""How much longer a kernel takes while a collective runs beside it, and the collective beside kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from foretrace.graph.tables import Floats
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
