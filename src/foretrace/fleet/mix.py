"""The mix of a fleet as numbers: what each recording does in an hour, and what the fleet does in all its hours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from foretrace.analysis.breakdown import KERNEL_GROUPS
from foretrace.fleet.labels import HOURS
from foretrace.fleet.response import COMPONENTS, HOST
from foretrace.fleet.store import Flat, Store
from foretrace.graph.tables import Floats

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = (
    "name", "world", "step_ms", "active_ms", "memory_bytes", "response", HOURS,
    *(f"kernels.list.element.{name}" for name in ("family", "dtype", "ms", "count", "gflop", "mbytes")),
    *(f"collectives.list.element.{name}" for name in ("kind", "log2_bytes", "transfer_ms", "wait_ms")),
)  # fmt: skip
TOTAL, FAMILY, COLLECTIVE, IDLE, MEMORY = "total", "device time", "collective", "idle", "memory"
SHAPE, SIZE = "device time by size", "collective by size"
RESPONSE = "with other parts"
STATED = (TOTAL, FAMILY, COLLECTIVE, IDLE, MEMORY, RESPONSE)
"""Kinds of figures that a scorecard states; the others only steer the choice."""
SETTINGS: dict[str, dict[str, float]] = {
    "device twice as slow": dict.fromkeys(KERNEL_GROUPS, 2.0),
    "device twice as fast": dict.fromkeys(KERNEL_GROUPS, 0.5),
    "arithmetic twice as slow": dict.fromkeys(("matrix product", "convolution", "attention"), 2.0),
    "hosts twice as slow": dict.fromkeys(HOST, 2.0),
}
"""Changes that a suite shall respond to as the fleet does: what other platforms are made of."""
SMALL = 0.01
"""Figures below this share of the fleet's hours are held against so much of them, not against themselves."""
STEERING = 0.25
"""How much a figure that only steers counts, relative to one that is stated."""
MEMORY_UNIT = 1e11
"""Bytes that count like an hour."""
BALANCE = 10.0
"""FLOPs per byte above which a kernel counts as one of arithmetic."""


@dataclass(frozen=True)
class Figure:
    """One figure of a mix, in hours."""

    kind: str
    name: str


@dataclass(frozen=True, eq=False)
class Mix:
    """Recordings by the figures of their mix."""

    ids: list[str]
    names: list[str]
    hours: Floats
    step_ms: Floats
    world: np.ndarray
    figures: list[Figure]
    per_hour: Floats
    """For each recording and figure, how much of the figure is in one of its hours."""

    @property
    def target(self) -> Floats:
        """The figures of the whole fleet."""
        return np.asarray(self.hours @ self.per_hour)

    @cached_property
    def stated(self) -> np.ndarray:
        """Which figures a scorecard states."""
        return np.array([figure.kind in STATED for figure in self.figures])

    def places(self, kind: str) -> np.ndarray:
        """The places of the figures of a kind."""
        return np.array([place for place, figure in enumerate(self.figures) if figure.kind == kind], np.int64)

    def scale(self, target: Floats) -> Floats:
        """What each figure is held against: itself, or a small share of the hours where it is less."""
        whole = float(target[self.places(TOTAL)][0])
        return np.maximum(target, SMALL * whole)

    def off_by_family(self, target: Floats, found: Floats) -> float:
        """Share of the device time that is in another family than in the target."""
        places = self.places(FAMILY)
        whole = float(target[places].sum())
        return float(np.abs(found[places] - target[places]).sum()) / whole if whole else 0.0


def fleet_mix(store: Store) -> Mix:
    """The mix of a store's recordings."""
    return mix_of(store.table(COLUMNS))


