"""Embedding tables: what decides their placement, and reading lists of them from CSV and YAML files."""

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

from foretrace.errors import ForetraceError
from foretrace.files import read_bounded

SHARDING_TYPE_NAMES = ("table_wise", "column_wise", "table_row_wise", "row_wise", "data_parallel")
"""TorchRec's names of what `foretrace.sharding.options` describes."""
TABLE_WISE, COLUMN_WISE, TABLE_ROW_WISE, ROW_WISE, DATA_PARALLEL = SHARDING_TYPE_NAMES
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
"""Bytes of an element, by the dtypes that tables have."""
DTYPE_ALIASES = {**{name: name for name in ITEMSIZE}, "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
OPTIMIZER_STATE: dict[str, tuple[int, int]] = {
    "sgd": (0, 0),
    "rowwise_adagrad": (0, 4),
    "adagrad": (4, 0),
    "partial_rowwise_adam": (4, 4),
    "adam": (8, 0),
}
"""Bytes of optimizer state for each element, and for each row."""
HISTOGRAM_TOLERANCE = 0.02
"""How far the sum of a histogram's shares may be from one, since they are rounded."""
MAX_ROWS, MAX_DIM, MAX_FEATURES, MAX_POOLING, MAX_BINS = 10**12, 1 << 16, 10**6, 1e6, 40
MAX_TABLES = 1_000_000
"""Beyond these, a file is damaged, or its columns are mixed up."""
MAX_FILE_BYTES = 256 << 20
"""A million tables take less."""
YAML_SUFFIXES, CSV_SUFFIXES = (".yaml", ".yml", ".yaml.gz", ".yml.gz"), (".csv", ".csv.gz")


@dataclass(frozen=True)
class Table:
    """An embedding table, how it is looked up, and how it is updated.

    >>> Table("users", rows=1_000_000, dim=64).nbytes
    256000000
    """

    name: str
    rows: int
    dim: int
    pooling: float = 1.0
    """Mean ids per sample and feature: the pooling factor."""
    dtype: str = "float32"
    optimizer: str = "sgd"
    zipf: float = 0.0
    """Exponent of the power law of the ids; 0 for uniform ids."""
    reuse: tuple[float, ...] = ()
    """The access histogram, if known: of the rows that a batch accesses, the share accessed once, 2-3 times, 4-7 times,
    and so on."""
    kinds: tuple[str, ...] = ()
    """Allowed sharding types; empty for all."""
    sequence: bool = False
    """Whether a sample gets a row for each of its ids, as from ``nn.Embedding``, instead of their sum."""
    features: int = 1
    """Features of a sample that are looked up in this table, each with its own ids and its own embedding."""

    @property
    def ids(self) -> float:
        """Mean ids per sample, over all features."""
        return self.pooling * self.features

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return self.rows * self.dim * ITEMSIZE[self.dtype]

    def embeddings(self, samples: float) -> float:
        """Embeddings that lookups for this many samples return.

        >>> Table("words", 1000, 64, 20).embeddings(10), Table("words", 1000, 64, 20, sequence=True).embeddings(10)
        (10, 200)
        >>> Table("words", 1000, 64, pooling=20, features=3).embeddings(10)
        30
        """
        return samples * (self.ids if self.sequence else self.features)


def check_table(table: Table) -> None:
    """Raise unless the values of a table are possible.

    >>> check_table(Table("users", rows=0, dim=64))
    Traceback (most recent call last):
    foretrace.errors.ForetraceError: table users has 0 rows. Give the number of its embeddings, from 1 to 1e+12.
    """
    what = table.name if table.name.startswith("table") else f"table {table.name}"
    total = sum(table.reuse)
    possible = all(math.isfinite(share) and share >= 0 for share in table.reuse) and len(table.reuse) <= MAX_BINS
    for holds, wrong, advice in (
        (0 < table.rows <= MAX_ROWS, f"{what} has {table.rows} rows",
         f"Give the number of its embeddings, from 1 to {MAX_ROWS:g}."),
        (0 < table.dim <= MAX_DIM, f"{what} has rows of {table.dim} elements",
         f"Give the length of an embedding, from 1 to {MAX_DIM:,}."),
        (0 <= table.pooling <= MAX_POOLING, f"{what} has a pooling of {table.pooling}",
         "Give the mean number of ids of a sample."),
        (0 < table.features <= MAX_FEATURES, f"{what} has {table.features} features",
         f"Give how many are looked up in it, from 1 to {MAX_FEATURES:,}."),
        (table.dtype in ITEMSIZE, f"{what} is of dtype {table.dtype!r}", f"Known are: {', '.join(DTYPE_ALIASES)}."),
        (table.optimizer in OPTIMIZER_STATE, f"{what} has optimizer {table.optimizer!r}",
         f"Known are: {', '.join(OPTIMIZER_STATE)}."),
        (0 <= table.zipf <= 10, f"{what} has a Zipf exponent of {table.zipf}", "Give one from 0 (uniform ids) to 10."),
        (possible, f"{what} has an invalid reuse histogram", f"Give at most {MAX_BINS} shares, none of them negative."),
        (not table.reuse or abs(total - 1) <= HISTOGRAM_TOLERANCE,
         f"the reuse histogram of {what} adds up to {total:.3g}, not to 1",
         "It holds shares of the rows that a batch accesses: once, 2-3 times, 4-7 times, and so on."),
    ):  # fmt: skip
        if not holds:
            raise ForetraceError(wrong, advice)


def format_bytes(nbytes: float) -> str:
    """Bytes as messages and notes show them.

    >>> format_bytes(256_000_000), format_bytes(12_300)
    ('0.26 GB', '0.012 MB')
    """
    if nbytes < 1e7:
        return f"{nbytes / 1e6:.2g} MB"
    return f"{nbytes / 1e9:,.{2 if nbytes < 1e10 else 1}f} GB"


def is_table_list(path: Path) -> bool:
    """Whether a file is a list of tables, by its name.

    >>> is_table_list(Path("tables.csv.gz")), is_table_list(Path("train.py"))
    (True, False)
    """
    return path.name.endswith((*YAML_SUFFIXES, *CSV_SUFFIXES))


def read_tables(path: Path) -> list[Table]:
    """The tables that a CSV or YAML file lists; errors name the line.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "tables.csv"
    >>> _ = path.write_text("name,rows,dim,count\\nusers,1000,64,2\\n")
    >>> [table.name for table in read_tables(path)]
    ['users.0', 'users.1']
    """
    text = _text(path)
    entries = _yaml_entries(path, text) if path.name.endswith(YAML_SUFFIXES) else _csv_entries(path, text)
    tables: list[Table] = []
    lines: dict[str, int] = {}
    for number, entry in enumerate(entries):
        try:
            found = _tables(entry.fields, number)
            for name in (table.name for table in found):
                before = lines.setdefault(name, entry.line)
                if before != entry.line:
                    raise ForetraceError(
                        f"a table is called {name} already, in line {before}", "Give each its own name."
                    )
            tables += found
        except ForetraceError as error:
            raise ForetraceError(f"{path}, line {entry.line}: {error.what}", error.advice) from None
        if len(tables) > MAX_TABLES:
            raise ForetraceError(f"{path}, line {entry.line}: more than {MAX_TABLES:,} tables", "Is count right?")
    if not tables:
        raise ForetraceError(f"{path} lists no tables", f"A table has rows and dim, and may have: {', '.join(FIELDS)}.")
    return tables


class _Entry(NamedTuple):
    """One table of a file: its fields as text, and its line."""

    line: int
    fields: Mapping[str, str]


def _text(path: Path) -> str:
    try:
        return read_bounded(path, MAX_FILE_BYTES, "a list of tables").decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ForetraceError(f"{path} can't be read ({reason})", "Give a YAML or CSV file that lists tables.") from None


def _csv_entries(path: Path, text: str) -> Iterator[_Entry]:
    reader = csv.reader(io.StringIO(text))
    seen: set[str] = set()
    try:
        header = [column.strip().lower() for column in next(reader, [])]
        from_planner = TORCHREC_COLUMNS.keys() <= set(header)
        names = {column: column for column in header}
        if from_planner:
            optional = {"features": "features"}  # other columns of its listing are ignored
            names = {column: name for column, name in (TORCHREC_COLUMNS | optional).items() if column in header}
        else:
            _check_field_names(path, 1, names)
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                raise ForetraceError(
                    f"{path}, line {reader.line_num}: {len(cells)} cells under {len(header)} columns",
                    "Quote cells that have commas in them.",
                )
            fields = {names[c]: x.strip() for c, x in zip(header, cells) if c in names}
            if from_planner:
                fields = _per_feature(fields)
                fields["name"] += f"#{reader.line_num}" * (fields["name"] in seen)  # names need not be unique
            seen.add(fields.get("name", ""))
            yield _Entry(reader.line_num, fields)
    except csv.Error as error:
        raise ForetraceError(f"{path}, line {reader.line_num}: {error}", "It should be plain CSV.") from None


def _per_feature(fields: dict[str, str]) -> dict[str, str]:
    """A row of the TorchRec planner's listing with the pooling factor of one feature instead of the sum over features.

    >>> _per_feature({"pooling": "60.0", "features": "4"})["pooling"]
    '15.0'
    """
    try:
        return fields | {"pooling": str(float(fields["pooling"]) / float(fields.get("features") or 1))}
    except (ValueError, ZeroDivisionError):
        return fields  # refused where the values are parsed


def _yaml_entries(path: Path, text: str) -> Iterator[_Entry]:
    """A list of tables at the top level or under ``tables``."""
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
        raise ForetraceError(f"{path} is no list of tables", "Write one, at the top level or under `tables:`.")
    for node in root.value:
        line = node.start_mark.line + 1
        if not isinstance(node, yaml.MappingNode):
            raise ForetraceError(f"{path}, line {line}: no table", "Write it as {name: …, rows: …, dim: …}.")
        for key, _ in node.value:
            _check_field_names(path, key.start_mark.line + 1, {str(key.value): ""})
        yield _Entry(line, {str(key.value): _yaml_text(path, value) for key, value in node.value})


def _yaml_text(path: Path, node: Any) -> str:
    """The text of a scalar or of a flat list; nested lists are refused, since aliases can make them endless."""
    import yaml

    items = node.value if isinstance(node, yaml.SequenceNode) else [node]
    if not all(isinstance(item, yaml.ScalarNode) for item in items):
        line = node.start_mark.line + 1
        raise ForetraceError(
            f"{path}, line {line}: neither a number, a word nor a list of these",
            "Write it as in {name: users, rows: 1000}.",
        )
    return " ".join(str(item.value) for item in items)


def _check_field_names(path: Path, line: int, names: Mapping[str, str]) -> None:
    for name in names:
        if name not in FIELDS:
            near = difflib.get_close_matches(name, FIELDS, 1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise ForetraceError(
                f"{path}, line {line}: a table has no field {name!r}", f"{hint}Known are: {', '.join(FIELDS)}."
            )


def _tables(fields: Mapping[str, str], number: int) -> list[Table]:
    """The table that fields describe, ``count`` times."""
    for required in ("rows", "dim"):
        if not fields.get(required):
            raise ForetraceError(
                f"a table without {required}", "Give its rows (embeddings) and its dim (their length)."
            )
    values = {name: _value(name, text) for name, text in fields.items() if text != ""}
    count = values.pop("count", 1)
    table = Table(**{"name": f"table {number}", **values})
    check_table(table)
    if not 0 < count <= MAX_TABLES:
        raise ForetraceError(
            f"table {table.name} has a count of {count}", f"Give how many are like it, from 1 to {MAX_TABLES:,}."
        )
    return [table] if count == 1 else [replace(table, name=f"{table.name}.{copy}") for copy in range(count)]


def _value(name: str, text: str) -> Any:
    try:
        return FIELDS[name](text)
    except (ValueError, OverflowError):
        raise ForetraceError(f"{name} is {text!r}", EXPECTED[name]) from None


def _integer(text: str) -> int:
    number = float(text.replace("_", ""))
    if number != int(number):
        raise ValueError(text)
    return int(number)


def _items(text: str) -> list[str]:
    return text.replace(";", " ").replace(",", " ").split()


def _sharding_types(text: str) -> tuple[str, ...]:
    names = tuple(_items(text))
    if not set(names) <= set(SHARDING_TYPE_NAMES):
        raise ValueError(text)
    return names


def _boolean(text: str) -> bool:
    return ("no", "false", "0", "yes", "true", "1").index(text.lower()) > 2


FIELDS: dict[str, Callable[[str], Any]] = {
    "name": str,
    "rows": _integer,
    "dim": _integer,
    "pooling": float,
    "dtype": lambda text: DTYPE_ALIASES.get(text.lower(), text),
    "zipf": float,
    "reuse": lambda text: tuple(map(float, _items(text))),
    "optimizer": str.lower,
    "kinds": _sharding_types,
    "sequence": _boolean,
    "features": _integer,
    "count": _integer,
}
"""The fields of a table in a file, and how each is parsed."""
NUMBER, INTEGER = "It should be a number.", "It should be a whole number."
EXPECTED = {
    "rows": INTEGER, "dim": INTEGER, "features": INTEGER, "count": INTEGER, "pooling": NUMBER, "zipf": NUMBER,
    "reuse": "It should be shares of the rows that a batch accesses once, 2-3 times, 4-7 times, …: 0.5; 0.3; 0.2.",
    "sequence": "It should be yes or no.",
    "kinds": f"Known are: {', '.join(SHARDING_TYPE_NAMES)}.",
}  # fmt: skip
TORCHREC_COLUMNS = {"fqn": "name", "hash_size": "rows", "emb_dim": "dim", "sum_pooling_factor": "pooling"}
"""Columns of the listing that TorchRec's planner writes, and the fields they are."""
