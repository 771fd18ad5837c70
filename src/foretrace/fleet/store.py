"""The store of a fleet: reduced recordings in one Parquet index.

    STORE/store.json      what it is, and its version
    STORE/index.parquet   the records, by id
    STORE/parts/          records that were added and are not in the index yet, some in a file
    STORE/originals/      copies of recordings, where they were asked for

Files appear under their names only when they are complete. A process that is killed leaves parts behind, which every
reader sees and the next `add` merges.
"""

from __future__ import annotations

import json
import os
import types
import typing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrace.errors import ForetraceError
from foretrace.fleet.labels import HOURS
from foretrace.fleet.record import StepRecord
from foretrace.graph.tables import Floats
from foretrace.output import atomic_write, os_reason

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 2
STORE, INDEX, PARTS, ORIGINALS, LOCK = "store.json", "index.parquet", "parts", "originals", "lock"
FORMAT = "foretrace fleet"
ROWS_PER_GROUP = 4096


def arrow() -> Any:
    """The module pyarrow; an error that says how to install it, where it is not."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ForetraceError(
            "a fleet's store needs pyarrow, which is not installed", "pip install 'foretrace[fleet]' brings it."
        ) from None
    return pyarrow


@cache
def schema() -> pa.Schema:
    """The columns of the index: the fields of a `StepRecord`."""
    return arrow().schema(list(_columns(StepRecord)))


def _columns(record: type) -> Iterator[tuple[str, Any]]:
    hints = typing.get_type_hints(record)
    return ((field.name, _arrow_type(hints[field.name])) for field in fields(record))


def _arrow_type(kind: Any) -> Any:
    pa, inner = arrow(), typing.get_args(kind)
    if typing.get_origin(kind) is list:
        return pa.list_(_arrow_type(inner[0]))
    if typing.get_origin(kind) is tuple:
        return pa.struct([(f"_{place}", _arrow_type(one)) for place, one in enumerate(inner)])
    if typing.get_origin(kind) is types.UnionType:
        return _arrow_type(inner[0])
    if is_dataclass(kind):
        return pa.struct(list(_columns(typing.cast(type, kind))))
    return {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}[kind]


def to_table(records: Sequence[StepRecord]) -> pa.Table:
    """Records as a table."""
    rows = [{**asdict(one), "labels": [{"_0": key, "_1": value} for key, value in one.labels]} for one in records]
    return arrow().Table.from_pylist(rows, schema=schema())


def from_table(table: pa.Table) -> list[StepRecord]:
    """The records of a table with all columns."""
    hints = typing.get_type_hints(StepRecord)
    nested = {name: item for name, kind in hints.items() for item in typing.get_args(kind)[:1] if is_dataclass(item)}
    records = []
    for row in table.to_pylist():
        for name, kind in nested.items():
            row[name] = [typing.cast(Any, kind)(**item) for item in row[name]]
        row["labels"] = [(item["_0"], item["_1"]) for item in row["labels"]]
        records.append(StepRecord(**row))
    return records


class Store:
    """A fleet's store on disk.

    >>> import tempfile
    >>> store = Store.open(Path(tempfile.mkdtemp()) / "fleet", create=True)
    >>> store.add([StepRecord(id="b", name="bert"), StepRecord(id="a", name="dlrm")])
    >>> store.merge()
    >>> [record.name for record in store.records()]
    ['dlrm', 'bert']
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: Path, create: bool = False) -> Store:
        """The store in a folder; with ``create``, a new one where the folder is empty or not there."""
        arrow()
        try:
            about = json.loads((path / STORE).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return cls._new(path) if create else cls._missing(path)
        except (OSError, ValueError, RecursionError) as error:
            what = f"{path / STORE} can't be read ({error})"
            raise ForetraceError(what, "Restore it, or name another store.") from None
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise ForetraceError(f"{path} is no store of a fleet", "Name another folder.")
        if about.get("version") != VERSION:
            raise ForetraceError(
                f"{path} is a store of version {about.get('version')}, this Foretrace reads version {VERSION}",
                "Update Foretrace, or add the recordings to a new store.",
            )
        return cls(path)

    @classmethod
    def _missing(cls, path: Path) -> Store:
        raise ForetraceError(f"there is no store in {path}", f"Make one: foretrace fleet add {path} RECORDING…")

    @classmethod
    def _new(cls, path: Path) -> Store:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ForetraceError(f"{path} is no store of a fleet", "Name a new folder, or one that a store is in.")
        store = cls(path)
        with store._writing():
            (path / PARTS).mkdir(parents=True, exist_ok=True)
            with atomic_write(path / STORE) as file:
                file.write(json.dumps({"format": FORMAT, "version": VERSION}).encode())
        return store

    def add(self, records: Sequence[StepRecord]) -> None:
        """Add records as one part: all of them or, if the process is killed, none."""
        if records:
            with self._writing():
                (self.path / PARTS).mkdir(exist_ok=True)
                self._write(self.path / PARTS / f"{os.getpid()}-{os.urandom(6).hex()}.parquet", to_table(records))

    def merge(self) -> None:
        """Bring all parts into the index, which is sorted by id: the same records make the same file."""
        with self._writing(), self._locked() as alone:
            parts = self._parts()
            if alone and parts:
                self._write(self.path / INDEX, self.table())
                for part in parts:
                    part.unlink(missing_ok=True)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The records, sorted by id, or some columns of them; of a record with several revisions the last."""
        pa = arrow()
        parts = self._parts()  # first: what leaves them meanwhile is in the index
        files = [self.path / INDEX, *parts]
        asked = None if columns is None else list(dict.fromkeys(["id", "revision", "source", *columns]))
        tables = []
        for path in files:
            try:
                tables.append(pa.parquet.ParquetFile(path).read(columns=asked))
            except FileNotFoundError:  # there is no index yet, or another process has just merged the part
                continue
            except (OSError, pa.ArrowException) as error:
                what = f"{path} can't be read ({str(error).splitlines()[0][:120]})"
                raise ForetraceError(what, "Restore it, or add the recordings anew.") from None
        if not tables:
            return schema().empty_table() if asked is None else schema().empty_table().select(_top(asked))
        found = pa.concat_tables(tables)
        return _latest(found) if parts else found

    def holds_nothing(self, such: str = "") -> ForetraceError:
        """The error of a question about no recording, or none of such a kind."""
        return ForetraceError(
            f"{self.path} holds no recording{such}", f"Add some: foretrace fleet add {self.path} RECORDING…"
        )

    def records(self) -> list[StepRecord]:
        """All records, sorted by id."""
        return from_table(self.table())

    def _parts(self) -> list[Path]:
        return sorted(path for path in (self.path / PARTS).glob("*.parquet") if not path.name.startswith("."))

    def _write(self, path: Path, table: pa.Table) -> None:
        with atomic_write(path) as file:
            arrow().parquet.write_table(table, file, compression="zstd", row_group_size=ROWS_PER_GROUP)
            file.flush()
            os.fsync(file.fileno())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ForetraceError(
                f"{self.path} can't be written ({os_reason(error)})",
                "Free some space or get write access, and add again: what is in the store is kept.",
            ) from None

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Whether no other process merges at the same time; False where the file system has no locks."""
        import fcntl

        with (self.path / LOCK).open("wb") as file:
            locked = False
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
                locked = True
            yield locked


def _top(columns: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(column.partition(".")[0] for column in columns))


def _latest(table: pa.Table) -> pa.Table:
    """The last revision of each record, sorted by id; of the same one from several places, the last by its path."""
    ids, revision, source = (table.column(name).to_numpy() for name in ("id", "revision", "source"))
    order = np.lexsort((source, revision, ids))
    last = np.ones(len(order), bool)
    last[:-1] = ids[order[1:]] != ids[order[:-1]]
    return table.take(order[last]).combine_chunks()


def hours_of(table: pa.Table) -> Floats:
    """GPU hours that each recording stands for: one where no label says how many."""
    hours = table.column(HOURS).to_numpy().astype(np.float64)
    return np.where(np.isfinite(hours), hours, 1.0)


class Flat:
    """A list column of a table with all its items one behind the other.

    >>> from foretrace.fleet.record import NamedMs
    >>> records = [StepRecord(id="a", idle=[NamedMs("T1", 2.0), NamedMs("sync", 1.0)]), StepRecord(id="b")]
    >>> idle = Flat(to_table(records), "idle")
    >>> idle.row.tolist(), idle["ms"].tolist(), idle.codes("name")[1]
    ([0, 0], [2.0, 1.0], ['T1', 'sync'])
    """

    def __init__(self, table: pa.Table, column: str) -> None:
        lists = table.column(column).combine_chunks()
        if lists.type.num_fields and hasattr(lists, "chunks"):
            lists = arrow().concat_arrays(lists.chunks) if lists.num_chunks else arrow().array([], lists.type)
        self.items = lists.flatten()
        self.row = np.repeat(np.arange(len(lists)), np.diff(lists.offsets.to_numpy()))
        """The row of the table that each item is in."""

    def __getitem__(self, field: str) -> np.ndarray:
        """A column of numbers."""
        return np.asarray(self.items.field(field).to_numpy(zero_copy_only=False))

    def codes(self, field: str) -> tuple[np.ndarray, list[str]]:
        """A column of text: a code for each item, and the texts of the codes."""
        return text_codes(self.items.field(field))


def text_codes(column: Any) -> tuple[np.ndarray, list[str]]:
    """A code for each text of a column, and the distinct texts."""
    coded = (column.combine_chunks() if hasattr(column, "combine_chunks") else column).dictionary_encode()
    if hasattr(coded, "chunks"):
        coded = coded.combine_chunks()
    return np.asarray(coded.indices.to_numpy(zero_copy_only=False)), coded.dictionary.to_pylist()