def mix_of(table: pa.Table) -> Mix:
    """The mix of a table of recordings."""
    count = table.num_rows
    step = np.maximum(table.column("step_ms").to_numpy(), 1e-9)
    active = np.clip(table.column("active_ms").to_numpy() / step, 0.0, 1.0)
    hours = table.column(HOURS).to_numpy().astype(np.float64)
    kernels, collectives = Flat(table, "kernels"), Flat(table, "collectives")
    ms = kernels["ms"]
    kernel_ms = np.bincount(kernels.row, ms, count)
    # Kernels that overlap share the time in which the device works.
    share = ms * np.divide(active, kernel_ms, out=np.zeros(count), where=kernel_ms > 0)[kernels.row]
    talk = (collectives["transfer_ms"] + collectives["wait_ms"]) / step[collectives.row]
    family, families = kernels.codes("family")
    kind, kinds = collectives.codes("kind")
    size, sizes = _size_codes(kernels, family, families)
    bytes_of = collectives["log2_bytes"].astype(np.int64) + 1
    pairs, which = np.unique(kind.astype(np.int64) * 128 + bytes_of, return_inverse=True)
    blocks = [
        ([Figure(TOTAL, "hours")], np.ones((count, 1))),
        ([Figure(IDLE, "device idles")], (1 - active)[:, None]),
        ([Figure(MEMORY, "peak memory")], table.column("memory_bytes").to_numpy()[:, None] / MEMORY_UNIT),
        ([Figure(RESPONSE, name) for name in SETTINGS], _responses(table, step)),
        ([Figure(FAMILY, name) for name in families], _sums(kernels.row, family, share, count, len(families))),
        ([Figure(COLLECTIVE, name) for name in kinds], _sums(collectives.row, kind, talk, count, len(kinds))),
        ([Figure(SHAPE, name) for name in sizes], _sums(kernels.row, size, share, count, len(sizes))),
        (
            [Figure(SIZE, f"{kinds[pair // 128]} 2^{pair % 128 - 1}") for pair in pairs.tolist()],
            _sums(collectives.row, which, talk, count, len(pairs)),
        ),
    ]
    return Mix(
        ids=table.column("id").to_pylist(),
        names=table.column("name").to_pylist(),
        hours=np.where(np.isfinite(hours), hours, 1.0),
        step_ms=step,
        world=table.column("world").to_numpy(),
        figures=[figure for figures, _ in blocks for figure in figures],
        per_hour=np.concatenate([block for _, block in blocks], axis=1),
    )


def _responses(table: pa.Table, step: Floats) -> Floats:
    """How many times as long each recording takes in each of the settings; once, where its response is unknown."""
    flat, count = Flat(table, "response"), table.num_rows
    paths = flat.items.flatten().to_numpy(zero_copy_only=False).reshape(-1, len(COMPONENTS))
    known = np.flatnonzero(np.bincount(flat.row, minlength=count))
    found = np.ones((count, len(SETTINGS)))
    for place, scale in enumerate(SETTINGS.values()):
        factors = np.array([scale.get(name, 1.0) for name in COMPONENTS])
        if len(known):
            longest = np.maximum.reduceat(paths @ factors, np.searchsorted(flat.row, known))
            found[known, place] = longest / step[known]
    return found


def _sums(row: np.ndarray, code: np.ndarray, values: Floats, rows: int, codes: int) -> Floats:
    """Values added up by row and code."""
    flat = np.bincount(row * codes + code, values, rows * codes) if codes else np.zeros(0)
    return np.asarray(flat, np.float64).reshape(rows, codes)


def _size_codes(kernels: Flat, family: np.ndarray, families: list[str]) -> tuple[np.ndarray, list[str]]:
    """Kernels by family, dtype, bytes to a power of four, and whether arithmetic or memory limits them."""
    dtype, dtypes = kernels.codes("dtype")
    each = kernels["mbytes"] * 1e6 / np.maximum(kernels["count"], 1)
    log4 = np.clip(np.floor(np.log2(np.maximum(each, 1.0)) / 2), 0, 31).astype(np.int64)
    arithmetic = (kernels["gflop"] * 1e3 > BALANCE * kernels["mbytes"]).astype(np.int64)
    code = ((family.astype(np.int64) * len(dtypes) + dtype) * 32 + log4) * 2 + arithmetic
    pairs, which = np.unique(code, return_inverse=True)
    names = []
    for pair in pairs.tolist():
        rest, limit = divmod(pair, 2)
        rest, power = divmod(rest, 32)
        one, of_dtype = divmod(rest, len(dtypes))
        names.append(f"{families[one]} {dtypes[of_dtype]} 4^{power} B{' arithmetic' if limit else ''}")
    return which, names
