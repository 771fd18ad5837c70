"""Tasks to shard: tables drawn in the likeness of published ones, as many as fit one GPU that plays all ranks in turn.

Rows and pooling are those of tables of a production-like model with rows of 32 elements or more; how often rows are hit
follows published histograms, each bent a little, or power laws.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foretrace.sharding.options import Ranks
from foretrace.sharding.tables import Table

PUBLIC = Path(__file__).resolve().parents[2].parent / "shared" / "public" / "sharding"
DIMS = (32, 64, 128, 256)
BATCH = 4096
"""Samples of all ranks together."""
SIZES = {4: (36, 66), 8: (60, 130)}
"""Tables of a task, at least and at most, by ranks."""
MOST_ROWS = 10_000_000
MOST_POOLING = 128.0
MOST_ELEMENTS = 20_000_000_000
"""Of all tables of a task: 80 GB in float32."""
FRESH = range(25, 45)
"""Numbers of tasks that no model was fitted on and no law was chosen by; those below were looked at."""


@dataclass(frozen=True)
class Task:
    """Tables, and the ranks to place them on."""

    name: str
    ranks: Ranks
    tables: tuple[Table, ...]


def tasks(numbers: Iterable[int] = FRESH, public: Path = PUBLIC) -> list[Task]:
    """As many for four ranks as for eight, by turns."""
    rows, pooling = production(public)
    histograms = reuse_histograms(public)
    made = []
    for number in numbers:
        for world, (fewest, most) in SIZES.items():
            draw = np.random.default_rng([world, number])
            count = int(draw.integers(fewest, most + 1))
            tables = [_table(draw, f"t{place}", rows, pooling, histograms) for place in range(count)]
            made.append(Task(f"w{world}-{number}", Ranks(world, world, BATCH // world), tuple(_within(tables))))
    return made


def _table(
    draw: np.random.Generator, name: str, rows: np.ndarray, pooling: np.ndarray, histograms: list[np.ndarray]
) -> Table:
    like = int(draw.integers(len(rows)))
    size = int(np.clip(rows[like] * draw.uniform(0.5, 2.0), 1000, MOST_ROWS))
    ids = float(np.clip(np.round(pooling[like] * draw.uniform(0.5, 2.0)), 1, MOST_POOLING))
    dim = int(draw.choice(DIMS))
    spread = draw.choice(["histogram", "power law", "even"], p=[0.6, 0.3, 0.1])
    if spread == "power law":
        return Table(name, size, dim, ids, zipf=round(float(draw.uniform(0.5, 1.25)), 3))
    if spread == "even":
        return Table(name, size, dim, ids)
    bent = histograms[int(draw.integers(len(histograms)))] * np.exp(draw.normal(0, 0.3, len(histograms[0])))
    bent *= np.exp(draw.normal(0, 0.25) * np.arange(len(bent)))
    shares = np.trim_zeros(np.round(bent / bent.sum(), 5), "b")
    shares[0] += 1 - shares.sum()
    return Table(name, size, dim, ids, reuse=tuple(float(round(share, 5)) for share in shares))


def _within(tables: list[Table]) -> list[Table]:
    """All of them, the largest shrunk until they fit together."""
    sizes = np.array([float(table.rows) for table in tables])
    dims = np.array([table.dim for table in tables])
    while (sizes * dims).sum() > MOST_ELEMENTS:
        sizes[(sizes * dims).argmax()] /= 2
    return [Table(**{**table.__dict__, "rows": int(size)}) for table, size in zip(tables, sizes)]


def production(public: Path = PUBLIC) -> tuple[np.ndarray, np.ndarray]:
    """Rows and pooling of the published model's tables with long rows."""
    with gzip.open(public / "production_like_1935_tables.csv.gz", "rt") as file:
        found = [line for line in csv.DictReader(file) if int(line["emb_dim"]) >= min(DIMS)]
    rows = np.array([float(line["hash_size"]) for line in found])
    return rows, np.array([float(line["sum_pooling_factor"]) for line in found])


def reuse_histograms(public: Path = PUBLIC) -> list[np.ndarray]:
    """Shares of rows that a batch hits once, twice, up to four times, …: one histogram for each published batch."""
    found = []
    for path in sorted(public.glob("locality_stats_*.txt")):
        for part in path.read_text().split("Histogram of col sizes:")[1:]:
            shares = re.findall(r"^\([\d, ]+[\]+]+:? ([\d.]+)", part.split("[0,")[0], re.MULTILINE)
            found.append(np.array([float(share) for share in shares]))
    return found
