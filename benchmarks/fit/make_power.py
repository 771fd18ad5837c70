"""Fit what GPUs draw, on published GEMMs that ran for a second each: `platform/data/power.json`.

    python -m benchmarks.fit.make_power

Watts at rest, and more at the peak rate, at full bandwidth of memory and of cache, and with all SMs busy; and by how
much longer than in a burst the GEMMs take that would draw more than the limit. Fitted by least absolute errors of the
logarithms of watts, times and joules, on 70 % of the layers; the times in a burst are the platform's own.

Of some numbers of rows (m) the tables' watts are not those of the GEMM: see `idle_rows`. They are left out.
"""

from __future__ import annotations

import csv
import gzip
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.lib.process import shared
from foretrace.calibration.published import priced_us
from foretrace.cost_models.kernels.ratios import linear
from foretrace.platform.device import Device
from foretrace.platform.platform import Platform
from foretrace.platform.power import POWER, Draw, PowerModel, capped
from foretrace.platform.typed_json import write

TABLES = {"h200": "h200_sxm", "b200": "b200_sxm", "gb200": "gb200"}
SAMPLE = 5000
HELD_OUT, SEED = 0.3, 3
"""Share of the layers, pairs of n and k, that the claim is checked on."""
NEAR, SAME_TIME = 1.3, 0.15
"""Times as many rows that a neighbour has at most, and the logarithm of how far its time is off."""
LOWER, OFTEN = 0.8, 0.25
"""Share of a neighbour's watts that is lower than noise makes it, and share of the layers in which that is so."""
FEW = 0.1
"""Share of a table's rows that least absolute errors bear."""
REST = 0.1
"""Quantile of a table's watts that is taken for those at rest: GEMMs of some microseconds in `idle_rows`."""
LEAST = 0.02
"""Quantile that is taken for those of a GPU that idles."""
TILE = 128
"""Rows and columns of the part of a product that an SM does."""
Floats = NDArray[np.float64]
Size = tuple[int, int, int]
Sizes = dict[Size, tuple[float, float]]


def rows(kind: str, system: str, version: str) -> Sizes:
    """Microseconds and watts of each GEMM; no watts in a table of bursts."""
    path = shared("public/aiconfigurator") / f"gemm_bf16_{kind}{system}_vllm-{version}.csv.gz"
    with gzip.open(path, "rt") as lines:
        found = list(csv.DictReader(lines))
    sizes = [(int(row["m"]), int(row["n"]), int(row["k"])) for row in found]
    return {size: (1e3 * float(row["latency_ms"]), float(row.get("power_w", 0))) for size, row in zip(sizes, found)}


def neighbours(table: Sizes) -> Iterator[tuple[Size, Size]]:
    """Sizes of one layer with the next larger number of rows, where these are about as many."""
    layers: defaultdict[tuple[int, int], list[Size]] = defaultdict(list)
    for size in sorted(table):
        layers[size[1], size[2]].append(size)
    for sizes in layers.values():
        yield from ((less, more) for less, more in itertools.pairwise(sizes) if more[0] <= NEAR * less[0])


def idle_rows(table: Sizes) -> set[int]:
    """Numbers of rows (m) whose watts were read while the GPU idled for a part of the time.

    On a B200, GEMMs of 256 rows draw half of what those of 257 do, for the same time; of 10 us, often no more than the
    idle GPU. That is so of all multiples of 4 there, in up to three of four layers; on an H200 of six other numbers of
    rows, 8 % of the table.
    They are known by their neighbours, whatever a model says of them.
    """
    lower: defaultdict[int, list[bool]] = defaultdict(list)
    for sizes in neighbours(table):
        (us, watts), (other_us, other_watts) = (table[size] for size in sizes)
        if abs(np.log(us / other_us)) < SAME_TIME:
            lower[sizes[0][0]].append(watts < LOWER * other_watts)
            lower[sizes[1][0]].append(other_watts < LOWER * watts)
    return {rows for rows, found in lower.items() if np.mean(found) > OFTEN}


def steady(table: Sizes) -> Sizes:
    """A table without `idle_rows`, where these are more than a few."""
    idle = idle_rows(table)
    kept = {size: found for size, found in table.items() if size[0] not in idle}
    return kept if len(kept) < (1 - FEW) * len(table) else table


@dataclass(frozen=True)
class Sampling:
    """How the watts of `idle_rows` were read: while the GPU waited for the next GEMM for a part of the time."""

    rows: set[int]
    gap_us: float
    """GEMMs that take as long are half of the time."""
    sharpness: float
    """How fast that share grows with their time."""
    idle_w: float

    @classmethod
    def of(cls, table: Sizes, sizes: Sequence[Size], watts: Floats, us: Floats) -> Sampling:
        """Fitted on the joules of some of a table's rows, by what they draw and take where the GPU is busy."""
        idle_w = float(np.quantile([watts for _, watts in table.values()], LEAST))
        measured = np.array([np.prod(table[size]) for size in sizes])
        idle = idle_rows(table)
        where = np.array([size[0] in idle for size in sizes])

        def sampling(logs: Floats) -> Sampling:
            gap_us, sharpness = np.exp(logs).tolist()
            return cls(idle, gap_us, sharpness, idle_w)

        def off(logs: Floats) -> float:
            joules = sampling(logs).read_w(sizes, watts, us) * us
            return float(np.abs(np.log(joules / measured))[where].mean())

        found = np.log([20.0, 1.2])
        return sampling(minimize(off, found, method="Nelder-Mead").x if where.any() else found)

    def read_w(self, sizes: Sequence[Size], watts: Floats, us: Floats) -> Floats:
        """What a table says of GEMMs that draw so much while they run."""
        busy = 1 / (1 + (self.gap_us / us) ** self.sharpness)
        where = np.array([size[0] in self.rows for size in sizes])
        return np.asarray(np.where(where, self.idle_w + busy * (watts - self.idle_w), watts))


