"""The mix of a fleet as numbers: what each recording does in an hour, and what the fleet does in all its hours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from foretrace.fleet.labels import HOURS
from foretrace.fleet.response import COMPONENTS, SETTINGS, component_factors
from foretrace.fleet.store import Flat, Store, hours_of
from foretrace.graph.tables import Floats

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = (
    "name", "world", "step_ms", "active_ms", "memory_bytes", "response", HOURS,
    *(f"kernels.list.element.{name}" for name in ("family", "dtype", "ms", "count", "gflop", "mbytes")),
    *(f"collectives.list.element.{name}" for name in ("kind", "log2_bytes", "transfer_ms", "wait_ms")),
    *(f"parts.list.element.{name}" for name in ("name", "step_ms", "active_ms", "memory_bytes")),
    *(f"parts.list.element.{name}.list.element" for name in ("settings_ms", "groups", "ms")),
)  # fmt: skip
TOTAL, FAMILY, COLLECTIVE, IDLE, MEMORY = "total", "device time", "collective", "idle", "memory"
SHAPE, SIZE = "device time by size", "collective by size"
RESPONSE = "with other parts"
STATED = (TOTAL, FAMILY, COLLECTIVE, IDLE, MEMORY, RESPONSE)
"""Kinds of figures that a scorecard states; the others only steer the choice."""
SMALL = 0.01
"""Figures below this share of the fleet's hours are held against so much of them, not against themselves."""
STEERING = 0.25
"""How much a figure that only steers counts, relative to one that is stated."""
MEMORY_UNIT = 1e11
"""Bytes that count like an hour."""
MAX_CUT = 300
"""Recordings whose parts may be in a suite: of more, those with most hours."""
BALANCE = 10.0
"""FLOPs per byte above which a kernel counts as one of arithmetic."""


@dataclass(frozen=True)
class Figure:
    """One figure of a mix, in hours."""

    kind: str
    name: str


@dataclass(frozen=True, eq=False)
class Mix:
    """Recordings by the figures of their mix, and behind them parts of recordings, which have no hours of their own."""

    ids: list[str]
    parts: list[str]
    """The name of the part; empty for a whole recording."""
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

    @property
    def whole(self) -> int:
        """How many are whole recordings: all before the first part."""
        return len(self.parts) - sum(map(bool, self.parts))

    def without_parts(self) -> Mix:
        """The whole recordings alone."""
        count = self.whole
        return replace(
            self, ids=self.ids[:count], parts=self.parts[:count], names=self.names[:count], hours=self.hours[:count],
            step_ms=self.step_ms[:count], world=self.world[:count], per_hour=self.per_hour[:count],
        )  # fmt: skip

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
    hours = hours_of(table)
    kernels, collectives = Flat(table, "kernels"), Flat(table, "collectives")
    share = _shares(kernels.row, kernels["ms"], active)
    talk = (collectives["transfer_ms"] + collectives["wait_ms"]) / step[collectives.row]
    family, families = kernels.codes("family")
    kind, kinds = collectives.codes("kind")
    size, sizes = _size_codes(kernels, family, families)
    bytes_of = collectives["log2_bytes"].astype(np.int64) + 1
    pairs, which = np.unique(kind.astype(np.int64) * 128 + bytes_of, return_inverse=True)
    memory = table.column("memory_bytes").to_numpy()
    parts = _Parts.of_table(table, kernels.row, hours)
    more = len(parts.row)
    blocks = [
        ([Figure(TOTAL, "hours")], np.ones((count + more, 1))),
        ([Figure(IDLE, "device idles")], 1 - np.append(active, parts.active)[:, None]),
        ([Figure(MEMORY, "peak memory")], np.append(memory, parts.memory)[:, None] / MEMORY_UNIT),
        ([Figure(RESPONSE, name) for name in SETTINGS], np.concatenate([_responses(table, step), parts.settings])),
        *(
            (
                [Figure(kind_of, name) for name in names],
                np.concatenate([
                    _sums(kernels.row, code, share, count, len(names)),
                    _sums(parts.of, code[parts.kernel], parts.share, more, len(names)),
                ]),
            )
            for kind_of, code, names in ((FAMILY, family, families), (SHAPE, size, sizes))
        ),
        *(
            (
                [Figure(kind_of, name) for name in names],
                _sums(collectives.row, code, talk, count + more, len(names)),
            )
            for kind_of, code, names in (
                (COLLECTIVE, kind, kinds),
                (SIZE, which, [f"{kinds[pair // 128]} 2^{pair % 128 - 1}" for pair in pairs.tolist()]),
            )
        ),
    ]  # fmt: skip
    ids, names = table.column("id").to_pylist(), table.column("name").to_pylist()
    return Mix(
        ids=[*ids, *(ids[row] for row in parts.row.tolist())],
        parts=[""] * count + parts.names,
        names=[*names, *(f"{names[row]}: {part}" for row, part in zip(parts.row.tolist(), parts.names))],
        hours=np.append(hours, np.zeros(more)),
        step_ms=np.append(step, parts.step_ms),
        world=np.append(table.column("world").to_numpy(), np.ones(more, np.int64)),
        figures=[figure for figures, _ in blocks for figure in figures],
        per_hour=np.concatenate([block for _, block in blocks], axis=1),
    )


