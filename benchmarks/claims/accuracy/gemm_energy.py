"""Claim: the energy of GEMMs that run for a second is predicted within 10 % on an H200, a B200 and a GB200.

That is the geometric mean. Published GEMMs with watts (aiconfigurator): joules are watts times time. Predicted are
both, the time as sustained under the power limit, for layers (n, k) that the constants of the draw were not fitted on.

Watts of some numbers of rows (m) were read while the GPU idled for a part of the time: on a B200 those of multiples of
4, whose GEMMs take as long as with one row more, and often draw no more than the idle GPU. They are told by these
neighbours (`benchmarks.fit.make_power.idle_rows`), not by what is predicted, and no GEMM draws so little: the constants
of the draw are fitted without them. The limit is for the rows without these, ``steady``, and for ``all``. Of the latter
the table's watts are predicted as a mix of what the GEMM draws and what the idle GPU does: GEMMs that take ``gap us``
are half of the time, longer ones more of it. That gap and how sharp it is, two numbers a GPU, are fitted on the same
layers as the draw; they say how the table was measured, and are in no forecast. ``as if busy`` is the error without.

What is left on the GB200: its GEMMs of over a millisecond took 0.7 times as long, sustained, as in a burst (the median,
by two tables of other versions of vLLM), which no power limit does: one of the two machines was slower.

Beside it, by how much the joules of a row are off the mean of its neighbours, the same layer for a few rows less and
more: nothing that follows sizes smoothly can be much closer.

    python -m benchmarks.claims.accuracy.gemm_energy
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.fit.make_power import (
    NEAR,
    TABLES,
    Floats,
    Sampling,
    Size,
    Sizes,
    burst_us,
    rows,
    shares,
    split,
    steady,
    sustained,
)
from benchmarks.fit.make_power import SAMPLE as FITTED
from benchmarks.lib.table import keep
from foretrace.platform.device import Device
from foretrace.platform.power import PowerModel

LIMIT, SAMPLE = 0.1, 3000


def gmae(ratio: Floats) -> float:
    """Geometric mean of the relative error."""
    return round(float(np.exp(np.log(np.maximum(np.abs(ratio - 1), 1e-3)).mean())), 4)


def between_neighbours(table: Sizes) -> float:
    """How far the joules of rows are off the mean of the next smaller and the next larger one."""
    layers: defaultdict[tuple[int, int], list[Size]] = defaultdict(list)
    for size in sorted(table):
        layers[size[1], size[2]].append(size)
    triples = [three for sizes in layers.values() for three in zip(sizes, sizes[1:], sizes[2:])]
    near = [[np.prod(table[size]) for size in three] for three in triples if three[2][0] <= NEAR * three[0][0]]
    before, own, after = np.array(near).T
    return gmae(own / np.sqrt(before * after))


def energy(gpu: str) -> Iterator[dict[str, Any]]:
    """Errors of watts and joules, of rows that were sampled while the GPU was busy and of all."""
    device, table = Device.named(gpu), rows("power_", TABLES[gpu], "0.22.0")
    model = PowerModel.of(device)
    assert model

    def drawn(sizes: list[Size]) -> tuple[Floats, Floats]:
        """Watts and microseconds of GEMMs that keep the GPU busy."""
        us = burst_us(sizes, gpu)
        return sustained(model.draw, model.slowdown, shares(sizes, us, device), us, model.limit_w)

    seen = split(table, FITTED)[0]
    sampling = Sampling.of(table, seen, *drawn(seen))
    for which, some in (("steady", steady(table)), ("all", table)):
        sizes = split(some, SAMPLE)[1]
        measured_us, measured_w = np.array([table[size] for size in sizes]).T
        watts, us = drawn(sizes)
        read_w = sampling.read_w(sizes, watts, us)
        joules = gmae(read_w * us / (measured_w * measured_us))
        yield {
            "gpu": gpu,
            "which": which,
            "of the table": round(len(some) / len(table), 3),
            "gap us": round(sampling.gap_us, 1),
            "rows": len(sizes),
            "watts": gmae(read_w / measured_w),
            "time": gmae(us / measured_us),
            "joules": joules,
            "as if busy": gmae(watts * us / (measured_w * measured_us)),
            "neighbours": between_neighbours(some),
            "limit": LIMIT,
            "holds": joules <= LIMIT,
        }


def main() -> int:
    """Print and keep the table; 1 where the claim does not hold."""
    found = [row for gpu in TABLES for row in energy(gpu)]
    missed = [f"{row['gpu']} ({row['which']}) {row['joules']:.1%}" for row in found if not row["holds"]]
    keep("gemm_energy", found, verdict=f"Does not hold: {', '.join(missed)} (10 %)" if missed else None)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
