"""An embedding table, as much of it as decides where it should lie."""

from __future__ import annotations

import csv
import difflib
import io
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from foretrace.files import read_bounded
from foretrace.graph import ForetraceError

TABLE, COLUMN, TABLE_ROW, ROW, DATA = KINDS = (
    "table_wise", "column_wise", "table_row_wise", "row_wise", "data_parallel"
)  # fmt: skip
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
    foretrace.errors.ForetraceError: table users has 0 rows. Give the number of its embeddings, from 1 to 1e+12.
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


# --- was sharding.reading: Tables from a YAML or CSV file; what is wrong in it is told with its line.

MOST_TABLES = 1_000_000
MAX_FILE_BYTES = 256 << 20
"""A million tables take less."""
YES, NO = ("yes", "true", "1"), ("no", "false", "0")
YAML, CSV = (".yaml", ".yml", ".yaml.gz", ".yml.gz"), (".csv", ".csv.gz")


class Entry(NamedTuple):
    """One table of a file: what stands there, and where."""

    line: int
    words: Mapping[str, str]


def is_tables(path: Path) -> bool:
    """Whether a file's name says that it lists tables.

    >>> is_tables(Path("tables.csv.gz")), is_tables(Path("train.py"))
    (True, False)
    """
    return path.name.endswith((*YAML, *CSV))


def read_tables(path: Path) -> list[Table]:
    """The tables that a file lists.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "tables.csv"
    >>> _ = path.write_text("name,rows,dim,count\\nusers,1000,64,2\\n")
    >>> [table.name for table in read_tables(path)]
    ['users.0', 'users.1']
    """
    text = _text(path)
    entries = _yaml_entries(path, text) if path.name.endswith(YAML) else _csv_entries(path, text)
    tables: list[Table] = []
    lines: dict[str, int] = {}
    for number, entry in enumerate(entries):
        try:
            found = _tables(entry.words, number)
            _check_names(found, entry.line, lines)
            tables += found
        except ForetraceError as error:
            raise ForetraceError(f"{path}, line {entry.line}: {error.what}", error.advice) from None
        if len(tables) > MOST_TABLES:
            raise ForetraceError(f"{path}, line {entry.line}: more than {MOST_TABLES:,} tables", "Is count right?")
    if not tables:
        raise ForetraceError(f"{path} lists no tables", f"A table has rows and dim, and may have: {', '.join(FIELDS)}.")
    return tables


def _text(path: Path) -> str:
    try:
        return read_bounded(path, MAX_FILE_BYTES, "a list of tables").decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ForetraceError(f"{path} can't be read ({reason})", "Give a YAML or CSV file that lists tables.") from None


def _csv_entries(path: Path, text: str) -> Iterator[Entry]:
    reader = csv.reader(io.StringIO(text))
    seen: set[str] = set()
    try:
        header = [column.strip().lower() for column in next(reader, [])]
        listing = PLANNER.keys() <= set(header)  # which may name two tables alike
        names = {column: column for column in header}
        if listing:
            names = {column: name for column, name in (PLANNER | BESIDES).items() if column in header}
        else:
            _check_columns(path, 1, names)
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                raise ForetraceError(
                    f"{path}, line {reader.line_num}: {len(cells)} cells under {len(header)} columns",
                    "Quote cells that have commas in them.",
                )
            words = {names[c]: x.strip() for c, x in zip(header, cells) if c in names}
            if listing:
                words = _of_each_feature(words)
                words["name"] += f"#{reader.line_num}" * (words["name"] in seen)
            seen.add(words.get("name", ""))
            yield Entry(reader.line_num, words)
    except csv.Error as error:
        raise ForetraceError(f"{path}, line {reader.line_num}: {error}", "It should be plain CSV.") from None


def _of_each_feature(words: dict[str, str]) -> dict[str, str]:
    """A table of a planner's listing, which adds up the ids of all features.

    >>> _of_each_feature({"pooling": "60.0", "features": "4"})["pooling"]
    '15.0'
    """
    try:
        return words | {"pooling": str(float(words["pooling"]) / float(words.get("features") or 1))}
    except (ValueError, ZeroDivisionError):
        return words  # what is wrong is told where they are read


