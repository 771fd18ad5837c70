"""How much longer a kernel takes while a collective runs beside it."""

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

    ``benchmarks/contention_fit.py`` fits it. What compute kernels take from a collective is not in it: no published
    trace of all ranks shows the same transfer with and without work beside it.
    """

    factor: Positive
    """How many times as long a kernel takes."""
    added_us: float
    """And how much longer than that."""
    provenance: str

    def longer(self, us: Floats, share: Floats) -> Floats:
        """Microseconds by which kernels take longer with a collective beside them for a share of their time.

        >>> import numpy as np
        >>> Contention(1.5, 2.0, "made up").longer(np.array([10.0, 10.0]), np.array([1.0, 0.0])).tolist()
        [7.0, 0.0]
        """
        return ((self.factor - 1) * us + self.added_us) * share


@cache
def contention() -> Contention:
    """As fitted.

    >>> contention().factor >= 1
    True
    """
    return read_as(Contention, FILE)
