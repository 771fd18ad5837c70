"""An embedding table, as much of it as decides where it should lie."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foretrace.graph import ForetraceError

ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
"""Bytes of an element, by the dtypes that tables have."""
DTYPES = {**{name: name for name in ITEMSIZE}, "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""What a file may call them."""
STATE: dict[str, tuple[int, int]] = {
    "sgd": (0, 0),
    "rowwise_adagrad": (0, 4),
    "adagrad": (4, 0),
    "partial_rowwise_adam": (4, 4),
    "adam": (8, 0),
}
"""Bytes that an optimizer keeps: for each element, and for each row."""
ADDS_UP = 0.02
"""So far the shares of a histogram may be from one, having been rounded."""
MOST_ROWS, MOST_DIM, MOST_FEATURES = 10**12, 1 << 16, 10**6


@dataclass(frozen=True)
class Table:
    """One embedding table, how it is looked up, and how it is updated.

    >>> Table("users", rows=1_000_000, dim=64).nbytes
    256000000
    """

    name: str
    rows: int
    dim: int
    pooling: float = 1.0
    """Ids of a sample in each feature, on average."""
    dtype: str = "float32"
    optimizer: str = "sgd"
    zipf: float = 0.0
    """Exponent of the power law that ids follow; 0 spreads them evenly."""
    reuse: tuple[float, ...] = ()
    """Where known: the share of the hit rows that a batch hits once, 2-3 times, 4-7 times, and so on."""
    kinds: tuple[str, ...] = ()
    """The ways in which it may be sharded; any where empty."""
    sequence: bool = False
    """Whether a sample gets a row for each of its ids, as of ``nn.Embedding``, and not their sum."""
    features: int = 1
    """Of a sample, that are looked up in it: each has ids of its own, and gets an embedding of its own."""

    @property
    def ids(self) -> float:
        """Of a sample, on average, in all features."""
        return self.pooling * self.features

    @property
    def nbytes(self) -> int:
        """Bytes of its weights."""
        return self.rows * self.dim * ITEMSIZE[self.dtype]

    def made_for(self, samples: float) -> float:
        """Embeddings that so many samples get.

        >>> Table("words", 1000, 64, pooling=20).made_for(10), Table("words", 1000, 64, 20, sequence=True).made_for(10)
        (10, 200)
        >>> Table("words", 1000, 64, pooling=20, features=3).made_for(10)
        30
        """
        return samples * (self.ids if self.sequence else self.features)


def check(table: Table) -> None:
    """Refuse a table that can't be.

    >>> check(Table("users", rows=0, dim=64))
    Traceback (most recent call last):
    foretrace.graph.errors.ForetraceError: table users has 0 rows. Give the number of its embeddings, from 1 to 1e+12.
    """
    what = table.name if table.name.startswith("table") else f"table {table.name}"
    if not 0 < table.rows <= MOST_ROWS:
        raise ForetraceError(
            f"{what} has {table.rows} rows", f"Give the number of its embeddings, from 1 to {MOST_ROWS:g}."
        )
    if not 0 < table.dim <= MOST_DIM:
        raise ForetraceError(
            f"{what} has rows of {table.dim} elements", f"Give the length of an embedding, from 1 to {MOST_DIM:,}."
        )
    if not (math.isfinite(table.pooling) and 0 <= table.pooling <= 1e6):
        raise ForetraceError(f"{what} has a pooling of {table.pooling}", "Give the ids of a sample, on average.")
    if not 0 < table.features <= MOST_FEATURES:
        raise ForetraceError(
            f"{what} has {table.features} features",
            f"Give how many of a sample are looked up in it, from 1 to {MOST_FEATURES:,}.",
        )
    if table.dtype not in ITEMSIZE:
        raise ForetraceError(f"{what} is of dtype {table.dtype!r}", f"Known are: {', '.join(DTYPES)}.")
    if table.optimizer not in STATE:
        raise ForetraceError(f"{what} has optimizer {table.optimizer!r}", f"Known are: {', '.join(STATE)}.")
    if not 0 <= table.zipf <= 10:
        raise ForetraceError(f"{what} has a Zipf exponent of {table.zipf}", "Give one from 0, evenly, to 10.")
    _check_histogram(table, what)


def _check_histogram(table: Table, what: str) -> None:
    if not table.reuse:
        return
    if not all(math.isfinite(share) and share >= 0 for share in table.reuse) or len(table.reuse) > 40:
        raise ForetraceError(f"{what} has a reuse histogram that is none", "Give at most 40 shares, none negative.")
    total = sum(table.reuse)
    if abs(total - 1) > ADDS_UP:
        raise ForetraceError(
            f"the reuse histogram of {what} adds up to {total:.3g}, not to 1",
            "It holds shares of the rows that a batch hits: once, 2-3 times, 4-7 times, and so on.",
        )


def gigabytes(nbytes: float) -> str:
    """Bytes as this room says them.

    >>> gigabytes(256_000_000), gigabytes(12_300)
    ('0.26 GB', '0.012 MB')
    """
    if nbytes < 1e7:
        return f"{nbytes / 1e6:.2g} MB"
    return f"{nbytes / 1e9:,.{2 if nbytes < 1e10 else 1}f} GB"