def _yaml_entries(path: Path, text: str) -> Iterator[Entry]:
    """A list of tables, by itself or under ``tables``."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        root = yaml.compose(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it is no YAML"
        raise ForetraceError(f"{path}{line}: {problem}", "It should be a YAML list of tables.") from None
    if isinstance(root, yaml.MappingNode):
        root = next((value for key, value in root.value if key.value == "tables"), None)
    if not isinstance(root, yaml.SequenceNode):
        raise ForetraceError(f"{path} is no list of tables", "Write one, by itself or under `tables:`.")
    for node in root.value:
        line = node.start_mark.line + 1
        if not isinstance(node, yaml.MappingNode):
            raise ForetraceError(f"{path}, line {line}: no table", "Write it as {name: …, rows: …, dim: …}.")
        for key, _ in node.value:
            _check_columns(path, key.start_mark.line + 1, {str(key.value): ""})
        yield Entry(line, {str(key.value): _plain(path, value) for key, value in node.value})


def _plain(path: Path, node: Any) -> str:
    """A scalar's text; those of a list, one after the other. Lists in lists may have no end: aliases lead anywhere."""
    import yaml

    items = node.value if isinstance(node, yaml.SequenceNode) else [node]
    if not all(isinstance(item, yaml.ScalarNode) for item in items):
        line = node.start_mark.line + 1
        raise ForetraceError(
            f"{path}, line {line}: neither a number, a word nor a list of these",
            "Write it as in {name: users, rows: 1000}.",
        )
    return " ".join(str(item.value) for item in items)


def _check_columns(path: Path, line: int, names: Mapping[str, str]) -> None:
    for name in names:
        if name not in FIELDS:
            near = difflib.get_close_matches(name, FIELDS, 1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise ForetraceError(
                f"{path}, line {line}: nothing of a table is called {name!r}", f"{hint}Known are: {', '.join(FIELDS)}."
            )


def _tables(words: Mapping[str, str], number: int) -> list[Table]:
    """A table, as often as its count says."""
    for needed in ("rows", "dim"):
        if not words.get(needed):
            raise ForetraceError(f"a table without {needed}", "Give its rows (embeddings) and its dim (their length).")
    values = {name: _value(name, text) for name, text in words.items() if text != ""}
    count = values.pop("count", 1)
    table = Table(**{"name": f"table {number}", **values})
    check(table)
    if not 0 < count <= MOST_TABLES:
        raise ForetraceError(
            f"table {table.name} has a count of {count}", f"Give how many are like it, from 1 to {MOST_TABLES:,}."
        )
    return [table] if count == 1 else [replace(table, name=f"{table.name}.{copy}") for copy in range(count)]


def _value(name: str, text: str) -> Any:
    try:
        return FIELDS[name](text)
    except (ValueError, OverflowError):
        raise ForetraceError(f"{name} is {text!r}", EXPECTED[name]) from None


def _whole(text: str) -> int:
    number = float(text.replace("_", ""))
    if number != int(number):
        raise ValueError(text)
    return int(number)


def _shares(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.replace(";", " ").replace(",", " ").split())


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(text.replace(";", " ").replace(",", " ").split())
    if not set(kinds) <= set(KINDS):
        raise ValueError(text)
    return kinds


def _yes_or_no(text: str) -> bool:
    if text.lower() not in YES + NO:
        raise ValueError(text)
    return text.lower() in YES


def _optimizer(text: str) -> str:
    return text.lower()


FIELDS: dict[str, Callable[[str], Any]] = {
    "name": str,
    "rows": _whole,
    "dim": _whole,
    "pooling": float,
    "dtype": lambda text: DTYPES.get(text.lower(), text),
    "zipf": float,
    "reuse": _shares,
    "optimizer": _optimizer,
    "kinds": _kinds,
    "sequence": _yes_or_no,
    "features": _whole,
    "count": _whole,
}
"""What a file may say of a table, and how each is read."""
NUMBER, WHOLE = "It should be a number.", "It should be a whole number."
EXPECTED = {
    "rows": WHOLE, "dim": WHOLE, "features": WHOLE, "count": WHOLE, "pooling": NUMBER, "zipf": NUMBER,
    "reuse": "It should be shares of the rows that a batch hits once, 2-3 times, 4-7 times, …: 0.5; 0.3; 0.2.",
    "sequence": "It should be yes or no.",
    "kinds": f"Known are: {', '.join(KINDS)}.",
}  # fmt: skip
PLANNER = {"fqn": "name", "hash_size": "rows", "emb_dim": "dim", "sum_pooling_factor": "pooling"}
"""What TorchRec's planner calls them in the listing that it writes."""
BESIDES = {"features": "features"}
"""What such a listing may have besides; nothing else of it is read."""


def _check_names(found: list[Table], line: int, lines: dict[str, int]) -> None:
    """Refuse a table with the name of one before it; lines are kept by name."""
    for table in found:
        before = lines.setdefault(table.name, line)
        if before != line:
            raise ForetraceError(
                f"a table is called {table.name} already, in line {before}", "Give each a name of its own."
            )