def _shares(row: np.ndarray, ms: Floats, active: Floats) -> Floats:
    """Kernels' shares of a step: those that overlap share the time in which the device works."""
    whole = np.bincount(row, ms, len(active))
    return np.asarray(ms * np.divide(active, whole, out=np.zeros(len(active)), where=whole > 0)[row])


@dataclass(frozen=True, eq=False)
class _Parts:
    """The parts of some recordings, and behind each other the kernel groups that they have device time in."""

    row: np.ndarray
    """The recording of each."""
    names: list[str]
    step_ms: Floats
    active: Floats
    memory: np.ndarray
    settings: Floats
    """How many times as long each takes in each of the settings."""
    of: np.ndarray
    """For each entry of the kernel groups the part, the group's place in all, and its share of the part's time."""
    kernel: np.ndarray
    share: Floats

    @classmethod
    def of_table(cls, table: pa.Table, group_row: np.ndarray, hours: Floats) -> _Parts:
        flat = Flat(table, "parts")
        cut = np.argsort(-hours, kind="stable")[:MAX_CUT]
        taken = np.flatnonzero(np.isin(flat.row, cut))
        row, items = flat.row[taken], flat.items.take(taken)
        step = np.maximum(items.field("step_ms").to_numpy(), 1e-9)
        active = np.clip(items.field("active_ms").to_numpy() / step, 0.0, 1.0)
        groups = items.field("groups")
        of = np.repeat(np.arange(len(row)), np.diff(groups.offsets.to_numpy()))
        begin = np.searchsorted(group_row, np.arange(table.num_rows))
        ms = items.field("ms").flatten().to_numpy()
        settings = items.field("settings_ms").flatten().to_numpy().reshape(len(row), len(SETTINGS))
        return cls(
            row, items.field("name").to_pylist(), step, active, items.field("memory_bytes").to_numpy(),
            settings / step[:, None], of,
            begin[row[of]] + groups.flatten().to_numpy(), _shares(of, ms, active),
        )  # fmt: skip


def _responses(table: pa.Table, step: Floats) -> Floats:
    """How many times as long each recording takes in each of the settings; once, where its response is unknown."""
    flat, count = Flat(table, "response"), table.num_rows
    paths = flat.items.flatten().to_numpy(zero_copy_only=False).reshape(-1, len(COMPONENTS))
    known = np.flatnonzero(np.bincount(flat.row, minlength=count))
    found = np.ones((count, len(SETTINGS)))
    for place, scale in enumerate(SETTINGS.values()):
        factors = component_factors(scale)
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