def split(table: Sizes, count: int) -> tuple[list[Size], list[Size]]:
    """Some sizes to fit on, and some of layers that are held out."""
    layers, draw = sorted({size[1:] for size in table}), np.random.default_rng(SEED)
    unseen = {layers[place] for place in draw.permutation(len(layers))[: round(HELD_OUT * len(layers))].tolist()}
    parts = [[size for size in table if (size[1:] in unseen) is held] for held in (False, True)]
    seen, held_out = ([part[place] for place in draw.permutation(len(part))[:count].tolist()] for part in parts)
    return seen, held_out


def burst_us(sizes: Sequence[Size], gpu: str) -> Floats:
    """Times that the platform predicts."""
    return priced_us([linear(*size) for size in sizes], Platform.named(gpu))


def shares(sizes: Sequence[Size], us: Floats, device: Device) -> tuple[Floats, Floats, Floats, Floats]:
    """Shares that GEMMs reach of the peak rate, of the bandwidth from memory and from cache, and of the SMs.

    They run again and again: the cache holds operands and results of half its size.
    """
    m, n, k = np.array(sizes, np.float64).T
    rate = 2 * m * n * k / us / 1e6 / device.peak("bfloat16")
    moved = 2 * (m * k + n * k + m * n)
    cached = np.clip(2 - 2 * moved / (1e6 * device.l2_mb), 0, 1)
    bandwidth = moved / us / 1e3 / device.memory_gbps
    busy = np.minimum(1.0, np.ceil(m / TILE) * np.ceil(n / TILE) / device.sms)
    return rate, bandwidth * (1 - cached), bandwidth * cached, busy


def sustained(
    draw: Draw, slowdown: float, parts: tuple[Floats, ...], us: Floats, limit: float
) -> tuple[Floats, Floats]:
    """Watts and microseconds of GEMMs that run on and on."""
    above = draw.above_rest(*parts)
    longer = np.maximum(1.0, above / (limit - draw.rest_w)) ** slowdown
    return capped(draw.rest_w + above, limit), us * longer


def fitted(gpu: str, sizes: Sequence[Size], table: Sizes, slowdown: float | None = None) -> tuple[Draw, float]:
    """The draw of a GPU, and its slowdown where that is not given."""
    device = Device.named(gpu)
    measured_us, measured_w = np.array([table[size] for size in sizes]).T
    us, limit = burst_us(sizes, gpu), device.power_w or 1.0
    rest = float(np.quantile([watts for _, watts in table.values()], REST))
    parts = shares(sizes, us, device)

    def model(logs: Floats) -> tuple[Draw, float]:
        full, memory, cache, active, bend, slower = np.exp(logs).tolist()
        return Draw(rest, full, cache + memory, cache, active, 1 + bend), slowdown or slower

    def off(logs: Floats) -> float:
        watts, longer = sustained(*model(logs), parts, us, limit)
        power, time = np.log(watts / measured_w), np.log(longer / measured_us)
        return float((np.abs(power + time) + np.abs(power) / 2 + np.abs(time) / 2).mean())

    found = np.log([0.8 * limit, 0.35 * limit, 0.3 * limit, 0.1 * limit, 0.5, 0.5])
    for _ in range(3):  # the simplex collapses at times
        found = minimize(off, found, method="Nelder-Mead", options={"maxfev": 6000, "adaptive": True}).x
    return model(found)


def main() -> None:
    """Fit all GPUs whose tables have watts."""
    tables = {gpu: rows("power_", system, "0.22.0") for gpu, system in TABLES.items()}
    seen = {gpu: split(steady(table), SAMPLE)[0] for gpu, table in tables.items()}
    slowdown = round(float(np.median([fitted(gpu, seen[gpu], tables[gpu])[1] for gpu in TABLES])), 2)
    known = {gpu: fitted(gpu, seen[gpu], tables[gpu], slowdown)[0] for gpu in TABLES}
    provenance = "gemm_bf16_power tables of ai-dynamo/aiconfigurator (vllm-0.22.0): GEMMs that ran for a second each"
    rounded = {gpu: {name: round(value, 2) for name, value in asdict(draw).items()} for gpu, draw in known.items()}
    write(POWER, {"known": rounded, "slowdown": slowdown, "provenance": provenance})
    for name in TABLES:
        print(PowerModel.of(Device.named(name)))


if __name__ == "__main__":
    main()
